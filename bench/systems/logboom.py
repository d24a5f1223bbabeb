"""logboom: ``LocalCluster`` with ``kv`` and ``log`` partitions, through the client that everybody uses."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.systems.api import Cluster, Probe, System
from bench.targets import PARTITIONS, SINGLES, Job, Operation, prepared, rows
from logboom import Client, Put, RecordBlock
from logboom.commands import OP_PUT
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

NODES: Final = 3
PATIENCE_S: Final = 30.0
RECOVERY_S: Final = 120.0
"""A node that was killed after all the loads has gigabytes to look through, on a busy disk."""


class LogboomCluster(LocalCluster):
    """The first ``PARTITIONS`` partitions are ``kv``, as many more are ``log``; defaults otherwise."""

    settings = "defaults; every write synced on a majority before `committed`, applied before `applied`"

    def __init__(self, _program: Path, directory: Path) -> None:
        log = {str(p): {"state_machine": "log"} for p in range(PARTITIONS, 2 * PARTITIONS)}
        super().__init__(
            nodes=NODES,
            partitions=2 * PARTITIONS,
            directory=directory,
            settings={"cluster.overrides": log, "node.log_level": "warning"},
        )

    def wait_serving(self, timeout: float = RECOVERY_S) -> None:
        """Until every running node has recovered and one of them admits."""
        super().wait_serving(timeout)

    def client_addresses(self) -> tuple[str, ...]:
        """All: the client finds the leader by itself."""
        return tuple(self.addresses.values())

    def version(self) -> str:
        """Of this checkout."""
        return version("logboom")


class Target:
    """Single commands, and blocks."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rng = random.Random(job.seed)
        self._keyed = job.machine == "kv"
        self._first = 0 if self._keyed else PARTITIONS
        self._clients: list[Client] = []
        self._puts = [Put(key, value) for key, value in rows(self._rng, SINGLES, job.value_bytes)]
        self._blocks: list[RecordBlock] = []

    async def open(self, connections: int) -> None:
        self._clients = [Client(list(self._job.endpoints)) for _ in range(connections)]
        for client in self._clients:
            await client.partitions()

    def single(self, slot: int) -> Operation:
        client, partition = self._clients[slot % len(self._clients)], self._partition(slot)
        send = client.sender(partition, wait=self._job.wait).send
        puts, choose = self._puts, self._rng.random

        def one() -> Awaitable[object]:
            return send(puts[int(choose() * len(puts))])

        return one

    def bulk(self, slot: int, records: int) -> Operation:
        if not self._blocks:
            self._blocks = [self._block(records) for _ in range(prepared(records * self._job.value_bytes))]
        submit, partition = self._clients[slot % len(self._clients)].submit_block, self._partition(slot)
        blocks, wait, turn = self._blocks, self._job.wait, slot

        def block() -> Awaitable[object]:
            nonlocal turn
            turn += 1
            return submit(partition, blocks[turn % len(blocks)], wait=wait)

        return block

    async def drain(self) -> None:
        for client in self._clients:
            if client.last_seen > 0:
                await client.barrier(client.last_seen)

    def _partition(self, slot: int) -> int:
        return self._first + slot % self._job.partitions

    def _block(self, records: int) -> RecordBlock:
        made = rows(self._rng, records, self._job.value_bytes)
        if not self._keyed:
            return RecordBlock.from_columns(payloads=[value for _, value in made])
        command = bytes((OP_PUT,))
        return RecordBlock.from_columns(payloads=[command + value for _, value in made], keys=[key for key, _ in made])

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def prober(cluster: Cluster, _leader: str) -> AsyncIterator[Probe]:
    """One client, which knows the leader by its first write and finds the next by itself."""
    async with Client(list(cluster.client_addresses())) as client:
        await client.submit(0, Put(b"before", b"x" * 256))

        async def probe(number: int) -> bool:
            try:
                await client.submit(number % PARTITIONS, Put(b"after", b"x" * 256), timeout=PATIENCE_S)
            except LogboomError:
                return False
            return True

        yield probe


SYSTEM: Final = System("logboom", lambda: Path(sys.executable), LogboomCluster, Target, prober)
