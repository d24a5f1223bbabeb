"""Figures out of what the clients have seen, and whose CPU time counts."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from bench import cpu
from bench.load import Load, Tally, _operations, summary


def test_figures_are_those_of_all_processes_together():
    tallies = [Tally(30, 20, [0.001] * 50, 0.0, 3.0), Tally(10, 10, [0.003] * 50, 1.0, 4.0)]
    found = summary(tallies, seconds=2.0, cpu_s=0.004)
    assert found.commands_per_s == 15
    assert found.p99_ms == pytest.approx(3.0)
    assert found.cpu_us_per_command == pytest.approx(100)
    assert found.drain_s == 1.0
    assert found.until_applied_per_s == 10


def test_nothing_measured_is_an_error():
    with pytest.raises(RuntimeError, match="nothing was measured"):
        summary([Tally(0, 0, [])], seconds=1.0, cpu_s=0.0)


def test_shapes_are_described_for_people():
    assert Load("etcd", (), records=128, concurrency=64, connections=2, partitions=1).shape == (
        "64 under way, 1 x 2 connections, blocks of 128"
    )
    assert Load("logboom", (), concurrency=4, apart=True).shape == (
        "4 under way, 1 x 1 connections, 8 partitions, followers on CPUs of their own"
    )


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"], stdin=0)
subprocess.run([sys.executable, "-c", "for _ in range(10_000_000): pass"])
print("done", flush=True)
child.wait()
"""


def test_children_belong_to_a_server_and_those_that_ended_still_count():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert sorted(server.stdout.readline() for _ in range(2)) == [b"done\n", b"up\n"]
        members = cpu.family([server.pid])
        assert len(members) == 2
        assert server.pid in members
        assert os.getpid() not in members
        alive = sum(cpu.cpu_seconds([pid]) for pid in members - {server.pid})
        assert cpu.cpu_seconds([server.pid]) > alive
        server.stdin.close()


def test_a_process_that_is_gone_used_nothing():
    with subprocess.Popen(["true"]) as server:
        server.wait()
        assert cpu.cpu_seconds([server.pid]) == 0
        cpu.place(server.pid, {0})


class _Slots:
    """A target whose operations are the slots that they were made for."""

    single = staticmethod(lambda slot: slot)
    bulk = staticmethod(lambda slot, records: (slot, records))


def test_slots_share_an_operation_only_where_connection_and_partition_are_the_same():
    target: Any = _Slots()
    shape = Load("logboom", (), concurrency=8, connections=2, partitions=3)
    assert _operations(target, shape) == [0, 1, 2, 3, 4, 5, 0, 1]
    assert _operations(target, replace(shape, concurrency=2)) == [0, 1]
    assert _operations(target, replace(shape, concurrency=3, records=5)) == [(0, 5), (1, 5), (2, 5)]
