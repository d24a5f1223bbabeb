"""The threads of snapshots, scrubbing and states that are made anew: when one stands still, somebody is told.

They call machines of users (``dump``, ``load``, ``scrub``). A call that does not return stops its own kind of work on
this node, for good, while everything else goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from ports.clock import Clock
from ports.offload import Place
from server.world.world import OTHERWISE, SCRUBBING, SETS, STATES

log = structlog.get_logger(__name__)

LOOK_S: Final = 10.0
STILL_S: Final = 60.0
MEANWHILE: Final = {
    SETS: "no snapshot is taken",
    SCRUBBING: "nothing is scrubbed",
    STATES: "no other damaged state is made anew",
    OTHERWISE: "no snapshot is fetched from other nodes, and none removed",
}


@dataclass(slots=True)
class _Thread:
    """Where a thread was found the last time, and since when."""

    place: Place
    since: float
    told: bool = False


class Upkeep:
    """Looks now and then whether the threads for long work of one node move."""

    def __init__(self, places: Callable[[], Mapping[str, Place]], clock: Clock) -> None:
        """``places``: where the threads are, by name; not of those that have nothing to do."""
        self._places = places
        self._clock = clock
        self._threads: dict[str, _Thread] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.still_s = 0.0
        """How long one has been in one place, as far as was looked; 0: all move, or have nothing to do."""

    def start(self) -> None:
        """Look, and again and again."""
        self._tick()

    def stop(self) -> None:
        """No more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.look()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._tick)

    def look(self) -> None:
        """Where are they?"""
        places, now = self._places(), self._clock.monotonic()
        for name, known in list(self._threads.items()):
            found = places.get(name)
            if found is None or found.mark != known.place.mark:
                if known.told:
                    log.info("upkeep_goes_on", thread=name, after_s=round(now - known.since))
                del self._threads[name]
        for name, found in places.items():
            known = self._threads.setdefault(name, _Thread(found, now))
            if now - known.since >= STILL_S and not known.told:
                known.told = True
                why = f"{MEANWHILE[name]}, until this returns"
                still = round(now - known.since)
                log.warning("upkeep_stands_still", thread=name, seconds=still, at=found.shown, reason=why)
        self.still_s = max((now - each.since for each in self._threads.values()), default=0.0)
