"""Programs that follow the logs all through a run: tails, scans over partitions, metadata with fetched data."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from chaos.checkers.streams import Followed, Gone, Row
from logboom import Client
from logboom.client.streams import close
from logboom.errors import IndexCompacted, LogboomError

AGAIN_S: Final = 0.2
PATIENCE_S: Final = 30.0
"""A stream looks for a node for so long: all may be away for a while."""
SLOW_S: Final = 0.05
SLOW_SHARE: Final = 0.02
SMALL_CREDIT: Final = 4096
CONTENT_BYTES: Final = 8


def content(payload: bytes) -> bytes:
    """As it is kept for later."""
    return hashlib.blake2b(payload, digest_size=CONTENT_BYTES).digest()


def rows_of(batch: Any) -> list[Row]:
    """Of a batch of a log."""
    pairs = zip(batch.indexes().tolist(), batch.records.payloads(), strict=True)
    return [Row(batch.partition_id, index, batch.global_index, content(payload)) for index, payload in pairs]


class Streams:
    """All of a run, each with a client of its own."""

    def __init__(self, endpoints: str, rng: random.Random, *, kv: Sequence[int], logs: Sequence[int]) -> None:
        self._endpoints = endpoints
        self._rng = rng
        self._tasks: list[asyncio.Task[None]] = []
        self.followed: list[Followed] = []
        everything = [*kv, *logs]
        for partition in (*logs, rng.choice(kv)):
            self._begin("tail", [partition], credit=rng.choice([SMALL_CREDIT, 1 << 20]))
        self._begin("tail in pieces", [rng.choice(logs)], batch_records=1)
        self._begin("metadata", [rng.choice(everything)])
        self._begin("scan", everything, merged=True)
        self._begin("scan", sorted(rng.sample(everything, 3)), merged=True)

    def _begin(self, kind: str, partitions: list[int], *, merged: bool = False, **how: Any) -> None:
        level = self._rng.choice(["durable", "applied"])
        name = f"{kind} {','.join(map(str, partitions))} {level}"
        followed = Followed(name, partitions, level, merged)
        self.followed.append(followed)
        work = {"metadata": self._metadata}.get(kind, self._scan if merged else self._tail)
        self._tasks.append(asyncio.ensure_future(self._follow(followed, work, how)))

    async def _follow(self, followed: Followed, work: Callable[..., Any], how: dict[str, Any]) -> None:
        """Goes on where it was, as a program would that was told of an error."""
        async with Client(self._endpoints, timeout=PATIENCE_S) as client:
            while True:
                try:
                    await work(client, followed, how)
                    followed.errors.append("has come to an end")
                    return
                except IndexCompacted as error:
                    followed.gone.append(Gone(len(followed.rows), int(error.first)))
                except LogboomError as error:
                    if not error.retryable:
                        followed.errors.append(f"{error.code}: {error}")
                    await asyncio.sleep(AGAIN_S)

    async def _take(self, followed: Followed, rows: list[Row]) -> None:
        followed.rows += rows
        if self._rng.random() < SLOW_SHARE:
            await asyncio.sleep(self._rng.random() * SLOW_S)

    async def _tail(self, client: Client, followed: Followed, how: dict[str, Any]) -> None:
        begin = _next_index(followed)
        batches = client.tail(followed.partitions[0], start=begin, follow=True, level=followed.level, **how)
        try:
            async for batch in batches:
                await self._take(followed, rows_of(batch))
        finally:
            await close(batches)

    async def _scan(self, client: Client, followed: Followed, how: dict[str, Any]) -> None:
        begin = followed.rows[-1].global_index + 1 if followed.rows else 1
        if followed.gone and followed.gone[-1].after == len(followed.rows):
            begin = followed.gone[-1].first
        batches = client.scan_log(followed.partitions, start_global=begin, follow=True, level=followed.level, **how)
        try:
            async for batch in batches:
                await self._take(followed, rows_of(batch))
        finally:
            await close(batches)

    async def _metadata(self, client: Client, followed: Followed, how: dict[str, Any]) -> None:
        begin = _next_index(followed)
        batches = client.tail_metadata(followed.partitions[0], start=begin, follow=True, level=followed.level, **how)
        try:
            async for batch in batches:
                wanted = batch.descriptors()
                payloads = await client.fetch(wanted, timeout=PATIENCE_S)
                rows = [
                    Row(each.partition_id, each.index, batch.global_index, content(payload))
                    for each, payload in zip(wanted, payloads, strict=True)
                ]
                await self._take(followed, rows)
        finally:
            await close(batches)

    async def caught_up(self, ends: Mapping[int, int], *, within_s: float) -> None:
        """Until each has come to the end of its partitions, ``ends``; who has not stands still."""
        until = time.monotonic() + within_s
        for followed in self.followed:
            due = {p: ends.get(p, 0) for p in followed.partitions}
            while due and time.monotonic() < until:
                have = {row.partition: row.index for row in followed.rows}
                due = {p: end for p, end in due.items() if have.get(p, 0) < end}
                await asyncio.sleep(AGAIN_S)
            followed.errors += [f"stands still, and {p} goes up to {end}" for p, end in due.items()]

    async def leave(self) -> None:
        """Nobody follows any more."""
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        for followed, end in zip(self.followed, ends, strict=True):
            if isinstance(end, Exception):
                followed.errors.append(f"failed: {end!r}")


def _next_index(followed: Followed) -> int:
    if followed.gone and followed.gone[-1].after == len(followed.rows):
        return followed.gone[-1].first
    return followed.rows[-1].index + 1 if followed.rows else 1  # not 0: wherever it begins, without a word
