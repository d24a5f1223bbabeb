"""Arrow columns to record blocks: whole columns at a time, nothing per row.

``Columns`` are the rows of a batch as commands; ``blocks`` sorts them by partition (stable:
order within a partition is the task's order) and cuts them to size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logboom.commands import ADD_NUMBERS_MAX, OP_ADD, OP_DELETE, OP_PUT
from logboom.errors import InvalidRequest, NoSuchPartition
from logboom.records import KEY_BYTES_MAX, RECORDS_MAX, RecordBlock
from logboom.routing import partitions_of_each
from logboom.spark.headers import packed
from logboom.spark.layout import Layout

Ints = npt.NDArray[np.int64]
RECORD_OVERHEAD: Final = 12
"""Bytes of offsets per record."""
BLOCK_OVERHEAD: Final = 4


@dataclass(frozen=True, slots=True)
class Columns:
    """Commands of consecutive rows: where each goes, its key (None: no keys), its payload, its headers (None: none)."""

    partition: Ints
    keys: Any
    payloads: Any
    headers: Any = None
    """Packed, as a record has them."""

    @property
    def count(self) -> int:
        """Rows."""
        return len(self.partition)

    @property
    def nbytes(self) -> int:
        """Roughly what they take on the wire."""
        return sum(int(each.nbytes) for each in (self.payloads, self.keys, self.headers) if each is not None)

    def copied(self) -> Columns:
        """Rows without what they were made of: of Spark's batches all columns are one buffer."""

        def own(column: Any) -> Any:
            return None if column is None else pa.concat_arrays([column, column[:0]])

        return Columns(self.partition.copy(), own(self.keys), own(self.payloads), own(self.headers))


def columns_of(batch: pa.RecordBatch, layout: Layout) -> Columns:
    """One Arrow batch as commands. Raises InvalidRequest or NoSuchPartition, naming the column."""
    keys = _keys(batch, layout) if layout.has_key else None
    if layout.machine != "kv":
        payloads = _bytes_column(batch, "value")
    elif layout.op is None:
        payloads = _mixed(batch, layout)
    else:
        payloads = _payloads(batch, layout, layout.op)
    headers = packed(_column(batch, "headers")) if layout.has_headers else None
    return Columns(_partitions(batch, keys, layout), keys, payloads, headers)


def concat(parts: Sequence[Columns]) -> Columns:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    return Columns(
        np.concatenate([p.partition for p in parts]),
        None if parts[0].keys is None else pa.concat_arrays([p.keys for p in parts]),
        pa.concat_arrays([p.payloads for p in parts]),
        None if parts[0].headers is None else pa.concat_arrays([p.headers for p in parts]),
    )


def in_order(columns: Columns) -> Columns:
    """The same rows in an order that comes from them alone. Rows that are equal in all are one as good as the other."""
    fields = {"partition": pa.array(columns.partition), "payload": columns.payloads}
    fields |= {} if columns.keys is None else {"key": columns.keys}
    fields |= {} if columns.headers is None else {"headers": columns.headers}
    names = [name for name in ("partition", "key", "payload", "headers") if name in fields]
    order = pc.sort_indices(pa.table(fields), sort_keys=[(name, "ascending") for name in names])
    keys, headers = (None if each is None else each.take(order) for each in (columns.keys, columns.headers))
    return Columns(columns.partition[order.to_numpy()], keys, columns.payloads.take(order), headers)


def blocks(columns: Columns, *, bytes_max: int, records_max: int = RECORDS_MAX) -> Iterator[tuple[int, RecordBlock]]:
    """Record blocks of at most ``bytes_max`` (a larger record goes alone), partition by partition."""
    order = np.argsort(columns.partition, kind="stable")
    sorted_ids = columns.partition[order]
    edges = [0, *(np.flatnonzero(np.diff(sorted_ids)) + 1).tolist(), columns.count]
    for low, high in pairwise(edges):
        if low == high:
            continue
        rows = pa.array(order[low:high])
        payloads = _raw(columns.payloads.take(rows))
        others = [None if each is None else _raw(each.take(rows)) for each in (columns.keys, columns.headers)]
        sizes = payloads[0] + RECORD_OVERHEAD * np.arange(1, high - low + 1)
        for each in others:
            sizes += 0 if each is None else each[0]
        start = 0
        while start < high - low:
            base = int(sizes[start - 1]) if start else 0
            stop = int(np.searchsorted(sizes, base + bytes_max - BLOCK_OVERHEAD, side="right"))
            stop = min(max(stop, start + 1), start + records_max)
            ends, raw = _cut(*payloads, start, stop)
            (key_ends, keys), (header_ends, headers) = (
                (None, b"") if each is None else _cut(*each, start, stop) for each in others
            )
            yield (
                int(sorted_ids[low]),
                RecordBlock.from_arrays(
                    payload_ends=ends,
                    data=raw,
                    key_ends=key_ends,
                    key_bytes=keys,
                    header_ends=header_ends,
                    header_bytes=headers,
                ),
            )
            start = stop


