"""When a snapshot is due: by what was written since the last cut, by its age, and by what it makes room for.

Cuts count for the first two, whatever comes of them: each has all nodes write a set. For room only sets do. And where
the only set is gone, of which the journal goes on, or what is void has had effects that no set has.

After a start the logs tell what was written since the last sets: a node that is never up for long would else take none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dispatcher.upkeep.written import Written
from logboom.settings import SnapshotSettings
from logboom.types import GlobalLogIndex, PartitionId
from partitions.apply.apply_counts import ApplyCounts
from partitions.apply.worker import ApplyWorker
from partitions.log.log import PartitionLog
from ports.clock import Clock
from raftlog.journal.journal_base import BEGINNING
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore

KEPT_BYTES_PER_BYTE: Final = 16
"""So much of what stays in its log whatever is done is worth a byte of a set."""
SHORT_OF_ROOM: Final = 4
"""So many times what sets leave to the logs: from there on `disk_free` has less admitted."""
ROOM_LOOK_S: Final = 1.0
"""Between two looks at how much is free: it is the file system that is asked, on the loop."""
FAILED_S: Final = 60.0
"""Until another is tried after one that failed: each attempt has all nodes write a set."""
DOUBLED_MAX: Final = 6
"""Times, for one that failed after the other."""
ENDED_S: Final = 5.0
"""Until another is tried after one that a destroyed partition ended: more of them may be destroyed right behind it."""


class Due:
    """When the leader is to ask for a cut, by what one node has applied, written and kept."""

    def __init__(
        self,
        *,
        settings: SnapshotSettings,
        store: SnapshotStore,
        counts: ApplyCounts,
        clock: Clock,
        logs: Mapping[PartitionId, PartitionLog],
        workers: Mapping[PartitionId, ApplyWorker],
        recovered: Callable[[], bool],
        global_index: Callable[[], GlobalLogIndex],
        needed_behind: Callable[[GlobalLogIndex], bool],
        free_bytes: Callable[[], int] | None = None,
        spare_bytes: int,
    ) -> None:
        """``counts``: what has been applied here since the start. ``recovered``: the logs have all from before that.

        ``needed_behind``: somebody may need a set from behind there, since what is void there has had effects.
        ``spare_bytes``: of the disk are left to the logs, which have ``free_bytes``, if theirs is another one than the
        sets'.
        """
        self._settings = settings
        self._store = store
        self._counts = counts
        self._clock = clock
        self._logs = logs
        self._workers = workers
        self._recovered = recovered
        self._global_index = global_index
        self._needed_behind = needed_behind
        self._free_bytes = free_bytes
        self._spare_bytes = spare_bytes
        self._destroyed_bytes = 0
        """In logs of partitions that were destroyed since the start, but for what counts as applied: none is kept."""
        self._ended = dict[PartitionId, tuple[int, int]]()
        """Partitions that were destroyed, as long as their logs are here.

        Behind and up to which index what they have counts as applied.
        """
        self.last_cut = self._last_set = self._set_at()
        self._last_bytes, self.reclaimable = counts.bytes, self._reclaimable()
        """Bytes that were applied at the last cut, and of those what sets make room for."""
        self._of_last_set = self._of_set_before = self.reclaimable
        """``reclaimable`` at the cuts of the last two sets."""
        self._last_time = self._look_at = clock.monotonic()
        self._short_of_room = False
        self._failed = 0
        """Cuts that came to nothing here, one after the other."""
        self._not_before = 0.0
        """Until then none is asked for again for what those were asked for."""
        self._written: Written | None = None
        self._written_at: tuple[GlobalLogIndex, GlobalLogIndex] | None = None
        """The cut and the set of which ``_written`` looks at what came behind them."""
        self._counted = 0, 0
        """All that was applied since the start, and of that what sets make room for, when that look was begun."""
        self._looked_back = False

    def look_back(self) -> None:
        """Now and then, on every node, while no set is being taken: what was written before the start."""
        if self._looked_back or not self._recovered():
            return
        at = self.last_cut, self._set_at()
        if self._written is None or self._written_at != at:
            self._written, self._written_at = Written(self._store.sets(), self._workers), at
            self._counted = self._counts.bytes, self._counts.reclaimable
        if not self._written.look():
            return
        found, self._written, self._looked_back = self._written, None, True
        nbytes, reclaimable = self._counted
        self._last_bytes = nbytes - found.bytes
        self.reclaimable = self._of_last_set = reclaimable - found.reclaimable
        self._of_set_before = reclaimable - found.reclaimable_before
        newest = self._store.newest
        if newest is not None:
            old_s = (self._clock.wall_ms() - newest.created_ms) / 1000
            self._last_time = min(self._last_time, self._clock.monotonic() - old_s)

    def ended(self, partition_id: PartitionId, worker: ApplyWorker | None) -> None:
        """It is destroyed, or was and that is replayed: its log goes with the first set but one. Perhaps once more."""
        store = self._logs.get(partition_id)
        if store is None or partition_id in self._ended:
            return
        self._ended[partition_id] = 0, 0
        if worker is None or not worker.reclaimable or not self._looked_back:
            self._destroyed_bytes += store.committed_bytes_after(0)
            return
        sets, applied = self._store.sets(), worker.applied_index
        before, newest = (min(_applied_in(some, partition_id), applied) for some in (sets[-2:-1], sets[-1:]))
        self._destroyed_bytes += store.committed_bytes_between(0, before) + store.committed_bytes_after(applied)
        # The next set makes room for what is in the newest of those that live. Of this one the set behind it does.
        self._of_last_set -= store.committed_bytes_between(before, newest)
        self._ended[partition_id] = before, applied

    def _reclaimable(self) -> int:
        return self._counts.reclaimable + self._destroyed_bytes

    def cut(self, global_index: GlobalLogIndex) -> None:
        """There is one. ``complete`` or ``failed`` may follow."""
        self.last_cut = global_index
        self._last_bytes, self.reclaimable = self._counts.bytes, self._reclaimable()
        self._last_time = self._clock.monotonic()

    def complete(self, global_index: GlobalLogIndex, reclaimable: int) -> None:
        """The set is here, this node's own or another's; ``reclaimable`` was so at its cut."""
        self._failed, self._not_before = 0, 0.0
        self._ended = {p: counted for p, counted in self._ended.items() if p in self._logs}
        if global_index > self._last_set:
            self._last_set = global_index
            left = reclaimable - self._of_ended(global_index)
            self._of_set_before, self._of_last_set = self._of_last_set, left

    def _of_ended(self, global_index: GlobalLogIndex) -> int:
        """What a new set has of partitions that were destroyed while it was made: for that the next makes no room."""
        made = [meta for meta in self._store.sets() if meta.global_index == global_index]
        nbytes = 0
        for partition_id, (before, applied) in self._ended.items():
            through = min(_applied_in(made, partition_id), applied)
            if through > before:
                nbytes += self._logs[partition_id].committed_bytes_between(before, through)
        return nbytes

    def failed(self, *, counts: bool = True, destroyed: bool = False) -> None:
        """A cut has come to nothing here, and so may the next: they are tried ever more seldom, if it ``counts``.

        Where it lacks a batch that is lost it does not: that ends when the batch turns up, or is void. Nor where one of
        its partitions was ``destroyed``: nothing is wrong, and whoever makes room that way waits for the next.
        """
        counts &= not destroyed
        again = FAILED_S * 2 ** min(self._failed, DOUBLED_MAX) if counts else ENDED_S if destroyed else FAILED_S
        self._not_before = max(self._not_before, self._clock.monotonic() + again)
        self._failed += counts

    def is_due(self) -> bool:
        """Now. Leader only."""
        settings, now, entries = self._settings, self._clock.monotonic(), self._global_index() - self.last_cut
        return (
            (0 < settings.entries <= entries)
            or (entries > 0 and 0 < settings.log_bytes <= self._counts.bytes - self._last_bytes and self._is_worth_it())
            or (entries > 0 and 0 < settings.age_ms <= (now - self._last_time) * 1000)
            or (settings.log_bytes > 0 and self._makes_room(now))
        )

    def is_lacking(self, base_index: int) -> bool:
        """There is no set here, and the journal begins at ``base_index``: no node could be made of this one's data.

        Whatever the settings say, and nothing was written since. Leader only.
        """
        gone = base_index > BEGINNING.base.index and self._store.newest is None
        return gone and self._clock.monotonic() >= self._not_before

    def is_needed(self) -> bool:
        """No set here stands for what was declared void though it had effects: who lacks those goes on from one.

        Whatever the settings say: whoever led then may have asked for it, and died. Leader only.
        """
        return self._clock.monotonic() >= self._not_before and self._needed_behind(self._set_at())

    def _is_worth_it(self) -> bool:
        """A set costs its size. What it gains is what can be removed then; elsewhere only starts are shorter."""
        newest = self._store.newest
        removable = self._reclaimable() - self.reclaimable
        kept = max(0, self._counts.bytes - self._last_bytes - removable)
        return newest is None or removable + kept // KEPT_BYTES_PER_BYTE >= newest.states_bytes

    def _makes_room(self, now: float) -> bool:
        """Soon nothing more is admitted, and two sets make room: logs go up to where the one before the newest begins.

        Then nothing more is written, so that nothing else would ever be due. The set itself has to fit.
        """
        newest = self._store.newest
        size = 0 if newest is None else newest.states_bytes
        gained = self._reclaimable() - self._of_set_before
        anew = self._global_index() > self._set_at()
        if not self._spare_bytes or not anew or gained <= size or now < self._not_before:
            return False
        if now >= self._look_at:
            self._look_at = now + ROOM_LOOK_S
            free = self._store.free_bytes() if self._free_bytes is None else self._free_bytes()
            self._short_of_room = free < SHORT_OF_ROOM * self._spare_bytes + size
        return self._short_of_room

    def _set_at(self) -> GlobalLogIndex:
        newest = self._store.newest
        return newest.global_index if newest is not None else GlobalLogIndex(0)


def _applied_in(sets: Sequence[SetMeta], partition_id: PartitionId) -> int:
    """Up to which index the one of ``sets``, if there is one, has a partition."""
    for meta in sets:
        row = bisect_left(meta.partitions, partition_id, key=lambda each: each.partition_id)
        if row < len(meta.partitions) and meta.partitions[row].partition_id == partition_id:
            return meta.partitions[row].applied_index
    return 0
