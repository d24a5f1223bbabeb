"""The least of all watermarks while a partition is being opened: it counts, too."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.barriers.watermarks import Watermarks
from dispatcher.pipeline import opening
from dispatcher.pipeline.presence import Presence
from dispatcher.pipeline.recovered import Recovered
from dispatcher.sessions.watching import Watch
from logboom.types import PartitionId
from raftlog.entries.lifecycle import Change
from tests.unit.dispatcher.frontier_world import move
from tests.unit.dispatcher.opening_world import ME, Slow, commit
from tests.unit.dispatcher.stage import KV
from tests.unit.partitions.batches import P
from tests.unit.partitions.compaction_world import raw


class Shown(Slow):
    """Somebody follows the watermarks of all of its partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.node_id = ME
        self.watermarks = Watermarks([PartitionId(p) for p in range(P)])
        self.admission = SimpleNamespace(add=lambda _: None)
        self.recovery = Recovered([])
        self.minima: list[int] = []
        self._touched = set[PartitionId]()
        self.commit_index = 0
        self._settle_soon = lambda: None
        self._worker_of: Any = lambda *_: SimpleNamespace(applied_index=0, secured=lambda _: True)
        self._progress_of: Any = lambda _: None
        self._publish: Any = lambda _: None
        self.watch = self.followed()

    def followed(self) -> Watch:
        """By one more client."""
        return Watch(
            cast(Any, self),
            None,
            every_ms=10,
            send=lambda header: self.minima.append(header["minimum"]),
            has_room=lambda: True,
            ended=lambda error: pytest.fail(str(error)),
            later=lambda *_: cast(Any, None),
            width=P,
        )

    def opened(self, partition_id: PartitionId) -> None:
        Presence.opened(cast(Any, self), partition_id)

    def look(self) -> None:
        pass

    def recovered(self, _: object = None) -> bool:
        return True

    def global_commit_index(self) -> int:
        return self.commit_index

    def applied(self, partition_id: PartitionId, index: int, *, idle: bool = True) -> None:
        move(self.watermarks, partition_id, index, idle=idle)
        self.watch.move()

    def committed(self, index: int) -> None:
        self.commit_index = index
        self.watermarks.committed(index)
        self.watch.move()


@pytest.mark.parametrize("end", ["opened", "destroyed"])
def test_whoever_follows_all_is_not_told_that_all_have_applied_what_one_that_is_being_opened_has_not(end: str) -> None:
    """The least of all was told without it, and went back to 0 once it was open."""
    node = Shown()
    for partition_id in range(P):
        node.applied(PartitionId(partition_id), 1)
    node.created()
    node.committed(6)
    node.payloads.receive(memoryview(raw(node.batch)))
    commit(node, node.batch, at=7)
    node.committed(9)
    assert (node.minima[-1], node.partitioning.opening.nothing_through()) == (6, 6)
    if end == "destroyed":
        node.destroyed()
        node.watch.move()
        assert node.minima[-1] == 9
    else:
        node.opens()
        node.watch.move()
        assert (node.minima[-1], node.watermarks.of(P).applied_global_index) == (6, 6)
        node.applied(P, 7, idle=False)
        assert node.minima[-1] == 7
    assert node.minima == sorted(node.minima)
    assert node.partitioning.opening.nothing_through() is None


@pytest.mark.parametrize("who", ["the same", "another"])
async def test_nor_where_an_earlier_process_has_left_it_and_files_for_it_come_late(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While there was no file for it nothing was known of it, and more was told than once it was looked at."""
    monkeypatch.setattr(opening, "OPEN_AGAIN_S", 0.0)
    node = Shown()
    node.left, node.files = True, lambda _: "too few"
    for partition_id in range(P):
        node.applied(PartitionId(partition_id), 1)
    node.created()
    node.committed(6)
    assert node.minima[-1] == 6
    node.files = lambda _: None
    for _ in range(1_000):
        await asyncio.sleep(0)
        if node.jobs:
            break
    assert node.partitioning.opening.nothing_through() == 0
    if who == "another":
        node.watch = node.followed()
    node.committed(7)
    assert node.minima[-1] == 6
    node.jobs.pop(0)()
    node.opens()
    node.committed(8)
    assert (node.minima[-1], node.watermarks.of(P).applied_global_index) == (6, 6)
    node.applied(P, 0)
    assert node.minima[-1] == 8
    assert node.minima == sorted(node.minima)


def test_of_what_an_earlier_process_has_left_nobody_knows_anything_while_it_is_read() -> None:
    node = Slow()
    node.left = True
    node.partitioning.handed_up(Change(P, P, KV, bytes(16)).fields())
    assert node.partitioning.opening.nothing_through() == 0
    while node.jobs:
        node.jobs.pop(0)()
    assert node.partitioning.opening.nothing_through() is None
