"""To which set a node compacts, and which it keeps."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from chaos.sim.disk import SimDisk
from dispatcher.upkeep.compaction import Compaction, removes
from logboom.errors import CorruptData, Unavailable
from logboom.settings import ClusterSettings, SnapshotSettings
from logboom.types import GlobalLogIndex, PartitionId, RaftIndex
from partitions.log.log import PartitionLog
from partitions.log.places import PLACES
from raftlog.entries.lifecycle import Change
from raftlog.entries.parent_state import ParentState, Tail
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore
from tests.unit.dispatcher.installing_world import Inline
from tests.unit.dispatcher.stage import KV
from tests.unit.partitions.batches import P, chain
from tests.unit.partitions.compaction_world import append, base_at, commit, grown, open_log, raw
from tests.unit.snapshots.states_world import Dump, entries, set_meta


class Compacting(Compaction):
    """That notes what it is to compact to."""

    def __init__(self, *, sets: int, held: Sequence[int] = (), keep: int = 2, applied: int = 1 << 62) -> None:
        self.store = SnapshotStore(SimDisk(random.Random(0)), Path("/n/snapshots"))
        for number in range(1, sets + 1):
            self.take(10 * number)
        self.held = list(held)
        self.targets: list[int] = []
        self.then = 0
        """A set that comes meanwhile."""
        self.begun = 0
        """One that somebody begins to fetch meanwhile."""
        self.base = SimpleNamespace(index=1)
        journal, engine = SimpleNamespace(base=self.base), SimpleNamespace(applied_index=applied)
        nobody: Any = SimpleNamespace(journal=journal, engine=engine)
        super().__init__(
            settings=SnapshotSettings(keep=keep),
            cluster=ClusterSettings(),
            store=self.store,
            logs={},
            workers={},
            raft=nobody,
            clock=nobody,
            offloads=(Inline(), Inline()),  # type: ignore[arg-type]
            held_back=lambda: {GlobalLogIndex(each) for each in self.held},
            forget=nobody,
            fatal=nobody,
        )

    def take(self, global_index: int, raft_index: int = 7) -> None:
        writer = self.store.begin(GlobalLogIndex(global_index))
        writer.add(0, "kv", Dump(entries(1)))  # type: ignore[arg-type]
        meta = msgspec.structs.replace(set_meta(writer.finish()), raft_index=RaftIndex(raft_index))
        self.store.complete(writer, meta)

    async def _compact_to(self, target: SetMeta) -> None:
        self.targets.append(target.global_index)
        if self.then:
            self.take(self.then)
        if self.begun:
            self.held.append(self.begun)

    def left(self) -> list[int]:
        return [meta.global_index for meta in self.store.sets()]


async def test_it_goes_to_the_set_before_the_newest() -> None:
    one = Compacting(sets=3)
    await one._compact()
    assert (one.targets, one.left()) == ([20], [20, 30])


async def test_one_set_alone_is_nothing_to_compact_to() -> None:
    one = Compacting(sets=1)
    await one._compact()
    assert (one.targets, one.left()) == ([], [10])


@pytest.mark.parametrize(
    ("held", "keep", "left"),
    [
        ([10], 2, [10, 50, 60]),
        ([10], 3, [10, 40, 50, 60]),
        ([30, 10], 2, [10, 30, 50, 60]),
        ([50, 10], 2, [10, 50, 60]),
    ],
)
async def test_a_set_that_is_fetched_is_kept_and_none_of_those_that_nobody_needs(
    held: list[int], keep: int, left: list[int]
) -> None:
    """All that were newer stayed as long as one did: for hours, of a member that went away in the midst of it."""
    one = Compacting(sets=6, held=held, keep=keep)
    await one._compact()
    assert (one.targets, one.left()) == ([10], left)


@pytest.mark.parametrize("held", [[60], [50], [50, 60], [70]])
async def test_the_last_that_are_fetched_change_nothing(held: list[int]) -> None:
    one = Compacting(sets=6, held=held)
    await one._compact()
    assert (one.targets, one.left()) == ([50], [50, 60])


async def test_what_somebody_begins_to_fetch_while_it_compacts_is_kept() -> None:
    one = Compacting(sets=6, held=[10])
    one.begun = 30
    await one._compact()
    assert (one.targets, one.left()) == ([10], [10, 30, 50, 60])


async def test_more_may_be_kept() -> None:
    one = Compacting(sets=4, keep=3)
    await one._compact()
    assert (one.targets, one.left()) == ([30], [20, 30, 40])


async def test_nothing_goes_that_its_own_log_has_not_come_to_again() -> None:
    """A node that has lost its journal has sets that lie before it."""
    one = Compacting(sets=2, applied=2)
    await one._compact()
    assert (one.targets, one.left()) == ([], [10, 20])


@pytest.mark.parametrize(("held", "left"), [([], [40, 50]), ([20], [20, 40, 50])])
async def test_sets_that_were_fetched_in_vain_do_not_gather(held: list[int], left: list[int]) -> None:
    """Found by review: as long as a log could not be fetched each attempt left another set, and the disk filled up."""
    one = Compacting(sets=5, held=held, applied=2)
    await one._compact()
    assert (one.targets, one.left()) == ([], left)


@pytest.mark.parametrize(("base", "left"), [(1, [10, 40, 50]), (5, [10, 40, 50]), (6, [40, 50])])
async def test_the_last_set_that_its_own_log_has_come_to_is_kept_beside_those(base: int, left: list[int]) -> None:
    """Found by review: two that were fetched in vain were kept in its place, and of those no state can be made."""
    one = Compacting(sets=0, applied=9)
    one.base.index = base
    for global_index, raft_index in [(5, 1), (10, 5), (40, 100), (50, 200)]:
        one.take(global_index, raft_index)
    await one._compact()
    assert (one.targets, one.left()) == ([], left)


async def test_what_is_fetched_is_kept_though_a_set_came_while_it_compacted() -> None:
    """Found by review: so many sets were kept as had been needed before."""
    one = Compacting(sets=3, held=[10])
    one.then = 40
    await one._compact()
    assert (one.targets, one.left()) == ([10], [10, 30, 40])


async def test_closed_it_begins_nothing_until_it_goes_on() -> None:
    one = Compacting(sets=2)
    await one.close()
    one.start()
    assert one._task is None
    one.go_on()
    assert one._task is not None
    await one._task
    assert one.targets == [10]


@pytest.mark.parametrize(
    ("machine", "settings", "kept_from"),
    [
        ("log", {}, 0),
        ("log", {"retain_log_ms": 1_000}, 41),
        ("log", {"retain_log_ms": 1_000, "retain_log_bytes": 7}, 71),
        ("log", {"retain_log_ms": 60_000, "retain_log_bytes": 7}, 71),
        ("kv", {"retain_log_ms": 1_000, "retain_bytes": 7}, 71),
    ],
)
async def test_records_go_by_size_or_by_age(machine: str, settings: dict[str, int], kept_from: int) -> None:
    one, aged = Compacting(sets=1), Aged()
    one._settings = SnapshotSettings(**{"retain_bytes": 0, **settings})
    one._cluster = ClusterSettings(state_machine=machine)
    one._logs, one._clock = {PartitionId(0): aged}, cast("Any", VirtualClock())  # type: ignore[dict-item]
    await one._remove(ParentState(), PartitionId(0), 100)
    assert aged.kept_from == kept_from
    assert not kept_from or aged.ends is (machine == "log")


@pytest.mark.parametrize(
    ("machine", "settings", "removed"),
    [
        ("kv", {}, True),
        ("log", {}, False),
        ("log", {"retain_log_bytes": 1}, True),
        ("log", {"retain_log_ms": 1}, True),
    ],
)
def test_records_of_logs_stay_unless_somebody_says_so(machine: str, settings: dict[str, int], removed: bool) -> None:
    assert removes(SnapshotSettings(**settings), machine) is removed


@pytest.mark.parametrize("error", [CorruptData("a header", path="x"), OSError(errno.EIO, "a bad sector")])
async def test_a_header_that_is_damaged_keeps_what_may_be_outdated(error: Exception) -> None:
    """In a bad sector it ended the node, with each compaction."""
    one, aged = Compacting(sets=1), Aged(error)
    one._settings, one._cluster = SnapshotSettings(retain_log_ms=1), ClusterSettings(state_machine="log")
    one._logs, one._clock = {PartitionId(0): aged}, cast("Any", VirtualClock())  # type: ignore[dict-item]
    await one._remove(ParentState(), PartitionId(0), 100)
    assert aged.kept_from == 1


async def test_of_one_that_is_not_open_yet_the_log_stays_whole() -> None:
    """What is opened while the others are saved begins with nothing: its log had lost what it is to apply first."""
    _, log, batches = grown()
    one, workers, parent = Compacting(sets=1), dict[PartitionId, Any](), ParentState()
    parent.change(Change(P, P, KV, bytes(16)))
    last, parent.global_index = batches[-1], GlobalLogIndex(10 * len(batches))
    parent.tails[P] = Tail(last.last_index, last.digest, GlobalLogIndex(10 * len(batches)))
    one._settings, one._logs, one._workers = SnapshotSettings(retain_bytes=0), {P: log}, workers

    def opened(_: object, done: Callable[[], None]) -> None:
        workers[P] = SimpleNamespace(is_closing=False, saved_index=0)
        done()

    async def forgotten(_: object) -> None:
        pass

    one._raft, one._forget = cast("Any", SimpleNamespace(compact=opened)), forgotten
    one._clock = cast("Any", VirtualClock())
    target = SimpleNamespace(parent=parent.encode(), raft_index=9, raft_term=1)
    await Compaction._compact_to(one, cast("Any", target))
    assert log.first_available_index == 1
    workers[P].saved_index = last.last_index
    await Compaction._compact_to(one, cast("Any", target))
    assert log.first_available_index > 1


async def test_nothing_is_forgotten_of_one_that_is_not_open_yet_behind_what_nobody_has() -> None:
    """A start took it for void there, and its state passed over what all others have applied."""
    disk = SimDisk(random.Random(1))
    log, batches = open_log(disk), chain(2)
    assert log.concede(batches[0].last_index, batches[0].digest)
    append(log, batches[1:])
    commit(log, batches)
    one = Compacting(sets=1)
    one._logs, one._workers = {P: log}, {}
    with pytest.raises(Unavailable):
        await one._secure(P, log.committed_index)
    append(log, batches[:1])
    assert not await one._secure(P, log.committed_index)


class VirtualClock:
    """At ten seconds."""

    def monotonic(self) -> float:
        return 10.0

    def wall_ms(self) -> int:
        return 10_000


class Aged:
    """A log of a hundred records of one byte, forty of which are older than nine seconds."""

    partition_id = PartitionId(0)

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.kept_from = 0
        self.sealed_for: int | None = None

    def last_before(self, timestamp_ms: int, *, through_index: int, now_ms: int) -> int:
        assert timestamp_ms < now_ms
        if self._error is not None:
            raise self._error
        return min(through_index, 40) if timestamp_ms >= 9_000 else 0

    def compaction_point(self, through: int, retain: int | None, *, now: float, outdated_to: int) -> int:
        assert now == 10.0
        by_size = 1 if retain is None else 71
        return max(by_size, outdated_to + 1)

    def sealing(self, keep_from: int) -> Callable[[], None]:
        return lambda: setattr(self, "sealed_for", keep_from)

    def shortening(self, _: int) -> None:
        return None

    def compact(self, keep_from: int, *, ends: bool) -> Callable[[], None]:
        assert self.sealed_for == (keep_from if ends else None)
        self.kept_from, self.ends = keep_from, ends
        return lambda: None


async def test_one_that_was_closed_before_it_began_goes_on() -> None:
    """Its task never ran, so it never said that it was over: nothing was compacted any more."""
    one = Compacting(sets=3)
    one.start()
    await one.close()
    one.go_on()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert one.targets == [20]


class TestPlacesThatChange:
    """Found by review: places that reached far enough were not written again, whatever had become of the batches."""

    @staticmethod
    async def _secured(log: PartitionLog) -> Compacting:
        one = Compacting(sets=1)
        one._logs, one._workers = {P: log}, {}
        await one._secure(P, log.committed_index)
        return one

    async def test_a_batch_that_was_declared_void_since_is_void_after_the_next_start(self) -> None:
        disk, log, batches = grown()
        one, lost = await self._secured(log), batches[5]
        log.lose(lost.last_index, lost.digest)
        log.void(lost.last_index, lost.digest)
        await one._secure(P, log.committed_index)
        log.close()
        again = open_log(disk, base_at(batches, len(batches)))
        assert again.void_behind(batches[4].last_index) is not None

    async def test_a_batch_that_was_mended_since_is_read_where_it_lies_now(self) -> None:
        disk, log, batches = grown()
        one, lost = await self._secured(log), batches[5]
        place = log.place_of(lost.last_index, lost.digest)
        ref = log.find(lost.last_index, lost.digest)
        assert place is not None
        assert ref is not None
        disk.flip(log._path(ref.segment), ref.offset + ref.length - 1, 1)
        log.lose(lost.last_index, lost.digest)
        append(log, [lost])
        await one._secure(P, log.committed_index)
        log.close()
        again = open_log(disk, base_at(batches, len(batches)))
        assert again.read_batch(lost.last_index, lost.digest) == raw(lost)


class Threads:
    """An offload of which the test says when its jobs run."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self.asked = asyncio.Event()

    def run(self, job: Callable[[], Any]) -> asyncio.Future[Any]:
        self.jobs.append((job, asyncio.get_running_loop().create_future()))
        self.asked.set()
        return self.jobs[-1][1]

    def work(self) -> None:
        job, ended = self.jobs.pop(0)
        result = job()
        if not ended.done():
            ended.set_result(result)


