"""Views of several partitions: of one moment, and nothing is left behind, however they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.reading.views import Views
from logboom.errors import (
    CorruptData,
    InvalidRequest,
    LogboomError,
    PartitionDestroyed,
    QuotaExceeded,
    Unavailable,
)
from logboom.types import PartitionId
from tests.unit.dispatcher.scans_world import Machine


class Worker:
    """Applies when the test says so, and stops where it was told to."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.stops: list[Any] = []

    @property
    def applied_index(self) -> int:
        return self.machine.applied

    def stop_at(self, through: int, capture: Callable[[Any], Any], taken: Callable[[Any], None]) -> Any:
        stop = SimpleNamespace(through_index=through, capture=capture, taken=taken)
        self.stops.append(stop)
        return stop

    def go_on(self, stop: Any) -> None:
        if stop in self.stops:
            self.stops.remove(stop)

    def apply(self, index: int) -> None:
        for number in range(self.machine.applied, index + 1):
            self.machine.applied = number
            for stop in [s for s in self.stops if s.through_index == number]:
                self.stops.remove(stop)
                try:
                    found = stop.capture(self.machine)
                except LogboomError:
                    found = None
                stop.taken(found)


class Backend:
    def __init__(self, logs: dict[int, int]) -> None:
        self.workers = {p: Worker() for p in logs}
        self.logs = {
            p: SimpleNamespace(committed_index=end, committed_global_index=10 * end) for p, end in logs.items()
        }
        self.machines = {p: worker.machine for p, worker in self.workers.items()}
        self.parent = SimpleNamespace(global_index=50)
        self.clock = SimpleNamespace(monotonic=lambda: 0.0)
        self.offload = self
        self.kinds = dict.fromkeys(logs, "kv")
        self.partitioning = SimpleNamespace(kind=lambda p: SimpleNamespace(state_machine=self.kinds[p]))
        self.used = 0
        self.waited: list[tuple[int, int]] = []
        self.still: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wakers: dict[int, list[Callable[..., None]]] = {}
        self.fresh = asyncio.Event()
        self.fresh.set()

    def threads_of(self, _: int, __: object) -> Any:
        return self.offload

    def subscribe_commits(self, partition: int, waker: Callable[..., None]) -> Callable[[], None]:
        self.wakers.setdefault(partition, []).append(waker)
        return lambda: self.wakers[partition].remove(waker)

    def missing(self, partition: int) -> LogboomError:
        return PartitionDestroyed("gone", partition_id=partition)

    def destroy(self, partition: int) -> None:
        del self.workers[partition], self.machines[partition]
        for waker in list(self.wakers.get(partition, ())):
            waker(self.missing(partition))

    @contextmanager
    def using(self, _: int) -> Iterator[None]:
        self.used += 1
        try:
            yield
        finally:
            self.used -= 1

    async def read_index(self, deadline: float, *, lone: bool = False) -> int:
        """Of the leader. Meanwhile partition 1 is destroyed."""
        del deadline, self.workers[1], self.machines[1]
        return 50

    def recovered(self, partitions: list[int]) -> bool:
        return bool(partitions)

    async def wait_applied(self, *_: object, **__: object) -> None:
        """It is, once the test lets it be."""
        await self.fresh.wait()

    def partition_rows(self) -> list[list[object]]:
        return [[p, kind, "write_ahead"] for p, kind in self.kinds.items()]

    def create(self, partition: int, *kind: str) -> None:
        """And write to it."""
        made = Backend({partition: 3})
        self.workers |= made.workers
        self.logs |= made.logs
        self.machines |= made.machines
        self.kinds |= {partition: kind[0] if kind else "kv"}

    async def wait_all_applied(self, targets: list[tuple[int, int]], deadline: float) -> None:
        """Until the test says that one of them stands still."""
        self.waited = targets
        try:
            if targets:
                await self.still
        finally:
            self.waited = []

    def hurry(self, partitions: list[int]) -> None:
        for partition in partitions:
            worker = self.workers[partition]
            worker.apply(worker.machine.applied)

    async def run(self, job: Callable[[], Any]) -> Any:
        return job()

    def check_nothing_is_left(self) -> None:
        assert self.used == 0
        assert not any(self.wakers.values())
        assert not any(worker.stops for worker in self.workers.values())
        assert not self.waited
        assert not any(worker.machine.open for worker in self.workers.values())


