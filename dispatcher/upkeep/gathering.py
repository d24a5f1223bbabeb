"""One cut of the parent log: whose state is captured, and the dumps on their way into a set.

A thread writes them; the loop looks how that goes. Dumps are users' code, too: one may not return.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Self

import structlog

from logboom.errors import Unavailable
from logboom.state_machine import Entry, Position, StateDump
from logboom.types import GlobalLogIndex, PartitionId
from partitions.apply.worker import ApplyWorker
from partitions.log.holes import Hole
from partitions.machines.guarded import GuardedDump
from ports.offload import Offload
from raftlog.entries.parent_state import EMPTY, ParentState

log = structlog.get_logger(__name__)
HoleOf = Callable[[PartitionId], Hole | None]
"""What holds a partition up here, if that is a batch that nobody has."""


class Asked(NamedTuple):
    """What the thread waits for. As long as that is the same, nothing has come."""

    partition_id: PartitionId
    given: int
    """Entries before it."""


class Progress(NamedTuple):
    """How far the snapshot under way is, for people."""

    global_index: GlobalLogIndex
    raft_index: int
    """Where its cut is, too: another one may be at the same ``global_index``."""
    captured: int
    partitions: int
    missing: tuple[PartitionId, ...]
    """Some of those whose state is not captured yet."""


@dataclass(slots=True, eq=False)
class Gathering:
    """See the module."""

    parent: ParentState
    raft_term: int
    partitions: int
    missing: dict[PartitionId, None]
    """Partitions whose state is not captured yet."""
    idle: list[PartitionId]
    """Those of ``missing`` that have nothing to apply, and that nobody has asked yet."""
    began: float
    offloads: Mapping[PartitionId, Offload]
    """What their machines are asked on."""
    closing: Counter[PartitionId]
    """Dumps of users' machines that are being closed off the loop, of this cut and others."""
    dumps: dict[PartitionId, StateDump] = field(default_factory=dict)
    """Captured, and not written yet."""
    reclaimable: int = 0
    """``Due.reclaimable`` at the cut."""
    over: bool = False
    refused: bool = False
    """A machine's dump has raised, whatever it was."""
    came: bool = False
    """Another node's set of the same index was here first."""
    lacks: str | None = None
    """Why a state did not come, where that was a batch that nobody has."""
    asked: Asked | None = None
    _written: PartitionId | None = None
    """The one that the thread has."""
    _taking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def global_index(self) -> GlobalLogIndex:
        """G: where the cut is."""
        return self.parent.global_index

    def holds(self, partition_id: PartitionId) -> bool:
        """What was captured of its state is still needed: its machine must not be closed."""
        return partition_id in self.dumps or partition_id == self._written

    def end(self) -> None:
        """What was captured is needed no more; what the thread has it closes itself, whenever that is."""
        with self._taking:
            self.over = True
            left, self.dumps = self.dumps, {}
        for partition_id, dump in left.items():
            self.let_go(partition_id, dump)

    def let_go(self, partition_id: PartitionId, dump: StateDump) -> None:
        """Close it. A user's may wait, for whoever applies to its machine, say: so that is done off the loop."""
        if isinstance(dump, GuardedDump):
            self.closing[partition_id] += 1
            with suppress(RuntimeError):  # the node is being closed
                job = partial(let_go, partition_id, dump)
                self.offloads[partition_id].submit(job, lambda *_: self._closed(partition_id))
                return
            self._closed(partition_id)
        let_go(partition_id, dump)

    def _closed(self, partition_id: PartitionId) -> None:
        self.closing[partition_id] -= 1
        if not self.closing[partition_id]:
            del self.closing[partition_id]

    def waits_for(self, workers: Mapping[PartitionId, ApplyWorker]) -> Asked | None:
        """The dump that something waits for."""
        capturing = (p for p in self.missing if p in workers and workers[p].capturing)
        return next((Asked(p, 0) for p in capturing), self.asked)

    def useless(self, workers: Mapping[PartitionId, ApplyWorker]) -> PartitionId | None:
        """A partition whose state will not come: it is damaged for good."""
        return next((p for p in self.missing if p in workers and workers[p].useless), None)

    def lost(self, workers: Mapping[PartitionId, ApplyWorker], hole_of: HoleOf) -> str | None:
        """Why a state will not come, as far as is known now: see ``lost_of``."""
        return lost_of(self.parent, ((p, workers[p]) for p in self.missing if p in workers), hole_of)

    def progress(self) -> Progress:
        """How far it is."""
        captured = self.partitions - len(self.missing)
        return Progress(self.global_index, self.parent.raft_index, captured, self.partitions, tuple(self.missing)[:8])

    # -- the thread

    def take(self, partition_id: PartitionId) -> Dumping:
        """To be written, and closed. Raises Unavailable if that is over."""
        with self._taking:
            self.check()
            self._written = partition_id
            return Dumping(self, partition_id, self.dumps.pop(partition_id))

    def check(self) -> None:
        """Raises Unavailable if nobody wants the set any more."""
        if self.over:
            raise Unavailable("the snapshot was given up")

    def done(self, partition_id: PartitionId) -> None:
        """Its dump is closed."""
        if self._written == partition_id:
            self._written = None


def lost_of(parent: ParentState, workers: Iterable[tuple[PartitionId, ApplyWorker]], hole_of: HoleOf) -> str | None:
    """Why one of these states does not come to the cut at ``parent``: in front of that is a batch that nobody has."""
    for partition_id, worker in workers:
        last_index = parent.tails.get(partition_id, EMPTY).last_index
        hole = hole_of(partition_id) if worker.applied_index < last_index else None
        if hole is not None and hole.first_index <= last_index:
            return f"partition {partition_id} lacks a batch that is lost"
    return None


class Stuck(dict[PartitionId, Gathering]):
    """Whose dump was given up, and of which cut: a thread still waits for it."""

    def returned(self, gathering: Gathering) -> None:
        """What was given up has come to its end."""
        for partition_id in [p for p, cut in self.items() if cut is gathering]:
            del self[partition_id]
            log.info("dump_returned", partition=partition_id, global_index=gathering.global_index)


def let_go(partition_id: PartitionId, dump: StateDump) -> None:
    """One of a user's machine may raise anything: the others have to be closed, and another snapshot be begun."""
    try:
        dump.close()
    except Exception as error:
        log.exception("dump_not_closed", partition=partition_id, error=repr(error))


class Dumping:
    """A dump that says what it is asked for: a StateDump."""

    def __init__(self, gathering: Gathering, partition_id: PartitionId, dump: StateDump) -> None:
        self.position: Position = dump.position
        self._gathering = gathering
        self._partition_id = partition_id
        self._dump = dump
        self._given = 0

    def entries(self) -> Iterator[Entry]:
        """See StateDump."""
        self._gathering.asked = Asked(self._partition_id, self._given)
        try:
            found = iter(self._dump.entries())
            while True:
                self._gathering.asked = Asked(self._partition_id, self._given)
                try:
                    entry = next(found)
                except StopIteration:
                    return
                finally:
                    self._gathering.asked = None
                self._gathering.check()
                self._given += 1
                yield entry
        except Exception:
            self._gathering.refused = True
            raise

    def close(self) -> None:
        """See StateDump."""
        self._gathering.asked = Asked(self._partition_id, self._given)
        try:
            self._dump.close()
        except Exception:
            self._gathering.refused = True
            raise
        finally:
            self._gathering.asked = None
            self._gathering.done(self._partition_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
