"""NATS JetStream: three servers, streams of three replicas in files, asynchronous publishing over the raw protocol.

A publish carries a reply subject under the client's inbox; the stream's leader acknowledges there once a
majority has taken the message. With the server's defaults nobody has synced it then.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast

from bench.systems import programs
from bench.systems.api import Cluster, Probe, System
from bench.systems.processes import Processes
from bench.targets import PARTITIONS, SINGLES, Job, Operation, rows

CONNECT: Final = b'CONNECT {"verbose":false,"pedantic":false,"lang":"python","version":"0","protocol":1}\r\n'
CALL_S: Final = 5.0
PATIENCE_S: Final = 30.0


class Refused(ConnectionError):
    """The server refused a publish or a request, or the connection ended under it."""


def head(to: bytes) -> bytes:
    """A PUB up to the reply subject."""
    return b"PUB %b " % to


def tail(payload: bytes) -> bytes:
    """A PUB after the reply subject."""
    return b" %d\r\n%b\r\n" % (len(payload), payload)


def stream(number: int) -> str:
    """Name of a stream; its only subject is the same in lower case."""
    return f"B{number}"


def subject(number: int) -> bytes:
    """Where to publish for a stream."""
    return stream(number).lower().encode()


class Connection(asyncio.Protocol):
    """One client with one wildcard subscription for everything it is answered."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._calls: dict[bytes, tuple[int, asyncio.Future[bytes]]] = {}
        # Nobody else's: two that listen at one inbox would count each other's acknowledgements.
        self._inbox = b"_I." + os.urandom(8).hex().encode()
        self._number = 0
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """Done once the subscription is there."""
        self._lost = False

    @classmethod
    async def open(cls, address: str) -> Connection:
        """Connect and subscribe. Raises OSError, TimeoutError."""
        host, _, port = address.rpartition(":")
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        await asyncio.wait_for(connection.ready, CALL_S)
        return connection

    def send(self, frames: Sequence[tuple[bytes, bytes]]) -> asyncio.Future[bytes]:
        """Publish (subject, payload) pairs, as many as there are; the last answer once all are acknowledged.

        Raises Refused if one is not.
        """
        return self.send_halves([(head(to), tail(payload)) for to, payload in frames])

    def send_halves(self, halves: Sequence[tuple[bytes, bytes]]) -> asyncio.Future[bytes]:
        """The same, with everything but the reply subject prepared: pairs of ``head`` and ``tail``."""
        done: asyncio.Future[bytes] = self._loop.create_future()
        if self._lost:
            done.set_exception(Refused("the connection is closed"))
            return done
        self._number += 1
        reply = b"%b.%d" % (self._inbox, self._number)
        self._calls[reply] = (len(halves), done)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += [part for before, after in halves for part in (before, reply, after)]
        return done

    async def request(self, to: str, body: dict[str, Any]) -> dict[str, Any]:
        """A call of the JetStream API. Raises Refused, TimeoutError."""
        raw = json.dumps(body).encode() if body else b""
        answer: dict[str, Any] = json.loads(await asyncio.wait_for(self.send([(to.encode(), raw)]), CALL_S))
        return answer

    def close(self) -> None:
        """End the connection; open calls fail."""
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        if self._transport is not None and not self._lost:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods and not its base class.
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.write(CONNECT + b"SUB %b.* 1\r\nPING\r\n" % self._inbox)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        buffer, at = self._buffer, 0
        while (line_end := buffer.find(b"\r\n", at)) >= 0:
            line = bytes(buffer[at:line_end])
            after = line_end + 2
            if line.startswith(b"MSG "):
                words = line.split(b" ")
                size = int(words[-1])
                if len(buffer) < after + size + 2:
                    break
                self._answer(words[1], bytes(buffer[after : after + size]))
                after += size + 2
            else:
                self._control(line)
            at = after
        del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        for _, done in self._calls.values():
            _fail(done, "the connection ended")
        _fail(self.ready, "the connection ended")
        self._calls.clear()

    def _control(self, line: bytes) -> None:
        if line == b"PING" and self._transport is not None:
            self._transport.write(b"PONG\r\n")
        elif line == b"PONG" and not self.ready.done():
            self.ready.set_result(None)
        elif line.startswith(b"-ERR"):
            for _, done in self._calls.values():
                _fail(done, f"NATS answered {line!r}")

    def _answer(self, reply: bytes, payload: bytes) -> None:
        missing, done = self._calls.get(reply, (0, None))
        if done is None:
            return
        # A publish is refused with the member "error".
        if b'"error"' in payload:
            del self._calls[reply]
            _fail(done, f"NATS answered {payload!r}")
        elif missing > 1:
            self._calls[reply] = (missing - 1, done)
        else:
            del self._calls[reply]
            if not done.done():
                done.set_result(payload)


def _fail(done: asyncio.Future[Any], story: str) -> None:
    if not done.done():
        done.set_exception(Refused(story))


