"""What ``kv`` commands do, on whole batches. No I/O: ``load`` reads, the result says what to write.

Runs of batches that are all integer ``Add`` of one width, or all ``Put``, are applied with
vector operations; everything else one record after the other. Both give the same state and
the same status per record.

A wide batch may have commands over several keys, too: ``Txn``, ``DeleteRange``. In any other these are no commands, as
they were not for releases that did not know them.

Encoded values: ``b`` + bytes, or ``q``/``d`` + 8-byte numbers.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from logboom.commands import (
    ADD_NUMBERS_MAX,
    CAS_HAS_EXPECTED,
    CAS_HAS_VALUE,
    DELETE_BYTES_MAX,
    DELETE_KEYS_MAX,
    DELETE_LEAST,
    INT64_MAX,
    INT64_MIN,
    OP_ADD,
    OP_CAS,
    OP_DELETE,
    OP_DELETE_RANGE,
    OP_PUT,
    OP_TXN,
    OPERATORS,
    parse_txn,
    unpack_numbers,
)
from logboom.errors import CorruptData, InvalidRequest
from logboom.records import RecordBlock, lengths_of, split
from logboom.state_machine import ApplyBatch
from logboom.types import Status
from partitions.machines.kv_layers import ENTRY_BYTES, Layer, Ordered, Range, merged

Load = Callable[[bytes], bytes | None]
Get = Callable[[bytes, int], bytes | None]
"""See _Loaded."""
Has = Callable[[bytes], bool]
Within = Callable[[bytes, bytes | None], Iterator[tuple[bytes, bytes]]]
"""Entries of the state as it was before, from the first key on, up to the other."""
OK, NOT_FOUND, MISMATCH = bytes((Status.OK,)), bytes((Status.NOT_FOUND,)), bytes((Status.MISMATCH,))
SAFE: Final = float(1 << 62)
"""Sums of magnitudes below this cannot leave the 64-bit range."""
VECTOR_RECORDS_MIN: Final = 16
LOADED_BYTES_MAX: Final = 64 << 20
"""What a group keeps of the values that it has looked at."""
HEAD_BYTES: Final = 4096
"""How much of a value is kept, or twice what it was compared with, if that is more: a few bytes of a command may ask
for one of many megabytes, and as many commands as there is room for in a request for the same one."""
INFINITY_BITS: Final = 0x7FF << 52
NAN_QUIET: Final = 1 << 51
NAN_OF_INFINITIES: Final = 0xFFF8 << 48
"""What x86 makes of infinity less infinity; ARM leaves out the sign."""
ORDER: Final[tuple[Callable[[Any, Any], bool], ...]] = (
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
)
"""As OPERATORS."""


class _Loaded:
    """The state as it was before. Of what has been looked at the beginnings are kept, as far as they fit."""

    def __init__(self, load: Load, has: Has | None, bytes_max: int) -> None:
        """They give the same as long as this lasts, however often they are asked."""
        self._load = load
        self._has = has or (lambda key: load(key) is not None)
        self._bytes_max = bytes_max
        self._heads: Layer = {}
        self._cut: set[bytes] = set()
        """Keys of those that have more than what is kept."""
        self._nbytes = 0

    def get(self, key: bytes, beside: int) -> bytes | None:
        """The value, for whoever compares it with so many bytes: a longer one may end anywhere behind as many.

        What is left of it is longer, too, so it compares with them as all of it does, by order or by length.
        """
        head = self._heads.get(key)
        if head is None and key in self._heads:
            return None
        if head is not None and (beside < len(head) or key not in self._cut):
            return head
        raw = self._load(key)
        self._keep(key, raw, max(HEAD_BYTES, 2 * beside))
        return raw

    def _keep(self, key: bytes, raw: bytes | None, most: int) -> None:
        """In the place of less of it."""
        if key in self._cut:
            self._cut.remove(key)
            self._nbytes -= ENTRY_BYTES + len(key) + len(self._heads.pop(key) or b"")
        length = 0 if raw is None else len(raw)
        nbytes = ENTRY_BYTES + len(key) + min(length, most)
        self._nbytes += nbytes
        if self._nbytes > self._bytes_max:
            self._heads, self._nbytes = {}, nbytes
            self._cut.clear()
        if raw is not None and length > most:
            raw = raw[:most]
            self._cut.add(key)
        self._heads[key] = raw

    def has(self, key: bytes) -> bool:
        """There is one."""
        return self._heads[key] is not None if key in self._heads else self._has(key)


class _View:
    """The state as the transaction sees it: what was before, overlaid with what has changed."""

    def __init__(self, get: Get, has: Has, within: Within) -> None:
        self._get = get
        self._has = has
        self._within = within
        self.dirty: Layer = {}
        self._order = Ordered(self.dirty)
        self.emptied: list[Range] = []
        """In which nothing was left then."""

    def get(self, key: bytes, beside: int) -> bytes | None:
        """See _Loaded."""
        return self.dirty[key] if key in self.dirty else self._get(key, beside)

    def has(self, key: bytes) -> bool:
        return self.dirty[key] is not None if key in self.dirty else self._has(key)

    def set(self, key: bytes, value: bytes | None) -> None:
        self.dirty[key] = value

    def within(self, start: bytes, end: bytes | None) -> Generator[tuple[bytes, bytes], None, None]:
        self._order.renew()
        below, keys = self._within(start, end), self._order.within(start, end)
        return merged(below, self.dirty, start=start, end=end, keys=keys)

    def branch(self) -> _View:
        """To change without touching this one."""
        return _View(self.get, self.has, self.within)


def apply_blocks(
    batches: Sequence[ApplyBatch],
    load: Load,
    within: Within,
    has: Has | None = None,
    *,
    loaded_bytes: int = LOADED_BYTES_MAX,
) -> tuple[list[bytes], Layer, list[Range]]:
    """Statuses per batch (a single byte when all are equal), keys to write (None: delete), and what was emptied.

    ``has``: whether ``load`` would give something, for less. ``loaded_bytes``: to keep of what that gives.
    """
    loaded = _Loaded(load, has, loaded_bytes)
    view = _View(loaded.get, loaded.has, within)
    return [_apply(batch, view) for batch in batches], view.dirty, view.emptied


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
    one = _Wide().apply_one if block.wide else _apply_one
    for position, (key, payload) in enumerate(zip(block.keys(), block.payloads(), strict=True)):
        statuses[position] = Status.OK if position in skipped else one(key, payload, view)
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
        if not view.has(key):
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
    if view.get(key, len(expected or b"")) != expected:
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
    current = view.get(key, len(operand))
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
    packed = struct.pack(form, *sums)
    if kind == b"d" and any(map(math.isnan, sums)):
        packed = _same_nans(packed, current[1:], body)
    view.set(key, kind + packed)
    return Status.OK


def _same_nans(sums: bytes, left: bytes, right: bytes) -> bytes:
    """Vectors of doubles, added: a sum that is no number has the bits that x86 gives it, on any processor (I6)."""
    form = f"<{len(sums) // 8}Q"
    rows = zip(struct.unpack(form, sums), struct.unpack(form, left), struct.unpack(form, right), strict=True)
    return struct.pack(form, *(_bits_of(*row) for row in rows))


def _bits_of(total: int, left: int, right: int) -> int:
    if not _is_nan(total):
        return total
    return next((bits | NAN_QUIET for bits in (left, right) if _is_nan(bits)), NAN_OF_INFINITIES)


def _is_nan(bits: int) -> bool:
    return bits & (1 << 63) - 1 > INFINITY_BITS


# -- several keys at once


class _Wide:
    """What one batch may do to several keys. All its work is bounded, whatever is in the state."""

    def __init__(self) -> None:
        self._keys, self._bytes = DELETE_KEYS_MAX, DELETE_BYTES_MAX
        """That may still be removed."""

    def apply_one(self, key: bytes, payload: bytes, view: _View) -> Status:
        kind = payload[0] if key and payload else 0
        if kind == OP_TXN:
            return _txn(payload, view)
        if kind == OP_DELETE_RANGE:
            return self._delete_range(key, payload[1:] or None, view)
        return _apply_one(key, payload, view)

    def _delete_range(self, start: bytes, end: bytes | None, view: _View) -> Status:
        if end is not None and end <= start:
            return Status.INVALID
        if self._keys <= 0 or self._bytes <= 0:
            return Status.MORE
        found, more, upto = list[bytes](), False, end
        with closing(view.within(start, end)) as entries:
            for key, raw in entries:
                more = len(found) >= self._keys or self._bytes <= 0
                if more:
                    upto = key
                    break
                found.append(key)
                self._bytes -= len(key) + len(raw)
        for key in found:
            view.set(key, None)
        view.emptied.append((start, upto))
        self._keys -= max(len(found), DELETE_LEAST)
        return Status.MORE if more else Status.OK if found else Status.NOT_FOUND


def _txn(payload: bytes, view: _View) -> Status:
    try:
        found = parse_txn(payload)
    except InvalidRequest:
        return Status.INVALID
    holds = all(_holds(how, view.get(key, len(wanted)), wanted) for how, key, wanted in found.compares)
    branch = view.branch()
    for key, command in found.then if holds else found.otherwise:
        status = _apply_one(key, command, branch)
        if status not in (Status.OK, Status.NOT_FOUND):
            return status
    view.dirty.update(branch.dirty)
    return Status.OK if holds else Status.OTHERWISE


def _holds(how: int, found: bytes | None, wanted: bytes) -> bool:
    """Both encoded; nothing: no such key."""
    found, kind = found or b"", wanted[:1]
    if found[:1] != kind or (kind != b"b" and len(found) != len(wanted)):
        return OPERATORS[how] == "!="
    if kind in (b"q", b"d"):
        return ORDER[how](unpack_numbers(found), unpack_numbers(wanted))
    return ORDER[how](found, wanted)


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
        raw = view.get(key, width - 1)
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
