"""The thread of snapshots, scrubbing and states that are made anew: when it stands still, somebody is told.

It calls machines of users (``dump``, ``load``, ``scrub``). One of them that does not return stops all of that on this
node, for good, while everything else goes on: no snapshot is taken any more, and nothing is removed from the logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Final

import structlog

from ports.clock import Clock
from ports.offload import Place

log = structlog.get_logger(__name__)

LOOK_S: Final = 10.0
STILL_S: Final = 60.0


class Upkeep:
    """Of one node."""

    def __init__(self, place: Callable[[], Place | None], clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._mark: Hashable = None
        """Of where it was; None: it had nothing to do."""
        self._since = 0.0
        self._told = False
        self._timer: asyncio.TimerHandle | None = None
        self.still_s = 0.0
        """How long it has been in one place, as far as was looked; 0: it moves, or has nothing to do."""

    def start(self) -> None:
        """Look, and again and again."""
        self.look()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.start)

    def stop(self) -> None:
        """No more."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Where is it?"""
        found, now = self._place(), self._clock.monotonic()
        mark = None if found is None else found.mark
        if found is None or mark != self._mark:
            if self._told:
                log.info("upkeep_goes_on", after_s=round(now - self._since))
            self._mark, self._since, self._told, self.still_s = mark, now, False, 0.0
            return
        self.still_s = now - self._since
        if self.still_s >= STILL_S and not self._told:
            self._told = True
            why = "no snapshot is taken, nothing scrubbed, and nothing removed from the logs, until this returns"
            log.warning("upkeep_stands_still", seconds=round(self.still_s), at=found.shown, reason=why)
