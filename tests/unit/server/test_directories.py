"""directories.json: read back, made, damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, Unavailable, WrongNode
from logboom.types import NodeId
from raftlog.entries.configuration import Configuration, Role, Seat
from raftlog.journal.journal import Journal
from raftlog.journal.membership import Membership, Rejoining
from raftlog.links.directories import Directories
from raftlog.links.hello import Claim
from raftlog.links.marks import KEEP_BEATS, Mark
from server.directory.directories import (
    DIRECTORIES,
    HEARD,
    decode,
    decode_heard,
    encode,
    encode_heard,
    open_directories,
    own_id,
    refuse_former,
)
from server.directory.journal_of import JournalOf
from server.directory.manifest import sealed
from server.directory.rejoin import RejoinDue

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

    async def run(self, job: Callable[[], Any]) -> Any:
        return job()

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


def led_alone(disk: SimDisk) -> tuple[Node, Directories]:
    """It has begun a cluster, and n2 calls, which has met it before, and votes in that one."""
    node = Node(disk, voters=1)
    found = node.open()
    found.follow(node.membership.current, settled=True)
    return node, found


CALL: dict[str, Any] = {"members": [3, 20, ["n1", "n2"]], "met_lone": [["n1", OTHER]], "voters": 2}


def test_no_start_goes_on_with_what_its_node_led_alone_with(disk: SimDisk) -> None:
    node, found = led_alone(disk)
    refuse_former(disk, DATA)
    for _ in range(2):
        with pytest.raises(WrongNode, match="Move its data directory away"):
            found.check(N2, CALL, Claim.of(CALL), Claim(0, 1, (N1,)))
    assert [type(each) for each in node.fatal] == [WrongNode], "said once"
    advice = r"led alone.*Move its data directory away.*remove former.json, too.*restore.*--as-cluster"
    with pytest.raises(WrongNode, match=advice):
        refuse_former(disk, DATA)
    disk.replace_file(DATA / "former.json", b"{}")
    with pytest.raises(WrongNode, match=r"led alone.*cannot be read"):
        refuse_former(disk, DATA)


def test_it_ends_also_where_the_disk_keeps_nothing_of_that(disk: SimDisk) -> None:
    node, found = led_alone(disk)

    def full(operation: str, path: Path, _size: int) -> None:
        raise OSError(28, "No space left on device", str(path))

    disk.hook = full
    with pytest.raises(Unavailable):
        found.check(N2, CALL, Claim.of(CALL), Claim(0, 1, (N1,)))
    assert len(node.fatal) == 1


def of(disk: SimDisk) -> JournalOf:
    return JournalOf(disk, DATA / "journal")


def test_the_journal_says_of_which_directory_it_is(disk: SimDisk) -> None:
    first = Node(disk).open()
    assert of(disk).said() == first.own
    of(disk).say_nothing()
    assert Node(disk).open().own == first.own, "one of an earlier release"
    assert of(disk).said() == first.own
    first.renew(TOKEN)
    assert of(disk).said() == TOKEN


def test_with_few_voters_one_with_anothers_journal_is_another_directory(disk: SimDisk) -> None:
    """Whoever leads forgets what it had counted: there may be less."""
    disk.replace_file(FILE, encode(OWN, {N2: OTHER}))
    node = Node(disk, 2)
    of(disk).say(OTHER)
    found = node.open()
    assert found.own not in (OWN, OTHER)
    assert of(disk).said() == found.own
    assert decode(disk.read_file(FILE), path="") == (found.own, {N2: OTHER})
    assert Node(disk, 2).open().own == found.own


def test_wherever_a_crash_comes_the_journal_does_not_pass_for_anothers(disk: SimDisk) -> None:
    Node(disk).open()
    for calls in range(40):
        found, left = Node(disk).open(), calls
        token = bytes([calls + 10]) * 16

        def dies(operation: str, path: Path, _size: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

        disk.hook = dies
        try:
            found.renew(token)
        except KeyboardInterrupt:
            disk.hook = None
            disk.power_loss()
            assert of(disk).said() in (None, own_id(disk, DATA))
        else:
            disk.hook = None
            assert of(disk).said() == own_id(disk, DATA) == token
            return
    pytest.fail("it never came to an end")


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b'{"own":"00","met":{}}', b'{"own":7,"met":{}}', b"\xff"])
def test_what_cannot_be_read_is_damage(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        decode(raw, path="x")


class TestHeard:
    """heard.json."""

    MARK = Mark(OTHER, TOKEN, 4711)

    def test_what_was_heard_of_others_is_there_after_a_start(self, disk: SimDisk) -> None:
        first = Node(disk).open()
        first.follow(Node(disk).membership.current, settled=True)
        first.meet(N2, {"directory": OTHER, "life": TOKEN, "journal": [5, 9]})
        for _ in range(KEEP_BEATS):
            assert first.beat(rejoining=False) == {"journal": 0}
        assert decode_heard(disk.read_file(DATA / HEARD), path="") == {N2: Mark(OTHER, TOKEN, 9)}
        again = Node(disk).open()
        assert again.marks is not None
        assert again.marks.heard == {N2: Mark(OTHER, TOKEN, 9)}

    def test_a_full_disk_ends_no_node_for_it_and_it_is_kept_once_there_is_room(self, disk: SimDisk) -> None:
        node = Node(disk)
        opened = node.open()
        opened.follow(node.membership.current, settled=True)
        opened.meet(N2, {"directory": OTHER, "life": TOKEN, "journal": [5, 8]})
        room, disk.capacity = disk.capacity, disk.capacity - disk.free_bytes(DATA)
        for sequence in (9, 10):
            opened.told(N2, {"journal": sequence})
            for _ in range(KEEP_BEATS):
                opened.beat(rejoining=False)
        assert node.fatal == []
        assert not disk.exists(DATA / HEARD)
        disk.capacity = room
        opened.told(N2, {"journal": 11})
        for _ in range(KEEP_BEATS):
            opened.beat(rejoining=False)
        assert decode_heard(disk.read_file(DATA / HEARD), path="") == {N2: Mark(OTHER, TOKEN, 11)}

    def test_it_says_how_far_its_journal_is_on_the_disk(self, disk: SimDisk) -> None:
        node = Node(disk)
        opened = node.open()
        node.membership.journal.setCurrentTerm(1, "n1")
        assert opened.beat(rejoining=False) == {"journal": 0}
        node.membership.journal.flush()
        assert opened.beat(rejoining=False) == {"journal": 1}
        node.membership.journal.close()
        assert Node(disk).open().fields()["journal"] == [1, 1]

    def test_a_damaged_one_counts_for_nothing(self, disk: SimDisk) -> None:
        disk.replace_file(DATA / HEARD, encode_heard({N2: self.MARK})[:-3])
        marks = Node(disk).open().marks
        assert marks is not None
        assert marks.heard == {}

    @pytest.mark.parametrize("row", [7, [], [OTHER.hex(), TOKEN.hex(), -1], [OTHER.hex(), 7, 1], ["", TOKEN.hex(), 1]])
    def test_what_is_no_mark_is_damage(self, row: Any) -> None:
        with pytest.raises(CorruptData):
            decode_heard(sealed({"heard": {"n2": row}}), path="heard.json")

    def test_a_disk_that_refuses_it_stops_the_node(self, disk: SimDisk) -> None:
        node = Node(disk)
        opened = node.open()
        opened.meet(N2, {"directory": OTHER, "life": TOKEN, "journal": [5, 9]})

        def hook(operation: str, path: Path, _size: int) -> None:
            if HEARD in path.name:
                raise OSError(5, "input/output error")

        disk.hook = hook
        for _ in range(KEEP_BEATS):
            opened.beat(rejoining=False)
        assert [type(error) for error in node.fatal] == [OSError]

    def test_whoever_is_behind_forgets_before_anything_else_and_starts_anew_once(self, disk: SimDisk) -> None:
        node = Node(disk)
        opened = node.open()
        opened.follow(node.membership.current, settled=True)
        claim = Claim(0, 1, (N1, N2, N3))
        header = {"members": [0, 1, ["n1", "n2", "n3"]], "heard": [[N1, opened.own, bytes(16), 1]]}
        for _ in range(2):
            with pytest.raises(WrongNode, match="begins anew"):
                opened.check(N2, header, Claim.of(header), claim)
        assert node.forgot == [False]
        assert node.membership.rejoining is not None
        assert [type(error) for error in node.fatal] == [RejoinDue]
