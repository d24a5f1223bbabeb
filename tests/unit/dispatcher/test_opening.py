"""Partitions on their way to being open: the log first, so that nothing else waits for somebody's machine."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.sim.disk import SimDisk
from dispatcher.barriers.stability import Stability
from dispatcher.pipeline import opening
from dispatcher.pipeline.payloads import PartitionPayloads
from dispatcher.pipeline.presence import Presence
from logboom.errors import LogboomError, Unavailable
from logboom.types import DurabilityMode, NodeId, PartitionId
from raftlog.entries.lifecycle import Change
from raftlog.links.lacks import Lack
from tests.unit.dispatcher.barrier_desk import Desk
from tests.unit.dispatcher.opening_world import ME, OTHER, THIRD, Slow, commit
from tests.unit.dispatcher.stage import KV
from tests.unit.partitions.batches import P
from tests.unit.partitions.compaction_world import open_log, raw


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
        self._told_paused = set[PartitionId]()
        self._settle_soon = lambda: None
        nobody: Any = SimpleNamespace(ended=lambda *_: None, remove=lambda _: None, look_again=lambda _: None)
        self.snapshots = SimpleNamespace(taking=nobody)
        self.barriers, self.watermarks, self.voiding = nobody, nobody, nobody

    def log_opened(self, partition_id: PartitionId) -> None:
        Presence.log_opened(cast(Any, self), partition_id)

    def forgotten(self, partition_id: PartitionId) -> None:
        Presence.forgotten(cast(Any, self), partition_id)


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


@pytest.mark.parametrize("created_first", [True, False])
async def test_so_it_does_while_its_machine_waits_for_files(
    monkeypatch: pytest.MonkeyPatch, *, created_first: bool
) -> None:
    """It took batches, and told nobody how far it was."""
    node, later = Behind(), list[Callable[[], None]]()
    monkeypatch.setattr(
        asyncio.get_running_loop(), "call_later", lambda _, job, *what: later.append(lambda: job(*what))
    )
    node.files = lambda _: "none are left"
    if created_first:
        node.created()
    opened = asyncio.ensure_future(node.partitioning.opening.log_of(P, KV))
    await asyncio.sleep(0)
    node.jobs.pop(0)()
    await opened
    if not created_first:
        node.created()
    assert node.partitioning.opening.why(P) == "none are left"
    assert node._touched == {P}, "what it has already is looked at"
    node.stability.update(OTHER, P, 2)
    assert node.stability.update(ME, P, 3)
    assert node.stability.rows(THIRD) == [(P, 3)]
    node.files = lambda _: None
    later.pop()()
    node.opens()
    assert (node.stability.stable(P), node.stability.rows(THIRD)) == (2, [(P, 3)]), "it is not forgotten"


async def test_but_not_once_it_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Behind()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *_: None)
    node.files = lambda _: "none are left"
    node.created()
    opened = asyncio.ensure_future(node.partitioning.opening.log_of(P, KV))
    await asyncio.sleep(0)
    node.destroyed()
    node.jobs.pop(0)()
    await opened
    assert (node.stability.partitions, node._touched) == ([], set())


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


def test_it_is_told_how_long_it_has_not_been_open() -> None:
    """Found by reading: `logboom status` had no word of a partition whose machine did not open on a node."""
    node = Slow()
    node.now = 100.0
    node.created()
    node.now = 142.5
    assert node.partitioning.opening.rows(1) == [[P, "", 42]]
    assert node.partitioning.opening.rows(0) == []
    node.opens()
    assert node.partitioning.opening.rows(1) == []


async def test_it_is_told_what_it_waits_for() -> None:
    node = Slow()
    node.files = lambda _: "too few file descriptors"
    node.created()
    assert node.partitioning.opening.rows(1) == [[P, "too few file descriptors", 0]]
    node.destroyed()
    assert node.partitioning.opening.rows(1) == []
    node.partitioning.opening.close()


async def test_its_log_is_given_to_a_snapshot_that_needs_it() -> None:
    node = Slow()
    node.created()
    assert await node.partitioning.opening.log_of(P, KV) is node.rooms.logs[P]


@pytest.mark.parametrize("meanwhile", [True, False])
async def test_so_it_is_while_it_waits_for_files(monkeypatch: pytest.MonkeyPatch, *, meanwhile: bool) -> None:
    """They may be those of what was destroyed, which nothing but that snapshot gives back."""
    node, later = Slow(), list[Callable[[], None]]()
    monkeypatch.setattr(
        asyncio.get_running_loop(), "call_later", lambda _, job, *what: later.append(lambda: job(*what))
    )
    node.files = lambda _: "none are left"
    node.created()
    opened = asyncio.ensure_future(node.partitioning.opening.log_of(P, KV))
    await asyncio.sleep(0)
    assert len(node.jobs) == 1
    if meanwhile:
        node.files = lambda _: None
        later.pop()()
        assert len(node.jobs) == 1, "there are no two of it"
    node.jobs.pop(0)()
    assert await opened is node.rooms.logs[P]
    if not meanwhile:
        assert (node.threads, node.partitioning.opening.why(P)) == ([], "none are left")
        node.files = lambda _: None
        later.pop()()
    node.opens()
    assert (P in node.workers, len(node.partitioning.opening), node.failures) == (True, 0, [])


async def test_but_not_before_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was opened all the same: whoever has none at all ends, and at each start again."""
    node, waited = Slow(), list[float]()

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        node.file_left = len(waited) == 3

    monkeypatch.setattr(opening, "wait", wait)
    node.files, node.file_left = lambda _: "none are left", False
    node.created()
    opened = asyncio.ensure_future(node.partitioning.opening.log_of(P, KV))
    await asyncio.sleep(0)
    assert (len(node.jobs), waited) == (1, [opening.OPEN_AGAIN_S] * 3)
    node.jobs.pop(0)()
    assert await opened is node.rooms.logs[P]
    node.partitioning.opening.close()


