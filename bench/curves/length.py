"""With the length of one partition's log, on one node."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from bench.curves.clusters import cluster, memory_bytes, restart
from bench.curves.drive import Drive, run
from bench.curves.given import GB, Given, affordable_gb
from bench.curves.sheet import Sheet
from logboom import Client
from logboom.testing import LocalCluster

LENGTHS_GB: Final = (1, 2, 4, 8, 16, 32, 50)
QUICK_GB: Final = (0.1, 0.2, 0.4)
"""Also for a longest log of less than 1 GB."""
COMMAND_BYTES: Final = 256
UNDER_WAY: Final = 16
READS: Final = 200
PAUSE_S: Final = 0.02
"""Between two reads: a node sends more than was asked for, and the rest of it is not to be waited for."""
APPEND_LEAST: Final = 0.8
READ_MOST: Final = 1.25


def length(given: Given, sheet: Sheet) -> None:
    """1 GB to ``log_gb``, doubling: appending, reading somewhere, starting again, memory."""
    lengths = stations(affordable_gb(QUICK_GB[-1] if given.quick else given.log_gb, given.directory, sheet))
    if not lengths:
        return
    sheet.curve("append over length", x="GB of log", unit="MB/s")
    sheet.curve("read over length", x="GB of log", unit="ms (p50)")
    sheet.curve("start over length", x="GB of log", unit="s")
    sheet.curve("memory over length", x="GB of log", unit="MB")
    written = 0.0
    with cluster(given.directory, nodes=1, partitions=1) as (local, _):
        for gb in lengths:
            total = round((gb - written) * GB / COMMAND_BYTES)
            written = gb
            endpoints = tuple(local.addresses.values())
            found = run(Drive(endpoints, partitions=1, under_way=UNDER_WAY, total=total))
            sheet.point("append over length", gb, found.until_applied_per_s * COMMAND_BYTES / 1e6)
            sheet.point("memory over length", gb, memory_bytes(local) / 1e6, series="after appending")
            for series in ("cold", "warm"):
                took = uvloop.run(_reads(local, cold=series == "cold"))
                sheet.point("read over length", gb, statistics.median(took) * 1000, series=series)
            sheet.point("start over length", gb, restart(local))
            sheet.point("memory over length", gb, memory_bytes(local) / 1e6, series="after a start")
    sheet.ratio("append over length", at_least=APPEND_LEAST)
    for series in ("cold", "warm"):
        sheet.ratio("read over length", series=series, at_most=READ_MOST)


def stations(longest_gb: float) -> list[float]:
    """Where to look, in GB, up to the longest log; nowhere if that is next to nothing."""
    steps = LENGTHS_GB if longest_gb > LENGTHS_GB[0] else QUICK_GB
    return [*(gb for gb in steps if gb < longest_gb), longest_gb] if longest_gb >= QUICK_GB[0] else []


async def _reads(local: LocalCluster, *, cold: bool) -> list[float]:
    """Seconds until the first batch from random positions on has arrived; ``cold``: from the disk.

    Warm reads are the second of two from the same place.
    """
    rng, took = random.Random(1), []
    segments = sorted((local.data_dirs["n1"] / "partitions" / "0").glob("*.log"))
    async with Client(local.endpoints) as client:
        last = (await client.watermarks([0]))[0].log_index
        for _ in range(READS):
            start = rng.randint(1, last)
            if cold:
                forget(segments)
            else:
                await _read(client, start)
            took.append(await _read(client, start))
    return took


async def _read(client: Client, start: int) -> float:
    await asyncio.sleep(PAUSE_S)
    batches = client.tail(0, start=start)
    began = time.perf_counter()
    first = await anext(aiter(batches))
    took = time.perf_counter() - began
    await batches.aclose()
    if not first.first_index <= start <= first.last_index:
        raise RuntimeError(f"asked for record {start}, got {first.first_index} to {first.last_index}")
    return took


def forget(files: Sequence[Path]) -> None:
    """Drop what the page cache holds of them, as far as it is on the disk."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
