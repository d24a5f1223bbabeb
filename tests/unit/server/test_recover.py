"""What a node that is left is told when it cannot begin again: on a simulated disk."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import msgspec
import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, IncompatibleVersion, InvalidRequest
from logboom.settings import ClusterSettings, Member, NodeSettings, Settings
from logboom.types import GlobalLogIndex, NodeId, RaftIndex, Term
from raftlog.entries.configuration import Configuration, Role
from raftlog.entries.entry import pack_control
from raftlog.journal.journal import Journal
from server.directory.data_dir import MANIFEST
from server.directory.directories import DIRECTORIES
from server.directory.manifest import Manifest, encode
from server.directory.refill import REFILL
from server.directory.refill import encode as encode_refill
from server.offline.recover import recover
from server.offline.world import OfflineWorld
from snapshots.store import SnapshotStore
from tests.unit.snapshots.states_world import dumps, set_meta

MEMBERS = tuple(Member(id=f"n{k}", peer_address=f"n{k}:1", client_address=f"n{k}:2") for k in (1, 2, 3))
BEGINS = Configuration.of_settings(MEMBERS)
SETTINGS = Settings(
    cluster=ClusterSettings(id="c", members=MEMBERS, partitions=1), node=NodeSettings(id="n1", data_dir="/n1")
)


def left(entries: Sequence[Configuration]) -> OfflineWorld:
    """A world with n1's directory in it; these are in its journal."""
    disk, rng = SimDisk(random.Random(1)), random.Random(1)
    disk.make_directory(Path("/n1"))
    disk.replace_file(Path("/n1", MANIFEST), encode(Manifest.of(NodeId("n1"), SETTINGS.cluster)))
    journal = Journal.open(disk=disk, directory=Path("/n1/journal"), cluster_id="c", random_bytes=rng.randbytes)
    for index, said in enumerate(entries, 2):
        journal.add(pack_control(said.fields()), index, 1)
    journal.flush()
    journal.close()
    return OfflineWorld(disk, lambda: 0.0, lambda _: None, rng.randbytes)


def test_a_node_that_has_nothing() -> None:
    with pytest.raises(InvalidRequest, match="it has never had anything of its cluster"):
        recover(SETTINGS, act=True, world=left([]))


def test_a_node_that_was_removed_is_told_so() -> None:
    """Found by review: it was told that it has never had anything of its cluster."""
    removed = BEGINS.removing(NodeId("n1"))
    with pytest.raises(InvalidRequest, match="it was removed from its cluster"):
        recover(SETTINGS, act=True, world=left([BEGINS, removed]))


def test_looking_changes_nothing_and_doing_it_is_not_done_twice() -> None:
    world = left([BEGINS])
    disk = world.disk
    assert isinstance(disk, SimDisk)
    looked = recover(SETTINGS, act=False, world=world)
    before = disk.image()
    assert recover(SETTINGS, act=False, world=world) == looked
    assert (disk.image().files, looked.done) == (before.files, False)
    done = recover(SETTINGS, act=True, world=world)
    assert (done.voters, done.gone, done.done) == (("n1",), ("n2", "n3"), True)
    disk.power_loss()
    with pytest.raises(InvalidRequest, match="only voter"):
        recover(SETTINGS, act=True, world=world)


def test_where_the_journal_is_gone_none_is_begun() -> None:
    """Found by review: one was, empty and in order, and the next start took it for all that the node had promised."""
    world = left([BEGINS])
    world.disk.replace_file(Path("/n1", DIRECTORIES), b"of a directory that was in use")
    world.disk.remove_directory(Path("/n1/journal"))
    for act in (False, True):
        with pytest.raises(CorruptData, match="the journal is missing"):
            recover(SETTINGS, act=act, world=world)
        assert not world.disk.exists(Path("/n1/journal"))


def kept(world: OfflineWorld, number: int, *, raft_index: int, raft_term: int) -> None:
    """A set in n1's directory."""
    sets = SnapshotStore(world.disk, Path("/n1/snapshots"))
    writer = sets.begin(GlobalLogIndex(number))
    for partition_id, dump in dumps(number).items():
        writer.add(partition_id, "kv", dump)
    at = {"raft_index": RaftIndex(raft_index), "raft_term": Term(raft_term)}
    sets.complete(writer, msgspec.structs.replace(set_meta(writer.finish()), **at))


