"""``python -m bench.scan``: everything in many log partitions, in the order of ``global_log_index``, in little memory.

One node with 1,000 partitions and 10 GB of payload, written by a process of its own in turn over all of them. The node
is started again, so that nothing is in its memory but what it needs to serve; then one client scans all partitions
(``Client.scan_log``) while ``reads.memory_bytes`` is 256 MB. Peaks are the kernel's own (VmHWM), set back before the
scan.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import shutil
import signal
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import uvloop

from bench.cpu import cpu_seconds
from bench.report import RESULTS, SCRATCH, Check, say, verdict, write
from logboom import Client, LogBatch, RecordBlock
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from logboom.types import MIB

GB: Final = 1_000_000_000
MEMORY_BYTES: Final = 256_000_000
VALUE_BYTES: Final = 256
BATCH_RECORDS: Final = 256
BATCH_BYTES: Final = VALUE_BYTES * BATCH_RECORDS
UNDER_WAY: Final = 32
QUICK_PARTITIONS: Final = 100
TIMEOUT_S: Final = 600.0
START_S: Final = 600.0
"""The node looks through all that is not sealed."""
TELL_S: Final = 5.0
SPARE: Final = 1.25
"""Of the payload, on the disk: metadata, segments that are not full, the journal."""


@dataclass(frozen=True)
class Written:
    """What there is to be read."""

    globals_: bytes
    """The global index of every batch, as ``array("Q")``, in any order."""
    seconds: float

    def sorted(self) -> list[int]:
        """In the order in which they are to come."""
        found = array("Q")
        found.frombytes(self.globals_)
        return sorted(found)


@dataclass
class Order:
    """What has come, and whether it came as it has to: every batch once, ascending, no partition with a gap."""

    expected: Sequence[int]
    batches: int = 0
    records: int = 0
    astray: int = 0
    """Batches with another global index, or another first record of their partition, than comes next."""
    payload_bytes: int = 0
    _last: dict[int, int] = field(default_factory=dict)

    def take(self, batch: LogBatch) -> None:
        """The next one."""
        wanted = self.expected[self.batches] if self.batches < len(self.expected) else None
        follows = batch.first_index == self._last.get(batch.partition_id, 0) + 1
        self.astray += batch.global_index != wanted or not follows
        self._last[batch.partition_id] = batch.last_index
        self.batches += 1
        self.records += batch.records.count
        self.payload_bytes += len(batch.records.data)


@dataclass(frozen=True)
class Found:
    """What a scan has shown."""

    seconds: float
    records: int
    records_expected: int
    payload_bytes: int
    batches: int
    batches_expected: int
    astray: int
    node_before_bytes: int
    node_peak_bytes: int
    client_before_bytes: int
    client_peak_bytes: int
    node_cpu_s: float

    @property
    def grown(self) -> tuple[int, int]:
        """Of node and client: peak during the scan, less what was resident before it."""
        return self.node_peak_bytes - self.node_before_bytes, self.client_peak_bytes - self.client_before_bytes


def resident(pid: int | str, what: str = "VmRSS") -> int:
    """Bytes: now, or (``VmHWM``) at most since ``forget_peak``."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what + ":"))


def forget_peak(pid: int | str) -> int:
    """The peak is what is resident now; returns that."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return resident(pid)


class Teller:
    """Says how far something is, every few seconds."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._began = self._told = time.monotonic()

    def at(self, done: int) -> None:
        """Bytes of payload so far."""
        now = time.monotonic()
        if now - self._told >= TELL_S:
            self._told = now
            rate = done / (now - self._began) / 1e6
            say(f"  {self._what}: {done / GB:,.2f} of {self._total / GB:,.2f} GB, {rate:,.0f} MB/s")


async def _fill(endpoints: str, partitions: int, batches: int) -> Written:
    block = RecordBlock.from_columns(payloads=[bytes(VALUE_BYTES)] * BATCH_RECORDS)
    numbers, teller = iter(range(batches)), Teller("written", batches * BATCH_BYTES)
    began, came = time.perf_counter(), array("Q")
    async with Client(endpoints, timeout=TIMEOUT_S) as client:

        async def put() -> None:
            for number in numbers:
                receipt = await client.submit_block(number % partitions, block, wait="durable")
                came.append(receipt.global_index)
                teller.at(len(came) * BATCH_BYTES)

        async with asyncio.TaskGroup() as group:
            for _ in range(UNDER_WAY):
                group.create_task(put())
    return Written(came.tobytes(), time.perf_counter() - began)


