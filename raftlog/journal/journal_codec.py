"""Records of the parent journal, as bytes. No I/O.

A segment file starts with a 40-byte header, then records, 8-byte aligned, then zeros::

    header  magic "LBJRNL" 6, version u16, sequence of its first record u64, cluster hash 12, salt 8, crc32c u32
    record  magic u32 (salt), length u32 (body), sequence u64, synced u64, floor u64,
            crc32c u32 (of salt, all these, kind and body), kind u8, zero 3, body

Each file draws its salt: a client cannot send a payload that holds what looks like one of its records.
Sequences are dense over the whole journal, so a lost, repeated or misplaced record shows.
``synced`` is the last sequence that was on stable storage before the write that carries the
record: a gap at or below it is damage, a gap above it is a torn tail that nobody relied on.
``floor`` is the highest Raft index that had been acknowledged (to a leader, or counted by
ourselves as leader) before that write.
A file without its settled REDO records is written when a later one is under way.
Bodies (little-endian)::

    ENTRY     index u64, term u64, command...
    TRUNCATE  first index removed u64
    HARDSTATE term u64, voted-for node id (utf-8, empty: nobody)
    REDO      digest 16, a batch: it may be missing from its partition's log after a power loss
    SETTLED   sequence u64: every batch of a REDO up to there is synced in its partition's log
    STRIPPED  count u64: stands for so many settled REDO records that were here
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import google_crc32c

from logboom.errors import CorruptData
from logboom.types import NUMBER_MAX
from ports.formats import refuse_format

VERSION: Final = 2
SEGMENT_MAGIC: Final = b"LBJRNL"
SEGMENT_HEADER: Final = struct.Struct("<6sHQ12s8sI")
SALT_BYTES: Final = 8
UNSALTED: Final = SEGMENT_HEADER.size - SALT_BYTES - 4
"""Of a header: everything in front of the salt."""
RECORD_HEADER: Final = struct.Struct("<IIQQQIB3x")
CHECKED: Final = struct.Struct("<IQQQB")
SALT: Final = struct.Struct("<II")
ENTRY: Final = struct.Struct("<QQ")
INDEX: Final = struct.Struct("<Q")
ALIGN: Final = 8
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
DIGEST_BYTES: Final = 16

Buffer = bytes | memoryview


class RecordKind(IntEnum):
    """Record kinds."""

    ENTRY = 1
    TRUNCATE = 2
    HARDSTATE = 3
    REDO = 4
    SETTLED = 5
    STRIPPED = 6


class AnotherClusters(CorruptData):
    """A file that is whole and of another cluster: somebody has put it here, and nothing is to be mended."""


KINDS: Final = frozenset(int(k) for k in RecordKind)
BODY_BYTES_MIN: Final = {
    RecordKind.ENTRY: ENTRY.size,
    RecordKind.TRUNCATE: INDEX.size,
    RecordKind.HARDSTATE: INDEX.size,
    RecordKind.REDO: DIGEST_BYTES,
    RecordKind.SETTLED: INDEX.size,
    RecordKind.STRIPPED: INDEX.size,
}
ONLY_A_NUMBER: Final = frozenset((RecordKind.TRUNCATE, RecordKind.SETTLED, RecordKind.STRIPPED))


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One decoded record, where it starts and where it ends."""

    kind: RecordKind
    sequence: int
    synced: int
    floor: int
    body: memoryview
    start: int
    end: int

    @property
    def next_sequence(self) -> int:
        """Of the record that follows."""
        return self.sequence + (INDEX.unpack(self.body)[0] if self.kind is RecordKind.STRIPPED else 1)


class Salt(NamedTuple):
    """What makes the records of one file its own."""

    magic: int
    """Never 0: what follows the records is zeros."""
    crc: int
    """Where their checksums begin."""

    @classmethod
    def of(cls, raw: bytes) -> Salt:
        """From its 8 bytes in the header."""
        magic, crc = SALT.unpack(raw)
        return cls(magic | 1, crc)


class SegmentHeader(NamedTuple):
    """How a file begins."""

    first_sequence: int
    salt: Salt


def segment_header(*, first_sequence: int, cluster: bytes, salt: bytes) -> bytes:
    """The first bytes of a segment. ``salt``: 8 random ones."""
    head = SEGMENT_HEADER.pack(SEGMENT_MAGIC, VERSION, first_sequence, cluster, salt, 0)[:-4]
    return head + struct.pack("<I", google_crc32c.value(head))


def begins_header(raw: bytes, *, first_sequence: int, cluster: bytes) -> bool:
    """``raw``, the first bytes of a file, is a part of that header at most, whatever its salt, and else zeros."""
    known = segment_header(first_sequence=first_sequence, cluster=cluster, salt=bytes(SALT_BYTES))[:UNSALTED]
    whole = len(raw) >= SEGMENT_HEADER.size and raw[-4:] == struct.pack("<I", google_crc32c.value(raw[:-4]))
    begun = raw[:UNSALTED]
    return not whole and (begun == known or known.startswith(raw.rstrip(b"\0")))


