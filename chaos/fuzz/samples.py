"""Small, sound things for the seed corpora, all from the real encoders."""

from __future__ import annotations

from typing import Any

from logboom.commands import Add, Cas, Delete, Put, SimpleCommand
from logboom.origins import Origin
from logboom.records import RecordBlock
from logboom.types import NO_PRODUCER, PartitionId, PartitionLogIndex, ProducerId, Record, Term
from partitions.log.batch import Batch, build_batch

PRODUCER = ProducerId(bytes(range(16)))


def records(count: int, *, headers: bool = False) -> list[Record]:
    rows = (("name", b"value"), ("n", b"")) if headers else ()
    return [Record(b"payload %d" % n, b"key%d" % n, rows if n % 2 == 0 else ()) for n in range(count)]


def commands() -> list[SimpleCommand]:
    return [
        Put(b"a", b"value"),
        Cas(b"a", b"value", b"other"),
        Cas(b"b", None, b"new"),
        Cas(b"b", b"new", None),
        Delete(b"a"),
        Add(b"n", 1, -2),
        Add(b"n", 1 << 62, 7),
        Add(b"f", 0.5),
        Add(b"f", 1e308),
    ]


def block() -> RecordBlock:
    return RecordBlock.from_records([command.record() for command in commands()])


def batch(records_of: RecordBlock | None = None, *, previous: Batch | None = None, partition: int = 1) -> Batch:
    """The first batch of a partition, or the one after ``previous``."""
    return build_batch(
        partition_id=PartitionId(partition),
        first_index=previous.last_index + 1 if previous is not None else 1,
        term=Term(2),
        timestamp_ms=1_700_000_000_000,
        producer=PRODUCER,
        epoch=1,
        sequence=previous.last_index if previous is not None else 0,
        floor=0,
        dense=previous is not None,
        records=records_of or block(),
        previous_digest=previous.digest if previous is not None else bytes(16),
    )


def mixed_batch(partition: int = 1) -> Batch:
    """The first batch of a partition, of three producers, one of them nobody."""
    rows = records(5)
    shares = [(PRODUCER, 1, 2, 7, 3), (NO_PRODUCER, 0, 1, 0, 0), (ProducerId(bytes(range(1, 17))), 0, 2, 0, 0)]
    origins, index = [], 1
    for producer, epoch, count, sequence, floor in shares:
        origins.append(Origin(producer, epoch, PartitionLogIndex(index), count, sequence, floor))
        index += count
    return build_batch(
        partition_id=PartitionId(partition),
        first_index=1,
        term=Term(2),
        timestamp_ms=1_700_000_000_000,
        records=RecordBlock.from_records(rows),
        previous_digest=bytes(16),
        origins=tuple(origins),
    )


def raw(of: Batch) -> bytes:
    return b"".join(of.buffers)


def submit_header(of: RecordBlock) -> dict[str, Any]:
    return {
        "producer": PRODUCER,
        "epoch": 1,
        "dense": False,
        "wait": "applied",
        "timeout_ms": 1000,
        "forward": False,
        "parts": [[0, 0, 0, of.count, len(of.metadata), len(of.data)]],
    }
