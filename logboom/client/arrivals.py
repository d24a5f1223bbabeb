"""What has come of a streamed reply, and waits for its consumer."""

from __future__ import annotations

import asyncio
from collections import deque

from logboom.errors import LogboomError
from logboom.wire import Frame


class Stream:
    """Of one request."""

    def __init__(self) -> None:
        self.items: deque[Frame | LogboomError] = deque()
        self.nbytes = 0
        self.filled = asyncio.Event()

    def put(self, item: Frame | LogboomError) -> None:
        """It has come."""
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
