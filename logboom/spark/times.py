"""Where a log has come to by a time: offsets for ``startingTimestamp`` and ``endingTimestamp``. No Spark in here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeVar

from logboom.client import Client
from logboom.errors import DeadlineExceeded, IndexCompacted, LogboomError, Voided
from logboom.spark.connection import Session, all_or_none

T = TypeVar("T")
PROBES_MAX: Final = 16
"""Partitions that are asked at once."""
ANSWERED_S: Final = 0.5
"""For a node to answer a look at a log, before another one is asked; longer each time."""
GONE: Final = -1
"""The time of what was removed: older than anything."""
VOID: Final = 1 << 63
"""The time of what was declared void, which nobody knows: whoever reads it is told."""


class Looks:
    """Looks at many logs, a few at once.

    Of no named node, so whoever says nothing is left for the next one that has its turn: it may be far behind, or its
    disk may hang. One that lets wait under a rate is given all the longer.
    """

    def __init__(self, client: Client, node: str | None = None) -> None:
        self._client, self._node = client, node
        self._failed = dict[object, LogboomError]()
        """Why some have not been answered yet."""

    async def all(self, logs: Collection[Callable[[], Awaitable[None]]], *, timeout: float | None = None) -> None:
        """What is to be done for each log. Raises what that raises.

        And DeadlineExceeded, or what a node said why, once no log was done with for ``timeout``, or the client's: many
        logs may take longer.
        """
        gate, clock = asyncio.Semaphore(PROBES_MAX), asyncio.get_running_loop().time
        patience = self._client.timeout if timeout is None else timeout

        async def with_one(log: Callable[[], Awaitable[None]]) -> None:
            async with gate:
                await log()
            if not silent.expired():
                silent.reschedule(clock() + patience)

        try:
            async with asyncio.timeout(patience) as silent:
                await all_or_none(with_one(log) for log in logs)
        except TimeoutError:
            story = f"not all of {len(logs)} logs answered in time"
            why = next(iter(self._failed.values()), None)
            if why is None:
                raise DeadlineExceeded(story, outcome="not_applied") from None
            raise type(why)(f"{story}: {why.message}", outcome="not_applied", **why.fields) from why

    async def one(self, look: Callable[[float | None], Awaitable[T]]) -> T:
        """What a look at a log says. It is told in what time it is to say why it has none (None: the client's)."""
        if self._node is not None:
            return await look(None)
        clock, glance, this = asyncio.get_running_loop().time, min(ANSWERED_S, self._client.timeout / 4), object()
        while True:
            end = clock() + glance
            try:
                async with asyncio.timeout_at(end):
                    found = await look(glance)
            except TimeoutError:
                pass
            except LogboomError as error:
                if not error.retryable or isinstance(error, Voided):
                    raise
                self._failed[this] = error
                await asyncio.sleep(max(end - clock(), float(error.fields.get("retry_after") or 0.0)))
            else:
                self._failed.pop(this, None)
                return found
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
        looks, found = Looks(client, node), dict[int, int]()

        async def look(partition: int, end: int) -> None:
            found[partition] = await _Log(client, partition, node, looks).first_from(wanted, end)

        await looks.all([partial(look, p, end) for p, end in last.items()])
        return found

    return session.run(all_of)


class _Log:
    """A partition's log, asked for one batch at a time. Follows: who answers may be on its way to it yet."""

    def __init__(self, client: Client, partition: int, node: str | None, looks: Looks) -> None:
        self._client, self._partition, self._node, self._looks = client, partition, node, looks

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
        return await self._looks.one(partial(self._told, where))

    async def _told(self, where: Mapping[str, Any], timeout: float | None) -> tuple[int, int]:
        # A credit of one byte: one batch.
        batches = self._client.tail(
            self._partition, **where, follow=True, node=self._node, credit=1, on_void=_refuse, timeout=timeout
        )
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
