"""Partitions on their way to being open: the log first, so that nothing else waits for somebody's machine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.sim.disk import SimDisk
from dispatcher.barriers.stability import Stability
from dispatcher.pipeline.payloads import PartitionPayloads
from dispatcher.pipeline.presence import Presence
from logboom.errors import Unavailable
from logboom.types import NO_DIGEST, DurabilityMode, NodeId, PartitionId
from partitions.log.batch import Batch
from raftlog.entries.entry import Route
from raftlog.entries.lifecycle import Change
from raftlog.links.lacks import Lack
from tests.unit.dispatcher.stage import KV, Stage
from tests.unit.partitions.batches import P, make
from tests.unit.partitions.compaction_world import open_log, raw

ME, OTHER, THIRD = map(NodeId, ("n1", "n2", "n3"))


class Slow(Stage):
    """A node where a machine's own threads do nothing before the test says so."""

    def __init__(self) -> None:
        super().__init__(partitions=P)
        self.threads: list[Callable[[], None]] = []
        machines = SimpleNamespace(submit=lambda job, done: self.threads.append(lambda: done(job(), None)))
        self.rooms.offload = lambda _: machines
        self.rooms.open_log = lambda *_: open_log(SimDisk(random.Random(1)))
        self.rooms.untouched = lambda _: not self.left
        self.left = False
        """By an earlier process."""
        self.ends: list[PartitionId] = []
        self.failures: list[BaseException] = []
        self.raft.fatal = self.failures.append
        self.payloads = PartitionPayloads(self.rooms.logs, lambda _: None, self.partitioning.is_gone)
        self.batch = make(1, NO_DIGEST, [b"x"])

    @property
    def route(self) -> Route:
        header = self.batch.header
        return Route(P, header.term, self.batch.last_index, self.batch.digest)

    def created(self) -> None:
        self.partitioning.handed_up(Change(P, P, KV, bytes(16)).fields())
        while self.jobs:
            self.jobs.pop(0)()

    def destroyed(self) -> None:
        self.partitioning.handed_up(Change(P, P).fields())

    def opens(self) -> None:
        self.threads.pop(0)()

    def ended(self, partition_id: PartitionId) -> None:
        self.ends.append(partition_id)


def commit(node: Slow, batch: Batch) -> None:
    store = node.rooms.logs[P]
    store.commit(last_index=batch.last_index, digest=batch.digest, global_index=1, term=batch.header.term)


def test_batches_are_taken_as_soon_as_the_log_is_open() -> None:
    """What was ordered behind them, of whatever partition, waited for a machine that did not open."""
    node = Slow()
    assert node.payloads.receive(memoryview(raw(node.batch))) is None
    node.created()
    assert node.payloads.receive(memoryview(raw(node.batch))) == node.route
    assert node.payloads.holds(node.route)
    assert (node.workers.keys(), P in node.partitioning.opening) == ({*map(PartitionId, range(P))}, True)
    assert "is being opened" in str(node.partitioning.missing(P))
    node.opens()
    assert (P in node.workers, len(node.partitioning.opening)) == (True, 0)


class Behind(Slow):
    """It is a write-behind partition, which others have, too."""

    def __init__(self) -> None:
        super().__init__()
        behind = DurabilityMode.WRITE_BEHIND
        self.rooms.open_log = lambda *_: open_log(SimDisk(random.Random(1)), mode=behind)
        self.logs = self.rooms.logs
        self.stability = Stability(node_id=ME, members=[ME, OTHER, THIRD], partitions=[])
        self._touched, self._unsynced = set[PartitionId](), set[PartitionId]()
        self._settle_soon = lambda: None

    def log_opened(self, partition_id: PartitionId) -> None:
        Presence.log_opened(cast(Any, self), partition_id)

    def never_opened(self, partition_id: PartitionId) -> None:
        Presence.never_opened(cast(Any, self), partition_id)


@pytest.mark.parametrize("by_a_snapshot", [False, True])
async def test_what_is_synced_of_it_counts_as_soon_as_its_log_is_open(*, by_a_snapshot: bool) -> None:
    """For others, where its machine is open. What they have said counts on once it is open here, too."""
    node = Behind()
    if by_a_snapshot:
        opened = asyncio.ensure_future(node.partitioning.opening.log_of(P, KV))
        await asyncio.sleep(0)
        node.jobs.pop(0)()
        await opened
        assert node.stability.stable(P) is None, "it is not created here"
    node.stability.early(OTHER, P, 4)
    node.created()
    assert (P in node.partitioning.opening, node._touched) == (True, {P}), "what it has already is looked at"
    assert node.stability.update(ME, P, 3)
    assert node.stability.rows(THIRD) == [(P, 3)]
    node.opens()
    assert (node.stability.stable(P), node.stability.rows(THIRD)) == (3, [(P, 3)])


