"""What was read as Arrow columns: whole batches at a time, nothing per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logboom.client.reads import LogBatch
from logboom.errors import CorruptData
from logboom.records import Buffer, RecordBlock, lengths_of
from logboom.spark import headers as headers_of
from logboom.types import MIB, NO_PRODUCER, PartitionLogIndex

STATE: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("numbers", pa.list_(pa.int64())),
        ("doubles", pa.list_(pa.float64())),
        ("global_offset", pa.int64()),
    ]
)
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
LOG: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("global_offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
PRODUCER: Final = (pa.field("producer", pa.binary()), pa.field("epoch", pa.int64()), pa.field("sequence", pa.int64()))
BATCH_BYTES_MAX: Final = 1 * MIB


def log_schema(*, headers: bool = False, producer: bool = False) -> pa.Schema:
    """Columns of ``view=log``."""
    return pa.schema([*LOG, *([headers_of.COLUMN] if headers else []), *(PRODUCER if producer else ())])


def cut(batch: LogBatch, first: int, last: int) -> LogBatch | None:
    """The records of a batch from offset ``first`` to ``last``; None: there are none."""
    low, high = max(first, batch.first_index), min(last, batch.last_index)
    if (low, high) == (batch.first_index, batch.last_index):
        return batch
    if low > high:
        return None
    skipped = low - batch.first_index
    return replace(
        batch,
        first_index=PartitionLogIndex(low),
        sequence=0 if batch.origins else batch.sequence + skipped,
        records=batch.records.take(skipped, high - batch.first_index + 1),
        next_index=PartitionLogIndex(0),
    )


def log_columns(batches: Sequence[LogBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The columns that ``schema`` names, of one or many batches at once."""
    counts = np.asarray([b.records.count for b in batches], np.int64)
    made = [_column(field.name, batches, counts) for field in schema]
    return pa.RecordBatch.from_arrays(made, schema=schema)


def _column(name: str, batches: Sequence[LogBatch], counts: npt.NDArray[np.int64]) -> Any:
    if name == "partition":
        return pa.array(np.repeat(np.asarray([b.partition_id for b in batches], np.int32), counts))
    if name == "offset":
        return pa.array(_rising([b.first_index for b in batches], counts))
    if name == "global_offset":
        return pa.array(np.repeat(np.asarray([b.global_index for b in batches], np.int64), counts))
    if name == "timestamp":
        stamps = np.repeat(np.asarray([b.timestamp_ms for b in batches], np.int64) * 1000, counts)
        return pa.array(stamps).cast(TIMESTAMP)
    if name == "key":
        return _keys(batches, int(counts.sum()))
    if name == "value":
        return _joined([b.records.payload_ends for b in batches], [b.records.data for b in batches])
    if name == "headers":
        return _headers(batches)
    return _numbered(name, batches)


