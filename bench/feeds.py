"""``python -m bench.feeds``: what comes out of the log, from the page cache, and what it costs.

One node, so that nothing but reading goes on. *Server alone* is what it sends to a client that only counts bytes:
payload per second of the node's CPU time, which is what one core can do. *Client* is the Python client, batch by
batch; its records are looked at no further, but for *values*, where each becomes a ``bytes`` object, as it does with
the peers of ``bench.feeds_peers``, which are filled and read after it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.feed_rows import VALUE_BYTES, Row, best
from bench.feeds_peers import PEERS, measure_all
from bench.report import RESULTS, SCRATCH, Check, say, verdict, write
from logboom import Client, LogBatch, RecordBlock
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from logboom.types import MIB
from logboom.wire import PREFIX, PREFIX_BYTES, Kind, encode

BATCH_RECORDS: Final = 256
"""64 KiB of payload."""
PARTITIONS: Final = 8
CREDIT: Final = 1 << 40
SERVER_BYTES_PER_CPU_S: Final = 1e9
CLIENT_RECORDS_PER_S: Final = 1e6
UNDER_WAY: Final = 16
VALUES: Final = "tail, client, values"
"""What is compared with the peers."""


async def fill(client: Client, nbytes: int) -> int:
    """Blocks into all partitions in turn; how many."""
    keys = [b"k%07d" % k for k in range(BATCH_RECORDS)]
    block = RecordBlock.from_columns(payloads=[bytes(VALUE_BYTES)] * BATCH_RECORDS, keys=keys)
    numbers = iter(range(max(PARTITIONS, nbytes // (VALUE_BYTES * BATCH_RECORDS))))
    count = 0

    async def write() -> None:
        nonlocal count
        for number in numbers:
            await client.submit_block(number % PARTITIONS, block, wait="committed")
            count += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(UNDER_WAY):
            group.create_task(write())
    await client.barrier(client.last_seen)
    return count


class Drain(asyncio.Protocol):
    """Asks, and counts what comes until the stream has ended; looks at nothing but lengths and kinds."""

    def __init__(self, kind: Kind, header: dict[str, Any]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ask = encode(kind, header, request_id=2)
        self._head = bytearray()
        self._left = 0
        self._last = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        hello = encode(Kind.HELLO, {"version": 1, "client": "bench", "cluster": None, "token": None}, request_id=1)
        transport.writelines([*hello, *self._ask])  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
            else:
                step = min(PREFIX_BYTES - len(self._head), len(data) - at)
                self._head += data[at : at + step]
                at += step
                if len(self._head) < PREFIX_BYTES:
                    continue
                length, self._last, *_ = PREFIX.unpack(self._head)
                self._left = length + 4 - PREFIX_BYTES
                self._head.clear()
            if not self._left and not self._head and self._last in (Kind.END, Kind.ERROR) and not self.done.done():
                self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the node has closed the connection"))


async def drain(address: str, kind: Kind, header: dict[str, Any]) -> None:
    """Until its END."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(lambda: Drain(kind, header), host, int(port))
    try:
        await protocol.done
    finally:
        transport.close()


async def count(batches: AsyncIterator[LogBatch]) -> int:
    """Records in them."""
    return sum([batch.records.count async for batch in batches])


async def some(batches: AsyncIterator[LogBatch]) -> None:
    """Those that a filter leaves; what counts is what it has gone through."""
    if not await count(batches):
        raise RuntimeError("a filter left nothing")


async def values(batches: AsyncIterator[LogBatch]) -> int:
    """The same, with each value taken out."""
    return sum([len(batch.records.payloads()) async for batch in batches])


