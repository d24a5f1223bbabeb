"""``python -m bench.cut``: how long does a partition stand still while a snapshot captures its state?

Three nodes; one ``kv`` partition is filled to ``--gb`` of state. Then snapshots are taken by command, one after the
other, while commands are applied at a steady rate, each timed. A node's own clock says how long its partition stood
still for each capture; what a writer sees of it stands beside the same writer's times with no snapshot under way.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import signal
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.report import RESULTS, SCRATCH, Check, quantiles_ms, say, verdict, write
from logboom import Client, Put, RecordBlock
from logboom.commands import OP_PUT
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

PARTITION: Final = 0
VALUE_BYTES: Final = 1_000
BLOCK: Final = 1_000
UNDER_WAY: Final = 8
SEED: Final = 1
RATE: Final = 200.0
"""Commands per second."""
QUIET_S: Final = 10.0
SETTLE_S: Final = 8.0
"""Longer than ``apply.unsaved_ms``: states are saved."""
PAUSE_S_MAX: Final = 0.05
PATIENCE_S: Final = 600.0
BUCKET: Final = re.compile(r'^logboom_apply_pause_seconds_bucket\{.*?le="([^"]+)"\} (\d+)', re.MULTILINE)
SETTINGS: Final = {"node.log_level": "warning", "snapshot.keep": 2}


@dataclass(frozen=True)
class Row:
    """What a writer saw."""

    what: str
    p50_ms: float
    p99_ms: float
    worst_ms: float
    count: int


class Writer:
    """One command every 5 ms, whether those before it are answered or not."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._took: list[float] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._ticker = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        began, sent = time.perf_counter(), 0
        while True:
            while sent < (time.perf_counter() - began) * RATE:
                sent += 1
                task = asyncio.ensure_future(self._one(sent))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(0.5 / RATE)

    async def _one(self, number: int) -> None:
        began = time.perf_counter()
        await self._client.submit(PARTITION, Put(b"beside-%d" % (number % 1000), b"v"), wait="applied")
        self._took.append(time.perf_counter() - began)

    def row(self, what: str) -> Row:
        """Since the last one."""
        took, self._took = self._took, []
        p50, p99 = quantiles_ms(took)
        found = Row(what, p50, p99, max(took) * 1000, len(took))
        say(f"{what}: p50 {p50:.2f}, p99 {p99:.2f}, worst {found.worst_ms:.2f} ms ({len(took):,})")
        return found

    async def close(self) -> None:
        """Raises what a command raised."""
        self._ticker.cancel()
        await asyncio.gather(*self._under_way)


async def fill(client: Client, nbytes: int) -> None:
    """Keys in any order, each once, until every node has applied them."""
    count = nbytes // VALUE_BYTES
    numbers = list(range(count))
    random.Random(SEED).shuffle(numbers)
    starts = iter(range(0, count, BLOCK))
    value = bytes((OP_PUT,)) + random.Random(SEED).randbytes(VALUE_BYTES)

    async def some() -> None:
        for start in starts:
            keys = [b"k%011d" % number for number in numbers[start : start + BLOCK]]
            block = RecordBlock.from_columns(payloads=[value] * len(keys), keys=keys)
            await client.submit_block(PARTITION, block, wait="applied")

    async with asyncio.TaskGroup() as group:
        for _ in range(UNDER_WAY):
            group.create_task(some())
    await client.barrier(client.last_seen, scope="all", timeout=PATIENCE_S)


def pauses(cluster: LocalCluster) -> dict[str, list[tuple[float, int]]]:
    """By node: upper bound in seconds, and how many captures took no longer."""
    found = {}
    for node in cluster.nodes:
        with urllib.request.urlopen(cluster.url(node, "/metrics"), timeout=10) as answer:
            found[node] = [(float(le), int(n)) for le, n in BUCKET.findall(answer.read().decode())]
    return found


def longest(before: list[tuple[float, int]], after: list[tuple[float, int]]) -> float:
    """The bucket of the slowest that came between, in seconds; 0: none came."""
    news = [(le, n - m) for (le, m), (_, n) in zip(before, after, strict=True)]
    return min(le for le, n in news if n == news[-1][1]) if news[-1][1] else 0.0


async def table(cluster: LocalCluster, nbytes: int, cuts: int) -> tuple[list[Row], dict[str, float], list[float]]:
    """Rows, the longest pause of each node, and how long each snapshot took."""
    async with Client(cluster.endpoints, timeout=PATIENCE_S) as client:
        say(f"cut: filling {nbytes / 1e9:,.2f} GB of state")
        await fill(client, nbytes)
        await asyncio.sleep(SETTLE_S)
        writer = Writer(client)
        await asyncio.sleep(1)
        writer.row("warm-up")
        await asyncio.sleep(QUIET_S)
        rows, took = [writer.row("no snapshot")], []
        before = await asyncio.to_thread(pauses, cluster)
        for number in range(cuts):
            began = time.perf_counter()
            await client.create_snapshot()
            took.append(time.perf_counter() - began)
            rows.append(writer.row(f"snapshot {number + 1}, {took[-1]:.1f} s"))
        await client.barrier(client.last_seen, scope="all", timeout=PATIENCE_S)
        after = await asyncio.to_thread(pauses, cluster)
        await writer.close()
    return rows, {node: longest(before[node], after[node]) for node in after}, took


def measured(directory: Path, nbytes: int, cuts: int) -> tuple[list[Row], dict[str, float], list[float]]:
    """A fresh cluster. Raises the errors of logboom, and OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="cut-", dir=directory) as place,
        LocalCluster(partitions=1, directory=place, settings=SETTINGS, http=True) as cluster,
    ):
        return uvloop.run(table(cluster, nbytes, cuts))


def _on_term(*_: object) -> None:
    raise SystemExit(143)  # so that every `finally` runs


def main() -> int:
    """Exit status 1: a floor was missed; 2: it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.cut", description="what a snapshot holds up")
    parser.add_argument("--gb", type=float, default=1.0, help="of state in one partition")
    parser.add_argument("--cuts", type=int, default=3, help="snapshots")
    parser.add_argument("--directory", type=Path, default=SCRATCH, help="on the disk to be used")
    parser.add_argument("--output", type=Path, default=RESULTS / "cut.json")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args()
    if asked.gb <= 0 or asked.cuts < 1:
        parser.error("--gb is above 0, --cuts at least 1")
    signal.signal(signal.SIGTERM, _on_term)
    try:
        rows, pause_s, took = measured(asked.directory, int(asked.gb * 1e9), asked.cuts)
    except (LogboomError, TimeoutError, OSError, ValueError) as error:
        say(f"cut: {error!r}")
        return 2
    checks = [
        Check("longest pause of any node in ms (upper bound of its bucket)", max(pause_s.values()) * 1000,
              at_most=PAUSE_S_MAX * 1000),
    ]  # fmt: skip
    settings: dict[str, Any] = {"state_bytes": int(asked.gb * 1e9), "commands_per_s": RATE, "servers": SETTINGS}
    write(asked.output, settings=settings, checks=checks, table=[asdict(row) for row in rows],
          pauses_s=pause_s, snapshots_s=took)  # fmt: skip
    return verdict(checks, floors=not asked.no_floors)


if __name__ == "__main__":
    sys.exit(main())
