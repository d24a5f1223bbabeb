"""Commands of the ``kv`` state machine and their payload bytes.

The key travels in the record's key column. Payload, little-endian::

    Put          01 value...
    Delete       02
    Cas          03 flags(u8: 1 has expected, 2 has value) expected_length(u32) expected... value...
    Add          04 kind('q' signed 64-bit, 'd' double) numbers(8 bytes each)...
    Txn          05 compares(u8) then(u8) otherwise(u8); compares: operator(u8) key_length(u16) value_length(u32)
                 key... encoded value...; commands: key_length(u16) payload_length(u32) key... payload...
    DeleteRange  06 end... (none: to the last key)

The last two are over several keys, of which one is in the key column. They count in batches that say so
(docs/decisions/0036-txn.md); in any other they are read as no command.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from logboom.errors import InvalidRequest
from logboom.types import Record, WideRecord

OP_PUT: Final = 1
OP_DELETE: Final = 2
OP_CAS: Final = 3
OP_ADD: Final = 4
OP_TXN: Final = 5
OP_DELETE_RANGE: Final = 6
KEY_BYTES_MAX: Final = 511
"""Largest key; here as well, since `logboom.records` takes its time to load."""
CAS_HAS_EXPECTED: Final = 1
CAS_HAS_VALUE: Final = 2
PUT: Final = bytes((OP_PUT,))
ADD_NUMBERS_MAX: Final = 64
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
OPERATORS: Final = ("==", "!=", "<", "<=", ">", ">=")
"""How a Compare may compare; on the wire, their places in here."""
TXN_OPERATIONS_MAX: Final = 128
"""Comparisons of a Txn, and commands of each of its branches."""
TXN_HEAD: Final = struct.Struct("<BBBB")
COMPARE_HEAD: Final = struct.Struct("<BHI")
COMMAND_HEAD: Final = struct.Struct("<HI")

Value = bytes | tuple[int, ...] | tuple[float, ...]
"""What a key holds: bytes from Put and Cas, numbers from Add."""


class Put(msgspec.Struct, frozen=True, gc=False):
    """Set ``key`` to ``value``."""

    key: bytes
    value: bytes

    def record(self) -> Record:
        """As a record of a ``kv`` partition."""
        key = self.key
        try:
            return Record(PUT + self.value, key if key and type(key) is bytes else _key(key))
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
    """Add ``numbers`` to the vector at ``key``, creating it: all int (64-bit) or all float.

    A single float makes floats of all; an int that none is equal to (beyond 2^53) is refused then.
    """

    key: bytes
    numbers: tuple[int, ...] | tuple[float, ...]

    def __init__(self, key: bytes, *numbers: float) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "numbers", numbers)

    def record(self) -> Record:
        """As a record of a ``kv`` partition."""
        return Record(bytes((OP_ADD,)) + pack_numbers(self.numbers), _key(self.key))


class Compare(msgspec.Struct, frozen=True, gc=False):
    """Of a Txn: whether what ``key`` holds is ``==``, ``!=``, ``<``, ``<=``, ``>`` or ``>=`` to ``value``.

    None stands for "no such key", with ``==`` and ``!=``. Bytes are ordered byte by byte; numbers, one or a tuple, one
    after the other. What is not there, of another kind, or of another count is ``!=``, and nothing else.
    """

    key: bytes
    operator: str
    value: bytes | float | tuple[int, ...] | tuple[float, ...] | None

    def encode(self) -> bytes:
        """As part of a Txn. Raises InvalidRequest."""
        if self.operator not in OPERATORS:
            raise InvalidRequest(f"a Compare is one of {' '.join(OPERATORS)}, not {self.operator!r}")
        wanted = _encoded(self.value)
        if not wanted and self.operator not in OPERATORS[:2]:
            raise InvalidRequest(f"a key that is not there is == or != None, not {self.operator}")
        key = _short_key(self.key)
        return COMPARE_HEAD.pack(OPERATORS.index(self.operator), len(key), len(wanted)) + key + wanted


class Txn(msgspec.Struct, frozen=True, gc=False):
    """If all ``compares`` hold, the commands of ``then``, else those of ``otherwise``: all of them, or none.

    Over keys of one partition, ``TXN_OPERATIONS_MAX`` (128) of each at most; commands are Put, Delete, Cas and Add.
    One status: OK (``then`` was done), OTHERWISE (``otherwise`` was), or that of the first command that cannot be
    done: then nothing was. A Delete of what is not there can. Every node has to know of it: see ``Client.submit``.
    """

    compares: Sequence[Compare] = ()
    then: Sequence[SimpleCommand] = ()
    otherwise: Sequence[SimpleCommand] = ()

    def record(self) -> WideRecord:
        """As a record of a ``kv`` partition; its key is the first that is named."""
        for name, rows in (("compares", self.compares), ("then", self.then), ("otherwise", self.otherwise)):
            if not isinstance(rows, list | tuple):
                raise InvalidRequest(f"{name} of a Txn is a list, not {rows!r:.80}")
            if len(rows) > TXN_OPERATIONS_MAX:
                raise InvalidRequest(f"{name} of a Txn has {len(rows)}; at most {TXN_OPERATIONS_MAX}")
        compares: Sequence[Any] = self.compares
        branches: Sequence[Any] = (*self.then, *self.otherwise)
        wrong = [each for each in compares if not isinstance(each, Compare)]
        wrong += [each for each in branches if not isinstance(each, SIMPLE)]
        if wrong:
            raise InvalidRequest(f"a Txn has Compare, and Put, Delete, Cas and Add, not {wrong[0]!r:.80}")
        named: list[bytes] = [each.key for each in (*compares, *branches)]
        if not named:
            raise InvalidRequest("a Txn without comparisons and commands")
        head = TXN_HEAD.pack(OP_TXN, len(self.compares), len(self.then), len(self.otherwise))
        parts = [each.encode() for each in self.compares]
        for each in branches:
            record = each.record()
            key = _short_key(record.key)
            parts.append(COMMAND_HEAD.pack(len(key), len(record.payload)) + key + record.payload)
        return WideRecord(b"".join((head, *parts)), named[0])


class DeleteRange(msgspec.Struct, frozen=True, gc=False):
    """Remove the keys from ``start`` up to ``end``, exclusive (None: to the last one), the least first.

    A request removes 1,024 keys and 4 MiB of them and their values at most (`DELETE_KEYS_MAX`,
    `DELETE_BYTES_MAX`), over all such commands in it. MORE: that was it, there may be others. NOT_FOUND: none.
    """

    start: bytes
    end: bytes | None = None

    def record(self) -> WideRecord:
        """As a record of a ``kv`` partition."""
        end = b"" if self.end is None else _short_key(self.end)
        if end and end <= _key(self.start):
            raise InvalidRequest(f"nothing is from {self.start!r} up to {end!r}")
        return WideRecord(bytes((OP_DELETE_RANGE,)) + end, _key(self.start))


class DeletePrefix(msgspec.Struct, frozen=True, gc=False):
    """Remove the keys that begin with ``prefix``: a DeleteRange. ``Client.delete_prefix`` goes on until all are."""

    prefix: bytes

    def record(self) -> WideRecord:
        """As a record of a ``kv`` partition."""
        return DeleteRange(self.prefix, end_of(_key(self.prefix)) or None).record()


DELETE_KEYS_MAX: Final = 1024
DELETE_BYTES_MAX: Final = 4 << 20
DELETE_LEAST: Final = 16
"""What a DeleteRange counts for if it removes fewer keys: looking for them is work, too."""

SimpleCommand = Put | Delete | Cas | Add
"""Over one key."""
Command = SimpleCommand | Txn | DeleteRange | DeletePrefix
SIMPLE: Final = (Put, Delete, Cas, Add)
COMMANDS: Final = (*SIMPLE, Txn, DeleteRange, DeletePrefix)
NAMES: Final = ", ".join(kind.__name__ for kind in COMMANDS)


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
        doubles = [float(n) for n in numbers]
    except OverflowError:
        raise InvalidRequest(f"Add takes numbers that fit 64 bits, not {numbers!r}") from None
    wrong = [n for n, double in zip(numbers, doubles, strict=True) if isinstance(n, int) and n != double]
    if wrong:
        raise InvalidRequest(
            f"no double is equal to {wrong[0]}, and a float beside it makes all numbers doubles: give it as a float "
            "if about so much will do, or under a key of its own"
        )
    return b"d" + struct.pack(f"<{len(numbers)}d", *doubles)


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
    raise InvalidRequest(f"expected {NAMES} or Record, not {type(command).__name__}")


def from_record(record: Record) -> Command:
    """The command that a record of a ``kv`` partition is; a DeletePrefix comes as the range that it is.

    One over several keys is a WideRecord, as tails give them; whoever has fetched its payload knows from
    ``LogMetadata.block`` whether those count in its batch. Raises InvalidRequest for what is none.
    """
    key, payload = record.key or b"", record.payload
    operation = payload[0] if payload and key else 0
    if operation in (OP_TXN, OP_DELETE_RANGE) and not isinstance(record, WideRecord):
        operation = 0  # in its batch it does not count: to the nodes it is none
    if operation == OP_PUT:
        return Put(key, payload[1:])
    if operation == OP_DELETE:
        return Delete(key)
    if operation == OP_CAS and len(payload) >= 6:
        _, flags, length = struct.unpack_from("<BBI", payload)
        middle = 6 + length
        if middle > len(payload):
            raise InvalidRequest("a Cas that ends early")
        expected = payload[6:middle] if flags & CAS_HAS_EXPECTED else None
        return Cas(key, expected, payload[middle:] if flags & CAS_HAS_VALUE else None)
    if operation == OP_ADD:
        return Add(key, *unpack_numbers(payload[1:]))
    if operation == OP_TXN:
        return _txn(parse_txn(payload))
    if operation == OP_DELETE_RANGE:
        return DeleteRange(key, payload[1:] or None)
    raise InvalidRequest(f"a record of {len(payload)} bytes that is no command of kv")


class ParsedTxn(NamedTuple):
    """As bytes: rows of (operator, key, encoded value or nothing), and of (key, payload)."""

    compares: list[tuple[int, bytes, bytes]]
    then: list[tuple[bytes, bytes]]
    otherwise: list[tuple[bytes, bytes]]


def parse_txn(payload: bytes) -> ParsedTxn:
    """Raises InvalidRequest for what ``Txn.record`` does not make, what its commands' payloads say apart."""
    try:
        _, *counts = TXN_HEAD.unpack_from(payload)
        at, compares, commands = TXN_HEAD.size, list[tuple[int, bytes, bytes]](), list[tuple[bytes, bytes]]()
        for _ in range(counts[0]):
            operator, *lengths = COMPARE_HEAD.unpack_from(payload, at)
            key, value, at = _pieces(payload, at + COMPARE_HEAD.size, *lengths)
            if operator >= len(OPERATORS) or not _is_value(value) or (not value and operator > 1):
                raise InvalidRequest("a Txn with a comparison that is none")
            compares.append((operator, key, value))
        for _ in range(counts[1] + counts[2]):
            key, command, at = _pieces(payload, at + COMMAND_HEAD.size, *COMMAND_HEAD.unpack_from(payload, at))
            if not OP_PUT <= (command[0] if command else 0) <= OP_ADD:
                raise InvalidRequest("a Txn with a command that is none of those over one key")
            commands.append((key, command))
    except struct.error as error:
        raise InvalidRequest(f"a Txn that ends early: {error}") from None
    if at != len(payload) or max(counts) > TXN_OPERATIONS_MAX or not any(counts):
        raise InvalidRequest(f"a Txn of {counts} and {len(payload)} bytes")
    return ParsedTxn(compares, commands[: counts[1]], commands[counts[1] :])


