"""A partition log that is grown, opened from a base, and loses its old segments."""

from __future__ import annotations

import random
from pathlib import Path

from chaos.sim.disk import SimDisk
from logboom.settings import LogSettings
from logboom.types import DurabilityMode
from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from partitions.log.opening import LogBase
from ports.disk import Disk
from tests.unit.partitions.batches import P, chain

DIRECTORY = Path("/n1/log")
SETTINGS = LogSettings(segment_bytes=900, open_files_max=2, reader_lease_ms=1000)
COUNT = 40


def open_log(
    disk: Disk,
    base: LogBase | None = None,
    *,
    settings: LogSettings = SETTINGS,
    directory: Path = DIRECTORY,
    mode: DurabilityMode = DurabilityMode.WRITE_AHEAD,
) -> PartitionLog:
    log = PartitionLog.open(
        disk=disk,
        directory=directory,
        partition_id=P,
        settings=settings,
        mode=mode,
        base=base,
    )
    log.write_again(lambda _: False)
    return log


def flush(log: PartitionLog, *, journaled: bool = False) -> None:
    job = log.take()
    if job is not None:
        if journaled:
            job.redo()
        job.run()
        job.done()


def commit(log: PartitionLog, batches: list[Batch], *, start: int = 0) -> None:
    for number, batch in enumerate(batches, start + 1):
        log.commit(last_index=batch.last_index, digest=batch.digest, global_index=10 * number, term=1)


def append(log: PartitionLog, batches: list[Batch]) -> None:
    for batch in batches:
        assert log.append(batch)
        flush(log)


def grown(disk: Disk | None = None, count: int = COUNT) -> tuple[SimDisk, PartitionLog, list[Batch]]:
    disk, batches = disk or SimDisk(random.Random(1)), chain(count)
    log = open_log(disk)
    append(log, batches)
    commit(log, batches)
    return disk, log, batches  # type: ignore[return-value]


def base_at(batches: list[Batch], count: int, *, empty_ok: bool = False) -> LogBase:
    """After so many batches."""
    last = batches[count - 1]
    return LogBase(last.last_index, last.digest, 10 * count, empty_ok)  # type: ignore[arg-type]


def settle(log: PartitionLog, base: LogBase, *, keep_from: int | None = None) -> None:
    """As when a newer snapshot is complete: places, (base), segments."""
    log.save_places(base.last_index)()
    log.compact(base.last_index + 1 if keep_from is None else keep_from)()


def digests(log: PartitionLog, *, after: int = 0) -> list[bytes]:
    found = log.read_committed(after_index=after, through_index=1 << 40, max_bytes=1 << 30)
    return [each.header.digest for each in found]


def raw(batch: Batch) -> bytes:
    return b"".join(bytes(buffer) for buffer in batch.buffers)
