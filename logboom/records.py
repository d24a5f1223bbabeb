"""Record blocks: n records as two raw sections, the same on the wire and on disk.

*Metadata section* (little-endian)::

    u8  flags          bit 0: keys, bit 1: headers
    u8  * 3            zero
    u32 * n            payload ends: cumulative end offset of each payload in the data section
    [keys]    u32 * n  key ends, then the key bytes back to back (an empty key is no key)
    [headers] u32 * n  header ends, then per record a msgpack array of [name, bytes] or nothing

*Data section*: the payloads back to back.

Columns, not rows: a block is checked, sliced, routed and applied with vector operations,
and its metadata can be read without its data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

import msgpack
import numpy as np
import numpy.typing as npt

from logboom.errors import InvalidRequest, RecordTooLarge
from logboom.types import OVER_RANGES, TXNS, WIDE_OPERATIONS, Record, WideRecord

FLAG_KEYS: Final = 1
FLAG_HEADERS: Final = 2
RECORDS_MAX: Final = 1 << 20
WIDE: Final = frozenset((WideRecord,))
KEY_BYTES_MAX: Final = 511
"""LMDB's limit for keys in its default build."""
SPLIT_AT_ONCE_MIN: Final = 32
"""Of so many items of one width numpy makes objects faster than a loop does."""

LONE: Final = struct.Struct("<B3xI")
"""Metadata of a single record begins so."""
END: Final = struct.Struct("<I")

