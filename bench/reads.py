"""``python -m bench.reads``: what a read and a barrier cost on three nodes, idle and under a bulk load.

*Wake-up* of a barrier is measured between two connections of one client process. A barrier waits at the leader for
the global index that the next command will get; then that command is submitted with ``wait="applied"``. Both are
answered by the same apply, over ways of the same length: what the barrier's answer arrives later than the receipt is
the wake-up. While others write the next index can only be guessed, so barriers wait at several; those that did not
hit the command's own index do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.curves.drive import Drive, driving
from bench.report import RESULTS, SCRATCH, Check, quantiles_ms, say, verdict, write
from logboom import Client, Put
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

PARTITIONS: Final = 8
"""Of either state machine: ``kv`` from 0 on, then ``log``."""
KEYS: Final = 1_000
VALUE: Final = b"v" * 256
CROWD: Final = 10_000
FAR: Final = 100_000
CONNECTIONS: Final = 10
APART: Final = 32
"""A client's share of a crowd is at most so many squared."""
SETTLE_S: Final = 0.002
"""For barriers to arrive at the node before the command is sent."""
ARRIVE_S: Final = 20.0
"""A crowd that is not there by then never will be."""
GUESSES: Final = {"idle": 1, "bulk": 16}
"""Barriers per trial: how many indices others may take meanwhile, and one."""
READ_MS_MAX: Final = 0.5
WAKE_MS_MAX: Final = 1.0
BESIDE: Final = f"barrier, wake-up beside {CROWD:,} waiters"
IN_TURN: Final = f"barrier, wake-up of {CROWD:,}, each by a command of its own"
AT_ONCE: Final = f"barrier, wake-up of {CROWD:,} at once"
TOGETHER: Final = f"barrier, wake-up of {CROWD:,} callers of one client"
ALONE: Final = f"{CROWD:,} tasks woken, without a barrier"
LOOPS_MAX: Final = 10.0
"""What is left to a client that shares one request among its callers is to wake them. In milliseconds that is what a
machine makes of it, and the interpreter."""
WAKE_P99_MS_MAX: Final = 2.0


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    load: str
    what: str
    p50_ms: float
    p99_ms: float
    count: int


async def times(call: Callable[[int], Awaitable[object]], count: int) -> list[float]:
    """Seconds of each of ``count`` calls, one at a time."""
    took = []
    for number in range(count):
        began = time.perf_counter()
        await call(number)
        took.append(time.perf_counter() - began)
    return took


async def wake_ups(cluster: LocalCluster, leader: str, *, guesses: int, count: int) -> list[float]:
    """Seconds from an applied receipt to the return of the barrier that waited for the same command."""
    node = cluster.addresses[leader]
    found: list[float] = []
    async with Client(node) as writer, Client(node) as waiter:

        async def wait(target: int) -> float:
            await waiter.barrier(target, partitions=[0], node=node)
            return time.perf_counter()

        for number in range(count):
            commit = (await waiter.status(node=node))["commit_index"]
            waiting = {target: asyncio.create_task(wait(target)) for target in range(commit + 1, commit + 1 + guesses)}
            await asyncio.sleep(SETTLE_S)
            receipt = await writer.submit(0, Put(b"wake%d" % number, VALUE), wait="applied")
            applied = time.perf_counter()
            hit = waiting.pop(receipt.global_index, None)
            if hit is not None:
                found.append(await hit - applied)
            for task in waiting.values():
                task.cancel()
            await asyncio.gather(*waiting.values(), return_exceptions=True)
    return found


@asynccontextmanager
async def parked(cluster: LocalCluster, leader: str, count: int) -> AsyncIterator[None]:
    """Meanwhile ``count`` barriers wait at the leader, each for another index that does not come."""
    node = cluster.addresses[leader]
    async with AsyncExitStack() as stack:
        waiters = [await stack.enter_async_context(Client(node, timeout=600.0)) for _ in range(CONNECTIONS)]
        far = (await waiters[0].status(node=node))["commit_index"] + FAR
        tasks = [
            asyncio.create_task(waiters[n % CONNECTIONS].barrier(far + n, partitions=[0], node=node))
            for n in range(count)
        ]
        while (await waiters[0].status(node=node))["waiters"] < count:  # noqa: ASYNC110 - the node counts
            await asyncio.sleep(SETTLE_S)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def in_turn(cluster: LocalCluster, leader: str, *, count: int) -> list[float]:
    """Seconds from applied receipts to the return of ``count`` barriers that wait together, each for its own one."""
    node = cluster.addresses[leader]
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(Client(node))
        waiters = [await stack.enter_async_context(Client(node, timeout=600.0)) for _ in range(CONNECTIONS)]
        first = (await writer.status(node=node))["commit_index"] + 1

        async def wait(number: int) -> float:
            await waiters[number % CONNECTIONS].barrier(first + number, partitions=[0], node=node)
            return time.perf_counter()

        waiting = [asyncio.create_task(wait(number)) for number in range(count)]
        while (await writer.status(node=node))["waiters"] < count:  # noqa: ASYNC110 - the node counts
            await asyncio.sleep(SETTLE_S)
        applied = []
        for number in range(count):
            receipt = await writer.submit(0, Put(b"turn%d" % (number % KEYS), VALUE), wait="applied")
            applied.append(time.perf_counter())
            if receipt.global_index != first + number:
                raise ValueError(f"somebody else wrote: {receipt.global_index} is not {first + number}")
        return [at - then for at, then in zip(await asyncio.gather(*waiting), applied, strict=True)]