def scan(backend: Backend, views: Views, *partitions: int, timeout: float = 5.0) -> Any:
    chosen = [PartitionId(p) for p in partitions]
    return views.scan(chosen, {"read": "stale"}, timeout)


async def collect(frames: Any) -> list[tuple[int, int]]:
    return [(header["partition"], header["global_index"]) async for header, _ in frames]


async def test_each_is_seen_where_its_log_ended_in_that_turn() -> None:
    backend = Backend({0: 3, 1: 5})
    views = Views(backend, views_max=2)
    task = asyncio.ensure_future(collect(scan(backend, views, 0, 1, 0)))
    await asyncio.sleep(0)
    for log in backend.logs.values():
        log.committed_index += 10  # comes too late for it
    backend.parent.global_index += 20
    backend.workers[1].apply(15)
    await asyncio.sleep(0)
    assert not task.done()
    backend.workers[0].apply(13)
    assert await task == [(0, 50), (0, 50), (1, 50), (1, 50)]
    assert views.open == 0
    backend.check_nothing_is_left()


async def test_one_that_does_not_come_so_far_is_not_waited_for_for_ever() -> None:
    backend = Backend({0: 3, 1: 5})
    backend.workers[1].apply(5)
    with pytest.raises(Unavailable, match="partitions 0 have not"):
        await collect(scan(backend, Views(backend, views_max=2), 0, 1, timeout=0.01))
    backend.check_nothing_is_left()


async def test_one_that_stands_still_in_front_of_it_ends_it_at_once() -> None:
    """Found by reading: it took all of its time, and said then that not everything had been applied."""
    backend = Backend({0: 3, 1: 5, 2: 4})
    backend.workers[0].apply(3)
    task = asyncio.ensure_future(collect(scan(backend, Views(backend, views_max=2), 0, 1, 2)))
    await asyncio.sleep(0)
    backend.workers[2].apply(4)
    await asyncio.sleep(0)
    assert backend.waited == [(1, 50), (2, 40)], "each that is not there"
    backend.still.set_exception(Unavailable("partition 1 is paused"))
    async with asyncio.timeout(1):
        with pytest.raises(Unavailable, match="partition 1 is paused"):
            await task
    backend.check_nothing_is_left()


@pytest.mark.parametrize("when", ["gathering", "reading"])
async def test_who_gives_up_leaves_nothing(when: str) -> None:
    backend = Backend({0: 3, 1: 5})
    views = Views(backend, views_max=2)
    frames = scan(backend, views, 0, 1)
    task = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    backend.workers[0].apply(3)
    if when == "reading":
        backend.workers[1].apply(5)
        await task
    else:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await frames.aclose()
    backend.check_nothing_is_left()
    assert views.open == 0


async def test_a_partition_that_is_destroyed_meanwhile_ends_it_at_once() -> None:
    """The others were waited for until the deadline, and then it was to be tried again."""
    backend = Backend({0: 3, 1: 5})
    task = asyncio.ensure_future(collect(scan(backend, Views(backend, views_max=2), 0, 1)))
    await asyncio.sleep(0)
    backend.workers[0].apply(3)
    backend.destroy(1)
    async with asyncio.timeout(1):
        with pytest.raises(PartitionDestroyed):
            await task
    backend.check_nothing_is_left()


async def test_one_that_was_destroyed_while_it_was_made_fresh_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend({0: 3, 1: 5})

    async def make_fresh(*_: object, **__: object) -> None:
        backend.destroy(1)

    monkeypatch.setattr("dispatcher.reading.reads.make_fresh", make_fresh)
    with pytest.raises(PartitionDestroyed):
        await collect(scan(backend, Views(backend, views_max=2), 0, 1))
    backend.check_nothing_is_left()


async def test_a_state_that_cannot_be_captured_ends_it() -> None:
    backend = Backend({0: 3, 1: 5})
    task = asyncio.ensure_future(collect(scan(backend, Views(backend, views_max=2), 0, 1)))
    await asyncio.sleep(0)
    backend.workers[1].apply(5)
    backend.workers[0].stops.pop().taken(None)
    with pytest.raises(Unavailable):
        await task
    backend.check_nothing_is_left()


