"""Reading state and logs into Arrow, in columns. No Spark in here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logboom.client import Client
from logboom.client.reads import LogBatch
from logboom.errors import CorruptData, DeadlineExceeded, IndexCompacted, InvalidRequest, NoSuchPartition
from logboom.records import Buffer, RecordBlock
from logboom.spark.connection import Session
from logboom.spark.options import EARLIEST, LATEST, ReadOptions
from logboom.types import MIB

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
LOG: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("global_offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
BATCH_BYTES_MAX: Final = 1 * MIB


@dataclass(frozen=True, slots=True)
class Share:
    """What one Spark task reads: one logboom partition; of its log, offsets ``start`` to ``end`` inclusive."""

    partition_id: int
    start: int = 0
    end: int = 0


def shares(options: ReadOptions, session: Session) -> list[Share]:
    """One per partition, the ends of logs pinned now. Raises NoSuchPartition, InvalidRequest, Unavailable."""
    known = session.run(lambda client: client.partitions())
    chosen = list(options.partitions) if options.partitions is not None else known
    for offsets in (options.start, options.end):
        chosen_too = list(offsets) if isinstance(offsets, Mapping) else []
        missing = [p for p in (*chosen, *chosen_too) if p not in known]
        if missing:
            raise NoSuchPartition(
                f"partition {missing[0]} does not exist; this cluster has {len(known)}",
                partition_id=missing[0],
                partitions=len(known),
            )
    if options.node is not None and ":" not in options.node:
        members = session.run(lambda client: client.members())
        if options.node not in members:
            raise InvalidRequest(f"option node takes a node's id or address; {options.node!r} is none of {members}")
    if options.view == "state":
        machines = session.run(lambda client: client.state_machines())
        other = [p for p in chosen if machines[p] != "kv"]
        if other:
            raise InvalidRequest(f"partition {other[0]} runs {machines[other[0]]}, which has no keys to read: view=log")
        return [Share(p) for p in chosen]
    # The leader has every committed record; a task that reads elsewhere follows until it is there.
    node = options.node or session.run(lambda client: client.status())["leader"]
    marks = session.run(lambda client: client.watermarks(chosen, node=node))
    last = {int(m.partition_id): int(m.log_index) for m in marks}
    found = []
    for p in chosen:
        start = _at(options.start, p, EARLIEST, last[p])
        end = min(last[p], _at(options.end, p, LATEST, last[p]) - 1)
        found.append(Share(p, start, end))
    return found


def _at(offsets: int | Mapping[int, int], partition: int, default: int, last: int) -> int:
    """The offset meant: LATEST is the one that comes next, as in Kafka an end is exclusive."""
    offset = offsets.get(partition, default) if isinstance(offsets, Mapping) else offsets
    if offset == LATEST:
        return last + 1
    return 1 if offset == EARLIEST else max(1, offset)


def read_state(options: ReadOptions, share: Share, session: Session) -> Iterator[pa.RecordBatch]:
    """All keys of a partition from one consistent view: linearizable, or of a replica that has come far enough."""
    node = _address(options, session)
    at_least = options.at_global if options.at_global is not None else (0 if node is not None else None)

    def scan(client: Client) -> AsyncIterator[tuple[int, RecordBlock]]:
        return client.scan_blocks(share.partition_id, at_least=at_least, node=node)

    for global_index, block in session.iterate(scan):
        yield from _pieces(state_batch(share.partition_id, global_index, block))


def read_log(options: ReadOptions, share: Share, session: Session) -> Iterator[pa.RecordBatch]:
    """The records of a partition from ``share.start`` to ``share.end``. Raises DeadlineExceeded, IndexCompacted."""
    node = _address(options, session)
    position = share.start
    while position <= share.end:
        try:
            for batch in _tail(position, node, share, session, options.target.request_timeout_ms / 1000):
                table = log_batch(batch)
                low, high = position - batch.first_index, share.end - batch.first_index + 1
                position = batch.last_index + 1
                if _wanted(options, int(batch.global_index)):
                    yield from _pieces(table.slice(max(0, low), min(table.num_rows, high) - max(0, low)))
                if position > share.end:
                    return
        except IndexCompacted as error:
            if options.fail_on_data_loss:
                raise
            position = max(position, int(error.fields.get("first", share.end + 1)))
        except TimeoutError:
            raise DeadlineExceeded(
                f"partition {share.partition_id}: no record after offset {position - 1} came within "
                f"{options.target.request_timeout_ms} ms, up to {share.end} were committed",
                outcome="not_applied",
            ) from None


def _tail(position: int, node: str | None, share: Share, session: Session, timeout: float) -> Iterator[LogBatch]:
    # Follows, because the node that answers may still be on its way to the pinned end.
    def tail(client: Client) -> AsyncIterator[LogBatch]:
        return client.tail(share.partition_id, start=position, follow=True, node=node)

    return session.iterate(tail, timeout=timeout)


def _wanted(options: ReadOptions, global_index: int) -> bool:
    return options.start_global <= global_index and (options.end_global is None or global_index <= options.end_global)


def _address(options: ReadOptions, session: Session) -> str | None:
    if options.node is None:
        return None
    return session.run(lambda client: client.members()).get(options.node, options.node)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    rows = max(1, batch.num_rows * BATCH_BYTES_MAX // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def project(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """The named columns, in that order."""
    return batch.select(names)


# -- columns


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


def log_batch(batch: LogBatch) -> pa.RecordBatch:
    """Log records as columns; ``value`` is the payload as stored, a record without a key has none."""
    block, count = batch.records, batch.records.count
    keys = pa.nulls(count, pa.binary())
    if block.has_keys:
        empty = np.diff(block.key_ends, prepend=np.uint32(0)) == 0
        valid = pa.array(~empty).buffers()[1] if empty.any() else None
        keys = _binary(block.key_ends, block.key_bytes, valid)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(count, batch.partition_id, np.int32)),
            pa.array(np.arange(batch.first_index, batch.first_index + count, dtype=np.int64)),
            pa.array(np.full(count, batch.global_index, np.int64)),
            pa.array(np.full(count, batch.timestamp_ms * 1000, np.int64)).cast(pa.timestamp("us", tz="UTC")),
            keys,
            _binary(block.payload_ends, block.data),
        ],
        schema=LOG,
    )


def _binary(ends: npt.NDArray[np.uint32], raw: Buffer, valid: Any = None) -> Any:
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), len(ends), [valid, pa.py_buffer(offsets), pa.py_buffer(bytes(raw))])
