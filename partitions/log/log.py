"""One partition's append-only log (AOF): tentative and committed batches, durable and readable.

Append-only means conflicts too: after a leader change a new batch may reuse an index that
holds a tentative batch of the old term. Both stay; the parent log's digest says which one
the index means.

The loop appends and commits; the group sync writes (``take``/``run``/``done``); readers use
other threads. What they share is append-only arrays and immutable tuples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path

from logboom.errors import CorruptData, LogboomError
from logboom.settings import LogSettings
from logboom.types import NO_DIGEST, DurabilityMode, GlobalLogIndex, PartitionId, PartitionLogIndex, Term
from partitions.log.batch import Batch
from partitions.log.compaction import Lease, Leases, Taken, removal
from partitions.log.files import Shelf
from partitions.log.holes import hole_ref
from partitions.log.log_fetching import LogFetching
from partitions.log.open_segment import OpenSegment, WriteJob
from partitions.log.opening import FROM_THE_BEGINNING, LogBase, open_segments
from partitions.log.places import part_through
from partitions.log.recent import RecentBatches
from partitions.log.segment import BatchRef, Damage
from partitions.log.tentative import Tentative
from partitions.log.unwritten import Unwritten
from ports.clock import Clock
from ports.disk import Disk
from ports.invariant import InvariantViolated, invariant


class ChainBroken(LogboomError):
    """A batch whose predecessor is not held here: it must come first."""

    code = "chain_broken"
    retryable = True


class PartitionLog(LogFetching):
    """See the module."""

    def __init__(
        self,
        *,
        disk: Disk,
        directory: Path,
        partition_id: PartitionId,
        settings: LogSettings,
        mode: DurabilityMode,
        headers_only: bool,
        clock: Clock | None,
        shelf: Shelf | None,
    ) -> None:
        super().__init__(
            disk=disk,
            directory=directory,
            files_max=settings.open_files_max,
            shelf=shelf,
            recent=RecentBatches(settings.recent_bytes, headers_only=headers_only),
            clock=clock,
        )
        self.partition_id = partition_id
        self.mode = mode
        self.damage: list[Damage] = []
        self.highest_index = PartitionLogIndex(0)
        self._tentative = Tentative()
        self._head = NO_DIGEST
        # Appending
        self._order = 0
        self._written_order = 0
        self._unwritten = Unwritten(settings, self._names)
        self._written_segment = 0
        """Those before it are sealed."""
        self._leases = Leases(settings.reader_lease_ms / 1000)
        self.open_segment = OpenSegment(disk, directory, partition_id, settings)
        self._job: WriteJob | None = None
        self._sync_requested = False
        self._journaled = False
        """Batches were written and not synced here, because the parent journal holds them too."""

    @classmethod
    def open(
        cls,
        *,
        disk: Disk,
        directory: Path,
        partition_id: PartitionId,
        settings: LogSettings,
        mode: DurabilityMode,
        base: LogBase | None = None,
        headers_only: bool = False,
        clock: Clock | None = None,
        shelf: Shelf | None = None,
    ) -> PartitionLog:
        """Recover from disk (blocking). What lies above ``base`` (None: everything) is tentative until committed again.

        ``headers_only``: its machine needs no records; see RecentBatches; ``clock``: Unread; ``shelf``: OpenFiles.

        Raises IncompatibleVersion or CorruptData for files that are not ours, and CorruptData when the places of
        what is committed up to ``base`` are not known.
        """
        disk.make_directory(directory)
        log = cls(
            disk=disk,
            directory=directory,
            partition_id=partition_id,
            settings=settings,
            mode=mode,
            headers_only=headers_only,
            clock=clock,
            shelf=shelf,
        )
        log._recover(base or FROM_THE_BEGINNING)
        return log

    def _recover(self, base: LogBase) -> None:
        found = open_segments(self._disk, self._directory, self.partition_id, base, self.open_segment)
        self._names.update(found.names)
        self.damage = found.damage
        if found.columns.before_index == base.last_index:
            found.columns.before_global = base.global_index
        self._committed.begin(found.columns)
        self._conceded.update(self._committed.lost)  # nobody had them
        self._head = base.digest
        self.committed_index = self.durable_index = self.highest_index = base.last_index
        self.committed_global_index = self.durable_global_index = base.global_index
        for ref in found.refs:
            self._hold(ref)
        segment, offset, records = found.tail_segment, found.tail_offset, found.tail_records
        self._unwritten.begin(segment=segment, offset=offset, records=records, began_ms=found.tail_ms)
        self._written_segment = found.tail_segment

    def found_last(self) -> list[bytes]:
        """At start: digests of the batches in the last segment."""
        return [ref.digest for ref in self.open_segment.refs]

    def write_again(self, proven: Callable[[BatchRef], bool]) -> int:
        """Write what was found at the end and is not proven to be on the disk; returns the bytes (blocking).

        After a failed sync the page cache may show what the disk never got, and a later sync of it succeeds.
        Segments before the last were synced before the next one was made.
        """
        return self.open_segment.write_again(proven)

    def doubt(self, *, lacks: bool) -> None:
        """At start, behind ``write_again``, blocking: whether something is lost here that had been acknowledged.

        Its copy may come to lie just where it lay, and fail to be synced: nothing would tell the two apart at the next
        start. So that one takes nothing for proven that no index names, nor does any until nothing is lacking.
        """
        self.open_segment.doubt(lacks=lacks)

    def takes_copies(self) -> bool:
        """What others give in place of something lost may be appended: the next start will not take it for proven.

        False on a full disk: ``doubt`` had no room to tell it so, nor has there been any since. Blocking until then.
        """
        return self.open_segment.takes_copies()

    # -- holding

    def holds(self, last_index: int, digest: bytes) -> bool:
        """A batch with this digest ends at this index here: appended, perhaps not yet synced.

        Also True of the one that the first one here follows: what comes behind it may be appended.
        """
        if self._tentative.find(last_index, digest) is not None or self._committed.holds(last_index, digest):
            return True
        if self._committed.is_in_front(last_index, digest):
            return True
        return self._followed is not None and self._followed[:2] == (last_index, digest)

    def find(self, last_index: int, digest: bytes) -> BatchRef | None:
        """Where it is."""
        tentative = self._tentative.find(last_index, digest)
        if tentative is not None:
            return tentative
        known = self._committed.find(last_index, digest)
        if known is None or last_index <= self.durable_index:
            return known
        return known._replace(order=self._order)

    def is_durable(self, last_index: int, digest: bytes) -> bool:
        """Held and on stable storage."""
        ref = self.find(last_index, digest)
        if ref is None:
            return self._committed.is_in_front(last_index, digest)
        return ref.order <= self._synced_order

    def is_unwritten(self, last_index: int, digest: bytes) -> bool:
        """It is appended, and in no file yet: what was lost is not held before that."""
        return (last_index, digest) in self._unwritten

    def lose(self, last_index: int, digest: bytes, *, at: object = None) -> bool:
        """This batch is damaged here: it is not held until it has been appended, and written, again.

        False: it was not held, or its damage is known already. ``at``: ``DamagedBatch.place``; if it lies elsewhere by
        now, somebody else has found it, and it has been mended.
        """
        ref = self.find(last_index, digest)
        if ref is None or (ref.last_index, digest) in self._unwritten:
            return False
        if at is not None and at != (ref.segment, ref.offset):
            return False
        if not self._tentative.lose(last_index, digest):
            self._committed.lose(last_index, digest)
        self.recent.drop(digest)
        return True

    def _hold(self, ref: BatchRef) -> None:
        self._tentative.hold(ref)
        self.highest_index = max(self.highest_index, ref.last_index)

    # -- appending (on the loop)

    def append(self, batch: Batch, *, behind: bytes = b"") -> bool:
        """Queue a batch; False if it is held already, or was committed and removed.

        ``behind``: a batch that it may follow without that being here, as it is known to come before it.

        Raises ChainBroken, or CorruptData for another partition's.
        """
        header, last_index = batch.header, batch.last_index
        if header.partition_id != self.partition_id:
            raise CorruptData(f"a batch of partition {header.partition_id} for partition {self.partition_id}")
        lost = False
        if last_index <= self.highest_index or self._followed is not None:  # else nothing that ends there is known
            lost = self._committed.is_lost(last_index, header.digest)
            if self.holds(last_index, header.digest) or (lost and (last_index, header.digest) in self._unwritten):
                return False
            if last_index < self.first_available_index or self._is_void(batch):
                return False
        before = header.first_index - 1
        # What is lost is committed: its digest says what it follows, which may be lost as well.
        previous = header.previous_digest
        follows = lost or self.holds(before, previous) or self.is_hole(before, previous) or previous == behind
        if not follows and (before or previous != NO_DIGEST):
            raise ChainBroken(f"partition {self.partition_id}: the batch before {header.first_index} is not here")
        self._order += 1
        if lost or self._conceded:
            self._fill(batch, self._order if lost else None)
        ref = self._unwritten.append(batch, order=self._order)
        if not lost:
            self._hold(ref)
            self.recent.appended(batch)
        return True

    # -- writing (ports.sync.SyncTarget)

    def take(self) -> WriteJob | None:
        """See ports.sync.SyncTarget. In write-behind mode the job syncs only when asked to (``request_sync``)."""
        if not self._unwritten.queued and not self._sync_requested:
            return None
        invariant(self._job is None, "partition {}: two writes at once", self.partition_id)
        must_sync, self._sync_requested = self._sync_requested, False
        sync = self.mode is DurabilityMode.WRITE_AHEAD or must_sync
        self._job = WriteJob(
            self.open_segment,
            self._unwritten.take(),
            order=self._order,
            sync=sync,
            must_sync=must_sync,
            written=self.written,
        )
        return self._job

    def request_sync(self) -> bool:
        """See ports.sync.SyncTarget."""
        self._sync_requested = self._journaled or self._synced_order < self._order
        return self._sync_requested

    def written(self, job: WriteJob) -> None:
        """On the loop, after the job."""
        invariant(self._job is job, "partition {}: a write ended that was not under way", self.partition_id)
        self._job = None
        self._written_order = max(self._written_order, job.order)
        if job.sync:
            self._journaled = job.journaled
            self._synced_order = max(self._synced_order, job.order)
        for write in job.writes:
            self._written_segment = write.segment
            self._unwritten.written(write.refs)
            self._committed.mend(write.refs)
        self._advance_durable()

    # -- committing (on the loop)

    def commit(self, *, last_index: int, digest: bytes, global_index: int, term: int) -> None:
        """The parent log has committed the batch that ends here. Invariants I2 and I4."""
        ref = self._tentative.find(last_index, digest)
        if ref is None and (last_index, digest) in self._conceded:
            ref = hole_ref(self.committed_index + 1, last_index, digest, self._head, Term(term))
            self.highest_index = max(self.highest_index, ref.last_index)
        if ref is None:
            raise InvariantViolated(f"I2: partition {self.partition_id}: no batch {digest.hex()} at {last_index}")
        invariant(
            ref.first_index == self.committed_index + 1 and ref.previous_digest == self._head,
            "I4: partition {}: batch {} does not follow {}",
            self.partition_id,
            ref.first_index,
            self.committed_index,
        )
        self._committed.append(ref, global_index)
        self._tentative.commit(last_index)  # behind that: other threads find it in one or the other at any moment
        self.recent.committed(digest)
        self._head = digest
        self.committed_index = PartitionLogIndex(last_index)
        self.committed_global_index = GlobalLogIndex(global_index)
        self._undurable.append((self.committed_index, ref.order, self.committed_global_index))
        self._advance_durable()

    @property
    def undurable_from(self) -> GlobalLogIndex | None:
        """Global index of the first committed batch that is not durable here yet; None: there is none."""
        return self._undurable[0][2] if self._undurable else None

    def committed_bytes_after(self, index: int) -> int:
        """Of batches that are committed and end behind ``index``; of very many a guess."""
        return self.committed_bytes_between(index, max(index, self.committed_index))

    def committed_bytes_between(self, low: int, high: int) -> int:
        """The same of those that end behind ``low``, up to ``high``; below 0 where that is lower."""
        return self._committed.columns.bytes_between(low, high)

    # -- reading (any thread; the rest is in LogReading)

    def read_batch(self, last_index: int, digest: bytes) -> bytes:
        """A held batch, raw, written or not. Raises CorruptData or IndexCompacted. Blocking."""
        queued = self._unwritten.find(last_index, digest)
        if queued is not None:
            return b"".join(queued.buffers)
        ref = self.find(last_index, digest)
        if ref is None:
            if last_index < self.first_available_index:
                self._committed.columns.refuse()
            raise CorruptData(f"partition {self.partition_id}: no batch {digest.hex()} at {last_index}")
        return self._reader.read(ref)

    # -- compaction (on the loop; its jobs run off it)

    def save_places(self, through_index: int) -> Callable[[], None]:
        """A job, for another thread: then this log alone says where the batches up to ``through_index`` are.

        They end there, and are durable. After the job they are so in this log's own files, and a start from a base
        at or below ``through_index`` finds them. An OSError of the job is final for this node, as any of a write.
        """
        invariant(
            through_index <= self.durable_index,
            "partition {}: places up to {}, durable up to {}",
            self.partition_id,
            through_index,
            self.durable_index,
        )
        lost = tuple(self._committed.lost.values())
        return self._saving(partial(part_through, self._committed.columns, through_index, lost))

    @property
    def moved(self) -> int:
        """Places that were saved while this was less are not those of today: of what is mended, void or gone."""
        return self._committed.moved

    def lease(self, index: int, *, by: Taken) -> Lease:
        """Somebody reads from ``index`` on. See ``LogSettings.reader_lease_ms``."""
        return self._leases.add(index, by=by)

    def compaction_point(
        self, through_index: int, retain_bytes: int | None, *, now: float, outdated_to: int = 0
    ) -> int:
        """Up to where ``compact`` may keep from: batches of ``retain_bytes`` (None: all) up to ``through_index`` stay.

        Those up to ``outdated_to`` do not; what somebody reads does. Adds up what stays: not for every turn of the
        loop.
        """
        through = min(through_index, self.committed_index)
        point = 1 if retain_bytes is None else self._committed.retaining(through, retain_bytes)
        return self._leases.lowest(max(point, min(outdated_to, through) + 1), now=now)

    def compact(self, keep_from_index: int, *, ends: bool = False) -> Callable[[], None]:
        """Remove sealed segments without committed batches that end at ``keep_from_index`` or behind it.

        The caller has saved the places of all before it, and is past them for good: the base of the next start lies
        at ``keep_from_index`` - 1 or behind. Segments with batches that may yet be committed stay, and all behind one
        that stays. What goes cannot be read any more; the job that is returned, for another thread, removes the files.
        Its OSErrors are final. ``ends``: the newest segment takes no more if its first batch need not be kept: with a
        few records now and then it would be full, and go, years after the first of them.
        """
        invariant(
            keep_from_index <= self.durable_index + 1,
            "partition {}: nothing is kept before {}, durable up to {}",
            self.partition_id,
            keep_from_index,
            self.durable_index,
        )
        if self._job is None:  # what one has written is noted when it is done
            self._written_segment = max(self._written_segment, self.open_segment.ordinal)
        if ends:
            self._unwritten.end_segment(before_index=keep_from_index)
        gone = self._ended_before(keep_from_index)
        # First who looks for them is told that they are gone: he must not come to know of a place without its file.
        self._committed.forget(gone)
        names = {segment: self._names.pop(segment) for segment in gone}
        self._tentative.keep(self._names)
        return removal(self._disk, self._directory, names, self._reader.forget)

    def sealing(self, keep_from_index: int) -> Callable[[], None] | None:
        """A job for another thread, before ``compact`` with the same index: another segment begins, with nothing.

        The newest can go then, though nobody writes. None: something in it stays, or is not written. The empty one
        stays: by it a start knows which numbers of segments have been used. An OSError is final for this node.
        """
        if self._job is not None or self._unwritten.queued or self._unwritten.is_empty:
            return None
        newest, tips = self._unwritten.segment, self._tentative.segments_behind(self.committed_index)
        if newest in tips or self._committed.newest_in(newest) >= keep_from_index:
            return None
        self._unwritten.begin_next(PartitionLogIndex(self.committed_index + 1))
        return partial(self.open_segment.begin_next, self._unwritten.next_write)

    def shortening(self, keep_from_index: int) -> Callable[[], None] | None:
        """A job for another thread, before ``compact`` with the same index: else it copies what stays, on the loop.

        None: there is not much of it.
        """
        return self._committed.shortening(self._ended_before(keep_from_index))

    def _ended_before(self, index: int) -> list[int]:
        """Sealed segments that may go."""
        tips = self._tentative.segments_behind(self.committed_index)
        sealed = [segment for segment in sorted(self._names) if segment < self._written_segment]
        # None behind one that stays: to a start it would be missing (partitions.log.opening).
        return list(takewhile(lambda s: s not in tips and self._committed.newest_in(s) < index, sealed))

    def close(self) -> None:
        """Idempotent. What is queued and not written is dropped: nobody was told about it."""
        self._reader.close()
        self.open_segment.close()