class NatsCluster(Processes):
    """Clustered, with the server's default ``sync_interval``; the leader is that of the first stream."""

    settings: str = (
        "JetStream streams of 3 replicas in files; default sync_interval (2 minutes): acknowledged by a majority, "
        "unsynced; bulk: asynchronous publishes, 100 to a write"
    )

    def command(self, node: str) -> list[str]:
        routes = ", ".join(f"nats://{address}" for address in self.peer_addresses.values())
        config = self.place(node) / "nats.conf"
        cluster = f"cluster {{ name: bench, listen: {self.peer_addresses[node]}, routes: [{routes}] }}\n"
        config.write_text(
            f"server_name: {node}\nlisten: {self.addresses[node]}\n"
            f'jetstream {{ store_dir: "{self.place(node)}" }}\n' + (cluster if len(self.nodes) > 1 else "")
        )
        return [str(self.program), "--config", str(config)]

    def find_leader(self) -> str | None:
        return asyncio.run(self._ask_leader())

    async def _ask_leader(self) -> str | None:
        for node in filter(self.alive, self.nodes):
            try:
                connection = await Connection.open(self.addresses[node])
            except (OSError, TimeoutError):
                continue
            try:
                return await self._stream_leader(connection)
            except (Refused, TimeoutError):
                continue
            finally:
                connection.close()
        return None

    async def _stream_leader(self, connection: Connection) -> str | None:
        """Makes the streams if there are none: they can be made only once the servers have a leader of their own."""
        for number in range(PARTITIONS):
            try:
                said = await connection.request(f"$JS.API.STREAM.INFO.{stream(number)}", {})
            except Refused:
                config = {
                    "name": stream(number),
                    "subjects": [subject(number).decode()],
                    "storage": "file",
                    "retention": "limits",
                    "num_replicas": len(self.nodes),
                }
                said = await connection.request(f"$JS.API.STREAM.CREATE.{stream(number)}", config)
            # One server alone has none, and says nothing of it.
            alone: dict[str, Any] = {"leader": self.nodes[0]}
            cluster: dict[str, Any] = said.get("cluster", {}) if len(self.nodes) > 1 else alone
            if number == 0:
                first = cluster.get("leader")
            offline = [replica for replica in cluster.get("replicas", []) if not replica.get("current")]
            if not cluster.get("leader") or offline:
                return None
        return cast("str | None", first) if first in self.nodes and self.alive(first) else None

    def version(self) -> str:
        return programs.output(self.program, "--version").rpartition(" ")[2].removeprefix("v")


class Target:
    """Publishes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rng = random.Random(job.seed)
        self._connections: list[Connection] = []
        self._values = [tail(value) for _, value in rows(self._rng, SINGLES, job.value_bytes)]

    async def open(self, connections: int) -> None:
        self._connections = [await Connection.open(self._job.endpoints[0]) for _ in range(connections)]

    def single(self, slot: int) -> Operation:
        send, values, choose = self._send(slot), self._values, self._rng.random
        before = head(self._subject(slot))

        def one() -> Awaitable[object]:
            return send([(before, values[int(choose() * len(values))])])

        return one

    def bulk(self, slot: int, records: int) -> Operation:
        send, before, turn = self._send(slot), head(self._subject(slot)), slot
        # Of this slot alone, so a few will do.
        values = [tail(value) for _, value in rows(self._rng, 4 * records, self._job.value_bytes)]
        blocks = [[(before, value) for value in values[start::4]] for start in range(4)]

        def block() -> Awaitable[object]:
            nonlocal turn
            turn += 1
            return send(blocks[turn % len(blocks)])

        return block

    async def drain(self) -> None:
        """There is nothing to apply."""

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _send(self, slot: int) -> Callable[[list[tuple[bytes, bytes]]], Awaitable[bytes]]:
        return self._connections[slot % len(self._connections)].send_halves

    def _subject(self, slot: int) -> bytes:
        return subject(slot % self._job.partitions)


@asynccontextmanager
async def prober(cluster: Cluster, leader: str) -> AsyncIterator[Probe]:
    """Publishes to the stream whose leader dies, over connections to the survivors in turn."""
    connections = [await Connection.open(cluster.addresses[n]) for n in cluster.nodes if n != leader]
    for connection in connections:
        await asyncio.wait_for(connection.send([(subject(0), b"x" * 256)]), CALL_S)

    async def probe(number: int) -> bool:
        try:
            await asyncio.wait_for(connections[number % len(connections)].send([(subject(0), b"x" * 256)]), PATIENCE_S)
        except (Refused, TimeoutError):
            return False
        return True

    try:
        yield probe
    finally:
        for connection in connections:
            connection.close()


SYSTEM: Final = System(
    "nats",
    lambda: programs.find("nats", "nats-server"),
    NatsCluster,
    Target,
    prober,
    alone=partial(NatsCluster, alone=True),
)
