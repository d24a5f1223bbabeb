"""A node where a partition that is created is not open before the test says so."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from chaos.sim.disk import SimDisk
from dispatcher.pipeline.payloads import PartitionPayloads
from dispatcher.pipeline.voiding import Voiding
from logboom.types import NO_DIGEST, NodeId, PartitionId
from partitions.log.batch import Batch
from raftlog.entries.entry import Route
from raftlog.entries.lifecycle import Change
from tests.unit.dispatcher.stage import KV, Stage
from tests.unit.partitions.batches import P, make
from tests.unit.partitions.compaction_world import open_log

ME, OTHER, THIRD = map(NodeId, ("n1", "n2", "n3"))


class Slow(Stage):
    """A node where a machine's own threads do nothing before the test says so."""

    def __init__(self) -> None:
        super().__init__(partitions=P)
        self.threads: list[Callable[[], None]] = []
        machines = SimpleNamespace(submit=lambda job, done: self.threads.append(lambda: done(job(), None)))
        self.rooms.offload = lambda _: machines
        self.rooms.open_log = lambda *_: open_log(SimDisk(random.Random(1)))
        self.rooms.untouched = lambda _: not self.left
        self.left = False
        """By an earlier process."""
        self.ends: list[PartitionId] = []
        self.failures: list[BaseException] = []
        self.logs, self.state = self.rooms.logs, 0
        self.raft.mending = SimpleNamespace(hole_committed=lambda _: None)
        self.rebuilding = SimpleNamespace(is_remaking=lambda _: False)
        self.voiding = Voiding(cast(Any, self))
        self.raft.fatal = self.failures.append
        self.payloads = PartitionPayloads(self.rooms.logs, lambda _: None, gone=self.partitioning.is_gone)
        self.batch = make(1, NO_DIGEST, [b"x"])

    @property
    def route(self) -> Route:
        header = self.batch.header
        return Route(P, header.term, self.batch.last_index, self.batch.digest)

    def created(self) -> None:
        self.partitioning.handed_up(Change(P, P, KV, bytes(16)).fields())
        while self.jobs:
            self.jobs.pop(0)()

    def destroyed(self) -> None:
        self.partitioning.handed_up(Change(P, P).fields())

    def opens(self) -> None:
        self.threads.pop(0)()

    def ended(self, partition_id: PartitionId) -> None:
        self.ends.append(partition_id)

    def opened(self, partition_id: PartitionId) -> None:
        self.workers[partition_id] = SimpleNamespace(applied_index=self.state, secured=lambda _: True)

    def look_again(self, partition_id: PartitionId) -> None:
        self.voiding.look_again(partition_id)


def commit(node: Slow, batch: Batch, *, at: int = 1) -> None:
    store = node.rooms.logs[P]
    store.commit(last_index=batch.last_index, digest=batch.digest, global_index=at, term=batch.header.term)
