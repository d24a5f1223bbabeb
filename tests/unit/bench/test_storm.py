"""What the storm and the backlog make of what they saw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bench.backlog import Backlog, Stand, judge
from bench.crowd import Memory


def memory(*samples: int) -> Memory:
    cluster: Any = SimpleNamespace()
    made = Memory(cluster)
    made.samples = [{"n1": each, "n2": 10} for each in samples]
    return made


def test_memory_is_compared_half_by_half_on_the_worst_node() -> None:
    assert memory(100, 110, 150, 130).growth() == 150 / 110
    assert memory(100).growth() == 1.0


def test_a_backlog_may_cost_so_much_per_batch_and_must_be_applied() -> None:
    stands = [Stand(0, {"n1": 0}), Stand(100, {"n1": 1 << 20}), Stand(1000, {"n1": 40 << 20})]
    assert all(check.met for check in judge(Backlog(10, stands, 1000, equal=True), 1000))
    grown = [*stands[:2], Stand(1000, {"n1": 400 << 20})]
    assert [check.met for check in judge(Backlog(10, grown, 999, equal=False), 1000)] == [False, False, False]
