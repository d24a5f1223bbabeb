"""What comes out of the log: batches of records, or what there is to know of them without their data."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt

from logboom.batch_layout import CRC, FLAG_MIXED, FLAG_WIDE, HEAD, HEADER_BYTES, MAGIC, VERSION
from logboom.errors import InvalidRequest, ProtocolError, RecordTooLarge, Voided
from logboom.origins import ORIGIN, Origin, origins_in
from logboom.records import RecordBlock, lengths_of
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, Term
from logboom.wire import Frame, Kind

T = TypeVar("T")
Offsets = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Committed records of one partition, as the log has them."""

    partition_id: PartitionId
    first_index: PartitionLogIndex
    global_index: GlobalLogIndex
    term: Term
    timestamp_ms: int
    producer_id: bytes
    epoch: int
    sequence: int
    records: RecordBlock
    offsets: Offsets | None = field(default=None, compare=False)
    """What a filter left: each record's distance from ``first_index``. None: they follow each other."""
    next_index: PartitionLogIndex = PartitionLogIndex(0)
    """Where to go on: behind the batch, whatever was filtered out of it; 0: behind the last record."""
    origins: tuple[Origin, ...] = ()
    """Of a batch that several producers share: whose its records are, with those that are not here. It has no
    ``producer_id`` of its own then, no epoch and no sequence."""

    @property
    def last_index(self) -> PartitionLogIndex:
        """Index of the last record."""
        last = self.records.count - 1 if self.offsets is None else int(self.offsets[-1])
        return PartitionLogIndex(self.first_index + last)

    @property
    def position(self) -> PartitionLogIndex:
        """``start`` of a tail that goes on behind this."""
        return self.next_index or PartitionLogIndex(self.last_index + 1)

    def indexes(self) -> npt.NDArray[np.uint64]:
        """``partition_log_index`` of every record."""
        return _indexes(self.first_index, self.records.count, self.offsets)

    def pieces(self, records_max: int, bytes_max: int) -> Iterator[LogBatch]:
        """The batch in pieces of at most so many records and payload bytes (0: any number), one record at least."""
        records, start = self.records, 0
        if (not records_max or records.count <= records_max) and (not bytes_max or records.nbytes <= bytes_max):
            yield self
            return
        ends = records.payload_ends
        while start < records.count:
            stop = min(records.count, start + records_max) if records_max else records.count
            if bytes_max:
                before = int(ends[start - 1]) if start else 0
                stop = min(stop, max(start + 1, int(np.searchsorted(ends, before + bytes_max, side="right"))))
            yield self._piece(start, stop)
            start = stop

    def _piece(self, start: int, stop: int) -> LogBatch:
        first = start if self.offsets is None else int(self.offsets[start])
        last = stop == self.records.count
        end = stop if self.offsets is None else 0 if last else int(self.offsets[stop - 1]) + 1
        return LogBatch(
            self.partition_id,
            PartitionLogIndex(self.first_index + first),
            self.global_index,
            self.term,
            self.timestamp_ms,
            self.producer_id,
            self.epoch,
            0 if self.origins else self.sequence + first,
            self.records.take(start, stop),
            None if self.offsets is None else self.offsets[start:stop] - np.uint32(first),
            self.position if last else PartitionLogIndex(self.first_index + end),
            self.origins,
        )


class Descriptor(msgspec.Struct, frozen=True, gc=False):
    """Names one record's data, on whichever node it is asked for."""

    partition_id: int
    index: int
    """``partition_log_index``."""
    size: int
    """Bytes of its payload."""


@dataclass(frozen=True, slots=True)
class LogMetadata:
    """A batch without its data: keys, headers and sizes. ``descriptors`` are for ``Client.fetch``."""

    partition_id: PartitionId
    first_index: PartitionLogIndex
    global_index: GlobalLogIndex
    term: Term
    timestamp_ms: int
    producer_id: bytes
    epoch: int
    sequence: int
    block: RecordBlock
    """With all of the metadata and none of the data. ``wide``: commands over several keys count in there."""
    offsets: Offsets | None = field(default=None, compare=False)
    next_index: PartitionLogIndex = PartitionLogIndex(0)
    origins: tuple[Origin, ...] = ()
    """See LogBatch."""

    @property
    def count(self) -> int:
        """Records."""
        return self.block.count

    @property
    def position(self) -> PartitionLogIndex:
        """``start`` of a feed that goes on behind this."""
        return self.next_index

    def indexes(self) -> npt.NDArray[np.uint64]:
        """``partition_log_index`` of every record."""
        return _indexes(self.first_index, self.block.count, self.offsets)

    def keys(self) -> list[bytes]:
        """One per record, empty where there is none."""
        return self.block.keys()

    def headers(self) -> list[tuple[tuple[str, bytes], ...]]:
        """One per record."""
        return self.block.headers()

    def sizes(self) -> Offsets:
        """Payload bytes of every record."""
        return lengths_of(self.block.payload_ends)

    def descriptors(self) -> list[Descriptor]:
        """One per record."""
        rows = zip(self.indexes().tolist(), self.sizes().tolist(), strict=True)
        return [Descriptor(self.partition_id, index, size) for index, size in rows]


def _indexes(first: int, count: int, offsets: Offsets | None) -> npt.NDArray[np.uint64]:
    steps = np.arange(count, dtype=np.uint64) if offsets is None else offsets.astype(np.uint64)
    return steps + np.uint64(first)


