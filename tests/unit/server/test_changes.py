"""What a cluster began with, as a journal says it that may not be committed (docs/decisions/0017)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from logboom.config import load
from logboom.errors import ConfigError
from logboom.types import DurabilityMode, NodeId, PartitionId, PartitionLogIndex, Term
from raftlog.entries.entry import Route, pack_control, pack_routes
from raftlog.entries.lifecycle import Change, PartitionKind
from raftlog.journal.journal import Journal
from server.directory.changes import begun_in
from server.opening import Opened
from server.world.world import World, real_world
from tests.unit.raftlog.journal_files import opened
from tests.unit.server.lone_node import fails

KV = PartitionKind("kv", DurabilityMode.WRITE_BEHIND)
THREE = "n1=127.0.0.1:1@127.0.0.1:2,n2=127.0.0.1:3@127.0.0.1:4,n3=127.0.0.1:5@127.0.0.1:6"
ALONE = "n1=127.0.0.1:1@127.0.0.1:2"


def create(partition: int, begun: int) -> bytes:
    return pack_control(Change(PartitionId(partition), begun, KV, bytes([partition]) * 16).fields())


def batch(partition: int) -> bytes:
    return pack_routes([Route(PartitionId(partition), Term(1), PartitionLogIndex(1), bytes(16))])


def never(_: PartitionId) -> bool:
    return False


class TestBegun:
    def journal(self, directory: Path, *commands: bytes) -> Journal:
        journal = opened(directory / "journal")
        for number, command in enumerate(commands):
            journal.add(command, number + 2, 1)
        return journal

    def test_what_may_be_cut_off_says_nothing(self, tmp_path: Path) -> None:
        journal = self.journal(tmp_path, create(2, 2), batch(0))
        assert begun_in(journal, committed=False, opened=never) == set()
        assert begun_in(journal, committed=True, opened=never) == {2}
        journal.close()

    def test_what_was_written_to_had_been_created(self, tmp_path: Path) -> None:
        """And all in front of it was committed with it."""
        gone = pack_control(Change(PartitionId(0), 2).fields())
        journal = self.journal(tmp_path, gone, create(2, 2), batch(2), create(5, 5))
        assert begun_in(journal, committed=False, opened=never) == {2}
        journal.close()

    def test_and_so_had_what_was_opened(self, tmp_path: Path) -> None:
        journal = self.journal(tmp_path, create(2, 2), create(5, 5))
        assert begun_in(journal, committed=False, opened=PartitionId(2).__eq__) == {2}
        journal.close()

    def test_batches_of_one_that_had_the_id_before_say_nothing(self, tmp_path: Path) -> None:
        journal = self.journal(tmp_path, batch(2), create(2, 2))
        assert begun_in(journal, committed=False, opened=never) == set()
        journal.close()


class Node:
    """n1, of some members, as it is opened again and again."""

    def __init__(self, directory: Path, members: str) -> None:
        self.flags: Mapping[str, Any] = {"cluster.members": members, "node.id": "n1", "node.data_dir": str(directory)}
        self.world: World = real_world(page_cache_bytes=0, fatal=fails)

    def opens(self, partitions: int, *commands: bytes) -> set[int]:
        """Which partitions it has then; ``commands`` enter its journal before it ends."""
        settings = load(environment={}, flags={**self.flags, "cluster.partitions": partitions})
        found = Opened(settings, NodeId("n1"), self.world, fatal=fails)
        journal = found.journal
        if commands:
            journal.setCurrentTerm(1, "n1")
        for command in commands:
            journal.add(command, journal.last_index + 1, 1)
        if commands:
            journal.flush()
        there = {int(partition) for partition in found.rooms.logs}
        found.rooms.close()
        journal.close()
        found.data_dir.close()
        return there


def test_a_creation_that_only_one_has_heard_of_keeps_it_from_no_other_settings(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", THREE)
    assert node.opens(2, create(2, 2)) == {0, 1}
    assert node.opens(4) == {0, 1, 2, 3}
    assert node.opens(4) == {0, 1, 2, 3}, "the partition is the settings' own by now"


def test_of_who_alone_votes_all_is_committed(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", ALONE)
    node.opens(2, create(2, 2))
    with pytest.raises(ConfigError, match="the cluster began with 2"):
        node.opens(4)


def test_nor_does_what_is_proven_go_with_other_settings(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", THREE)
    node.opens(2, create(2, 2), create(3, 2))
    file = tmp_path / "data" / "partitions" / "3" / "a.log"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"opened")
    with pytest.raises(ConfigError, match="the cluster began with 2"):
        node.opens(4)
