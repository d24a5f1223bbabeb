"""A node that views are taken of: it applies, creates and destroys when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from dispatcher.reading.views import Views
from logboom.errors import LogboomError, PartitionDestroyed
from logboom.types import PartitionId
from tests.unit.dispatcher.scans_world import Machine


class Worker:
    """Applies when the test says so, and stops where it was told to."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.stops: list[Any] = []
        self.under_way: list[Any] = []
        """Threads are at them."""
        self.offload = object()

    @property
    def applied_index(self) -> int:
        return self.machine.applied

    def stop_at(self, through: int, capture: Callable[[Any], Any], taken: Callable[[Any], None]) -> Any:
        stop = SimpleNamespace(through_index=through, capture=capture, taken=taken, owner=self)
        self.stops.append(stop)
        return stop

    def go_on(self, stop: Any) -> bool:
        if stop in self.stops:
            self.stops.remove(stop)
        waited = stop in self.under_way
        if waited:
            self.under_way.remove(stop)
        return waited

    def hand_over(self) -> Worker:
        """To another one, as far as this one is."""
        other = Worker()
        other.machine.applied, other.offload = self.applied_index, self.offload
        other.stops, self.stops = self.stops, []
        for stop in other.stops:
            stop.owner = other
        return other

    def begin(self) -> Any:
        """A thread asks the machine, which takes its time."""
        self.under_way.append(self.stops.pop(0))
        return self.under_way[-1]

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
        self.asked: list[object] = []
        """The threads that were asked for."""
        self.waited: list[tuple[int, int]] = []
        self.still: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wakers: dict[int, list[Callable[..., None]]] = {}
        self.fresh = asyncio.Event()
        self.fresh.set()

    def hold(self) -> Callable[[], None]:
        """A machine is kept open by whoever reads it."""
        self.used += 1

        def let_go() -> None:
            self.used -= 1

        return let_go

    def threads_for(self, _: object, offload: object) -> Any:
        self.asked.append(offload)
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
