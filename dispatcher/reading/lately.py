"""Of which partitions the newest batches are: who follows thousands of logs need not look at all for each. Sans-io."""

from __future__ import annotations

from array import array
from collections.abc import Set as AbstractSet
from typing import Final

from logboom.types import GlobalLogIndex, PartitionId

KEPT: Final = 1 << 16
"""Batches: four bytes each."""


class Lately:
    """Which partitions the newest batches of one node are of, in the order of the log."""

    def __init__(self, kept: int = KEPT) -> None:
        self._partitions = array("I", bytes(4 * kept))
        self._kept = kept
        self._from = 0
        self.through = GlobalLogIndex(0)
        """Global index of the newest batch."""

    def ordered(self, global_index: GlobalLogIndex, partition_id: PartitionId) -> None:
        """The next one; it is in its partition's log."""
        self._from = self._from or global_index
        self._partitions[global_index % self._kept] = partition_id
        self.through = global_index

    def since(self, global_index: int, *, most: int) -> AbstractSet[PartitionId] | None:
        """Partitions with batches behind this one; None: it is not known of all, or there are more than ``most``."""
        count = self.through - global_index
        if not 0 <= count <= min(most, self._kept) or (count and global_index + 1 < self._from):
            return None
        rows = range(global_index + 1, self.through + 1)
        return {PartitionId(self._partitions[each % self._kept]) for each in rows}
