"""The parent state machine: nothing but routing.

It gives every committed routing entry its ``global_log_index`` (dense, in commit order, hence
equal on every node) and knows where each partition's log ends. Rebuilt from the base of the
journal, if it has one, and what follows there.

As bytes (little-endian): version u8, ``global_index`` u64, ``raft_index`` u64, partitions u32, then for each, by
rising id: id u32, last index u64, digest 16, global index u64; then the partitions' lifecycle (``raftlog.lifecycle``).
Equal states are equal bytes. Version 1, without the lifecycle, is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from logboom.errors import CorruptData, IncompatibleVersion
from logboom.types import NO_DIGEST, GlobalLogIndex, PartitionId, PartitionLogIndex
from ports.invariant import invariant
from raftlog.entry import Route
from raftlog.lifecycle import Change, Lifecycle

VERSION: Final = 2
BEFORE_LIFECYCLES: Final = 1
HEADER: Final = struct.Struct("<BQQI")
INDEX_MAX: Final = 1 << 62
ROW: Final = struct.Struct("<IQ16sQ")


class Tail(NamedTuple):
    """Where a partition's log ends: its next batch starts one further and chains to ``digest``."""

    last_index: PartitionLogIndex
    digest: bytes
    global_index: GlobalLogIndex = GlobalLogIndex(0)
    """Of its last batch; 0 while that is not committed."""


EMPTY = Tail(PartitionLogIndex(0), NO_DIGEST)


@dataclass
class ParentState:
    """Applied routing entries of one node."""

    global_index: GlobalLogIndex = GlobalLogIndex(0)
    """``global_commit_index``: the highest one assigned."""
    raft_index: int = 1
    tails: dict[PartitionId, Tail] = field(default_factory=dict)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)

    def apply(self, raft_index: int, routes: Sequence[Route]) -> GlobalLogIndex:
        """Take one committed Raft entry; returns the global index of its first route."""
        invariant(raft_index > self.raft_index, "Raft entry {} applied after {}", raft_index, self.raft_index)
        first = GlobalLogIndex(self.global_index + 1)
        for global_index, route in enumerate(routes, first):
            tail = self.tails.get(route.partition_id, EMPTY)
            invariant(
                route.last_index > tail.last_index,
                "partition {}: route to {} after {}",
                route.partition_id,
                route.last_index,
                tail.last_index,
            )
            self.tails[route.partition_id] = Tail(route.last_index, route.digest, GlobalLogIndex(global_index))
        self.global_index = GlobalLogIndex(self.global_index + len(routes))
        self.raft_index = raft_index
        return first

    def control(self, raft_index: int) -> None:
        """Take one committed Raft entry that routes nothing."""
        invariant(raft_index > self.raft_index, "Raft entry {} applied after {}", raft_index, self.raft_index)
        self.raft_index = raft_index

    def change(self, change: Change) -> str:
        """A partition is created or destroyed, unless that cannot be: then says why, and nothing has changed."""
        refused = self.lifecycle.refuses(change)
        if not refused:
            self.lifecycle = self.lifecycle.after(change)
            if change.kind is None:
                self.tails.pop(change.partition_id, None)
        return refused

    def copy(self) -> ParentState:
        """As it is now; it shares nothing that changes."""
        return ParentState(self.global_index, self.raft_index, dict(self.tails), lifecycle=self.lifecycle)

    def encode(self) -> bytes:
        """See the module."""
        rows = [ROW.pack(partition, *tail) for partition, tail in sorted(self.tails.items())]
        head = HEADER.pack(VERSION, self.global_index, self.raft_index, len(rows))
        return b"".join((head, *rows, self.lifecycle.encode()))

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> ParentState:
        """What ``encode`` made; no bytes at all are a state nothing was applied to. Raises CorruptData."""
        if not raw:
            return cls()
        if raw[0] not in (VERSION, BEFORE_LIFECYCLES):
            raise IncompatibleVersion(f"parent state format {raw[0]}", found=raw[0], supported=VERSION)
        if len(raw) < HEADER.size:
            raise CorruptData(f"a parent state of {len(raw)} bytes")
        _, global_index, raft_index, count = HEADER.unpack_from(raw)
        end = HEADER.size + count * ROW.size
        if len(raw) < end:
            raise CorruptData(f"a parent state of {count} partitions in {len(raw)} bytes")
        state = cls(GlobalLogIndex(global_index), raft_index)
        last = -1
        for partition, index, digest, assigned in ROW.iter_unpack(memoryview(raw)[HEADER.size : end]):
            if partition <= last or not 0 < index < INDEX_MAX or not 0 < assigned <= global_index:
                raise CorruptData(f"a parent state in which partition {partition}, after {last}, ends at {index}")
            state.tails[partition] = Tail(index, digest, GlobalLogIndex(assigned))
            last = partition
        if not (0 < raft_index < INDEX_MAX and count <= global_index < INDEX_MAX):
            raise CorruptData(f"a parent state of {count} partitions at {global_index}, Raft {raft_index}")
        if raw[0] != BEFORE_LIFECYCLES:
            state.lifecycle, size = Lifecycle.decode(bytes(raw[end:]))
            end += size
        if end != len(raw):
            raise CorruptData(f"a parent state with {len(raw) - end} bytes too many")
        if any(state.lifecycle.is_gone(partition) for partition in state.tails):
            raise CorruptData("a parent state with the log of a partition that is destroyed")
        return state

    def tails_after(self, uncommitted: Iterable[Route]) -> dict[PartitionId, Tail]:
        """Where a new leader goes on: committed or not, what its own journal holds counts."""
        tails = dict(self.tails)
        for route in uncommitted:
            tails[route.partition_id] = Tail(route.last_index, route.digest)
        return tails
