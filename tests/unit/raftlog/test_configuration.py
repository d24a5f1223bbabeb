"""The rules of membership, as values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from logboom.errors import CorruptData, InvalidRequest
from logboom.settings import Member
from logboom.types import ID_LENGTH_MAX, GlobalLogIndex, NodeId
from ports.invariant import InvariantViolated
from raftlog.entries.configuration import NOBODY, REMOVED_MAX, SEATS_MAX, Configuration, Role, Seat
from raftlog.entries.entry import CONTROL_BYTES_MAX, pack_control
from raftlog.entries.parent_state import ParentState
from raftlog.journal.journal_base import Base
from raftlog.journal.membership import Membership, parse
from tests.unit.raftlog.voter_world import journal_of

N1, N2, N3, N4 = (NodeId(f"n{k}") for k in range(1, 5))
TOKEN, ANOTHER = b"t" * 16, b"u" * 16


def seat(node: str, role: Role = Role.JOINING, *, port: int | None = None) -> Seat:
    port = 10 * int(node[1:]) if port is None else port
    return Seat(NodeId(node), f"h:{port}", f"h:{port + 1}", role)


def three() -> Configuration:
    return Configuration.of_settings(
        tuple(Member(id=n, peer_address=seat(n)[1], client_address=seat(n)[2]) for n in (N3, N1, N2))
    )


class TestRules:
    def test_a_cluster_begins_with_voters(self) -> None:
        assert three().voters == three().ids == (N1, N2, N3)
        assert (three().term, three().index) == (0, 1)

    def test_who_is_added_counts_for_nothing_until_it_votes(self) -> None:
        added = three().adding(seat(N4))
        assert added.ids == (N1, N2, N3, N4)
        assert added.voters == (N1, N2, N3)
        assert added.giving(N4, Role.VOTER).voters == (N1, N2, N3, N4)

    def test_asked_again_nothing_changes(self) -> None:
        added = three().adding(seat(N4, Role.LEARNER))
        assert added.adding(seat(N4)) is added
        assert three().giving(N1, Role.JOINING).says_the_same(three()), "a voter stays one"
        gone = three().removing(N2)
        assert gone.removing(N2) is gone

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda now: now.adding(seat(N1, port=99)), "already, at .* elsewhere, `logboom members update n1`"),
            (lambda now: now.adding(Seat(N4, "h:10", "h:5", Role.JOINING)), "n1 is at one of these"),
            (lambda now: now.adding(Seat(N4, "h:5", "h:5", Role.JOINING)), "must differ"),
            (lambda now: now.adding(Seat(N4, "h", "h:5", Role.JOINING)), "host:port"),
            (lambda now: now.adding(Seat(NodeId("a b"), "h:4", "h:5", Role.JOINING)), "cannot be an id"),
            (lambda now: now.adding(Seat(NodeId("x" * (ID_LENGTH_MAX + 1)), "h:4", "h:5", Role.JOINING)), "cannot be"),
            (lambda now: now.removing(N2).adding(seat(N2)), "not used again"),
            (lambda now: now.removing(N4), "not a member"),
            (lambda now: now.giving(N4, Role.VOTER), "not a member"),
            (lambda now: now.removing(N1).removing(N2).removing(N3), "only voter"),
            (lambda now: now.moving(N4, peer_address="h:5"), "not a member"),
            (lambda now: now.moving(N1, peer_address="h"), "host:port"),
            (lambda now: now.moving(N1, peer_address="h:11"), "must differ"),
            (lambda now: now.moving(N1, client_address="h:20"), "n2 is at one of these"),
        ],
    )
    def test_what_can_never_be_is_refused(self, change: Callable[[Configuration], Any], words: str) -> None:
        with pytest.raises(InvalidRequest, match=words):
            change(three())

    def test_who_moves_stays_what_it_is(self) -> None:
        now = replace(three().adding(seat(N4, Role.LEARNER)).rejoining(N2, TOKEN), term=2, index=7)
        moved = now.moving(N2, client_address="elsewhere:5").moving(N4, peer_address="h:7", client_address="h:8")
        assert (moved.voters, moved.ids, moved.removed, moved.rejoined) == (
            now.voters, now.ids, now.removed, now.rejoined,
        )  # fmt: skip
        assert moved.seat(N2) == (N2, "h:20", "elsewhere:5", Role.JOINING)
        assert moved.seat(N4) == (N4, "h:7", "h:8", Role.LEARNER)
        assert moved.moving(N2, client_address="elsewhere:5") is moved, "asked again nothing changes"

    def test_where_each_node_goes_by_its_own_settings_the_log_says_what_one_of_them_says(self) -> None:
        """The leader's may name another address than others': that is no reason to tell them nothing."""
        said = three().moving(N1, peer_address="h:10", client_address="h:11")
        assert said.says_the_same(three())
        assert said is not three()

    def test_whatever_becomes_of_the_members_fits_into_an_entry(self) -> None:
        """Else the leader that let one rejoin, or made one a voter, ended, and the next one too."""
        now, most = three(), CONTROL_BYTES_MAX - len(pack_control(three().fields()))
        fourth = Seat(N4, "h" * most + ":1", "c:1", Role.JOINING)
        with pytest.raises(InvalidRequest, match="no room"):
            now.adding(fourth)
        now = now.adding(fourth._replace(peer_address="h" * (most - 200) + ":1"))
        with pytest.raises(InvalidRequest, match="no room"):
            now.moving(N1, peer_address="h" * 200 + ":1")
        for node in now.ids:
            now = now.rejoining(node, TOKEN).giving(node, Role.VOTER)
        for node in now.ids[1:]:
            assert len(pack_control(now.fields())) <= CONTROL_BYTES_MAX
            now = now.removing(node)

    def test_who_has_lost_its_journal_joins_anew_once_for_each_time(self) -> None:
        without = three().rejoining(N2, TOKEN)
        assert without.voters == (N1, N3)
        assert without.seat(N2) == three().seat(N2)._replace(role=Role.JOINING)  # type: ignore[union-attr]
        assert not without.says_the_same(three())
        back = without.giving(N2, Role.VOTER)
        assert back.rejoining(N2, TOKEN) is back, "it was taken out for that already"
        again = back.rejoining(N2, ANOTHER).rejoining(N1, TOKEN)
        assert again.voters == (N3,)
        assert again.rejoined == ((N1, TOKEN), (N2, ANOTHER))
        assert again.removing(N2).rejoined == ((N1, TOKEN),)

    def test_a_learner_stays_one_and_the_last_voter_too(self) -> None:
        learner = three().adding(seat(N4, Role.LEARNER)).rejoining(N4, TOKEN)
        assert learner.seat(N4).role is Role.LEARNER  # type: ignore[union-attr]
        assert learner.rejoined_with(N4) == TOKEN
        with pytest.raises(InvalidRequest, match="only voter"):
            three().removing(N1).removing(N2).rejoining(N3, TOKEN)
        with pytest.raises(InvalidRequest, match="not a member"):
            three().rejoining(N4, TOKEN)

    def test_an_entry_with_all_that_may_be_fits(self) -> None:
        now = three()
        for k in range(4, SEATS_MAX + 1):
            now = now.adding(seat(f"n{k}"))
        with pytest.raises(InvalidRequest, match="cannot be more"):
            now.adding(seat("n99"))
        many = tuple(NodeId(f"{k:0{ID_LENGTH_MAX}d}") for k in range(REMOVED_MAX))
        full = Configuration(now.seats, many, rejoined=tuple((node, TOKEN) for node in now.ids))
        assert len(pack_control(full.fields())) < CONTROL_BYTES_MAX
        with pytest.raises(InvalidRequest, match="no more can be"):
            full.removing(N1)

    def test_two_voters_at_once_are_a_bug(self) -> None:
        with pytest.raises(InvariantViolated):
            three().check_step(three().removing(N1).removing(N2))


class TestEntries:
    def test_an_entry_is_what_went_in(self) -> None:
        now = three().adding(seat(N4, Role.LEARNER)).removing(N1)
        found = parse(pack_control(now.fields()), 9, 3)
        assert found is not None
        assert found.says_the_same(now)
        assert (found.term, found.index) == (3, 9)
        assert parse(pack_control({"do": "cut"}), 9, 3) is None

    def test_who_has_rejoined_is_in_it(self) -> None:
        now = three().rejoining(N3, ANOTHER).rejoining(N1, TOKEN)
        found = parse(pack_control(now.fields()), 9, 3)
        assert found is not None
        assert found.says_the_same(now)

    @pytest.mark.parametrize(
        "rows",
        [None, {}, [["n1"]], [["n1", "text"]], [["n1", b"short"]], [["n9", TOKEN]], [["n2", TOKEN], ["n1", TOKEN]]],
    )
    def test_what_cannot_have_rejoined_is_refused(self, rows: object) -> None:
        with pytest.raises(CorruptData):
            parse(pack_control({**three().fields(), "rejoined": rows}), 9, 3)

    @pytest.mark.parametrize(
        "change",
        [
            {"members": []},
            {"members": None},
            {"removed": None},
            {"removed": [7]},
            {"removed": ["n1"]},
            {"members": [["n1", "h:1", "h:2"]]},
            {"members": [["n1", "h:1", "h:2", "king"]]},
            {"members": [["n1", "h", "h:2", "voter"]]},
            {"members": [["", "h:1", "h:2", "voter"]]},
            {"members": [["n1", "h:1", "h:2", "learner"]]},
            {"members": [["n2", "h:1", "h:2", "voter"], ["n1", "h:3", "h:4", "voter"]]},
            {"members": [["n1", "h:1", "h:2", "voter"], ["n1", "h:3", "h:4", "voter"]]},
        ],
    )
    def test_nonsense_is_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(CorruptData):
            Configuration.parse({**three().fields(), **change}, term=1, index=2)

    def test_the_parent_state_keeps_the_last_one(self) -> None:
        state = ParentState()
        assert ParentState.decode(state.encode()).members is None
        fields = three().adding(seat(N4)).fields()
        state.control(5, 2, fields)
        state.control(6, 2, {"do": "cut"})
        again = ParentState.decode(state.encode())
        assert again == state == state.copy()
        assert again.members is not None
        assert (again.members.term, again.members.index) == (2, 5)
        raw = bytearray(state.encode())
        for at in range(21, len(raw)):
            raw[at] ^= 0xFF
            with contextlib.suppress(CorruptData):
                ParentState.decode(bytes(raw))
            raw[at] ^= 0xFF
        assert ParentState.decode(bytes(raw)).global_index == GlobalLogIndex(0)


class TestMembership:
    def test_the_last_one_in_the_journal_counts_until_it_is_cut_off(self) -> None:
        journal = journal_of(3)
        added = three().adding(seat(N4))
        journal.add(pack_control(added.fields()), 5, 1)
        journal.add(pack_control(added.giving(N4, Role.VOTER).fields()), 6, 1)
        membership = Membership(node_id=N4, journal=journal, begins=NOBODY)
        assert (membership.current.index, membership.current.voters) == (6, (N1, N2, N3, N4))
        assert not membership.truncated(7)
        assert membership.truncated(6)
        assert (membership.current.index, membership.current.voters) == (5, (N1, N2, N3))
        assert membership.truncated(2)
        assert membership.current is NOBODY

    def test_who_is_removed_campaigns_until_that_is_committed(self) -> None:
        """Perhaps nobody else has the entry, and the others cannot do without this one."""
        membership = Membership(node_id=N1, journal=journal_of(3), begins=three())
        gone = three().removing(N1)
        found = parse(pack_control(gone.fields()), 5, 1)
        assert found is not None
        membership.take(found)
        assert membership.may_campaign(4)
        assert not membership.may_campaign(5)
        assert not membership.removed_at(4)
        assert membership.removed_at(5)
        assert {each.node for each in membership.seats(4)} == {N1, N2, N3}
        assert {each.node for each in membership.seats(5)} == {N2, N3}

    def test_what_was_before_the_journal_begins_is_forgotten(self) -> None:
        journal = journal_of(20)
        membership = Membership(node_id=N1, journal=journal, begins=three())
        for index in range(5, 20):
            membership.take(replace(three(), index=index))
        assert membership.truncated(19), "any of them may count again"
        journal.compacted(Base(15, 1, b""))
        membership.take(replace(three(), index=20))
        assert [each.index for each in membership._known] == [15, 16, 17, 18, 20]
        assert membership.truncated(16)
        assert membership.current.index == 15

    def test_a_learner_never_campaigns(self) -> None:
        membership = Membership(node_id=N4, journal=journal_of(3), begins=three().adding(seat(N4)))
        assert not membership.may_campaign(1)