Buffer = bytes | bytearray | memoryview
Ends = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class RecordBlock:
    """n records in columns. Built by ``from_records``, ``from_columns`` or ``parse``."""

    count: int
    metadata: Buffer
    data: Buffer
    wide: bool = False
    """Some of these are commands over several keys: a batch of them says so, and they count (logboom.commands)."""

    # -- making

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> RecordBlock:
        """Column form of ``records``, in order."""
        rows = list(records)
        if len(rows) == 1:
            return cls._from_record(rows[0])
        keys, headers = [r.key or b"" for r in rows], [r.headers for r in rows]
        block = cls.from_columns(
            payloads=[r.payload for r in rows],
            keys=keys if any(keys) else None,
            headers=headers if any(headers) else None,
        )
        return block.as_wide(wide=not WIDE.isdisjoint(map(type, rows)))

    @classmethod
    def _from_record(cls, record: Record) -> RecordBlock:
        # A lone command: no arrays.
        key, headers = record.key or b"", record.headers
        if len(key) > KEY_BYTES_MAX:
            raise _long_key(len(key))
        flags = (FLAG_KEYS if key else 0) | (FLAG_HEADERS if headers else 0)
        metadata = LONE.pack(flags, len(record.payload))
        if key:
            metadata += END.pack(len(key)) + key
        if headers:
            packed = msgpack.packb([list(h) for h in headers])
            metadata += END.pack(len(packed)) + packed
        return cls(1, metadata, record.payload, type(record) is WideRecord)

    @classmethod
    def from_columns(
        cls,
        *,
        payloads: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        headers: Sequence[Sequence[tuple[str, bytes]]] | None = None,
    ) -> RecordBlock:
        """From equally long columns. Raises InvalidRequest (counts, none at all) and RecordTooLarge (a key)."""
        packed = None
        if headers is not None:
            packed = [msgpack.packb([list(h) for h in row]) if row else b"" for row in headers]
        key_ends = _ends_of(keys) if keys is not None else None
        return cls.from_arrays(
            payload_ends=_ends_of(payloads),
            data=b"".join(payloads),
            key_ends=key_ends,
            key_bytes=b"".join(keys) if keys is not None else b"",
            header_ends=_ends_of(packed) if packed is not None else None,
            header_bytes=b"".join(packed) if packed is not None else b"",
        )

    @classmethod
    def from_arrays(
        cls,
        *,
        payload_ends: Ends,
        data: Buffer,
        key_ends: Ends | None = None,
        key_bytes: Buffer = b"",
        header_ends: Ends | None = None,
        header_bytes: Buffer = b"",
    ) -> RecordBlock:
        """From end-offset arrays and raw bytes (Arrow's own layout, less the leading zero)."""
        count = len(payload_ends)
        flags = (FLAG_KEYS if key_ends is not None else 0) | (FLAG_HEADERS if header_ends is not None else 0)
        sections: list[Buffer] = [bytes((flags, 0, 0, 0)), payload_ends.astype("<u4", copy=False).tobytes()]
        for ends, raw in ((key_ends, key_bytes), (header_ends, header_bytes)):
            if ends is None:
                continue
            if len(ends) != count:
                raise InvalidRequest(f"{len(ends)} keys or headers for {count} payloads")
            sections += [ends.astype("<u4", copy=False).tobytes(), raw]
        return cls.parse(count, b"".join(sections), data)

    @classmethod
    def parse(cls, count: int, metadata: Buffer, data: Buffer, *, data_bytes: int | None = None) -> RecordBlock:
        """Check sections that came from outside. Raises InvalidRequest or RecordTooLarge, naming what is off.

        ``data_bytes``: the size of a data section that is not here.
        """
        data_bytes = len(data) if data_bytes is None else data_bytes
        if not 1 <= count <= RECORDS_MAX:
            raise InvalidRequest(f"a block has 1 to {RECORDS_MAX} records, not {count}")
        block = cls(count, metadata, data)
        if len(metadata) < 4 + 4 * count:
            raise InvalidRequest(f"metadata section of {len(metadata)} bytes is too short for {count} records")
        if metadata[0] & ~(FLAG_KEYS | FLAG_HEADERS) or bytes(metadata[1:4]) != bytes(3):
            raise InvalidRequest("metadata section has unknown flags")
        if count == 1:
            block._check_lone(data_bytes)
            return block
        _check_ends(block.payload_ends, data_bytes, "payload")
        end = 4 + 4 * count
        for flag, name in ((FLAG_KEYS, "key"), (FLAG_HEADERS, "header")):
            if not metadata[0] & flag:
                continue
            if len(metadata) < end + 4 * count:
                raise InvalidRequest(f"metadata section ends within its {name} offsets")
            ends = np.frombuffer(metadata, "<u4", count, end)
            end += 4 * count
            _check_ends(ends, int(ends[-1]), name)
            if name == "key" and int(ends[-1]) > KEY_BYTES_MAX:  # one of them may be
                longest = int(lengths_of(ends).max())
                if longest > KEY_BYTES_MAX:
                    raise _long_key(longest)
            end += int(ends[-1])
        if end != len(metadata):
            raise InvalidRequest(f"metadata section is {len(metadata)} bytes, its content {end}")
        return block

    def _check_lone(self, data_bytes: int) -> None:
        metadata = self.metadata
        flags, payload = LONE.unpack_from(metadata)
        if payload != data_bytes:
            raise InvalidRequest(f"payload offsets do not rise to {data_bytes}")
        end = LONE.size
        for flag, name in ((FLAG_KEYS, "key"), (FLAG_HEADERS, "header")):
            if not flags & flag:
                continue
            if len(metadata) < end + END.size:
                raise InvalidRequest(f"metadata section ends within its {name} offsets")
            (size,) = END.unpack_from(metadata, end)
            if flag == FLAG_KEYS and size > KEY_BYTES_MAX:
                raise _long_key(size)
            end += END.size + size
        if end != len(metadata):
            raise InvalidRequest(f"metadata section is {len(metadata)} bytes, its content {end}")

    @classmethod
    def join(cls, blocks: Sequence[RecordBlock]) -> RecordBlock:
        """All records of several small blocks, in order; none of them over several keys."""
        lengths = list[int]()
        for block in blocks:
            lengths += (len(block.data),) if block.count == 1 else lengths_of(block.payload_ends).tolist()
        keys = headers = None
        if any(block.has_keys for block in blocks):
            keys = list(chain.from_iterable(map(cls.keys, blocks)))
        if any(block.has_headers for block in blocks):
            headers = list(chain.from_iterable(map(cls.raw_headers, blocks)))
        return cls.from_arrays(
            payload_ends=np.cumsum(lengths, dtype=np.uint32),
            data=b"".join([block.data for block in blocks]),
            key_ends=_ends_of(keys) if keys is not None else None,
            key_bytes=b"".join(keys or ()),
            header_ends=_ends_of(headers) if headers is not None else None,
            header_bytes=b"".join(headers or ()),
        )

    # -- reading

    @property
    def has_keys(self) -> bool:
        """At least one record has a key."""
        return bool(self.metadata[0] & FLAG_KEYS)

    @property
    def has_headers(self) -> bool:
        """At least one record has headers."""
        return bool(self.metadata[0] & FLAG_HEADERS)

    @property
    def nbytes(self) -> int:
        """Both sections."""
        return len(self.metadata) + len(self.data)

    @cached_property
    def payload_ends(self) -> Ends:
        """End offset of each payload in ``data``."""
        return np.frombuffer(self.metadata, "<u4", self.count, 4)

    @cached_property
    def key_ends(self) -> Ends:
        """End offset of each key in ``key_bytes``; all zero without keys."""
        if not self.has_keys:
            return np.zeros(self.count, np.uint32)
        return np.frombuffer(self.metadata, "<u4", self.count, 4 + 4 * self.count)

    @property
    def key_bytes(self) -> memoryview:
        """The keys back to back."""
        start = 4 + 8 * self.count
        return memoryview(self.metadata)[start : start + int(self.key_ends[-1])]

    def payloads(self) -> list[bytes]:
        """One bytes object per record: for small blocks and tests."""
        if self.count == 1:
            return [bytes(self.data)]
        return split(self.data, self.payload_ends)

    def keys(self) -> list[bytes]:
        """One per record, empty where there is none."""
        if self.count == 1:
            metadata = self.metadata
            size = END.unpack_from(metadata, LONE.size)[0] if metadata[0] & FLAG_KEYS else 0
            return [bytes(metadata[LONE.size + END.size : LONE.size + END.size + size])]
        return split(self.key_bytes, self.key_ends)

    def headers(self) -> list[tuple[tuple[str, bytes], ...]]:
        """One per record."""
        return list(map(unpack_headers, self.raw_headers()))

    def raw_headers(self) -> list[bytes]:
        """One per record, packed as they are."""
        return split(*self.packed_headers()) if self.has_headers else [b""] * self.count

    def records(self) -> list[Record]:
        """Row form."""
        rows = zip(self.keys(), self.payloads(), self.headers(), strict=True)
        wide = WIDE_OPERATIONS if self.wide else ()
        return [
            (WideRecord if payload[:1] in wide else Record)(payload, key or None, header)
            for key, payload, header in rows
        ]

    @property
    def has_ranges(self) -> bool:
        """Some are over ranges of keys: what those do has no bound in what they take of a log."""
        return self.wide and len(self._of_kind(OVER_RANGES, 1)) > 0

    @property
    def txn_keys(self) -> int:
        """Keys that its transactions look at, at most, together."""
        if not self.wide:
            return 0
        counts = self._of_kind(TXNS, 4).astype(np.int64)  # behind the kind: comparisons, and commands of either branch
        return int((counts[:, 1] + np.maximum(counts[:, 2], counts[:, 3])).sum())

    def _of_kind(self, kind: bytes, width: int) -> npt.NDArray[np.uint8]:
        """The first bytes of payloads that begin with this one, and have as many."""
        lengths = lengths_of(self.payload_ends)
        starts = (self.payload_ends - lengths)[lengths >= width].astype(np.int64)
        data = np.frombuffer(self.data, np.uint8)
        found: npt.NDArray[np.uint8] = data[starts[data[starts] == kind[0]][:, None] + np.arange(width)]
        return found

    def as_wide(self, *, wide: bool = True) -> RecordBlock:
        """The same records, and that some of them are over several keys."""
        return self if wide == self.wide else RecordBlock(self.count, self.metadata, self.data, wide)

    def take(self, start: int, stop: int) -> RecordBlock:
        """Records ``start`` to ``stop`` as a block of their own."""
        if start == 0 and stop == self.count:
            return self
        if start >= stop:
            raise InvalidRequest(f"no records from {start} to {stop}")
        payload_ends, data = _slice(self.data, self.payload_ends, start, stop)
        key_ends, keys = _slice(self.key_bytes, self.key_ends, start, stop) if self.has_keys else (None, b"")
        raw, ends = self.packed_headers() if self.has_headers else (b"", None)
        header_ends, headers = _slice(raw, ends, start, stop) if ends is not None else (None, b"")
        part = RecordBlock.from_arrays(
            payload_ends=payload_ends,
            data=data,
            key_ends=key_ends,
            key_bytes=keys,
            header_ends=header_ends,
            header_bytes=headers,
        )
        return part.as_wide(wide=self.wide)

    def where(self, wanted: npt.NDArray[np.bool_]) -> RecordBlock:
        """The records that are wanted, one at least, as a block of their own."""
        if bool(wanted.all()):
            return self
        payload_ends, data = _pick(self.data, self.payload_ends, wanted)
        key_ends, keys = _pick(self.key_bytes, self.key_ends, wanted) if self.has_keys else (None, b"")
        header_ends, headers = _pick(*self.packed_headers(), wanted) if self.has_headers else (None, b"")
        part = RecordBlock.from_arrays(
            payload_ends=payload_ends,
            data=data,
            key_ends=key_ends,
            key_bytes=keys,
            header_ends=header_ends,
            header_bytes=headers,
        )
        return part.as_wide(wide=self.wide)

    def keys_begin_with(self, prefix: bytes) -> npt.NDArray[np.bool_]:
        """Which records have such a key."""
        ends = self.key_ends.astype(np.int64)
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        found = ends - starts >= len(prefix)
        keys = np.frombuffer(self.key_bytes, np.uint8) if self.has_keys else np.zeros(0, np.uint8)
        for place, byte in enumerate(prefix):
            left = np.flatnonzero(found)
            found[left] = keys[starts[left] + place] == byte
        return found

    def headers_have(self, name: str, value: bytes | None) -> npt.NDArray[np.bool_]:
        """Which records have a header of this name; with this value, unless that is None."""
        found = np.zeros(self.count, np.bool_)
        if not self.has_headers:
            return found
        raw, ends = self.packed_headers()
        blob, sought = bytes(raw), name.encode()
        # Only what has the bytes of the name somewhere is looked at one by one.
        at = blob.find(sought)
        while at >= 0:
            row = int(np.searchsorted(ends, at, side="right"))
            if row >= self.count:
                break
            first = int(ends[row - 1]) if row else 0
            rows = unpack_headers(blob[first : int(ends[row])])
            found[row] = any(n == name and (value is None or v == value) for n, v in rows)
            at = blob.find(sought, int(ends[row]))
        return found

    def packed_headers(self) -> tuple[memoryview, Ends]:
        """All records' headers back to back, and where each record's end; all zero without headers."""
        if not self.has_headers:
            return memoryview(b""), np.zeros(self.count, np.uint32)
        start = 4 + 4 * self.count + (4 * self.count + int(self.key_ends[-1]) if self.has_keys else 0)
        ends = np.frombuffer(self.metadata, "<u4", self.count, start)
        return memoryview(self.metadata)[start + 4 * self.count :], ends


