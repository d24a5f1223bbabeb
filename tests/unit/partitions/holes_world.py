"""A log with batches that nobody has."""

from __future__ import annotations

import random

from chaos.sim.disk import SimDisk
from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from tests.unit.partitions.batches import chain
from tests.unit.partitions.mending_world import flush, open_log

GONE = 2
"""Of seven."""


def commit(log: PartitionLog, batches: list[Batch], *, after: int = 0) -> None:
    for number, batch in enumerate(batches[after:], after + 1):
        log.commit(last_index=batch.last_index, digest=batch.digest, global_index=number, term=1)


def with_hole(*gone: int) -> tuple[SimDisk, PartitionLog, list[Batch]]:
    disk, batches = SimDisk(random.Random(1)), chain(7)
    log = open_log(disk)
    for number, batch in enumerate(batches):
        if number in (gone or (GONE,)):
            assert log.concede(batch.last_index, batch.digest)
        else:
            log.append(batch)
            flush(log)
    commit(log, batches)
    return disk, log, batches


def digests(log: PartitionLog, after: int = 0) -> list[bytes]:
    return [b.header.digest for b in log.read_committed(after_index=after, through_index=1 << 40, max_bytes=1 << 30)]