async def crowd(cluster: LocalCluster, leader: str, *, count: int, trials: int, shared: bool) -> list[float]:
    """Seconds from an applied receipt to the return of each of ``count`` barriers that waited for the same command.

    ``shared``: they are of one client and ask for the same, which is one request. Else each is a request of its own:
    over CONNECTIONS connections, and of one client no two ask for the same of two partitions that are there already,
    or the client would send them as one. All are in one process, which has to wake every caller: its share is in it.
    """
    node = cluster.addresses[leader]
    found: list[float] = []
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(Client(node))
        waiters = [await stack.enter_async_context(Client(node)) for _ in range(1 if shared else CONNECTIONS)]
        for number in range(APART):  # what the two partitions are waited for at is reached then
            await writer.submit(0, Put(b"apart%d" % number, VALUE))

        async def wait(number: int, target: int) -> float:
            client, nth = waiters[number % len(waiters)], number // len(waiters)
            if shared:
                await client.barrier(target, partitions=[0], node=node)
            else:
                await client.barrier({0: target, 1: nth % APART, 2: nth // APART}, node=node)
            return time.perf_counter()

        for trial in range(trials):
            async with asyncio.timeout(ARRIVE_S):
                while (status := await writer.status(node=node))["waiters"]:  # noqa: ASYNC110 - of before
                    await asyncio.sleep(SETTLE_S)
                target = status["commit_index"] + 1
                waiting = [asyncio.create_task(wait(number, target)) for number in range(count)]
                while (await writer.status(node=node))["waiters"] < (1 if shared else count):  # noqa: ASYNC110
                    await asyncio.sleep(SETTLE_S)
            await writer.submit(0, Put(b"crowd%d" % trial, VALUE), wait="applied")
            applied = time.perf_counter()
            found += [at - applied for at in await asyncio.gather(*waiting)]
    return found


async def loop_alone(*, count: int, trials: int) -> list[float]:
    """The same of ``count`` tasks that wait for a future each, and nothing else: no client can wake as many sooner."""
    loop = asyncio.get_running_loop()

    async def wait(future: asyncio.Future[None]) -> float:
        await future
        return time.perf_counter()

    found: list[float] = []
    for _ in range(trials):
        futures: list[asyncio.Future[None]] = [loop.create_future() for _ in range(count)]
        waiting = [asyncio.create_task(wait(future)) for future in futures]
        await asyncio.sleep(SETTLE_S)
        began = time.perf_counter()
        for future in futures:
            future.set_result(None)
        found += [at - began for at in await asyncio.gather(*waiting)]
    return found


async def table(cluster: LocalCluster, load: str, count: int) -> list[Row]:
    """Everything under one load."""
    leader = await asyncio.to_thread(cluster.leader)
    keys = [b"k%06d" % k for k in range(KEYS)]
    rows: list[Row] = []

    def add(what: str, took: Sequence[float]) -> None:
        p50, p99 = quantiles_ms(took)
        rows.append(Row(load, what, p50, p99, len(took)))
        say(f"  {load}, {what}: p50 {p50:.3f} ms, p99 {p99:.3f} ms ({len(took)})")

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(cluster.endpoints))
        await client.submit(0, [Put(key, VALUE) for key in keys])
        await client.barrier(client.last_seen, scope="all")
        gets: list[tuple[str, dict[str, Any]]] = [
            ("get, linearizable (default)", {}),
            ("get, at_least=session", {"at_least": "session"}),
            ("get, stale", {"stale": True}),
        ]
        for what, how in gets:
            add(what, await times(lambda n, how=how: client.get(0, keys[n % KEYS], **how), count))  # type: ignore[misc]
        target = client.last_seen
        add("barrier, applied already", await times(lambda _: client.barrier(target), count))
        add(
            "barrier at the leader, applied already",
            await times(lambda _: client.barrier(target, scope="leader"), count),
        )
        add("submit, wait=applied", await times(lambda n: client.submit(0, Put(keys[n % KEYS], VALUE)), count // 4))
    add("barrier, wake-up", await wake_ups(cluster, leader, guesses=GUESSES[load], count=count // 4))
    if load == "idle":  # else somebody else's command may be the one that is waited for
        trials = max(1, count // 500)
        async with parked(cluster, leader, CROWD):
            beside = await wake_ups(cluster, leader, guesses=GUESSES[load], count=count // 4)
        add(BESIDE, beside)
        add(IN_TURN, await in_turn(cluster, leader, count=CROWD))
        for what, shared in ((AT_ONCE, False), (TOGETHER, True)):
            add(what, await crowd(cluster, leader, count=CROWD, trials=trials, shared=shared))
        add(ALONE, await loop_alone(count=CROWD, trials=trials))
    return rows


def judge(rows: Sequence[Row]) -> list[Check]:
    """The floors hold where nothing else is going on."""

    def p50(what: str) -> float:
        return next(row.p50_ms for row in rows if row.load == "idle" and row.what.startswith(what))

    def p99(what: str) -> float:
        return next(row.p99_ms for row in rows if row.load == "idle" and row.what == what)

    return [
        Check("ms of a linearizable get, idle, p50", p50("get, linearizable"), at_most=READ_MS_MAX),
        Check("ms of a barrier's wake-up, idle, p50", p50("barrier, wake-up"), at_most=WAKE_MS_MAX),
        Check(f"ms of a {BESIDE}, p99", p99(BESIDE), at_most=WAKE_P99_MS_MAX),
        Check(f"ms of a {IN_TURN}, p99", p99(IN_TURN), at_most=WAKE_P99_MS_MAX),
        Check(f"{TOGETHER}, p99, x {ALONE}", p99(TOGETHER) / p99(ALONE), at_most=LOOPS_MAX),
    ]


def measure(directory: Path, count: int) -> list[Row]:
    """On three fresh nodes. Raises the errors of ``logboom.errors``, and ValueError if no barrier hit its command."""
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="reads-", dir=directory) as place:
        overrides = {str(p): {"state_machine": "log"} for p in range(PARTITIONS, 2 * PARTITIONS)}
        settings = {"cluster.overrides": overrides, "node.log_level": "warning"}
        with LocalCluster(nodes=3, partitions=2 * PARTITIONS, directory=place, settings=settings) as cluster:
            endpoints = tuple(cluster.addresses.values())
            bulk = Drive(endpoints, first=PARTITIONS, partitions=PARTITIONS, under_way=8, seconds=600)
            for load, under in (("idle", nullcontext()), ("bulk", driving(bulk))):
                with under:
                    rows += uvloop.run(table(cluster, load, count))
    return rows


def _on_term(*_: object) -> None:
    raise SystemExit(143)  # so that every `finally` runs


def main() -> int:
    """Exit status 1: a floor was missed; 2: it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.reads", description="reads and barriers")
    parser.add_argument("--quick", action="store_true", help="few calls: a look, not a measurement")
    parser.add_argument("--count", type=int, default=2_000, help="calls of each kind")
    parser.add_argument("--directory", type=Path, default=SCRATCH, help="on the disk to be measured")
    parser.add_argument("--output", type=Path, default=RESULTS / "reads.json")
    parser.add_argument("--no-floors", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args()
    if asked.count < 40:
        parser.error("--count is at least 40")
    count = 200 if asked.quick else asked.count
    signal.signal(signal.SIGTERM, _on_term)
    try:
        rows = measure(asked.directory, count)
    except (LogboomError, TimeoutError, OSError, RuntimeError, ValueError) as error:
        say(f"reads: {error}")
        return 2
    checks = judge(rows)
    settings = {
        "nodes": 3,
        "count": count,
        "value_bytes": len(VALUE),
        "bulk": "8 blocks of 1,000 records of 256 bytes under way into 8 log partitions, from another process",
        "servers": "defaults; every acknowledged write is synced on a majority",
    }
    write(asked.output, settings=settings, checks=checks, table=[asdict(row) for row in rows])
    return verdict(checks, floors=not asked.no_floors)


if __name__ == "__main__":
    sys.exit(main())