async def table(cluster: LocalCluster, nbytes: int, runs: int) -> list[Row]:
    """All of it; the best of ``runs`` each, the first of which warms up."""
    address, pid = cluster.addresses["n1"], cluster.pid("n1")
    async with Client(cluster.endpoints, timeout=300) as client:
        blocks = await fill(client, nbytes)
        of_one = sum(number % PARTITIONS == 0 for number in range(blocks)) * BATCH_RECORDS
        of_all = blocks * BATCH_RECORDS
        every = list(range(PARTITIONS))
        tail: dict[str, Any] = {"partition": 0, "credit": CREDIT, "whole": True}
        scan: dict[str, Any] = {"partitions": every, "credit": CREDIT}
        works: list[tuple[str, int, Callable[[], Awaitable[object]]]] = [
            ("tail, server alone", of_one, lambda: drain(address, Kind.TAIL, tail)),
            ("tail, server alone, batch by batch", of_one, lambda: drain(address, Kind.TAIL, {**tail, "whole": False})),
            ("scan_log, server alone", of_all, lambda: drain(address, Kind.LOG_SCAN, scan)),
            ("tail, client", of_one, lambda: count(client.tail(0))),
            (VALUES, of_one, lambda: values(client.tail(0))),
            ("tail, client, by key prefix", of_one, lambda: some(client.tail(0, key_prefix=b"k00000"))),
            ("scan_log, client", of_all, lambda: count(client.scan_log(every))),
        ]
        return [await best(what, records, work, pid=pid, runs=runs) for what, records, work in works]


def judge(rows: Sequence[Row]) -> list[Check]:
    """What the log is to give."""

    def of(what: str) -> Row:
        return next(row for row in rows if row.what == what)

    server, client, ours = of("tail, server alone"), of("tail, client"), of(VALUES)
    return [
        Check("tail: bytes per CPU second of the node", server.per_cpu_s, at_least=SERVER_BYTES_PER_CPU_S),
        Check("tail: records/s of the client", client.records_per_s, at_least=CLIENT_RECORDS_PER_S),
        *(
            Check(f"{VALUES}: records/s, logboom / {row.system}", ours.records_per_s / row.records_per_s, at_least=1)
            for row in rows
            if row.system != "logboom"
        ),
    ]


def measure(directory: Path, nbytes: int, runs: int) -> list[Row]:
    """On one fresh node. Raises the errors of ``logboom.errors``."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = {"cluster.state_machine": "log", "node.log_level": "warning"}
    with (
        tempfile.TemporaryDirectory(prefix="feeds-", dir=directory) as place,
        LocalCluster(nodes=1, partitions=PARTITIONS, directory=place, settings=settings) as cluster,
    ):
        return uvloop.run(table(cluster, nbytes, runs))


def _on_term(*_: object) -> None:
    raise SystemExit(143)  # so that every `finally` runs


def main() -> int:
    """Exit status 1: a floor was missed; 2: it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.feeds", description="what comes out of the log")
    parser.add_argument("--quick", action="store_true", help="little data: a look, not a measurement")
    parser.add_argument("--megabytes", type=int, default=2_048, help="of payload, over all partitions")
    parser.add_argument("--runs", type=int, default=3, help="of each, after one that warms up")
    parser.add_argument("--directory", type=Path, default=SCRATCH, help="on the disk to be used")
    parser.add_argument("--peers", default=",".join(PEERS), help="to be read beside it; empty: none")
    parser.add_argument("--output", type=Path, default=RESULTS / "feeds.json")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args()
    peers = [name.strip() for name in asked.peers.split(",") if name.strip()]
    if set(peers) - set(PEERS):
        parser.error(f"--peers takes {', '.join(PEERS)}")
    nbytes = (64 if asked.quick else asked.megabytes) * MIB
    signal.signal(signal.SIGTERM, _on_term)
    try:
        rows = measure(asked.directory, nbytes, asked.runs)
        records = next(row.records for row in rows if row.what == VALUES)
        theirs, without = measure_all(peers, asked.directory, records=records, runs=asked.runs)
    except (LogboomError, TimeoutError, OSError, RuntimeError, ValueError) as error:
        say(f"feeds: {error}")
        return 2
    rows += theirs
    checks = judge(rows)
    settings = {
        "nodes": 1,
        "partitions": PARTITIONS,
        "payload_bytes": nbytes,
        "value_bytes": VALUE_BYTES,
        "batch_records": BATCH_RECORDS,
        "servers": "one of each, defaults; everything that is read was just written",
    }
    table = [row.for_json() for row in rows]
    table += [{"system": each.system, "what": str(each)} for each in without]
    write(asked.output, settings=settings, checks=checks, table=table)
    status = verdict(checks, floors=not asked.no_floors)
    return status if all(each.missing for each in without) else 2


if __name__ == "__main__":
    sys.exit(main())
