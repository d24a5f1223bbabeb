"""The parent state machine: nothing but routing.

It gives every committed routing entry its ``global_log_index`` (dense, in commit order, hence
equal on every node) and knows where each partition's log ends. Rebuilt by replaying the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from logboom.types import NO_DIGEST, GlobalLogIndex, PartitionId, PartitionLogIndex
from ports.invariant import invariant
from raftlog.entry import Route


class Tail(NamedTuple):
    """Where a partition's log ends: its next batch starts one further and chains to ``digest``."""

    last_index: PartitionLogIndex
    digest: bytes


EMPTY = Tail(PartitionLogIndex(0), NO_DIGEST)


@dataclass
class ParentState:
    """Applied routing entries of one node."""

    global_index: GlobalLogIndex = GlobalLogIndex(0)
    """``global_commit_index``: the highest one assigned."""
    raft_index: int = 1
    tails: dict[PartitionId, Tail] = field(default_factory=dict)

    def apply(self, raft_index: int, routes: Sequence[Route]) -> GlobalLogIndex:
        """Take one committed Raft entry; returns the global index of its first route."""
        invariant(raft_index > self.raft_index, "Raft entry {} applied after {}", raft_index, self.raft_index)
        first = GlobalLogIndex(self.global_index + 1)
        for route in routes:
            tail = self.tails.get(route.partition_id, EMPTY)
            invariant(
                route.last_index > tail.last_index,
                "partition {}: route to {} after {}",
                route.partition_id,
                route.last_index,
                tail.last_index,
            )
            self.tails[route.partition_id] = Tail(route.last_index, route.digest)
        self.global_index = GlobalLogIndex(self.global_index + len(routes))
        self.raft_index = raft_index
        return first

    def tails_after(self, uncommitted: Iterable[Route]) -> dict[PartitionId, Tail]:
        """Where a new leader goes on: committed or not, what its own journal holds counts."""
        tails = dict(self.tails)
        for route in uncommitted:
            tails[route.partition_id] = Tail(route.last_index, route.digest)
        return tails
