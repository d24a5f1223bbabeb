"""Several logs in global order where no node has all of them: of each from whoever has it. No Spark in here.

A batch is given once the next one of every other log is known to come behind it: nothing that is missing is passed by.
What is read ends where it is known to end, so whoever is behind is waited for, and says nothing of the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from logboom.client import Client
from logboom.client.reads import LogBatch, close_now
from logboom.errors import DeadlineExceeded, LogboomError, Voided
from logboom.spark.shares import Share
from logboom.spark.times import Looks
from logboom.types import MIB

APART_MAX: Final = 256
"""Logs: of each a batch is held, and a stream is open."""
HELD_MIN: Final = 256 * MIB
"""Bytes of the batches that are held; or ``HELD_FETCHES`` times what a task may hold of records, if that is more."""
HELD_FETCHES: Final = 16
SHARE: Final = 0.75
"""Share of the time of a request for the next log to say where it begins: then it is known why none does."""


class TooLarge(Exception):
    """A batch of each log is more than may be held."""


async def in_order(
    client: Client, shares: Sequence[Share], *, credit: int, held_max: int
) -> AsyncIterator[LogBatch | Voided]:
    """All of the shares, by their global index; what was declared void in its place.

    ``credit``: bytes of each that come ahead; ``held_max``: of all, of what comes next of each. Raises IndexCompacted
    where all nodes have removed something of one, TooLarge, TimeoutError where some do not say where they begin.
    """
    feeds = dict[int, AsyncGenerator[LogBatch | Voided, None]]()
    heads = list[tuple[int, int, LogBatch | Voided]]()
    looks, held = Looks(client), 0

    async def begin(number: int, patience: float | None) -> LogBatch | Voided | None:
        feeds[number] = _of(client, shares[number], credit, patience)  # one that said nothing has ended
        return await anext(feeds[number], None)

    def come(number: int, item: LogBatch | Voided | None) -> None:
        nonlocal held
        if item is not None:
            held += size_of(item)
            if held > held_max:
                raise TooLarge
            heapq.heappush(heads, (item.global_index, number, item))

    async def first(number: int) -> None:
        come(number, await looks.one(partial(begin, number)))

    try:
        try:
            await looks.all([partial(first, number) for number in range(len(shares))], timeout=SHARE * client.timeout)
        except DeadlineExceeded as late:
            raise TimeoutError(late.message) from late
        while heads:
            _, number, item = heapq.heappop(heads)
            held -= size_of(item)
            yield item
            come(number, await anext(feeds[number], None))
    finally:
        for feed in feeds.values():
            await close_now(feed)


def size_of(item: LogBatch | Voided) -> int:
    """Bytes of its records."""
    return 0 if isinstance(item, Voided) else item.records.nbytes


async def _of(
    client: Client, share: Share, credit: int, patience: float | None
) -> AsyncGenerator[LogBatch | Voided, None]:
    """Batches of one log, up to the end of the share. ``patience``: until something comes; then the client's."""
    start, before = share.start, share.start
    while start <= share.end:
        try:
            batches = client.tail(
                share.partition_id, start=start, follow=True, credit=credit, on_void=_refuse, timeout=patience
            )
            async with aclosing(batches):
                async for batch in batches:
                    start = int(batch.last_index) + 1
                    yield batch
                    if start > share.end:
                        return
        except Voided as gap:
            if "global_index" not in gap.fields:  # of an earlier release: nobody knows its place
                raise
            start = int(gap.last_index) + 1
            yield gap
        except LogboomError as error:
            if not error.retryable or patience is None or start == before:
                raise
        if start > before:
            patience = None


def _refuse(gap: Voided) -> None:
    raise gap
