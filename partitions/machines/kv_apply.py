"""What ``kv`` commands do, on whole batches. No I/O: ``load`` reads, the result says what to write.

Runs of batches that are all integer ``Add`` of one width, or all ``Put``, are applied with
vector operations; everything else one record after the other. Both give the same state and
the same status per record.

Encoded values: ``b`` + bytes, or ``q``/``d`` + 8-byte numbers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from logboom.commands import (
    ADD_NUMBERS_MAX,
    CAS_HAS_EXPECTED,
    CAS_HAS_VALUE,
    INT64_MAX,
    INT64_MIN,
    OP_ADD,
    OP_CAS,
    OP_DELETE,
    OP_PUT,
)
from logboom.errors import CorruptData
from logboom.records import RecordBlock, lengths_of, split
from logboom.state_machine import ApplyBatch
from logboom.types import Status

Load = Callable[[bytes], bytes | None]
OK, NOT_FOUND, MISMATCH = bytes((Status.OK,)), bytes((Status.NOT_FOUND,)), bytes((Status.MISMATCH,))
SAFE: Final = float(1 << 62)
"""Sums of magnitudes below this cannot leave the 64-bit range."""
VECTOR_RECORDS_MIN: Final = 16


class _View:
    """The state as the transaction sees it: what was loaded, overlaid with what has changed."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._seen: dict[bytes, bytes | None] = {}
        """As loaded."""
        self.dirty: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        if key in self.dirty:
            return self.dirty[key]
        if key not in self._seen:
            self._seen[key] = self._load(key)
        return self._seen[key]

    def set(self, key: bytes, value: bytes | None) -> None:
        self.dirty[key] = value


def apply_blocks(batches: Sequence[ApplyBatch], load: Load) -> tuple[list[bytes], dict[bytes, bytes | None]]:
    """Statuses per batch (a single byte when all are equal), and the keys to write (None: delete)."""
    view = _View(load)
    return [_apply(batch, view) for batch in batches], view.dirty


def _apply(batch: ApplyBatch, view: _View) -> bytes:
    block = batch.records
    if block is None:
        raise CorruptData("kv needs records")
    if block.count >= VECTOR_RECORDS_MIN and not batch.skip and block.has_keys:
        done = _apply_vector(block, view)
        if done is not None:
            return done
    statuses = bytearray(block.count)
    skipped = {position for start, stop in batch.skip for position in range(start, stop)}
    for position, (key, payload) in enumerate(zip(block.keys(), block.payloads(), strict=True)):
        statuses[position] = Status.OK if position in skipped else _apply_one(key, payload, view)
    return bytes(statuses[:1]) if len(set(statuses)) == 1 else bytes(statuses)


# -- one record at a time


def _apply_one(key: bytes, payload: bytes, view: _View) -> Status:
    if not key or not payload:
        return Status.INVALID
    operation = payload[0]
    if operation == OP_PUT:
        view.set(key, b"b" + payload[1:])
        return Status.OK
    if operation == OP_DELETE:
        if view.get(key) is None:
            return Status.NOT_FOUND
        view.set(key, None)
        return Status.OK
    if operation == OP_CAS:
        return _cas(key, payload, view)
    if operation == OP_ADD:
        return _add(key, payload[1:], view)
    return Status.INVALID


def _cas(key: bytes, payload: bytes, view: _View) -> Status:
    if len(payload) < 6:
        return Status.INVALID
    _, flags, length = struct.unpack_from("<BBI", payload)
    if flags & ~(CAS_HAS_EXPECTED | CAS_HAS_VALUE) or len(payload) < 6 + length:
        return Status.INVALID
    expected = b"b" + payload[6 : 6 + length] if flags & CAS_HAS_EXPECTED else None
    if view.get(key) != expected:
        return Status.MISMATCH
    value = b"b" + payload[6 + length :] if flags & CAS_HAS_VALUE else None
    if value is not None or expected is not None:
        view.set(key, value)
    return Status.OK