def _is_value(raw: bytes) -> bool:
    """Encoded, or nothing."""
    return raw[:1] in (b"", b"b") or (raw[:1] in (b"q", b"d") and len(raw) > 1 and len(raw) % 8 == 1)


def _pieces(payload: bytes, at: int, key_length: int, length: int) -> tuple[bytes, bytes, int]:
    middle, end = at + key_length, at + key_length + length
    if end > len(payload) or not 1 <= key_length <= KEY_BYTES_MAX:
        raise InvalidRequest(f"a Txn with a key of {key_length} bytes and {length} behind it")
    return payload[at:middle], payload[middle:end], end


def _txn(found: ParsedTxn) -> Txn:
    compares = tuple(Compare(key, OPERATORS[operator], _decoded(value)) for operator, key, value in found.compares)
    then, otherwise = (
        tuple(from_record(Record(payload, key)) for key, payload in rows) for rows in (found.then, found.otherwise)
    )
    return Txn(compares, then, otherwise)  # type: ignore[arg-type]


def _encoded(value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, tuple | int | float):
        return pack_numbers(value if isinstance(value, tuple) else (value,))
    raise InvalidRequest(f"a key is compared with bytes, numbers or None, not {value!r}")


def _decoded(raw: bytes) -> Value | None:
    if not raw:
        return None
    return raw[1:] if raw[:1] == b"b" else unpack_numbers(raw)


