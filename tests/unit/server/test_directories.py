"""directories.json: read back, made, damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, Unavailable
from logboom.types import NodeId
from raftlog.entries.configuration import Configuration, Role, Seat
from raftlog.journal.journal import Journal
from raftlog.journal.membership import Membership, Rejoining
from raftlog.links.directories import Directories
from server.directory.directories import DIRECTORIES, decode, encode, open_directories

N1, N2, N3 = (NodeId(f"n{k}") for k in range(1, 4))
DATA = Path("/n")
FILE = DATA / DIRECTORIES
OWN, OTHER, TOKEN = (bytes([k]) * 16 for k in range(1, 4))


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(random.Random(0))
    disk.make_directory(DATA)
    return disk


class Now:
    """An offload that does everything at once."""

    def submit(self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        try:
            done(job(), None)
        except OSError as error:
            done(None, error)

    async def close(self) -> None:
        """Nothing to end."""


class Node:
    """What is there of one before its links are."""

    def __init__(self, disk: SimDisk, voters: int = 3, rejoined: bytes | None = None) -> None:
        seats = tuple(Seat(NodeId(f"n{k}"), f"n{k}:1", f"n{k}:2", Role.VOTER) for k in range(1, voters + 1))
        begins = Configuration(seats, index=1, rejoined=() if rejoined is None else ((N1, rejoined),))
        journal = Journal.open(
            disk=disk,
            directory=DATA / "journal",
            cluster_id="c",
            segment_bytes=4096,
            random_bytes=random.Random(0).randbytes,
        )
        self.disk = disk
        self.forgot: list[bool] = []
        self.fatal: list[BaseException] = []
        self.offload = Now()
        self.membership = Membership(node_id=N1, journal=journal, begins=begins, forget=self._forget)

    def _forget(self, foreign: bool) -> Rejoining:
        self.forgot.append(foreign)
        return Rejoining(TOKEN, lambda done: done())

    def open(self) -> Directories:
        return open_directories(
            self.disk, DATA, self.membership, random.Random(7), self.offload, fatal=self.fatal.append
        )


def test_a_directory_gets_an_id_and_keeps_it_with_those_it_met(disk: SimDisk) -> None:
    first = Node(disk).open()
    assert len(first.own) == 16
    assert decode(disk.read_file(FILE), path="") == (first.own, {})
    first.follow(Node(disk).membership.current, settled=True)
    first.meet(N2, {"directory": OTHER})
    again = Node(disk).open()
    assert (again.own, again.met) == (first.own, {N2: OTHER})


def test_one_of_an_earlier_release_that_began_anew_has_the_id_that_the_log_says(disk: SimDisk) -> None:
    assert Node(disk, rejoined=TOKEN).open().own == TOKEN


def test_while_it_has_forgotten_it_has_the_token_of_this_time(disk: SimDisk) -> None:
    disk.replace_file(FILE, encode(OWN, {N2: OTHER}))
    node = Node(disk, rejoined=OTHER)
    node.membership.rejoining = Rejoining(TOKEN, lambda done: done())
    assert node.open().own == TOKEN
    assert decode(disk.read_file(FILE), path="") == (TOKEN, {N2: OTHER})


@pytest.mark.parametrize(("voters", "forgets"), [(3, True), (2, False), (1, False)])
def test_a_damaged_one_is_another_directory(disk: SimDisk, voters: int, forgets: bool) -> None:
    raw = bytearray(encode(OWN, {}))
    raw[20] ^= 1
    disk.replace_file(FILE, bytes(raw))
    node = Node(disk, voters)
    found = node.open()
    assert bool(node.forgot) is forgets
    assert (found.own == TOKEN) is forgets
    assert found.own != OWN
    assert decode(disk.read_file(FILE), path="") == (found.own, {})


def test_what_the_disk_refuses_ends_the_node_and_lets_nobody_in(disk: SimDisk) -> None:
    node = Node(disk)
    found = node.open()

    def full(operation: str, path: Path, _size: int) -> None:
        raise OSError(28, "No space left on device", str(path))

    disk.hook = full
    with pytest.raises(Unavailable):
        found.meet(N2, {"directory": OTHER})
    assert len(node.fatal) == 1
    assert not found.met


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b'{"own":"00","met":{}}', b'{"own":7,"met":{}}', b"\xff"])
def test_what_cannot_be_read_is_damage(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        decode(raw, path="x")
