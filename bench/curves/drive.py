"""A closed loop into ``log`` partitions: so many requests under way at any time, each followed by the next.

``run`` measures; ``driving`` keeps a load up while something else is measured. Either way the clients are processes of
their own: this module is their program too.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import uvloop

from bench.report import ROOT, quantiles_ms
from logboom import Client, Record, RecordBlock

WARM_UP_S: Final = 0.5
PREPARED: Final = 16
"""Blocks are made before the clock runs, and used in turn."""
SAMPLES_MAX: Final = 2_000
"""Latencies kept per process, evenly chosen: a pipe has to take a tally as a whole (64 KiB).

What does not fit into it at once may be lost after ``uvloop.run``, without an error.
"""
GIVE_UP_S: Final = 120.0
"""A client that has not ended so long after it should have is killed, and the run fails."""
LEAST_PER_S: Final = 5e6
"""Bytes: slower than this a run over a fixed number of commands is given up."""


@dataclass(frozen=True)
class Drive:
    """What to do, and in which shape."""

    endpoints: tuple[str, ...]
    first: int = 0
    partitions: int = 8
    """From ``first`` on; every slot walks over all of them."""
    commands: int = 1_000
    """Per request; 1: as a single command."""
    size: int = 256
    """Bytes of a command."""
    under_way: int = 32
    """Requests, over all clients."""
    clients: int = 1
    processes: int = 1
    wait: str = "committed"
    seconds: float = 3.0
    total: int = 0
    """So many commands in place of ``seconds``, if above 0; then nothing warms up."""

    @property
    def patience_s(self) -> float:
        """Longer than it could take."""
        return GIVE_UP_S + (self.total * self.size / LEAST_PER_S if self.total else WARM_UP_S + self.seconds)


@dataclass(frozen=True)
class Driven:
    """What came out."""

    commands_per_s: float
    """Acknowledged."""
    until_applied_per_s: float
    """All commands by all the time, until the last was also applied: what can be kept up."""
    p50_ms: float
    p99_ms: float
    """Of a request."""


@dataclass
class Tally:
    """What one process has seen."""

    counted: int
    """Commands acknowledged in the ``window_s`` that count."""
    window_s: float
    commands: int
    elapsed_s: float
    latencies: list[float]


def summary(tallies: Sequence[Tally]) -> Driven:
    """All processes together. Raises ValueError if next to nothing was done."""
    p50, p99 = quantiles_ms(sorted(each for tally in tallies for each in tally.latencies))
    return Driven(
        commands_per_s=sum(tally.counted / tally.window_s for tally in tallies),
        until_applied_per_s=sum(t.commands for t in tallies) / max(t.elapsed_s for t in tallies),
        p50_ms=p50,
        p99_ms=p99,
    )


# -- the processes


def run(drive: Drive) -> Driven:
    """Raises RuntimeError if a client fails, ValueError if too little was done to measure."""
    with _started(drive) as processes:
        return summary([Tally(**json.loads(_line(process))) for process in processes])


@contextmanager
def driving(drive: Drive) -> Iterator[None]:
    """Under this load, until left."""
    with _started(drive):
        time.sleep(2 * WARM_UP_S)
        yield


@contextmanager
def _started(drive: Drive) -> Iterator[list[subprocess.Popen[str]]]:
    """The clients, told to go; those that still run at the end are killed."""
    with ExitStack() as stack:
        processes: list[subprocess.Popen[str]] = []
        for number in range(drive.processes):
            command = [sys.executable, "-m", "bench.curves.drive", str(number), json.dumps(asdict(drive))]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        watchdog = threading.Timer(drive.patience_s, _kill, [processes])
        stack.callback(watchdog.cancel)
        watchdog.start()
        for process in processes:
            if _line(process) != "ready":
                raise RuntimeError("a client did not get ready")
        for process in processes:
            if process.stdin is not None:
                process.stdin.write("go\n")
                process.stdin.flush()
        yield processes


def _kill(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line.endswith("\n"):
        raise RuntimeError(f"a client ended with status {process.wait()} after {line[:80]!r}; its error is above")
    return line.strip()


# -- one of them


async def work(drive: Drive, number: int) -> Tally:
    """The share of process ``number``, after ``go`` on stdin."""
    mine = range(number, drive.under_way, drive.processes)
    clients = [Client(drive.endpoints) for _ in range(len(range(number, drive.clients, drive.processes)))]
    try:
        for client in clients:
            await client.barrier(0, scope="leader")  # it knows the leader then, and asks nobody to pass requests on
        operations = [_operation(drive, clients[k % len(clients)], slot) for k, slot in enumerate(mine)]
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        return await _loop(drive, operations, clients)
    finally:
        for client in clients:
            await client.close()


Operation = Callable[[int], Awaitable[object]]
"""The slot's request of that turn."""


def _operation(drive: Drive, client: Client, slot: int) -> Operation:
    rng = random.Random(slot % PREPARED)

    def partition(turn: int) -> int:
        return drive.first + (slot + turn * drive.under_way) % drive.partitions

    if drive.commands == 1:
        record = Record(rng.randbytes(drive.size))
        return lambda turn: client.submit(partition(turn), record, wait=drive.wait)
    blocks = _blocks(drive)
    return lambda turn: client.submit_block(partition(turn), blocks[(slot + turn) % PREPARED], wait=drive.wait)


_made: list[RecordBlock] = []


def _blocks(drive: Drive) -> list[RecordBlock]:
    """Shared by all slots of a process."""
    ends = np.arange(1, drive.commands + 1, dtype=np.uint32) * np.uint32(drive.size)
    while len(_made) < PREPARED:
        data = random.Random(len(_made)).randbytes(drive.commands * drive.size)
        _made.append(RecordBlock.from_arrays(payload_ends=ends, data=data))
    return _made


async def _loop(drive: Drive, operations: Sequence[Operation], clients: Sequence[Client]) -> Tally:
    started = time.perf_counter()
    begin = started if drive.total else started + WARM_UP_S
    end = float("inf") if drive.total else begin + drive.seconds
    share = -(-drive.total // (drive.commands * drive.processes))
    begun = done = counted = 0
    latencies: list[float] = []

    async def repeat(operation: Operation) -> None:
        nonlocal begun, done, counted
        turn, now = 0, time.perf_counter()
        while now < end and (begun < share or not drive.total):
            begun += 1
            before = now
            await operation(turn)
            now = time.perf_counter()
            turn += 1
            done += drive.commands
            if begin <= now <= end:
                counted += drive.commands
                latencies.append(now - before)

    await asyncio.gather(*map(repeat, operations))
    window_s = time.perf_counter() - begin if drive.total else drive.seconds
    for client in clients:
        if client.last_seen > 0:
            await client.barrier(client.last_seen, timeout=GIVE_UP_S)
    latencies.sort()
    step = -(-len(latencies) // SAMPLES_MAX) or 1
    kept = [round(each, 6) for each in latencies[::step]]
    return Tally(counted, window_s, done, time.perf_counter() - started, kept)


def main() -> None:
    """A client process."""
    raw = json.loads(sys.argv[2])
    drive = Drive(**{**raw, "endpoints": tuple(raw["endpoints"])})
    sys.stdout.write(json.dumps(asdict(uvloop.run(work(drive, int(sys.argv[1]))))) + "\n")


if __name__ == "__main__":
    main()