async def test_a_view_of_another_moment_is_not_passed_on() -> None:
    backend = Backend({0: 3})
    task = asyncio.ensure_future(collect(scan(backend, Views(backend, views_max=2), 0)))
    await asyncio.sleep(0)
    stop = backend.workers[0].stops.pop()
    backend.machines[0].applied = 2
    stop.taken(stop.capture(backend.machines[0]))
    with pytest.raises(CorruptData, match="a view of 2, not of 3"):
        await task
    backend.check_nothing_is_left()


@pytest.mark.parametrize(("since", "told"), [("the same", [0]), ("made anew", []), ("destroyed", [])])
async def test_damage_is_that_of_the_machine_that_was_read(since: str, told: list[int]) -> None:
    """What was found in a state that had been replaced since had the new one fenced, and made anew once more."""
    backend, damaged = Backend({0: 3}), list[int]()
    backend.rebuilding = SimpleNamespace(damaged=lambda partition, _: damaged.append(partition))  # type: ignore[attr-defined]
    frames = scan(backend, Views(backend, views_max=1), 0)
    task = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    backend.workers[0].apply(3)
    await task

    async def run(_: object) -> None:
        if since == "made anew":
            backend.machines[0] = Machine()
        elif since == "destroyed":
            del backend.machines[0]
        raise CorruptData("a bit has flipped")

    backend.run = run  # type: ignore[method-assign]
    with pytest.raises(CorruptData, match="a bit"):
        await anext(frames)
    assert damaged == told


async def test_damage_at_the_very_beginning_is_told_of_too() -> None:
    """It was "could not be read", to be tried again: for ever, as nobody had the state made anew."""
    backend, damaged = Backend({0: 3}), list[int]()
    backend.rebuilding = SimpleNamespace(damaged=lambda partition, _: damaged.append(partition))  # type: ignore[attr-defined]
    views = Views(backend, views_max=1)

    def scan_damaged(**_: object) -> Iterator[Any]:
        raise CorruptData("a bit has flipped")
        yield

    backend.machines[0].scan = scan_damaged
    task = asyncio.ensure_future(collect(scan(backend, views, 0)))
    await asyncio.sleep(0)
    backend.workers[0].apply(3)
    with pytest.raises(CorruptData, match="a bit"):
        await task
    assert damaged == [0]
    backend.check_nothing_is_left()


async def test_a_partition_that_is_destroyed_before_the_view_is_taken_leaves_nothing() -> None:
    """Whoever was told to stop before that was noticed opened a view that nobody closed."""
    backend = Backend({0: 3, 1: 5})
    views = Views(backend, views_max=2)
    frames = views.scan([PartitionId(0), PartitionId(1)], {"read": "linearizable"}, 5.0)
    with pytest.raises(PartitionDestroyed):
        await anext(frames)
    backend.workers[0].apply(3)
    backend.check_nothing_is_left()
    assert views.open == 0


async def test_damage_in_a_partition_that_is_destroyed_is_nobodys() -> None:
    backend = Backend({0: 0, 1: 0})
    frames = scan(backend, Views(backend, views_max=2), 1)
    await anext(frames)

    async def run(_: Callable[[], Any]) -> Any:
        del backend.workers[1], backend.machines[1]
        raise CorruptData("a page")

    backend.run = run  # type: ignore[method-assign]
    with pytest.raises(CorruptData):
        await anext(frames)
    assert backend.used == 0


async def waits_for_freshness(backend: Backend, frames: Any) -> Any:
    """A view that has been begun, and is not as new yet as it has to be."""
    first = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    assert not first.done()
    assert backend.used == 0, "whoever waits holds no machine"
    return first


async def test_one_that_is_created_before_the_view_is_taken_is_in_a_view_of_all() -> None:
    """Of a request over an old partition and a new one it showed half."""
    backend = Backend({0: 3, 1: 3})
    backend.fresh.clear()
    views = Views(backend, views_max=1)
    header = {"read": "at_least", "at_least": 7}
    frames = views.scan([PartitionId(0), PartitionId(1)], header, 5.0, anew=lambda: sorted(backend.workers))
    first = await waits_for_freshness(backend, frames)
    backend.create(9)
    backend.fresh.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for worker in backend.workers.values():
        worker.apply(3)
    assert {(await first)[0]["partition"], *(p for p, _ in await collect(frames))} == {0, 1, 9}
    backend.check_nothing_is_left()


