"""A node's logs, for what reads them: several partitions in one order, jobs that run when the test says so."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chaos.sim.disk import SimDisk
from dispatcher.pipeline.backend import Backend as RealBackend
from dispatcher.reading.lately import Lately
from dispatcher.reading.read_budget import ReadBudget
from dispatcher.reading.read_rates import Pace, ReadRates
from dispatcher.reading.surroundings import Horizon
from logboom.client.log_batches import batches_of
from logboom.errors import LogboomError, NoSuchPartition
from logboom.records import RecordBlock
from logboom.settings import LogSettings, ReadSettings
from logboom.types import DurabilityMode, Level, PartitionId, ProducerId, Record, Term
from logboom.wire import Frame, Kind
from partitions.log.batch import Batch, build_batch
from partitions.log.holes import Hole
from partitions.log.log import PartitionLog

SETTINGS = LogSettings(segment_bytes=2000, open_files_max=2, reader_lease_ms=1000)

ANY_PACE = ReadRates(per_s=0, burst_ms=0, clock=SimpleNamespace(monotonic=lambda: 0.0)).enter("")  # type: ignore[arg-type]
"""Of a client that may read as fast as it can."""

ORDERED = -1
"""In the place of a partition: all of them."""


class World:
    """Batches are appended and committed one by one; ``global_index`` counts them."""

    def __init__(self, partitions: int = 3, *, reads: ReadSettings | None = None) -> None:
        reads = reads or ReadSettings()
        self.disk = SimDisk(random.Random(1))
        self.settings = SimpleNamespace(reads=reads)
        self.read_budget = ReadBudget(bytes_max=reads.memory_bytes, segments_max=reads.segments_max)
        self.clock = self.offload = self
        self.now = 100.0
        self.whole = True
        """It has all that it had before it was started."""
        self.jobs: list[Callable[[], None]] = []
        self.wakers: dict[int, list[Callable[..., None]]] = {}
        self.damages: list[tuple[int, Any]] = []
        self.lost: set[bytes] = set()
        self.voids: set[bytes] = set()
        """What is void, and lacking in the states of this node alone."""
        self.applied: dict[int, int] = {}
        self.batches: dict[int, list[Batch]] = {}
        self.parent = SimpleNamespace(global_index=0)
        self.lately = Lately()
        self.logs = {
            p: PartitionLog.open(
                disk=self.disk,
                directory=Path(f"/n1/{p}"),
                partition_id=PartitionId(p),
                settings=SETTINGS,
                mode=DurabilityMode.WRITE_BEHIND if p == partitions - 1 else DurabilityMode.WRITE_AHEAD,
            )
            for p in range(partitions)
        }

    def append(
        self,
        partition: int,
        payloads: Sequence[bytes | Record],
        *,
        sync: bool = True,
        at_ms: int = 0,
        is_lost: bool = False,
    ) -> Batch:
        """``is_lost``: nobody has it."""
        log, done = self.logs[partition], self.batches.setdefault(partition, [])
        records = [each if isinstance(each, Record) else Record(each) for each in payloads]
        batch = build_batch(
            partition_id=PartitionId(partition),
            first_index=done[-1].last_index + 1 if done else 1,
            term=Term(1),
            timestamp_ms=at_ms or 1000 + self.parent.global_index,
            producer=ProducerId(bytes(16)),
            epoch=0,
            sequence=done[-1].last_index if done else 0,
            floor=0,
            dense=False,
            records=RecordBlock.from_records(records),
            previous_digest=done[-1].digest if done else bytes(16),
        )
        assert log.concede(batch.last_index, batch.digest) if is_lost else log.append(batch)
        done.append(batch)
        self.sync(partition, wanted=sync)
        self.parent.global_index += 1
        log.commit(last_index=batch.last_index, digest=batch.digest, global_index=self.parent.global_index, term=1)
        self.lately.ordered(self.parent.global_index, PartitionId(partition))
        self.wake(partition)
        self.wake(ORDERED)
        return batch

    def sync(self, partition: int, *, wanted: bool = True) -> None:
        log = self.logs[partition]
        if wanted:
            log.request_sync()
        job = log.take()
        if job is not None:
            job.run()
            job.done()

    def wake(self, partition: int, *error: LogboomError) -> None:
        for waker in list(self.wakers.get(partition, ())):
            waker(*error)

    def damage(self, partition: int, number: int) -> Batch:
        batch, log = self.batches[partition][number], self.logs[partition]
        ref = log.find(batch.last_index, batch.digest)
        assert ref is not None
        self.disk.flip(log._path(ref.segment), ref.offset + 70, 1)
        return batch

    def mend(self, partition: int, batch: Batch) -> None:
        assert self.logs[partition].append(batch)
        self.sync(partition)

    # -- what a node offers

    def log(self, partition: int) -> PartitionLog:
        return self.logs[partition]

    def recovered(self, partitions: Any = None) -> bool:
        return self.whole

    def has_log(self, partition: int) -> bool:
        return self.whole

    def partition_ids(self) -> list[int]:
        return sorted(self.logs)

    @property
    def workers(self) -> Any:
        return self.logs

    def missing(self, partition: int) -> LogboomError:
        return NoSuchPartition(f"no partition {partition}", partition_id=partition, partitions=len(self.logs))

    def monotonic(self) -> float:
        return self.now

    def subscribe_commits(self, partition: int, waker: Callable[..., None]) -> Callable[[], None]:
        self.wakers.setdefault(partition, []).append(waker)
        return lambda: self.wakers[partition].remove(waker)

    subscribe_applied = subscribe_commits

    def subscribe_ordered(self, waker: Callable[..., None]) -> Callable[[], None]:
        return self.subscribe_commits(ORDERED, waker)

    def global_commit_index(self) -> int:
        return int(self.parent.global_index)

    def applied_index(self, partition: int) -> int:
        return self.applied.get(partition, 0)

    @property
    def watermarks(self) -> Any:
        applied = self.applied
        return SimpleNamespace(
            of=lambda p: SimpleNamespace(applied_index=applied.get(p, 0), applied_global_index=applied.get(p, 0))
        )

    @property
    def _unsynced(self) -> set[int]:
        return set(self.logs)

    _touched = _unsynced

    def safe_horizon(self, partitions: Any, level: Level) -> Horizon:
        return RealBackend.safe_horizon(self, partitions, level)  # type: ignore[arg-type]

    def damaged(self, partition: int, damage: Any) -> None:
        self.damages.append((partition, damage))
        self.logs[partition].lose(damage.last_index, damage.digest)

    def is_lost(self, digest: bytes) -> bool:
        return digest in self.lost

    def hole_of(self, partition: int) -> Hole | None:
        return self.logs[partition].hole

    def lacks_void(self, partition: int, digest: bytes) -> bool:
        return digest in self.voids

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def run() -> None:
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 - as the port says
                done(None, error)
            else:
                done(result, None)

        self.jobs.append(run)

    async def run(self, job: Callable[[], Any]) -> Any:
        return job()

    def work(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


class Client:
    """The other end of a stream."""

    def __init__(self) -> None:
        self.frames: list[tuple[Kind, dict[str, Any], bytes]] = []
        self.ends: list[LogboomError | None] = []
        self.congested = False
        self.pace: Pace | None = None

    def send(self, kind: Kind, header: dict[str, Any], body: list[Any], flags: int) -> None:
        self.frames.append((kind, header, b"".join(bytes(part) for part in body)))

    def how(self) -> dict[str, Any]:
        return {
            "send": self.send,
            "congested": lambda: self.congested,
            "ended": self.ends.append,
            "pace": self.pace or ANY_PACE,
        }

    def of(self, kind: Kind) -> list[tuple[dict[str, Any], bytes]]:
        return [(header, body) for each, header, body in self.frames if each is kind]


async def answer(frames: AsyncIterator[tuple[dict[str, Any], list[bytes]]]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    async for header, body in frames:
        raw, at = b"".join(body), 0
        for number, length in zip(header["rows"], header["lengths"], strict=True):
            assert number not in found
            found[number] = raw[at : at + length]
            at += length
        assert at == len(raw)
    return found


def indexes(client: Client) -> list[int]:
    return [
        int(index)
        for kind, header, body in client.frames
        if kind in (Kind.RECORDS, Kind.BATCHES)
        for batch in batches_of(Frame(kind, 1, header, memoryview(body)))
        for index in batch.indexes()
    ]
