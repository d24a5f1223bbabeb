"""A log of which a batch is damaged."""

from __future__ import annotations

import random
from pathlib import Path

from chaos.sim.disk import SimDisk
from logboom.settings import LogSettings
from logboom.types import DurabilityMode
from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from partitions.log.opening import LogBase
from tests.unit.partitions.batches import P, chain

DIRECTORY = Path("/n1/log")


COUNT = 9


def open_log(disk: SimDisk, base: LogBase | None = None) -> PartitionLog:
    return PartitionLog.open(
        disk=disk,
        directory=DIRECTORY,
        partition_id=P,
        settings=LogSettings(segment_bytes=700),
        mode=DurabilityMode.WRITE_AHEAD,
        base=base,
    )


def flush(log: PartitionLog) -> None:
    job = log.take()
    assert job is not None
    job.run()
    job.done()


def commit(log: PartitionLog, batches: list[Batch]) -> None:
    for number, batch in enumerate(batches, 1):
        log.commit(last_index=batch.last_index, digest=batch.digest, global_index=number, term=1)


def read(log: PartitionLog, after_index: int = 0) -> list[bytes]:
    found = log.read_committed(after_index=after_index, through_index=1 << 40, max_bytes=1 << 30)
    return [b.header.digest for b in found]


def grown() -> tuple[SimDisk, PartitionLog, list[Batch]]:
    disk, batches = SimDisk(random.Random(1)), chain(COUNT)
    log = open_log(disk)
    for batch in batches:
        log.append(batch)
        flush(log)
    commit(log, batches)
    return disk, log, batches


def damage(disk: SimDisk, log: PartitionLog, batch: Batch) -> None:
    ref = log.find(batch.last_index, batch.digest)
    assert ref is not None
    disk.flip(DIRECTORY / log._names[ref.segment], ref.offset + 70, 0x40)
