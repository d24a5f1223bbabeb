"""The segment that a log is written to, after those that are sealed.

Written off the loop, one job at a time; opened at start. Readers open segments for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from logboom.settings import LogSettings
from logboom.types import KIB, MIB, PartitionId, PartitionLogIndex
from partitions.batch import Batch
from partitions.segment import SEGMENT_HEADER_BYTES, BatchRef, pack_index, pack_segment_header, segment_name
from ports.disk import Disk, File
from ports.invariant import InvariantViolated, invariant

ALLOCATION_BYTES_MIN, ALLOCATION_BYTES_MAX = 64 * KIB, 4 * MIB


@dataclass(slots=True)
class Write:
    """Batches for one segment, in order, back to back from ``offset``."""

    segment: int
    first_index: PartitionLogIndex
    offset: int
    batches: list[Batch]
    refs: list[BatchRef]


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

    @property
    def refs(self) -> Sequence[BatchRef]:
        """The batches in it."""
        return self._refs

    def reopen(self, file: File, refs: list[BatchRef], *, ordinal: int, end: int) -> int:
        """Go on with a file that was found; ``end`` 0: its header was never written. Returns where to write next."""
        if end == 0:
            end = SEGMENT_HEADER_BYTES
            first = int(file.path.name[:20])
            file.write([pack_segment_header(self._partition_id, ordinal=ordinal, first_index=first)], offset=0)
        # What a crash left in the page cache counts as held: make it so before anyone relies on it. The name,
        # too: a process that was killed may have made the file and not got as far as syncing its directory.
        file.sync()
        self._disk.sync_directory(self._directory)
        self._file, self._refs, self._end = file, list(refs), end
        self._ordinal = ordinal
        self._allocated = file.size()
        return end

    def write_again(self, proven: Callable[[BatchRef], bool]) -> int:
        """See PartitionLog."""
        if self._file is None:
            return 0
        doubtful = [ref for ref in self._refs if not proven(ref)]
        # The header too, unless a later process has relied on this file.
        ranges = [(0, SEGMENT_HEADER_BYTES)] if len(doubtful) == len(self._refs) else []
        ranges += [(ref.offset, ref.length) for ref in doubtful]
        for offset, length in ranges:
            self._file.write([self._file.read(offset=offset, length=length)], offset=offset)
        if ranges:
            self._file.sync()
        return sum(length for _, length in ranges)

    def write(self, writes: Sequence[Write], *, sync: bool) -> None:
        """An OSError is final for this node."""
        for write in writes:
            if self._file is None or self._ordinal != write.segment:
                self._roll(write)
            file = self._open_file()
            invariant(write.offset == self._end, "{}: write at {}, end is {}", file.path, write.offset, self._end)
            self._reserve(self._end + sum(ref.length for ref in write.refs))
            buffers = [buffer for batch in write.batches for buffer in batch.buffers]
            self._end += file.write(buffers, offset=write.offset)
            self._refs += write.refs
        if sync:
            self._open_file().sync()

    def _roll(self, write: Write) -> None:
        if self._file is not None:
            # Seal: everything in it durable, then its index; a crash in between only costs a scan.
            self._file.sync()
            index = pack_index(self._refs, ordinal=self._ordinal, end=self._end)
            self._disk.replace_file(self._file.path.with_suffix(".idx"), index)
            self._file.close()
        self._file = self._disk.open(self._directory / segment_name(write.first_index, write.segment), create=True)
        self._allocated = 0
        self._reserve(SEGMENT_HEADER_BYTES)
        header = pack_segment_header(self._partition_id, ordinal=write.segment, first_index=write.first_index)
        self._file.write([header], offset=0)
        self._file.sync()
        self._disk.sync_directory(self._directory)
        self._ordinal, self._refs, self._end = write.segment, [], SEGMENT_HEADER_BYTES

    def _reserve(self, end: int) -> None:
        """Space first, in steps: appends then change no metadata, which makes their syncs cheaper.

        Little at first: what is reserved is looked through at the next start, and there may be thousands of logs.
        """
        if end > self._allocated:
            doubled = 1 << (end - 1).bit_length()
            step = min(max(doubled, ALLOCATION_BYTES_MIN), ALLOCATION_BYTES_MAX, self._segment_bytes)
            self._allocated = -(-end // step) * step
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
