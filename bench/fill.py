"""Bulk writes of a given size, rather than for a given time: what has to be there before something else is measured."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.systems.etcd import TXN, TXN_OPS_MAX, txn
from bench.systems.http2 import Method
from logboom import Client, RecordBlock
from logboom.commands import OP_PUT

VALUE_BYTES: Final = 256
BLOCK: Final = 1_000
"""Records in a request to logboom."""
PREPARED: Final = 64_000
"""Rows that are made beforehand and sent again and again."""
UNDER_WAY: Final = 32
APPLIED_S: Final = 300.0
"""For the last write to be applied everywhere."""


@dataclass(frozen=True)
class Fill:
    """What to write. Keys and values are the same for equal seeds."""

    payload_bytes: int
    """Values alone, without keys: the same for every system."""
    keys: int = 50_000
    """Distinct keys of a partition at most: what is put is put over older values."""
    seed: int = 1
    bytes_per_s: float = 0.0
    """Not faster than this; 0: as fast as it goes."""

    def rows(self, salt: int, count: int) -> list[tuple[bytes, bytes]]:
        """Keys and values."""
        rng = random.Random(self.seed * 1_000_003 + salt)
        return [(b"k%015d" % rng.randrange(self.keys), rng.randbytes(VALUE_BYTES)) for _ in range(count)]


class Pace:
    """Says how long to wait so that no more than ``bytes_per_s`` is begun; 0: never wait."""

    def __init__(self, bytes_per_s: float, now: float) -> None:
        self._rate = bytes_per_s
        self._next = now

    def wait_s(self, size: int, now: float) -> float:
        """Take ``size`` bytes; seconds to wait before they are sent. Idle time is not made up for."""
        if not self._rate:
            return 0.0
        begin = max(self._next, now)
        self._next = begin + size / self._rate
        return begin - now


async def repeated(
    send: Callable[[int], Awaitable[object]], *, total: int, block: int, under_way: int, bytes_per_s: float
) -> None:
    """Call ``send`` with 0, 1, 2, … until ``total`` bytes in blocks of ``block`` are acknowledged."""
    numbers = iter(range(-(-total // block)))
    pace = Pace(bytes_per_s, time.perf_counter())

    async def one_after_the_other() -> None:
        for number in numbers:
            if pause := pace.wait_s(block, time.perf_counter()):
                await asyncio.sleep(pause)
            await send(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(under_way):
            group.create_task(one_after_the_other())


async def logboom(endpoints: Sequence[str], fill: Fill, *, kv: Sequence[int], log: Sequence[int]) -> int:
    """In turn into all these partitions, and until every node has applied it; the last global index of it.

    Raises the errors of logboom.
    """
    blocks = {True: _blocks(fill, keyed=True) if kv else [], False: _blocks(fill, keyed=False) if log else []}
    targets = [(partition, True) for partition in kv] + [(partition, False) for partition in log]
    async with Client(list(endpoints)) as client:

        async def send(number: int) -> None:
            turn, place = divmod(number, len(targets))
            partition, keyed = targets[place]
            chosen = blocks[keyed]
            await client.submit_block(partition, chosen[turn % len(chosen)], wait="committed")

        size = BLOCK * VALUE_BYTES
        await repeated(send, total=fill.payload_bytes, block=size, under_way=UNDER_WAY, bytes_per_s=fill.bytes_per_s)
        await client.barrier(client.last_seen, scope="all", timeout=APPLIED_S)
        return client.last_seen


async def etcd(address: str, fill: Fill) -> None:
    """Transactions at the leader, which acknowledges what it has applied. Raises CallFailed, OSError."""
    rows = fill.rows(0, PREPARED)
    # A key may be put only once in a transaction, and every transaction has as many rows.
    blocks = [txn(_distinct(rows, start)) for start in range(0, len(rows) - 2 * TXN_OPS_MAX, TXN_OPS_MAX)]
    methods = [await Method.open(address, TXN) for _ in range(4)]
    try:

        async def send(number: int) -> None:
            await methods[number % len(methods)].call(blocks[number % len(blocks)])

        size = TXN_OPS_MAX * VALUE_BYTES
        await repeated(
            send, total=fill.payload_bytes, block=size, under_way=2 * UNDER_WAY, bytes_per_s=fill.bytes_per_s
        )
    finally:
        for method in methods:
            method.close()


def _distinct(rows: Sequence[tuple[bytes, bytes]], start: int) -> list[tuple[bytes, bytes]]:
    """The next rows from ``start`` on whose keys differ, as many as a transaction takes."""
    found: dict[bytes, bytes] = {}
    for key, value in rows[start : start + 2 * TXN_OPS_MAX]:
        if len(found) < TXN_OPS_MAX:
            found.setdefault(key, value)
    return list(found.items())


def _blocks(fill: Fill, *, keyed: bool) -> list[RecordBlock]:
    made = [fill.rows(salt, BLOCK) for salt in range(PREPARED // BLOCK)]
    if not keyed:
        return [RecordBlock.from_columns(payloads=[value for _, value in rows]) for rows in made]
    command = bytes((OP_PUT,))
    return [
        RecordBlock.from_columns(payloads=[command + value for _, value in rows], keys=[key for key, _ in rows])
        for rows in made
    ]
