"""What workers count, for all partitions of a node together, and how old one partition's backlog is. Sans-io."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from logboom.errors import Voided
from partitions.apply.apply_core import AppliedBatch
from ports.counts import SECONDS, Buckets

MARKS_MAX: Final = 64
MARK_S: Final = 0.01


@dataclass(slots=True)
class ApplyCounts:
    """What a node has applied since its start, in partitions that are gone, too. Counted once per group."""

    batches: int = 0
    records: int = 0
    duplicates: int = 0
    """Records that had been applied before."""
    bytes: int = 0
    reclaimable: int = 0
    """Bytes of those whose batches need not be kept once a snapshot has their effects."""
    refused: int = 0
    """Batches that dedupe refused."""
    failures: int = 0
    """Groups that failed."""
    retries: int = 0
    """Groups begun again after a failure."""
    seconds: Buckets = field(default_factory=lambda: Buckets(SECONDS))
    """A group, from when it is begun to when it is applied."""
    checkpoints: int = 0
    checkpoint_failures: int = 0
    checkpoint_seconds: Buckets = field(default_factory=lambda: Buckets(SECONDS))
    pauses: Buckets = field(default_factory=lambda: Buckets(SECONDS))
    """Nothing of a partition is applied while something of its state is captured."""

    def applied(self, batches: Sequence[AppliedBatch], nbytes: int, seconds: float, *, reclaimable: bool) -> None:
        """A group was. One that was stepped over, as it is void, was not."""
        if batches[0].refused == Voided.code:
            return
        self.batches += len(batches)
        self.bytes += nbytes
        self.reclaimable += nbytes if reclaimable else 0
        self.records += batches[-1].last_index - batches[0].first_index + 1
        self.seconds.observe(seconds)
        for batch in batches:
            if batch.duplicate or batch.refused is not None:
                self.duplicates += batch.duplicate
                self.refused += batch.refused is not None


class Ages:
    """When which index was committed, in a few marks: exact to 10 ms, and coarser the longer nothing is applied.

    Never older than it is but for those 10 ms: what a mark that was given up stood for has the next one's age.
    """

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque()

    def note(self, committed_index: int, now: float) -> None:
        """Everything up to here is committed by now."""
        marks = self._marks
        if marks and marks[-1][0] >= committed_index:
            return
        if marks and now - marks[-1][1] < MARK_S:
            marks[-1] = (committed_index, marks[-1][1])
            return
        marks.append((committed_index, now))
        if len(marks) > MARKS_MAX:
            # The oldest stays: it says how old the oldest is.
            self._marks = deque([marks[0], *(mark for row, mark in enumerate(marks) if row and row % 2)])

    def age(self, applied_index: int, now: float) -> float:
        """Seconds since the oldest that is not applied was committed; 0: nothing is left."""
        marks = self._marks
        while marks and marks[0][0] <= applied_index:
            marks.popleft()
        return max(0.0, now - marks[0][1]) if marks else 0.0
