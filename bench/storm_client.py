"""One client process of ``bench.storm``: closed loop, open loop, or a quiet client that asks now and then.

Every request adds one to a counter of this process and partition, so that afterwards can be counted exactly what
became of those that were acknowledged, and of those that were refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Final

import uvloop

from logboom import Add, Client, Put
from logboom.commands import Command
from logboom.errors import LogboomError
from logboom.records import RecordBlock

SAMPLES_MAX: Final = 5_000
TICK_S: Final = 0.005
UNDER_WAY_MAX: Final = 5_000
"""Requests of one process: what it cannot even begin counts as offered and refused."""


@dataclass(frozen=True)
class Plan:
    """What one process does."""

    endpoints: tuple[str, ...]
    name: str
    partitions: tuple[int, ...]
    records: int
    value_bytes: int
    seconds: float
    rate: float = 0.0
    """Requests per second, whether they are answered or not; 0: a closed loop."""
    concurrency: int = 1
    """Of the closed loop."""
    timeout_s: float = 2.0
    admission_wait_s: float = 0.0
    connections: int = 1
    wait: str = "applied"
    niceness: int = 10
    """Elsewhere clients are on machines of their own: who stands in the way is to be they, not the nodes."""


@dataclass
class Tally:
    """What it has seen."""

    offered: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    by_partition: dict[int, list[int]] = field(default_factory=dict)
    """Acknowledged, and unknown."""


class Worker:
    """The work of one process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tally = Tally(by_partition={p: [0, 0] for p in plan.partitions})
        self._errors: Counter[str] = Counter()
        self._clients = [Client(list(plan.endpoints), timeout=plan.timeout_s) for _ in range(plan.connections)]
        rows: list[Command] = [Add(counter(plan.name), 1)]
        rows += [Put(b"%s-%d" % (plan.name.encode(), k), bytes(plan.value_bytes)) for k in range(plan.records - 1)]
        self._block = RecordBlock.from_records(row.record() for row in rows)
        self._under_way: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect."""
        for client in self._clients:
            await client.partitions()

    async def one(self) -> None:
        """One request, counted."""
        tally, plan = self.tally, self.plan
        k = tally.offered
        tally.offered += 1
        partition = plan.partitions[k % len(plan.partitions)]
        client, began = self._clients[k % len(self._clients)], time.perf_counter()
        try:
            await client.submit_block(partition, self._block, wait=plan.wait, admission_wait=plan.admission_wait_s)
        except LogboomError as error:
            self._errors[error.code] += 1
            if error.outcome == "not_applied":
                tally.refused += 1
            else:
                tally.unknown += 1
                tally.by_partition[partition][1] += 1
        else:
            tally.acknowledged += 1
            tally.by_partition[partition][0] += 1
            tally.latencies.append(time.perf_counter() - began)

    async def closed(self, end: float) -> None:
        """So many under way at any time."""

        async def repeat() -> None:
            while time.perf_counter() < end:
                await self.one()

        await asyncio.gather(*(repeat() for _ in range(self.plan.concurrency)))

    async def opened(self, end: float) -> None:
        """At a rate, however long answers take."""
        began, due = time.perf_counter(), 0
        while (now := time.perf_counter()) < end:
            wanted = int((now - began) * self.plan.rate)
            while due < wanted:
                due += 1
                if len(self._under_way) >= UNDER_WAY_MAX:
                    self.tally.offered += 1
                    self.tally.refused += 1
                    self._errors["not begun"] += 1
                    continue
                task = asyncio.ensure_future(self.one())
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*self._under_way)

    async def run(self) -> Tally:
        """All of it."""
        end = time.perf_counter() + self.plan.seconds
        await (self.opened(end) if self.plan.rate else self.closed(end))
        for client in self._clients:
            await client.close()
        tally = self.tally
        tally.errors = dict(self._errors)
        tally.latencies.sort()
        step = -(-len(tally.latencies) // SAMPLES_MAX) or 1
        tally.latencies = [round(each, 6) for each in tally.latencies[::-step][::-1]]  # the slowest is among them
        return tally


def counter(name: str) -> bytes:
    """The key that this process counts under."""
    return b"count-" + name.encode()


async def drive(plan: Plan) -> Tally:
    """After ``go`` on stdin."""
    worker = Worker(plan)
    await worker.open()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    return await worker.run()


def main() -> None:
    """A client process."""
    raw = json.loads(sys.argv[1])
    plan = Plan(**{**raw, "endpoints": tuple(raw["endpoints"]), "partitions": tuple(raw["partitions"])})
    os.nice(plan.niceness)
    sys.stdout.write(json.dumps(asdict(uvloop.run(drive(plan)))) + "\n")


if __name__ == "__main__":
    main()
