"""Making a node out of a backup: on a simulated disk."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import ConfigError, CorruptData, WrongNode
from logboom.settings import ClusterSettings, Member, NodeSettings, Settings
from logboom.types import GlobalLogIndex, PartitionId, RaftIndex
from raftlog.entries.parent_state import ParentState
from server.offline.backup_dir import BackupDir
from server.offline.restore import restore
from server.offline.world import OfflineWorld
from snapshots.store import SnapshotStore
from tests.unit.snapshots.states_world import Dump, entries, set_meta

KEPT = Path("/kept")
SETTINGS = Settings(
    cluster=ClusterSettings(
        id="c", members=(Member(id="n1", peer_address="n1:1", client_address="n1:2"),), partitions=2
    ),
    node=NodeSettings(id="n1", data_dir="/n1"),
)


def kept(target: BackupDir, number: int) -> None:
    """A complete set of two partitions."""
    writer = target.store.begin(GlobalLogIndex(number))
    for partition in (0, 1):
        writer.add(PartitionId(partition), "kv", Dump(entries(number), 1))
    parent = ParentState(GlobalLogIndex(number), RaftIndex(7), {}).encode()
    meta = msgspec.structs.replace(set_meta(writer.finish()), parent=parent)
    target.store.complete(writer, meta)
    target.complete(meta)


def shelf() -> SimDisk:
    """With two sets."""
    disk = SimDisk(random.Random(1))
    disk.make_directory(KEPT)
    target = BackupDir(disk, KEPT)
    target.claim("c")
    for number in (10, 20):
        kept(target, number)
    return disk


def world_of(disk: SimDisk) -> OfflineWorld:
    return OfflineWorld(disk, lambda: 0.0, lambda _: None, random.Random(1).randbytes)


def test_several_are_restored_at_once_and_none_while_it_is_written_to() -> None:
    disk = shelf()
    writes = disk.lock(KEPT / "lock")
    with pytest.raises(ConfigError, match="in use"):
        restore(KEPT, SETTINGS, world=world_of(disk))
    writes.release()
    disk.lock(KEPT / "lock", shared=True)
    assert restore(KEPT, SETTINGS, world=world_of(disk)).global_index == 20


def test_a_node_whose_journal_is_on_a_file_system_of_its_own_is_restored() -> None:
    disk = shelf()
    disk.make_directory(Path("/n1/journal"))
    assert restore(KEPT, SETTINGS, world=world_of(disk)).global_index == 20
    with pytest.raises(WrongNode, match="not empty"):
        restore(KEPT, SETTINGS, world=world_of(disk))


def test_a_set_is_restored_beside_one_whose_format_has_rotted() -> None:
    """Found by review: it called for another release, and no set of the backup was restored."""
    disk = shelf()
    world = world_of(disk)
    disk.flip(KEPT / f"{10:020d}.set", 6, 2)
    with pytest.raises(CorruptData, match="snapshot set of format 3, it was 1"):
        restore(KEPT, SETTINGS, global_index=10, world=world)
    assert restore(KEPT, SETTINGS, world=world).global_index == 20
    assert [meta.global_index for meta in SnapshotStore(disk, Path("/n1/snapshots")).sets()] == [20]
