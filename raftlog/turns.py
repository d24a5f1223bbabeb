"""When the parent log has its turn: soon after something has moved, once; now and then; at once for who is alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftlog.journal.outbox import GroupSync


class Turns:
    """Of one parent log, on the running loop; none before ``start`` and none once it is ``closed``."""

    def __init__(self, turn: Callable[[], None], group: GroupSync, *, every_s: float) -> None:
        """``turn`` is due if ``take`` says so."""
        self._turn = turn
        self._group = group
        self._every_s = every_s
        self.scheduled = False
        """One is due."""
        self.closed = False
        self._waited = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._news: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """From now on this loop has them."""
        self._loop = asyncio.get_running_loop()

    def tick_later(self) -> None:
        """One in ``every_s``, and from then on."""
        if self._loop is not None and not self.closed:
            self._timer = self._loop.call_later(self._every_s, self._on_timer)

    def close(self) -> None:
        """There will be no other."""
        self.closed = True
        for timer in (self._timer, self._news):
            if timer is not None:
                timer.cancel()

    def _on_timer(self) -> None:
        try:
            self._group.rest()
            self.poke()
        finally:  # whatever goes wrong: without ticks there are no elections
            self.tick_later()

    def poke(self) -> None:
        """Have a turn soon, once."""
        if not self.scheduled and self._loop is not None and not self.closed:
            self.scheduled = True
            self._loop.call_soon(self._turn)

    @property
    def due(self) -> bool:
        """One is to be had."""
        return self.scheduled and not self.closed

    def take(self) -> None:
        """If one is due it is had now, and what happens from here on wants another."""
        self.scheduled = False

    def later(self, seconds: float, *, still: Callable[[], bool]) -> None:
        """One more then, if ``still``. The first who asks says when."""
        if self._news is None and self._loop is not None:
            self._news = self._loop.call_later(seconds, self._later, still)

    def _later(self, still: Callable[[], bool]) -> None:
        self._news = None
        if still():
            self.poke()

    def kick_soon(self) -> None:
        """A group sync after the connections' own flush: what may leave early does so before a sync on the loop."""
        if self._loop is not None:
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        if self.scheduled and not self._waited:
            self._waited = True  # what was just proposed belongs in this group, and on the links before it; once
            return
        self._waited = False
        self._group.kick()
