"""etcd: three processes, and the few messages of its API that the benchmark needs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Final

from bench.systems import programs
from bench.systems.api import Cluster, Probe, System
from bench.systems.http2 import CallFailed, Method
from bench.systems.processes import Processes
from bench.targets import SINGLES, Job, Operation, prepared, rows

PUT: Final = "/etcdserverpb.KV/Put"
RANGE: Final = "/etcdserverpb.KV/Range"
TXN: Final = "/etcdserverpb.KV/Txn"
STATUS: Final = "/etcdserverpb.Maintenance/Status"
TXN_OPS_MAX: Final = 128
"""etcd's default of ``--max-txn-ops``."""


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, raw: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(raw)) + raw


def put(key: bytes, value: bytes) -> bytes:
    """A PutRequest."""
    return _field(1, key) + _field(2, value)


def get(key: bytes) -> bytes:
    """A RangeRequest of one key; linearizable, as it is by default."""
    return _field(1, key)


def txn(rows: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A TxnRequest that puts every row."""
    return b"".join(_field(2, _field(2, put(key, value))) for key, value in rows)


def fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields: varints and length-delimited ones."""
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = raw[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(raw):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 2:
            size = varint()
            yield tag >> 3, raw[at : at + size]
            at += size
        else:
            raise ValueError(f"a field of wire type {tag & 7}")


def leads(status: bytes) -> bool:
    """A StatusResponse says that its sender leads."""
    top = dict(fields(status))
    header, leader = top.get(1), top.get(4, 0)
    return bool(leader) and isinstance(header, bytes) and dict(fields(header)).get(2) == leader


class EtcdCluster(Processes):
    """etcd's own defaults throughout."""

    settings: str = f"defaults; every write synced on a majority; bulk: transactions of {TXN_OPS_MAX} puts"

    def command(self, node: str) -> list[str]:
        client, peers = f"http://{self.addresses[node]}", {n: f"http://{a}" for n, a in self.peer_addresses.items()}
        return [
            *(str(self.program), "--name", node, "--data-dir", str(self.place(node) / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peers[node], "--initial-advertise-peer-urls", peers[node]),
            *("--initial-cluster", ",".join(f"{n}={url}" for n, url in peers.items())),
            *("--initial-cluster-state", "new", "--logger", "zap", "--log-level", "error"),
        ]

    def find_leader(self) -> str | None:
        return asyncio.run(self._ask_leader())

    async def _ask_leader(self) -> str | None:
        for node in filter(self.alive, self.nodes):
            try:
                method = await Method.open(self.addresses[node], STATUS)
            except OSError:
                continue  # still starting
            try:
                if leads(await asyncio.wait_for(method.call(b""), 1.0)):
                    return node
            except (CallFailed, TimeoutError):
                continue
            finally:
                method.close()
        return None

    def version(self) -> str:
        return programs.output(self.program, "--version").removeprefix("etcd Version: ")


class Target:
    """Puts, and transactions of puts, over gRPC."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rng = random.Random(job.seed)
        self._single: list[Method] = []
        self._bulk: list[Method] = []
        self._puts = [put(key, value) for key, value in rows(self._rng, SINGLES, job.value_bytes)]
        self._blocks: list[bytes] = []

    async def open(self, connections: int) -> None:
        address = self._job.endpoints[0]
        self._single = [await Method.open(address, PUT) for _ in range(connections)]
        self._bulk = [await Method.open(address, TXN) for _ in range(connections)]

    def single(self, slot: int) -> Operation:
        call, puts, choose = self._single[slot % len(self._single)].call, self._puts, self._rng.random

        def one() -> Awaitable[object]:
            return call(puts[int(choose() * len(puts))])

        return one

    def bulk(self, slot: int, records: int) -> Operation:
        if not self._blocks:
            size = self._job.value_bytes
            # A key may be put only once in a transaction.
            made = (dict(rows(self._rng, records, size)).items() for _ in range(prepared(records * size)))
            self._blocks = list(map(txn, made))
        call, blocks, turn = self._bulk[slot % len(self._bulk)].call, self._blocks, slot

        def block() -> Awaitable[object]:
            nonlocal turn
            turn += 1
            return call(blocks[turn % len(blocks)])

        return block

    async def drain(self) -> None:
        """etcd acknowledges what it has applied."""

    async def close(self) -> None:
        for method in (*self._single, *self._bulk):
            method.close()


@asynccontextmanager
async def prober(cluster: Cluster, leader: str) -> AsyncIterator[Probe]:
    """The survivors are asked in turn, over connections that are open already."""
    methods = [await Method.open(cluster.addresses[n], PUT) for n in cluster.nodes if n != leader]
    for method in methods:
        await method.call(put(b"before", b"x" * 256))

    async def probe(number: int) -> bool:
        try:
            await methods[number % len(methods)].call(put(b"after", b"x" * 256))
        except CallFailed:
            return False
        return True

    try:
        yield probe
    finally:
        for method in methods:
            method.close()


SYSTEM: Final = System("etcd", lambda: programs.find("etcd", "etcd"), EtcdCluster, Target, prober)
