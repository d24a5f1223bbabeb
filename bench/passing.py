"""``python -m bench.passing``: do small requests pass a large one that waits for room?

One partition's state machine is slow, and its budget is kept full by small requests that wait for it. Large ones,
each of three quarters of that budget, wait for it too, and a quiet client asks for one record now and then. In turn, on
fresh clusters: large ones that get their budget in chunks (``admission.queue_chunk_bytes``), and such that are waited
for as a whole. What does the quiet client notice of them, and do as many large ones get in?
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.report import RESULTS, ROOT, SCRATCH, Check, quantiles_ms, say, verdict, write
from bench.slow_machine import BYTES_PER_S, NAME, site
from logboom import Client, RecordBlock
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from logboom.types import KIB, MIB

RECORD_BYTES: Final = 1_000
BUDGET_BYTES: Final = 2 * MIB
SMALL, LARGE, QUIET = "small", "large", "quiet"
RECORDS: Final = {SMALL: 4, LARGE: 1_500, QUIET: 1}
UNDER_WAY: Final = {SMALL: 600, LARGE: 2, QUIET: 1}
"""Of small ones more than there is room for."""
CONNECTIONS: Final = {SMALL: 4, LARGE: 2, QUIET: 1}
"""Each is a principal."""
PAUSE_S: Final = {SMALL: 0.0, LARGE: 0.0, QUIET: 0.02}
WAIT_S: Final = 20.0
CHUNK_BYTES: Final = {"in chunks": 64 * KIB, "as a whole": 0}
SETTINGS: Final[dict[str, Any]] = {
    "node.log_level": "error",
    "admission.partition_bytes": BUDGET_BYTES,
    "admission.queue_bypass_ms": 200,
    "lag.slow_ms": 0,  # it is slow, and nothing is to be done about it
    "lag.stalled_ms": 0,
}
QUIET_MAX: Final = 0.5
LARGE_MIN: Final = 0.75


@dataclass(frozen=True)
class Row:
    """What clients of one kind saw in one round, in milliseconds."""

    how: str
    kind: str
    p50_ms: float
    p99_ms: float
    per_s: float


async def drive(endpoints: Sequence[str], how: str, seconds: float) -> list[Row]:
    """All of them at once. Raises the errors of ``logboom.errors``, and ValueError for too few answers."""
    latencies: dict[str, list[float]] = {kind: [] for kind in RECORDS}
    end = time.perf_counter() + seconds

    async def ask(client: Client, kind: str) -> None:
        block = RecordBlock.from_columns(payloads=[bytes(RECORD_BYTES)] * RECORDS[kind])
        while (began := time.perf_counter()) < end:
            await client.submit_block(0, block, wait="committed", admission_wait=WAIT_S, timeout=2 * WAIT_S)
            latencies[kind].append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE_S[kind])

    async with AsyncExitStack() as stack:
        asking = []
        for kind, count in UNDER_WAY.items():
            clients = [await stack.enter_async_context(Client(endpoints)) for _ in range(CONNECTIONS[kind])]
            asking += [ask(clients[k % len(clients)], kind) for k in range(count)]
        await asyncio.gather(*asking)
    return [Row(how, kind, *quantiles_ms(took), len(took) / seconds) for kind, took in latencies.items()]


def measured(directory: Path, rounds: int, seconds: float) -> list[Row]:
    """In turn. Raises the errors of ``logboom.errors``, OSError and ValueError."""
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    place = Path(tempfile.mkdtemp(prefix="passing-", dir=directory)).resolve()
    try:
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (site(place / "site"), ROOT)))
        for number in range(rounds):
            for how, chunk_bytes in CHUNK_BYTES.items():
                settings = SETTINGS | {"admission.queue_chunk_bytes": chunk_bytes}
                at = place / f"{number}-{chunk_bytes}"
                with LocalCluster(partitions=1, state_machine=NAME, directory=at, settings=settings) as cluster:
                    found = asyncio.run(drive(tuple(cluster.addresses.values()), how, seconds))
                for row in found:
                    say(f"  {how}, {row.kind}: p50 {row.p50_ms:.1f} ms, p99 {row.p99_ms:.1f} ms, {row.per_s:.1f}/s")
                rows += found
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return rows


def judge(rows: Sequence[Row]) -> list[Check]:
    """Medians of the rounds, in chunks and as a whole."""

    def ratio(kind: str, figure: str) -> float:
        chunks, whole = (
            statistics.median(getattr(row, figure) for row in rows if (row.how, row.kind) == (how, kind))
            for how in CHUNK_BYTES
        )
        return float(chunks / whole)

    return [
        Check("quiet client's p50, large ones in chunks / as a whole", ratio(QUIET, "p50_ms"), at_most=QUIET_MAX),
        Check("quiet client's p99, large ones in chunks / as a whole", ratio(QUIET, "p99_ms"), at_most=1.0),
        Check("large ones a second, in chunks / as a whole", ratio(LARGE, "per_s"), at_least=LARGE_MIN),
        Check("small ones a second, in chunks / as a whole", ratio(SMALL, "per_s"), at_least=LARGE_MIN),
    ]


def _on_term(*_: object) -> None:
    raise SystemExit(143)  # so that every `finally` runs


def main() -> int:
    """Exit status 1: a bound was missed; 2: it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.passing", description="small requests and a large one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each")
    parser.add_argument("--directory", type=Path, default=SCRATCH, help="on the disk to be measured")
    parser.add_argument("--output", type=Path, default=RESULTS / "passing.json")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args()
    if asked.rounds < 1 or asked.seconds <= 0:
        parser.error("--rounds is at least 1, --seconds above 0")
    signal.signal(signal.SIGTERM, _on_term)
    try:
        rows = measured(asked.directory, asked.rounds, asked.seconds)
    except (LogboomError, TimeoutError, OSError, ValueError) as error:
        say(f"passing: {error!r}")
        return 2
    checks = judge(rows)
    settings = {
        "servers": SETTINGS,
        "records": RECORDS,
        "record_bytes": RECORD_BYTES,
        "under_way": UNDER_WAY,
        "connections": CONNECTIONS,
        "applied_bytes_per_s": BYTES_PER_S,
    }
    write(asked.output, settings=settings, checks=checks, rows=[asdict(row) for row in rows])
    return verdict(checks, floors=not asked.no_floors)


if __name__ == "__main__":
    sys.exit(main())
