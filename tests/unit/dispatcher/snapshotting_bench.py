"""What takes a node's snapshots, without a node."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chaos.sim.disk import SimDisk
from dispatcher.upkeep.due import Due
from dispatcher.upkeep.set_writing import SetWriting
from dispatcher.upkeep.snapshotting import Snapshotting
from logboom.settings import ClusterSettings, SnapshotSettings
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.apply.apply_counts import ApplyCounts
from partitions.log.holes import Hole
from raftlog.entries.lifecycle import Lifecycle
from raftlog.entries.parent_state import ParentState, Tail
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore
from tests.unit.snapshots.states_world import Dump, entries

NEVER = {"log_bytes": 0, "entries": 0, "age_ms": 0}


class Log:
    """What is committed in it."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        """Last index and size."""

    def committed_bytes_after(self, index: int) -> int:
        return sum(nbytes for last_index, nbytes in self.batches if last_index > index)

    def committed_bytes_between(self, low: int, high: int) -> int:
        return self.committed_bytes_after(low) - self.committed_bytes_after(high)


class Worker:
    """Captures when it is hurried, or has come to where the cut is."""

    def __init__(self, applied: int) -> None:
        self.log, self.reclaimable = Log(), True
        self.applied_index = applied
        self.asked: tuple[int, Callable[[Any], None]] | None = None
        self.hurries = 0
        self.offload: Any = None
        self.broken = self.useless = self.capturing = False
        self.dumps: list[Closing] = []

    def cut(self, through_index: int, taken: Callable[[Any], None]) -> None:
        assert self.asked is None, "two cuts at once"
        self.asked = through_index, taken

    def drop_cut(self) -> None:
        self.asked = None

    def hurry(self) -> None:
        self.hurries += 1
        self.arrive()

    def arrive(self, *, at: int | None = None) -> None:
        """Everything up to the cut is applied."""
        self.applied_index = at if at is not None else self.applied_index
        if self.asked is None or self.asked[0] != self.applied_index:
            return
        (_, taken), self.asked = self.asked, None
        if self.broken:
            taken(None)
            return
        self.dumps.append(Closing(self.applied_index))
        taken(self.dumps[-1])


class Closing(Dump):
    def __init__(self, index: int) -> None:
        super().__init__(entries(3), index)
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def __exit__(self, *_: object) -> None:
        self.close()


class Later:
    """Jobs that are done when somebody says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, Any], None]]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any, Any], None]) -> None:
        self.jobs.append((job, done))

    def run(self) -> None:
        while self.jobs:
            job, done = self.jobs.pop(0)
            try:
                result, error = job(), None
            except Exception as caught:  # noqa: BLE001 - as a thread hands it over
                result, error = None, caught
            done(result, error)


class Bench:
    """One node's snapshotting, with everything else made of paper."""

    def __init__(
        self,
        *,
        partitions: int = 2,
        behind: int = 0,
        spare_bytes: int = 0,
        store: SnapshotStore | None = None,
        **settings: int,
    ) -> None:
        """``store``: with sets that were there before the start; then the logs are not recovered yet."""
        self.recovered, self.wall_ms, self.needed_at = store is None, 1, 0
        self.now, self.global_index, self.proposed = 0.0, 0, list[dict[str, Any]]()
        self.journal = SimpleNamespace(base=SimpleNamespace(index=1))
        self.raft: Any = SimpleNamespace(admits=True, propose_control=self.proposed.append, journal=self.journal)
        self.workers = {PartitionId(p): Worker(10 - behind * (p == 0)) for p in range(partitions)}
        self.logs = {p: worker.log for p, worker in self.workers.items()}
        self.lifecycle = Lifecycle(begun=partitions)
        self.disk = SimDisk(random.Random(0))
        self.store = SnapshotStore(self.disk, Path("/n/snapshots")) if store is None else store
        self.offload = Later()
        self.lineage = ""
        self.slept, self.given_up, self.wanted = list[float](), list[int](), list[float]()
        self.counts = ApplyCounts()
        self.holes = dict[PartitionId, Hole]()
        self.completed, self.kept = list[SetMeta](), list[SetMeta]()
        self.compactions, self.fatal = list[int](), list[BaseException]()

        clock: Any = SimpleNamespace(monotonic=lambda: self.now, wall_ms=lambda: self.wall_ms)

        async def close() -> None: ...

        self.settings = SnapshotSettings(**{**NEVER, **settings})
        self.due = Due(
            settings=self.settings,
            store=self.store,
            counts=self.counts,
            clock=clock,
            logs=self.logs,  # type: ignore[arg-type]
            workers=self.workers,  # type: ignore[arg-type]
            recovered=lambda: self.recovered,
            global_index=lambda: GlobalLogIndex(self.global_index),
            needed_behind=lambda index: index < self.needed_at,
            spare_bytes=spare_bytes,
        )

        cluster = ClusterSettings(id="c", partitions=partitions)
        self.writing = SetWriting(
            settings=self.settings,
            cluster=cluster,
            lineage=lambda: self.lineage,
            store=self.store,
            clock=clock,
            sleep=self.slept.append,
            spare_bytes=spare_bytes,
        )

        self.taking = Snapshotting(
            settings=self.settings,
            cluster=cluster,
            store=self.store,
            writing=self.writing,
            compaction=SimpleNamespace(start=lambda: self.compactions.append(1), close=close),  # type: ignore[arg-type]
            workers=self.workers,  # type: ignore[arg-type]
            raft=self.raft,
            clock=clock,
            offload=self.offload,  # type: ignore[arg-type]
            due=self.due,
            completed=self.completed.append,
            kept=self.kept.append,
            fatal=self.fatal.append,
            hole_of=self.holes.get,
            give_up=lambda: self.given_up.append(1),
            want=lambda: self.wanted.append(self.now),
        )

        if store is None:
            self.due.look_back()

    def found(self, nbytes: int, *, reclaimable: bool = True) -> None:
        """A batch in the log of the first partition, which an earlier process has applied."""
        worker = self.workers[PartitionId(0)]
        worker.applied_index += 1
        worker.reclaimable = reclaimable
        worker.log.batches.append((worker.applied_index, nbytes))
        self.global_index += 1

    def applied(self, nbytes: int, *, reclaimable: bool = True) -> None:
        self.counts.bytes += nbytes
        self.counts.reclaimable += nbytes if reclaimable else 0

    def destroy(self, partition: int) -> None:
        partition_id = PartitionId(partition)
        self.lifecycle = replace(self.lifecycle, destroyed=self.lifecycle.destroyed | {partition_id})
        self.taking.ended(partition_id, self.workers.pop(partition_id))  # type: ignore[arg-type]

    def cut(self, global_index: int, raft_index: int = 5) -> None:
        tails = {p: Tail(PartitionLogIndex(10), bytes(16), GlobalLogIndex(1)) for p in self.workers}
        self.global_index = global_index
        parent = ParentState(GlobalLogIndex(global_index), raft_index, tails, lifecycle=self.lifecycle)
        self.taking.cut(raft_index=raft_index, term=1, parent=parent)

    def create(self) -> list[Any]:
        answers: list[Any] = []
        self.taking.create(answers.append)
        return answers

    def sets(self) -> list[int]:
        return [meta.global_index for meta in self.store.sets()]
