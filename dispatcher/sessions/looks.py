"""Whoever follows something has it looked at again and again: all of them together as far as there is time for it.

However many follow watermarks, or the progress of barriers, and however often: a fifth of the loop's time is for that,
and so much of one turn. Principals take turns: who follows much is no reason for others to wait for all of it. Who has
his turn later than he asked for is told the newest that there is then, as ever.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from dispatcher.sessions.turns import SHARE_S, TURN_S
from ports.clock import Clock

REST: Final = 4
"""Nobody looks for so many times as long as looking took."""


class Due(Protocol):
    """It is to be called some time."""

    def cancel(self) -> None:
        """Not any more. Idempotent."""
        ...


Later = Callable[[float, Callable[[], None]], Due]
"""Call this after so many seconds."""


def on_the_loop(seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
    """By the loop's own timers."""
    return asyncio.get_running_loop().call_later(seconds, call)


class Look:
    """A look that is due some time."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call
        self.timer: Due | None = None

    def cancel(self) -> None:
        """Not any more, though it may be its turn. Idempotent."""
        self._call = None
        if self.timer is not None:
            self.timer.cancel()

    def go(self) -> None:
        """It is its turn."""
        if self._call is not None:
            self._call()


class Looks:
    """All looks of one node, those of each principal in the order in which they are due."""

    def __init__(self, clock: Clock, *, later: Later = on_the_loop) -> None:
        self._clock = clock
        self._later = later
        self._due: OrderedDict[Hashable, deque[Look]] = OrderedDict()
        """Whose they are: whoever is to look next comes first."""
        self._free_at = 0.0
        """Nobody looks before."""
        self._rests = False
        """It goes on then."""

    def later(self, seconds: float, call: Callable[[], None], *, whose: Callable[[], Hashable] = lambda: None) -> Look:
        """Have it called after so many seconds, once there is time for it, and it is its principal's turn."""
        look = Look(call)
        look.timer = self._later(seconds, lambda: self._came(look, whose()))
        return look

    def _came(self, look: Look, principal: Hashable) -> None:
        self._due.setdefault(principal, deque()).append(look)
        if not self._rests:
            left = self._free_at - self._clock.monotonic()
            self._rest(left) if left > 0 else self._go()

    def _rest(self, seconds: float) -> None:
        self._rests = True
        self._later(seconds, self._go)

    def _go(self) -> None:
        self._rests = False
        began = now = self._clock.monotonic()
        try:
            while self._due and now - began < TURN_S:
                self._look(min(now + SHARE_S, began + TURN_S))
                now = self._clock.monotonic()
        finally:  # whatever goes wrong: the others have their turn
            now = self._clock.monotonic()
            rest = REST * (now - began)
            self._free_at = now + rest
            if self._due:
                self._rest(rest)

    def _look(self, until: float) -> None:
        """The next principal looks until then, and once at least, and comes behind all others."""
        principal, looks = next(iter(self._due.items()))
        self._due.move_to_end(principal)
        while True:
            look = looks.popleft()
            if not looks:
                del self._due[principal]
            look.go()
            if not looks or self._clock.monotonic() >= until:
                return
