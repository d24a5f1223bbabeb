"""Targets: segment, index and places files of a partition's log, journal files of the parent log.

As in ``batches``: an odd first byte puts checksums right before the decoder sees the rest.
"""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path
from typing import Final

from blake3 import blake3

from chaos.fuzz.batches import check_batch, seal_batch
from chaos.fuzz.disk import MemoryDisk
from chaos.fuzz.samples import batch, raw
from chaos.fuzz.target import Cursor, Target, counted, holds
from logboom.errors import CorruptData, IncompatibleVersion
from logboom.settings import LogSettings
from logboom.types import DurabilityMode, PartitionId, Term
from partitions.log.batch import HEADER_BYTES, parse_batch
from partitions.log.committed import Committed
from partitions.log.log import PartitionLog
from partitions.log.places import COLUMNS_AT, ROW_BYTES, decode_places, encode_places
from partitions.log.places import HEADER as PLACES_HEADER
from partitions.log.places import MAGIC as PLACES_MAGIC
from partitions.log.segment import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_MAGIC,
    SEGMENT_HEADER_BYTES,
    BatchRef,
    Scanned,
    load,
    pack_index,
    pack_segment_header,
    parse_index,
    scan,
    segment_name,
)
from ports.invariant import InvariantViolated
from raftlog.entries.entry import pack_routes
from raftlog.journal import journal_codec as codec
from raftlog.journal.journal import Journal, cluster_hash
from raftlog.journal.journal_codec import RecordKind

HERE: Final = Path("/data")
PARTITION: Final = PartitionId(1)
VERSION: Final = 1
CLUSTER: Final = cluster_hash("fuzz")
SALT: Final = b"the salt"
SALTED: Final = codec.Salt.of(SALT)
JOURNAL_BYTES: Final = 4096

# -- partition logs


def _seal_segment(data: bytes, ordinal: int) -> bytes:
    """Header and batches as they have to be, as far as their lengths reach."""
    sealed = pack_segment_header(PARTITION, ordinal=ordinal, first_index=1)
    at = len(sealed)
    while len(data) - at >= HEADER_BYTES:
        metadata, of_data = struct.unpack_from("<II", data, at + 80)
        if data[at : at + 4] == bytes(4):
            break
        end = min(len(data), at + HEADER_BYTES + metadata + of_data)
        sealed += seal_batch(data[at:end])
        at = end
    return sealed + data[at:]


def segment(data: bytes) -> None:
    """First byte: 1 sealed checksums, 2 not the last segment, 4 with an index. u16 index length, index, segment."""
    cursor = Cursor(data)
    flags = cursor.number(1)
    index, log = cursor.take(cursor.number(2)), cursor.rest()
    if flags & 1:
        log = _seal_segment(log, 1)
        index = _seal_index(index)
    disk, path = MemoryDisk(), HERE / segment_name(1, 1)
    disk.put(path, log)
    if flags & 4:
        disk.put(path.with_suffix(".idx"), index)
    sealed = bool(flags & 2)
    try:
        found, file = load(disk, path, PARTITION, sealed=sealed)
    except (CorruptData, IncompatibleVersion):
        return
    holds((file is None) == sealed, "the last segment's file stays open, no other")
    again, _ = load(disk, path, PARTITION, sealed=sealed)
    holds(_rows(again) == _rows(found) and again.end == found.end, "a second start finds other batches")
    if not flags & 4:  # an index may have been made up
        _check_scanned(found, log)
    if sealed:
        disk.put(HERE / segment_name(1 << 40, 2), pack_segment_header(PARTITION, ordinal=2, first_index=1 << 40))
    log_of_all = PartitionLog.open(
        disk=disk, directory=HERE, partition_id=PARTITION, settings=LogSettings(), mode=DurabilityMode.WRITE_AHEAD
    )
    held = all(log_of_all.holds(ref.last_index, ref.digest) for ref in found.refs)
    holds(held, "the log holds what the segment does")


def _rows(found: Scanned) -> list[BatchRef]:
    return [ref._replace(term=Term(ref.term & 0xFFFFFFFF)) for ref in found.refs]  # an index has no more of it


