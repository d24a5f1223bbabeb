"""A worker over a real log on a memory disk, in virtual time, with a machine that fails on demand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from logboom.errors import CorruptData
from logboom.settings import ApplySettings, LogSettings
from logboom.state_machine import NOWHERE, ApplyBatch, Position, Results, Sealed
from logboom.types import NO_DIGEST, DurabilityMode, ProducerId
from partitions.apply.apply_core import AppliedBatch
from partitions.apply.slow_groups import SlowGroups
from partitions.apply.worker import ApplyWorker
from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from ports.offload import Offload
from tests.unit.partitions.batches import PRODUCER, P, flush, make
from tests.unit.raftlog.world import MemoryDisk, VirtualClock, VirtualLoop, VirtualOffload

JOB_S = 0.0001
"""What a job takes, when jobs run by themselves."""


class Machine:
    """Notes what is applied and when; fails as often as it is told to, after the results were sealed."""

    needs_records = True

    def __init__(self, loop: VirtualLoop, position: Position) -> None:
        self.loop = loop
        self.at = position
        self.applies_in_memory = False
        self.attempts: list[float] = []
        self.applied: list[int] = []
        self.failures: list[Exception] = []
        self.poison = 0
        """It fails at a batch that begins there."""
        self.fails_late = False
        """When all of it has taken effect, too."""
        self.checkpoints = 0
        self.takes_s = 0.0
        self.grows = self.unsaved_bytes = 0
        self.frees = 1 << 30

    def position(self) -> Position:
        return self.at

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def checkpoint(self) -> None:
        self.checkpoints += 1
        self._fail()
        self.unsaved_bytes = max(0, self.unsaved_bytes - self.frees)

    def apply(self, batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
        self.attempts.append(self.loop.now)
        self.loop.now += self.takes_s
        if self.poison in [batch.first_index for batch in batches]:
            raise RuntimeError("poisoned")
        results = [b"\0"] * len(batches)
        position, _ = seal(results)
        if not self.fails_late:
            self._fail()
        self.at = position
        self.applied += [batch.first_index for batch in batches]
        self._fail()
        self.unsaved_bytes += self.grows
        return results

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


class Untold:
    """Of a user's: whoever shows it fails."""

    def __repr__(self) -> str:
        raise AttributeError("entry")

    __str__ = __repr__


class HeldOffload:
    """Jobs wait until the test lets them run."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.jobs.append((job, done))

    def finish(self, which: int = 0) -> None:
        job, done = self.jobs.pop(which)
        try:
            result = job()
        except (OSError, MemoryError, CorruptData) as error:
            done(None, error)
        else:
            done(result, None)


class World:
    """A worker over a real log on a memory disk, in virtual time."""

    def __init__(
        self,
        offload: Any = None,
        *,
        position: Position = NOWHERE,
        seed: int = 0,
        applies_in_memory: bool = False,
        needs_records: bool = True,
        recent_bytes: int = LogSettings().recent_bytes,
        saves: HeldOffload | None = None,
        disk: MemoryDisk | None = None,
        slow: SlowGroups | None = None,
        loop: VirtualLoop | None = None,
        **changes: int,
    ) -> None:
        self.loop = loop or VirtualLoop()
        self.held = HeldOffload() if offload is HeldOffload else None
        slowest = JOB_S if offload is None else 0.05
        runs: Offload = self.held or VirtualOffload(self.loop, random.Random(seed), slowest)  # type: ignore[assignment]
        self.machine = Machine(self.loop, position)
        self.machine.applies_in_memory, self.machine.needs_records = applies_in_memory, needs_records
        self.log = PartitionLog.open(
            disk=disk or MemoryDisk(),
            directory=Path("/partition"),
            partition_id=P,
            settings=LogSettings(recent_bytes=recent_bytes),
            mode=DurabilityMode.WRITE_AHEAD,
            headers_only=not needs_records,
            clock=VirtualClock(self.loop),
        )
        self.progress: list[list[AppliedBatch]] = []
        self.states: list[str] = []
        self.fatal: list[BaseException] = []
        self.batches: list[Batch] = []
        self.ends: list[int] = []
        self.head = NO_DIGEST
        self._runs, self._saves, self._changes, self._slow = runs, saves or runs, changes, slow
        self.worker = self._worker_of(self.machine)

    def _worker_of(self, machine: Machine) -> ApplyWorker:
        return ApplyWorker(
            log=self.log,
            machine=machine,  # type: ignore[arg-type]
            offload=self._runs,
            save_offload=self._saves,  # type: ignore[arg-type]
            clock=VirtualClock(self.loop),
            settings=ApplySettings(**{"linger_ms": 0, **self._changes}),  # type: ignore[arg-type]
            on_progress=self._progressed,
            fatal=self.fatal.append,
            slow=self._slow,
        )

    def another(self) -> ApplyWorker:
        """For a state that is made anew, from the beginning."""
        return self._worker_of(Machine(self.loop, NOWHERE))

    def _progressed(self, batches: Sequence[AppliedBatch]) -> None:
        self.progress.append(list(batches))
        self.states.append(self.worker.state)

    @property
    def under_way(self) -> int:
        assert self.held is not None
        return len(self.held.jobs)

    @property
    def reported(self) -> list[int]:
        return [batch.first_index for batches in self.progress for batch in batches]

    def commit(
        self,
        count: int = 1,
        *,
        records: int = 2,
        payload: bytes = b"x",
        wide: bool = False,
        sequence: int | None = None,
        producer: ProducerId = PRODUCER,
    ) -> None:
        for _ in range(count):
            first = self.log.committed_index + 1
            number = first - 1 if sequence is None else sequence
            batch = make(first, self.head, [payload] * records, sequence=number, producer=producer, wide=wide)
            self.log.append(batch)
            flush(self.log)
            self.batches.append(batch)
            self.ends.append(batch.last_index)
            self.log.commit(last_index=batch.last_index, digest=batch.digest, global_index=10 * len(self.ends), term=1)
            self.head = batch.digest

    def notify(self, *, urgent: bool = True) -> None:
        self.worker.notify(self.log.durable_index, urgent=urgent)

    def finish(self, which: int = 0) -> None:
        assert self.held is not None
        self.held.finish(which)

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.run_until_complete(story())


@contextmanager
def world(*how: Any, **changes: Any) -> Iterator[World]:
    made = World(*how, **changes)
    try:
        yield made
    finally:
        made.loop.close()
        made.log.close()


def failures(count: int) -> list[Exception]:
    return [OSError(f"injected {k}") for k in range(count)]


def pauses(attempts: list[float]) -> list[int]:
    return [round((b - a - JOB_S) * 1000) for a, b in pairwise(attempts)]


def inline(**changes: Any) -> Any:
    """A worker whose jobs wait for the test if they go elsewhere."""
    return world(HeldOffload, applies_in_memory=True, **{"linger_ms": 100, **changes})


async def turn() -> None:
    await asyncio.sleep(0)
