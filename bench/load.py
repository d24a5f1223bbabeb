"""A closed loop: so many operations under way at any time, each followed by the next.

``run`` spreads it over client processes (this module is their program too), so that one Python
interpreter is not what is measured. The same for all systems.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import uvloop

from bench import cpu, targets
from bench.cpu import cpu_seconds
from bench.targets import PARTITIONS, VALUE_BYTES

WARM_UP_S: Final = 0.5
PATIENCE_S: Final = 20.0
"""For a client to connect."""
SAMPLES_MAX: Final = 5_000
"""Latencies kept per process, evenly chosen."""
GIVE_UP_S: Final = 120.0
"""A client that has not ended this long after it should have is killed, and the run fails."""


class NothingMeasured(RuntimeError):
    """Too few operations ended within the window for a latency."""


@dataclass(frozen=True)
class Load:
    """What to do, and in which shape."""

    system: str
    endpoints: tuple[str, ...]
    records: int = 1
    """Commands per operation; 1: as single commands."""
    concurrency: int = 1
    processes: int = 1
    connections: int = 1
    """Per process."""
    partitions: int = PARTITIONS
    """Spread over so many, or over so many streams; 1 where a system has one log."""
    seconds: float = 3.0
    machine: str = "kv"
    wait: str = "applied"
    seed: int = 1
    apart: bool = False
    """Leader and clients on one half of the CPUs, the followers on the other, as if on machines of their own."""
    value_bytes: int = VALUE_BYTES

    @property
    def shape(self) -> str:
        """For people."""
        block = f", blocks of {self.records}" if self.records > 1 else ""
        spread = f", {self.partitions} partitions" if self.partitions > 1 else ""
        apart = ", followers on CPUs of their own" if self.apart else ""
        under_way = f"{self.concurrency} under way, {self.processes} x {self.connections} connections"
        return f"{under_way}{block}{spread}{apart}"


@dataclass(frozen=True)
class Measured:
    """What came out."""

    commands_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_command: float
    """User and system time of all server processes, until everything acknowledged was also applied."""
    drain_s: float
    """How long that took after the last acknowledgement."""
    until_applied_per_s: float
    """All commands by all the time from the first to the end of the drain: what can be kept up."""


@dataclass
class Tally:
    """What one process has seen."""

    commands: int = 0
    in_window: int = 0
    latencies: list[float] | None = None
    drain_s: float = 0.0
    elapsed_s: float = 0.0


async def drive(load: Load) -> Tally:
    """One process's share, after ``go`` on stdin."""
    target = targets.make(
        load.system,
        list(load.endpoints),
        load.seed,
        machine=load.machine,
        wait=load.wait,
        partitions=load.partitions,
        value_bytes=load.value_bytes,
    )
    await asyncio.wait_for(target.open(load.connections), PATIENCE_S)
    slots = _operations(target, load)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    tally, latencies = Tally(), array("d")  # a float of its own for each would cost a quick system a tenth
    begin = time.perf_counter() + WARM_UP_S
    end = begin + load.seconds

    async def repeat(operation: targets.Operation) -> None:
        clock, note, times, in_window = time.perf_counter, latencies.append, 0, 0
        now = clock()
        while now < end:
            started = now
            await operation()
            now = clock()
            times += 1
            if begin <= now <= end:
                in_window += 1
                note(now - started)
        tally.commands += times * load.records
        tally.in_window += in_window * load.records

    try:
        await asyncio.gather(*map(repeat, slots))
        ended = time.perf_counter()
        await target.drain()
        tally.drain_s = time.perf_counter() - ended
        tally.elapsed_s = time.perf_counter() - begin + WARM_UP_S
    finally:
        await target.close()
    step = max(1, len(latencies) // SAMPLES_MAX)
    tally.latencies = [round(each, 6) for each in sorted(latencies)[::step]]
    return tally


def _operations(target: targets.Target, load: Load) -> list[targets.Operation]:
    """One for each slot; single commands of the same connection and partition share one, which stays in the cache."""
    if load.records > 1:
        return [target.bulk(slot, load.records) for slot in range(load.concurrency)]
    different = min(load.concurrency, math.lcm(load.connections, load.partitions))
    made = [target.single(slot) for slot in range(different)]
    return [made[slot % different] for slot in range(load.concurrency)]


def run(load: Load, pids: Sequence[int], *, leader: int) -> Measured:
    """Drive the load from its processes while counting the servers' CPU. Raises RuntimeError if a client fails.

    ``pids``: of the nodes, whose children count too; ``leader``: the one among them that leads.
    """
    near, far = cpu.halves() if load.apart else (os.sched_getaffinity(0),) * 2
    for pid in pids:
        cpu.place(pid, near if pid == leader else far)
    share, rest = divmod(load.concurrency, load.processes)
    clients: list[subprocess.Popen[str]] = []
    watchdog = threading.Timer(WARM_UP_S + load.seconds + GIVE_UP_S, _end, [clients])
    watchdog.start()
    try:
        for k in range(load.processes):
            mine = replace(load, concurrency=share + (k < rest), seed=load.seed * 100 + k)
            client = subprocess.Popen(
                [sys.executable, "-m", "bench.load", json.dumps(asdict(mine))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).resolve().parent.parent,
            )
            clients.append(client)
            cpu.place(client.pid, near)
        if any(_line(client) != "ready" for client in clients):
            raise RuntimeError(f"a client of {load.system} did not get ready")
        before = cpu_seconds(pids)
        for client in clients:
            _tell(client)
        tallies = [Tally(**json.loads(_line(client))) for client in clients]
        used = cpu_seconds(pids) - before
    finally:
        watchdog.cancel()
        for client in clients:
            if client.poll() is None:
                try:
                    client.wait(5)
                except subprocess.TimeoutExpired:
                    client.kill()
                    client.wait()
            for pipe in (client.stdin, client.stdout):
                if pipe is not None:
                    pipe.close()
    return summary(tallies, seconds=load.seconds, cpu_s=used)


def summary(tallies: Sequence[Tally], *, seconds: float, cpu_s: float) -> Measured:
    """All processes together."""
    latencies = sorted(each for tally in tallies for each in tally.latencies or [])
    if len(latencies) < 2:
        raise NothingMeasured("fewer than two operations ended in time: nothing was measured")
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    return Measured(
        commands_per_s=sum(tally.in_window for tally in tallies) / seconds,
        p50_ms=cuts[49] * 1000,
        p99_ms=cuts[98] * 1000,
        cpu_us_per_command=cpu_s * 1e6 / sum(tally.commands for tally in tallies),
        drain_s=max(tally.drain_s for tally in tallies),
        until_applied_per_s=sum(tally.commands for tally in tallies) / max(tally.elapsed_s for tally in tallies),
    )


def _line(client: subprocess.Popen[str]) -> str:
    line = client.stdout.readline() if client.stdout is not None else ""
    if not line.endswith("\n"):
        raise RuntimeError(f"a client ended with status {client.wait()}; its error is above")
    return line.strip()


def _end(clients: Sequence[subprocess.Popen[str]]) -> None:
    for client in clients:
        client.kill()


def _tell(client: subprocess.Popen[str]) -> None:
    if client.stdin is not None:
        client.stdin.write("go\n")
        client.stdin.flush()


def main() -> None:
    """A client process."""
    raw = json.loads(sys.argv[1])
    load = Load(**{**raw, "endpoints": tuple(raw["endpoints"])})
    tally = uvloop.run(drive(load))
    sys.stdout.write(json.dumps(asdict(tally)) + "\n")


if __name__ == "__main__":
    main()