def _raw(column: Any) -> tuple[Ints, Any]:
    """End offsets (from 0) and bytes of a binary array without nulls."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    view = memoryview(data)[ends[0] : ends[-1]] if data is not None else memoryview(b"")
    return ends[1:] - ends[0], view


def _cut(ends: Ints, raw: Any, start: int, stop: int) -> tuple[npt.NDArray[np.uint32], Any]:
    base = int(ends[start - 1]) if start else 0
    return (ends[start:stop] - base).astype(np.uint32), raw[base : int(ends[stop - 1])]


def _column(batch: pa.RecordBatch, name: str) -> Any:
    return batch.column(batch.schema.get_field_index(name))


def _bytes_column(batch: pa.RecordBatch, name: str, *, fill: bytes | None = None) -> Any:
    column = _column(batch, name).cast(pa.binary())
    if column.null_count and fill is not None:
        column = column.fill_null(fill)
    if column.null_count:
        hint = "give the option nullKey, or filter them out" if name == "key" else "filter them out or coalesce() them"
        raise InvalidRequest(f"column {name} has {column.null_count} nulls in one batch: {hint}")
    return column


def _keys(batch: pa.RecordBatch, layout: Layout) -> Any:
    may_have_none = layout.machine != "kv" and not layout.by_key
    keys = _bytes_column(batch, "key", fill=b"" if layout.null_key is None and may_have_none else layout.null_key)
    if not len(keys):
        return keys
    lengths = pc.min_max(pc.binary_length(keys)).as_py()
    if lengths["min"] == 0 and not may_have_none:
        raise InvalidRequest("column key has empty keys: filter them out")
    if lengths["max"] > KEY_BYTES_MAX:
        raise InvalidRequest(f"column key has a key of {lengths['max']} bytes; at most {KEY_BYTES_MAX}")
    return keys


def _partitions(batch: pa.RecordBatch, keys: Any, layout: Layout) -> Ints:
    known = np.asarray(layout.partitions, np.int64)
    if layout.by_key:
        distinct = keys.dictionary_encode()
        picks = partitions_of_each(distinct.dictionary.to_pylist(), len(known))
        picked: Ints = known[picks][distinct.indices.to_numpy(zero_copy_only=False)]
        return picked
    column = _column(batch, "partition")
    if column.null_count:
        raise InvalidRequest(f"column partition has {column.null_count} nulls in one batch: filter them out")
    ids: Ints = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    strange = ids[~np.isin(ids, known)]
    if len(strange):
        raise NoSuchPartition(
            f"column partition names {int(strange[0])}, which this write does not cover",
            partition_id=int(strange[0]),
            partitions=len(known),
        )
    return ids


def _payloads(batch: pa.RecordBatch, layout: Layout, op: str) -> Any:
    if op == "put":
        return _prefixed(OP_PUT, _bytes_column(batch, "value"))
    if op == "delete":
        return _rows(np.full((batch.num_rows, 1), OP_DELETE, np.uint8))
    return _adds(batch, layout)


def _prefixed(op: int, values: Any) -> Any:
    first, nothing = pa.scalar(bytes((op,)), pa.binary()), pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(first, values, nothing)


def _rows(matrix: npt.NDArray[np.uint8]) -> Any:
    """A binary array whose elements are the rows of a matrix of bytes."""
    count, width = matrix.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(matrix)])


def _add_rows(numbers: npt.NDArray[Any], kind: str) -> Any:
    count, width = numbers.shape
    matrix = np.empty((count, 2 + 8 * width), np.uint8)
    matrix[:, 0] = OP_ADD
    matrix[:, 1] = ord(kind)
    matrix[:, 2:] = (
        np.ascontiguousarray(numbers, "<i8" if kind == "q" else "<f8").view(np.uint8).reshape(count, 8 * width)
    )
    return _rows(matrix)


def _adds(batch: pa.RecordBatch, layout: Layout) -> Any:
    if layout.add_columns:
        return _add_rows(
            np.column_stack([_number_column(batch, name, layout.kind) for name in layout.add_columns]), layout.kind
        )
    column = _column(batch, "numbers")
    if column.null_count:
        raise InvalidRequest(f"column numbers has {column.null_count} nulls in one batch: filter them out")
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    values = _plain_numbers(column.flatten(), "numbers", layout.kind)
    if len(lengths) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= ADD_NUMBERS_MAX:
        raise InvalidRequest(f"column numbers must have 1 to {ADD_NUMBERS_MAX} numbers in every row")
    widths = np.unique(lengths)
    if len(widths) <= 1:
        return _add_rows(values.reshape(batch.num_rows, int(widths[0]) if len(widths) else 1), layout.kind)
    starts = np.cumsum(lengths) - lengths
    parts, places = [], []
    for width in widths.tolist():
        rows = np.flatnonzero(lengths == width)
        parts.append(_add_rows(values[starts[rows][:, None] + np.arange(width)], layout.kind))
        places.append(rows)
    return _interleave(parts, places)


def _number_column(batch: pa.RecordBatch, name: str, kind: str) -> npt.NDArray[Any]:
    return _plain_numbers(_column(batch, name), name, kind)


def _plain_numbers(column: Any, name: str, kind: str) -> npt.NDArray[Any]:
    if column.null_count:
        raise InvalidRequest(f"column {name} has {column.null_count} nulls in one batch: coalesce() them to a number")
    numbers: npt.NDArray[Any] = column.cast(pa.int64() if kind == "q" else pa.float64(), safe=kind == "q").to_numpy(
        zero_copy_only=False
    )
    if kind == "d" and pa.types.is_integer(column.type):
        _check_exact(column.to_numpy(zero_copy_only=False), numbers, name)
    return numbers


def _check_exact(given: npt.NDArray[Any], doubles: npt.NDArray[Any], name: str) -> None:
    """A sum of doubles is no exact one, but what is added is what was given."""
    held = doubles < 2.0**63  # else it is none to begin with
    wrong = ~held | (np.where(held, doubles, 0.0).astype(np.int64) != given)
    if wrong.any():
        raise InvalidRequest(
            f"column {name} has {int(given[wrong][0])}, which no double is equal to, and another column makes all "
            "numbers doubles: cast() it to double if about so much will do, or write it on its own"
        )


def _mixed(batch: pa.RecordBatch, layout: Layout) -> Any:
    """Rows of several ops: encode each op's rows on their own, put them back in order."""
    ops = _column(batch, "op")
    if ops.null_count:
        raise InvalidRequest(f"column op has {ops.null_count} nulls in one batch; it takes put, delete, add")
    distinct = ops.dictionary_encode()
    codes = distinct.indices.to_numpy(zero_copy_only=False)
    parts, places = [], []
    for code, op in enumerate(distinct.dictionary.to_pylist()):
        needs = {"put": "value", "delete": "key", "add": "" if layout.add_columns else "numbers"}
        if op not in needs:
            raise InvalidRequest(f"column op takes put, delete, add, not {op!r}")
        if needs[op] and (needs[op] not in batch.schema.names or needs[op] in layout.add_columns):
            raise InvalidRequest(f"column op says {op}, and there is no column {needs[op]} for it")
        rows = np.flatnonzero(codes == code)
        parts.append(_payloads(batch.take(pa.array(rows)), layout, op))
        places.append(rows)
    return _interleave(parts, places) if parts else pa.array([], pa.binary())


def _interleave(parts: Sequence[Any], places: Sequence[npt.NDArray[Any]]) -> Any:
    """The element of ``parts`` whose place is 0, then that of 1, and so on."""
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))
