"""A batch: what one append writes. The unit of replication, of the digest chain and of the index.

128-byte header (little-endian, field by field as in ``HEAD``), metadata section, data section::

    magic "LBB1", version u16 (1), flags u16 (bit 0: dense, 1: wide, 2: mixed), partition id u32,
    record count u32, first index u64, term u64, timestamp ms u64, producer id 16, epoch u32, codec u32 (0: none),
    first sequence u64, floor u64, metadata length u32, data length u32,
    previous digest 16, digest 16, crc32c of all before it u32, 4 zero bytes

``digest`` = first 16 bytes of BLAKE3 over previous digest ‖ content fields of the header ‖
metadata ‖ data: a commitment to the whole prefix of the partition's log.

A *mixed* batch has records of several producers: ``logboom/origins.py`` says where it names them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import google_crc32c
from blake3 import blake3

from logboom import batch_layout
from logboom.batch_layout import CRC, DIGESTS, HEAD, VERSION
from logboom.errors import CorruptData, IncompatibleVersion, InvalidRequest
from logboom.origins import ORIGIN, ORIGINS_MAX, Origin, origins_in, pack_origins
from logboom.records import RECORDS_MAX, RecordBlock
from logboom.types import DIGEST_BYTES, NO_PRODUCER, NUMBER_MAX, PartitionId, PartitionLogIndex, ProducerId, Term
from logboom.wire import Buffer

MAGIC: Final = batch_layout.MAGIC
HEADER_BYTES: Final = batch_layout.HEADER_BYTES
CRC_AT: Final = HEADER_BYTES - CRC.size
FLAGS_AT: Final = 6
FLAG_DENSE: Final = 1
FLAG_WIDE: Final = batch_layout.FLAG_WIDE
FLAG_MIXED: Final = batch_layout.FLAG_MIXED
SECTION_BYTES_MAX: Final = 1 << 30


class BatchHeader(NamedTuple):
    """Everything about a batch but its records."""

    partition_id: PartitionId
    first_index: PartitionLogIndex
    record_count: int
    term: Term
    timestamp_ms: int
    producer: ProducerId
    epoch: int
    sequence: int
    floor: int
    dense: bool
    metadata_length: int
    data_length: int
    previous_digest: bytes
    digest: bytes
    wide: bool = False
    mixed: int = 0
    """How many origins its metadata section begins with; 0: it has one producer, the header's."""

    @property
    def last_index(self) -> PartitionLogIndex:
        """``partition_log_index`` of the last record."""
        return PartitionLogIndex(self.first_index + self.record_count - 1)

    @property
    def nbytes(self) -> int:
        """The whole batch on disk."""
        return HEADER_BYTES + self.metadata_length + self.data_length


class Batch:
    """A header and the three buffers that follow each other on disk and on the wire."""

    __slots__ = ("buffers", "digest", "header", "last_index", "nbytes", "origins")

    def __init__(self, header: BatchHeader, buffers: list[Buffer], origins: tuple[Origin, ...] = ()) -> None:
        """``origins``: of a mixed batch."""
        self.header = header
        self.buffers = buffers
        self.origins = origins
        # Of the header, worked out once: whoever handles a batch, and they are many, asks for these.
        self.digest = header.digest
        self.last_index = header.last_index
        self.nbytes = header.nbytes

    def records(self) -> RecordBlock:
        """The records, not copied. Raises CorruptData if the sections are not a block."""
        metadata = self.buffers[1]
        if self.header.mixed:
            metadata = memoryview(metadata)[self.header.mixed * ORIGIN.size :]
        try:
            found = RecordBlock.parse(self.header.record_count, metadata, self.buffers[2])
        except InvalidRequest as error:
            raise CorruptData(f"batch at {self.header.first_index}: {error}") from error
        return found.as_wide(wide=self.header.wide)


def build_batch(
    *,
    partition_id: PartitionId,
    first_index: int,
    term: Term,
    timestamp_ms: int,
    records: RecordBlock,
    previous_digest: bytes,
    producer: ProducerId = NO_PRODUCER,
    epoch: int = 0,
    sequence: int = 0,
    floor: int = 0,
    dense: bool = False,
    origins: tuple[Origin, ...] = (),
) -> Batch:
    """A new batch of ``records``; sections are referenced, not copied. One with ``origins`` is mixed: no producer."""
    metadata, data = records.metadata, records.data
    if origins:
        metadata = pack_origins(origins) + bytes(metadata)
    head = HEAD.pack(
        MAGIC,
        VERSION,
        (FLAG_DENSE if dense else 0) | (FLAG_WIDE if records.wide else 0) | (FLAG_MIXED if origins else 0),
        partition_id,
        records.count,
        first_index,
        term,
        timestamp_ms,
        producer,
        len(origins) or epoch,
        0,
        sequence,
        floor,
        len(metadata),
        len(data),
    )
    digest = _digest(previous_digest, head, metadata, data)
    checked = head + previous_digest + digest
    raw = checked + CRC.pack(google_crc32c.value(checked))
    header = BatchHeader(
        partition_id,
        PartitionLogIndex(first_index),
        records.count,
        term,
        timestamp_ms,
        producer,
        epoch,
        sequence,
        floor,
        dense,
        len(metadata),
        len(data),
        previous_digest,
        digest,
        records.wide,
        len(origins),
    )
    return Batch(header, [raw, metadata, data], origins)


