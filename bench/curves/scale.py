"""With partitions, with nodes, with clients."""

from __future__ import annotations

import resource
from typing import Final

from bench.curves.clusters import cluster, memory_bytes, restart
from bench.curves.drive import Drive
from bench.curves.given import Given
from bench.curves.sheet import Sheet
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

PARTITIONS: Final = (1, 8, 64, 256, 1_000)
MANY: Final = 10_000
NODES: Final = (1, 3, 5)
CLIENTS: Final = (1, 4, 16, 64, 256)
SPREAD: Final = 8
"""Partitions, where their number is not what grows."""
FILES: Final = {"log": 1, "kv": 3}
"""Descriptors of a partition."""
FILES_BESIDES: Final = 200
BLOCK: Final = 1_000
"""Commands of a block."""
IDLE_KB_MAX: Final = 200.0
START_S_MAX: Final = 10.0
THROUGHPUT_LEAST: Final = 0.9


def _bulk(local: LocalCluster, partitions: int = SPREAD, *, seconds: float) -> Drive:
    return Drive(tuple(local.addresses.values()), partitions=partitions, seconds=seconds)


def partitions(given: Given, sheet: Sheet) -> None:
    """1 to 1,000: throughput, memory, start; and the start of 10,000."""
    sheet.curve("bulk over partitions", x="partitions", unit="commands/s")
    sheet.curve("memory over partitions", x="partitions", unit="MB/node")
    sheet.curve("start over partitions", x="partitions", unit="s")
    counts = given.some(PARTITIONS)
    for count in counts:
        with cluster(given.directory, partitions=count) as (local, started_s):
            sheet.point("start over partitions", count, started_s, series="log, 3 nodes, first")
            sheet.point("memory over partitions", count, memory_bytes(local) / 1e6, series="log")
            found = given.measure(local, _bulk(local, count, seconds=given.seconds))
            sheet.point("bulk over partitions", count, [each.commands_per_s for each in found])
    for count in (counts[0], counts[-1]):
        with cluster(given.directory, partitions=count, machine="kv") as (local, started_s):
            sheet.point("start over partitions", count, started_s, series="kv, 3 nodes, first")
            sheet.point("memory over partitions", count, memory_bytes(local) / 1e6, series="kv")
    for machine in ("log", "kv"):
        few, *_, many = sheet.curves["memory over partitions"].line(machine)
        each_kb = (many.y - few.y) * 1e3 / (many.x - few.x)
        sheet.check(f"KB of memory per idle {machine} partition", each_kb, at_most=IDLE_KB_MAX)
    sheet.ratio("bulk over partitions", at_least=THROUGHPUT_LEAST)
    if not given.quick:
        for nodes in (1, 3):
            _start_many(given, sheet, nodes, "log")
        _start_many(given, sheet, 1, "kv")


def _start_many(given: Given, sheet: Sheet, nodes: int, machine: str) -> None:
    what = f"{machine}, {nodes} node{'s' if nodes > 1 else ''}"
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if MANY * FILES[machine] + FILES_BESIDES > allowed:
        sheet.skip(f"start of {MANY:,} partitions ({what}): {allowed:,} file descriptors are too few")
        return
    try:
        with cluster(given.directory, nodes=nodes, partitions=MANY, machine=machine) as (local, first_s):
            sheet.point("start over partitions", MANY, first_s, series=f"{what}, first")
            again_s = restart(local)
    except LogboomError as error:
        sheet.skip(f"start of {MANY:,} partitions ({what}): {error}")
        return
    sheet.point("start over partitions", MANY, again_s, series=f"{what}, again")
    sheet.check(f"s to start {MANY:,} partitions ({what}), the first time", first_s, at_most=START_S_MAX)
    sheet.check(f"s to start {MANY:,} partitions ({what}), again", again_s, at_most=START_S_MAX)


def nodes(given: Given, sheet: Sheet) -> None:
    """1, 3 and 5, all on this machine."""
    sheet.curve("bulk over nodes", x="nodes", unit="commands/s")
    sheet.curve("one at a time over nodes", x="nodes", unit="ms (p50)")
    for count in NODES:
        with cluster(given.directory, nodes=count, partitions=SPREAD) as (local, _):
            bulk = _bulk(local, seconds=given.seconds)
            found = given.measure(local, bulk)
            sheet.point("bulk over nodes", count, [each.commands_per_s for each in found])
            lone = Drive(bulk.endpoints, partitions=1, commands=1, under_way=1, seconds=given.seconds)
            found = given.measure(local, lone)
            sheet.point("one at a time over nodes", count, [each.p50_ms for each in found])


def clients(given: Given, sheet: Sheet) -> None:
    """1 to 256, each with a connection of its own and one request under way."""
    sheet.curve("throughput over clients", x="clients", unit="commands/s")
    sheet.curve("latency over clients", x="clients", unit="ms (p50)")
    for commands, series in ((1, "singles"), (BLOCK, f"blocks of {BLOCK:,}")):
        for count in given.some(CLIENTS):
            # Each point has a cluster of its own: all together they leave 30 GB of logs.
            with cluster(given.directory, partitions=SPREAD) as (local, _):
                shape = Drive(
                    tuple(local.addresses.values()),
                    partitions=SPREAD,
                    commands=commands,
                    under_way=count,
                    clients=count,
                    processes=min(count, 2),
                    seconds=given.seconds,
                )
                found = given.measure(local, shape)
            rates, latencies = [each.commands_per_s for each in found], [each.p50_ms for each in found]
            sheet.point("throughput over clients", count, rates, series=series)
            sheet.point("latency over clients", count, latencies, series=series)
