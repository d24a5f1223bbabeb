"""Headers of records: names and bytes in a column of Spark, msgpack in logboom. Nothing per row on the way in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logboom.errors import InvalidRequest
from logboom.records import unpack_headers

COLUMN: Final = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
PAIR: Final[bytes] = msgpack.packb([None, None])[:1]
"""The head of a pair; its name and its bytes follow."""

Ints = npt.NDArray[np.int64]


def packed(column: Any) -> Any:
    """Each row as a record has it, without nulls; rows without headers are empty. Raises InvalidRequest."""
    if pa.types.is_map(column.type):
        pairs = pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])
        column = column.cast(pa.list_(pairs))
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    entries = column.flatten()
    names, values = (part.cast(pa.binary()) for part in entries.flatten())
    nulls = names.null_count or values.null_count
    if nulls:
        raise InvalidRequest(
            f"column headers has {nulls} nulls for names or values in one batch: leave such headers out"
        )
    _check_text(names)
    nothing = pa.scalar(b"", pa.binary())
    name_heads, value_heads = _heads(_lengths(names), _name_head), _heads(_lengths(values), _value_head)
    each = pc.binary_join_element_wise(name_heads, names, value_heads, values, nothing)
    # A row's headers lie back to back already: only other ends are needed.
    ends = np.frombuffer(each.buffers()[1], np.int32)[each.offset : each.offset + len(each) + 1]
    offsets = ends[np.concatenate([[0], np.cumsum(counts)])]
    rows = pa.BinaryArray.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(offsets), each.buffers()[2]])
    return pc.binary_join_element_wise(_heads(counts, _row_head), rows, nothing)


def unpacked(column: Any) -> Any:
    """The inverse, as ``COLUMN``; null where there are none. What is the same in many rows is looked at once."""
    distinct = column.dictionary_encode()
    rows: Sequence[Any] = [
        [{"key": name, "value": value} for name, value in unpack_headers(raw)] or None
        for raw in distinct.dictionary.to_pylist()
    ]
    return pa.array(rows, COLUMN.type).take(distinct.indices)


def _check_text(names: Any) -> None:
    """Spark lets any bytes be a string (`cast(binary as string)`), and nobody could read such a record again."""
    try:
        names.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"column headers has a name that is no UTF-8 text: {error}") from error


def _lengths(column: Any) -> Ints:
    lengths: Ints = pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _heads(numbers: Ints, head: Callable[[int], bytes]) -> Any:
    """What stands in front of things of these lengths; there are few different ones."""
    distinct, which = np.unique(numbers, return_inverse=True)
    return pa.array([head(number) for number in distinct.tolist()], pa.binary()).take(pa.array(which))


def _row_head(count: int) -> bytes:
    head: bytes = msgpack.Packer().pack_array_header(count) if count else b""
    return head


def _name_head(size: int) -> bytes:
    whole: bytes = msgpack.packb("x" * size)
    return PAIR + whole[: len(whole) - size]


def _value_head(size: int) -> bytes:
    whole: bytes = msgpack.packb(bytes(size))
    return whole[: len(whole) - size]