def _long_key(size: int) -> RecordTooLarge:
    return RecordTooLarge(f"a key of {size} bytes; at most {KEY_BYTES_MAX}", size=size, limit=KEY_BYTES_MAX)


def _ends_of(items: Sequence[bytes]) -> Ends:
    ends = np.cumsum(np.fromiter(map(len, items), np.int64, len(items)))
    if len(ends) and ends[-1] > 0xFFFFFFFF:
        raise RecordTooLarge("a block holds at most 4 GiB", size=int(ends[-1]), limit=0xFFFFFFFF)
    return ends.astype(np.uint32)


def _check_ends(ends: Ends, total: int, name: str) -> None:
    if int(ends[-1]) != total or np.count_nonzero(ends[1:] < ends[:-1]):
        raise InvalidRequest(f"{name} offsets do not rise to {total}")


def lengths_of(ends: Ends) -> Ends:
    """Of a column's items, from their ends. ``numpy.diff`` takes six times as long, which small blocks feel."""
    lengths = ends.copy()
    lengths[1:] -= ends[:-1]
    return lengths


def split(raw: Buffer, ends: Ends) -> list[bytes]:
    """A column's items, from their ends."""
    count, width = len(ends), int(ends[0]) if len(ends) else 0
    if count >= SPLIT_AT_ONCE_MIN and width and width * count == ends[-1] and bool((lengths_of(ends) == width).all()):
        items: list[bytes] = np.frombuffer(raw, f"V{width}", count).tolist()
        return items
    view = bytes(raw)
    stops = ends.tolist()
    return [view[a:b] for a, b in zip([0, *stops[:-1]], stops, strict=True)]


