"""What the parts of a pipeline find around them: the pipeline, as far as they need it, and one another."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from dispatcher.admission.admission import Admission
from dispatcher.admission.waiting import WaitingRoom
from dispatcher.pipeline.agreement import Agreement
from dispatcher.pipeline.forwarding import Forwarding
from dispatcher.pipeline.payloads import PartitionPayloads
from dispatcher.pipeline.pending import Pending
from dispatcher.pipeline.recovered import Recovered
from dispatcher.upkeep.rebuilding import Rebuilding
from dispatcher.upkeep.snapshots import Snapshots
from logboom.settings import ClusterSettings, Settings
from logboom.types import Level, NodeId, PartitionId
from partitions.apply.worker import ApplyWorker
from partitions.log.log import PartitionLog
from ports.clock import Clock
from ports.offload import Offload
from raftlog.core import RaftLog
from raftlog.entries.configuration import Configuration
from raftlog.entries.parent_state import ParentState, Tail


class Queue(Protocol):
    """Requests that wait for admission; see Submitting."""

    waiting: WaitingRoom

    def eased(self) -> None:
        """Signals withhold less than before."""
        ...

    def proposed_end(self, partition_id: PartitionId) -> None:
        """It is about to be destroyed."""
        ...

    def paused(self, partition_id: PartitionId) -> None:
        """It applies nothing until somebody resumes it: whoever waits for that is told."""
        ...


class Surroundings(Protocol):
    """See the module."""

    settings: Settings
    cluster: ClusterSettings
    node_id: NodeId
    clock: Clock
    offload: Offload
    raft: RaftLog
    parent: ParentState
    logs: dict[PartitionId, PartitionLog]
    workers: dict[PartitionId, ApplyWorker]
    tails: dict[PartitionId, Tail]
    admission: Admission
    agreement: Agreement
    forwarding: Forwarding
    payloads: PartitionPayloads
    pending: Pending
    rebuilding: Rebuilding
    recovery: Recovered
    snapshots: Snapshots
    repeated: int
    """Requests that had been applied before."""

    @property
    def submitting(self) -> Queue:
        """Who waits."""
        ...

    @property
    def members(self) -> Configuration:
        """The configuration that counts here."""
        ...

    def address_of(self, node: NodeId) -> str | None:
        """Where clients reach a member."""
        ...

    def check_writable(self, partition_id: PartitionId) -> None:
        """Leader only. Raises what keeps writes out of a partition that is there, or that it is not."""
        ...

    def level_of(self, asked: Level | None, partitions: Collection[PartitionId]) -> Level:
        """What a request with this ``wait`` has to wait for."""
        ...

    def appended(self, store: PartitionLog) -> None:
        """To be synced."""
        ...

    def log_opened(self, partition_id: PartitionId) -> None:
        """A partition that was created has its log, in its room: from now on this node takes what comes for it."""
        ...

    def opened(self, partition_id: PartitionId) -> None:
        """A partition that was created is open in its room: from now on it is served."""
        ...

    def ended(self, partition_id: PartitionId) -> None:
        """A partition is gone: nobody waits for it any more, and its worker is somebody else's to close."""
        ...

    def forgotten(self, partition_id: PartitionId) -> None:
        """One that was not open yet is gone."""
        ...

    def look_again(self, partition_id: PartitionId) -> None:
        """Something about its worker has changed."""
        ...

    def moved(self, partition_id: PartitionId) -> None:
        """More of it may be durable, or be applied, or it may be shown as something else."""
        ...