async def test_one_that_is_destroyed_before_the_view_is_taken_ends_no_view_of_all() -> None:
    backend, header = Backend({0: 0, 1: 0, 2: 0}), {"read": "at_least", "at_least": 7}
    views = Views(backend, views_max=1)

    async def wait_applied(partition: int, *_: object, **__: object) -> None:
        if partition < 2:
            backend.destroy(partition)
            raise backend.missing(partition)

    backend.wait_applied = wait_applied  # type: ignore[method-assign]
    with pytest.raises(PartitionDestroyed):
        await anext(views.scan([PartitionId(0), PartitionId(2)], header, 5.0))
    of_all = views.scan([PartitionId(1), PartitionId(2)], header, 5.0, anew=lambda: sorted(backend.workers))
    assert {p for p, _ in await collect(of_all)} == {2}
    backend.check_nothing_is_left()


@pytest.mark.parametrize(("kind", "refused"), [("kv", True), ("log", False)])
async def test_whoever_names_all_is_told_of_one_that_was_created_since(kind: str, *, refused: bool) -> None:
    backend = Backend({0: 0, 1: 0})
    backend.fresh.clear()
    header = {"read": "at_least", "at_least": 7, "of_all": True}
    frames = Views(backend, views_max=1).scan([PartitionId(0), PartitionId(1)], header, 5.0)
    first = await waits_for_freshness(backend, frames)
    backend.create(9, kind)
    backend.fresh.set()
    if refused:
        with pytest.raises(Unavailable, match="partition 9 was created since") as caught:
            await first
        assert caught.value.retryable
    else:
        assert {(await first)[0]["partition"], *(p for p, _ in await collect(frames))} == {0, 1}
    backend.check_nothing_is_left()


async def test_those_that_wait_to_be_as_new_as_they_have_to_be_keep_nobody_out() -> None:
    """Sixteen that named an index far ahead held all places, and their machines, for ten minutes."""
    backend = Backend({0: 0, 1: 0})
    backend.fresh.clear()
    views = Views(backend, views_max=1)
    late = [views.scan([PartitionId(0)], {"read": "at_least", "at_least": 7}, 5.0) for _ in range(3)]
    waiting = [await waits_for_freshness(backend, frames) for frames in late]
    other = scan(backend, views, 1)
    await anext(other)
    backend.fresh.set()
    for first in waiting:
        with pytest.raises(QuotaExceeded):
            await first
    await other.aclose()
    backend.check_nothing_is_left()
    assert views.open == 0


async def test_bounds() -> None:
    backend = Backend({0: 0, 1: 0})
    views = Views(backend, views_max=1)
    frames = scan(backend, views, 0)
    await anext(frames)
    refused: list[tuple[Any, type[LogboomError]]] = [(scan(backend, views, 1), QuotaExceeded)]
    for other, error in refused:
        with pytest.raises(error):
            await anext(other)
    await frames.aclose()
    backend.kinds[1] = "log"
    with pytest.raises(InvalidRequest):
        await anext(scan(backend, views, 0, 1))
    with pytest.raises(InvalidRequest):
        await anext(scan(backend, views, *([0] * 1025)))
    assert views.open == 0
    backend.check_nothing_is_left()


async def test_a_state_that_is_captured_after_its_client_has_gone_is_let_go() -> None:
    backend = Backend({0: 5, 1: 5})
    views = Views(backend, views_max=1)
    chunks = views.scan([PartitionId(0), PartitionId(1)], {"read": "stale"}, 10.0)
    scan = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    worker = backend.workers[0]
    stop = worker.stops.pop()  # a thread is at it
    view = stop.capture(worker.machine)
    assert worker.machine.open == 1
    scan.cancel()
    await asyncio.gather(scan, return_exceptions=True)
    stop.taken(view)
    assert (worker.machine.open, views.open, backend.used) == (0, 0, 0)
    stop.taken(None)
