"""How far a partition's log is durable, and what holds that up for good: batches that nobody has. On the loop.

See ``partitions.log.holes``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from pathlib import Path

from logboom.errors import IndexCompacted
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.log.batch import Batch
from partitions.log.compaction import Leases
from partitions.log.files import Shelf
from partitions.log.holes import CONCEDED_MAX, NEVER, Hole
from partitions.log.log_reading import LogReading
from partitions.log.recent import RecentBatches
from partitions.log.segment import BatchRef
from ports.clock import Clock
from ports.disk import Disk


class LogHoles(LogReading):
    """A part of ``PartitionLog``."""

    _leases: Leases

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
        super().__init__(disk=disk, directory=directory, files_max=files_max, shelf=shelf, recent=recent, clock=clock)
        self.durable_global_index = GlobalLogIndex(0)
        """Global index of the last batch of the durable prefix."""
        self.committed_index = PartitionLogIndex(0)
        self._undurable: deque[tuple[PartitionLogIndex, int, GlobalLogIndex]] = deque()
        """Committed batches, and the order in which they were appended."""
        self._synced_order = 0
        self._conceded: set[tuple[int, bytes]] = set()
        """By last index and digest: batches that no node has."""

    @abstractmethod
    def find(self, last_index: int, digest: bytes) -> BatchRef | None:
        """Where a batch is that is held."""

    def _advance_durable(self) -> None:
        while self._undurable and self._undurable[0][1] <= self._synced_order:
            self.durable_index, _, self.durable_global_index = self._undurable.popleft()

    def awaits_sync(self, through_index: int) -> bool:
        """Something that is committed up to there is not on the disk yet, and will be: what nobody has will not."""
        return any(i <= through_index and self._synced_order < order != NEVER for i, order, _ in self._undurable)

    def concede(self, last_index: int, digest: bytes) -> bool:
        """Nobody has this batch: what follows may be appended and committed.

        False: it is held, or there are too many.
        """
        if self.find(last_index, digest) is not None:
            return False
        if not self.is_hole(last_index, digest):
            if len(self._conceded) >= CONCEDED_MAX:
                return False
            self._conceded.add((last_index, digest))
        return True

    def begin_behind(self, last_index: int, digest: bytes, *, now: float) -> bool:
        """This committed batch will not be read again: it is removed, with all in front of it. Files stay for now.

        After a start without new places it is here again: the caller is past it for good, and the next base lies behind
        it. False: not now, while somebody reads what is in front of it, and goes on; or it is not here.
        """
        position = self._committed.position(last_index, digest)
        if position is None or last_index > self.durable_index:
            return False
        first = self._committed.first_index(position)
        if self._leases.lowest(first, now=now) < first:
            return False
        self._committed.begin_behind(position)
        self._conceded.discard((last_index, digest))
        return True

    def lost(self) -> list[tuple[int, bytes]]:
        """Last index and digest of what is committed, damaged here, and not yet written again."""
        return list(self._committed.lost)

    def is_hole(self, last_index: int, digest: bytes) -> bool:
        """There is a hole in its place, or it was declared void."""
        if (last_index, digest) in self._conceded:
            return self.find(last_index, digest) is None
        return self._committed.is_void(last_index, digest)

    @property
    def hole(self) -> Hole | None:
        """What holds up everything behind it: the first committed batch that nobody has."""
        if not self._undurable or self._undurable[0][1] != NEVER:
            return None
        last_index = self._undurable[0][0]
        position = self._committed.columns.through(last_index - 1)
        return self._hole_at(position)

    def place_of(self, last_index: int, digest: bytes) -> Hole | None:
        """Of a committed batch that is still within the log, readable or not."""
        position = self._committed.position(last_index, digest)
        return None if position is None else self._hole_at(position)

    def _hole_at(self, position: int) -> Hole:
        committed = self._committed
        first = PartitionLogIndex(committed.first_index(position))
        last, digest = committed.last_index(position), committed.digest(position)
        return Hole(first, last, digest, committed.global_index(position))

    def void_behind(self, index: int) -> Hole | None:
        """The batch that holds the record behind ``index``, if it was declared void. Any thread."""
        found = self._behind(index)
        return found if found is not None and self._committed.is_void(found.last_index, found.digest) else None

    def lost_behind(self, index: int) -> Hole | None:
        """The batch that holds the record behind ``index``, if nobody had it, as far as this node knows. Any thread."""
        found = self._behind(index)
        if found is None or not self._committed.is_lost(found.last_index, found.digest):
            return None
        return found if self.is_hole(found.last_index, found.digest) else None

    def _behind(self, index: int) -> Hole | None:
        committed = self._committed
        try:
            position = committed.first_after(index)
            return None if position == committed.end else self._hole_at(position)
        except IndexCompacted:
            return None

    def void(self, last_index: int, digest: bytes) -> None:
        """This committed batch counts as nothing from now on: it is stepped over."""
        self._committed.void(last_index, digest)
        self._conceded.discard((last_index, digest))
        self.recent.drop(digest)
        self.excuse(last_index)

    def excuse(self, last_index: int) -> None:
        """A hole that holds up nothing: it is void, or this node's state has what the batch did."""
        self._excuse(last_index, last_index)

    def excuse_through(self, index: int) -> None:
        """The state has what all up to there did, wherever holes are: what is only not synced yet still is not."""
        self._excuse(0, index)

    def _excuse(self, first: int, last: int) -> None:
        if any(first <= i <= last and order == NEVER for i, order, _ in self._undurable):
            excused = ((i, 0 if first <= i <= last and o == NEVER else o, g) for i, o, g in self._undurable)
            self._undurable = deque(excused)
            self._advance_durable()

    def _is_void(self, batch: Batch) -> bool:
        return batch.last_index <= self.committed_index and self._committed.is_void(batch.last_index, batch.digest)

    def _fill(self, batch: Batch, order: int | None) -> None:
        """It is being appended; ``order``: it was committed without its bytes, or they are damaged."""
        self._conceded.discard((batch.last_index, batch.digest))
        if order is not None and batch.last_index > self.durable_index:
            self._reorder(batch.last_index, order)

    def _reorder(self, last_index: int, order: int) -> None:
        """Seldom: what ends there, and is not durable, is as soon as so much is synced."""
        self._undurable = deque((i, order if i == last_index else o, g) for i, o, g in self._undurable)
