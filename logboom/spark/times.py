"""Where a log has come to by a time: offsets for ``startingTimestamp`` and ``endingTimestamp``. No Spark in here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar

from logboom.client import Client
from logboom.errors import DeadlineExceeded, IndexCompacted, Voided
from logboom.spark.connection import Session, all_or_none

T = TypeVar("T")
PROBES_MAX: Final = 16
"""Partitions that are asked at once."""
ANSWERED_S: Final = 0.5
"""For a look at a log, before another node is asked for it; longer each time."""
GONE: Final = -1
"""The time of what was removed: older than anything."""
VOID: Final = 1 << 63
"""The time of what was declared void, which nobody knows: whoever reads it is told."""


async def in_turn(client: Client, node: str | None, look: Callable[[], Awaitable[T]]) -> T:
    """What a look at a log says; of no named node, so whoever says nothing is left for the next one that has its turn.

    It may be far behind, or its disk may hang. One that lets wait under a rate is given all the longer.
    """
    if node is not None:
        return await look()
    glance = min(ANSWERED_S, client.timeout / 4)
    while True:
        try:
            async with asyncio.timeout(glance):
                return await look()
        except TimeoutError:
            glance *= 2


def offsets_from(time_ms: int | None, last: Mapping[int, int], session: Session, *, node: str | None) -> dict[int, int]:
    """Per partition the offset of the first record that the leader took at a time or later; behind ``last``: none yet.

    No time, no offsets. Where clocks of leaders differed it is *a* place where older records end. Raises
    DeadlineExceeded.
    """
    if time_ms is None:
        return {}
    wanted = max(1, time_ms)

    async def all_of(client: Client) -> dict[int, int]:
        gate, found = asyncio.Semaphore(PROBES_MAX), dict[int, int]()

        async def look(partition: int, end: int) -> None:
            async with gate:
                found[partition] = await _Log(client, partition, node).first_from(wanted, end)

        async with asyncio.timeout(client.timeout):
            await all_or_none(look(p, end) for p, end in last.items())
        return found

    try:
        return session.run(all_of)
    except TimeoutError:
        raise DeadlineExceeded(f"not all of {len(last)} logs answered in time", outcome="not_applied") from None


class _Log:
    """A partition's log, asked for one batch at a time. Follows: who answers may be on its way to it yet."""

    def __init__(self, client: Client, partition: int, node: str | None) -> None:
        self._client, self._partition, self._node = client, partition, node

    async def first_from(self, time_ms: int, last: int) -> int:
        """See ``offsets_from``."""
        if not last or await self._time(last) < time_ms:
            return last + 1
        low, high = 1, min(last, (await self._first(start_time=time_ms))[0])
        # Nodes remove records for themselves: of those in front of it another may have some that are as new.
        if self._node is not None or high == 1 or await self._time(high - 1) < time_ms:
            return high
        while low < high:
            middle = (low + high) // 2
            if await self._time(middle) < time_ms:
                low = middle + 1
            else:
                high = middle
        return high

    async def _time(self, offset: int) -> int:
        """When the leader took the record there."""
        return (await self._first(start=offset))[1]

    async def _first(self, **where: Any) -> tuple[int, int]:
        """Offset and time of the first record that is told of from there on."""
        return await in_turn(self._client, self._node, lambda: self._told(**where))

    async def _told(self, **where: Any) -> tuple[int, int]:
        # A credit of one byte: one batch.
        batches = self._client.tail(self._partition, **where, follow=True, node=self._node, credit=1, on_void=_refuse)
        try:
            async with aclosing(batches):
                async for batch in batches:
                    return int(batch.first_index), batch.timestamp_ms
        except IndexCompacted as gone:
            return int(gone.first), GONE
        except Voided as gap:
            return int(gap.first_index), VOID
        raise DeadlineExceeded(f"the log of partition {self._partition} ended", outcome="not_applied")


def _refuse(gap: Voided) -> None:
    raise gap