def test_a_set_that_the_journal_does_not_lead_to_goes() -> None:
    """Found by review: fetched from others that are lost, it became one of the new history, beyond its journal."""
    world = left([BEGINS, BEGINS.giving(NodeId("n2"), Role.LEARNER)])
    kept(world, 10, raft_index=1, raft_term=0)
    kept(world, 20, raft_index=2, raft_term=1)
    kept(world, 30, raft_index=3, raft_term=7)
    kept(world, 40, raft_index=50, raft_term=1)
    directory = Path("/n1/snapshots")
    SnapshotStore(world.disk, directory).fetch(GlobalLogIndex(60))[0].close()
    before = sorted(world.disk.list(directory))
    assert recover(SETTINGS, act=False, world=world).sets_ahead == (30, 40)
    assert sorted(world.disk.list(directory)) == before
    done = recover(SETTINGS, act=True, world=world)
    assert done.sets_ahead == (30, 40)
    assert isinstance(world.disk, SimDisk)
    world.disk.power_loss()
    sets = SnapshotStore(world.disk, directory).sets()
    assert [(meta.global_index, meta.lineage) for meta in sets] == [(10, done.lineage), (20, done.lineage)]
    assert not [name for name in world.disk.list(directory) if name.endswith(".fetch")]


def renumbered(world: OfflineWorld, number: int, *, resealed: bool) -> None:
    """A set of another format; not ``resealed``: by rot alone."""
    path = Path("/n1/snapshots", f"{number:020d}.set")
    raw = bytearray(world.disk.read_file(path))
    raw[6] = 3
    if resealed:
        raw[-4:] = struct.pack("<I", google_crc32c.value(bytes(raw[:-4])))
    world.disk.replace_file(path, bytes(raw))


def test_a_set_whose_format_has_rotted_is_in_nobody_s_way() -> None:
    """Found by review: by then the manifest said a history that was nobody's, and it ended there each time."""
    world = left([BEGINS])
    for number in (10, 20):
        kept(world, number, raft_index=2, raft_term=1)
    renumbered(world, 10, resealed=False)
    lineage = recover(SETTINGS, act=True, world=world).lineage
    sets = SnapshotStore(world.disk, Path("/n1/snapshots"))
    assert [(meta.global_index, meta.lineage) for meta in sets.sets()] == [(20, lineage)]
    assert [damaged.global_index for damaged in sets.damaged] == [10]


def test_a_set_of_another_release_is_found_before_anything_is_changed() -> None:
    world = left([BEGINS])
    kept(world, 10, raft_index=2, raft_term=1)
    renumbered(world, 10, resealed=True)
    assert isinstance(world.disk, SimDisk)
    world.disk.lock(Path("/n1/lock")).release()
    before = world.disk.image().files
    for act in (False, True):
        with pytest.raises(IncompatibleVersion):
            recover(SETTINGS, act=act, world=world)
        assert world.disk.image().files == before


@pytest.mark.parametrize(
    ("mark", "begins"),
    [((1, 2, ""), True), ((1, 3, ""), False), ((2, 1, ""), False), ((2, 9, "ab" * 16), True)],
)
def test_a_node_that_was_empty_and_has_what_was_waited_for(mark: tuple[int, int, str], *, begins: bool) -> None:
    """Found by review: it was refused for the file, which is there until the node has handed that up."""
    world, path = left([BEGINS]), Path("/n1", REFILL)
    world.disk.replace_file(path, encode_refill(*mark))
    if begins:
        assert recover(SETTINGS, act=True, world=world).voters == ("n1",)
    else:
        with pytest.raises(InvalidRequest, match="it was empty"):
            recover(SETTINGS, act=True, world=world)
    assert world.disk.exists(path) is not begins


def test_what_does_not_say_what_is_waited_for_ends_the_command() -> None:
    world = left([BEGINS])
    world.disk.replace_file(Path("/n1", REFILL), b"")
    with pytest.raises(CorruptData, match=r"refill\.json"):
        recover(SETTINGS, act=True, world=world)
