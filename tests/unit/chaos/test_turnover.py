"""Fault runs on real processes: what counts in the end when partitions and nodes have come and gone."""

from __future__ import annotations

import random
from typing import Any

from chaos import verdict
from chaos.history import History
from chaos.verdict import Observed
from chaos.workload import KV_PARTITIONS, LOG_PARTITIONS, Workload


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
