"""Reading batches back, in any thread. Everything is checked against the digest that the parent log committed (I4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from logboom.errors import CorruptData, IndexCompacted
from logboom.origins import Origin
from logboom.records import RecordBlock
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.log.batch import HEADER_BYTES, BatchHeader, parse_batch, parse_header
from partitions.log.columns import NOWHERE_SEGMENT
from partitions.log.committed import Committed
from partitions.log.files import OpenFiles, Shelf
from partitions.log.recent import RecentBatches
from partitions.log.segment import BatchRef
from partitions.log.unread import NotRead, Unread, apart
from ports.disk import File

HEADERS_APART_BYTES = 4096
"""With batches larger than this on average, headers are read one by one rather than with everything between them."""
RUN_BATCHES = 4
RUN_GROWTH = 4
"""So many are read at once, and so many times more after that, as long as none of them is shared by several producers:
how many that are is not known before it is read, and each counts as a batch."""


class DamagedBatch(CorruptData):
    """The bytes of one batch are not what its digest says. Another node may have it: see ``PartitionLog.lose``."""

    def __init__(
        self, message: str, *, last_index: PartitionLogIndex, digest: bytes, segment: int, path: str, offset: int
    ) -> None:
        super().__init__(message, path=path, offset=offset)
        self.last_index = last_index
        self.digest = digest
        self.place = segment, offset
        """That was read; it may lie elsewhere by now."""


def damaged_batch(ref: BatchRef, path: str, why: str) -> DamagedBatch:
    """The error that says so."""
    story = f"{path} at {ref.offset}: {why}"
    return DamagedBatch(
        story, last_index=ref.last_index, digest=ref.digest, segment=ref.segment, path=path, offset=ref.offset
    )


class SegmentRemoved(Exception):
    """By compaction, since its place was looked up."""

    def __init__(self, segment: int) -> None:
        super().__init__(f"segment {segment} has been removed")
        self.segment = segment


class CommittedBatch(NamedTuple):
    """A committed batch, read back and checked. ``records`` is None when only headers were asked for."""

    header: BatchHeader
    global_index: GlobalLogIndex
    records: RecordBlock | None
    origins: tuple[Origin, ...] = ()
    """Who wrote which records of a mixed batch; empty for any other."""

    @property
    def last_index(self) -> PartitionLogIndex:
        """See BatchHeader."""
        return self.header.last_index


class RawBatch(NamedTuple):
    """A committed batch as bytes, checked."""

    last_index: PartitionLogIndex
    global_index: GlobalLogIndex
    raw: bytes


class LogReader:
    """Reads and checks batches of a partition's log; blocking. ``open_file`` raises SegmentRemoved for what is gone."""

    def __init__(
        self,
        committed: Committed,
        *,
        path_of: Callable[[int], Path],
        open_file: Callable[[int], File],
        files_max: int,
        shelf: Shelf | None,
        unread: Unread,
        refuse_gap: Callable[[int], NoReturn],
    ) -> None:
        """``refuse_gap``: the batch at this position is nowhere; it raises why."""
        self._committed = committed
        self._refuse_gap = refuse_gap
        self._unread = unread
        self._path_of = path_of
        self.files = OpenFiles(open_file, files_max=files_max, shelf=shelf)
        """Shared by all that read here."""

    def close(self) -> None:
        """Idempotent."""
        self.files.close()

    def forget(self, segment: int) -> None:
        """Its file was removed: close it, as soon as nobody reads it any more."""
        self.files.forget(segment)

    def read_committed(
        self,
        *,
        after_index: int,
        through_index: int,
        max_bytes: int,
        max_batches: int,
        headers_only: bool,
        recent: RecentBatches | None = None,
    ) -> list[CommittedBatch]:
        """See PartitionLog."""
        batches: list[CommittedBatch] = []
        committed = self._committed
        position, end = committed.first_after(after_index), committed.end
        room, left, most = max_bytes, max_batches, RUN_BATCHES
        while position < end and left > 0:
            if committed.first_index(position) > through_index:
                break
            if committed.is_nowhere(position):
                if batches:
                    break
                self._refuse_gap(position)
            known = self._recall(position, recent, headers_only=headers_only) if recent else None
            if known is not None:
                batches.append(known)
                position += 1
                left -= len(known.origins) or 1
                room -= known.header.nbytes
                if room <= 0:
                    break
                continue
            run = committed.run_from(position, through_index=through_index, room=room, most=min(most, left))
            if recent:  # what is in memory ends it
                run = next((n for n in range(1, run) if committed.digest(position + n) in recent), run)
            try:
                found = self._read_run(position, run, headers_only=headers_only)
            except SegmentRemoved as gone:
                if NOWHERE_SEGMENT != gone.segment == committed.ref(position).segment:
                    raise  # or it has been removed, IndexCompacted; or is void since
                continue
            except (NotRead, DamagedBatch):
                if not batches:
                    raise
                break  # whoever goes on from there is told
            batches += found
            position += len(found)
            left -= sum(len(batch.origins) or 1 for batch in found)
            most *= 1 if any(batch.origins for batch in found) else RUN_GROWTH
            room -= sum(batch.header.nbytes for batch in found)
            if room <= 0 or len(found) < run:
                break
        return batches

    def read_raw(self, *, after_index: int, through_index: int, max_bytes: int) -> list[RawBatch]:
        """See PartitionLog."""
        found: list[RawBatch] = []
        committed = self._committed
        position = committed.first_after(after_index)
        while position < committed.end and max_bytes > 0:
            ref = committed.ref(position)
            if ref.last_index > through_index:
                break
            if ref.segment == NOWHERE_SEGMENT:
                if found:
                    break
                self._refuse_gap(position)
            try:
                raw = self.read(ref)
            except DamagedBatch:
                if not found:
                    raise
                break  # whoever goes on from there is told
            found.append(RawBatch(ref.last_index, committed.global_index(position), raw))
            max_bytes -= ref.length
            position += 1
        return found

    def _recall(self, position: int, recent: RecentBatches, *, headers_only: bool) -> CommittedBatch | None:
        batch = recent.take(self._committed.digest(position))
        if batch is None:
            return None
        try:
            records = None if headers_only else batch.records()
        except CorruptData:
            return None  # the file knows where it lies
        return CommittedBatch(batch.header, self._committed.global_index(position), records, batch.origins)

    def _read_run(self, position: int, count: int, *, headers_only: bool) -> list[CommittedBatch]:
        """Fewer, and at least one, where one that follows cannot be read."""
        refs = [self._committed.ref(p) for p in range(position, position + count)]
        batches = list[CommittedBatch]()
        for number, (ref, view) in enumerate(zip(refs, self._views(refs, headers_only=headers_only), strict=False)):
            try:
                batches.append(self._parsed(position + number, ref, view, headers_only=headers_only))
            except (NotRead, DamagedBatch):
                if not batches:
                    raise
                break  # whoever goes on from there is told
        return batches

    def _parsed(self, position: int, ref: BatchRef, view: memoryview, *, headers_only: bool) -> CommittedBatch:
        """What was read of one batch. Raises DamagedBatch."""
        try:
            batch = None if headers_only else parse_batch(view)
            header = parse_header(view) if batch is None else batch.header
            records = None if batch is None else batch.records()
            origins = () if batch is None else batch.origins
            if batch is None and header.mixed:  # no checksum of the header's covers its origins
                origins = parse_batch(self.read(ref)).origins
        except DamagedBatch:
            raise
        except CorruptData as error:
            raise self._damaged(ref, str(error)) from error
        if header.digest != ref.digest:
            raise self._damaged(ref, "is not the batch that the parent log committed")
        return CommittedBatch(header, self._committed.global_index(position), records, origins)

    def _views(self, refs: list[BatchRef], *, headers_only: bool) -> list[memoryview]:
        """Of the first few, and at least one, where one that follows cannot be read."""
        start, end = refs[0].offset, refs[-1].offset + refs[-1].length
        if len(refs) == 1 or (headers_only and end - start > HEADERS_APART_BYTES * len(refs)):
            return self._apart(refs, headers_only=headers_only)
        try:
            whole = memoryview(self._unread.read(self.files, refs[0].segment, start, end - start))
        except OSError as error:
            if not apart(error):
                raise
            return self._apart(refs, headers_only=headers_only)
        return [whole[r.offset - start : r.offset - start + r.length] for r in refs]

    def _apart(self, refs: list[BatchRef], *, headers_only: bool) -> list[memoryview]:
        views = list[memoryview]()
        for ref in refs:
            try:
                views.append(memoryview(self._bytes(ref, HEADER_BYTES if headers_only else ref.length)))
            except (OSError, DamagedBatch):
                if not views:
                    raise
                break  # whoever goes on from there is told
        return views

    def read(self, ref: BatchRef) -> bytes:
        """One batch, raw. Raises DamagedBatch, or IndexCompacted when it has just been removed."""
        try:
            return self._read(ref)
        except SegmentRemoved as error:
            first = self._committed.first_available_index
            raise IndexCompacted(f"records before {first} have been removed", first=first) from error

    def _read(self, ref: BatchRef) -> bytes:
        raw = self._bytes(ref, ref.length)
        try:
            found = parse_batch(raw)
        except CorruptData as error:
            raise self._damaged(ref, str(error)) from error
        if found.digest != ref.digest:
            raise self._damaged(ref, "is another batch")
        return raw

    def _bytes(self, ref: BatchRef, length: int) -> bytes:
        return self._unread.read(self.files, ref.segment, ref.offset, length, lambda why: self._damaged(ref, why))

    def _damaged(self, ref: BatchRef, why: str) -> DamagedBatch:
        return damaged_batch(ref, str(self._path_of(ref.segment)), why)
