"""Making a node from a snapshot set, at its start. Blocking.

Whoever has fetched a set (``dispatcher.upkeep.installing``) has left an intent. Every step may be the last before a
crash: with the intent still there all of them are taken again; without it, nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import structlog

from logboom.errors import CorruptData
from logboom.state_machine import Entry, Machine, Position
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.log.opening import LogBase, begin_places
from ports.disk import Disk
from ports.scrub import read_twice
from raftlog.entries.parent_state import ParentState
from raftlog.journal.journal import Journal
from raftlog.journal.journal_base import Base
from server.directory.manifest import sealed, unsealed
from snapshots.meta import PartitionMeta, SetMeta
from snapshots.states import read_section
from snapshots.store import SnapshotStore

log = structlog.get_logger(__name__)

INTENT: Final = "install.json"


class Intent:
    """The file that says which set this node is being made from."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / INTENT

    def write(self, global_index: GlobalLogIndex) -> None:
        """From now on the next start makes the node from this set."""
        self._disk.replace_file(self._path, sealed({"global_index": global_index}))

    def read(self) -> GlobalLogIndex | None:
        """The set that was intended; None: nothing is to be installed. Raises CorruptData."""
        if not self._disk.exists(self._path):
            return None
        raw, path = self._disk.read_file(self._path), str(self._path)
        global_index = unsealed(raw, path=path, only={"global_index"}).get("global_index")
        if type(global_index) is not int:
            raise CorruptData(f"{self._path} does not say which set", path=str(self._path))
        return GlobalLogIndex(global_index)

    def done(self) -> None:
        """The node is what the set says."""
        if self._disk.exists(self._path):
            self._disk.remove(self._path)
            self._disk.sync_directory(self._path.parent)


def install_logs(meta: SetMeta, *, disk: Disk, journal: Journal, directory_of: Callable[[int], Path]) -> None:
    """First half, before partition logs are opened: they and the journal begin at the cut."""
    parent = ParentState.decode(meta.parent)
    log.info("installing", global_index=meta.global_index, raft_index=meta.raft_index)
    for partition_id, tail in parent.tails.items():
        directory = directory_of(partition_id)
        disk.make_directory(directory)
        begin_places(disk, directory, partition_id, LogBase(tail.last_index, tail.digest, tail.global_index))
    journal.install(Base(meta.raft_index, meta.raft_term, meta.parent))


def restore_state(
    store: SnapshotStore,
    meta: SetMeta,
    partition_id: PartitionId,
    machine: Machine,
    *,
    moved: Callable[[], None],
) -> None:
    """Fill a machine that lags behind the set, or is empty. Raises CorruptData, ValueError where it took nothing.

    ``moved`` is called for each entry.
    """
    section = section_of(meta, partition_id)
    position = Position(PartitionLogIndex(section.applied_index), GlobalLogIndex(section.applied_global_index))
    if machine.position() == position:
        return
    file = read_twice(lambda: store.open_states(meta.global_index))
    try:
        machine.load(_told(read_section(file, section, patient=True), moved), position)
    finally:
        file.close()
    if machine.position() != position:  # a user's: what is applied to it next would be what it has, or lacks, already
        raise ValueError(f"the state machine is at {machine.position()} after load: it was given a dump of {position}")
    log.info("state_restored", partition=partition_id, global_index=meta.global_index, applied=position.applied_index)


def check_section(store: SnapshotStore, meta: SetMeta, section: PartitionMeta) -> None:
    """Read a state as a machine would that loads it. Raises as ``open_states``, and CorruptData."""
    file = read_twice(lambda: store.open_states(meta.global_index))
    try:
        for _ in read_section(file, section, patient=True):
            pass
    finally:
        file.close()


def _told(entries: Iterator[Entry], moved: Callable[[], None]) -> Iterator[Entry]:
    for entry in entries:
        moved()
        yield entry


def section_of(meta: SetMeta, partition_id: PartitionId) -> PartitionMeta:
    """Where a partition's state is. Raises CorruptData if the set does not have it."""
    found = find_section(meta, partition_id)
    if found is None:
        raise CorruptData(f"the snapshot at {meta.global_index} does not have partition {partition_id}")
    return found


def find_section(meta: SetMeta, partition_id: PartitionId) -> PartitionMeta | None:
    """Where a partition's state is; None: not in this set."""
    return next((each for each in meta.partitions if each.partition_id == partition_id), None)