class TestThreads:
    async def test_logs_are_compacted_while_the_next_snapshot_is_being_written(self) -> None:
        """Found by review: it takes minutes, and the disk filled up meanwhile."""
        disk, log, _ = grown()
        one, busy = Compacting(sets=2), Threads()
        one._store_offload, one._logs, one._workers = busy, {P: log}, {}  # type: ignore[assignment]
        one._compact_to = lambda _: one._secure(P, log.committed_index)  # type: ignore[method-assign, assignment]
        one.start()
        await busy.asked.wait()
        assert disk.exists(log._directory / PLACES)
        busy.work()

    async def test_whoever_stops_it_finds_it_at_the_end_of_its_step(self) -> None:
        """A node that is about to be made from a snapshot writes the same files next."""
        disk, log, _ = grown()
        one, busy = Compacting(sets=2), Threads()
        one._offload, one._logs, one._workers = busy, {P: log}, {}  # type: ignore[assignment]
        one._compact_to = lambda _: one._secure(P, log.committed_index)  # type: ignore[method-assign, assignment]
        one.start()
        await busy.asked.wait()
        closing = asyncio.create_task(one.close())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not closing.done()
        busy.work()
        await closing
        assert disk.exists(log._directory / PLACES)
        assert one.left() == [10, 20]

    async def test_what_the_disk_refuses_in_that_step_stops_the_node(self) -> None:
        """Nobody else hears of it."""
        _, log, _ = grown()
        one, busy, refused = Compacting(sets=2), Threads(), list[BaseException]()
        one._offload, one._logs, one._workers = busy, {P: log}, {}  # type: ignore[assignment]
        one._fatal = refused.append
        full = OSError(errno.EIO, "the disk")
        one._compact_to = lambda _: one._step(lambda: None)  # type: ignore[method-assign, assignment]
        one.start()
        await busy.asked.wait()
        closing = asyncio.create_task(one.close())
        await asyncio.sleep(0)
        busy.jobs[0][1].set_exception(full)
        await closing
        assert refused == [full]
