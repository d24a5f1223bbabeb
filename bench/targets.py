"""What a load does to either system: one command, one block, over a number of connections."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from bench import etcd
from bench.http2 import Method
from logboom import Client, Put, RecordBlock
from logboom.commands import OP_PUT

VALUE_BYTES: Final = 256
KEYS: Final = 1_000_000
PARTITIONS: Final = 8
PREPARED: Final = 64
"""Blocks are made before the clock runs and used in turn: both systems are measured, not the making."""

Operation = Callable[[], Awaitable[int]]
"""Does one thing, acknowledged; returns how many commands that was."""


def rows(rng: random.Random, count: int) -> list[tuple[bytes, bytes]]:
    """Keys out of a million, values of 256 bytes."""
    return [(b"k%015d" % rng.randrange(KEYS), rng.randbytes(VALUE_BYTES)) for _ in range(count)]


class Target(Protocol):
    """One system, as a load sees it."""

    async def open(self, connections: int) -> None: ...

    def single(self, slot: int) -> Operation: ...

    def bulk(self, slot: int, records: int) -> Operation: ...

    async def drain(self) -> None:
        """Until what was acknowledged has been applied."""

    async def close(self) -> None: ...


class Etcd:
    """Puts, and transactions of puts, over gRPC."""

    def __init__(self, endpoints: list[str], seed: int) -> None:
        self._address = endpoints[0]
        self._rng = random.Random(seed)
        self._single: list[Method] = []
        self._bulk: list[Method] = []
        self._puts = [etcd.put(key, value) for key, value in rows(self._rng, 4096)]
        self._blocks: list[bytes] = []

    async def open(self, connections: int) -> None:
        self._single = [await Method.open(self._address, etcd.PUT) for _ in range(connections)]
        self._bulk = [await Method.open(self._address, etcd.TXN) for _ in range(connections)]

    def single(self, slot: int) -> Operation:
        call, puts, choose = self._single[slot % len(self._single)].call, self._puts, self._rng.random

        async def put() -> int:
            await call(puts[int(choose() * len(puts))])
            return 1

        return put

    def bulk(self, slot: int, records: int) -> Operation:
        if not self._blocks:
            # A key may be put only once in a transaction.
            self._blocks = [etcd.txn(dict(rows(self._rng, records)).items()) for _ in range(PREPARED)]
        call, turn = self._bulk[slot % len(self._bulk)].call, slot

        async def txn() -> int:
            nonlocal turn
            turn += 1
            await call(self._blocks[turn % PREPARED])
            return records

        return txn

    async def drain(self) -> None:
        """etcd acknowledges what it has applied."""

    async def close(self) -> None:
        for method in (*self._single, *self._bulk):
            method.close()


class Logboom:
    """Single commands, and blocks, through the client everybody uses."""

    def __init__(self, endpoints: list[str], seed: int, *, machine: str, wait: str, partitions: int) -> None:
        self._endpoints = endpoints
        self._rng = random.Random(seed)
        self._first = 0 if machine == "kv" else PARTITIONS
        self._keyed = machine == "kv"
        self._wait = wait
        self._partitions = partitions
        self._clients: list[Client] = []
        self._puts = [Put(key, value) for key, value in rows(self._rng, 4096)]
        self._blocks: list[RecordBlock] = []

    async def open(self, connections: int) -> None:
        self._clients = [Client(self._endpoints) for _ in range(connections)]
        for client in self._clients:
            await client.partitions()

    def single(self, slot: int) -> Operation:
        submit, partition = self._clients[slot % len(self._clients)].submit, self._partition(slot)
        puts, choose, wait = self._puts, self._rng.random, self._wait

        async def put() -> int:
            await submit(partition, puts[int(choose() * len(puts))], wait=wait)
            return 1

        return put

    def bulk(self, slot: int, records: int) -> Operation:
        if not self._blocks:
            self._blocks = [self._block(records) for _ in range(PREPARED)]
        submit, partition = self._clients[slot % len(self._clients)].submit_block, self._partition(slot)
        blocks, wait, turn = self._blocks, self._wait, slot

        async def block() -> int:
            nonlocal turn
            turn += 1
            await submit(partition, blocks[turn % PREPARED], wait=wait)
            return records

        return block

    async def drain(self) -> None:
        for client in self._clients:
            if client.last_seen > 0:
                await client.barrier(client.last_seen)

    def _partition(self, slot: int) -> int:
        return self._first + slot % self._partitions

    def _block(self, records: int) -> RecordBlock:
        made = rows(self._rng, records)
        if not self._keyed:
            return RecordBlock.from_columns(payloads=[value for _, value in made])
        command = bytes((OP_PUT,))
        return RecordBlock.from_columns(payloads=[command + value for _, value in made], keys=[key for key, _ in made])

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


def make(system: str, endpoints: list[str], seed: int, *, machine: str, wait: str, partitions: int) -> Target:
    """``etcd`` or ``logboom``; for etcd the first endpoint is the leader's."""
    if system == "etcd":
        return Etcd(endpoints, seed)
    return Logboom(endpoints, seed, machine=machine, wait=wait, partitions=partitions)