def parse_header(raw: Buffer) -> BatchHeader:
    """Check and decode the first 128 bytes. Raises CorruptData or IncompatibleVersion."""
    if len(raw) < HEADER_BYTES:
        raise CorruptData(f"a batch header of {len(raw)} bytes")
    fields = HEAD.unpack_from(raw)
    if fields[0] != MAGIC:
        raise CorruptData("not a batch header")
    checked = bytes(raw[:CRC_AT])
    (crc,) = CRC.unpack_from(raw, CRC_AT)
    if google_crc32c.value(checked) != crc:
        raise CorruptData("batch header does not match its checksum")
    _, version, flags, partition, count, first, term, stamp, producer, epoch, codec, seq, floor, meta, data = fields
    if version != VERSION or codec != 0 or flags & ~(FLAG_DENSE | FLAG_WIDE | FLAG_MIXED):
        raise IncompatibleVersion(
            f"batch of format {version}, codec {codec}, flags {flags}; this release reads format {VERSION}",
            found=version,
            supported=VERSION,
        )
    if not 1 <= count <= RECORDS_MAX or max(meta, data) > SECTION_BYTES_MAX:
        raise CorruptData(f"batch header with {count} records in {meta} + {data} bytes")
    if not first or max(first, seq, floor) > NUMBER_MAX:
        raise CorruptData(f"batch header with index {first}, sequence {seq}, floor {floor}")
    mixed = 0
    if flags & FLAG_MIXED:
        mixed, epoch = epoch, 0
        if flags != FLAG_MIXED or producer != NO_PRODUCER or seq or floor:
            raise CorruptData(f"mixed batch at {first} with flags {flags} and a producer of its own")
        if not 1 <= mixed <= min(count, ORIGINS_MAX) or mixed * ORIGIN.size > meta:
            raise CorruptData(f"mixed batch at {first} with {mixed} origins, {count} records, {meta} bytes of metadata")
    previous, digest = DIGESTS.unpack_from(raw, HEAD.size)
    return BatchHeader(
        PartitionId(partition),
        PartitionLogIndex(first),
        count,
        Term(term),
        stamp,
        ProducerId(producer),
        epoch,
        seq,
        floor,
        bool(flags & FLAG_DENSE),
        meta,
        data,
        previous,
        digest,
        bool(flags & FLAG_WIDE),
        mixed,
    )


def parse_batch(raw: Buffer) -> Batch:
    """Check a whole batch against its own digest. Raises CorruptData or IncompatibleVersion."""
    view = memoryview(raw)
    header = parse_header(view)
    if len(view) != header.nbytes:
        raise CorruptData(f"batch of {len(view)} bytes; its header says {header.nbytes}")
    middle = HEADER_BYTES + header.metadata_length
    metadata, data = view[HEADER_BYTES:middle], view[middle:]
    if _digest(header.previous_digest, bytes(view[: HEAD.size]), metadata, data) != header.digest:
        raise CorruptData(f"batch at {header.first_index} does not match its digest")
    origins = origins_of(header, metadata) if header.mixed else ()
    return Batch(header, [view[:HEADER_BYTES], metadata, data], origins)


def is_mixed(raw: memoryview) -> bool:
    """Of a checked batch: it has several producers."""
    return bool(raw[FLAGS_AT] & FLAG_MIXED)


def origins_of(header: BatchHeader, metadata: memoryview) -> tuple[Origin, ...]:
    """Of a mixed batch; none of any other. Raises CorruptData."""
    try:
        return origins_in(metadata[: header.mixed * ORIGIN.size], header.first_index, header.record_count)
    except InvalidRequest as error:
        raise CorruptData(f"batch at {header.first_index}: {error}") from error


def is_batch(raw: memoryview, digest: bytes) -> bool:
    """These bytes are, whole, the batch with this digest: what ``parse_batch`` checks, for who needs no header."""
    if len(raw) <= HEADER_BYTES:
        return False
    previous, own = DIGESTS.unpack_from(raw, HEAD.size)
    if own != digest or CRC.unpack_from(raw, CRC_AT) != (google_crc32c.value(bytes(raw[:CRC_AT])),):
        return False
    hasher = blake3(previous + bytes(raw[: HEAD.size]))
    hasher.update(raw[HEADER_BYTES:])  # the header, whose lengths are hashed too, says where its sections meet
    return hasher.digest(DIGEST_BYTES) == digest


def _digest(previous: bytes, head: bytes, metadata: Buffer, data: Buffer) -> bytes:
    if len(metadata) + len(data) < 4096:
        return blake3(b"".join((previous, head, metadata, data))).digest(DIGEST_BYTES)
    hasher = blake3(previous + head)
    hasher.update(metadata)
    hasher.update(data)
    return hasher.digest(DIGEST_BYTES)
