"""States that are read piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from dispatcher.reading.at_hand import AtHand
from dispatcher.reading.scans import Scans
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex


class Machine:
    def __init__(self) -> None:
        self.applied = 0
        self.open = 0

    def scan(self, *, start: bytes, end: bytes | None, limit: int, chunk: int) -> Iterator[Any]:
        rows = [(b"k", b"%d" % self.applied)], Position(PartitionLogIndex(self.applied), GlobalLogIndex(self.applied))
        self.open += 1
        try:
            yield rows
            yield rows
        finally:
            self.open -= 1


SCAN = {"partition": 0, "read": "stale", "timeout_ms": 0}


class Backend:
    """One partition, of which a scan has two chunks."""

    def __init__(self, **settings: Any) -> None:
        self.machine: Any = Machine()
        self.scans = Scans(self, **settings)
        self.clock: Any = SimpleNamespace(monotonic=lambda: 0.0)
        self.at_hand = AtHand(self.clock, enabled=True)
        self.offload = self
        self.used = 0

    workers = (0,)

    def threads_of(self, _: int, __: object) -> Any:
        return self.offload

    @contextmanager
    def using(self, _: int) -> Iterator[Any]:
        self.used += 1
        try:
            yield self.machine
        finally:
            self.used -= 1

    async def run(self, job: Callable[[], Any]) -> Any:
        return job()

    def check_nothing_is_left(self) -> None:
        assert (self.scans.open, self.used, self.machine.open) == (0, 0, 0)


def scan(backend: Backend) -> AsyncGenerator[Any, None]:
    return backend.scans.scan(SCAN, 5.0)
