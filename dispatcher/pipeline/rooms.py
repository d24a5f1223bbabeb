"""Where a node keeps its partitions: what the dispatcher needs to have them opened and removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from dispatcher.upkeep.rebuilding import SetNeeded
from logboom.state_machine import Machine
from logboom.types import PartitionId
from partitions.apply.apply_core import AppliedBatch, Begun
from partitions.apply.worker import ApplyWorker
from partitions.log.log import PartitionLog
from ports.offload import Offload
from raftlog.entries.lifecycle import PartitionKind

Progressed = Callable[[Sequence[AppliedBatch]], None]


class Opened(NamedTuple):
    """A partition's machine."""

    machine: Machine
    lacks: SetNeeded | None = None
    """Its state is of no use here, and why."""
    begun: Begun | None = None
    """Its worker does with that."""


class Rooms(Protocol):
    """The partitions of one node as files and machines.

    What is in ``logs`` and ``machines`` is the dispatcher's to change, on the loop.
    """

    logs: dict[PartitionId, PartitionLog]
    """Of partitions that live, and of those destroyed whose routing entries the journal still has."""
    machines: dict[PartitionId, Machine]
    ending: dict[PartitionId, Machine]
    """Of destroyed partitions, until they are closed."""
    destroyed: set[PartitionId]
    """Until the journal begins behind that: a start would open what is left of them."""

    def check(self, state_machine: str) -> None:
        """Raises InvalidRequest if this node cannot open such a state machine."""
        ...

    def check_room(self, more: int) -> None:
        """Raises InvalidRequest if this process cannot have the files of so many more partitions open."""
        ...

    def room(self) -> int | None:
        """So many more partitions ``check_room`` would let in; None: any number."""
        ...

    def waits_for_files(self, more: int) -> str | None:
        """Why so many more partitions had better not be opened right now; None: they can be.

        What else this process has to open needs some, too: without any left it ends.
        """
        ...

    def file_left(self) -> bool:
        """For one log that cannot wait: also where those are lacking that a start would open for what was destroyed."""
        ...

    def trial(self, state_machine: str) -> Callable[[PartitionId], None] | None:
        """A job that opens one for nothing, as that partition would be: raises InvalidRequest if that fails. Blocking.

        None: it has been done, or need not be.
        """
        ...

    def open_log(self, partition_id: PartitionId, kind: PartitionKind) -> PartitionLog:
        """Of a partition that the journal's base does not know. Blocking."""
        ...

    def open(self, partition_id: PartitionId, kind: PartitionKind) -> Opened:
        """The machine of one in ``logs``. Blocking; a user's may not return."""
        ...

    def offload(self, state_machine: str) -> Offload:
        """Threads for whatever is asked of such machines: those of users have their own. On the loop."""
        ...

    def worker(self, partition_id: PartitionId, progressed: Progressed, begun: Begun | None = None) -> ApplyWorker:
        """For a partition in ``logs`` and ``machines``. ``begun``: see Remade; of what was opened it is known."""
        ...

    def untouched(self, partition_id: PartitionId) -> bool:
        """Nothing was ever written to a partition of that id, as the disk tells; it is not open."""
        ...

    def remove(self, partition_id: PartitionId) -> None:
        """Its directory; none is fine. Nothing in there is open. Blocking; may be interrupted and done again."""
        ...
