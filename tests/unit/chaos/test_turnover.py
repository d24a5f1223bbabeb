"""Fault runs on real processes: what counts in the end when partitions and nodes have come and gone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from chaos import verdict
from chaos.effects import Effect, saved_effects
from chaos.history import History
from chaos.transfers import ACCOUNTS, BEGINS_WITH
from chaos.verdict import Observed
from chaos.workload import KV_PARTITIONS, LOG_PARTITIONS, Workload
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.machines.log import LogMachine
from server.world.disk_os import OsDisk


def observed() -> Observed:
    seen = Observed(History(lambda: 0))
    seen.changed.created.update({8: "kv", 9: "log", 10: "kv"})
    seen.changed.doomed.add(10)
    return seen


def test_created_partitions_are_checked_like_all_others_and_doomed_ones_are_not() -> None:
    seen = observed()
    assert seen.partitions("kv") == [*range(KV_PARTITIONS), 8]
    assert seen.partitions("log") == [*LOG_PARTITIONS, 9]
    add = seen.history.invoke(1, "add", "k", 1, 10)
    seen.history.end(add, "ok")
    seen.states["n1"] = {}
    assert dict(verdict.check(seen))["exactly once on n1"] == []
    seen.history.end(seen.history.invoke(1, "add", "k2", 1, 8), "ok")
    assert dict(verdict.check(seen))["exactly once on n1"] != []


def test_load_goes_to_what_was_created_too() -> None:
    anything: Any = None
    load = Workload(anything, anything, 1, random.Random(1), created=observed().changed.living)
    chosen = {load._somewhere() for _ in range(300)}
    assert {(8, "kv"), (9, "log"), (0, "kv"), (LOG_PARTITIONS[0], "log")} <= chosen
    assert all(partition != 10 for partition, _ in chosen)


def test_a_long_run_in_which_nothing_came_or_went_proves_nothing() -> None:
    def came_and_went(seen: Observed) -> list[str]:
        return dict(verdict.check(seen))["nodes and partitions come and go"]

    seen = observed()
    assert came_and_went(seen) == []  # too short to tell
    seen.turns = 4
    assert came_and_went(seen) == ["no installs", "no disks lost", "no members added", "no partitions destroyed"]
    seen.installs = 1
    seen.changed.counts.update({"disks lost": 1, "members added": 1, "partitions destroyed": 1})
    assert came_and_went(seen) == []


def found(seen: Observed, check: str) -> list[str]:
    return dict(verdict.check(seen))[check]


def test_what_took_effect_in_another_partition_or_in_two_is_found() -> None:
    seen = observed()
    for key in "ab":
        seen.history.end(seen.history.invoke(1, "add", key, 1, 2), "ok")
    seen.requests.append(seen.history.operations)
    right = {(2, "a"): 1, (2, "b"): 1}
    for state, exactly_once, whole in (
        (right, 0, 0),
        ({**right, (3, "a"): 1}, 1, 0),
        ({(2, "a"): 1, (3, "b"): 1}, 2, 1),
    ):
        seen.states["n1"] = state
        assert len(found(seen, "exactly once on n1")) == exactly_once
        assert len(found(seen, "whole requests on n1")) == whole


def test_a_tally_is_looked_for_where_it_is() -> None:
    seen = observed()
    seen.history.end(seen.history.invoke(1, "tally", "t1", 1, 2), "ok")
    seen.states["n1"] = {(2, "t1"): 1}
    assert found(seen, "exactly once on n1") == []
    seen.states["n1"] = {(3, "t1"): 1}
    assert len(found(seen, "exactly once on n1")) == 2


def test_accounts_of_each_partition_and_node_are_looked_at() -> None:
    seen = observed()
    seen.history.end(seen.history.invoke(1, "add", "m1-moved-1", 1, 1), "ok")
    right = dict.fromkeys(ACCOUNTS, (BEGINS_WITH,))
    seen.accounts = {"n1": {0: {}, 1: right}, "n2": {0: {ACCOUNTS[0]: (1,)}, 1: {}}}
    assert found(seen, "accounts on n1") == []
    assert ["partition 0" in each for each in found(seen, "accounts on n2")] == [True, False]
    seen.moving.append("something")
    assert found(seen, "transfers are seen as a whole") == ["something"]


@pytest.mark.parametrize(
    ("applied", "problems"), [((2, 1), 0), ((2, 2), 1), ((2, 0), 1), ((1, 1), 1)], ids=["once", "twice", "no", "killed"]
)
def test_what_was_sent_again_counts_once_in_a_log_partition(applied: tuple[int, int], problems: int) -> None:
    """By whoever has saved all of it."""
    seen, partition = observed(), LOG_PARTITIONS[0]
    seen.history.end(seen.history.invoke(1, "append", "log", "x", partition), "ok", index=1)
    seen.records[partition] = [(1, "x"), (2, "x")]
    index, count = applied
    seen.effects = {partition: {"n1": Effect(Position(PartitionLogIndex(index), GlobalLogIndex(9)), count)}}
    assert len(found(seen, f"log {partition}: once")) == problems


def test_what_took_effect_is_read_from_what_a_node_has_saved(tmp_path: Path) -> None:
    state = tmp_path / "partitions" / "6" / "state"
    state.mkdir(parents=True)
    machine = LogMachine(OsDisk(), state / "checkpoint")
    position = Position(PartitionLogIndex(3), GlobalLogIndex(7))
    batch: Any = _Batch()
    machine.apply([batch], lambda _: (position, {}))
    machine.close()
    assert saved_effects({"n1": tmp_path, "n2": tmp_path / "none"}, [6]) == {
        6: {"n1": Effect(position, 2), "n2": Effect(Position(PartitionLogIndex(0), GlobalLogIndex(0)), 0)}
    }


class _Batch:
    """Of three records, one of which was applied before."""

    count, skip, nbytes, digest = 3, ((1, 2),), 90, bytes(16)
