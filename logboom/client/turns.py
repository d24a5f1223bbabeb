"""Whose turn it is to send, while a node does not read as fast as others want to send."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

LAST_FIRST_AFTER_S: Final = 0.1


class Turns:
    """Of one connection.

    First come, first served; but once somebody has waited long, the last to come is first: who has waited longest is
    nearest to his deadline, and a node kept busy with what nobody waits for any more would do nothing else.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, has_room: Callable[[], bool]) -> None:
        """``has_room``: one more may send."""
        self.waiting: deque[tuple[float, asyncio.Future[None]]] = deque()
        """Since when, and who."""
        self._loop = loop
        self._has_room = has_room
        self._over = False

    async def take(self) -> None:
        """Wait for one's own. Then send, before anything is awaited."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self.waiting.append((self._loop.time(), turn))
        try:
            await turn
        finally:
            self._loop.call_soon(self.grant)  # the next one's, as soon as this one has sent or given up

    def grant(self) -> None:
        """To the next, if there is room."""
        waiting = self.waiting
        while waiting and waiting[0][1].done():
            waiting.popleft()
        while waiting and self._has_room():
            long = self._loop.time() - waiting[0][0] > LAST_FIRST_AFTER_S
            _, turn = waiting.pop() if long else waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                if not self._over:  # else all go, to be told so
                    return

    def end(self) -> None:
        """The connection is lost. Idempotent."""
        self._over = True
        self._has_room = lambda: True  # and the connection is not kept by this
        self.grant()