def _check_scanned(found: Scanned, log: bytes) -> None:
    at = SEGMENT_HEADER_BYTES
    damage = {each.offset: each.length for each in found.damage}
    for ref in found.refs:
        at += damage.get(at, 0)
        holds(ref.offset == at, f"a batch at {ref.offset}, the one before ends at {at}")
        at += ref.length
        raw_batch = log[ref.offset : at]
        read = parse_batch(raw_batch)
        header = read.header
        holds((header.digest, header.previous_digest) == (ref.digest, ref.previous_digest), "a row of another batch")
        holds((header.first_index, read.last_index) == (ref.first_index, ref.last_index), "a row of another batch")
        check_batch(read, raw_batch)
    holds(found.end in (0, at) and at <= max(len(log), SEGMENT_HEADER_BYTES), "batches end within the file")


def _segment_seeds() -> list[bytes]:
    one = batch()
    two = batch(previous=one)
    header = pack_segment_header(PARTITION, ordinal=1, first_index=1)
    logs = [header + raw(one) + raw(two), header + raw(one) + raw(two)[:90], header + raw(one) + b"?" * 40 + raw(two)]
    tail = bytes(256)
    found = scan(logs[0], ordinal=1, path=HERE, partition_id=PARTITION)
    index = pack_index(found.refs, ordinal=1, end=found.end)
    plain = [bytes([flags]) + counted(b"", log + tail) for flags in (0, 1, 2, 3) for log in (*logs, b"")]
    return [*plain, *(bytes([flags]) + counted(index, logs[0] + tail) for flags in (6, 7))]


