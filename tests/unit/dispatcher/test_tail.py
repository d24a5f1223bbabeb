"""A tail of a log that loses its old segments: what it has not read stays, or it is told where the log begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.reading.feeds import REPAIR_S, FeedRequest
from dispatcher.reading.read_budget import ReadBudget
from dispatcher.reading.tail import Tail
from logboom.errors import CorruptData, IndexCompacted, LogboomError, Unavailable
from logboom.types import GlobalLogIndex, Level, PartitionLogIndex
from logboom.wire import Kind
from partitions.log.batch import Batch
from partitions.log.holes import Hole
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch
from tests.unit.dispatcher.reading_world import ANY_PACE
from tests.unit.partitions.compaction_world import base_at, digests, grown, settle

ROOM = 1 << 20


class Backend:
    """One log. Reads run when the test says so; the clock is its own."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.clock = self.offload = self
        self.now = 100.0
        self.jobs: list[Callable[[], None]] = []
        self.subscribed = 0
        self.read_budget = ReadBudget(bytes_max=ROOM, segments_max=4)
        self.recovered = self.has_log = lambda _: True
        self.applied = 0
        self.voids: set[bytes] = set()

    def log(self, _: int) -> PartitionLog:
        return self._log

    def monotonic(self) -> float:
        return self.now

    def subscribe_commits(self, _: int, __: Callable[[], None]) -> Callable[[], None]:
        self.subscribed += 1
        return self._gone

    subscribe_applied = subscribe_commits

    def applied_index(self, _: int) -> int:
        return self.applied

    def hole_of(self, _: int) -> Hole | None:
        return self._log.hole

    def lacks_void(self, _: int, digest: bytes) -> bool:
        return digest in self.voids

    def _gone(self) -> None:
        self.subscribed -= 1

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def run() -> None:
            try:
                result = job()
            except Exception as error:  # noqa: BLE001
                done(None, error)
            else:
                done(result, None)

        self.jobs.append(run)

    def work(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


class Reader:
    def __init__(self, backend: Backend, *, start: int, level: Level = Level.DURABLE, **more: Any) -> None:
        self.indexes: list[int] = []
        self.end: list[LogboomError | None] = []
        wanted = FeedRequest(**{"start": start, "credit": ROOM, "level": level, **more})
        self.tail = Tail(
            backend, 3, wanted, send=self._sent,  # type: ignore[arg-type]
            congested=lambda: False, ended=self.end.append, pace=ANY_PACE,
        )  # fmt: skip
        self.tail.move()

    def _sent(self, kind: Kind, header: dict[str, Any], body: list[Any], flags: int) -> None:
        if kind is Kind.RECORDS:
            self.indexes += range(header["first_index"], header["first_index"] + header["count"])


def test_a_start_that_was_removed_is_told_where_the_log_begins() -> None:
    _, log, batches = grown()
    settle(log, base_at(batches, 30))
    backend = Backend(log)
    reader = Reader(backend, start=1)
    backend.work()
    (error,) = reader.end
    assert isinstance(error, IndexCompacted)
    assert error.first == log.first_available_index > 1
    assert reader.indexes == []
    assert backend.subscribed == 0


@pytest.mark.parametrize("follow", [False, True])
def test_where_a_node_that_is_still_recovering_ends_the_log_does_not(*, follow: bool) -> None:
    """It said that there is nothing more; who follows waits, as for whatever comes."""
    _, log, batches = grown()
    backend = Backend(log)
    backend.has_log = lambda partition: partition != 3
    reader = Reader(backend, start=1, follow=follow)
    backend.work()
    assert reader.indexes == list(range(1, batches[-1].last_index + 1))
    if follow:
        assert reader.end == []
        reader.tail.close()
        return
    (error,) = reader.end
    assert isinstance(error, Unavailable)
    assert error.retryable


@pytest.mark.parametrize("level", [Level.DURABLE, Level.APPLIED])
def test_where_a_state_stands_still_after_a_start_its_log_ends_all_the_same(level: Level) -> None:
    """Nobody could read the log of a paused partition to its end once the nodes had been started again."""
    _, log, batches = grown()
    backend = Backend(log)
    backend.recovered = lambda partitions: partitions != [3]
    backend.applied = batches[4].last_index
    reader = Reader(backend, start=1, level=level)
    backend.work()
    (error,) = reader.end
    if level is Level.DURABLE:
        assert reader.indexes == list(range(1, batches[-1].last_index + 1))
        assert error is None
    else:  # what is applied may be less than what was
        assert reader.indexes == list(range(1, batches[4].last_index + 1))
        assert isinstance(error, Unavailable)


@pytest.mark.parametrize("behind", [False, True])
def test_what_its_nodes_state_lacks_while_that_is_made_anew_ends_none_that_has_passed_it(*, behind: bool) -> None:
    """What shows of such a state stays where it was (I7): nothing of what the reader was to have is lost."""
    _, log, batches = grown()
    backend, lacking, last = Backend(log), batches[2 if behind else 5], batches[4].last_index
    first, digest = lacking.header.first_index, lacking.digest
    hole = Hole(first, PartitionLogIndex(lacking.last_index), digest, GlobalLogIndex(1))
    backend.applied, backend.hole_of = last, lambda _: hole  # type: ignore[method-assign,assignment]
    readers = [Reader(backend, start=start, level=Level.APPLIED, follow=True) for start in (1, last + 1)]
    backend.work()
    assert [reader.indexes for reader in readers] == [[*range(1, last + 1)], []]
    assert [len(reader.end) for reader in readers] == ([0, 0] if behind else [1, 1])
    for reader in readers:
        reader.tail.close()


def test_no_start_is_the_first_index_that_is_there() -> None:
    _, log, batches = grown()
    settle(log, base_at(batches, 30))
    backend = Backend(log)
    reader = Reader(backend, start=0)
    backend.work()
    assert reader.indexes == list(range(log.first_available_index, batches[-1].last_index + 1))
    assert reader.end == [None]


def test_no_start_begins_later_when_more_is_removed_before_it_reads() -> None:
    _, log, batches = grown()
    backend = Backend(log)
    reader = Reader(backend, start=0)
    settle(log, base_at(batches, 30))  # in spite of the lease
    backend.work()
    assert reader.indexes == list(range(log.first_available_index, batches[-1].last_index + 1))
    assert reader.end == [None]


def test_no_start_begins_later_when_more_is_removed_before_it_has_asked_for_anything() -> None:
    """It had no room to read ahead, and its client took nothing for longer than its lease: it stood still for ever."""
    _, log, batches = grown()
    backend = Backend(log)
    another = backend.read_budget.ask(nbytes=ROOM, segments=1, order=0, admitted=lambda: None)
    reader = Reader(backend, start=0, credit=0)
    settle(log, base_at(batches, 30))
    another.release()
    reader.tail.add_credit(ROOM)
    backend.work()
    assert reader.indexes == list(range(log.first_available_index, batches[-1].last_index + 1))
    assert reader.end == [None]


def test_what_it_has_not_read_is_held_until_it_sleeps() -> None:
    _, log, batches = grown()
    backend = Backend(log)
    through = batches[29].last_index
    reader = Reader(backend, start=4, credit=1, follow=True)

    def point() -> int:
        return log.compaction_point(through, 0, now=backend.now)

    assert point() == 4
    backend.work()
    read = reader.indexes[-1]
    assert point() == read + 1
    backend.now += 0.9
    reader.tail.add_credit(100)
    backend.work()
    assert reader.indexes[-1] > read
    backend.now += 0.9
    assert point() == reader.indexes[-1] + 1
    backend.now += 0.2
    assert point() == through + 1
    settle(log, base_at(batches, 30))
    reader.tail.add_credit(ROOM)
    backend.work()
    assert isinstance(reader.end[0], IndexCompacted)


def test_who_begins_and_gives_up_has_no_more_read_than_there_is_room_for() -> None:
    """Each gave back what its read was granted while that was still queued: thousands stood before whoever applies."""
    _, log, batches = grown()
    backend = Backend(log)
    for _ in range(100):
        Reader(backend, start=1).tail.close()
    assert len(backend.jobs) <= 4  # segments that may be read at a time
    assert backend.read_budget.segments == len(backend.jobs)
    last = Reader(backend, start=1)
    backend.work()
    assert last.indexes == list(range(1, batches[-1].last_index + 1))
    assert (backend.read_budget.nbytes, backend.read_budget.segments, backend.read_budget.waiters) == (0, 0, 0)


def test_it_holds_nothing_once_it_is_closed() -> None:
    _, log, batches = grown()
    backend = Backend(log)
    reader = Reader(backend, start=4, credit=1, follow=True)
    reader.tail.close()
    reader.tail.close()
    through = batches[29].last_index
    assert log.compaction_point(through, 0, now=backend.now) == through + 1
    assert digests(log)


class TestDamage:
    """A damaged batch in the way of a stream."""

    def start(self, number: int) -> tuple[Backend, PartitionLog, list[Batch], list[DamagedBatch]]:
        disk, log, batches = grown()
        ref = log.find(batches[number].last_index, batches[number].digest)
        assert ref is not None
        disk.flip(log._path(ref.segment), ref.offset + 70, 1)
        backend, found = Backend(log), list[DamagedBatch]()

        def damaged(_: int, damage: DamagedBatch) -> None:
            found.append(damage)
            log.lose(damage.last_index, damage.digest)

        backend.damaged = damaged  # type: ignore[attr-defined]
        backend.is_lost = lambda _: False  # type: ignore[attr-defined]
        return backend, log, batches, found

    def mend(self, log: PartitionLog, batch: Batch) -> None:
        assert log.append(batch)
        job = log.take()
        assert job is not None
        job.run()
        job.done()

    async def until(self, backend: Backend, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                backend.work()
                await asyncio.sleep(0.001)

    def test_it_waits_for_the_repair_and_goes_on(self) -> None:
        async def play() -> None:
            backend, log, batches, found = self.start(5)
            reader = Reader(backend, start=1)
            await self.until(backend, lambda: len(found) >= 2)
            assert reader.indexes == list(range(1, batches[4].last_index + 1))
            assert not reader.end
            self.mend(log, batches[5])
            await self.until(backend, lambda: bool(reader.end))
            assert reader.end == [None]
            assert reader.indexes == list(range(1, batches[-1].last_index + 1))

        asyncio.run(play())

    def test_it_ends_where_nobody_has_the_batch(self) -> None:
        async def play() -> None:
            backend, _, batches, _ = self.start(5)
            backend.is_lost = lambda _: True  # type: ignore[attr-defined]
            reader = Reader(backend, start=1)
            await self.until(backend, lambda: bool(reader.end))
            (end,) = reader.end
            assert isinstance(end, CorruptData)
            assert reader.indexes == list(range(1, batches[4].last_index + 1))
            assert (end.first_index, end.last_index) == (batches[4].last_index + 1, batches[5].last_index)

        asyncio.run(play())

    def test_it_does_not_wait_for_ever(self) -> None:
        async def play() -> None:
            backend, _, _, found = self.start(0)
            reader = Reader(backend, start=1)
            await self.until(backend, lambda: len(found) >= 3)
            assert not reader.end
            backend.now += REPAIR_S
            await self.until(backend, lambda: bool(reader.end))
            assert isinstance(reader.end[0], CorruptData)

        asyncio.run(play())

    def test_who_closes_it_meanwhile_hears_no_more(self) -> None:
        async def play() -> None:
            backend, _, _, found = self.start(0)
            reader = Reader(backend, start=1)
            await self.until(backend, lambda: len(found) >= 2)
            reader.tail.close()
            backend.work()
            assert reader.end == []
            assert backend.subscribed == 0

        asyncio.run(play())
