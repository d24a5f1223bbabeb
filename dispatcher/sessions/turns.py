"""Whose turn it is of the loop's time: requests of all connections together have so much of one turn.

However many connections have something to say at once, or to wait for, the node's other work, heartbeats above all, has
its turn between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import cached_property
from typing import Final, Protocol

from ports.clock import Clock

TURN_S: Final = 0.01
"""So much of one turn of the loop requests of all connections take; others wait for the next."""
SHARE_S: Final = TURN_S / 10
"""Connections that hold something back take turns, for so long each, or for one frame that takes longer."""


class Holds(Protocol):
    """Whoever has something held back until it is its turn: the submits of a connection."""

    def one_held(self) -> bool:
        """The next that was held back is begun; True: there are more."""
        ...


class Turns:
    """How long this turn of the loop has been spent on requests, and whose turn is next. One for all connections."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: float | None = None
        self._waiting: deque[Holds] = deque()
        self.now = 0.0
        """When ``is_over`` was asked last."""

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def is_over(self) -> bool:
        """Whatever comes now has to wait."""
        now = self.now = self._clock.monotonic()
        if self._until is None:
            self._until = now + TURN_S
            self._loop.call_soon(self._next)
        return now >= self._until

    def enqueue(self, who: Holds) -> None:
        """It has something held back."""
        self._waiting.append(who)

    def _next(self) -> None:
        self._until = None
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, deque()
        while waiting and not self.is_over():
            who, until = waiting.popleft(), self.now + SHARE_S
            more = who.one_held()
            while more and not self.is_over() and self.now < until:
                more = who.one_held()
            if more:
                waiting.append(who)
        self._waiting = waiting


class OneATurn:
    """Of a crowd of tasks each turn of the loop has one, within the block."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().call_soon(self._lock.release)