def _seal_index(data: bytes) -> bytes:
    _, _, _, _, end, part, _, chain = INDEX_HEADER.unpack_from(data.ljust(INDEX_HEADER.size, b"\0"))
    rows = data[INDEX_HEADER.size :]
    rows = rows[: len(rows) - len(rows) % INDEX_ENTRY.size]
    digest = blake3(rows + struct.pack("<QQQ", 1, end, part)[: 24 if part else 16]).digest(16)
    head = INDEX_HEADER.pack(INDEX_MAGIC, VERSION, 1, len(rows) // INDEX_ENTRY.size, end, part, digest, chain)
    return head + rows


def index_file(data: bytes) -> None:
    """First byte odd: sealed."""
    given = _seal_index(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    found = parse_index(given, ordinal=1)
    if found is None:
        return
    holds(not found.damage, "an index knows of no damage")
    again = pack_index(found.refs, ordinal=1, end=found.end, whole=found.whole)
    # The last digest is said again by the rows.
    holds(again[INDEX_HEADER.size :] == given[INDEX_HEADER.size :], "rows do not come back")
    holds(again[: INDEX_HEADER.size - 16] == given[:48], "a header does not come back")


def _index_seeds() -> list[bytes]:
    one = batch()
    log = pack_segment_header(PARTITION, ordinal=1, first_index=1) + raw(one) + raw(batch(previous=one))
    found = scan(log, ordinal=1, path=HERE, partition_id=PARTITION)
    return [
        flag + pack_index(found.refs[:n], ordinal=1, end=found.end, whole=whole)
        for flag in (b"\0", b"\1")
        for n in (0, 1, 2)
        for whole in (True, False)
    ]


def _seal_places(data: bytes) -> bytes:
    """A whole number of rows, their count and the digest."""
    rows = data[COLUMNS_AT:]
    rows = rows[: len(rows) - len(rows) % ROW_BYTES]
    _, _, _, gap, start, before, digest, _ = PLACES_HEADER.unpack_from(data.ljust(PLACES_HEADER.size, b"\0"))
    head = PLACES_HEADER.pack(PLACES_MAGIC, VERSION, PARTITION, gap, start, before, digest, len(rows) // ROW_BYTES)
    return head + blake3(head + rows).digest(16) + rows


def places_file(data: bytes) -> None:
    """First byte odd: sealed."""
    given = _seal_places(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    try:
        columns = decode_places(given, partition_id=PARTITION, path=HERE)
    except (CorruptData, IncompatibleVersion):
        return
    ends = [columns.before_index, *columns.last]
    holds(all(one < two for one, two in itertools.pairwise(ends)), "last indices ascend")
    again = encode_places(columns, PARTITION)
    holds(again[: PLACES_HEADER.size] == given[: PLACES_HEADER.size], "another header")
    holds(again[COLUMNS_AT:] == given[COLUMNS_AT:], "rows do not come back")


def _places_seeds() -> list[bytes]:
    one = batch()
    log = pack_segment_header(PARTITION, ordinal=1, first_index=1) + raw(one) + raw(batch(previous=one))
    committed = Committed()
    seeds = [encode_places(committed.columns, PARTITION)]
    for number, ref in enumerate(scan(log, ordinal=1, path=HERE, partition_id=PARTITION).refs, 1):
        committed.append(ref, number)
        seeds.append(encode_places(committed.columns, PARTITION))
    return [flag + each for flag in (b"\0", b"\1") for each in seeds]


# -- journal


def _seal_journal(data: bytes, first: int) -> bytes:
    """A header, and records with the sequences and checksums that they have to have, as far as lengths reach."""
    sealed = codec.segment_header(first_sequence=first, cluster=CLUSTER, salt=SALT)
    at, sequence = len(sealed), first
    while len(data) - at > codec.RECORD_HEADER.size:
        _, length, _, synced, floor, _, kind = codec.RECORD_HEADER.unpack_from(data, at)
        if data[at : at + 4] == bytes(4):
            break
        start = at + codec.RECORD_HEADER.size
        end = min(len(data), start + length)
        body = data[start:end]
        kind = RecordKind(1 + (kind - 1) % 6)
        sealed += codec.encode_record(kind, body, sequence=sequence, synced=synced, floor=floor, salt=SALTED)
        stripped = kind == RecordKind.STRIPPED and len(body) == codec.INDEX.size
        sequence = (sequence + (codec.INDEX.unpack(body)[0] if stripped else 1)) % (1 << 64)
        at = end + -end % codec.ALIGN
    return sealed + data[at:]


def journal_scan(data: bytes) -> None:
    """First byte odd: sealed. u8 first sequence, then a segment."""
    cursor = Cursor(data)
    flags, first = cursor.number(1), cursor.number(1)
    given = _seal_journal(cursor.rest(), first) if flags & 1 else cursor.rest()
    try:
        records, end = codec.scan(memoryview(given), codec.SegmentHeader(first, SALTED))
    except CorruptData:
        return
    expected = first
    for record in records:
        holds(record.sequence == expected, "sequences are dense")
        holds(record.next_sequence > record.sequence, "sequences rise")
        expected = record.next_sequence
        said = {"sequence": record.sequence, "synced": record.synced, "floor": record.floor}
        written = codec.encode_record(record.kind, bytes(record.body), **said, salt=SALTED)
        again = codec.record_at(memoryview(written), 0, None, SALTED)
        holds(
            again is not None and (again.kind, again.body) == (record.kind, record.body), "a record does not come back"
        )
    later = codec.later_record(given, end, missing=expected, salt=SALTED)
    holds(later is None or (later.start >= end and later.synced >= expected), "no proof of anything")
    stripped = codec.strip(given, records, SALTED)
    left, whole = codec.scan(memoryview(stripped), codec.SegmentHeader(first, SALTED))
    holds(whole >= len(stripped), "a stripped file ends in something else")
    gone = (RecordKind.REDO, RecordKind.STRIPPED)
    plain = [[(r.kind, r.sequence, bytes(r.body)) for r in some if r.kind not in gone] for some in (records, left)]
    holds(plain[0] == plain[1], "stripping loses more than batches")
    holds((left[-1].next_sequence if left else first) == expected, "a stripped file ends at another sequence")


def journal_open(data: bytes) -> None:
    """First byte: 1 sealed, 2 two files. u16 length of the first file, it, and the second."""
    cursor = Cursor(data)
    flags = cursor.number(1)
    files = [cursor.take(cursor.number(2)), cursor.rest()] if flags & 2 else [cursor.rest()]
    disk, sequence = MemoryDisk(), 1
    for content in files:
        sealed = _seal_journal(content, sequence) if flags & 1 else content
        disk.put(HERE / f"{sequence:020d}.journal", sealed)
        try:
            records, _ = codec.scan(memoryview(sealed), codec.SegmentHeader(sequence, SALTED))
        except CorruptData:
            records = []
        sequence = min(records[-1].next_sequence, 10**19) if records else sequence + 1
    try:
        journal = _opened(disk)
    except (CorruptData, IncompatibleVersion, InvariantViolated):
        return  # the invariant: entries that were acknowledged are gone
    _goes_on(journal, disk)


def _opened(disk: MemoryDisk) -> Journal:
    return Journal.open(
        disk=disk,
        directory=HERE,
        cluster_id="fuzz",
        segment_bytes=JOURNAL_BYTES,
        random_bytes=random.Random(0).randbytes,
    )


def _goes_on(journal: Journal, disk: MemoryDisk) -> None:
    """A journal that opened can be written, and opens again as it was, with what was written."""
    for at, (_, index, _) in enumerate(journal.entries):
        holds(index == at + 1, "entries are dense from the placeholder on")
    journal.add(b"\x01", journal.last_index + 1, 7)
    journal.setCurrentTerm(journal.term, journal.vote)
    journal.flush()
    again = _opened(disk)
    holds(again.entries == journal.entries, "another start finds other entries")
    holds((again.term, again.vote) == (journal.term, journal.vote), "another start finds another vote")
    holds(again.taken_sequence == journal.taken_sequence, "another start finds another end")


def _journal(*records: tuple[RecordKind, bytes], first: int = 1) -> bytes:
    raw_records = [
        codec.encode_record(kind, body, sequence=first + k, synced=first - 1, floor=1, salt=SALTED)
        for k, (kind, body) in enumerate(records)
    ]
    return codec.segment_header(first_sequence=first, cluster=CLUSTER, salt=SALT) + b"".join(raw_records)


def _journal_records() -> list[tuple[RecordKind, bytes]]:
    entries = [codec.ENTRY.pack(index, 3) + pack_routes([]) for index in (2, 3)]
    one = batch()
    return [
        (RecordKind.HARDSTATE, codec.INDEX.pack(3) + b"n2"),
        (RecordKind.REDO, one.digest + raw(one)),
        (RecordKind.ENTRY, entries[0]),
        (RecordKind.ENTRY, entries[1]),
        (RecordKind.TRUNCATE, codec.INDEX.pack(3)),
        (RecordKind.ENTRY, entries[1]),
        (RecordKind.SETTLED, codec.INDEX.pack(2)),
    ]


def _journals() -> list[bytes]:
    whole = _journal(*_journal_records())
    records, _ = codec.scan(memoryview(whole), codec.SegmentHeader(1, SALTED))
    stripped = codec.strip(whole, records, SALTED)
    return [whole + bytes(64), whole[:-20] + bytes(64), stripped + bytes(64), _journal(), bytes(64)]


def _scan_seeds() -> list[bytes]:
    return [bytes([flags, 1]) + each for flags in (0, 1) for each in _journals()]


def _open_seeds() -> list[bytes]:
    records = _journal_records()
    two = counted(_journal(*records[:3]), _journal(*records[3:], first=4) + bytes(64))
    return [bytes([flags]) + each for flags in (0, 1) for each in _journals()] + [b"\2" + two, b"\3" + two]


TARGETS = [
    Target("segment", segment, _segment_seeds, "segment files of a partition's log, with and without an index"),
    Target("index", index_file, _index_seeds, "index files of sealed segments"),
    Target("places", places_file, _places_seeds, "where the committed batches of a partition's log are"),
    Target("journal_scan", journal_scan, _scan_seeds, "records of the parent journal"),
    Target("journal_open", journal_open, _open_seeds, "journals of one or two files, opened, written and opened again"),
]