def test_of_one_that_is_destroyed_while_its_machine_opens_nothing_is_left() -> None:
    node = Behind()
    node.created()
    node.stability.update(ME, P, 3)
    node._unsynced.add(P)
    node.destroyed()
    assert (node.stability.stable(P), node.stability.untold()) == (None, [])
    assert not node._unsynced, "each sync looked for it"
    assert not node._touched


def test_who_asks_for_all_partitions_is_not_answered_without_one_of_which_something_is_committed() -> None:
    """A barrier over all would have been reached, and a reader of all logs gone on, without it."""
    node = Slow()
    node.created()
    node.partitioning.check_all()
    node.payloads.receive(memoryview(raw(node.batch)))
    commit(node, node.batch)
    with pytest.raises(Unavailable, match=f"partition {P} is being opened"):
        node.partitioning.check_all()
    node.opens()
    node.partitioning.check_all()


def test_nor_told_of_one_that_was_destroyed_while_its_machine_opened() -> None:
    """All that he did not ask for by name was refused to him, for good, until that machine was open."""
    node = Slow()
    node.created()
    node.payloads.receive(memoryview(raw(node.batch)))
    commit(node, node.batch)
    node.destroyed()
    node.partitioning.check_all()


async def test_its_log_is_given_to_a_snapshot_that_needs_it() -> None:
    node = Slow()
    node.created()
    assert await node.partitioning.opening.log_of(P, KV) is node.rooms.logs[P]


def test_one_that_is_destroyed_while_its_machine_opens_ends_when_that_is_open() -> None:
    node = Slow()
    node.partitioning._end = node.ends.append  # type: ignore[method-assign]
    node.created()
    node.destroyed()
    assert node.ends == [P]
    node.opens()
    assert (node.ends, len(node.partitioning.opening)) == ([P, P], 0), "once for who waits, and once for its machine"


async def test_until_then_its_files_stay() -> None:
    node = Slow()
    node.rebuilding = SimpleNamespace(works_on=lambda _: False)
    node.created()
    node.destroyed()
    await node.partitioning.forget(node.parent.lifecycle)
    assert P in node.rooms.logs


def test_one_that_is_destroyed_while_its_log_opens_gets_no_machine() -> None:
    node = Slow()
    node.partitioning.handed_up(Change(P, P, KV, bytes(16)).fields())
    node.destroyed()
    node.jobs.pop(0)()
    assert (node.threads, len(node.partitioning.opening)) == ([], 0)
    assert P in node.rooms.logs, "for whoever has not come so far"


def test_a_log_that_cannot_be_opened_ends_the_node() -> None:
    node = Slow()
    node.offload.submit = lambda _, done: done(None, OSError("no"))
    node.created()
    assert (len(node.failures), len(node.partitioning.opening)) == (1, 0)


async def test_a_node_that_stops_opens_no_machine() -> None:
    node = Slow()
    node.partitioning.handed_up(Change(P, P, KV, bytes(16)).fields())
    await node.partitioning.close()
    node.jobs.pop(0)()
    assert (node.threads, [*node.rooms.logs]) == ([], [P]), "whoever closes the files finds it"
    await asyncio.sleep(0)


@pytest.mark.parametrize("by_a_snapshot", [False, True])
@pytest.mark.parametrize(("left", "said"), [(False, Lack.ABSENT), (True, Lack.UNKNOWN)])
async def test_what_an_earlier_process_may_have_applied_nobody_knows_before_it_is_open(
    left: bool, said: Lack, *, by_a_snapshot: bool
) -> None:
    """Where a snapshot that came to nothing had opened the log first it was said to have applied nothing."""
    node = Slow()
    node.left = left
    secured = lambda *place: Presence._secured(cast(Any, node), *place)  # noqa: E731
    payloads = PartitionPayloads(node.rooms.logs, lambda _: None, applied=secured)
    if by_a_snapshot:
        opened = asyncio.ensure_future(node.partitioning.opening.log_of(P, KV))
        await asyncio.sleep(0)
        node.jobs.pop(0)()
        assert await opened is node.rooms.logs[P]
        assert payloads.lack(node.route) is said, "before it is created here, too"
    node.created()
    assert payloads.lack(node.route) is said
    node.opens()
    node.workers[P] = SimpleNamespace(secured=lambda _: True)
    node.rebuilding = SimpleNamespace(fenced=lambda _: False)
    assert payloads.lack(node.route) is Lack.APPLIED
