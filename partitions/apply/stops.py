"""Where a worker stops until somebody has seen the state of there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from logboom.state_machine import Machine
from logboom.types import PartitionLogIndex
from ports.clock import Clock
from ports.counts import Buckets
from ports.invariant import invariant


@dataclass(slots=True, eq=False)
class Stop:
    """Where to stop until something of the state is captured."""

    through_index: PartitionLogIndex
    capture: Callable[[Machine], Any]
    taken: Callable[[Any], None]
    is_cut: bool = False
    """For a snapshot."""


class Stops:
    """Those of one worker."""

    def __init__(self, clock: Clock, pauses: Buckets) -> None:
        """``pauses`` counts how long the worker has waited for each."""
        self._clock = clock
        self._pauses = pauses
        self._to_come: list[Stop] = []
        """The nearest first."""
        self.under_way: Stop | None = None
        """Something is being captured, and the worker waits for it."""
        self._began = 0.0

    def __len__(self) -> int:
        return len(self._to_come)

    @property
    def nearest(self) -> Stop | None:
        """The worker goes no further."""
        return self._to_come[0] if self._to_come else None

    def add(self, stop: Stop) -> Stop:
        """One more."""
        twice = stop.is_cut and any(other.is_cut for other in self._to_come)
        invariant(not twice, "two cuts at once, the second at {}", stop.through_index)
        self._to_come.append(stop)
        self._to_come.sort(key=lambda each: each.through_index)
        return stop

    def begin(self, stop: Stop) -> None:
        """Its state is being captured."""
        self._to_come.remove(stop)
        self.under_way, self._began = stop, self._clock.monotonic()

    def end(self, stop: Stop) -> bool:
        """The worker waits for that no longer. False: it did not."""
        if self.under_way is not stop:
            return False
        self.under_way = None
        self._pauses.observe(self._clock.monotonic() - self._began)
        return True

    def remove(self, stop: Stop) -> bool:
        """It does not begin. False: it has, or was removed before."""
        known = stop in self._to_come
        if known:
            self._to_come.remove(stop)
        return known

    def drop_cut(self) -> None:
        """The same of a snapshot's, if there is one."""
        self._to_come = [stop for stop in self._to_come if not stop.is_cut]

    def move_to(self, other: Stops) -> None:
        """Those that have not begun."""
        other._to_come, self._to_come = self._to_come, []
