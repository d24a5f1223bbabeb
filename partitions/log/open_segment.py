"""The segment that a log is written to, after those that are sealed.

Written off the loop, one job at a time; opened at start. Readers open segments for themselves.
Another thread may sync it and index what is in it so far (``settle``).
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from logboom.settings import LogSettings
from logboom.types import KIB, MIB, PartitionId, PartitionLogIndex
from partitions.log.batch import Batch
from partitions.log.segment import (
    NO_ROOM,
    SEGMENT_HEADER_BYTES,
    BatchRef,
    pack_index,
    pack_segment_header,
    segment_name,
)
from ports.disk import Disk, File
from ports.invariant import InvariantViolated, invariant
from ports.sync import Redo

log = structlog.get_logger(__name__)

DOUBTED: Final = "doubted"
"""An empty file: what stands in a log in the place of something that was lost may not be on the disk."""
SEALED: Final = 1 << 63
"""Where no index of a part ends."""
ALLOCATION_BYTES_MIN, ALLOCATION_BYTES_MAX = 64 * KIB, 4 * MIB
ALIKE: Final = 3
"""Writes as large as one for which there was no space, that have some with it."""


@dataclass(slots=True)
class Write:
    """Batches for one segment, in order, back to back from ``offset``."""

    segment: int
    first_index: PartitionLogIndex
    offset: int
    batches: list[Batch]
    refs: list[BatchRef]
    nbytes: int = 0
    records: int = 0

    def add(self, batch: Batch, ref: BatchRef) -> None:
        """The next one."""
        self.batches.append(batch)
        self.refs.append(ref)
        self.nbytes += ref.length
        self.records += batch.header.record_count


class WriteJob:
    """One group's batches of one partition. ``written`` is called with it on the loop, after it has run."""

    def __init__(
        self,
        segment: OpenSegment,
        writes: list[Write],
        *,
        order: int,
        sync: bool,
        must_sync: bool,
        written: Callable[[WriteJob], None],
    ) -> None:
        self._segment = segment
        self._written = written
        self.writes = writes
        self.order = order
        self.sync = sync
        self.must_sync = must_sync
        self.journaled = False
        self._begun = False
        self.pending_bytes = sum([write.nbytes for write in writes])
        self.records = sum([write.records for write in writes])

    def redo(self) -> Sequence[Redo]:
        """See ports.sync.SyncJob."""
        if not self.sync or self.must_sync:
            return ()
        self.journaled = True
        return [Redo(batch.digest, batch.buffers) for write in self.writes for batch in write.batches]

    def begin(self) -> None:
        """See ports.sync.SyncJob."""
        if self.sync and not self.journaled:
            self._segment.begin(self.writes)
            self._begun = True

    def run(self) -> None:
        """See ports.sync.SyncJob."""
        self._segment.write(() if self._begun else self.writes, sync=self.sync and not self.journaled)

    def done(self) -> None:
        """See ports.sync.SyncJob."""
        self._written(self)


