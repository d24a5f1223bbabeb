"""What nodes send of the log."""

from __future__ import annotations

from array import array
from typing import Any

from logboom import RecordBlock
from logboom.types import PartitionId, ProducerId, Term
from partitions.log.batch import build_batch


def raw(partition: int, first: int, payloads: list[bytes]) -> bytes:
    batch = build_batch(
        partition_id=PartitionId(partition),
        first_index=first,
        term=Term(2),
        timestamp_ms=77,
        producer=ProducerId(b"p" * 16),
        epoch=3,
        sequence=first + 100,
        floor=0,
        dense=False,
        records=RecordBlock.from_columns(payloads=payloads),
        previous_digest=bytes(16),
    )
    return b"".join(bytes(buffer) for buffer in batch.buffers)


def whole(rows: list[tuple[int, bytes]], *, first: int = 0, **more: Any) -> tuple[dict[str, Any], list[bytes]]:
    header = {"global_indexes": array("Q", [g for g, _ in rows]).tobytes(), "first_index": first, **more}
    return header, [each for _, each in rows]
