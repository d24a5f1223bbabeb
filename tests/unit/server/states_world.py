"""The states of a node on a memory disk, and its sets."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from chaos.sim.disk import SimDisk
from chaos.sim.state_file import StateFiles
from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import Machine, Position, Space
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, RaftIndex, Term
from partitions.machines.kv import KvMachine
from server.directory.states import States
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore
from tests.unit.snapshots.states_world import Dump, set_meta

P = PartitionId(0)
HERE = Path("/n")
STATE = HERE / "partitions" / "0" / "state"


def position(index: int) -> Position:
    return Position(PartitionLogIndex(index), GlobalLogIndex(index))


class World:
    def __init__(self) -> None:
        self.disk = SimDisk(random.Random(1))
        self.files = StateFiles(random.Random(1))
        self.disk.moved = self.files.moved
        self.sets = SnapshotStore(self.disk, HERE / "snapshots")
        self.broken = 0
        """So many times a state cannot be opened."""
        self.states = States(
            disk=self.disk, sets=self.sets, directory_of=lambda p: HERE / "partitions" / str(p), open_machine=self.open
        )

    def open(self, _: PartitionId, directory: Path) -> Machine:
        if self.broken:
            self.broken -= 1
            raise CorruptData(f"{directory}: broken")
        return KvMachine(self.files.open(directory, ApplySettings()))

    def saved(self, index: int) -> None:
        """A state of before, on the disk."""
        self.disk.make_directory(STATE)
        file = self.files.open(STATE, ApplySettings())
        file.write({b"k": b"b%d" % index}, {}, position(index))
        file.close()

    def set_at(self, index: int, *, raft_index: int = 7, raft_term: int = 2) -> SetMeta:
        writer = self.sets.begin(GlobalLogIndex(index))
        writer.add(P, "kv", Dump([(Space.STATE, b"k", b"b%d" % index)], index))
        cut = {"raft_index": RaftIndex(raft_index), "raft_term": Term(raft_term)}
        meta = msgspec.structs.replace(set_meta(writer.finish()), **cut)
        self.sets.complete(writer, meta)
        return meta

    def spoil(self, index: int) -> None:
        path = HERE / "snapshots" / f"{index:020d}.states"
        self.disk.flip(path, len(self.disk.stable(path)) - 12, 1)

    def aside(self) -> list[str]:
        return [name for name in self.disk.list(STATE.parent) if name.startswith("state.damaged-")]


def log_from(first: int, *, damaged: bool = False) -> Any:
    return SimpleNamespace(first_available_index=first, damage=[object()] * damaged)
