"""After a start: hide watermarks until they are known to be at least what was shown before (I7).

A commit index of the current term, heard since the start, covers everything that was ever
committed; once a partition has applied up to there, its watermark cannot be lower than before.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import structlog

from dispatcher.barriers.watermarks import Watermarks
from logboom.types import GlobalLogIndex, PartitionId
from raftlog.engine import Engine

log = structlog.get_logger(__name__)


class Recovered:
    """Which partitions may be shown."""

    def __init__(self, partitions: Iterable[PartitionId]) -> None:
        self._raft_index: int | None = None
        self._target: GlobalLogIndex | None = None
        self._left = set(partitions)
        """Those that may have shown higher watermarks before this process started."""

    def add(self, partition_id: PartitionId) -> None:
        """A partition that the log creates, as it is handed up, and again when it is open here.

        While the log is replayed it does so once more, and the partition may have shown something before.
        """
        if self._left or self._target is None:
            self._left.add(partition_id)

    def remove(self, partition_id: PartitionId) -> None:
        """It is gone."""
        self._left.discard(partition_id)

    @property
    def over(self) -> bool:
        """All may be shown."""
        return not self._left

    @property
    def complete(self) -> bool:
        """What was committed at the start has been handed up: every partition that there was then is known."""
        return self._target is not None or not self._left

    def of(self, partitions: Iterable[PartitionId]) -> bool:
        """All of these may be shown."""
        return self._left.isdisjoint(partitions)

    def logged(self, partition_id: PartitionId, *, undurable_from: GlobalLogIndex | None) -> bool:
        """All of it that was committed at the start has been handed up, and is in front of ``undurable_from``.

        So it has come back as a log, however far it is applied.
        """
        if partition_id not in self._left:
            return True
        return self._target is not None and (undurable_from is None or undurable_from > self._target)

    def notice(
        self,
        engine: Engine,
        global_index: GlobalLogIndex,
        watermarks: Watermarks,
        moved: AbstractSet[PartitionId] | None = None,
    ) -> None:
        """The watermarks know the commit index, and something has moved: of these partitions, or (None) of any.

        Once it is known how far they have to come, each that has nothing to do is there, and the others come one by
        one: with ten thousand of them, all are looked at once.
        """
        if not self._left:
            return
        if self._target is None:
            self._raft_index = self._raft_index or engine.covering_commit()
            if self._raft_index is None or engine.applied_index < self._raft_index:
                return
            self._target, moved = global_index, None
        self._look(watermarks, self._left if moved is None else self._left & moved, self._target)

    def applied(self, partition_id: PartitionId, watermarks: Watermarks) -> None:
        """Something of it was."""
        if self._target is not None and partition_id in self._left:
            self._look(watermarks, (partition_id,), self._target)

    def _look(self, watermarks: Watermarks, some: Iterable[PartitionId], target: GlobalLogIndex) -> None:
        self._left -= {p for p in some if watermarks.has(p) and watermarks.of(p).applied_global_index >= target}
        if not self._left:
            log.info("recovered", global_commit_index=target)
