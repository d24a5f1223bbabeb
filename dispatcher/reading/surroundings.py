"""What reads find around them: the node, as far as they need it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from dispatcher.reading.asking import Asking
from dispatcher.reading.at_hand import AtHand
from dispatcher.reading.lately import Lately
from dispatcher.reading.read_budget import ReadBudget
from logboom.errors import CorruptData, LogboomError
from logboom.settings import Settings
from logboom.state_machine import Machine
from logboom.types import GlobalLogIndex, Level, PartitionId
from partitions.apply.worker import ApplyWorker
from partitions.log.holes import Hole
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch
from ports.clock import Clock
from ports.offload import Offload
from raftlog.entries.lifecycle import PartitionKind
from raftlog.entries.parent_state import ParentState


class Asker(NamedTuple):
    """For whom a read waits: one of the places goes that he has for barriers."""

    client: Hashable
    """The connection."""
    principal: Hashable
    """Who is there."""


class Horizon(NamedTuple):
    """The safe horizon of some partitions."""

    through: GlobalLogIndex
    """Nothing more can come of them with this global index or a lower one."""
    held_by: PartitionId | None
    """Of which partition it waits for something; None: it is as far as all that is committed."""


class Moved(Protocol):
    """A partition has come further; or, with an error, it is gone."""

    def __call__(self, error: LogboomError | None = None, /) -> None: ...


class Kinds(Protocol):
    """See Partitioning."""

    def kind(self, partition_id: PartitionId) -> PartitionKind:
        """Of a partition that lives."""
        ...

    def using(self, partition_id: PartitionId) -> AbstractContextManager[Machine]:
        """Its machine, which is not closed before the block ends, whatever state it is in."""
        ...


class Fences(Protocol):
    """See Rebuilding."""

    def fenced(self, partition_id: PartitionId) -> bool:
        """Its state must not be read."""
        ...

    def damaged(self, partition_id: PartitionId, error: CorruptData) -> object:
        """The state cannot be read."""
        ...


class Fresh(Protocol):
    """See Freshness."""

    async def recent(self, max_age: float, deadline: float) -> GlobalLogIndex:
        """Everything committed ``max_age`` seconds before this call is at or below it. Raises Unavailable."""
        ...


class Surroundings(Protocol):
    """See the module. What is not explained here is at ``Backend``, which has all of it."""

    settings: Settings
    clock: Clock
    offload: Offload
    parent: ParentState
    lately: Lately
    streams_open: int
    streams_logs: int

    @property
    def logs(self) -> Mapping[PartitionId, PartitionLog]: ...

    @property
    def machines(self) -> Mapping[PartitionId, Machine]: ...

    @property
    def workers(self) -> Mapping[PartitionId, ApplyWorker]: ...

    @property
    def partitioning(self) -> Kinds: ...

    @property
    def rebuilding(self) -> Fences: ...

    @property
    def freshness(self) -> Fresh: ...

    @property
    def read_budget(self) -> ReadBudget: ...

    @property
    def at_hand(self) -> AtHand: ...

    def partition_ids(self) -> Sequence[PartitionId]: ...

    def partition_rows(self) -> Sequence[Sequence[object]]: ...

    def missing(self, partition_id: int) -> LogboomError: ...

    def log(self, partition_id: PartitionId) -> PartitionLog: ...

    def using(self, partition_id: PartitionId) -> AbstractContextManager[Machine]: ...

    def threads_of(self, partition_id: PartitionId, machine: Machine) -> Asking: ...

    def threads_for(self, machine: Machine, offload: Offload) -> Asking: ...

    def hurry(self, partitions: Iterable[PartitionId]) -> None: ...

    # -- how far everything is

    def recovered(self, partitions: Iterable[PartitionId] | None = None) -> bool: ...

    def has_log(self, partition_id: PartitionId) -> bool: ...

    def global_commit_index(self) -> GlobalLogIndex: ...

    def applied_index(self, partition_id: PartitionId) -> int: ...

    def safe_horizon(self, partitions: Collection[PartitionId], level: Level) -> Horizon: ...

    async def read_index(self, deadline: float, *, lone: bool = False) -> GlobalLogIndex: ...

    async def wait_applied(
        self, partition_id: PartitionId, global_index: GlobalLogIndex, deadline: float, *, asker: Asker | None = None
    ) -> None: ...

    async def wait_all_applied(
        self, targets: Sequence[tuple[PartitionId, GlobalLogIndex]], deadline: float
    ) -> None: ...

    def subscribe_commits(self, partition_id: PartitionId, callback: Moved) -> Callable[[], None]: ...

    def subscribe_applied(self, partition_id: PartitionId, callback: Moved) -> Callable[[], None]: ...

    def subscribe_ordered(self, callback: Callable[[], None]) -> Callable[[], None]: ...

    # -- damage

    def damaged(self, partition_id: PartitionId, damage: DamagedBatch) -> None: ...

    def is_lost(self, digest: bytes) -> bool: ...

    def hole_of(self, partition_id: PartitionId) -> Hole | None: ...

    def lacks_void(self, partition_id: PartitionId, digest: bytes) -> bool: ...
