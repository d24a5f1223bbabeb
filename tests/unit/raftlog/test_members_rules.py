"""Who is asked, let in and believed when members change: changes of single operators there no unit test saw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logboom.errors import LogboomError, WrongNode
from logboom.types import NodeId
from logboom.wire import Frame, Kind
from raftlog.entries.configuration import Role
from raftlog.members.changes import Changes
from raftlog.members.roster import Roster
from tests.unit.raftlog.outbox_world import Offload, Target, group_of
from tests.unit.raftlog.transfer_world import NODES
from tests.unit.raftlog.transfer_world import Leader as Transferring
from tests.unit.raftlog.voter_world import OTHER, OURS, THEIRS, Leader

TOKEN = b"t" * 16


class TestHandingOver:
    def test_whoever_is_to_lead_is_asked_once(self) -> None:
        leader = Transferring()
        leader.transfer.begin(NODES[1], leader.told.append)
        for _ in range(3):
            leader.transfer.tick()
        assert leader.asked == [NODES[1]]

    def test_it_has_succeeded_when_this_node_leads_no_more(self) -> None:
        leader = Transferring()
        leader.transfer.begin(None, leader.told.append)
        assert leader.transfer.under_way
        leader.transfer.lost()
        assert leader.told == [None]
        assert not leader.transfer.under_way


class TestWhoHasForgotten:
    """A voter that says that its journal is lost begins anew: once, and while the others can do without it."""

    def begun(self, *, admits: bool = True) -> tuple[Leader, Changes]:
        leader = Leader()
        engine = leader.engine
        engine.forgetful[OTHER] = TOKEN
        return leader, Changes(membership=engine.membership, engine=engine, clock=engine.clock, admits=lambda: admits)

    def test_it_joins_anew_once(self) -> None:
        leader, changes = self.begun()
        engine = leader.engine
        changes.tick()
        current = engine.membership.current
        assert current.voters == (OURS, THEIRS)
        assert current.rejoined_with(OTHER) == TOKEN
        leader.acknowledge(THEIRS)
        changes.committed(current.index)
        changes.tick()
        assert engine.membership.current == current

    def test_not_by_one_that_admits_nothing(self) -> None:
        leader, changes = self.begun(admits=False)
        changes.tick()
        assert leader.engine.membership.current.voters == (OURS, THEIRS, OTHER)

    def test_not_while_the_others_are_no_majority_of_themselves(self) -> None:
        leader, changes = self.begun()
        leader.engine.connected(THEIRS, up=False)
        changes.tick()
        assert leader.engine.membership.current.voters == (OURS, THEIRS, OTHER)
        leader.engine.connected(THEIRS, up=True)
        changes.tick()
        assert leader.engine.membership.current.voters == (OURS, THEIRS)

    def test_not_beside_another_change(self) -> None:
        leader, changes = self.begun()
        told: list[LogboomError | None] = []
        del leader.engine.forgetful[OTHER]
        changes.propose(lambda now: now.removing(OTHER), told.append)
        leader.engine.forgetful[THEIRS] = TOKEN
        before = leader.engine.membership.current
        changes.tick()
        assert leader.engine.membership.current == before


class TestStanding:
    def roster(self, rejoining: Any = None) -> Roster:
        engine: Any = Leader().engine
        engine.membership.rejoining = rejoining
        nobody: Any = SimpleNamespace()
        return Roster(
            membership=engine.membership, engine=engine, feeds=nobody, links=nobody, repair=nobody, clock=engine.clock
        )

    def test_who_is_told_that_it_was_removed_for_good_believes_it(self) -> None:
        roster = self.roster()
        assert roster.standing == Role.VOTER
        roster.refused(THEIRS, Frame(Kind.ERROR, 0, WrongNode("n1 was removed", gone=True).to_wire()))
        assert roster.standing == "removed"

    @pytest.mark.parametrize("gone", [None, False, 1])
    def test_whatever_else_is_said_ends_the_link_alone(self, gone: object) -> None:
        roster = self.roster()
        error = WrongNode("n1 is not expected here", gone=gone)
        with pytest.raises(WrongNode):
            roster.refused(THEIRS, Frame(Kind.ERROR, 0, error.to_wire()))
        assert roster.standing == Role.VOTER

    def test_who_has_forgotten_says_so(self) -> None:
        assert self.roster(SimpleNamespace(token=TOKEN)).standing == "rejoining"

    def test_it_has_begun_anew_when_the_log_says_so_of_this_time(self) -> None:
        membership = Leader().engine.membership
        assert not membership.began_anew(1 << 60)
        membership.rejoining = SimpleNamespace(token=TOKEN)  # type: ignore[assignment]
        assert not membership.began_anew(1 << 60)
        again = membership.current.rejoining(NodeId("n1"), TOKEN)
        membership._known.append(again)
        assert membership.began_anew(again.index)
        assert not membership.began_anew(again.index - 1)
        membership.rejoining = SimpleNamespace(token=b"u" * 16)  # type: ignore[assignment]
        assert not membership.began_anew(again.index)


def test_who_has_another_disk_has_acknowledged_nothing() -> None:
    leader, changed = Leader(), iter((True, False))
    lost: list[NodeId] = []
    engine: Any = SimpleNamespace(peers=leader.engine.peers, lost_disk=lost.append)
    links: Any = SimpleNamespace(directories=SimpleNamespace(has_changed=lambda _: next(changed)))
    nobody: Any = SimpleNamespace()
    roster = Roster(
        membership=leader.engine.membership, engine=engine, feeds=nobody, links=links, repair=nobody, clock=nobody
    )
    assert [roster.link_up(THEIRS), roster.link_up(THEIRS)] == [True, False]
    assert lost == [THEIRS]


def test_after_a_sync_has_failed_nothing_is_tried_again_and_nothing_leaves() -> None:
    """The next one may succeed without having written what the first could not."""
    offload, journal, failures, sent = Offload(), Target(broken=True), list[BaseException](), list[str]()
    group = group_of(offload, journal, failures)
    journal.queued = 1
    group.hold(lambda: sent.append("acknowledged"))
    group.kick()
    offload.finish_one()
    assert len(failures) == 1
    journal.broken, journal.queued = False, 2
    group.hold(lambda: sent.append("the next one"))
    group.kick()
    assert offload.jobs == []
    assert sent == []