async def test_nor_is_it_waited_for_longer_than_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    node, asked = Slow(), list[bool]()

    async def wait(_: float) -> None: ...

    def check(*, stands: bool = False) -> None:
        asked.append(stands)
        if len(asked) == 3:
            raise Unavailable("it is of no use any more")

    monkeypatch.setattr(opening, "wait", wait)
    node.files, node.file_left = lambda _: "none are left", False
    node.created()
    with pytest.raises(Unavailable, match="of no use any more"):
        await node.partitioning.opening.log_of(P, KV, check)
    assert not node.jobs
    assert all(asked), "it waits for files, and for nothing that goes on"
    node.partitioning.opening.close()


async def test_one_that_is_being_opened_is_no_reason_to_take_a_newer_set(monkeypatch: pytest.MonkeyPatch) -> None:
    node, asked = Slow(), list[bool]()

    async def wait(_: float) -> None: ...

    def check(*, stands: bool = False) -> None:
        asked.append(stands)
        node.jobs.pop(0)()

    monkeypatch.setattr(opening, "wait", wait)
    node.partitioning.handed_up(Change(P, P, KV, bytes(16)).fields())
    assert await node.partitioning.opening.log_of(P, KV, check) is node.rooms.logs[P]
    assert asked == [False]
    node.partitioning.opening.close()


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
    node.rebuilding.works_on = lambda _: False
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


def hole(node: Slow) -> None:
    """Nobody has what is committed of it."""
    store = node.rooms.logs[P]
    assert store.concede(node.batch.last_index, node.batch.digest)
    commit(node, node.batch)
    node.voiding.hole_committed(node.route)


@pytest.mark.parametrize("has", [True, False])
def test_what_nobody_has_holds_it_up_until_it_is_known_what_its_state_has(*, has: bool) -> None:
    """It counted as applied: others had, and once the journal began behind it a start took it for void."""
    node = Slow()
    node.created()
    hole(node)
    store = node.rooms.logs[P]
    assert (store.durable_index, store.hole is None) == (0, False)
    node.state = node.batch.last_index if has else 0
    node.opens()
    assert (store.durable_index == node.batch.last_index, store.hole is None) == (has, has)


