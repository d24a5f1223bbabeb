"""Batches that are appended and not written yet: in which segment of the log each will lie, and where in it."""

from __future__ import annotations

from collections.abc import Sequence

from logboom.settings import LogSettings
from logboom.types import PartitionLogIndex
from partitions.log.batch import Batch
from partitions.log.open_segment import Write
from partitions.log.segment import SEGMENT_HEADER_BYTES, BatchRef, segment_first, segment_name


class Unwritten:
    """What one log has appended and not written, and where it will lie. On the loop, but for ``find``."""

    def __init__(self, settings: LogSettings, names: dict[int, str]) -> None:
        """``names``: the log's segment files by ordinal, to which those are added that begin here."""
        self._settings = settings
        self._names = names
        self._queue: list[Write] = []
        self._batches: dict[tuple[int, bytes], Batch] = {}
        """By last index and digest; also those that a job is writing."""
        self._segment = self._offset = self._records = 0
        """The newest segment, and what it has with all that is appended."""
        self._first = PartitionLogIndex(0)
        """Index that its name has."""
        self._began_ms = 0
        """When its first batch was made; 0: there is none, or nobody knows."""
        self._ends = False
        """What is appended next begins another segment."""

    def begin(self, *, segment: int, offset: int, records: int, began_ms: int = 0) -> None:
        """At start: what is in the files ends there. ``began_ms``: of the first batch in the segment; 0: not known."""
        self._segment, self._offset, self._records, self._began_ms = segment, offset, records, began_ms
        self._first = segment_first(self._names[segment]) if segment else PartitionLogIndex(0)

    def __contains__(self, key: tuple[int, bytes]) -> bool:
        return key in self._batches

    def find(self, last_index: int, digest: bytes) -> Batch | None:
        """None: it is in a file, or not held. Any thread."""
        return self._batches.get((last_index, digest))

    @property
    def segment(self) -> int:
        """The newest; 0: there is none."""
        return self._segment

    @property
    def is_empty(self) -> bool:
        """There is nothing in it."""
        return self._offset <= SEGMENT_HEADER_BYTES

    @property
    def queued(self) -> bool:
        """There is something to ``take``."""
        return bool(self._queue)

    def append(self, batch: Batch, *, order: int) -> BatchRef:
        """Behind all others, in another segment if the newest is full; where it will be."""
        header, last_index, digest, nbytes = batch.header, batch.last_index, batch.digest, batch.nbytes
        full = (
            self._segment == 0
            or self._ends
            or self._offset + nbytes > self._settings.segment_bytes
            or self._records + header.record_count > self._settings.segment_records
            or self._is_old(header.timestamp_ms)
        ) and (self._segment == 0 or not self.is_empty)
        if full:
            self.begin_next(header.first_index)
        if full or not self._queue:
            self._queue.append(self.next_write)
        self._began_ms = self._began_ms or header.timestamp_ms
        write = self._queue[-1]
        ref = BatchRef(
            header.first_index,
            last_index,
            digest,
            header.previous_digest,
            header.term,
            write.segment,
            self._offset,
            nbytes,
            order,
        )
        write.add(batch, ref)
        self._offset += nbytes
        self._records += header.record_count
        self._batches[last_index, digest] = batch
        return ref

    def take(self) -> list[Write]:
        """All that is queued, for a job that writes it."""
        writes, self._queue = self._queue, []
        return writes

    def written(self, refs: Sequence[BatchRef]) -> None:
        """These are in a file."""
        for ref in refs:
            self._batches.pop((ref.last_index, ref.digest), None)

    def end_segment(self, *, before_index: int) -> None:
        """The newest segment takes no more, if its first batch lies before this index."""
        self._ends |= not self.is_empty and self._first < before_index

    def begin_next(self, first_index: PartitionLogIndex) -> None:
        """What is appended from now on, beginning with this index, lies in another segment. Names are used once."""
        self._segment += 1
        self._ends, self._first, self._began_ms = False, first_index, 0
        self._offset, self._records = SEGMENT_HEADER_BYTES, 0
        self._names[self._segment] = segment_name(first_index, self._segment)

    @property
    def next_write(self) -> Write:
        """Of nothing, to where the next batch will lie."""
        return Write(self._segment, self._first, self._offset, [], [])

    def _is_old(self, now_ms: int) -> bool:
        """By the clocks of who made the batches: one that was ahead has the segment take more, one behind does not."""
        return 0 < self._settings.segment_ms <= now_ms - self._began_ms and self._began_ms > 0
