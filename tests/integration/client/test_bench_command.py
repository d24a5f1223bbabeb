"""`logboom bench` against real nodes: what it says is in their logs, and what it made is gone, whatever ends it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logboom import SyncClient
from logboom.testing import LocalCluster

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=3, settings={"cluster.overrides": {"2": {"state_machine": "log"}}}) as nodes:
        yield nodes


def begun(
    cluster: LocalCluster, *how: str, stderr: int = subprocess.PIPE, background: bool = False
) -> subprocess.Popen[str]:
    """``background``: as a shell begins what it does not wait for, whatever these tests were begun by."""
    of_ctrl_c = signal.SIG_IGN if background else signal.SIG_DFL
    return subprocess.Popen(
        [sys.executable, "-m", "logboom", "bench", *how, "-o", "json", "--endpoints", cluster.endpoints],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=stderr, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, of_ctrl_c),  # noqa: PLW1509 - nothing else goes on here
    )  # fmt: skip


def bench(cluster: LocalCluster, *how: str) -> dict[str, object]:
    process = begun(cluster, *how)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    row: dict[str, object] = json.loads(out)
    return row


def lengths(boom: SyncClient) -> dict[int, int]:
    """Of all logs that there are, as the leader has them."""
    return {mark.partition_id: mark.log_index for mark in boom.watermarks(linearizable=True)}


def test_what_it_says_was_done_was_done_and_nothing_else(cluster: LocalCluster) -> None:
    with cluster.client() as boom:
        assert lengths(boom) == {0: 0, 1: 0, 2: 0}
        singles = bench(cluster, "-p", "0", "--seconds", "500ms", "--clients", "2")
        blocks = bench(cluster, "--all", "log", "--seconds", "500ms", "--block", "200", "--in-flight", "4")
        assert lengths(boom) == {0: singles["commands"], 1: 0, 2: blocks["commands"]}
        assert blocks["partitions"] == [2]
        state = [key for key, _ in boom.scan(0)]
        assert state
        assert all(key.startswith(b"logboom-bench/") for key in state)


def test_partitions_of_its_own_come_and_go(cluster: LocalCluster) -> None:
    with cluster.client() as boom:
        before = lengths(boom)
        row = bench(cluster, "--create", "log", "--count", "2", "--seconds", "500ms", "--wait", "committed")
        assert row["commands"]
        assert len(set(row["partitions"]) - set(before)) == 2  # type: ignore[call-overload]
        assert lengths(boom) == before


@pytest.mark.parametrize(
    ("number", "background"), [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)]
)
def test_they_go_also_when_it_is_ended_before_its_time(
    cluster: LocalCluster, number: signal.Signals, *, background: bool
) -> None:
    with cluster.client() as boom:
        before = lengths(boom)
        terminal, its_end = os.openpty()
        how = ("--create", "kv", "--seconds", "1h")
        with begun(cluster, *how, stderr=its_end, background=background) as process:
            try:
                assert select.select([terminal], [], [], 60)[0]  # it has told of its first second
                assert "commands/s" in os.read(terminal, 4096).decode()
                assert len(lengths(boom)) == len(before) + 1
                process.send_signal(number)
                out, _ = process.communicate(timeout=60)
            finally:
                process.kill()
                os.close(terminal)
                os.close(its_end)
        assert process.returncode == 130
        assert json.loads(out)["commands"]
        assert lengths(boom) == before
