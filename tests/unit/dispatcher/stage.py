"""Partitions that are destroyed while somebody uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from dispatcher.pipeline.partitioning import Partitioning
from dispatcher.pipeline.recovered import Recovered
from logboom.settings import ClusterSettings
from logboom.types import DurabilityMode, NodeId, PartitionId
from raftlog.entries.lifecycle import PartitionKind
from raftlog.entries.parent_state import ParentState

KV = PartitionKind("kv", DurabilityMode.WRITE_AHEAD)


class Stage:
    """The leader's part, over a parent log that commits when the test says so."""

    def __init__(self, partitions: int = 2) -> None:
        self.proposed: list[dict[str, Any]] = []
        self.raft = SimpleNamespace(admits=True, propose_control=self.proposed.append)
        self.jobs: list[Any] = []
        self.now = 0.0
        self.clock = SimpleNamespace(monotonic=lambda: self.now)
        self.parent = ParentState()
        self.cluster = ClusterSettings(partitions=partitions)
        self.workers: dict[PartitionId, Any] = dict.fromkeys(map(PartitionId, range(partitions)))
        self.offload = SimpleNamespace(submit=lambda job, done: self.jobs.append(lambda: done(job(), None)))
        opened = SimpleNamespace(machine=None, lacks=None)
        self.trial: Any = None
        self.files: Callable[[int], str | None] = lambda _: None
        """Why so many more cannot be opened."""
        self.file_left = True
        self.members = SimpleNamespace(ids=(NodeId("n2"),))
        self.rooms = SimpleNamespace(
            logs={},
            machines={},
            ending={},
            destroyed=set(),
            check=lambda _: None,
            check_room=lambda _: None,
            room=lambda: None,
            waits_for_files=lambda more: self.files(more),  # noqa: PLW0108 - tests set another
            file_left=lambda: self.file_left,
            trial=lambda _: self.trial,
            offload=lambda _: self.offload,
            untouched=lambda _: True,
            open_log=lambda *_: None,
            open=lambda *_: opened,
        )
        self.partitioning = Partitioning(cast(Any, self), cast(Any, self.rooms))
        self.told: list[Any] = []
        self.barred: list[PartitionId] = []
        self.submitting = SimpleNamespace(proposed_end=self.barred.append)
        self.recovery = Recovered([PartitionId(0)])
        self.rebuilding: Any = None

    def log_opened(self, partition_id: PartitionId) -> None:
        pass

    def opened(self, partition_id: PartitionId) -> None:
        self.workers[partition_id] = None

    def look_again(self, partition_id: PartitionId) -> None: ...

    def forgotten(self, partition_id: PartitionId) -> None: ...

    def create(self, token: int) -> None:
        self.partitioning.create(KV, token.to_bytes(16, "big"), self.told.append)

    def commit(self, *, count: int = 1) -> None:
        for _ in range(count):
            self.partitioning.handed_up(self.proposed.pop(0))

    def work(self) -> Sequence[Any]:
        while self.jobs:
            self.jobs.pop(0)()
        return self.told