class OpenSegment:
    """See the module."""

    def __init__(self, disk: Disk, directory: Path, partition_id: PartitionId, settings: LogSettings) -> None:
        self._disk = disk
        self._directory = directory
        self._partition_id = partition_id
        self._segment_bytes = settings.segment_bytes
        self._file: File | None = None
        self._ordinal = 0
        self._refs: list[BatchRef] = []
        self._end = 0
        self._allocated = 0
        self._proven = 0
        """So many of the batches were synced before an index named them, as a start has found."""
        self._doubted = False
        """As far as ``write_again`` has found."""
        self._to_be_doubted = False
        """There has been no room to say so."""
        self._lock = threading.Lock()
        """Held while the file is written to, synced or exchanged."""
        self._dirty = False
        """Something was written and not synced here."""
        self._broken = False
        """A write or sync has failed: a sync that succeeds now says nothing."""
        self._index_lock = threading.Lock()
        """Held while an index is written. Taken after ``_lock``, never before it."""
        self._indexed: tuple[int, int] = (0, 0)
        """Ordinal and end, of the last index that was written here; SEALED: a whole one."""

    @property
    def refs(self) -> Sequence[BatchRef]:
        """The batches in it."""
        return self._refs

    @property
    def ordinal(self) -> int:
        """Those before it are sealed; 0: there is none. Changed by jobs."""
        return self._ordinal

    def reopen(self, file: File, refs: list[BatchRef], *, ordinal: int, end: int, proven: int = 0) -> int:
        """Go on with a file that was found; ``end`` 0: its header was never written. Returns where to write next.

        ``proven``: so many of ``refs``, from the first on, an index names.
        """
        if end == 0:
            end = SEGMENT_HEADER_BYTES
            first = int(file.path.name[:20])
            file.write([pack_segment_header(self._partition_id, ordinal=ordinal, first_index=first)], offset=0)
        # What a crash left in the page cache counts as held: make it so before anyone relies on it. The name,
        # too: a process that was killed may have made the file and not got as far as syncing its directory.
        file.sync()
        self._disk.sync_directory(self._directory)
        self._file, self._refs, self._end = file, list(refs), end
        self._ordinal, self._proven = ordinal, proven
        self._allocated = file.size()
        return end

    def write_again(self, proven: Callable[[BatchRef], bool]) -> int:
        """See PartitionLog."""
        self._doubted = self._disk.exists(self._directory / DOUBTED)
        if self._file is None:
            return 0
        in_order = 0 if self._doubted else self._in_order()
        doubtful = [
            ref for at, ref in enumerate(self._refs[self._proven :], self._proven) if at >= in_order or not proven(ref)
        ]
        # The header too, unless a later process has relied on this file.
        ranges = [(0, SEGMENT_HEADER_BYTES)] if len(doubtful) == len(self._refs) else []
        ranges += [(ref.offset, ref.length) for ref in doubtful]
        for offset, length in ranges:
            self._file.write([self._file.read(offset=offset, length=length)], offset=offset)
        if ranges:
            self._file.sync()
        return sum(length for _, length in ranges)

    def doubt(self, *, lacks: bool) -> None:
        """See PartitionLog."""
        if lacks and not self._doubted:
            self._to_be_doubted = not self._say_doubted()
            if self._to_be_doubted:
                log.warning("doubt_waits_for_room", partition=self._partition_id, path=str(self._directory / DOUBTED))
        elif self._doubted and not lacks:
            self._disk.remove(self._directory / DOUBTED)  # if a crash undoes that, all is only written once more
        self._doubted = lacks and not self._to_be_doubted

    def takes_copies(self) -> bool:
        """See PartitionLog."""
        if self._to_be_doubted:
            self._doubted = self._say_doubted()
            self._to_be_doubted = not self._doubted
        return not self._to_be_doubted

    def _say_doubted(self) -> bool:
        try:
            self._disk.replace_file(self._directory / DOUBTED)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False  # half of it goes with what crashes leave
        return True

    def _in_order(self) -> int:
        """So many batches, from the first on, lie one behind the other, in place and in number.

        What is behind a gap, or out of turn, may stand here for a damaged one that was acknowledged long before: that
        says nothing of its copy.
        """
        offset, index = SEGMENT_HEADER_BYTES, self._refs[0].first_index if self._refs else 0
        for at, ref in enumerate(self._refs):
            if (ref.offset, ref.first_index) != (offset, index):
                return at
            offset, index = ref.offset + ref.length, ref.last_index + 1
        return len(self._refs)

    def begin(self, writes: Sequence[Write]) -> None:
        """Write, and have the disk begin: ``write``, with ``sync`` and of nothing, comes soon. An OSError is final."""
        with self._lock:
            self._guarded(lambda: self._begin(writes))

    def write(self, writes: Sequence[Write], *, sync: bool) -> None:
        """All that was written before is synced, too, with ``sync``. An OSError is final for this node."""
        with self._lock:
            self._guarded(lambda: self._write(writes, sync=sync))

    def begin_next(self, write: Write) -> None:
        """The one before is sealed though nothing is written; unless that has been done. An OSError is final."""
        with self._lock:
            if self._ordinal < write.segment:
                self._guarded(lambda: self._roll(write, 0))

    def settle(self) -> None:
        """What was written up to now is synced, and indexed: a start need not scan it. An OSError is final."""
        with self._lock:
            if self._file is None:
                return
            if self._dirty or self._broken:
                self._guarded(self._sync)
            path, ordinal, end, refs = self._file.path, self._ordinal, self._end, list(self._refs)
        if not refs or self._indexed == (ordinal, end):
            return
        index = pack_index(refs, ordinal=ordinal, end=end, whole=False)
        with self._index_lock:
            if self._indexed < (ordinal, SEALED):  # else it was sealed meanwhile, and has a whole one
                self._disk.replace_file(path.with_suffix(".idx"), index)
                self._indexed = (ordinal, end)

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._broken:
            raise OSError(errno.EIO, "a write or sync has failed before", str(self._directory))
        try:
            work()
        except BaseException:
            self._broken = True
            raise

    def _sync(self) -> None:
        self._open_file().sync()
        self._dirty = False

    def _begin(self, writes: Sequence[Write]) -> None:
        self._write(writes, sync=False)
        for write in writes:
            if write.segment == self._ordinal:  # others are sealed, and synced
                begin = getattr(self._open_file(), "begin_sync", None)  # see ports.disk.EagerFile
                if begin is not None:
                    begin(offset=write.offset, length=write.nbytes)

    def _write(self, writes: Sequence[Write], *, sync: bool) -> None:
        for write in writes:
            if self._file is None or self._ordinal != write.segment:
                self._roll(write, write.nbytes)
            file = self._open_file()
            invariant(write.offset == self._end, "{}: write at {}, end is {}", file.path, write.offset, self._end)
            if self._end + write.nbytes > self._allocated:
                self._reserve(write.nbytes)
            buffers = [buffer for batch in write.batches for buffer in batch.buffers]
            self._dirty = True
            if sync:
                self._end += file.write_synced(buffers, offset=write.offset)
                self._dirty = False
            else:
                self._end += file.write(buffers, offset=write.offset)
            self._refs += write.refs
        if sync and self._dirty:
            self._sync()

    def _roll(self, write: Write, nbytes: int) -> None:
        if self._file is not None:
            # Seal: everything in it durable, then its index; a crash in between only costs a scan.
            self._sync()
            index = pack_index(self._refs, ordinal=self._ordinal, end=self._end)
            with self._index_lock:
                self._disk.replace_file(self._file.path.with_suffix(".idx"), index)
                self._indexed = (self._ordinal, SEALED)
            self._file.close()
        self._file = self._disk.open(self._directory / segment_name(write.first_index, write.segment), create=True)
        self._end = self._allocated = 0
        if nbytes:
            self._reserve(SEGMENT_HEADER_BYTES + nbytes)
        header = pack_segment_header(self._partition_id, ordinal=write.segment, first_index=write.first_index)
        self._file.write([header], offset=0)
        self._file.sync()
        self._disk.sync_directory(self._directory)
        self._ordinal, self._refs, self._end = write.segment, [], SEGMENT_HEADER_BYTES
        self._proven, self._dirty = 0, False

    def _reserve(self, nbytes: int) -> None:
        """Space for what is written next, and ahead: appends then change no metadata, which makes their syncs cheaper.

        Little at first: what is reserved is looked through at the next start, and there may be thousands of logs. But
        a few more like this one: what grows by large batches, one now and then, would be given more with nearly each.
        """
        end = self._end + nbytes
        ahead = min(max(end, ALIKE * nbytes), ALLOCATION_BYTES_MAX)
        rounded = -(-(end + ahead) // ALLOCATION_BYTES_MIN) * ALLOCATION_BYTES_MIN
        self._allocated = max(end, min(rounded, self._segment_bytes))
        self._open_file().allocate(self._allocated)

    def _open_file(self) -> File:
        if self._file is None:
            raise InvariantViolated(f"partition {self._partition_id}: no open segment")
        return self._file

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
