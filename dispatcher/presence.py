"""What a pipeline does when something becomes of a whole partition: everybody in here who knows of it is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from dispatcher.admission import Admission
from dispatcher.barriers import Barriers
from dispatcher.partitioning import Partitioning, destroyed
from dispatcher.pending import Pending
from dispatcher.rebuilding import Rebuilding
from dispatcher.recovered import Recovered
from dispatcher.rooms import Progressed
from dispatcher.snapshots import Snapshots
from dispatcher.stability import Stability
from dispatcher.watermarks import Watermarks
from logboom.types import DurabilityMode, PartitionId, PartitionLogIndex, Term
from partitions.log import PartitionLog
from partitions.reading import DamagedBatch
from partitions.worker import ApplyWorker
from raftlog.core import RaftLog
from raftlog.entry import Route
from raftlog.parent_state import Tail
from snapshots.meta import SetMeta


class Presence(ABC):
    """A part of ``Pipeline``, which has all of this."""

    logs: dict[PartitionId, PartitionLog]
    workers: dict[PartitionId, ApplyWorker]
    admission: Admission
    barriers: Barriers
    partitioning: Partitioning
    pending: Pending
    raft: RaftLog
    rebuilding: Rebuilding
    recovery: Recovered
    snapshots: Snapshots
    stability: Stability
    watermarks: Watermarks
    _worker_of: Callable[[PartitionId, Progressed], ApplyWorker]
    _commit_callbacks: dict[PartitionId, list[Callable[..., None]]]
    _lagging: set[PartitionId]
    _tails: dict[PartitionId, Tail]
    _touched: set[PartitionId]

    @abstractmethod
    def _progress_of(self, partition_id: PartitionId) -> Progressed: ...

    @abstractmethod
    def _publish(self, partition_id: PartitionId) -> None: ...

    @abstractmethod
    def _settle_soon(self) -> None: ...

    def foretold(self, routes: Sequence[Route], through: int) -> None:
        """See RaftEvents."""
        self.partitioning.foretold({route.partition_id for route in routes}, through)

    def opened(self, partition_id: PartitionId) -> None:
        """A partition that was created is open in its room: from now on it is served."""
        if self.logs[partition_id].mode is DurabilityMode.WRITE_BEHIND:
            self.stability.add(partition_id)
        self.watermarks.add(partition_id)
        self.admission.add(partition_id)
        self.recovery.add(partition_id)
        self.workers[partition_id] = self._worker_of(partition_id, self._progress_of(partition_id))
        self._publish(partition_id)
        self._touched.add(partition_id)
        self._settle_soon()

    def ended(self, partition_id: PartitionId) -> None:
        """A partition is gone: nobody waits for it any more, and its worker is somebody else's to close."""
        del self.workers[partition_id]
        self.snapshots.taking.ended(partition_id)
        self.pending.ended(partition_id, lambda: destroyed(partition_id, outcome="applied"))
        self.barriers.ended(partition_id, lambda: destroyed(partition_id))
        for callback in list(self._commit_callbacks.pop(partition_id, ())):
            callback(destroyed(partition_id))
        self.watermarks.remove(partition_id)
        self.admission.remove(partition_id)
        self.recovery.remove(partition_id)
        self.stability.remove(partition_id)
        self.rebuilding.ended(partition_id)
        self._lagging.discard(partition_id)
        self._tails.pop(partition_id, None)
        if self.logs[partition_id].request_sync():  # whoever is fed from it may have it
            self.raft.group.dirty(self.logs[partition_id])

    def snapshot_completed(self, meta: SetMeta) -> None:
        """A set is complete on this node: its partitions' watermarks say so."""
        for each in meta.partitions:
            self.watermarks.snapshotted(PartitionId(each.partition_id), PartitionLogIndex(each.applied_index))

    def damaged(self, partition_id: PartitionId, damage: DamagedBatch) -> None:
        """A batch could not be read: have it fetched from a peer; the worker goes on when it is back."""
        self.raft.damaged(Route(partition_id, Term(0), damage.last_index, damage.digest))
