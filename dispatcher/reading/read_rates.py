"""How fast a principal may read, over all its connections to this node. Who is faster waits for his turn.

As with writes (``dispatcher.admission.rates``) what was read is owed, in seconds at the rate, and time pays. While more
than a burst is owed nothing more is read for him: his streams pause, his scans and gets wait, in the order in which
they came. What is under way by then is sent all the same, and owed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from logboom.errors import DeadlineExceeded
from logboom.types import KIB
from ports.clock import Clock

KEPT_MIN: Final = 1024
"""Principals; of more those who owe nothing, and are not connected, are forgotten."""
CHUNK_BYTES_MIN: Final = 16 * KIB
CHUNK_BYTES_MAX: Final = 1 << 62
WEIGHT: Final = 0.25
"""Of the last get, in what one is expected to take."""
AGAIN_S: Final = 0.001
"""Not sooner: a clock's smallest step would be waited for again and again."""


class ReadRates:
    """All of one node. ``per_s`` 0: nobody is bounded."""

    def __init__(self, *, per_s: int, burst_ms: int, clock: Clock) -> None:
        self.per_s = per_s
        self.burst_s = burst_ms / 1000
        self.clock = clock
        self._paces: dict[str, Pace] = {}
        self._look_at = KEPT_MIN
        self.chunk_bytes = max(CHUNK_BYTES_MIN, per_s * burst_ms // 1000) if per_s else CHUNK_BYTES_MAX
        """Streams read so much at a time, at most."""
        self.waiting = 0
        """Streams and gets that wait for their rate now."""
        self.waited = 0
        """How often any did, since the start."""

    def enter(self, principal: str) -> Pace:
        """A connection of somebody's; of somebody without a name (''): it has a rate of its own."""
        pace = self._paces.get(principal)
        if pace is None:
            pace = Pace(self)
            if principal and self.per_s:
                self._paces[principal] = pace
        pace.connections += 1
        self._tidy()
        return pace

    def leave(self, pace: Pace) -> None:
        """It is gone. What is owed stays owed: who comes again does not begin anew."""
        pace.connections -= 1

    def _tidy(self) -> None:
        if len(self._paces) > self._look_at:
            self._paces = {who: pace for who, pace in self._paces.items() if pace.connections or pace.owed > 0}
            self._look_at = max(KEPT_MIN, 2 * len(self._paces))


class Pace:
    """What one principal owes for what it read, and whose turn is next."""

    def __init__(self, rates: ReadRates) -> None:
        self._rates = rates
        self.connections = 0
        self._paid_at = 0.0
        """When nothing will be owed."""
        self._sure_at = 0.0
        """When nothing would be owed, without what is only expected."""
        self._key_bytes: float | None = None
        """What a key of a get took of late; None: none was answered yet."""
        self._line: dict[object, Callable[[], None]] = {}
        self._turn: object = None
        """Who may read next, of those in the line."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def chunk_bytes(self) -> int:
        """Bytes that a stream reads at a time, at most."""
        return self._rates.chunk_bytes

    @property
    def owed(self) -> float:
        """Seconds."""
        return max(0.0, self._paid_at - self._rates.clock.monotonic())

    def admits(self, who: object, go_on: Callable[[], None]) -> bool:
        """It may read now. Else ``go_on`` is called when it is its turn, once, unless it leaves before."""
        rates = self._rates
        if not rates.per_s or (self.owed <= rates.burst_s and (not self._line or who is self._turn)):
            return True
        if who not in self._line:
            self._line[who] = go_on
            rates.waiting += 1
            rates.waited += 1
        self._set_timer()
        return False

    def leave(self, who: object) -> None:
        """It does not wait any more. Idempotent."""
        if self._line.pop(who, None) is not None:
            self._rates.waiting -= 1

    def take(self, nbytes: int) -> None:
        """So much was read."""
        if self._rates.per_s:
            now, seconds = self._rates.clock.monotonic(), nbytes / self._rates.per_s
            self._paid_at = max(self._paid_at, now) + seconds
            self._sure_at = max(self._sure_at, now) + seconds

    def expect(self, keys: int) -> float:
        """A get of so many keys is about to be read: what it will take, in seconds, is owed at once. ``was`` is told.

        Else all that wait would go as soon as one may. Of the first nothing is known: others wait for it, or a burst.
        """
        rates = self._rates
        if not rates.per_s:
            return 0.0
        expected = 2 * rates.burst_s if self._key_bytes is None else keys * self._key_bytes / rates.per_s
        self._paid_at = max(self._paid_at, rates.clock.monotonic()) + expected
        return expected

    def was(self, expected: float, nbytes: int | None, keys: int) -> None:
        """It took so much; None: it came to nothing."""
        if not self._rates.per_s:
            return
        self._paid_at = max(self._paid_at - expected, self._sure_at)  # no time that passed meanwhile is saved up
        if nbytes is not None:
            each, before = nbytes / keys, self._key_bytes
            self._key_bytes = each if before is None else before + (each - before) * WEIGHT
            self.take(nbytes)
        if self._timer is not None:  # it was to ring later, or sooner
            self._timer.cancel()
            self._timer = None
            self._set_timer()

    async def turn(self, seconds: float | None = None) -> None:
        """Wait until more may be read. Raises DeadlineExceeded after so many ``seconds``, or at once."""
        if not self._rates.per_s:
            return
        if seconds is not None and self._ahead > seconds:
            raise self._too_late()
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.admits(room, lambda: None if room.done() else room.set_result(None)):
            return
        try:
            async with asyncio.timeout(seconds):
                await room
        except TimeoutError:
            raise self._too_late() from None
        finally:
            self.leave(room)

    @property
    def _ahead(self) -> float:
        """Seconds of which it is sure that they have to be waited for."""
        return max(0.0, self._sure_at - self._rates.clock.monotonic()) - self._rates.burst_s

    def _too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"the read has to wait for your rate (reads.principal_bytes_per_s, {self._rates.per_s}), of which you are "
            f"{self._ahead + self._rates.burst_s:.3g} s ahead: longer than it may take",
            outcome="not_applied",
        )

    def _set_timer(self) -> None:
        if self._timer is None and self._line:
            early = self.owed - self._rates.burst_s
            wait_s = max(early, AGAIN_S) if early > 0 else 0.0
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._next)

    def _next(self) -> None:
        """One at a time: what it reads is owed before the next one is asked."""
        self._timer = None
        if self._line and self.owed <= self._rates.burst_s:
            who = next(iter(self._line))
            go_on = self._line[who]
            self.leave(who)
            self._turn = who
            try:
                go_on()
            finally:
                self._turn = None
                self._set_timer()
        else:
            self._set_timer()
