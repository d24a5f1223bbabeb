"""Which workloads are cut short, and how many states of each a test has to see."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from partitions.log import open_segment
from tests.storage.compacting_world import CompactingWorld
from tests.storage.journal_world import JournalWorld
from tests.storage.node_world import NodeWorld
from tests.storage.partition_world import PartitionWorld, WriteBehindWorld
from tests.storage.rejoin_world import RejoinWorld
from tests.storage.small_worlds import MachineWorld, ManifestWorld
from tests.storage.snapshot_world import SnapshotWorld
from tests.storage.world import Explored, Make, explore, kill_everywhere


@dataclass(frozen=True)
class Plan:
    """One workload. ``least``: distinct states over ``seeds`` seeds, or the test proves too little."""

    make: Make
    steps: int
    seeds: int
    least: int
    later: int = 6
    """Steps after a kill."""
    kill_every: int = 1
    """In CI not before every operation, where there are many."""

    def power_losses(self, seed: int) -> Explored:
        return explore(self.make, seed, steps=self.steps)

    def kills(self, seed: int, *, every: int) -> Explored:
        return kill_everywhere(self.make, seed, steps=self.steps, later=self.later, every=every)


PLANS = {
    "partition log": Plan(PartitionWorld, steps=60, seeds=3, least=550, kill_every=2),
    "partition log, write-behind": Plan(WriteBehindWorld, steps=60, seeds=3, least=750, kill_every=2),
    "partition log, compacted": Plan(CompactingWorld, steps=60, seeds=3, least=600, kill_every=3),
    "journal": Plan(JournalWorld, steps=40, seeds=4, least=800, kill_every=5),
    "node": Plan(NodeWorld, steps=50, seeds=2, least=3000, kill_every=9),
    "manifest": Plan(ManifestWorld, steps=12, seeds=2, least=9, later=2),
    "checkpoint": Plan(MachineWorld, steps=12, seeds=2, least=180, later=3),
    "rejoin": Plan(RejoinWorld, steps=25, seeds=3, least=60, later=4, kill_every=2),
    "snapshots": Plan(SnapshotWorld, steps=12, seeds=2, least=100, later=3, kill_every=2),
}


@contextmanager
def small_and_quiet() -> Iterator[None]:
    """Space in a partition's file is reserved in small steps, so that more of them are seen; no log lines."""
    before, open_segment.ALLOCATION_BYTES_MIN = open_segment.ALLOCATION_BYTES_MIN, 1024
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        open_segment.ALLOCATION_BYTES_MIN = before
        structlog.reset_defaults()
