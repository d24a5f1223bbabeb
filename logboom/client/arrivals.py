"""What has come of a streamed reply, and waits for its consumer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from logboom.errors import LogboomError
from logboom.wire import Frame, Kind

Header = dict[str, Any]


def _watched(before: Header, after: Header) -> Header:
    if after["first"]:
        return after
    rows = {row[0]: row for row in before["watermarks"] if row[0] not in after["gone"]}
    rows |= {row[0]: row for row in after["watermarks"]}
    gone = [*dict.fromkeys([*before["gone"], *after["gone"]])]
    return {**after, "first": before["first"], "gone": gone, "watermarks": list(rows.values())}


def _progress(before: Header, after: Header) -> Header:
    frontiers = dict(before["frontiers"]) | dict(after["frontiers"])
    return {**after, "frontiers": [[partition, at] for partition, at in frontiers.items()]}


NEWEST: Final[Mapping[Kind, Callable[[Header, Header], Header]]] = {
    Kind.WATCHED: _watched,
    Kind.BARRIER_PROGRESS: _progress,
    Kind.SKIPPED: lambda _, after: after,
}
"""How two frames of a kind that wait become one: of these only what is newest counts. No credit is needed for them: a
node sends no more than are read, and whoever takes them slowly is to be told what two that wait say together."""


class Stream:
    """What has come of one request's stream, and who waits for more."""

    def __init__(self, *, roams: bool = False) -> None:
        """``roams``: whoever follows it goes on at another node when it ends here."""
        self.roams = roams
        self.items: deque[Frame | LogboomError] = deque()
        self.nbytes = 0
        self.filled = asyncio.Event()

    def put(self, item: Frame | LogboomError) -> None:
        """A frame has come."""
        last = self.items[-1] if self.items else None
        if isinstance(item, Frame) and isinstance(last, Frame) and item.kind is last.kind and item.kind in NEWEST:
            self.items[-1] = item._replace(header=NEWEST[item.kind](last.header, item.header))
            return
        self.items.append(item)
        if isinstance(item, Frame):
            self.nbytes += len(item.body)
        self.filled.set()

    async def get(self) -> Frame | LogboomError:
        """The next, once it is there."""
        while not self.items:
            self.filled.clear()
            await self.filled.wait()
        item = self.items.popleft()
        if isinstance(item, Frame):
            self.nbytes -= len(item.body)
        return item
