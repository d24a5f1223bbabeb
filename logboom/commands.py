"""Commands of the ``kv`` state machine and their payload bytes.

The key travels in the record's key column. Payload, little-endian::

    Put     01 value...
    Delete  02
    Cas     03 flags(u8: 1 has expected, 2 has value) expected_length(u32) expected... value...
    Add     04 kind('q' signed 64-bit, 'd' double) numbers(8 bytes each)...
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from logboom.errors import InvalidRequest
from logboom.types import Record

OP_PUT: Final = 1
OP_DELETE: Final = 2
OP_CAS: Final = 3
OP_ADD: Final = 4
CAS_HAS_EXPECTED: Final = 1
CAS_HAS_VALUE: Final = 2
PUT: Final = bytes((OP_PUT,))
ADD_NUMBERS_MAX: Final = 64
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1

Value = bytes | tuple[int, ...] | tuple[float, ...]
"""What a key holds: bytes from Put and Cas, numbers from Add."""


class Put(msgspec.Struct, frozen=True, gc=False):
    """Set ``key`` to ``value``."""

    key: bytes
    value: bytes

    def record(self) -> Record:
        """As a record of a ``kv`` partition."""
        try:
            return Record(PUT + self.value, _key(self.key))
        except TypeError:
            raise InvalidRequest(f"a value is bytes, not {self.value!r}") from None


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove ``key``; NOT_FOUND if it is not there."""

    key: bytes

    def record(self) -> Record:
        """As a record of a ``kv`` partition."""
        return Record(bytes((OP_DELETE,)), _key(self.key))


class Cas(msgspec.Struct, frozen=True, gc=False):
    """Set ``key`` to ``value`` if it holds ``expected``; None stands for "no such key" on either side."""

    key: bytes
    expected: bytes | None
    value: bytes | None

    def record(self) -> Record:
        """As a record of a ``kv`` partition."""
        for value in (self.expected, self.value):
            if value is not None and not isinstance(value, bytes):
                raise InvalidRequest(f"a value is bytes or None, not {value!r}")
        flags = (CAS_HAS_EXPECTED if self.expected is not None else 0) | (
            CAS_HAS_VALUE if self.value is not None else 0
        )
        expected = self.expected or b""
        head = struct.pack("<BBI", OP_CAS, flags, len(expected))
        return Record(head + expected + (self.value or b""), _key(self.key))


@dataclass(frozen=True, slots=True, init=False)
class Add:
    """Add ``numbers`` to the vector at ``key``, creating it: all int (64-bit) or all float."""

    key: bytes
    numbers: tuple[int, ...] | tuple[float, ...]

    def __init__(self, key: bytes, *numbers: float) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "numbers", numbers)

    def record(self) -> Record:
        """As a record of a ``kv`` partition."""
        return Record(bytes((OP_ADD,)) + pack_numbers(self.numbers), _key(self.key))


Command = Put | Delete | Cas | Add
COMMANDS: Final = (Put, Delete, Cas, Add)


def pack_numbers(numbers: Sequence[float]) -> bytes:
    """Kind byte and numbers. Raises InvalidRequest for none, too many, or out of range."""
    if not 1 <= len(numbers) <= ADD_NUMBERS_MAX:
        raise InvalidRequest(f"Add takes 1 to {ADD_NUMBERS_MAX} numbers, not {len(numbers)}")
    if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        raise InvalidRequest(f"Add takes numbers, not {numbers!r}")
    if all(isinstance(n, int) for n in numbers):
        try:
            return b"q" + struct.pack(f"<{len(numbers)}q", *numbers)
        except struct.error:
            raise InvalidRequest(f"Add takes 64-bit integers, not {numbers!r}") from None
    try:
        return b"d" + struct.pack(f"<{len(numbers)}d", *numbers)
    except (struct.error, OverflowError):
        raise InvalidRequest(f"Add takes numbers that fit 64 bits, not {numbers!r}") from None


def unpack_numbers(raw: bytes) -> tuple[int, ...] | tuple[float, ...]:
    """The inverse of ``pack_numbers``."""
    kind, body = raw[:1], raw[1:]
    if kind not in (b"q", b"d") or not body or len(body) % 8:
        raise InvalidRequest("not a vector of numbers")
    return struct.unpack(f"<{len(body) // 8}{kind.decode()}", body)


def to_record(command: Command | Record) -> Record:
    """Commands and plain records alike, as records."""
    if isinstance(command, COMMANDS):
        return command.record()
    if isinstance(command, Record):
        return command
    raise InvalidRequest(f"expected Put, Delete, Cas, Add or Record, not {type(command).__name__}")


def _key(key: Any) -> bytes:
    if not isinstance(key, bytes) or not key:
        raise InvalidRequest(f"a kv command needs a non-empty bytes key, not {key!r}")
    return key
