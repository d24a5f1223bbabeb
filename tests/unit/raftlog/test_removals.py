"""Removals: of a leader, which leads no longer once that is committed; and of whom the others need, not at all."""

from __future__ import annotations

import pytest

from logboom.errors import Unavailable, WrongNode
from logboom.types import NodeId
from raftlog.entries.configuration import Role, Seat
from raftlog.entries.entry import pack_control
from raftlog.members.changes import Changes
from tests.unit.raftlog.voter_world import OTHER, OURS, THEIRS, Leader


def test_a_leader_that_was_removed_leads_until_that_is_committed_and_no_longer() -> None:
    leader = Leader()
    removal = leader.engine.membership.current.removing(OURS)
    leader.engine.append(pack_control(removal.fields()))
    leader.acknowledge(THEIRS)
    assert leader.engine.is_leader, "one of the two that vote now is no majority of them"
    leader.acknowledge(OTHER)
    assert not leader.engine.is_leader


def test_nobody_is_removed_whom_the_others_need() -> None:
    """With one of three gone, the other two need each other; the one that is gone may be removed."""
    leader = Leader()
    engine = leader.engine
    changes = Changes(membership=engine.membership, engine=engine, clock=engine.clock, admits=lambda: True)
    engine.connected(OTHER, up=False)
    with pytest.raises(Unavailable, match=r"left \(n1, n3\) only n1 can be reached") as refused:
        changes.propose(lambda now: now.removing(THEIRS), pytest.fail)
    assert refused.value.retryable
    assert engine.membership.current.voters == (OURS, THEIRS, OTHER)
    changes.propose(lambda now: now.removing(OTHER), lambda _: None)
    assert engine.membership.current.voters == (OURS, THEIRS)


def test_a_change_that_is_committed_and_not_handed_up_here_yet_is_answered_before_another_begins() -> None:
    """The second took its place, and whoever had asked for the first was never answered."""
    leader, told = Leader(), []
    engine = leader.engine
    changes = Changes(membership=engine.membership, engine=engine, clock=engine.clock, admits=lambda: True)
    changes.propose(lambda now: now.adding(Seat(NodeId("n4"), "h:1", "h:2", Role.LEARNER)), told.append)
    index = engine.membership.current.index
    leader.acknowledge(THEIRS)
    assert engine.commit_index == index
    with pytest.raises(Unavailable, match="another change"):
        changes.propose(lambda now: now.removing(OTHER), pytest.fail)
    changes.committed(index)
    assert told == [None]
    changes.propose(lambda now: now.removing(OTHER), told.append)


def test_a_node_of_another_history_is_refused_and_ends_nobody() -> None:
    """What it said that it holds was an invariant: one old node ended each leader of a restored cluster."""
    leader = Leader()
    engine, before = leader.engine, leader.engine.acknowledged_by(OTHER)
    message = {"type": "next_node_idx", "term": engine.term, "seq": engine.round, "success": True, "reset": False}
    with pytest.raises(WrongNode, match=r"n3 says that it holds Raft entry 998, .* another history"):
        engine.receive(OTHER, message | {"next_node_idx": 999})
    assert engine.is_leader
    assert engine.acknowledged_by(OTHER) == before
