"""How far a member's journal had come when it was last heard of: who comes back with less was put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from logboom.errors import ProtocolError, WrongNode
from logboom.types import KIB, NodeId
from logboom.wire import Kind, encode
from raftlog.entries.configuration import SEATS_MAX, Configuration, Role, Seat
from raftlog.links.directories import ROWS_MAX, Directories
from raftlog.links.hello import Claim
from raftlog.links.marks import KEEP_BEATS, Heard, Mark, Marks, Own

N1, N2, N3, N4 = (NodeId(f"n{k}") for k in range(1, 5))
DIRECTORIES = {node: node.encode() * 8 for node in (N1, N2, N3, N4)}


def three(*voters: NodeId, learner: NodeId | None = None) -> Configuration:
    seats = [Seat(node, f"{node}:1", f"{node}:2", Role.VOTER) for node in voters or (N1, N2, N3)]
    learners = [] if learner is None else [Seat(learner, "l:1", "l:2", Role.LEARNER)]
    return Configuration((*seats, *learners), (), 3, 20)


class Speaker:
    """One process of a node."""

    def __init__(
        self, node: NodeId, life: int, opened: int, heard: Heard | None = None, current: Configuration | None = None
    ) -> None:
        self.node, self.at = node, opened
        self.kept: list[tuple[Heard, Callable[[], None]]] = []
        self.behind: list[str] = []
        self.current = current or three()
        self.marks = Marks(
            Own(bytes([life]) * 16, opened, lambda: self.at), heard or {}, lambda *each: self.kept.append(each)
        )
        self.directories = Directories(
            node, DIRECTORIES[node], {}, lambda *_: None, marks=self.marks, behind=self.behind.append
        )
        self.directories.follow(self.current, settled=True)

    @property
    def claim(self) -> Claim:
        return Claim(3, 20, self.current.ids)

    def hello(self, **more: Any) -> dict[str, Any]:
        return {"members": [*self.claim[:2], list(self.claim.ids)], **self.directories.fields(), **more}

    def meets(self, other: Speaker, **more: Any) -> bool:
        """It lets the other one in."""
        header = other.hello(**more)
        try:
            self.directories.check(other.node, header, Claim.of(header), self.claim)
        except WrongNode:
            return False
        self.directories.meet(other.node, header)
        return True

    def hears(self, other: Speaker) -> None:
        self.directories.told(other.node, other.directories.beat(rejoining=False))


def heard_to(sequence: int, current: Configuration | None = None) -> Speaker:
    """n1, which has heard so much of n2's journal in an earlier life."""
    return Speaker(N1, 1, 10, {N2: Mark(DIRECTORIES[N2], bytes(16), sequence)}, current)


def test_who_comes_back_with_all_that_it_had_said_is_let_in() -> None:
    one, other = Speaker(N1, 1, 10), Speaker(N2, 2, 50)
    assert one.meets(other)
    other.at = 70
    one.hears(other)
    assert one.marks.heard[N2].sequence == 70
    assert one.meets(Speaker(N2, 3, 70))
    assert one.meets(Speaker(N2, 4, 90))


def test_who_comes_back_with_less_is_refused_and_begins_anew() -> None:
    one = heard_to(70)
    other = Speaker(N2, 3, 69)
    assert not one.meets(other)
    assert not other.meets(one)
    assert len(other.behind) == 1


def test_what_it_has_written_since_hides_nothing() -> None:
    """With one that had not heard of it it has gone on for long."""
    one, other = heard_to(70), Speaker(N2, 3, 69)
    other.at = 500
    assert not one.meets(other)
    assert not other.meets(one)
    assert other.behind


def test_a_link_that_is_made_anew_is_no_start() -> None:
    """What it says of itself may be older than what was heard last."""
    one, other = Speaker(N1, 1, 10), Speaker(N2, 2, 50)
    said = other.hello()
    assert one.meets(other)
    other.at = 70
    one.hears(other)
    one.directories.check(N2, said, other.claim, one.claim)
    one.directories.meet(N2, said)
    assert one.marks.heard[N2].sequence == 70
    assert other.meets(one)


def test_a_machine_that_is_put_back_with_its_memory_finds_out() -> None:
    one, other = Speaker(N1, 1, 10), Speaker(N2, 2, 50)
    other.at = 70
    assert one.meets(other)
    other.at = 60
    assert not other.meets(one)
    assert other.behind


def test_while_there_is_a_link_another_process_is_not_told() -> None:
    """A copy must not take the place of the one that runs, which would be taken for lost then."""
    one = heard_to(70)
    assert [row[0] for row in one.directories.fields()["heard"]] == [N2]
    assert one.directories.fields({N2})["heard"] == []


def test_another_directory_is_another_story() -> None:
    one = heard_to(70)
    assert one.meets(Speaker(N2, 3, 5), directory=bytes(16), rejoining=True)
    assert one.marks.heard[N2].sequence == 70, "it may not be taken back"


def test_who_says_that_it_has_forgotten_is_let_in_and_says_nothing_of_its_journal() -> None:
    one, other = Speaker(N1, 1, 10), Speaker(N2, 3, 5)
    assert one.meets(other, rejoining=True)
    assert not one.marks.heard
    assert other.directories.beat(rejoining=True) == {}


def test_who_is_put_back_to_when_it_had_forgotten_has_forgotten_again() -> None:
    """It was taken back since, and has promised something: the token is of a time before."""
    one, other = heard_to(70), Speaker(N2, 3, 5)
    assert not one.meets(other, rejoining=True)
    header = one.hello()
    with pytest.raises(WrongNode):
        other.directories.check(N1, header, Claim.of(header), other.claim, rejoining=True)
    assert other.behind


