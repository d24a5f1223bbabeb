"""Runs inside the compose network: adds under load until SIGUSR1, then checks every node.

Every acknowledged Add must be counted exactly once on every node; one whose outcome stayed unknown,
at most once. Prints one line, exits 1 on any difference.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter

from logboom.certs import client_context
from logboom.client import Client
from logboom.commands import Add
from logboom.errors import LogboomError

CLIENTS = 4
PACE_S = 0.005
CALL_S = 60.0
SETTLE_S = 120.0


def connect() -> Client:
    """A client of the whole cluster."""
    return Client(os.environ["LOGBOOM_ENDPOINTS"], tls=client_context(os.environ["LOGBOOM_TLS_DIR"]), timeout=CALL_S)


async def load(name: str, sure: Counter[tuple[int, str]], unsure: Counter[tuple[int, str]], stop: asyncio.Event) -> int:
    """One client; returns the highest global index it saw."""
    async with connect() as client:
        partitions = await client.partitions()
        turn = 0
        while not stop.is_set():
            slot = (partitions[turn % len(partitions)], name)
            turn += 1
            try:
                await client.submit(slot[0], Add(name.encode(), 1), wait="applied")
                sure[slot] += 1
            except LogboomError as error:
                if error.outcome == "applied":
                    sure[slot] += 1
                elif error.outcome == "unknown":
                    unsure[slot] += 1
                print(f"load: {name}: {error} [{error.outcome}]", file=sys.stderr)
            await asyncio.sleep(PACE_S)
        return client.last_seen


async def check(seen: int, sure: Counter[tuple[int, str]], unsure: Counter[tuple[int, str]]) -> list[str]:
    """What is wrong, if anything."""
    wrong = []
    digests: dict[str, object] = {}
    async with connect() as client:
        nodes = sorted(await client.members())
        await client.barrier(seen, scope="all", level="applied", timeout=SETTLE_S)
        for node in nodes:
            for partition, name in sorted(set(sure) | set(unsure)):
                value = await client.get(partition, name.encode(), stale=True, node=node)
                got = int(value[0]) if value else 0
                least, doubtful = sure[partition, name], unsure[partition, name]
                if not least <= got <= least + doubtful:
                    wrong.append(f"{node} partition {partition} {name}: {got}, not {least} to {least + doubtful}")
            digests[node] = (await client.status(node=node, digests=True))["digests"]
    if len({repr(digest) for digest in digests.values()}) != 1:
        wrong.append(f"digests differ: {digests}")
    return wrong


async def main() -> int:
    """The exit status."""
    sure: Counter[tuple[int, str]] = Counter()
    unsure: Counter[tuple[int, str]] = Counter()
    stop = asyncio.Event()
    clients = [asyncio.create_task(load(f"client-{n}", sure, unsure, stop)) for n in range(CLIENTS)]
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop.set)
    await stop.wait()
    seen = max(await asyncio.gather(*clients))
    wrong = await check(seen, sure, unsure)
    for line in wrong:
        print(f"load: {line}")
    counts = f"{sum(sure.values())} acknowledged, {sum(unsure.values())} unknown, {len(wrong)} wrong"
    print(f"load: {counts}; global index {seen}")
    return 1 if wrong or not sure else 0


sys.exit(asyncio.run(main()))
