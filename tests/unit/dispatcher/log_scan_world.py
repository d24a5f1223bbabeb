"""Scans of all logs in one order, and what comes of them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from dispatcher.reading.feeds import FeedRequest
from dispatcher.reading.log_scan import LogScan
from logboom.client.log_batches import LogBatch, batches_of
from logboom.wire import Frame, Kind
from tests.unit.dispatcher.reading_world import Client, World

ROOM = 1 << 30


def begin(
    world: World, client: Client, *, partitions: list[int] | None = None, through: int = 0, **wanted: Any
) -> LogScan:
    asked = FeedRequest(**{"credit": ROOM, "whole": True, **wanted})
    chosen: Any = world.partition_ids() if partitions is None else partitions
    scan = LogScan(world, chosen, asked, through=through, **client.how())
    scan.move()
    return scan


async def settle(world: World) -> None:
    """Until nothing happens any more."""
    while world.jobs:
        world.work()
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    if world.jobs:
        await settle(world)


def batches(client: Client) -> list[LogBatch]:
    return [
        batch
        for header, body in client.of(Kind.BATCHES)
        for batch in batches_of(Frame(Kind.BATCHES, 1, header, memoryview(body)))
    ]


def globals_of(client: Client) -> list[int]:
    return [batch.global_index for batch in batches(client)]


def mixed(world: World, count: int, *, seed: int = 1) -> None:
    rng = random.Random(seed)
    for number in range(count):
        partition = rng.randrange(len(world.logs))
        world.append(partition, [b"%d-%d" % (number, k) for k in range(rng.randint(1, 5))])
        world.sync(partition)
