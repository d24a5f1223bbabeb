"""Where a worker stops until somebody has seen the state of there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from logboom.errors import traced
from logboom.state_machine import Machine
from logboom.types import PartitionLogIndex
from partitions.log.log import PartitionLog
from ports.clock import Clock
from ports.counts import Buckets
from ports.invariant import invariant
from ports.offload import Offload

log = structlog.get_logger(__name__)


class Stopped(Protocol):
    """The worker that is to stop."""

    log: PartitionLog
    machine: Machine
    offload: Offload

    def go_on(self, stop: Stop) -> bool:
        """See ApplyWorker."""
        ...


@dataclass(slots=True, eq=False)
class Stop:
    """Where to stop until something of the state is captured."""

    through_index: PartitionLogIndex
    capture: Callable[[Machine], Any]
    taken: Callable[[Any], None]
    is_cut: bool = False
    """For a snapshot."""
    owner: Stopped = field(init=False)
    """Who stops there: another one, once the first has handed over."""


class Stops:
    """Those of one worker."""

    def __init__(self, owner: Stopped, clock: Clock, pauses: Buckets) -> None:
        """``pauses`` counts how long the worker has waited for each."""
        self._owner = owner
        self._clock = clock
        self._pauses = pauses
        self._to_come: list[Stop] = []
        """The nearest first."""
        self.under_way: Stop | None = None
        """Something is being captured, and the worker waits for it."""
        self._out = set[Stop]()
        """What threads have been told to capture, and have not come back with: that, and what was given up."""
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
        stop.owner = self._owner
        self._to_come.append(stop)
        self._to_come.sort(key=lambda each: each.through_index)
        return stop

    def begin(self, stop: Stop) -> Callable[[], Any] | None:
        """Its state is to be captured: by what this returns, off the loop, unless it is given up before that begins.

        None: it is not, and has been told so. What was captured for a view and given up is still out, and may never
        come: each further one might take one more thread. No snapshot has to do without its own for that.
        """
        self._to_come.remove(stop)
        if self._out and not stop.is_cut:
            stop.taken(None)
            return None
        self.under_way, self._began = stop, self._clock.monotonic()
        self._out.add(stop)
        machine = self._owner.machine
        return lambda: stop.capture(machine) if self.under_way is stop else None

    def captured(self, stop: Stop, found: Any, error: BaseException | None) -> None:
        """That has come to its end: whoever wanted it is told, and may have given it up."""
        self._out.remove(stop)
        if error is not None:
            log.error(
                "capture_failed", partition=self._owner.log.partition_id, error=repr(error), exc_info=traced(error)
            )
        stop.taken(found)

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
        for stop in other._to_come:
            stop.owner = other._owner
