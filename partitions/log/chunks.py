"""Committed batches as they lie on the disk, for whoever passes them on: one read, every batch checked (I4)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, NoReturn

from logboom.errors import CorruptData, Voided
from partitions.log.batch import HEADER_BYTES, Batch, is_batch, is_mixed, origins_of, parse_batch, parse_header
from partitions.log.columns import NOWHERE_SEGMENT, ref_at
from partitions.log.committed import Committed
from partitions.log.files import OpenFiles
from partitions.log.reading import DamagedBatch, SegmentRemoved, damaged_batch
from partitions.log.unread import Unread, apart
from ports.disk import Advice

NOT_IT = "is not the batch that the parent log committed"
AHEAD_BYTES = 1 << 20
"""What follows a chunk is asked for before anybody reads it, by who reads what others do not."""


class Place(NamedTuple):
    """Where one committed batch is, and what it is worth knowing without reading it."""

    global_index: int
    last_index: int
    segment: int
    offset: int
    length: int


class Chunk(NamedTuple):
    """Batches that lie back to back. ``raw`` is what was read: nothing of it is copied."""

    position: int
    """Position of the first one, in the order of the log."""
    lengths: Sequence[int]
    last_index: int
    """Index of the last record."""
    global_indexes: array[int]
    raw: memoryview

    @property
    def has_mixed(self) -> bool:
        """One of them has several producers."""
        at = 0
        for length in self.lengths:
            if is_mixed(self.raw[at:]):
                return True
            at += length
        return False

    def batches(self) -> Iterator[Batch]:
        """Each of them, as a view."""
        at = 0
        for length in self.lengths:
            end, head = at + length, at + HEADER_BYTES
            header = parse_header(self.raw[at:head])
            middle = head + header.metadata_length
            metadata = self.raw[head:middle]
            origins = origins_of(header, metadata) if header.mixed else ()
            yield Batch(header, [self.raw[at:head], metadata, self.raw[middle:end]], origins)
            at = end


class ChunkReader:
    """Reads runs of batches of one partition's log, as they lie; blocking, any thread."""

    def __init__(
        self,
        committed: Committed,
        files: OpenFiles,
        *,
        unread: Unread,
        damaged: Callable[[int, int, int, str], DamagedBatch],
        refuse_gap: Callable[[int], NoReturn],
    ) -> None:
        """``damaged``: see ``damaged_at``; ``refuse_gap`` raises the error for a position that is nowhere."""
        self._refuse_gap = refuse_gap
        self._committed = committed
        self._files = files
        self._unread = unread
        self._damaged = damaged
        self._known_older = 0, 0
        """A time, and the position behind what is older, as ``behind_older`` has found last."""

    def after(
        self, index: int, *, through_index: int, max_bytes: int, max_records: int, cold: bool = False
    ) -> Chunk | None:
        """From the batch on that holds the record behind ``index``; None: nothing begins up to ``through_index``.

        One batch at least, if there is any. Ends in front of a damaged one; raises DamagedBatch if that is the first.
        Raises IndexCompacted, and Voided for a batch that was declared void.
        """
        committed = self._committed
        through_index = min(through_index, index + max_records)
        position = committed.first_after(index)
        if position >= committed.end or committed.first_index(position) > through_index:
            return None
        count = committed.run_from(position, through_index=through_index, room=max_bytes, most=max_records)
        return self.at(position, count, cold=cold)

    def at(self, position: int, count: int, *, cold: bool = False) -> Chunk:
        """So many from here on, which lie back to back; fewer if one does not, or is damaged. Errors as of ``after``.

        ``cold``: nobody reads this again soon, the system need not keep it in memory.
        """
        while True:
            columns = self._committed.columns
            row = columns.at(position)
            segment, offset, _ = columns.place(row)
            lengths = columns.lengths(row, row + count)
            if segment == NOWHERE_SEGMENT:
                self._refuse_gap(position)
            try:
                raw = self._read(position, segment, offset, lengths, cold=cold)
            except SegmentRemoved:
                now = self._committed.columns
                if now.place(now.at(position))[0] == segment:
                    raise  # or it has been removed in between: IndexCompacted
                continue
            whole = at = 0
            for length in lengths:
                if at == len(raw):
                    break  # the next one cannot be read
                digest = columns.digest(position + whole)
                if not is_batch(raw[at : at + length], digest):
                    if not whole:  # else who reads on is told
                        raise self._damaged(position, segment, offset, _why_not(raw[at : at + length]))
                    break
                whole += 1
                at += length
            last_index, global_indexes = columns.last[row + whole - 1], columns.global_index[row : row + whole]
            return Chunk(position, lengths[:whole], last_index, global_indexes, raw[:at])

    def _read(self, position: int, segment: int, offset: int, lengths: Sequence[int], *, cold: bool) -> memoryview:
        """Fewer of them, and at least the first, where one that follows cannot be read."""
        length = sum(lengths)
        if len(lengths) == 1:
            raw = self._one(position, segment, offset, length)
        else:
            try:
                raw = self._unread.read(self._files, segment, offset, length)
            except OSError as error:
                if not apart(error):
                    raise
                return self._apart(position, segment, offset, lengths)
        if cold:  # for others the system reads ahead by itself, and asking for what is in memory is work for nothing
            with self._files.use(segment) as file:
                self._files.advise(file, Advice.SOON, offset=offset + length, length=AHEAD_BYTES)
                self._files.advise(file, Advice.DONE, offset=offset, length=length)
        return memoryview(raw)

    def _apart(self, position: int, segment: int, offset: int, lengths: Sequence[int]) -> memoryview:
        raws = list[bytes]()
        for number, length in enumerate(lengths):
            try:
                raws.append(self._one(position + number, segment, offset, length))
            except (OSError, DamagedBatch):
                if not raws:
                    raise
                break  # whoever reads on is told
            offset += length
        return memoryview(b"".join(raws))

    def _one(self, position: int, segment: int, offset: int, length: int) -> bytes:
        return self._unread.read(
            self._files, segment, offset, length, partial(self._damaged, position, segment, offset)
        )

    def place(self, position: int) -> Place | None:
        """Of the batch there; None: there is none yet. Raises IndexCompacted."""
        columns = self._committed.columns
        if position >= columns.end:
            return None
        row = columns.at(position)
        return Place(columns.global_index[row], columns.last[row], *columns.place(row))

    def lost_at(self, position: int) -> DamagedBatch | None:
        """Why what lies nowhere there cannot be read; None: it was declared void. Raises IndexCompacted."""
        try:
            self._refuse_gap(position)
        except DamagedBatch as lost:
            return lost
        except Voided:
            return None

    def first_at_time(self, timestamp_ms: int, *, through_index: int, start: int = 0) -> int:
        """Position of the first batch from this time on, by reading a few headers; behind ``through_index``: none yet.

        Those in front of position ``start`` are known to be older. Clocks of different leaders may differ: then it is
        *a* place where older ones end. Raises IndexCompacted.
        """
        low, high = max(start, self._committed.columns.start), self._committed.columns.through(through_index)
        while low < high:
            middle = there = (low + high) // 2
            while there < high and self._committed.is_nowhere(there):
                there += 1
            if there < high and self._timestamp(there) < timestamp_ms:
                low = there + 1
            else:
                high = middle
        return low

    def behind_older(self, timestamp_ms: int, *, through_index: int, now_ms: int) -> int:
        """Position behind the last batch that is older than this, as all in front of it are; its header is read once.

        A clock that was set back for a while has made old what stands behind something younger: what is gone is gone,
        so nobody looks for a place as ``first_at_time`` does. A time that is still to come says nothing either way, nor
        does a damaged header: others may have removed that batch by its age, and nobody mends it.

        Raises IndexCompacted.
        """
        known_ms, known = self._known_older
        begin = self._committed.columns.start
        position = found = max(begin, known) if timestamp_ms >= known_ms else begin
        end = self._committed.columns.through(through_index)
        while position < end:
            if not self._committed.is_nowhere(position):
                with suppress(DamagedBatch):
                    found_ms = self._timestamp(position)
                    if timestamp_ms <= found_ms <= now_ms:
                        break
                    if found_ms < timestamp_ms:
                        found = position + 1
            position += 1
        self._known_older = timestamp_ms, found
        return min(found, max(begin, end))

    def _timestamp(self, position: int) -> int:
        columns = self._committed.columns
        row = columns.at(position)
        segment, offset, _ = columns.place(row)
        try:
            header = parse_header(self._one(position, segment, offset, HEADER_BYTES))
        except DamagedBatch:
            raise
        except CorruptData as error:
            raise self._damaged(position, segment, offset, str(error)) from error
        except SegmentRemoved:
            self._committed.columns.at(position)  # removed in between: IndexCompacted
            raise
        if header.digest != columns.digest(position):
            raise self._damaged(position, segment, offset, NOT_IT)
        return header.timestamp_ms


def _why_not(raw: memoryview) -> str:
    try:
        parse_batch(raw)
    except CorruptData as error:
        return str(error)
    return NOT_IT


def damaged_at(committed: Committed, path_of: Callable[[int], object]) -> Callable[[int, int, int, str], DamagedBatch]:
    """The error for the batch at a position, which was read from this segment and offset: it may have moved since."""

    def damaged(position: int, segment: int, offset: int, why: str) -> DamagedBatch:
        ref = ref_at(committed.columns, position)._replace(segment=segment, offset=offset)
        return damaged_batch(ref, str(path_of(segment)), why)

    return damaged
