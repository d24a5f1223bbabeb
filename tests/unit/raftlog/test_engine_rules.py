"""Rules of the engine, each by itself: what only a run of a whole cluster would show otherwise."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logboom.settings import RaftSettings
from logboom.types import NodeId
from raftlog.core import RaftLog
from raftlog.entries.configuration import Role, Seat
from raftlog.entries.entry import pack_control
from tests.unit.raftlog.base_world import OTHER, OURS, PEER, Node
from tests.unit.raftlog.outbox_world import Offload, group_of
from tests.unit.raftlog.voter_world import THEIRS, Leader, Voter, append_entries


def test_members_that_come_with_a_conflict_count_at_once(tmp_path: Path) -> None:
    """What is cut off names none: the entries in its place do."""
    node = Node(tmp_path)
    more = Seat(NodeId("n4"), "n4:1", "n4:2", Role.LEARNER)
    command = pack_control(node.engine.membership.current.adding(more).fields())
    message = append_entries(16, 16) | {"term": 2, "entries": [(command, 16, 2)]}
    node.engine.receive(PEER, message)
    assert node.journal.entry(16)[2] == 2
    assert "n4" in node.engine.peers


def test_a_vote_is_given_beside_a_leader_that_is_heard_only_if_he_wants_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.engine.receive(PEER, append_entries(17, 17))
    ask = {"type": "request_vote", "term": 2, "last_log_index": 99, "last_log_term": 1}
    node.engine.receive(OTHER, ask)
    assert (node.engine.term, node.journal.vote) == (1, "n2")
    node.engine.receive(OTHER, ask | {"force": True})
    assert (node.engine.term, node.journal.vote) == (2, OTHER)


def test_what_a_leader_has_committed_proves_something_only_in_its_own_term(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.engine.covering_commit() is None, "it has heard of nothing since its start"
    node.engine.receive(PEER, append_entries(17, 17) | {"term": 2, "commit_index": 17})
    assert node.engine.commit_index == 17
    assert node.engine.covering_commit() is None, "of an earlier term"
    entry = [(append_entries(18, 18)["entries"][0][0], 18, 2)]
    last = {"term": 2, "entries": entry, "prevLogIdx": 17}
    node.engine.receive(PEER, append_entries(18, 18) | last | {"commit_index": 18})
    assert node.engine.covering_commit() == node.engine.commit_index == 18
    node.engine.receive(PEER, append_entries(18, 18) | last | {"commit_index": 19})
    assert node.engine.covering_commit() is None, "it has committed what is not here"
    assert OURS not in node.engine.peers


def test_what_a_new_leader_has_committed_is_handed_up_once_its_term_is_synced(tmp_path: Path) -> None:
    """Killed before, and started in the term before, it believed that one's leader, and showed less than it had."""
    node, offload, poked, failures = Node(tmp_path), Offload(), list[bool](), list[BaseException]()
    events = SimpleNamespace(synced=lambda: None)
    raft: Any = SimpleNamespace(engine=node.engine, events=events, poke=lambda: poked.append(True))
    group = group_of(offload, node.journal, failures, synced=lambda: RaftLog._on_synced(raft))
    beat = {"type": "append_entries", "entries": [], "prevLogIdx": 16, "prevLogTerm": 1}
    node.engine.receive(PEER, beat | {"term": 1, "commit_index": 12, "seq": 1})
    assert not node.engine.tick()
    assert node.applied == [12]
    node.engine.receive(OTHER, beat | {"term": 2, "commit_index": 14, "seq": 1})
    assert not node.engine.tick()
    assert (node.engine.commit_index, node.applied) == (14, [12])
    group.kick()
    assert not node.engine.tick()
    assert (node.applied, poked) == ([12], [])
    offload.finish_one()
    assert (poked, failures) == ([True], []), "it is the term alone that was written"
    assert not node.engine.tick()
    assert node.applied == [12, 13, 14]


def test_a_term_that_is_known_of_its_last_entry_alone_is_synced_with_that() -> None:
    """Nothing is queued that would say so: nothing was handed up until the next term."""
    voter = Voter(now=1000.0)
    assert (voter.engine.term, voter.engine.journal.term, voter.engine.journal.dirty) == (1, 0, False)
    voter.engine.receive(THEIRS, append_entries(4, 4) | {"commit_index": 3})
    assert not voter.engine.tick()
    assert voter.applied == [2, 3]


def test_who_leads_no_more_asks_nobody_to_confirm_that_it_does(tmp_path: Path) -> None:
    """Until its next turn others take it for the leader: a read that is alone went out in the new leader's name."""
    node = Node(tmp_path)
    node.lead()
    node.answers(node.journal.last_index + 1, success=True)
    assert node.engine.quickest == [PEER]
    node.engine.receive(OTHER, {"type": "request_vote", "term": 3, "last_log_index": 99, "last_log_term": 2})
    assert (node.engine.is_leader, node.engine.term) == (False, 3)
    node.sent.clear()
    assert not node.engine.start_lone_round()
    assert node.sent == []


def test_who_is_deposed_waits_for_whoever_deposes_it_as_long_as_any_other_does() -> None:
    """Its deadline was of before it led: in that same turn it asked for pre-votes, with more than the other has."""
    leader = Leader()
    for _ in range(20):
        leader.acknowledge(THEIRS)
        leader.wait(0.1)
    term, shortest = leader.engine.term + 1, RaftSettings().election_min_ms / 1000
    leader.engine.receive(OTHER, {"type": "request_vote", "term": term, "last_log_index": 2, "last_log_term": 1})
    assert (leader.engine.is_leader, leader.engine.term) == (False, term)
    leader.sent.clear()
    leader.wait(shortest - 0.01)
    assert leader.sent == []
    leader.wait(1.0)
    assert {message["type"] for message in leader.sent} == {"pre_vote"}


@pytest.mark.parametrize("able", [True, False])
def test_a_leader_that_is_silent_for_too_long_is_nobodys_any_more_until_it_is_heard(tmp_path: Path, able: bool) -> None:
    """With two of three gone, the last one took a dead one for its leader, for good."""
    node = Node(tmp_path)
    node.engine.may_lead = able
    node.engine.receive(PEER, append_entries(17, 17))
    assert node.engine.leader == PEER
    for _ in range(100):
        node.now += 0.01
        node.engine.tick()
    assert node.engine.leader is None
    node.engine.receive(PEER, append_entries(17, 17))
    assert node.engine.leader == PEER
    assert not node.engine.is_candidate
