"""Whose disk speaks under a member's id: who is let in, who is not, who finds out that his own is lost."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from logboom.errors import ProtocolError, WrongNode
from logboom.types import NodeId
from raftlog.entries.configuration import Configuration, Role, Seat
from raftlog.links.directories import MET_MAX, Directories, Met
from raftlog.links.hello import Claim, Identity
from raftlog.links.marks import LIFE_BYTES, Marks, Own

N1, N2, N3, N4 = (NodeId(f"n{k}") for k in range(1, 5))
MINE, FIRST, SECOND, TOKEN = (bytes([k]) * 16 for k in range(1, 5))
VOTERS = (N1, N2, N3)
ALIKE = Identity(N1, "c", b"same")


def configuration(*voters: NodeId, rejoined: bytes | None = None, learner: NodeId | None = None) -> Configuration:
    seats = [Seat(node, f"{node}:1", f"{node}:2", Role.VOTER) for node in voters]
    if learner is not None:
        seats.append(Seat(learner, f"{learner}:1", f"{learner}:2", Role.LEARNER))
    return Configuration(tuple(seats), (), 3, 20, () if rejoined is None else ((N2, rejoined),))


def claim(index: int = 20) -> Claim:
    return Claim(3, index, VOTERS)


def hello(directory: Any, *, index: int = 20, **more: Any) -> dict[str, Any]:
    said = {"members": [3, index, list(VOTERS)], "lineage": "", "settings": b"same", "met": [], **more}
    return said if directory is None else said | {"directory": directory}


class Kept:
    """One node's, and what is on its disk."""

    def __init__(self, met: Met | None = None, current: Configuration | None = None, *, settled: bool = True) -> None:
        self.disk: list[tuple[bytes, Met]] = []
        self.known = Directories(N1, MINE, met or {}, lambda own, met: self.disk.append((own, met)))
        self.known.follow(current or configuration(*VOTERS), settled=settled)

    def refuses(self, header: dict[str, Any], *, index: int = 20) -> bool:
        theirs = Claim.of(header)
        try:
            self.known.check(N2, header, theirs, claim(index))
        except WrongNode:
            return True
        return False


def test_whoever_is_met_is_remembered_before_anything_else() -> None:
    kept = Kept()
    assert not kept.refuses(hello(FIRST))
    kept.known.meet(N2, hello(FIRST))
    assert kept.disk == [(MINE, {N2: FIRST})]
    kept.known.meet(N2, hello(FIRST))
    assert len(kept.disk) == 1, "nothing new: nothing is written"
    assert kept.known.fields()["directory"] == MINE
    assert kept.known.fields()["met"] == [[N2, FIRST]]


def test_who_joins_remembers_all_that_it_meets_before_it_knows_who_is_a_member() -> None:
    kept = Kept(current=Configuration())
    for node in VOTERS[1:]:
        kept.known.meet(node, hello(FIRST))
    kept.known.follow(configuration(*VOTERS), settled=True)
    assert kept.refuses(hello(SECOND)), "its disk was lost since"
    assert kept.disk[-1] == (MINE, {N2: FIRST, N3: FIRST})


def test_who_is_gone_is_forgotten_and_strangers_are_not_remembered_without_end() -> None:
    kept = Kept({N2: FIRST, N4: FIRST})
    kept.known.follow(replace(configuration(N1, N3), removed=(N2,)), settled=False)
    kept.known.meet(N3, hello(FIRST))
    assert kept.known.met.keys() == {N2, N3, N4}, "it may be one again"
    kept.known.follow(replace(configuration(N1, N3), removed=(N2,)), settled=True)
    kept.known.meet(N3, hello(SECOND))
    assert kept.known.met.keys() == {N3, N4}
    for number in range(2 * MET_MAX):
        kept.known.meet(NodeId(f"x{number}"), hello(FIRST))
    assert len(kept.known.met) <= MET_MAX
    assert N3 in kept.known.met