def test_of_one_that_is_destroyed_before_it_was_open_it_holds_up_nothing() -> None:
    node = Slow()
    node.created()
    node.destroyed()
    hole(node)
    assert node.rooms.logs[P].hole is None


def test_one_that_does_not_open_where_others_are_led_from_can_be_destroyed() -> None:
    """It was being opened, said whoever led, as long as a call of its machine did not return."""
    node = Slow()
    node.partitioning.opening.open(PartitionId(P + 1), KV)
    with pytest.raises(LogboomError):
        node.partitioning.destroy(PartitionId(P + 1), node.told.append)  # its creation is not committed
    node.created()
    node.partitioning.destroy(P, node.told.append)
    node.commit()
    assert (node.told, node.partitioning.is_gone(P)) == ([P], True)


class Heard(Presence):
    """As much of it as has heard of a partition that is not open here."""

    def __init__(self) -> None:
        desk, self.forgot = Desk(), list[PartitionId]()
        taking = SimpleNamespace(ended=lambda partition_id, *_: self.forgot.append(partition_id))
        self.snapshots, self.voiding = cast(Any, SimpleNamespace(taking=taking)), cast(Any, taking)
        self.partitioning = cast(Any, SimpleNamespace(is_gone=lambda _: False))
        self.watermarks, self.barriers = desk.watermarks, desk.barriers
        self.stability = Stability(node_id=NodeId("n1"), members=[NodeId("n1"), NodeId("n2")], partitions=[])
        self._unsynced, self._touched, self._told_paused = {P}, {P}, {P}
        section = SimpleNamespace(partition_id=P, applied_index=7)
        self.snapshot_shown(cast(Any, SimpleNamespace(partitions=[section], global_index=9)))
        self.stability.early(NodeId("n2"), P, 7)

    @property
    def known(self) -> list[Any]:
        heard = (self.watermarks._snapshot, self.barriers._snapshotted, self.stability._early)
        return [each for each in (*heard, self._unsynced, self._touched, self._told_paused) if P in each]

    def _progress_of(self, _: PartitionId) -> Any: ...

    def _settle_soon(self) -> None: ...


def test_one_that_is_destroyed_before_it_was_open_leaves_nothing_behind() -> None:
    node, heard = Slow(), Heard()
    node.forgotten = heard.forgotten  # type: ignore[method-assign]
    node.left = True
    assert len(heard.known) == 6
    node.created()
    assert node.partitioning.opening.may_have_state(P)
    node.destroyed()
    assert (heard.known, heard.forgot) == ([], [P, P])
    assert not node.partitioning.opening.may_have_state(P), "whoever asks is told that it has nothing"


@pytest.mark.parametrize("waits", [True, False])
async def test_a_disk_that_does_not_say_what_is_there_ends_the_node(
    monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """Tried again in a timer nobody heard of it: it was never opened, and nothing ordered behind it came."""

    def untouched(_: PartitionId) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    node, later = Slow(), list[Callable[[], None]]()
    node.rooms.untouched = untouched
    node.files = lambda _: "none are left" if waits else None
    monkeypatch.setattr(
        asyncio.get_running_loop(), "call_later", lambda _, job, *what: later.append(lambda: job(*what))
    )
    node.created()
    if waits:
        assert (node.failures, len(node.partitioning.opening)) == ([], 1)
        node.files = lambda _: None
        later.pop()()
    assert ([type(error) for error in node.failures], len(node.partitioning.opening)) == ([OSError], 0)
    with pytest.raises(OSError, match="Input/output"):
        await node.partitioning.opening.log_of(P, KV)


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
    node.rebuilding.fenced = lambda _: False
    assert payloads.lack(node.route) is Lack.APPLIED