def _add(key: bytes, operand: bytes, view: _View) -> Status:
    kind, body = operand[:1], operand[1:]
    if kind not in (b"q", b"d") or not body or len(body) % 8 or len(body) > 8 * ADD_NUMBERS_MAX:
        return Status.INVALID
    form = f"<{len(body) // 8}{kind.decode()}"
    addends = struct.unpack(form, body)
    current = view.get(key)
    if current is None:
        view.set(key, operand)
        return Status.OK
    if current[:1] != kind or len(current) != len(operand):
        return Status.WRONG_TYPE
    sums = [a + b for a, b in zip(struct.unpack(form, current[1:]), addends, strict=True)]
    if kind == b"q" and any(not INT64_MIN <= s <= INT64_MAX for s in sums):
        return Status.OVERFLOW
    if kind == b"d" and not all(map(math.isfinite, sums)) and all(map(math.isfinite, addends)):
        return Status.OVERFLOW
    view.set(key, kind + struct.pack(form, *sums))
    return Status.OK


# -- whole blocks


def _apply_vector(block: RecordBlock, view: _View) -> bytes | None:
    """The statuses, or None if this block has to go record by record. Nothing is changed then."""
    ends = block.payload_ends
    lengths = lengths_of(ends)
    keys = block.keys()
    if not lengths.all() or not all(keys):
        return None
    first = np.frombuffer(block.data, np.uint8)[ends - lengths]
    operation = int(first[0])
    if bool((first != operation).any()):
        return None
    if operation == OP_PUT:
        view.dirty.update(zip(keys, _put_values(block, ends - lengths), strict=True))  # the last one of each key
        return OK
    if operation == OP_ADD and bool((lengths == lengths[0]).all()):
        return _add_vector(keys, block, int(lengths[0]), view)
    return None


def _put_values(block: RecordBlock, starts: npt.NDArray[np.uint32]) -> list[bytes]:
    """Every payload with its first byte, the operation, replaced by the kind of value."""
    data = np.frombuffer(block.data, np.uint8).copy()
    data[starts] = ord("b")
    return split(data.data, block.payload_ends)


def _add_vector(keys: list[bytes], block: RecordBlock, width: int, view: _View) -> bytes | None:
    numbers = (width - 2) // 8
    if width != 2 + 8 * numbers or not 1 <= numbers <= ADD_NUMBERS_MAX:
        return None
    rows = np.frombuffer(block.data, np.uint8).reshape(block.count, width)
    if bool((rows[:, 1] != ord("q")).any()):
        return None  # floats: their sum depends on the order
    addends = np.ascontiguousarray(rows[:, 2:]).view("<i8")
    numbering = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    owners = np.fromiter(map(numbering.__getitem__, keys), np.int64, len(keys))
    current = np.zeros((len(numbering), numbers), np.int64)
    for key, number in numbering.items():
        raw = view.get(key)
        if raw is None:
            continue
        if raw[:1] != b"q" or len(raw) != width - 1:
            return None
        current[number] = np.frombuffer(raw, "<i8", numbers, 1)
    if not _cannot_overflow(current, addends):
        return None
    order = np.argsort(owners, kind="stable")
    starts = np.flatnonzero(np.diff(owners[order], prepend=np.int64(-1)))
    sums = current + np.add.reduceat(addends[order], starts, axis=0)
    raw_sums = sums.astype("<i8").tobytes()
    size = 8 * numbers
    for key, number in numbering.items():
        view.set(key, b"q" + raw_sums[number * size : (number + 1) * size])
    return OK


def _cannot_overflow(current: npt.NDArray[np.int64], addends: npt.NDArray[np.int64]) -> bool:
    most = float(np.abs(current.astype(np.float64)).max(initial=0.0))
    return most + float(np.abs(addends.astype(np.float64)).sum(axis=0).max()) < SAFE