def test_what_the_log_says_of_this_node_is_its_directory_from_then_on() -> None:
    """Of two voters it came back empty as it was; with a third one the others go by what the log says again."""
    kept = Kept({N2: FIRST}, configuration(N1, N2))
    grown = replace(configuration(*VOTERS), rejoined=((N1, TOKEN),))
    other = Directories(N2, FIRST, {N1: MINE}, lambda *_: None)
    other.follow(grown, settled=True)
    for settled, rejoining, own in ((False, False, MINE), (True, True, MINE), (True, False, TOKEN)):
        kept.known.follow(grown, settled=settled, rejoining=rejoining)
        assert kept.known.own == own
    assert kept.disk == [(TOKEN, {N2: FIRST})]
    other.check(N1, hello(None) | kept.known.fields(), claim(), claim())
    kept.known.check(N2, hello(None) | other.fields(), claim(), claim())


def test_that_it_has_another_disk_is_told_once() -> None:
    kept = Kept({N2: FIRST}, configuration(N1, N2))
    kept.known.meet(N2, hello(SECOND))
    assert kept.known.has_changed(N2)
    assert not kept.known.has_changed(N2)
    kept.known.meet(N3, hello(SECOND))
    assert not kept.known.has_changed(N3), "it is new"


def test_so_it_is_of_who_has_forgotten_over_each_link_until_that_is_over() -> None:
    """What it told of its logs before the disk went counted for whoever waited for several nodes."""
    kept = Kept({N2: FIRST}, configuration(N1, N2))
    for directory, rejoining, changed in ((SECOND, True, True), (SECOND, True, True), (TOKEN, False, True)):
        kept.known.meet(N2, hello(directory, rejoining=rejoining))
        assert kept.known.has_changed(N2) is changed
        assert not kept.known.has_changed(N2)
    kept.known.meet(N2, hello(TOKEN))
    assert not kept.known.has_changed(N2)


def test_another_disk_is_refused_unless_it_says_that_it_has_forgotten() -> None:
    kept = Kept({N2: FIRST})
    assert kept.refuses(hello(SECOND))
    assert not kept.refuses(hello(SECOND, rejoining=True))
    kept.known.meet(N2, hello(SECOND, rejoining=True))
    assert not kept.disk, "it may not be taken back"


def test_an_earlier_release_says_nothing_and_is_let_in() -> None:
    kept = Kept({N2: FIRST})
    assert not kept.refuses(hello(None))
    kept.known.meet(N2, hello(None))
    assert kept.known.met == {N2: FIRST}


def test_where_it_began_anew_the_log_says_which_disk_it_has() -> None:
    kept = Kept({N2: FIRST}, configuration(*VOTERS, rejoined=TOKEN))
    assert not kept.refuses(hello(TOKEN))
    assert kept.refuses(hello(FIRST)), "the disk of before came back"
    assert [N2, TOKEN] in kept.known.fields()["met"]


def test_a_newer_configuration_is_believed() -> None:
    """It began anew while this node was away."""
    kept = Kept({N2: FIRST})
    assert not kept.refuses(hello(TOKEN, index=21))
    assert kept.refuses(hello(TOKEN, index=20))


@pytest.mark.parametrize(
    ("current", "settled", "refused"),
    [
        (configuration(N1, N2), True, False),
        (configuration(N1, N2), False, True),  # of three, perhaps: the one before may count still
        (configuration(N1, N3, N4, learner=N2), True, True),
        (configuration(N1, N3, N4), True, False),  # it is to be taken in, and has not met us as a member
        (configuration(*VOTERS), True, True),
    ],
)
def test_of_two_voters_none_is_a_majority_alone(current: Configuration, settled: bool, refused: bool) -> None:
    kept = Kept({N2: FIRST}, current, settled=settled)
    assert kept.refuses(hello(SECOND)) is refused
    assert bool(kept.known.fields()["met"]) is refused, "it is told just where it would be refused"