def batches_of(frame: Frame) -> Iterator[LogBatch]:
    """The batches in a RECORDS or BATCHES frame. Raises ProtocolError."""
    if frame.kind is Kind.RECORDS:
        yield _of_records(frame)
        return
    packed, first = _field(frame, "global_indexes", bytes), frame.header.get("first_index") or 0
    if len(packed) % 8 or type(first) is not int:
        raise ProtocolError("BATCHES: bad header")
    globals_, at = array("Q"), 0
    globals_.frombytes(packed)
    for global_index in globals_:
        batch, size = _of_raw(frame.body[at:], global_index, first)
        at, first = at + size, 0
        yield batch
    if at != len(frame.body):
        raise ProtocolError(f"BATCHES: {len(globals_)} batches of {at} bytes in a body of {len(frame.body)}")


def _of_raw(raw: memoryview, global_index: int, first: int) -> tuple[LogBatch, int]:
    """The batch at the beginning of ``raw``, from index ``first`` on, and its size."""
    if len(raw) < HEADER_BYTES:
        raise ProtocolError(f"BATCHES: a batch of {len(raw)} bytes")
    fields = HEAD.unpack_from(raw)
    (crc,) = CRC.unpack_from(raw, HEADER_BYTES - CRC.size)
    magic, version, flags, partition, count, index, term, stamp, producer, epoch, codec, sequence, _, meta, data = (
        fields
    )
    if magic != MAGIC or google_crc32c.value(bytes(raw[: HEADER_BYTES - CRC.size])) != crc:
        raise ProtocolError("BATCHES: not a batch, or a damaged one")
    if version != VERSION or codec:
        raise ProtocolError(f"BATCHES: a batch of format {version}, codec {codec}; this client knows {VERSION}")
    middle = HEADER_BYTES + meta
    begin, origins = HEADER_BYTES, tuple[Origin, ...]()
    try:
        if flags & FLAG_MIXED:
            begin += epoch * ORIGIN.size
            origins, epoch = origins_in(raw[HEADER_BYTES:begin], index, count), 0
        records = RecordBlock.parse(count, raw[begin:middle], raw[middle : middle + data]).as_wide(
            wide=bool(flags & FLAG_WIDE)
        )
        skip = max(0, first - index)
        if skip:
            records = records.take(skip, count)
    except (InvalidRequest, RecordTooLarge) as error:
        raise ProtocolError(f"BATCHES: the batch at {index}: {error}") from error
    batch = LogBatch(
        PartitionId(partition),
        PartitionLogIndex(index + skip),
        GlobalLogIndex(global_index),
        Term(term),
        stamp,
        producer,
        epoch,
        0 if origins else sequence + skip,
        records,
        origins=origins,
    )
    return batch, middle + data


def _of_records(frame: Frame) -> LogBatch:
    middle, size = _field(frame, "metadata", int), _field(frame, "data", int)
    if middle < 0 or size < 0 or middle + size != len(frame.body):
        raise ProtocolError(f"RECORDS: sections of {middle} and {size} bytes in a body of {len(frame.body)}")
    try:
        records = RecordBlock.parse(_field(frame, "count", int), frame.body[:middle], frame.body[middle:])
        records = records.as_wide(wide=frame.header.get("wide") is True)
    except (InvalidRequest, RecordTooLarge) as error:
        raise ProtocolError(f"RECORDS: {error}") from error
    return LogBatch(records=records, **_common(frame))


def metadata_of(frame: Frame) -> LogMetadata:
    """The metadata in a METADATA frame. Raises ProtocolError."""
    try:
        count, size = _field(frame, "count", int), _field(frame, "data", int)
        block = RecordBlock.parse(count, frame.body, b"", data_bytes=size)
        block = block.as_wide(wide=frame.header.get("wide") is True)
    except (InvalidRequest, RecordTooLarge) as error:
        raise ProtocolError(f"METADATA: {error}") from error
    return LogMetadata(block=block, **_common(frame))


def _common(frame: Frame) -> dict[str, Any]:
    raw: Any = frame.header.get("offsets")
    offsets: Offsets | None = None
    if raw is not None:
        if not isinstance(raw, bytes) or len(raw) != 4 * frame.header["count"]:
            raise ProtocolError(f"{frame.kind.name}: offsets are not one for each record")
        offsets = np.frombuffer(raw, "<u4")
    numbers = ("first_index", "global_index", "term", "timestamp_ms", "epoch", "sequence")
    next_index: Any = frame.header.get("next_index") or 0
    if type(next_index) is not int:
        raise ProtocolError(f"{frame.kind.name}: bad field next_index")
    origins: tuple[Origin, ...] = ()
    if "origins" in frame.header:
        first = _field(frame, "origins_index", int)
        try:
            origins = origins_in(_field(frame, "origins", bytes), first, next_index - first)
        except InvalidRequest as error:
            raise ProtocolError(f"{frame.kind.name}: {error}") from error
    return {
        "partition_id": PartitionId(_field(frame, "partition", int)),
        "producer_id": _field(frame, "producer", bytes),
        "offsets": offsets,
        "next_index": PartitionLogIndex(next_index),
        "origins": origins,
    } | {name: _field(frame, name, int) for name in numbers}


def _field(frame: Frame, name: str, kind: type[T]) -> T:
    value = frame.header.get(name)
    if type(value) is not kind:
        raise ProtocolError(f"{frame.kind.name}: bad field {name}")
    return value


def voids_of(frame: Frame) -> list[Voided]:
    """What a BATCHES or END frame of a scan says was declared void, in global order. Raises ProtocolError."""
    rows = frame.header.get("voids") or []
    if not isinstance(rows, list) or not all(_is_void(row) for row in rows):
        raise ProtocolError(f"{frame.kind.name}: bad voids")
    return [Voided.of(*row) for row in rows]


def _is_void(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 4 and all(type(number) is int and number >= 0 for number in row)