def test_an_earlier_release_says_nothing() -> None:
    one = heard_to(70)
    header = {"directory": DIRECTORIES[N2], "met": [], "members": [3, 20, [N1, N2, N3]]}
    one.directories.check(N2, header, Claim.of(header), one.claim)
    one.directories.meet(N2, header)
    one.directories.told(N2, {})
    one.directories.told(N2, {"journal": 5})
    assert one.marks.heard[N2].sequence == 70, "a release that is taken back goes on with the same journal"
    other = Speaker(N2, 3, 5)
    other.directories.check(N1, header | {"directory": DIRECTORIES[N1]}, Claim.of(header), other.claim)
    assert not other.behind


def test_of_two_voters_it_is_fed_and_the_leader_starts_over() -> None:
    two = three(N1, N2)
    one, other = heard_to(70, two), Speaker(N2, 3, 5, current=two)
    assert one.meets(other)
    assert one.directories.has_changed(N2)
    assert other.meets(one)
    assert not other.behind


def test_the_only_voter_is_refused_and_goes_on_alone() -> None:
    alone = three(N2, learner=N1)
    one, other = heard_to(70, alone), Speaker(N2, 3, 5, current=alone)
    assert not one.meets(other)
    assert not other.meets(one)
    assert not other.behind


def test_a_stranger_is_not_believed() -> None:
    other = Speaker(N2, 3, 5)
    stranger = Speaker(N4, 4, 5, {N2: Mark(DIRECTORIES[N2], bytes(16), 70)})
    assert other.meets(stranger)
    assert not other.behind


def test_what_was_heard_is_kept_now_and_then_and_once_at_a_time() -> None:
    one, other = Speaker(N1, 1, 10), Speaker(N2, 2, 50)
    one.meets(other)
    for _ in range(3 * KEEP_BEATS):
        one.directories.beat(rejoining=False)
    assert [dict(heard) for heard, _ in one.kept] == [{N2: Mark(DIRECTORIES[N2], other.marks._own.life, 50)}]
    one.kept[0][1]()
    for _ in range(3 * KEEP_BEATS):
        one.directories.beat(rejoining=False)
    assert len(one.kept) == 1, "nothing new: nothing is written"
    other.at = 60
    one.hears(other)
    for _ in range(KEEP_BEATS):
        one.directories.beat(rejoining=False)
    assert one.kept[-1][0][N2].sequence == 60


def test_who_is_gone_is_forgotten() -> None:
    one = heard_to(70)
    one.directories.follow(replace(three(N1, N3), removed=(N2,)), settled=True)
    one.meets(Speaker(N3, 3, 5))
    assert one.marks.heard.keys() == {N3}


@pytest.mark.parametrize(
    "change",
    [
        {"life": 7},
        {"life": b"short"},
        {"life": None},
        {"journal": None},
        {"journal": [1]},
        {"journal": [1, True]},
        {"journal": [-1, 1]},
        {"journal": [1, 1 << 62]},
    ],
)
def test_what_is_no_journal_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        heard_to(70).meets(Speaker(N2, 3, 80), **change)


@pytest.mark.parametrize(
    "said",
    [
        7,
        [7],
        [[N1]],
        [[N1, b"", b"", -1]],
        [[N1, 1, b"", 1]],
        [[N1, b"", 1, 1]],
        [[[], b"", b"", 1]],
        [[1, b"", b"", 1]],
    ],
)
def test_what_was_heard_is_checked(said: Any) -> None:
    with pytest.raises(ProtocolError):
        Speaker(N2, 3, 80).meets(Speaker(N1, 1, 10), heard=said)


@pytest.mark.parametrize("said", [True, "1", -1, 1 << 62, 1.0])
def test_what_is_said_later_is_checked(said: Any) -> None:
    one = Speaker(N1, 1, 10)
    one.meets(Speaker(N2, 2, 50))
    with pytest.raises(ProtocolError):
        one.directories.told(N2, {"journal": said})


def test_what_is_said_fits_a_first_frame_however_many_members_there_are() -> None:
    """Of whom it does not know yet a node takes 4 KiB."""
    ids = [NodeId(f"n{k:063}") for k in range(SEATS_MAX)]
    current = three(*ids)
    heard = {each: Mark(bytes(16), bytes(16), 1 << 40) for each in ids}
    directories = Directories(ids[0], bytes(16), dict.fromkeys(ids, bytes(16)), lambda *_: None)
    directories.marks = Marks(Own(bytes(16), 1 << 40, lambda: 1 << 40), heard, lambda *_: None)
    directories.follow(current, settled=True)
    for number, peer in enumerate((None, *ids)):
        header = hello_of(current, directories.fields((), peer))
        assert len(b"".join(map(bytes, encode(Kind.PEER_HELLO, header)))) < 4 * KIB
        assert len(header["met"]) == len(header["heard"]) == bool(number), "to whom it dials it says what he needs"
    directories.follow(three(*ids[:ROWS_MAX]), settled=True)
    header = hello_of(three(*ids[:ROWS_MAX]), directories.fields())
    assert len(header["met"]) == len(header["heard"]) == ROWS_MAX
    assert len(b"".join(map(bytes, encode(Kind.PEER_HELLO, header)))) < 4 * KIB


def hello_of(current: Configuration, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": 1,
        "node": "x" * 64,
        "cluster": "c" * 255,
        "lineage": "ab" * 16,
        "settings": bytes(16),
        "members": [1 << 40, 1 << 40, list(current.ids)],
        "rejoining": False,
        "remembers": [1 << 40] * 3,
        "features": ["frontiers"],
        **fields,
    }
