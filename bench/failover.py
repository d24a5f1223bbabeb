"""From the leader's death to the first new acknowledged write.

From the moment of the SIGKILL a new write is begun every 5 ms and given up by none; the first
that is acknowledged counts. So neither system waits for a client's timeout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from bench import etcd
from bench.etcd import EtcdCluster
from bench.http2 import CallFailed, Method
from logboom import Client, Put
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

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


async def of_etcd(cluster: EtcdCluster, leader: str) -> float:
    """Kill etcd's leader; the survivors are asked in turn, over connections that are open already."""
    survivors = [n for n in cluster.nodes if n != leader]
    methods = [await Method.open(cluster.addresses[n], etcd.PUT) for n in survivors]
    for method in methods:
        await method.call(etcd.put(b"before", b"x" * 256))

    async def probe(number: int) -> bool:
        try:
            await methods[number % len(methods)].call(etcd.put(b"after", b"x" * 256))
        except CallFailed:
            return False
        return True

    await asyncio.to_thread(cluster.kill, leader)
    try:
        return await first_write(probe)
    finally:
        for method in methods:
            method.close()


async def of_logboom(cluster: LocalCluster, leader: str) -> float:
    """Kill logboom's leader; one client that knew it, and finds the next by itself."""
    async with Client(cluster.endpoints) as client:
        await client.submit(0, Put(b"before", b"x" * 256))

        async def probe(number: int) -> bool:
            try:
                await client.submit(number % 8, Put(b"after", b"x" * 256), timeout=PATIENCE_S)
            except LogboomError:
                return False
            return True

        await asyncio.to_thread(cluster.kill, leader)
        return await first_write(probe)


def measure(cluster: EtcdCluster | LocalCluster, times: int) -> list[float]:
    """Milliseconds of each of several deaths; the dead node is back before the next."""
    found = []
    for _ in range(times):
        time.sleep(SETTLE_S)
        leader = cluster.leader()
        trial = of_etcd(cluster, leader) if isinstance(cluster, EtcdCluster) else of_logboom(cluster, leader)
        found.append(asyncio.run(trial) * 1000)
        cluster.start_node(leader)
        cluster.wait_serving()
    return found
