"""Exactly once where answers are lost: a stranger stands between clients and nodes, and cuts when it likes.

Each command has a key of its own: what was acknowledged is there once, what nobody knows of at most once.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

from logboom import Add, Cas, Client, Put, Status, SyncClient
from logboom.errors import LogboomError
from logboom.testing import LocalCluster, free_ports
from logboom.wire import PREFIX_BYTES, Kind

pytestmark = pytest.mark.process

ROUNDS = 60
LOST = 0.25
"""Of answers to submits."""
PARTITIONS = 3


class Cutting:
    """Stands at the addresses that clients know, before the nodes; loses answers, and the connection with each."""

    def __init__(self, ways: dict[str, str], seed: int) -> None:
        """``ways``: from where clients come to where nodes are."""
        self._ways = ways
        self._rng = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self.lost = 0
        self.cutting = False

    def __enter__(self) -> Self:
        self._thread.start()
        for address, way in self._ways.items():
            host, port = address.rsplit(":", 1)
            begun = asyncio.start_server(lambda r, w, way=way: self._serve(r, w, way), host, int(port))  # type: ignore[misc]
            self._servers.append(asyncio.run_coroutine_threadsafe(begun, self._loop).result(20))
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0)  # what was aborted is closed by then

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        host, port = way.rsplit(":", 1)
        try:
            inner, outer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        both = [asyncio.ensure_future(self._asked(reader, outer)), asyncio.ensure_future(self._answered(inner, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
            for end in (writer, outer):
                end.transport.abort()

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while raw := await reader.read(65536):
                writer.write(raw)

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(PREFIX_BYTES)
                rest = await reader.readexactly(int.from_bytes(head[:4], "little") + 4 - PREFIX_BYTES)
                if self.cutting and head[4] == Kind.SUBMITTED and self._rng.random() < LOST:
                    self.lost += 1
                    return
                writer.write(head + rest)


@contextmanager
def behind(cluster: LocalCluster, seed: int) -> Iterator[Cutting]:
    """``cluster``, not started yet, with its nodes elsewhere than where they are asked."""
    ways = dict(zip(cluster.addresses.values(), (f"127.0.0.1:{p}" for p in free_ports(3)), strict=True))
    for node, address in cluster.addresses.items():
        path = cluster.config(node)
        text = path.read_text()
        path.write_text(text.replace("[node]\n", f'[node]\nclient_address = "{ways[address]}"\n'))
    with Cutting(ways, seed) as cutting, cluster:
        yield cutting


class Books:
    """What became of each command."""

    def __init__(self) -> None:
        self.said: dict[tuple[int, bytes], str] = {}
        self._lock = threading.Lock()

    def write(self, partition: int, key: bytes, said: str) -> None:
        with self._lock:
            self.said[partition, key] = said

    @contextmanager
    def of(self, *commands: tuple[int, bytes]) -> Iterator[None]:
        """A request that has these: as it ends, so they are."""
        try:
            yield
        except LogboomError as error:
            for partition, key in commands:
                self.write(partition, key, error.outcome)
        else:
            for partition, key in commands:
                self.write(partition, key, "done")


async def work(client: Client, books: Books, name: str, rng: random.Random, over: asyncio.Event) -> None:
    """Singles in a crowd, blocks over several partitions, and numbers of its own that are sent again by hand."""
    own, sequence = os.urandom(16), 0
    for number in itertools.count():
        if number >= ROUNDS and over.is_set():
            break
        key = b"%s-%d" % (name.encode(), number)
        partition = rng.randrange(PARTITIONS)
        way = rng.randrange(3)
        if way == 0:
            each = [b"%s-%d" % (key, k) for k in range(rng.randrange(1, 6))]

            async def single(k: bytes, partition: int = partition) -> None:
                with books.of((partition, k)):
                    await client.submit(partition, Add(k, 1), timeout=rng.choice([0.05, 5, 20]))

            await asyncio.gather(*map(single, each))
        elif way == 1:
            several: dict[int, list[Add | Put]] = {p: [Add(key, 1), Put(b"last", key)] for p in range(PARTITIONS)}
            with books.of(*((p, key) for p in several)):
                await client.submit_many(several, timeout=rng.choice([0.05, 20]))
        else:
            with books.of((partition, key)):
                for again in (True, False):
                    try:
                        await client.submit(
                            partition, Add(key, 1), producer_id=own, sequence=sequence, timeout=0.02 if again else 20
                        )
                        break
                    except LogboomError as error:
                        if not again:
                            error.outcome = "unknown"  # whatever it says, of the first try it does not know
                            raise
            sequence += 1


def counting(client: SyncClient, found: list[tuple[int, list[Status]]], name: bytes) -> None:
    """One number, raised by compare-and-set, which is answered once for each step."""
    value: bytes | None = None
    for number in range(ROUNDS):
        receipt = client.submit(0, Cas(name, value, b"%d" % number), timeout=60)
        found.append((receipt.duplicate, list(receipt.results or ())))
        value = b"%d" % number


def test_each_takes_effect_once(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    rng, books = random.Random(seed), Books()
    cluster = LocalCluster(partitions=PARTITIONS, directory=tmp_path, settings={"snapshot.retain_bytes": 0})
    with behind(cluster, seed) as cutting:
        cutting.cutting = True
        steps: list[tuple[int, list[Status]]] = []
        own = SyncClient(cluster.endpoints)
        counts = threading.Thread(target=counting, args=(own, steps, b"steps"))
        counts.start()
        asyncio.run(trouble(cluster, books, rng))
        counts.join(120)
        assert not counts.is_alive()
        own.close()
        cutting.cutting = False
        assert cutting.lost > 20
        assert [results for _, results in steps] == [[Status.OK]] * ROUNDS, (
            "a step was answered as if it were another's"
        )
        check(cluster, books)


async def trouble(cluster: LocalCluster, books: Books, rng: random.Random) -> None:
    """Leaders die, others do, leadership is handed over, snapshots are taken: each twice, with work under way."""
    clients, over = [Client(cluster.endpoints, timeout=20) for _ in range(4)], asyncio.Event()
    works = [
        asyncio.ensure_future(work(c, books, f"c{k}", random.Random(rng.random()), over)) for k, c in enumerate(clients)
    ]
    operator = Client(cluster.endpoints, timeout=5)
    before = (await operator.status())["term"]
    steps = ["leader dies", "follower dies", "transfer", "snapshot"] * 2
    rng.shuffle(steps)
    for step in steps:
        said = len(books.said)
        async with asyncio.timeout(60):
            while len(books.said) < said + 30:  # noqa: ASYNC110 - the works count
                await asyncio.sleep(0.01)
        leader = await asyncio.to_thread(cluster.leader)
        if step.endswith("dies"):
            node = leader if step == "leader dies" else next(each for each in cluster.nodes if each != leader)
            await asyncio.to_thread(cluster.kill, node)
            await asyncio.to_thread(cluster.start_node, node)
        else:
            with suppress(LogboomError):  # who was to lead may be the one that has just been started
                await (
                    operator.transfer(rng.choice(cluster.nodes)) if step == "transfer" else operator.create_snapshot()
                )
    over.set()
    await asyncio.gather(*works)
    assert (await operator.status())["term"] >= before + 2
    for client in (*clients, operator):
        await client.close()


def check(cluster: LocalCluster, books: Books) -> None:
    with cluster.client(timeout=60) as client:
        receipts = [client.submit(p, Put(b"end", b"")) for p in range(PARTITIONS)]
        client.barrier(max(each.global_index for each in receipts), scope="all", timeout=60)
        for node in cluster.nodes:
            for (partition, key), said in books.said.items():
                found = client.get(partition, key, node=node, stale=True)
                times = found[0] if isinstance(found, tuple) else 0
                allowed = {"done": {1}, "applied": {1}, "unknown": {0, 1}, "not_applied": {0}}[said]
                assert times in allowed, f"{key!r} in {partition} at {node}: {said}, and {times} times"
        told = Counter(books.said.values())
        assert told["done"] > 100, told
