"""Batches of one partition, and a log on real files that they go into."""

from __future__ import annotations

from pathlib import Path

from logboom.records import RecordBlock
from logboom.settings import LogSettings
from logboom.types import DurabilityMode, PartitionId, ProducerId, Record, Term
from partitions.log.batch import Batch, BatchHeader, build_batch
from partitions.log.log import PartitionLog
from server.world.disk_os import OsDisk

P = PartitionId(3)
PRODUCER = ProducerId(bytes(range(16)))


def make(
    first: int,
    previous: bytes,
    payloads: list[bytes],
    *,
    term: int = 1,
    sequence: int = 0,
    producer: ProducerId = PRODUCER,
    **more: int,
) -> Batch:
    return build_batch(
        partition_id=P,
        first_index=first,
        term=Term(term),
        timestamp_ms=more.get("timestamp_ms", 1),
        producer=producer,
        epoch=more.get("epoch", 0),
        sequence=sequence,
        floor=more.get("floor", 0),
        dense=bool(more.get("dense", 0)),
        records=RecordBlock.from_columns(payloads=payloads).as_wide(wide=bool(more.get("wide", 0))),
        previous_digest=previous,
    )


def chain(count: int) -> list[Batch]:
    batches, previous, first = [], bytes(16), 1
    for number in range(count):
        batch = make(first, previous, [b"%d-%d" % (number, k) for k in range(1 + number % 3)])
        batches.append(batch)
        previous, first = batch.digest, batch.last_index + 1
    return batches


def open_log(path: Path, *, headers_only: bool = False, **changes: int) -> PartitionLog:
    return PartitionLog.open(
        disk=OsDisk(),
        directory=path,
        partition_id=P,
        settings=LogSettings(**{"segment_bytes": 4096, **changes}),  # type: ignore[arg-type]
        mode=DurabilityMode.WRITE_AHEAD,
        headers_only=headers_only,
    )


def flush(log: PartitionLog) -> None:
    job = log.take()
    if job is not None:
        job.run()
        job.done()


def commit(log: PartitionLog, batches: list[Batch]) -> None:
    for number, batch in enumerate(batches, 1):
        log.commit(last_index=batch.last_index, digest=batch.digest, global_index=number, term=1)


def header(number: int, producer: int, sequence: int, count: int, epoch: int) -> BatchHeader:
    return build_batch(
        partition_id=PartitionId(0),
        first_index=number,
        term=Term(1),
        timestamp_ms=0,
        producer=ProducerId(bytes([producer]) * 16),
        epoch=epoch,
        sequence=sequence,
        floor=0,
        dense=False,
        records=RecordBlock.from_records([Record(b"x")] * count),
        previous_digest=bytes(16),
    ).header
