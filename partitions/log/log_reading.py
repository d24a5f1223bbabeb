"""What a partition's log lets others read: any thread, and only what the parent log has committed (I4)."""

from __future__ import annotations

from pathlib import Path

from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.log.chunks import ChunkReader, damaged_at
from partitions.log.committed import Committed
from partitions.log.files import Shelf
from partitions.log.holes import refuse_gap
from partitions.log.reading import CommittedBatch, LogReader, RawBatch, SegmentRemoved
from partitions.log.recent import RecentBatches
from partitions.log.scrub import scrub_batches
from partitions.log.unread import Unread
from ports.clock import Clock
from ports.disk import Disk, File
from ports.scrub import Pieces


class LogReading:
    """The reading half of ``PartitionLog``, which fills it."""

    partition_id: PartitionId

    def __init__(
        self,
        *,
        disk: Disk,
        directory: Path,
        files_max: int,
        shelf: Shelf | None,
        recent: RecentBatches,
        clock: Clock | None,
    ) -> None:
        self.durable_index = PartitionLogIndex(0)
        """Contiguous committed prefix on stable storage."""
        self.committed_global_index = GlobalLogIndex(0)
        self.recent = recent
        """For whoever applies."""
        self._disk = disk
        self._directory = directory
        self._names: dict[int, str] = {}
        """Segment files by ordinal."""
        self._committed = Committed()
        unread = Unread(clock)
        self._reader = LogReader(
            self._committed,
            path_of=self._path,
            open_file=self._open_for_reading,
            files_max=files_max,
            shelf=shelf,
            unread=unread,
            refuse_gap=lambda position: refuse_gap(self.partition_id, self._committed, position),
        )
        self.chunks = ChunkReader(
            self._committed,
            self._reader.files,
            unread=unread,
            damaged=damaged_at(self._committed, self._path),
            refuse_gap=lambda position: refuse_gap(self.partition_id, self._committed, position),
        )
        """For whoever passes batches on as they are."""

    @property
    def first_available_index(self) -> PartitionLogIndex:
        """First index that can be read; 1 when nothing was removed."""
        return self._committed.first_available_index

    @property
    def beginning(self) -> tuple[PartitionLogIndex, bytes, int]:
        """``first_available_index``, ``before_digest`` and global index of that batch (0: not known) of one moment."""
        columns = self._committed.columns
        return PartitionLogIndex(columns.before_index + 1), columns.before_digest, columns.before_global

    @property
    def before_digest(self) -> bytes:
        """Of the batch in front of the first one that is still here."""
        return self._committed.columns.before_digest

    def is_lost(self, last_index: int, digest: bytes) -> bool:
        """A committed batch, damaged here and not yet written again."""
        return self._committed.is_lost(last_index, digest)

    def read_committed(
        self,
        *,
        after_index: int,
        through_index: int,
        max_bytes: int,
        max_batches: int = 1 << 30,
        headers_only: bool = False,
        recent: RecentBatches | None = None,
    ) -> list[CommittedBatch]:
        """Committed batches that hold records in (after, through], at least one if there is any.

        Raises IndexCompacted when ``after`` lies before what is still here, and Voided when a batch that was
        declared void comes next; in front of one it ends. Towards ``max_batches`` one that several producers share
        counts as one for each; the last few may exceed it.

        Reads only what has been written; what is in ``recent`` is taken from there. Every batch is checked
        against the digest that the parent log committed (I4). Raises CorruptData, naming file and offset, where the
        next one is damaged, and NotRead where the disk cannot read it; in front of such a one it ends. Blocking.
        """
        return self._reader.read_committed(
            after_index=after_index,
            through_index=through_index,
            max_bytes=max_bytes,
            max_batches=max_batches,
            headers_only=headers_only,
            recent=recent,
        )

    def position_after(self, index: int) -> int:
        """Position of the batch that holds the record behind ``index``. Raises IndexCompacted."""
        return self._committed.first_after(index)

    def position_at_global(self, global_index: int) -> int:
        """Of the first batch with this global index or a higher one. Raises IndexCompacted; 0: wherever it begins."""
        return self._committed.first_at_global(global_index)

    @property
    def first_global_index(self) -> int:
        """Nothing with this global index or a higher one was removed; 0: nothing was removed at all."""
        columns = self._committed.columns
        if not columns.before_index:
            return 0
        if columns.before_global:
            return columns.before_global + 1
        return columns.global_index[0] if columns.last else self.committed_global_index + 1

    @property
    def in_front_of_first(self) -> GlobalLogIndex | None:
        """Up to there nothing was ordered of it; 0 where something was removed; None: nothing is committed at all."""
        columns = self._committed.columns
        if columns.before_index:
            return GlobalLogIndex(0)
        return GlobalLogIndex(max(0, columns.global_index[0] - 1)) if columns.last else None

    @property
    def end_position(self) -> int:
        """Behind the last committed batch."""
        return self._committed.end

    def first_index_at(self, position: int) -> int:
        """Of the batch there, or of the next one to come. Raises IndexCompacted."""
        return self._committed.first_index(position)

    def last_before(self, timestamp_ms: int, *, through_index: int, now_ms: int) -> int:
        """Index of the last record up to ``through_index`` that is older than this, as are all in front of it.

        By the clocks of those who led. Reads headers, each once, in any thread but one at a time. Raises
        IndexCompacted. A damaged one is as old as what is behind it.
        """
        position = self.chunks.behind_older(timestamp_ms, through_index=through_index, now_ms=now_ms)
        return self.first_index_at(position) - 1

    def is_recent(self, *, after_index: int, through_index: int, nbytes: int) -> bool:
        """The committed batches in (after, through] are in memory, and together take no more of it than this."""
        columns, recent = self._committed.columns, self.recent
        row, rows = columns.at(self._committed.first_after(after_index)), len(columns.last)
        while nbytes >= 0 and row < rows and columns.last_index(columns.start + row - 1) < through_index:
            cost = recent.cost(columns.digest(columns.start + row))
            if cost is None:
                return False
            nbytes -= cost
            row += 1
        return nbytes >= 0

    def read_raw(self, *, after_index: int, through_index: int, max_bytes: int) -> list[RawBatch]:
        """Committed batches, whole, that follow ``after`` and end at or before ``through``, as bytes for another node.

        At least one if there is any. Checked against the committed digest. Raises IndexCompacted, CorruptData,
        Voided. Blocking.
        """
        return self._reader.read_raw(after_index=after_index, through_index=through_index, max_bytes=max_bytes)

    def scrub(self) -> Pieces:
        """Read everything again that is committed and durable here. A piece's damage is a DamagedBatch."""
        return scrub_batches(
            self._committed,
            through=lambda: self.durable_index,
            open_file=self._open_for_reading,
            name=lambda segment: str(self._directory / self._names.get(segment, str(segment))),
        )

    @property
    def committed_bytes(self) -> int:
        """Of the committed batches that are here. Adds them up. Any thread."""
        columns = self._committed.columns  # once: compaction may put others in their place meanwhile
        return sum(columns.lengths(0, len(columns.last)))

    def _path(self, segment: int) -> Path:
        name = self._names.get(segment)
        if name is None:
            raise SegmentRemoved(segment)
        return self._directory / name

    def _open_for_reading(self, segment: int) -> File:
        try:
            return self._disk.open(self._path(segment), readonly=True)
        except FileNotFoundError:
            self._path(segment)  # it may have been removed in between
            raise
