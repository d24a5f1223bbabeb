"""What of a partition's log its node needs no more: its state has it, and a start begins behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.pipeline.presence import Presence
from logboom.settings import SnapshotSettings
from logboom.types import PartitionId, PartitionLogIndex, Term
from raftlog.entries.entry import Route
from raftlog.entries.parent_state import ParentState
from raftlog.journal.journal_base import BEGINNING, Base

P, EMPTY = PartitionId(0), PartitionId(1)
KEPT = SnapshotSettings()
"""Records of log partitions stay."""


def base_after(*ends: int) -> Base:
    """A journal that begins behind batches of P that end there."""
    parent = ParentState()
    for at, end in enumerate(ends, 2):
        parent.apply(at, [Route(P, Term(1), PartitionLogIndex(end), end.to_bytes(16, "big"))])
    return Base(len(ends) + 1, 1, parent.encode())


def node(base: Base, state_machine: str = "kv", snapshot: SnapshotSettings = KEPT) -> Any:
    kind = SimpleNamespace(state_machine=state_machine)
    return SimpleNamespace(
        settings=SimpleNamespace(snapshot=snapshot),
        partitioning=SimpleNamespace(kind=lambda _: kind),
        raft=SimpleNamespace(journal=SimpleNamespace(base=base)),
        _at_base=Presence._at_base,
    )


@pytest.mark.parametrize(("index", "needs"), [(1, False), (8, False), (9, True)])
def test_what_lies_below_the_journals_base(index: int, needs: bool) -> None:
    assert Presence._unneeded(node(base_after(5, 8)), P, index) is not needs
    assert not Presence._unneeded(node(base_after(5, 8)), EMPTY, index)


def test_of_a_log_partition_nothing_unless_its_records_need_not_stay() -> None:
    """They are kept nowhere else."""
    assert not Presence._unneeded(node(base_after(5, 8), "log"), P, 5)
    for limit in (SnapshotSettings(retain_log_ms=1000), SnapshotSettings(retain_log_bytes=1 << 30)):
        assert Presence._unneeded(node(base_after(5, 8), "log", limit), P, 5)
        assert not Presence._unneeded(node(base_after(5, 8), "log", limit), P, 9)


def test_a_base_that_moves_is_looked_at_anew() -> None:
    made = node(BEGINNING.base)
    assert not Presence._unneeded(made, P, 5)
    made.raft.journal.base = base_after(5, 8)
    assert Presence._unneeded(made, P, 8)
    made.raft.journal.base = base_after(5, 8, 20)
    assert Presence._unneeded(made, P, 20)
