"""The parent state machine: nothing but routing.

It gives every committed routing entry its ``global_log_index`` (dense, in commit order, hence
equal on every node) and knows where each partition's log ends. Rebuilt from the base of the
journal, if it has one, and what follows there.

As bytes (little-endian): version u8, ``global_index`` u64, ``raft_index`` u64, partitions u32, then for each, by
rising id: id u32, last index u64, digest 16, global index u64; then the partitions' lifecycle (``.lifecycle``);
then what was declared void (``.voids``); then what is agreed (``.agreed``); then what was set of partitions
(``.chosen``); then, once the log has said who the members are: term u64, Raft index u64, and that control entry. Equal
states are equal bytes. While nothing is set, version 4 is written, which does not say so; while nothing is agreed,
version 3; while nothing is void either, version 2. Version 1, without the lifecycle, is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from logboom.errors import CorruptData, IncompatibleVersion
from logboom.types import NO_DIGEST, NUMBER_MAX, PARTITION_SETTINGS, GlobalLogIndex, PartitionId, PartitionLogIndex
from ports.invariant import invariant
from raftlog.entries.agreed import AGREE, Agreed, agreed_in, decode_agreed, encode_agreed
from raftlog.entries.chosen import NOTHING, AllChosen, Choice, decode_chosen, encode_chosen
from raftlog.entries.configuration import MEMBERS, Configuration
from raftlog.entries.entry import Route, pack_control, unpack_control
from raftlog.entries.lifecycle import Change, Lifecycle
from raftlog.entries.voids import Void, Voids

VERSION: Final = 5
BEFORE_CHOSEN: Final = 4
BEFORE_AGREED: Final = 3
BEFORE_VOIDS: Final = 2
BEFORE_LIFECYCLES: Final = 1
HEADER: Final = struct.Struct("<BQQI")
ROW: Final = struct.Struct("<IQ16sQ")
MEMBERS_AT: Final = struct.Struct("<QQ")


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
    members: Configuration | None = None
    """As the log has said last; None while it has said nothing."""
    voids: Voids = field(default_factory=Voids)
    agreed: Agreed = frozenset()
    """Features that every node knows, and may be used."""
    chosen: AllChosen = field(default_factory=dict)
    """How writes are answered, of partitions of which the log has said it. Not changed in place."""

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

    def control(self, raft_index: int, term: int = 0, fields: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Take one committed Raft entry that routes nothing. Raises CorruptData, IncompatibleVersion."""
        invariant(raft_index > self.raft_index, "Raft entry {} applied after {}", raft_index, self.raft_index)
        if fields.get("do") == MEMBERS:
            self.members = Configuration.parse(fields, term=term, index=raft_index)
        elif fields.get("do") == AGREE:
            self.agreed |= agreed_in(fields)
        self.raft_index = raft_index

    def change(self, change: Change) -> str:
        """A partition is created or destroyed, unless that cannot be: then says why, and nothing has changed."""
        refused = self._too_early() if change.chosen != NOTHING else ""
        refused = refused or self.lifecycle.refuses(change)
        if refused:
            return refused
        self.lifecycle, partition = self.lifecycle.after(change), change.partition_id
        if change.kind is None:
            self.tails.pop(partition, None)
            self.chosen = {p: each for p, each in self.chosen.items() if p != partition}
        elif change.chosen != NOTHING:
            self.chosen = {**self.chosen, partition: change.chosen}
        return ""

    def choose(self, choice: Choice) -> str:
        """A living partition is set, unless that cannot be: then says why, and nothing has changed."""
        partition, lifecycle = choice.partition_id, self.lifecycle
        if choice.begun != lifecycle.begins_with(choice.begun):
            return f"the cluster began with {lifecycle.begun} partitions, not {choice.begun}"
        if not lifecycle.lives(partition, choice.begun):
            return f"partition {partition} does not exist"
        early = self._too_early()
        if not early:
            self.lifecycle = lifecycle.fixed(choice.begun)
            self.chosen = {**self.chosen, partition: self.chosen.get(partition, NOTHING).then(choice.chosen)}
        return early

    def _too_early(self) -> str:
        return "" if PARTITION_SETTINGS in self.agreed else f"{PARTITION_SETTINGS} is not agreed on"

    def needed_behind(self, index: GlobalLogIndex, partitions: int) -> bool:
        """See Voids; ``partitions``: of the settings."""
        return self.voids.needed_behind(index, lambda partition_id: self.lifecycle.lives(partition_id, partitions))

    def void(self, void: Void) -> str:
        """A batch is declared void, unless that cannot be: then says why, and nothing has changed."""
        tail = self.tails.get(void.partition_id)
        if tail is None:
            return f"partition {void.partition_id} has no batches"
        if not (void.last_index <= tail.last_index and void.global_index <= tail.global_index):
            return f"partition {void.partition_id} ends at {tail.last_index}"
        self.voids = self.voids.after(void)
        return ""

    def copy(self) -> ParentState:
        """As it is now; it shares nothing that changes."""
        return replace(self, tails=dict(self.tails))

    def encode(self) -> bytes:
        """See the module."""
        rows = [ROW.pack(partition, *tail) for partition, tail in sorted(self.tails.items())]
        # A release that knows of none of these reads it.
        before = BEFORE_CHOSEN if self.agreed else BEFORE_AGREED if self.voids.count else BEFORE_VOIDS
        version = VERSION if self.chosen else before
        head = HEADER.pack(version, self.global_index, self.raft_index, len(rows))
        rows.append(self.lifecycle.encode())
        if version >= BEFORE_AGREED:
            rows.append(self.voids.encode())
        if version >= BEFORE_CHOSEN:
            rows.append(encode_agreed(self.agreed))
        if version == VERSION:
            rows.append(encode_chosen(self.chosen))
        if self.members is not None:
            said = pack_control(self.members.fields())
            rows += [MEMBERS_AT.pack(self.members.term, self.members.index), said]
        return b"".join((head, *rows))

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> ParentState:
        """What ``encode`` made; no bytes at all are a state nothing was applied to. Raises CorruptData."""
        if not raw:
            return cls()
        if not BEFORE_LIFECYCLES <= raw[0] <= VERSION:
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
            if partition <= last or not 0 < index < NUMBER_MAX or not 0 < assigned <= global_index:
                raise CorruptData(f"a parent state in which partition {partition}, after {last}, ends at {index}")
            state.tails[partition] = Tail(index, digest, GlobalLogIndex(assigned))
            last = partition
        if not (0 < raft_index < NUMBER_MAX and count <= global_index < NUMBER_MAX):
            raise CorruptData(f"a parent state of {count} partitions at {global_index}, Raft {raft_index}")
        if raw[0] != BEFORE_LIFECYCLES:
            state.lifecycle, size = Lifecycle.decode(bytes(raw[end:]))
            end += size
        if raw[0] >= BEFORE_AGREED:
            state.voids, size = Voids.decode(bytes(raw[end:]))
            end += size
            none = not state.voids.count and raw[0] == BEFORE_AGREED
            if none or any(not 0 < void.raft_index <= raft_index for void in state.voids.kept):
                raise CorruptData(f"a parent state at Raft {raft_index} with voids that cannot be")
        if raw[0] >= BEFORE_CHOSEN:
            state.agreed, size = decode_agreed(bytes(raw[end:]))
            end += size
        if raw[0] == VERSION:
            state.chosen, size = decode_chosen(bytes(raw[end:]))
            end += size
            begun = state.lifecycle.begun
            if PARTITION_SETTINGS not in state.agreed or not all(state.lifecycle.lives(p, begun) for p in state.chosen):
                raise CorruptData("a parent state with settings of partitions that cannot be")
        if any(state.lifecycle.is_gone(partition) for partition in state.tails):
            raise CorruptData("a parent state with the log of a partition that is destroyed")
        if len(raw) > end:
            state.members = _members(bytes(raw[end:]), raft_index)
        return state

    def tails_after(self, uncommitted: Iterable[Route]) -> dict[PartitionId, Tail]:
        """Where a new leader goes on: committed or not, what its own journal holds counts."""
        tails = dict(self.tails)
        for route in uncommitted:
            tails[route.partition_id] = Tail(route.last_index, route.digest)
        return tails


def _members(raw: bytes, raft_index: int) -> Configuration:
    fields = unpack_control(raw[MEMBERS_AT.size :])
    if fields is None:
        raise CorruptData(f"a parent state with {len(raw)} bytes too many")
    term, index = MEMBERS_AT.unpack_from(raw)
    if not 1 < index <= raft_index or term >= NUMBER_MAX:
        raise CorruptData(f"a parent state at Raft {raft_index} with members of {index}")
    return Configuration.parse(fields, term=term, index=index)