def _slice(raw: Buffer, ends: Ends, start: int, stop: int) -> tuple[Ends, memoryview]:
    """Items ``start`` to ``stop`` of a column, with their ends."""
    first = int(ends[start - 1]) if start else 0
    part = ends[start:stop]
    return part - np.uint32(first), memoryview(raw)[first : int(part[-1])]


def _pick(raw: Buffer, ends: Ends, wanted: npt.NDArray[np.bool_]) -> tuple[Ends, Buffer]:
    """The wanted items of a column, with their ends."""
    lengths = lengths_of(ends)
    column = np.frombuffer(raw, np.uint8, int(ends[-1]))
    picked = column[np.repeat(wanted, lengths)].tobytes()
    return np.cumsum(lengths[wanted], dtype=np.uint32), picked


def unpack_headers(raw: bytes) -> tuple[tuple[str, bytes], ...]:
    """One record's. Nothing looks into them when they are written, and any client may write what it likes.

    In names that are no text bytes are escaped; bytes that are no headers are one without a name.
    """
    if not raw:
        return ()
    try:
        rows: Any = msgpack.unpackb(raw, unicode_errors="backslashreplace")
    except (ValueError, TypeError, msgpack.exceptions.UnpackException):
        rows = None
    if not isinstance(rows, list) or not all(map(_is_header, rows)):
        return (("", raw),)
    return tuple((name, value) for name, value in rows)


def _is_header(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 2 and type(row[0]) is str and type(row[1]) is bytes
