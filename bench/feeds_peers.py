"""What comes out of NATS, Redis and PostgreSQL: records that were just written, to one Python client.

One server each, as ``bench.feeds`` has one node. Each is read in its best form: JetStream by a pull consumer that
acknowledges nothing, with the next batch asked for before the last has come; XRANGE by 1,000, pipelined, over ids that
are known; COPY of a table in binary. What comes is parsed by regular expressions over whole chunks, which is C and
not a loop in Python, and every value becomes a ``bytes`` object.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from bench import systems
from bench.feed_rows import VALUE_BYTES, Row, best
from bench.report import say
from bench.systems import Missing, nats, postgres, redis

PAGE: Final = 1_000
"""Records asked for at a time of Redis,"""
BATCH: Final = 10_000
"""and of NATS."""
AHEAD: Final = 4
"""Pages that are asked for before the first has come."""
FILL_ROWS: Final = 10_000
PATIENCE_S: Final = 300.0
VALUE: Final = bytes(VALUE_BYTES)


class Rows:
    """Finds records back to back: what stands before and behind a value is a regular expression."""

    def __init__(self, before: bytes, after: bytes = b"") -> None:
        row = b"%b(.{%d})%b" % (before, VALUE_BYTES, after)
        self._one = re.compile(row, re.DOTALL)
        # Not possessive: Python 3.11 then ends within a record of which only the beginning is there (gh-106052).
        self._all = re.compile(b"(?:%b)*" % row, re.DOTALL)

    def take(self, raw: bytes, start: int) -> tuple[list[bytes], int]:
        """Values of all whole records from ``start`` on, and where they end."""
        found = self._all.match(raw, start)
        end = found.end() if found else start
        return self._one.findall(raw, start, end), end


class Paged(asyncio.Protocol):
    """Asks page by page, a few ahead, and counts the values that come."""

    def __init__(self, rows: Rows, records: int, page: int, ask: Callable[[int, int], bytes]) -> None:
        """``ask``: the request for the records from the first number to before the second."""
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._rows, self._records, self._page, self._ask = rows, records, page, ask
        self._asked = self._count = 0
        self._left = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods and not its base class.
        self._transport = cast("asyncio.WriteTransport", transport)
        self.begin(self._transport)
        self._ask_more(self._transport)

    def begin(self, transport: asyncio.WriteTransport) -> None:
        """What is said before the first request."""

    def other(self, raw: bytes, at: int) -> int:
        """What is no record: where it ends; ``at`` if more has to come first. Raises ConnectionError."""
        if raw[at : at + 1] == b"-":
            raise ConnectionError(f"answered {raw[at : at + 200]!r}")
        return at

    def data_received(self, data: bytes) -> None:
        raw, at = (self._left + data if self._left else data), 0
        try:
            while True:
                values, at = self._rows.take(raw, at)
                self._count += len(values)
                following = self.other(raw, at) if at < len(raw) else at
                if following == at:
                    break
                at = following
        except ConnectionError as error:
            self._end(error)
            return
        self._left = raw[at:]
        if self._count >= self._records:
            self._end(None)
        elif self._transport is not None:
            self._ask_more(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError("the server has closed the connection"))

    def _ask_more(self, transport: asyncio.WriteTransport) -> None:
        while self._asked < self._records and self._asked - self._count < AHEAD * self._page:
            end = min(self._records, self._asked + self._page)
            transport.write(self._ask(self._asked, end))
            self._asked = end

    def _end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(self._count)


async def paged(address: str, make: Callable[[], Paged]) -> int:
    """Records that came. Raises OSError, TimeoutError."""
    host, _, port = address.rpartition(":")
    transport, protocol = await asyncio.get_running_loop().create_connection(make, host, int(port))
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await protocol.done
    finally:
        transport.close()


@dataclass(frozen=True)
class Without:
    """A peer without figures: it cannot be had here (``missing``), or it failed."""

    system: str
    why: str
    missing: bool

    def __str__(self) -> str:
        return f"{self.system}: {'missing' if self.missing else 'failed'}: {self.why}"


class Peer(ABC):
    """One of them."""

    name: str
    form: str
    """How it is read, for people."""

    def __init__(self, address: str) -> None:
        self.address = address

    @abstractmethod
    async def fill(self, records: int) -> None:
        """So many, and no more than these."""

    @abstractmethod
    async def read(self, records: int) -> int:
        """All of them; how many there were."""


class Nats(Peer):
    """One file stream of one replica."""

    name = "nats"
    form = f"JetStream pull consumer, {BATCH:,} a batch, {AHEAD} ahead, no acknowledgements"
    _under_way: Final = 16

    async def fill(self, records: int) -> None:
        connection = await nats.Connection.open(self.address)
        to, value = nats.subject(0), nats.tail(VALUE)
        try:
            gate = asyncio.Semaphore(self._under_way)

            async def publish(count: int) -> None:
                async with gate:
                    await connection.send_halves([(nats.head(to), value)] * count)

            async with asyncio.TaskGroup() as group:
                for done in range(0, records, PAGE):
                    group.create_task(publish(min(PAGE, records - done)))
        finally:
            connection.close()

    async def read(self, records: int) -> int:
        stream = nats.stream(0)
        config = {"deliver_policy": "all", "ack_policy": "none", "mem_storage": True, "inactive_threshold": int(60e9)}
        connection = await nats.Connection.open(self.address)
        try:
            body = {"stream_name": stream, "config": config}
            made = await connection.request(f"$JS.API.CONSUMER.CREATE.{stream}", body)
        finally:
            connection.close()
        inbox = b"_R." + os.urandom(8).hex().encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{made['name']}".encode()

        def ask(first: int, end: int) -> bytes:
            wanted = json.dumps({"batch": end - first}).encode()
            return b"PUB %b %b %d\r\n%b\r\n" % (subject, inbox, len(wanted), wanted)

        return await paged(self.address, lambda: NatsPaged(inbox, records, ask))


NATS_ROWS: Final = Rows(rb"MSG [^\r\n]* %d\r\n" % VALUE_BYTES, rb"\r\n")


class NatsPaged(Paged):
    """With the lines that NATS says in between."""

    def __init__(self, inbox: bytes, records: int, ask: Callable[[int, int], bytes]) -> None:
        super().__init__(NATS_ROWS, records, BATCH, ask)
        self._inbox = inbox

    def begin(self, transport: asyncio.WriteTransport) -> None:
        transport.write(nats.CONNECT + b"SUB %b 1\r\n" % self._inbox)

    def other(self, raw: bytes, at: int) -> int:
        end = raw.find(b"\r\n", at)
        if end < 0:
            return at
        line = raw[at:end]
        if line.startswith(b"MSG ") and line.endswith(b" %d" % VALUE_BYTES):
            return at  # the rest of it is on its way
        if line == b"PING" and self._transport is not None:
            self._transport.write(b"PONG\r\n")
        elif not line.startswith((b"INFO ", b"+OK")):
            raise ConnectionError(f"NATS answered {raw[at : at + 200]!r}")
        return end + 2


class Redis(Peer):
    """One stream with an append-only file."""

    name = "redis"
    form = f"XRANGE COUNT {PAGE:,}, {AHEAD} under way"
    _rows: Final = Rows(
        # The first of a page has the page's head before it.
        rb"(?:\*\d+\r\n(?=\*))?\*2\r\n\$\d+\r\n[\d-]+\r\n\*2\r\n\$1\r\nv\r\n\$%d\r\n" % VALUE_BYTES,
        rb"\r\n",
    )

    async def fill(self, records: int) -> None:
        reader, writer = await self._open()
        try:
            writer.write(redis.command(b"CLIENT", b"REPLY", b"OFF"))
            for start in range(1, records + 1, FILL_ROWS):
                numbers = range(start, min(records + 1, start + FILL_ROWS))
                writer.write(b"".join([redis.command(b"XADD", b"s", b"1-%d" % n, b"v", VALUE) for n in numbers]))
                await writer.drain()
            writer.write(redis.command(b"CLIENT", b"REPLY", b"ON") + redis.command(b"XLEN", b"s"))
            async with asyncio.timeout(PATIENCE_S):
                said = [await reader.readline(), await reader.readline()]
            if said != [b"+OK\r\n", b":%d\r\n" % records]:
                raise RuntimeError(f"redis: {records} records were added, and it says {said}")
        finally:
            writer.close()

    async def read(self, records: int) -> int:
        def ask(first: int, end: int) -> bytes:
            return redis.command(b"XRANGE", b"s", b"1-%d" % (first + 1), b"1-%d" % end, b"COUNT", b"%d" % PAGE)

        return await paged(self.address, lambda: Paged(self._rows, records, PAGE, ask))

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.address.rpartition(":")
        return await asyncio.open_connection(host, int(port))


class Postgres(Peer):
    """One table without an index."""

    name = "postgres"
    form = "COPY of a table in binary"
    _rows: Final = Rows(rb"\x00\x01" + re.escape(VALUE_BYTES.to_bytes(4, "big")))

    async def fill(self, records: int) -> None:
        connection = await postgres.connect(self.address)

        async def source(count: int) -> AsyncIterator[bytes]:
            yield postgres.copy_data([VALUE] * count)

        try:
            for done in range(0, records, FILL_ROWS):
                rows = source(min(FILL_ROWS, records - done))
                await connection.copy_to_table("bulk", source=rows, format="binary")
        finally:
            await connection.close()

    async def read(self, records: int) -> int:
        connection: Any = await postgres.connect(self.address)
        count, left = 0, b""

        async def sink(data: bytes) -> None:
            nonlocal count, left
            raw = left + data if left else data
            start = len(postgres.COPY_HEAD) if not count and raw.startswith(postgres.COPY_HEAD) else 0
            values, end = self._rows.take(raw, start)
            count, left = count + len(values), raw[end:]

        try:
            await connection.copy_from_table("bulk", output=sink, format="binary")
        finally:
            await connection.close()
        if left != postgres.COPY_END:
            raise RuntimeError(f"postgres: {records} rows were expected, and behind {count} comes {left[:200]!r}")
        return count


PEERS: Final[Mapping[str, type[Peer]]] = {peer.name: peer for peer in (Nats, Redis, Postgres)}


def measure(name: str, directory: Path, *, records: int, runs: int) -> Row:
    """One peer, freshly started and filled. Raises Missing, OSError, RuntimeError."""
    say(f"{name}: starting one server")
    with systems.started(name, directory, alone=True) as cluster:
        peer = PEERS[name](cluster.addresses["n1"])
        pid = cluster.pid("n1")

        async def both() -> Row:
            await peer.fill(records)
            return await best(peer.form, records, lambda: peer.read(records), pid=pid, runs=runs, system=name)

        return uvloop.run(both())


def measure_all(names: Sequence[str], directory: Path, *, records: int, runs: int) -> tuple[list[Row], list[Without]]:
    """Those that could be measured, and why the others could not."""
    rows, without = list[Row](), list[Without]()
    for name in names:
        try:
            rows.append(measure(name, directory, records=records, runs=runs))
        except Missing as error:
            without.append(Without(name, str(error), missing=True))
        except (OSError, RuntimeError) as error:  # TimeoutError is an OSError
            without.append(Without(name, str(error) or type(error).__name__, missing=False))
    for each in without:
        say(str(each))
    return rows, without