@pytest.mark.parametrize(("before", "refused"), [((N2,), False), (VOTERS, True)])
def test_of_two_voters_that_were_fewer_none_is_a_majority_before_that_is_known_to_be_committed(
    before: tuple[NodeId, ...], refused: bool
) -> None:
    kept = Kept({N2: FIRST}, configuration(N1, N2), settled=False)
    kept.known.before = configuration(*before)
    assert kept.refuses(hello(SECOND)) is refused
    assert bool(kept.known.fields()["met"]) is refused


class TestLone:
    """The one that began its cluster alone, and does not know that others vote by now."""

    @pytest.mark.parametrize("settled", [True, False])
    @pytest.mark.parametrize("voters", [(N1, N2), VOTERS])
    def test_its_lost_disk_matters_however_few_vote(self, voters: tuple[NodeId, ...], settled: bool) -> None:
        kept = Kept({N2: FIRST}, configuration(*voters), settled=settled)
        kept.known.before = configuration(N2)
        said = hello(SECOND, index=1) | {"members": [0, 1, [N2]]}
        assert kept.refuses(said | {"lone": True})
        assert kept.refuses(said), "of an earlier release"
        assert not kept.refuses(said | {"lone": True, "rejoining": True})

    def test_nor_is_it_followed_where_nobody_remembers_its_disk(self) -> None:
        """That others vote needed its vote, and is committed."""
        said = hello(FIRST, index=10, lone=True)
        kept = Kept(current=configuration(N1, N2))
        assert kept.refuses(said)
        assert not kept.refuses(said | {"lone": False})
        assert not kept.refuses(hello(FIRST, index=21, lone=True)), "others were removed since"
        kept.known.follow(configuration(N1, N2), settled=False)
        assert not kept.refuses(said), "who led alone may have lost what it had not synced, and cuts it off here"

    def test_nor_by_one_that_has_just_started_and_has_come_since(self) -> None:
        """Whoever was added behind others that vote: it cannot be that only the last change is missing there."""
        said = hello(SECOND, lone=True) | {"members": [0, 1, [N2]]}
        kept = Kept(current=configuration(*VOTERS), settled=False)
        assert kept.refuses(said)
        assert not kept.refuses(said | {"rejoining": True})
        kept.known.follow(configuration(N2, learner=N1), settled=False)
        assert not kept.refuses(said), "it led alone when it added this node, and has lost that"

    @pytest.mark.parametrize("voters", [(N1, N2), (N2,)])
    def test_it_is_told_what_only_it_has_to_know(self, voters: tuple[NodeId, ...]) -> None:
        learner = None if N1 in voters else N1
        said = Kept({N2: FIRST}, configuration(*voters, learner=learner)).known.fields()
        assert (said["met"], said["met_lone"], said["voters"]) == ([], [[N2, FIRST]], len(voters))

    def of_it(self, *voters: NodeId, leader: NodeId | None = N1) -> tuple[Directories, list[str], dict[str, Any]]:
        """Itself, how it ended, and what n1 says to it."""
        ended: list[str] = []
        alone = replace(configuration(N2), term=0, index=1)
        known = Directories(N2, SECOND, {}, lambda *_: None, former=ended.append)
        known.follow(alone, settled=True)
        learner = None if N1 in voters else N1
        other = Kept({N2: FIRST}, configuration(*voters, learner=learner)).known
        other.leader = lambda: leader
        return known, ended, hello(None) | other.fields()

    @pytest.mark.parametrize(("voters", "leader"), [((N1, N2), None), (VOTERS, N1), (VOTERS, N3)])
    def test_it_ends_where_it_has_begun_a_second_cluster(
        self, voters: tuple[NodeId, ...], leader: NodeId | None
    ) -> None:
        known, ended, said = self.of_it(*voters, leader=leader)
        with pytest.raises(WrongNode, match="Move its data directory away"):
            known.check(N1, said, claim(), Claim(0, 1, (N2,)))
        assert len(ended) == 1
        assert ("the one that is right" in ended[0]) is (len(voters) == 2)

    @pytest.mark.parametrize("leader", [None, N2])
    def test_one_of_several_that_follows_nobody_does_not_end_it(self, leader: NodeId | None) -> None:
        """It may be left of a cluster that was given up, and the one that it would end all that there is."""
        known, ended, said = self.of_it(*VOTERS, leader=leader)
        with pytest.raises(WrongNode, match="Unless it is the one that is right") as refused:
            known.check(N1, said, claim(), Claim(0, 1, (N2,)))
        assert refused.value.fields["former"], "it is to hear who is here"
        assert not ended

    @pytest.mark.parametrize("settled", [True, False])
    @pytest.mark.parametrize(("leader", "either"), [(None, True), (N3, False)])
    def test_nor_does_that_one_say_whose_data_are_to_go(
        self, leader: NodeId | None, either: bool, settled: bool
    ) -> None:
        kept = Kept({N2: FIRST}, settled=settled)
        kept.known.leader = lambda: leader
        said = hello(SECOND, index=1, lone=True) | {"members": [0, 1, [N2]]}
        with pytest.raises(WrongNode, match="Move its data directory away") as refused:
            kept.known.check(N2, said, Claim(0, 1, (N2,)), claim())
        assert ("the one that is right" in refused.value.message) is either

    @pytest.mark.parametrize(
        ("voters", "leader", "own", "theirs", "mine", "ends"),
        [
            (VOTERS, N1, "", "ab" * 16, Claim(0, 1, (N2,)), True),
            ((N1, N2), None, "", "ab" * 16, Claim(0, 1, (N2,)), True),
            (VOTERS, None, "", "ab" * 16, Claim(0, 1, (N2,)), False),
            (VOTERS, N1, "cd" * 16, "ab" * 16, Claim(0, 1, (N2,)), False),  # it was restored itself
            (VOTERS, N1, "", "ab" * 16, Claim(1, 7, (N2,)), False),  # it has had others
            ((N2,), N2, "", "ab" * 16, Claim(0, 1, (N2,)), False),
        ],
    )
    def test_it_ends_too_where_the_others_were_restored_since(
        self, voters: tuple[NodeId, ...], leader: NodeId | None, own: str, theirs: str, mine: Claim, ends: bool
    ) -> None:
        """They are of another history: both refused each other for that, and it led on."""
        known, ended, said = self.of_it(*voters, leader=leader)
        with pytest.raises(WrongNode) if ends else contextlib.nullcontext():
            known.find_former(N1, said | {"lineage": theirs}, claim(), mine, Identity(N2, "c", b"same", own))
        assert bool(ended) is ends

    @pytest.mark.parametrize("change", [{"settings": b"others"}, {"remembers": [1, 2, 3]}])
    def test_of_another_history_with_other_settings_they_are_strangers(self, change: dict[str, Any]) -> None:
        """A restore that is tried elsewhere, and reaches this one."""
        known, ended, said = self.of_it(*VOTERS)
        said |= {"lineage": "ab" * 16}
        mine = Identity(N2, "c", b"same", remembers=(1, 2, 4))
        known.find_former(N1, said | change, claim(), Claim(0, 1, (N2,)), mine)
        assert not ended
        with pytest.raises(WrongNode):
            known.find_former(N1, said | {"remembers": [1, 2, 4]}, claim(), Claim(0, 1, (N2,)), mine)

    @pytest.mark.parametrize("change", [{"met": [], "met_lone": []}, {"members": [0, 0, list(VOTERS)]}])
    def test_it_leads_on_where_nothing_says_that_its_disk_is_another(self, change: dict[str, Any]) -> None:
        """One that it has just asked to join may have more of its journal than its own disk after a power loss."""
        known, ended, said = self.of_it(N1, N2)
        said |= change
        with contextlib.suppress(WrongNode):
            known.check(N1, said, Claim.of(said), Claim(0, 1, (N2,)))
        assert not ended

    def test_where_nobody_else_votes_it_is_for_people_to_decide(self) -> None:
        known, ended, said = self.of_it(N2)
        with pytest.raises(WrongNode, match="go on with one of them"):
            known.check(N1, said, claim(), Claim(0, 1, (N2,)))
        assert not ended

    def test_who_takes_it_back_is_not_turned_away(self) -> None:
        """Its journal was damaged, and what it learns of the members comes in their order."""
        known, ended, said = self.of_it(*VOTERS)
        known.check(N1, said, claim(), Claim(0, 1, (N2,)), rejoining=True)
        assert not ended

    @pytest.mark.parametrize("voters", [VOTERS, (N2,)])
    def test_an_empty_one_begins_anew(self, voters: tuple[NodeId, ...]) -> None:
        known, _, said = self.of_it(*voters)
        known.forget = lambda _: True
        with pytest.raises(WrongNode, match="begins anew"):
            known.find_out(N1, said, Claim.of(said), Claim(0, 1, (N2,)), ALIKE)

    def test_of_two_an_empty_one_is_fed_and_says_that_it_does_not_vote_alone(self) -> None:
        known, ended, said = self.of_it(N1, N2)
        waits = waiting(known)
        with pytest.raises(WrongNode, match="is fed"):
            known.find_out(N1, said, Claim.of(said), Claim(0, 1, (N2,)), ALIKE)
        assert waits == [(3, 20)]
        assert known.fields()["lone"] is False
        known.find_out(N1, said, Claim.of(said), Claim(0, 1, (N2,)), ALIKE)
        known.check(N1, said, Claim.of(said), Claim(0, 1, (N2,)))
        assert not ended

    def test_with_data_it_is_not_fed_for_it_has_led(self) -> None:
        known, ended, said = self.of_it(N1, N2)
        waits = waiting(known, empty=False)
        known.find_out(N1, said, Claim.of(said), Claim(0, 1, (N2,)), ALIKE)
        with pytest.raises(WrongNode, match="Move its data directory away"):
            known.check(N1, said, Claim.of(said), Claim(0, 1, (N2,)))
        assert ended
        assert not waits


