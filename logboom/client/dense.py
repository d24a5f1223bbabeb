"""Requests of a dense producer leave in the order of their sequences, and again so after a failure.

A node refuses a record whose predecessor it has not seen (OutOfSequence), and so all that follow it. Whoever is not
the next waits here: for those before it that have yet to get a turn of the connection, which favours the last to come
when it is congested, and for those that have failed and are about to be sent again. Called in another order than that
of their sequences, those that wait hold no room (``pacing``) which the next one needs.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from itertools import takewhile

from logboom.client.pacing import Room


class Turn:
    """One request of a dense producer, from the call until its outcome."""

    def __init__(self, first_sequence: int, line: list[Turn]) -> None:
        self.first_sequence = first_sequence
        self._line = line
        self._sent = False
        self._waiting: asyncio.Future[None] | None = None
        self._room: Room | None = None
        self._deadline = 0.0
        self._wants_room = False

    async def enter(self, room: Room, *, until: float, deadline: float) -> None:
        """Take room. Whoever comes after it and waits for it gives his back for that, and takes it again by itself."""
        self._room, self._deadline = room, deadline
        await self._take(room, until)

    async def come(self) -> None:
        """Wait until all before it are on their way. Then call ``sent``, before anything is awaited."""
        while True:
            room = self._room
            if self._next() is self:
                if room is None or room.held:
                    return
                await self._take(room, self._deadline)
                continue
            if room is not None and room.held and self._is_in_the_way():
                room.give()
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    async def _take(self, room: Room, until: float) -> None:
        self._wants_room = True
        for turn in self._line:
            if turn._room is not None and turn._room.held:  # noqa: SLF001 - its own class
                turn._call()  # noqa: SLF001
        try:
            await room.take(until=until)
        finally:
            self._wants_room = False

    def _is_in_the_way(self) -> bool:
        """It has room, and one that has to leave before it has none."""
        before = takewhile(lambda turn: turn is not self, self._line)
        return any(turn._wants_room for turn in before)  # noqa: SLF001

    def sent(self) -> None:
        """It is on its way: the next may follow."""
        self._sent = True
        self._call_next()

    def failed(self) -> None:
        """It has to be sent again, before all that follow."""
        self._sent = False

    def leave(self) -> None:
        """It has its outcome."""
        self._line.remove(self)
        self._call_next()

    def _next(self) -> Turn | None:
        return next((turn for turn in self._line if not turn._sent), None)  # noqa: SLF001 - its own class

    def _call_next(self) -> None:
        turn = self._next()
        if turn is not None:
            turn._call()  # noqa: SLF001

    def _call(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Lines:
    """All dense requests of a client, by producer, partition, and who makes them."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, list[Turn]] = {}

    @contextmanager
    def turn(self, stream: Hashable, first_sequence: int) -> Iterator[Turn]:
        """Stand in line until the request has its outcome."""
        line = self._lines.setdefault(stream, [])
        own = Turn(first_sequence, line)
        insort(line, own, key=lambda turn: turn.first_sequence)
        try:
            yield own
        finally:
            own.leave()
            if not line and self._lines.get(stream) is line:
                del self._lines[stream]
