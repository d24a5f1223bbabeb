"""Files of every kind, whole, to be damaged byte by byte."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from chaos.sim.disk import Image, SimDisk
from dispatcher.pipeline.payloads import PartitionPayloads
from logboom.records import Record, RecordBlock
from logboom.settings import LogSettings
from logboom.types import NO_DIGEST, DurabilityMode, PartitionId, PartitionLogIndex, ProducerId, Term
from partitions.log.batch import Batch, build_batch
from partitions.log.log import PartitionLog
from partitions.log.segment import SEGMENT_HEADER_BYTES
from raftlog.entries.entry import Route, pack_routes
from raftlog.journal.journal import Journal
from raftlog.journal.outbox import GroupLimits, GroupSync
from raftlog.repair.wanted import Wanted
from tests.storage.node_world import Queue, Recovery

P = PartitionId(3)
LOGS = Path("/n/partitions/3")
JOURNAL = Path("/n/journal")


@dataclass
class Store:
    """A partition log and the journal that ordered its batches, all of it acknowledged."""

    image: Image
    batches: list[Batch]
    segment_bytes: int
    by_digest: dict[bytes, Batch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_digest = {batch.digest: batch for batch in self.batches}

    @property
    def routes(self) -> list[Route]:
        return [Route(P, Term(1), PartitionLogIndex(b.last_index), b.digest) for b in self.batches]

    def file(self, suffix: str) -> Path:
        return next(Path(path) for path in self.image.files if path.endswith(suffix))

    def size(self, path: Path) -> int:
        return self.image.files[str(path)][1]

    def batch_at(self, offset: int) -> int | None:
        """Which batch of the first segment has that byte."""
        at = SEGMENT_HEADER_BYTES
        for number, batch in enumerate(self.batches):
            if at <= offset < at + batch.nbytes:
                return number
            at += batch.nbytes
        return None

    def open_log(self, disk: SimDisk) -> PartitionLog:
        return PartitionLog.open(
            disk=disk,
            directory=LOGS,
            partition_id=P,
            settings=LogSettings(segment_bytes=self.segment_bytes, segment_ms=0),
            mode=DurabilityMode.WRITE_AHEAD,
        )


def varied(rng: random.Random, sizes: list[int]) -> list[Batch]:
    """A chain of batches, with keys, headers and many records here and there; about as large as asked for."""
    batches: list[Batch] = []
    for number, size in enumerate(sizes):
        count = rng.choice((1, 2, 7))
        records = [
            Record(
                rng.randbytes(size // count),
                key=rng.randbytes(9) if number % 3 else None,
                headers=(("name", b"value"),) if number % 4 == 1 else (),
            )
            for _ in range(count)
        ]
        batches.append(
            build_batch(
                partition_id=P,
                first_index=batches[-1].last_index + 1 if batches else 1,
                term=Term(1 + number // 5),
                timestamp_ms=rng.getrandbits(40),
                producer=ProducerId(rng.randbytes(16)),
                epoch=number % 2,
                sequence=number,
                floor=0,
                dense=bool(number % 2),
                records=RecordBlock.from_records(records),
                previous_digest=batches[-1].digest if batches else NO_DIGEST,
            )
        )
    return batches


def stored(sizes: list[int], *, segment_bytes: int) -> Store:
    """Written, ordered, acknowledged; and one journal record more, which carries the floor."""
    disk = SimDisk(random.Random(0))
    disk.make_directory(LOGS)
    store = Store(disk.image(), varied(random.Random(1), sizes), segment_bytes)
    log = store.open_log(disk)
    journal = Journal.open(
        disk=disk, directory=JOURNAL, cluster_id="c", segment_bytes=1 << 14, random_bytes=random.Random(0).randbytes
    )
    for batch, route in zip(store.batches, store.routes, strict=True):
        log.append(batch)
        journal.add(pack_routes([route]), journal.last_index + 1, 1)
    job = log.take()
    assert job is not None
    job.run()
    job.done()
    journal.flush()
    journal.acknowledged(journal.last_index)
    journal.setCurrentTerm(2, "n2")
    journal.flush()
    log.close()
    journal.close()
    store.image = disk.image()
    return store


@dataclass
class Recovered:
    """What a start makes of a store."""

    log: PartitionLog
    journal: Journal
    group: GroupSync
    payloads: PartitionPayloads
    wanted: list[Wanted]
    may_lead: bool

    @property
    def missing(self) -> list[Route]:
        return [wanted.route for wanted in self.wanted]


def recovered(store: Store, disk: SimDisk) -> Recovered:
    log = store.open_log(disk)
    journal = Journal.open(
        disk=disk, directory=JOURNAL, cluster_id="c", segment_bytes=1 << 14, random_bytes=random.Random(0).randbytes
    )
    failures: list[BaseException] = []
    group = GroupSync(
        journal=journal,
        offload=Queue(),  # type: ignore[arg-type]
        clock=SimpleNamespace(monotonic=lambda: 0.0),  # type: ignore[arg-type]
        synced=lambda: None,
        failed=failures.append,
        limits=GroupLimits(),
    )
    payloads = PartitionPayloads({P: log}, group.dirty)
    recovery = Recovery(journal, payloads, group)
    recovery.recover()
    return Recovered(log, journal, group, payloads, recovery.wanted, bool(recovery.engine.may_lead))


def flipped(image: Image, path: Path, offset: int, mask: int) -> SimDisk:
    disk = SimDisk.of(image, random.Random(0))
    disk.flip(path, offset, mask)
    return disk


def mask_of(offset: int) -> int:
    """One bit here, all of them there."""
    return (0xFF, 1, 0x80, 0x20, 4)[offset % 5]