def check_segment_header(raw: bytes, *, cluster: bytes, path: str) -> SegmentHeader:
    """Raises IncompatibleVersion or CorruptData, naming ``path``."""
    if len(raw) < SEGMENT_HEADER.size:
        raise CorruptData(f"{path}: shorter than a journal segment header", path=path, offset=0)
    magic, version, first, found, salt, crc = SEGMENT_HEADER.unpack_from(raw)
    if magic != SEGMENT_MAGIC:
        raise CorruptData(f"{path}: not a journal segment", path=path, offset=0)
    if version != VERSION:
        refuse_format(bytes(raw[: SEGMENT_HEADER.size]), known=(VERSION,), what="journal", path=path)
    if google_crc32c.value(bytes(raw[: SEGMENT_HEADER.size - 4])) != crc:
        raise CorruptData(f"{path}: damaged journal segment header", path=path, offset=0)
    if found != cluster:
        raise AnotherClusters(f"{path}: a journal of another cluster", path=path, offset=0)
    return SegmentHeader(int(first), Salt.of(salt))


def record_bytes(body_bytes: int) -> int:
    """Of a record with such a body, in the file."""
    size = RECORD_HEADER.size + body_bytes
    return size + (-size % ALIGN)


def encode_record(kind: RecordKind, body: bytes, *, sequence: int, synced: int, floor: int, salt: Salt) -> bytes:
    """One aligned record."""
    checked = google_crc32c.extend(salt.crc, CHECKED.pack(len(body), sequence, synced, floor, kind))
    crc = google_crc32c.extend(checked, body)
    raw = RECORD_HEADER.pack(salt.magic, len(body), sequence, synced, floor, crc, kind) + body
    return raw + bytes(-len(raw) % ALIGN)


def record_at(raw: memoryview, offset: int, sequence: int | None, salt: Salt) -> JournalRecord | None:
    """The valid record at ``offset`` (with that sequence, if given), else None."""
    if len(raw) - offset < RECORD_HEADER.size:
        return None
    magic, length, found, synced, floor, crc, kind = RECORD_HEADER.unpack_from(raw, offset)
    start = offset + RECORD_HEADER.size
    end = start + length
    if magic != salt.magic or kind not in KINDS or length > BODY_BYTES_MAX or end > len(raw):
        return None
    if sequence is not None and found != sequence:
        return None
    body = raw[start:end]
    checked = google_crc32c.extend(salt.crc, CHECKED.pack(length, found, synced, floor, kind))
    if google_crc32c.extend(checked, bytes(body)) != crc:
        return None
    return JournalRecord(RecordKind(kind), found, synced, floor, body, offset, end + (-end % ALIGN))


def scan(raw: memoryview, header: SegmentHeader) -> tuple[list[JournalRecord], int]:
    """All records from the segment header on, and the offset where they end. Raises CorruptData."""
    records: list[JournalRecord] = []
    offset, sequence = SEGMENT_HEADER.size, header.first_sequence
    while (record := record_at(raw, offset, sequence, header.salt)) is not None:
        _check_body(record)
        records.append(record)
        offset, sequence = record.end, record.next_sequence
    return records, offset


def _check_body(record: JournalRecord) -> None:
    """What no torn write leaves: a record that is whole by its checksum, and is not one of ours."""
    size, least = len(record.body), BODY_BYTES_MIN[record.kind]
    name = f"journal record {record.sequence}"
    if size < least or (size > least and record.kind in ONLY_A_NUMBER):
        raise CorruptData(f"{name}: {record.kind.name} of {size} bytes", offset=record.start)
    if not record.sequence < record.next_sequence <= NUMBER_MAX:
        raise CorruptData(f"{name} is followed by {record.next_sequence}", offset=record.start)


def unpack_hard_state(body: Buffer) -> tuple[int, str | None]:
    """Term, and who got its vote; the body of a HARDSTATE. Raises UnicodeDecodeError."""
    (term,) = INDEX.unpack_from(body)
    return int(term), bytes(body[INDEX.size :]).decode() or None


def strip(raw: bytes, records: Sequence[JournalRecord], salt: Salt) -> bytes:
    """A whole segment without its REDO records; dense sequences stay provable."""
    view = memoryview(raw)
    kept: list[Buffer] = [view[: SEGMENT_HEADER.size]]
    run: list[JournalRecord] = []
    for record in records:
        if record.kind in (RecordKind.REDO, RecordKind.STRIPPED):
            run.append(record)
            continue
        kept += [*_stripped(run, salt), view[record.start : record.end]]
        run = []
    return b"".join([*kept, *_stripped(run, salt)])


def _stripped(run: Sequence[JournalRecord], salt: Salt) -> list[bytes]:
    if not run:
        return []
    first, last = run[0], run[-1]
    count = INDEX.pack(last.next_sequence - first.sequence)
    said = {"sequence": first.sequence, "synced": last.synced, "floor": last.floor}
    return [encode_record(RecordKind.STRIPPED, count, **said, salt=salt)]


def later_record(raw: bytes, offset: int, *, missing: int, salt: Salt) -> JournalRecord | None:
    """A whole record beyond ``offset`` written after ``missing`` had been synced: proof of damage.

    Records of the same unsynced write may survive a power loss without ``missing``: those prove nothing.
    """
    view, magic = memoryview(raw), struct.pack("<I", salt.magic)
    at = raw.find(magic, offset)
    while at >= 0:
        record = record_at(view, at, None, salt)
        if record is not None and record.synced >= missing:
            return record
        at = raw.find(magic, at + 1)
    return None