def _rising(firsts: Sequence[int], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each batch ``first``, ``first`` + 1, ..., back to back."""
    before = np.cumsum(counts) - counts
    rising: npt.NDArray[np.int64] = np.arange(int(counts.sum()), dtype=np.int64)
    rising += np.repeat(np.asarray(firsts, np.int64) - before, counts)
    return rising


def _keys(batches: Sequence[LogBatch], count: int) -> Any:
    if not any(b.records.has_keys for b in batches):
        return pa.nulls(count, pa.binary())
    ends = [b.records.key_ends for b in batches]
    empty = np.concatenate([lengths_of(e) == 0 for e in ends])
    valid = pa.array(~empty).buffers()[1] if empty.any() else None
    return _joined(ends, [b.records.key_bytes if b.records.has_keys else b"" for b in batches], valid)


def _headers(batches: Sequence[LogBatch]) -> Any:
    if not any(b.records.has_headers for b in batches):
        return pa.nulls(sum(b.records.count for b in batches), headers_of.COLUMN.type)
    packed = [b.records.packed_headers() for b in batches]
    return headers_of.unpacked(_joined([ends for _, ends in packed], [raw for raw, _ in packed]))


class _Run(NamedTuple):
    """Consecutive records of one producer."""

    producer: bytes
    epoch: int
    sequence: int
    records: int


def _runs(batch: LogBatch) -> Iterator[_Run]:
    """Of records that nobody numbered the sequence is the offset: so the three with the partition are unique."""
    if not batch.origins:
        nobody = batch.producer_id == NO_PRODUCER
        first = batch.first_index if nobody else batch.sequence
        yield _Run(batch.producer_id, batch.epoch, first, batch.records.count)
        return
    for origin in batch.origins:  # of records in front of this piece of a batch, too, and behind it
        first, last = max(origin.first_index, batch.first_index), min(origin.last_index, batch.last_index)
        if first <= last:
            sequence = first if origin.producer == NO_PRODUCER else origin.sequence + first - origin.first_index
            yield _Run(origin.producer, origin.epoch, sequence, last - first + 1)


def _numbered(name: str, batches: Sequence[LogBatch]) -> Any:
    """Null, null and the offset where nobody numbered them."""
    rows = list(chain.from_iterable(map(_runs, batches)))
    counts = np.asarray([row.records for row in rows], np.int64)
    if name == "sequence":
        return pa.array(_rising([row.sequence for row in rows], counts))
    nobody = np.asarray([row.producer == NO_PRODUCER for row in rows], np.bool_)
    if name == "epoch":
        none = np.repeat(nobody, counts)
        return pa.array(np.repeat(np.asarray([row.epoch for row in rows], np.int64), counts), mask=none)
    ids = pa.array([None if row.producer == NO_PRODUCER else bytes(row.producer) for row in rows], pa.binary())
    return ids.take(pa.array(np.repeat(np.arange(len(rows)), counts)))


def state_batch(partition_id: int, global_index: int, block: RecordBlock) -> pa.RecordBatch:
    """Keys and encoded values as columns: each row has one of value, numbers, doubles."""
    count = block.count
    data = np.frombuffer(block.data, np.uint8)
    ends = block.payload_ends.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    if (starts >= ends).any():
        raise CorruptData(
            f"partition {partition_id}: a value without a tag", path=f"partition {partition_id}", offset=0
        )
    tags = data[starts]
    numeric = np.isin(tags, (ord("q"), ord("d")))
    if not (numeric | (tags == ord("b"))).all() or ((ends - starts - 1)[numeric] % 8).any():
        raise CorruptData(f"partition {partition_id}: an unknown value", path=f"partition {partition_id}", offset=0)
    # The bytes after the tag of the rows of one kind, back to back.
    owner = np.repeat(tags, ends - starts)
    owner[starts] = 0

    def offsets(tag: int, width: int) -> npt.NDArray[np.int32]:
        lengths = np.where(tags == tag, (ends - starts - 1) // width, 0)
        return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)

    def numbers(tag: str, form: str, kind: pa.DataType) -> Any:
        values = pa.array(np.frombuffer(data[owner == ord(tag)].tobytes(), form), kind)
        return pa.ListArray.from_arrays(
            pa.array(offsets(ord(tag), 8), pa.int32()), values, mask=pa.array(tags != ord(tag))
        )

    valid = pa.array(tags == ord("b")).buffers()[1]
    raw = pa.py_buffer(data[owner == ord("b")].tobytes())
    value = pa.BinaryArray.from_buffers(pa.binary(), count, [valid, pa.py_buffer(offsets(ord("b"), 1)), raw])
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(count, partition_id, np.int32)),
            _binary(block.key_ends, block.key_bytes),
            value,
            numbers("q", "<i8", pa.int64()),
            numbers("d", "<f8", pa.float64()),
            pa.array(np.full(count, global_index, np.int64)),
        ],
        schema=STATE,
    )


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """About a megabyte each."""
    if not batch.num_rows:
        return
    rows = max(1, batch.num_rows * BATCH_BYTES_MAX // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _binary(ends: npt.NDArray[np.uint32], raw: Buffer, valid: Any = None) -> Any:
    return _joined([ends], [raw], valid)


def _joined(ends: Sequence[npt.NDArray[np.uint32]], raw: Sequence[Buffer], valid: Any = None) -> Any:
    """Several blocks' values as one binary array."""
    offsets = np.zeros(1 + sum(map(len, ends)), np.int32)
    at = base = 0
    for each in ends:
        offsets[at + 1 : at + 1 + len(each)] = each
        offsets[at + 1 : at + 1 + len(each)] += base
        at, base = at + len(each), base + (int(each[-1]) if len(each) else 0)
    data = raw[0] if len(raw) == 1 else b"".join(raw)
    return pa.BinaryArray.from_buffers(pa.binary(), at, [valid, pa.py_buffer(offsets), pa.py_buffer(data)])
