"""From the leader's death to the first new acknowledged write.

From the moment of the SIGKILL a new write is begun every 5 ms and given up by none; the first
that is acknowledged counts. So no system waits for a client's timeout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from bench.systems.api import Cluster, Prober

EVERY_S: Final = 0.005
PATIENCE_S: Final = 30.0
SETTLE_S: Final = 1.0


async def first_write(probe: Callable[[int], Awaitable[bool]]) -> float:
    """Seconds until the first probe succeeds. Raises TimeoutError."""
    started = time.perf_counter()
    done: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def attempt(number: int) -> None:
        if await probe(number) and not done.done():
            done.set_result(time.perf_counter() - started)

    tasks = set[asyncio.Task[None]]()
    try:
        for number in range(int(PATIENCE_S / EVERY_S)):
            tasks.add(asyncio.create_task(attempt(number)))
            await asyncio.wait([done], timeout=EVERY_S)
            if done.done():
                return done.result()
        raise TimeoutError(f"no write was acknowledged within {PATIENCE_S:.0f} s of the leader's death")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def death(cluster: Cluster, prober: Prober) -> float:
    """Kill the leader once; seconds to the first write."""
    leader = await asyncio.to_thread(cluster.leader)
    async with prober(cluster, leader) as probe:
        await asyncio.to_thread(cluster.kill, leader)
        taken = await first_write(probe)
    cluster.start_node(leader)
    return taken


def measure(cluster: Cluster, prober: Prober, times: int) -> Iterator[float]:
    """Milliseconds of each of several deaths; the dead node is back before the next."""
    for _ in range(times):
        cluster.wait_serving()
        time.sleep(SETTLE_S)
        yield asyncio.run(death(cluster, prober)) * 1000
