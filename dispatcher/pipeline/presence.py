"""The pipeline's part in a partition's life: opened, applied, damaged, repaired, snapshotted, destroyed.

Each of its parts that keeps something of the partition is told.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from dispatcher.admission.admission import Admission
from dispatcher.barriers.barriers import Barriers
from dispatcher.barriers.stability import Stability
from dispatcher.barriers.watermarks import Watermarks
from dispatcher.pipeline.lagging import Lagging
from dispatcher.pipeline.partitioning import Partitioning, destroyed
from dispatcher.pipeline.pending import Pending
from dispatcher.pipeline.recovered import Recovered
from dispatcher.pipeline.rooms import Progressed
from dispatcher.pipeline.submitting import Submitting
from dispatcher.pipeline.subscriptions import Subscriptions
from dispatcher.pipeline.voiding import Voiding
from dispatcher.upkeep.compaction import removes
from dispatcher.upkeep.rebuilding import Rebuilding
from dispatcher.upkeep.snapshots import Snapshots
from logboom.errors import CorruptData
from logboom.settings import Settings
from logboom.types import DurabilityMode, GlobalLogIndex, PartitionId, PartitionLogIndex, Term
from partitions.apply.apply_core import AppliedBatch, Begun, WorkerState
from partitions.apply.worker import ApplyWorker
from partitions.log.holes import Hole
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch
from raftlog.core import RaftLog
from raftlog.entries.entry import Route
from raftlog.entries.parent_state import ParentState, Tail
from raftlog.journal.journal_base import BEGINNING
from raftlog.links.payloads import DamagedPayload
from snapshots.meta import SetMeta


class Presence(ABC):
    """A part of ``Pipeline``, which has all of this."""

    logs: dict[PartitionId, PartitionLog]
    workers: dict[PartitionId, ApplyWorker]
    admission: Admission
    barriers: Barriers
    lagging: Lagging
    partitioning: Partitioning
    pending: Pending
    raft: RaftLog
    rebuilding: Rebuilding
    recovery: Recovered
    settings: Settings
    snapshots: Snapshots
    stability: Stability
    submitting: Submitting
    subscriptions: Subscriptions
    tails: dict[PartitionId, Tail]
    watermarks: Watermarks
    voiding: Voiding
    _worker_of: Callable[[PartitionId, Progressed, Begun | None], ApplyWorker]
    _unsynced: set[PartitionId]
    _unshown: set[PartitionId]
    _told_paused: set[PartitionId]
    """Those of which whoever waits was told that they are paused: it may be shown as something else."""
    _touched: set[PartitionId]
    _at_base: tuple[int, Mapping[PartitionId, Tail]] = (BEGINNING.base.index, {})
    """Where the partitions' logs ended at the journal's base, when that was asked last, and its Raft index."""

    @abstractmethod
    def _settle_soon(self) -> None: ...

    def check_writable(self, partition_id: PartitionId) -> None:
        """Leader only. Raises what keeps writes out of a partition that is there, or that it is not."""
        self.partitioning.check_writable(partition_id)
        self.voiding.check(partition_id)

    def hole_of(self, partition_id: PartitionId) -> Hole | None:
        """What holds it up here, if that is a batch that nobody has: its log, or only what is applied of it."""
        return self.voiding.hole_of(partition_id)

    def lacks_void(self, partition_id: PartitionId, digest: bytes) -> bool:
        """This batch was declared void, and only here it holds something up: the states of others have what it did."""
        return self.voiding.lacks(partition_id, digest)

    def foretold(self, routes: Sequence[Route], through: int) -> None:
        """See RaftEvents."""
        self.partitioning.foretold({route.partition_id for route in routes}, through)

    def log_opened(self, partition_id: PartitionId) -> None:
        """A partition that was created has its log: what is synced of it counts for others, whose machine is open.

        Perhaps once more: where that had to wait.
        """
        known = self.stability.stable(partition_id) is not None
        if self.logs[partition_id].mode is DurabilityMode.WRITE_BEHIND and not known:
            self.stability.add(partition_id)
            self._touched.add(partition_id)
            self._settle_soon()

    def opened(self, partition_id: PartitionId) -> None:
        """A partition that was created is open in its room: from now on it is served."""
        self.watermarks.add(partition_id, through=self.logs[partition_id].in_front_of_first or GlobalLogIndex(0))
        self.admission.add(partition_id)
        self.recovery.add(partition_id)
        self.workers[partition_id] = self._worker_of(partition_id, self._progress_of(partition_id), None)
        self._publish(partition_id)
        self._touched.add(partition_id)
        self._settle_soon()

    def ended(self, partition_id: PartitionId) -> None:
        """A partition is gone: nobody waits for it any more, and its worker is somebody else's to close."""
        worker = self.workers.pop(partition_id)
        self.submitting.waiting.barred(partition_id, lambda: destroyed(partition_id))
        self.pending.ended(partition_id, lambda: destroyed(partition_id, outcome="applied"))
        self.subscriptions.ended(partition_id, lambda: destroyed(partition_id))
        self.admission.remove(partition_id)
        self.recovery.remove(partition_id)
        self.rebuilding.ended(partition_id)
        self.lagging.ended(partition_id)
        self._unshown.discard(partition_id)
        self.tails.pop(partition_id, None)
        self.forgotten(partition_id, worker)
        if self.logs[partition_id].request_sync():  # whoever is fed from it may have it
            self.raft.group.dirty(self.logs[partition_id])

    def forgotten(self, partition_id: PartitionId, worker: ApplyWorker | None = None) -> None:
        """It is gone, and perhaps was never open here: what was heard of it before that is of no use to anybody."""
        self.snapshots.taking.ended(partition_id, worker)
        self.barriers.ended(partition_id, lambda: destroyed(partition_id))
        self.watermarks.remove(partition_id)
        self.stability.remove(partition_id)
        self.voiding.ended(partition_id)
        self._unsynced.discard(partition_id)
        self._touched.discard(partition_id)
        self._told_paused.discard(partition_id)

    def snapshot_completed(self, meta: SetMeta) -> None:
        """A set of its own is complete on this node."""
        self.snapshot_shown(meta)

    def snapshot_kept(self, meta: SetMeta) -> None:
        """Another node's set is, in the place of one of its own."""
        self.snapshot_shown(meta)

    def snapshot_shown(self, meta: SetMeta) -> None:
        """A set is here, whosever it is: its partitions' watermarks say so."""
        for each in meta.partitions:
            if self.partitioning.is_gone(each.partition_id):
                continue  # destroyed since the cut: nobody asks for it, and nobody would forget it
            self.watermarks.snapshotted(PartitionId(each.partition_id), PartitionLogIndex(each.applied_index))
            self.barriers.snapshotted(PartitionId(each.partition_id), meta.global_index)

    def damaged(self, partition_id: PartitionId, damage: DamagedBatch) -> None:
        """A batch could not be read: have it fetched from a peer; the worker goes on when it is back."""
        route = Route(partition_id, Term(0), damage.last_index, damage.digest)
        self.raft.damaged(DamagedPayload(str(damage), route, at=damage.place))
        store = self.logs.get(partition_id)
        if store is not None and store.find(damage.last_index, damage.digest) is not None:  # mended while he read it
            asyncio.get_running_loop().call_soon(self.repaired)

    def repaired(self) -> None:
        """See RaftEvents."""
        for partition_id, worker in self.workers.items():
            damage = worker.damage
            if damage is not None and self.logs[partition_id].find(damage.last_index, damage.digest) is not None:
                worker.damage = None
                if worker.state == WorkerState.DAMAGED:  # or somebody has paused it meanwhile
                    worker.resume()
            if damage is not None or not worker.idle or self.watermarks.of(partition_id).state != "running":
                self._touched.add(partition_id)  # of thousands that have nothing to do, nothing has changed
        self._settle_soon()

    def look_again(self, partition_id: PartitionId) -> None:
        """Something about its worker has changed."""
        self.voiding.look_again(partition_id)
        self._publish(partition_id)
        self.moved(partition_id)

    def moved(self, partition_id: PartitionId) -> None:
        """More of it may be durable, or be applied, or it may be shown as something else: soon, once for many."""
        self._touched.add(partition_id)
        self._settle_soon()

    def _secured(self, partition_id: PartitionId, last_index: int) -> bool | None:
        """Its state has what is applied up to here, saved to stay; None: nobody can say now."""
        worker = self.workers.get(partition_id)
        if worker is None:
            return None if self.partitioning.opening.may_have_state(partition_id) else False
        return None if self.rebuilding.fenced(partition_id) else worker.secured(last_index)

    def _unneeded(self, partition_id: PartitionId, last_index: int) -> bool:
        """What is in its log up to there need not stay in it, and a start of this node does not look for it."""
        if not removes(self.settings.snapshot, self.partitioning.kind(partition_id).state_machine):
            return False
        base = self.raft.journal.base
        if self._at_base[0] != base.index:  # it is asked often, of what is lost
            self._at_base = base.index, ParentState.decode(base.state).tails
        tail = self._at_base[1].get(partition_id)
        return tail is not None and tail.last_index >= last_index

    def _covered(self, partition_id: PartitionId, last_index: int) -> bool:
        """A set on this node has what is applied up to here."""
        sections = (each for meta in self.snapshots.store.sets() for each in meta.partitions)
        return any(each.partition_id == partition_id and each.applied_index >= last_index for each in sections)

    def _progress_of(self, partition_id: PartitionId) -> Progressed:
        def progressed(batches: Sequence[AppliedBatch]) -> None:
            for batch in batches:
                self.pending.applied(batch, partition_id)
            if partition_id not in self.workers:
                return  # it has just been destroyed
            self._publish(partition_id)
            self.recovery.applied(partition_id, self.watermarks)
            worker = self.workers[partition_id]
            if worker.damage is not None:
                self.damaged(partition_id, worker.damage)
            elif worker.state == "damaged":
                self.rebuilding.damaged(partition_id, CorruptData(worker.last_error))

        return progressed

    def _publish(self, partition_id: PartitionId) -> None:
        self._unshown.discard(partition_id)
        store, worker = self.logs[partition_id], self.workers[partition_id]
        applied, state = self.rebuilding.shown(partition_id)
        if state == "running" and self.admission.frozen(partition_id):
            state = "frozen"
        elif state == "running" and self.lagging.withdrawn(partition_id):
            state = "withdrawn"
        if state != "paused" or not worker.is_paused:
            self._told_paused.discard(partition_id)
        elif partition_id not in self._told_paused:
            self._told_paused.add(partition_id)
            self.submitting.paused(partition_id)
        # A paused partition is shown as lost only if the hole holds up its log as well, or if only a snapshot set can
        # fill it: then resuming would not help.
        voiding = self.voiding
        if state != "paused":
            hole = voiding.hole_of(partition_id)
        else:
            hole = store.hole or voiding.awaited_hole_of(partition_id)
        if hole is not None:
            state = "lost"
        self.watermarks.update(
            partition_id,
            log_index=store.committed_index,
            durable_index=store.durable_index,
            applied_index=applied.applied_index,
            applied_global_index=applied.applied_global_index,
            state=state,
            idle=worker.idle and not self.rebuilding.fenced(partition_id),
            log_goes_on=store.hole is None,
        )
