"""Several logs in global order where no node has all of them: of each from whoever has it. No Spark in here.

A batch is given once the next one of every other log is known to come behind it: nothing that is missing is passed by.
What is read ends where it is known to end, so whoever is behind is waited for, and says nothing of the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final

from logboom.client import Client
from logboom.client.reads import LogBatch, close_now
from logboom.errors import Voided
from logboom.spark.connection import all_or_none
from logboom.spark.shares import Share
from logboom.spark.times import in_turn

APART_MAX: Final = 256
"""Logs: of each a batch is held, and a stream is open."""


async def in_order(client: Client, shares: Sequence[Share], *, credit: int) -> AsyncIterator[LogBatch | Voided]:
    """All of the shares, by their global index; what was declared void in its place.

    ``credit``: bytes of each that come ahead. Raises IndexCompacted where all nodes have removed something of one.
    """
    feeds = dict[int, AsyncGenerator[LogBatch | Voided, None]]()
    heads = list[tuple[int, int, LogBatch | Voided]]()

    async def begin(number: int) -> LogBatch | Voided | None:
        feeds[number] = _of(client, shares[number], credit)  # one that said nothing has ended
        return await anext(feeds[number], None)

    def come(number: int, item: LogBatch | Voided | None) -> None:
        if item is not None:
            heapq.heappush(heads, (item.global_index, number, item))

    async def first(number: int) -> None:
        come(number, await in_turn(client, None, lambda: begin(number)))

    try:
        await all_or_none(first(number) for number in range(len(shares)))
        while heads:
            _, number, item = heapq.heappop(heads)
            yield item
            come(number, await anext(feeds[number], None))
    finally:
        for feed in feeds.values():
            await close_now(feed)


async def _of(client: Client, share: Share, credit: int) -> AsyncGenerator[LogBatch | Voided, None]:
    """Of one log, up to what is at the end of the share."""
    start = share.start
    while start <= share.end:
        try:
            batches = client.tail(share.partition_id, start=start, follow=True, credit=credit, on_void=_refuse)
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


def _refuse(gap: Voided) -> None:
    raise gap