def fill(endpoints: str, partitions: int, batches: int) -> Written:
    """In a process of its own, so that its memory is not the reader's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return uvloop.run(_fill(endpoints, partitions, batches))


async def scan(endpoints: str, partitions: int, written: Written, pid: int) -> Found:
    """All of it, once."""
    expected = written.sorted()
    order, teller = Order(expected), Teller("read", len(expected) * BATCH_BYTES)
    async with Client(endpoints, timeout=TIMEOUT_S) as client:
        await client.status()
        cpu, node_before, client_before = cpu_seconds([pid]), forget_peak(pid), forget_peak("self")
        began = time.perf_counter()
        async for batch in client.scan_log(list(range(partitions))):
            order.take(batch)
            teller.at(order.payload_bytes)
        seconds = time.perf_counter() - began
        return Found(
            seconds=seconds,
            records=order.records,
            records_expected=len(expected) * BATCH_RECORDS,
            payload_bytes=order.payload_bytes,
            batches=order.batches,
            batches_expected=len(expected),
            astray=order.astray,
            node_before_bytes=node_before,
            node_peak_bytes=resident(pid, "VmHWM"),
            client_before_bytes=client_before,
            client_peak_bytes=resident("self", "VmHWM"),
            node_cpu_s=cpu_seconds([pid]) - cpu,
        )


def measure(directory: Path, *, nbytes: int, partitions: int) -> tuple[Found, Written]:
    """On one fresh node. Raises the errors of ``logboom.errors``, OSError if the disk is too small."""
    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if free < nbytes * SPARE:
        raise OSError(f"{directory}: {free / GB:,.1f} GB are free, {nbytes * SPARE / GB:,.1f} are needed")
    batches = max(partitions, -(-nbytes // BATCH_BYTES))
    settings = {
        "cluster.state_machine": "log",
        "node.log_level": "warning",
        "reads.memory_bytes": MEMORY_BYTES,
    }
    with (
        tempfile.TemporaryDirectory(prefix="scan-", dir=directory) as place,
        LocalCluster(nodes=1, partitions=partitions, directory=place, settings=settings) as cluster,
    ):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            written = pool.submit(fill, cluster.endpoints, partitions, batches).result()
        say(f"written: {batches * BATCH_BYTES / GB:,.2f} GB in {written.seconds:,.0f} s; starting the node again")
        cluster.kill("n1", signal.SIGTERM)
        cluster.wait_ended("n1", START_S)
        cluster.start_node("n1")
        cluster.wait_serving(START_S)
        return uvloop.run(scan(cluster.endpoints, partitions, written, cluster.pid("n1"))), written


def judge(found: Found) -> list[Check]:
    """Memory, and that all of it came in order."""
    node, client = found.grown
    return [
        Check("MB that the node grew by while it was read", node / 1e6, at_most=MEMORY_BYTES / 1e6),
        Check("MB that the client grew by", client / 1e6, at_most=MEMORY_BYTES / 1e6),
        Check("batches out of order, or with a gap before them", found.astray, at_most=0),
        Check("batches too many or too few", abs(found.batches - found.batches_expected), at_most=0),
        Check("records too many or too few", abs(found.records - found.records_expected), at_most=0),
    ]


def _on_term(*_: object) -> None:
    raise SystemExit(143)  # so that every `finally` runs


def main() -> int:
    """Exit status 1: a bound was missed; 2: it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.scan", description="a scan of many logs in little memory")
    parser.add_argument("--quick", action="store_true", help="little data: a look, not a measurement")
    parser.add_argument("--gb", type=float, default=10.0, help="of payload, over all partitions")
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--directory", type=Path, default=SCRATCH, help="on the disk to be used")
    parser.add_argument("--output", type=Path, default=RESULTS / "scan.json")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args()
    if asked.gb <= 0 or asked.partitions < 1:
        parser.error("--gb and --partitions are above 0")
    nbytes, partitions = int(asked.gb * GB), asked.partitions
    if asked.quick:
        nbytes, partitions = 64 * MIB, min(partitions, QUICK_PARTITIONS)
    signal.signal(signal.SIGTERM, _on_term)
    try:
        found, written = measure(asked.directory, nbytes=nbytes, partitions=partitions)
    except (LogboomError, TimeoutError, OSError, RuntimeError) as error:
        say(f"scan: {error}")
        return 2
    rates = {"records_per_s": found.records / found.seconds, "mb_per_s": found.payload_bytes / found.seconds / 1e6}
    node, client = found.grown
    print(f"{found.records:,} records, {found.payload_bytes / GB:,.2f} GB of {partitions:,} partitions in "
          f"{found.seconds:,.1f} s: {rates['records_per_s']:,.0f} records/s, {rates['mb_per_s']:,.0f} MB/s, "
          f"{found.payload_bytes / 1e6 / max(found.node_cpu_s, 0.01):,.0f} MB per CPU second of the node")  # fmt: skip
    print(f"node: {found.node_before_bytes / 1e6:,.0f} MB before, {node / 1e6:,.0f} more at the peak; "
          f"client: {found.client_before_bytes / 1e6:,.0f} MB before, {client / 1e6:,.0f} more")  # fmt: skip
    checks = judge(found)
    settings = {
        "nodes": 1,
        "partitions": partitions,
        "payload_bytes": nbytes,
        "value_bytes": VALUE_BYTES,
        "batch_records": BATCH_RECORDS,
        "reads.memory_bytes": MEMORY_BYTES,
        "servers": "one, otherwise defaults; started again between writing and reading, page cache as it is",
    }
    write(asked.output, settings=settings, checks=checks, scan=asdict(found) | rates, written_s=written.seconds)
    return verdict(checks, floors=not asked.no_floors)


if __name__ == "__main__":
    sys.exit(main())