def waiting(known: Directories, *, empty: bool = True) -> list[tuple[int, int]]:
    """Terms and indices of what it waits for."""
    waits: list[tuple[int, int]] = []

    def wait_for(theirs: Claim, lineage: str, lost: bool) -> bool:
        waits.append(theirs[:2])
        return False

    known.wait_for, known.empty, known.lacks = wait_for, lambda: empty, lambda: bool(waits)
    return waits


class TestFed:
    """Of few, with what is from before: it leads nobody until it has what the other one has told it of."""

    def told(
        self, header: dict[str, Any], *, empty: bool, mine: tuple[int, int] = (0, 1), heard: int = 7
    ) -> list[tuple[int, int]]:
        own = Own(b"l" * LIFE_BYTES, 7, lambda: 7)
        known = Directories(N1, MINE, {}, lambda *_: None, marks=Marks(own, {}, lambda *_: None))
        known.follow(replace(configuration(*VOTERS), term=mine[0], index=mine[1]), settled=True)
        waits = waiting(known, empty=empty)
        header |= {"heard_lone": [[N1, MINE, b"k" * LIFE_BYTES, heard]]}
        known.find_out(N2, header, Claim.of(header), Claim(*mine, VOTERS), ALIKE)
        return waits

    @pytest.mark.parametrize("voters", [1, 2])
    def test_an_empty_one_waits_for_what_is_newer_whoever_has_met_it(self, voters: int) -> None:
        """It may have ended when the other one had met it again, and before it had heard of that."""
        said = hello(SECOND, voters=voters)
        assert self.told(said, empty=True) == [(3, 20)]
        assert not self.told(said, empty=True, mine=(3, 20))
        assert not self.told(said, empty=False), "it was away"
        assert not self.told(said | {"members": [3, 20, [N2, N3]]}, empty=True), "it is no member"

    def test_of_two_so_does_one_whose_disk_is_another_or_was_put_back(self) -> None:
        said = hello(SECOND, voters=2)
        assert self.told(said | {"met_lone": [[N1, FIRST]]}, empty=False) == [(3, 20)]
        assert self.told(said, empty=False, heard=8) == [(3, 20)]
        assert not self.told(hello(SECOND, voters=3), empty=False, heard=8)
        assert not self.told(hello(SECOND, voters=3), empty=True), "it may not come to be committed"

    def test_of_two_without_a_change_it_hears_of_their_history_all_the_same(self) -> None:
        said = hello(SECOND, voters=2, met_lone=[[N1, FIRST]], lineage="ab" * 16)
        assert self.told(said, empty=True, mine=(3, 20)) == [(3, 20)]

    @pytest.mark.parametrize("strange", [{"settings": b"others"}, {"lineage": "?"}])
    def test_what_strangers_have_is_not_waited_for(self, strange: dict[str, Any]) -> None:
        said = hello(SECOND, voters=2, met_lone=[[N1, FIRST]])
        assert self.told(dict(said), empty=True)
        assert not self.told(said | strange, empty=True)


