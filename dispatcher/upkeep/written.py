"""What was applied since the last sets, as the logs tell: of what was before this start nobody has counted it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from logboom.types import PartitionId
from partitions.apply.worker import ApplyWorker
from snapshots.meta import SetMeta

LOOKED_AT: Final = 128
"""Partitions at a time: each sums up thousands of batches at most."""


class Written:
    """Behind the newest of ``sets``, and behind the one before it; without those, from the logs' beginning."""

    def __init__(self, sets: Sequence[SetMeta], workers: Mapping[PartitionId, ApplyWorker]) -> None:
        """Both are the caller's; what is applied from now on is not looked at, nor are partitions that come."""
        self._workers = workers
        self._newest, self._before = _ends(sets[-1:]), _ends(sets[-2:-1])
        self._left = iter([(p, worker.applied_index) for p, worker in workers.items()])
        self.bytes = self.reclaimable = self.reclaimable_before = 0
        """As ApplyCounts has it: since the newest, and of that since the one before it."""

    def look(self) -> bool:
        """At some more; True: that was all."""
        some = list(islice(self._left, LOOKED_AT))
        for partition_id, applied in some:
            worker = self._workers.get(partition_id)
            if worker is None:  # destroyed meanwhile
                continue
            self.bytes += (nbytes := _applied_since(self._newest.get(partition_id, 0), applied, worker))
            if worker.reclaimable:
                self.reclaimable += nbytes
                self.reclaimable_before += _applied_since(self._before.get(partition_id, 0), applied, worker)
        return len(some) < LOOKED_AT


def _applied_since(index: int, applied: int, worker: ApplyWorker) -> int:
    """Bytes; below 0 for what is applied up to there only later, and will be counted; 0 where it never will be."""
    nbytes = worker.log.committed_bytes_between(index, applied)
    return max(0, nbytes) if worker.useless else nbytes


def _ends(sets: Sequence[SetMeta]) -> dict[PartitionId, int]:
    return {each.partition_id: each.applied_index for meta in sets for each in meta.partitions}
