"""Redis: a master and two replicas that sync their files always; raw RESP, prepared in advance.

Commands are pipelined: what comes while a pipeline is under way makes the next one, and each pipeline ends
with ``WAIT 1``: its commands are acknowledged once one replica has acknowledged them all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Final, cast

from bench.systems import programs
from bench.systems.api import System
from bench.systems.processes import Processes
from bench.targets import SINGLES, Job, Operation, prepared, rows

WAIT_MS: Final = 10_000
OK: Final = b"+OK\r\n"


class Refused(ConnectionError):
    """Redis answered with an error, too few replicas, or not at all."""


def command(*words: bytes) -> bytes:
    """A command as an array of bulk strings."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


WAIT: Final = command(b"WAIT", b"1", b"%d" % WAIT_MS)


class Pipe(asyncio.Protocol):
    """One connection with one pipeline under way."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._next: list[tuple[bytes, int, asyncio.Future[None]]] = []
        self._now: list[tuple[bytes, int, asyncio.Future[None]]] = []
        self._buffer = bytearray()
        self._scheduled = False

    @classmethod
    async def open(cls, address: str) -> Pipe:
        """Connect. Raises OSError."""
        host, _, port = address.rpartition(":")
        return (await asyncio.get_running_loop().create_connection(cls, host, int(port)))[1]

    def send(self, commands: bytes, count: int) -> asyncio.Future[None]:
        """So many SETs; done when a replica has them too. Raises Refused."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            done.set_exception(Refused("the connection is closed"))
            return done
        self._next.append((commands, count, done))
        if not self._now and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return done

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        self._scheduled = False
        if self._next and not self._now and self._transport is not None:
            self._now, self._next = self._next, []
            self._transport.write(b"".join([commands for commands, _, _ in self._now]) + WAIT)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods and not its base class.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if b"-" in self._buffer:
            return self._break(f"Redis answered {bytes(self._buffer[-100:])!r}")
        # +OK for each SET, then :replicas.
        begin = len(OK) * sum(count for _, count, _ in self._now)
        if len(self._buffer) <= begin or not self._buffer.endswith(b"\r\n"):
            return None
        if self._buffer[begin : begin + 1] != b":" or int(self._buffer[begin + 1 :]) < 1:
            return self._break(f"Redis answered {bytes(self._buffer[begin:])!r}")
        done, self._now = self._now, []
        self._buffer.clear()
        for _, _, future in done:
            if not future.done():
                future.set_result(None)
        return self._flush()

    def _break(self, story: str) -> None:
        self._fail(story)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the connection ended")

    def _fail(self, story: str) -> None:
        for _, _, future in (*self._now, *self._next):
            if not future.done():
                future.set_exception(Refused(story))
        self._now, self._next = [], []


class RedisCluster(Processes):
    """``n1`` is the master for good: no Sentinel chooses another."""

    settings: str = (
        "appendonly yes, appendfsync always on all three, no snapshots; each pipeline ends with WAIT 1, which promises "
        "that a replica has received it; bulk: pipelines of 1,000 SET"
    )

    def command(self, node: str) -> list[str]:
        flags = {"port": self.port(node), "bind": "127.0.0.1", "dir": str(self.place(node)), "save": ""}
        flags |= {"appendonly": "yes", "appendfsync": "always", "protected-mode": "no", "daemonize": "no"}
        found = [str(self.program), *(part for name, value in flags.items() for part in (f"--{name}", value))]
        if node != self.nodes[0]:
            # Two replicas that join at once are sent one copy: not waiting for more of them.
            found += ["--replicaof", "127.0.0.1", self.port(self.nodes[0])]
        else:
            found += ["--repl-diskless-sync-delay", "0"]
        return found

    def find_leader(self) -> str | None:
        """The master, once both replicas follow it."""
        said = asyncio.run(self._replication())
        return self.nodes[0] if said and said.count(b"state=online") == len(self.nodes) - 1 else None

    async def _replication(self) -> bytes:
        host, _, port = self.addresses[self.nodes[0]].rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return b""
        try:
            writer.write(command(b"INFO", b"replication"))
            size = int((await reader.readline())[1:])
            return await reader.readexactly(size)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            return b""  # still loading
        finally:
            writer.close()

    def version(self) -> str:
        return programs.output(self.program, "--version").split("v=")[1].split()[0]


class Target:
    """SETs."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rng = random.Random(job.seed)
        self._pipes: list[Pipe] = []
        self._sets = [command(b"SET", *row) for row in rows(self._rng, SINGLES, job.value_bytes)]
        self._blocks: list[bytes] = []

    async def open(self, connections: int) -> None:
        self._pipes = [await Pipe.open(self._job.endpoints[0]) for _ in range(connections)]

    def single(self, slot: int) -> Operation:
        send, sets, choose = self._pipes[slot % len(self._pipes)].send, self._sets, self._rng.random

        def one() -> Awaitable[object]:
            return send(sets[int(choose() * len(sets))], 1)

        return one

    def bulk(self, slot: int, records: int) -> Operation:
        if not self._blocks:
            size = self._job.value_bytes
            made = (rows(self._rng, records, size) for _ in range(prepared(records * size)))
            self._blocks = [b"".join(command(b"SET", *row) for row in block) for block in made]
        send, blocks, turn = self._pipes[slot % len(self._pipes)].send, self._blocks, slot

        def block() -> Awaitable[object]:
            nonlocal turn
            turn += 1
            return send(blocks[turn % len(blocks)], records)

        return block

    async def drain(self) -> None:
        """Redis acknowledges what it has applied."""

    async def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()


def find() -> Path:
    """The server program. Raises Missing."""
    return programs.find("redis", "redis-server")


SYSTEM: Final = System("redis", find, RedisCluster, Target, alone=partial(RedisCluster, alone=True))