class TestOwn:
    def asked(self, kept: Kept, header: dict[str, Any]) -> list[str]:
        """With which lineage this node is asked to forget."""
        asked: list[str] = []
        kept.known.forget = lambda lineage: bool(asked.append(lineage) or True)
        with contextlib.suppress(WrongNode):
            kept.known.find_out(N2, header, claim(), claim(), ALIKE)
        return asked

    def test_an_empty_one_that_others_have_met_with_another_disk_begins_anew(self) -> None:
        assert self.asked(Kept(), hello(SECOND, met=[[N1, FIRST]], lineage="ab" * 16)) == ["ab" * 16]

    @pytest.mark.parametrize("met", [[], [[N1, MINE]], [[N3, FIRST]], None])
    def test_nobody_has_met_another(self, met: Any) -> None:
        assert not self.asked(Kept(), hello(SECOND, met=met))

    def test_the_link_ends_where_it_begins_anew_and_nowhere_else(self) -> None:
        kept, told = Kept(), hello(SECOND, met=[[N1, FIRST]])
        kept.known.find_out(N2, told, claim(), claim(), ALIKE)  # it cannot: it has data
        kept.known.forget = lambda _: True
        kept.known.find_out(N2, hello(SECOND, met=[[N1, MINE]]), claim(), claim(), ALIKE)
        with pytest.raises(WrongNode, match="begins anew"):
            kept.known.find_out(N2, told, claim(), claim(), ALIKE)

    def test_with_data_it_is_a_disk_of_before_or_a_second_process(self) -> None:
        with pytest.raises(WrongNode, match="has data"):
            Kept().known.check_own(N2, hello(SECOND, met=[[N1, FIRST]]), claim(), claim())

    def test_who_has_not_heard_that_it_began_anew_is_answered(self) -> None:
        Kept().known.check_own(N2, hello(SECOND, met=[[N1, FIRST]]), claim(), claim(21))

    def test_its_new_name_is_kept(self) -> None:
        kept = Kept({N2: FIRST})
        kept.known.renew(TOKEN)
        assert kept.disk == [(TOKEN, {N2: FIRST})]
        assert kept.known.fields()["directory"] == TOKEN


@pytest.mark.parametrize(
    "change",
    [
        {"directory": b"short"},
        {"directory": 7},
        {"met": 7},
        {"met": [7]},
        {"met": [[N1]]},
        {"met": [[N1, "text"]]},
        {"met": [[[], FIRST]]},
    ],
)
def test_what_is_no_directory_is_refused(change: dict[str, Any]) -> None:
    header, known = hello(FIRST) | change, Kept({N2: FIRST}).known
    check = partial(known.find_out, N2, header, claim(), claim(), ALIKE)
    if "directory" in change:
        check = partial(known.check, N2, header, claim(), claim())
    with pytest.raises(ProtocolError):
        check()
