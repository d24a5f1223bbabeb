"""Watermarks of every partition on this node, and who wants to know when they move. Sans-io.

A partition with nothing left to apply follows the commit index. That is worked out when
somebody looks, so a commit costs the partitions that it touches, however many others there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from logboom.types import GlobalLogIndex, Level, PartitionId, PartitionLogIndex, Watermark
from ports.invariant import invariant

NOTHING: Final = GlobalLogIndex(0)
Listener = Callable[[Watermark], None]


class Watermarks:
    """Only ever grow (I7), in their order (I1)."""

    def __init__(self, partitions: Sequence[PartitionId]) -> None:
        self._marks: dict[PartitionId, Watermark] = {}
        self._idle: set[PartitionId] = set()
        self._log_goes_on: set[PartitionId] = set()
        """More of their logs becomes durable, lost or not."""
        self._snapshot: dict[PartitionId, PartitionLogIndex] = {}
        self._commit = NOTHING
        self._listeners: list[Listener] = []
        self._least = NOTHING
        """Somebody was told that all have applied up to here: of one that is opened later nothing comes before."""
        self.moved = 0
        """Grows with whatever changes what is to be seen."""
        for partition_id in partitions:
            self.add(partition_id)

    def add(self, partition_id: PartitionId, *, through: GlobalLogIndex = NOTHING) -> None:
        """A new partition, of which up to there nothing was ordered: so nothing is left to apply of that."""
        zero, through = PartitionLogIndex(0), max(through, self._least)
        self._marks[partition_id] = Watermark(partition_id, zero, zero, zero, zero, through, "running")
        self.moved += 1

    def remove(self, partition_id: PartitionId) -> None:
        """It is gone, and was here or not."""
        self._marks.pop(partition_id, None)
        self._idle.discard(partition_id)
        self._log_goes_on.discard(partition_id)
        self._snapshot.pop(partition_id, None)
        self.moved += 1

    def listen(self, listener: Listener) -> None:
        """Called with every change."""
        self._listeners.append(listener)

    def __len__(self) -> int:
        """Partitions."""
        return len(self._marks)

    def has(self, partition_id: PartitionId) -> bool:
        """There is such a partition."""
        return partition_id in self._marks

    def of(self, partition_id: PartitionId) -> Watermark:
        """The current one. KeyError if there is no such partition."""
        mark = self._marks[partition_id]
        if mark.applied_global_index < self._commit and partition_id in self._idle:
            # Kept, so that it stays true when the partition has something to do again (I7).
            mark = self._marks[partition_id] = _carried(mark, self._commit)
        return mark

    def busy(self, partition_id: PartitionId) -> None:
        """It has something to do, and follows the commit index no more; ``update`` says the rest soon."""
        if partition_id in self._idle:
            self.of(partition_id)
            self._idle.discard(partition_id)

    def committed(self, global_commit_index: int) -> None:
        """The commit index moved; every partition that it gave something to do has been updated before."""
        invariant(global_commit_index >= self._commit, "I7: the commit index went back")
        self.moved += global_commit_index != self._commit
        self._commit = GlobalLogIndex(global_commit_index)

    def snapshotted(self, partition_id: PartitionId, snapshot_index: PartitionLogIndex) -> None:
        """A snapshot of the partition is complete: it holds everything up to here."""
        mark = self._marks.get(partition_id)
        if mark is None or snapshot_index > mark.snapshot_index:
            # After a start it is known before the log is replayed as far, or even to where the partition is created.
            self._snapshot[partition_id] = snapshot_index
        if mark is not None and snapshot_index > mark.snapshot_index:
            mark = self.of(partition_id)
            self._marks[partition_id] = replace(mark, snapshot_index=min(snapshot_index, mark.applied_index))
            self.moved += 1

    def idle(self, partition_id: PartitionId) -> bool:
        """Nothing committed is left to apply."""
        return partition_id in self._idle

    def holding(self, partition_id: PartitionId, level: Level) -> str:
        """Its state, as far as it holds up anybody at that level.

        Paused with nothing left to apply, it follows the commit index. What is lost may hold up only what is applied,
        as damage does.
        """
        state = self._marks[partition_id].state
        if state == "lost" and level is Level.DURABLE and partition_id in self._log_goes_on:
            return "damaged"
        return "running" if state == "paused" and partition_id in self._idle else state

    def all(self, partitions: Iterable[PartitionId] | None = None) -> list[Watermark]:
        """The watermarks of these partitions, or of all."""
        return [self.of(p) for p in (self._marks if partitions is None else partitions)]

    def minimum(self, partitions: Iterable[PartitionId] | None = None) -> GlobalLogIndex:
        """Every one of these partitions has applied up to here."""
        return min((m.applied_global_index for m in self.all(partitions)), default=GlobalLogIndex(0))

    def told(self, least: GlobalLogIndex) -> GlobalLogIndex:
        """All have applied up to there, those that are being opened, too: what is told of it, which never goes back.

        Before there is a log of one nobody can say what it has, and nothing of it is committed here: what an earlier
        process has left in it takes nothing back.
        """
        self._least = max(self._least, least)
        return self._least

    def update(
        self,
        partition_id: PartitionId,
        *,
        log_index: PartitionLogIndex,
        durable_index: PartitionLogIndex,
        applied_index: PartitionLogIndex,
        applied_global_index: GlobalLogIndex,
        state: str,
        idle: bool = False,
        log_goes_on: bool = False,
    ) -> None:
        """Take what is true now; tell the listeners if anything changed. ``idle``: nothing is left to apply.

        ``log_goes_on``: whatever its state is, more of its log becomes durable.
        """
        turns = log_goes_on != (partition_id in self._log_goes_on)
        if turns:
            (self._log_goes_on.add if log_goes_on else self._log_goes_on.discard)(partition_id)
        before = self.of(partition_id)
        if idle != (partition_id in self._idle):
            (self._idle.add if idle else self._idle.discard)(partition_id)
            self.moved += 1  # from now on it follows the commit index, or does no more
        # While the parent log is replayed after a start, the log's own marks trail behind what is applied.
        after = Watermark(
            partition_id,
            PartitionLogIndex(max(log_index, applied_index)),
            PartitionLogIndex(max(durable_index, applied_index)),
            applied_index,
            PartitionLogIndex(min(self._snapshot.get(partition_id, 0), applied_index)),
            # Idleness may have carried it further than the last batch.
            GlobalLogIndex(max(applied_global_index, before.applied_global_index)),
            state,
        )
        if after == before and not (turns and state == "lost"):
            return
        invariant(
            after.log_index >= before.log_index
            and after.snapshot_index >= before.snapshot_index
            and after.durable_index >= before.durable_index
            and after.applied_index >= before.applied_index
            and after.applied_global_index >= before.applied_global_index,
            "I7: a watermark went back: {} to {}",
            before,
            after,
        )
        invariant(
            after.snapshot_index <= after.applied_index <= after.durable_index <= after.log_index,
            "I1: watermarks out of order: {}",
            after,
        )
        self._marks[partition_id] = after
        self.moved += 1
        for listener in self._listeners:
            listener(after)


def _carried(mark: Watermark, commit: GlobalLogIndex) -> Watermark:
    # With each batch of a partition that had nothing to do: ``replace`` looks fields up, and takes three times as long
    return Watermark(
        mark.partition_id,
        mark.log_index,
        mark.durable_index,
        mark.applied_index,
        mark.snapshot_index,
        commit,
        mark.state,
    )


def to_row(mark: Watermark) -> list[object]:
    """As on the wire."""
    return [
        mark.partition_id,
        mark.log_index,
        mark.durable_index,
        mark.applied_index,
        mark.snapshot_index,
        mark.applied_global_index,
        mark.state,
    ]