def keys_of(record: Record) -> list[bytes]:
    """All that a command names, for whoever has to know where they are. Raises InvalidRequest for a range."""
    if type(record) is not WideRecord:
        return [record.key or b""]
    if record.payload[:1] == bytes((OP_DELETE_RANGE,)):
        raise InvalidRequest("keys of a range are in all partitions: name one")
    found = parse_txn(record.payload)
    return [*(row[1] for row in found.compares), *(row[0] for row in (*found.then, *found.otherwise))]


def touches(key: bytes, payload: bytes, prefix: bytes) -> bool:
    """Whether a command, perhaps one over several keys, names one that begins with ``prefix``."""
    operation = payload[0] if payload else 0
    if key.startswith(prefix) or operation not in (OP_TXN, OP_DELETE_RANGE):
        return key.startswith(prefix)
    if operation == OP_DELETE_RANGE:
        last = end_of(prefix)
        return (not last or key < last) and (len(payload) == 1 or payload[1:] > prefix)
    try:
        return any(each.startswith(prefix) for each in keys_of(WideRecord(payload, key)))
    except InvalidRequest:
        return False


def end_of(prefix: bytes) -> bytes:
    """The least that is behind all keys with this prefix; empty: nothing is."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else b""


def _key(key: Any) -> bytes:
    if not isinstance(key, bytes) or not key:
        raise InvalidRequest(f"a kv command needs a non-empty bytes key, not {key!r}")
    return key


def _short_key(key: Any) -> bytes:
    """Of those in a payload, whose length nobody else looks at."""
    if len(_key(key)) > KEY_BYTES_MAX:
        raise InvalidRequest(f"a key of {len(key)} bytes; at most {KEY_BYTES_MAX}")
    return bytes(key)
