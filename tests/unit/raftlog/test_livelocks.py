"""What the simulator found to stand still for ever: each piece by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logboom.settings import RaftSettings
from logboom.types import NodeId
from logboom.wire import Kind
from raftlog.engine.elections import GIVE_WAY
from raftlog.engine.patience import Patience
from raftlog.entries.entry import pack_routes
from raftlog.journal.journal import Journal
from raftlog.links import gate
from raftlog.links.lacks import Lack
from raftlog.repair.mending import Mending
from raftlog.repair.repair import Repair
from raftlog.repair.wanted import Wanted
from tests.unit.raftlog.voter_world import THEIRS, Voter, append_entries, journal_of, route


def test_a_message_whose_first_payload_is_missing_still_asks_for_the_entry_before() -> None:
    """Cut down to a bare heartbeat, nobody ever said that the entries before it were not here either."""
    message, missing = gate.pass_through(append_entries(10, 12), lambda *_: False)
    assert (missing, message["entries"], message["prevLogIdx"]) == (10, [], 9)


def test_payload_is_asked_for_only_where_the_journals_agree_before_it() -> None:
    """Else each question has the leader come forward again, which is going back to where they do."""
    message = append_entries(10, 12) | {"prevLogTerm": 2}
    assert [gate.agrees(message, 10, term) for term in (1, 2, None)] == [False, True, False]
    assert [gate.agrees(message, 12, term) for term in (1, 2, None)] == [True, False, False]


class Wire:
    def __init__(self, journal: Journal, held: set[int]) -> None:
        self.sent: list[tuple[NodeId, Kind]] = []
        self.now = 0.0
        payloads = SimpleNamespace(holds=lambda each: each.last_index in held, lack=lambda _: Lack.ABSENT)
        self.repair = Repair(
            peers=[THEIRS],
            links=SimpleNamespace(send=self.send, connected=lambda _: True),  # type: ignore[arg-type]
            payloads=payloads,  # type: ignore[arg-type]
            journal=journal,
            offload=SimpleNamespace(),  # type: ignore[arg-type]
            clock=SimpleNamespace(monotonic=lambda: self.now),  # type: ignore[arg-type]
            damaged=lambda _: None,
        )

    def send(self, peer: NodeId, kind: Kind, *_: object) -> bool:
        self.sent.append((peer, kind))
        return True


def test_payload_of_an_entry_that_a_new_leader_replaced_is_given_up() -> None:
    """Perhaps nobody has it any more; the node must not stay out of elections for its sake."""
    journal = journal_of(5)
    wire = Wire(journal, held={2, 3, 4})
    wire.repair.missing([Wanted(route(5), 5), Wanted(route(6), 6)])
    assert not wire.repair.work()
    assert wire.sent == [(THEIRS, Kind.FETCH)]
    assert wire.repair.first_index == 5
    journal.truncate_from(5)
    journal.add(pack_routes([route(50)]), 5, 2)
    assert wire.repair.work(), "still waiting for batches of entries that are gone"


def test_payload_of_a_committed_entry_is_never_given_up() -> None:
    wire = Wire(journal_of(5), held=set())
    wire.repair.missing([Wanted(route(99), None)])
    for _ in range(10):
        wire.now += 1
        assert not wire.repair.work()
    assert len(wire.sent) == 10


def test_who_grants_a_pre_vote_stands_back() -> None:
    """Else two whose time has come at once run at once, take each other's votes, and again."""
    voter = Voter(now=1000.0)
    voter.now += 10  # its own deadline is over
    voter.asked("pre_vote", term=2)
    assert [m["type"] for m in voter.sent] == ["pre_vote_ok"]
    voter.now += 0.01
    voter.engine.tick()
    assert [m["type"] for m in voter.sent] == ["pre_vote_ok"], "it stands for election in the same moment"
    voter.wait(RaftSettings().election_min_ms / 1000)
    voter.engine.tick()
    assert voter.sent[-1]["type"] == "pre_vote"


def test_who_is_asked_by_one_who_is_behind_stands_at_once() -> None:
    """He cannot win; waiting until he has seen it is time without a leader."""
    voter = Voter(now=1000.0)
    voter.engine.receive(THEIRS, append_entries(5, 6) | {"prevLogTerm": 1})
    voter.sent.clear()
    voter.engine.tick()
    voter.wait(RaftSettings().election_min_ms / 1000)
    voter.now += 0.001  # the shortest silence; its own deadline is random
    voter.asked("pre_vote", term=2)
    assert voter.sent == []
    voter.engine.tick()
    assert [m["type"] for m in voter.sent] == ["pre_vote", "pre_vote"]


def test_who_stood_still_reads_before_it_stands() -> None:
    """What the leader sent meanwhile lies in a socket; whoever wakes up late cannot tell that from silence."""
    voter = Voter(now=1000.0)
    voter.engine.receive(THEIRS, append_entries(5, 6) | {"prevLogTerm": 1})
    voter.engine.tick()
    voter.sent.clear()
    voter.now += 10
    voter.engine.tick()
    assert voter.sent == []
    voter.wait(RaftSettings().heartbeat_ms / 1000)
    voter.engine.tick()
    assert [m["type"] for m in voter.sent] == ["pre_vote", "pre_vote"]


def test_who_is_late_again_and_again_stands_all_the_same() -> None:
    """Its processor is scarce: each time it took its own lateness for the leader's silence, who was gone."""
    voter = Voter(now=1000.0)
    voter.engine.receive(THEIRS, append_entries(5, 6) | {"prevLogTerm": 1})
    voter.sent.clear()
    for _ in range(10):
        voter.now += RaftSettings().election_min_ms / 1000
        voter.engine.tick()
    assert voter.engine.leader is None
    assert "pre_vote" in {message["type"] for message in voter.sent}


def test_who_is_late_and_hears_its_leader_each_time_never_stands() -> None:
    voter = Voter(now=1000.0)
    for _ in range(100):
        voter.now += 1.0
        voter.engine.tick()  # before it has read what has come
        voter.engine.receive(THEIRS, {"type": "append_entries", "term": 1, "commit_index": 0, "seq": 1})
    assert voter.engine.leader == THEIRS
    assert {message["type"] for message in voter.sent} == {"next_node_idx"}


@pytest.mark.parametrize(("rhythm_s", "borne_s"), [(0.03, 0.15), (0.12, 0.24), (0.3, 0.5)])
def test_a_leader_that_comes_irregularly_is_borne_longer(rhythm_s: float, borne_s: float) -> None:
    """Twice its longest silence of late, from ``election_min_ms`` up to a share of ``election_patience_ms``."""
    voter = Voter(now=1000.0)
    for _ in range(10):
        voter.now += rhythm_s
        voter.engine.receive(THEIRS, {"type": "append_entries", "term": 1, "commit_index": 0, "seq": 1})
        voter.engine.tick()
    voter.sent.clear()
    voter.wait(borne_s - 0.02)
    assert voter.sent == []
    voter.asked("pre_vote", term=2)
    assert voter.sent == [], "whoever asks is told nothing"
    voter.wait(2 * borne_s)
    assert voter.sent[-1]["type"] == "pre_vote"


def test_a_rhythm_is_forgotten() -> None:
    patience = Patience(RaftSettings())
    patience.heard(0.3)
    assert patience.stretch == pytest.approx(1000 / 300)
    for _ in range(1000):
        patience.heard(0.03)
    assert patience.stretch == 1


@pytest.mark.parametrize("silence_s", [1.0, 3600.0])
def test_a_long_sleep_is_forgotten_as_soon_as_what_is_borne_at_most(silence_s: float) -> None:
    """A minute in which this node stood still made each failover of the next minute as slow as there are any."""
    patience, other = Patience(RaftSettings()), Patience(RaftSettings())
    patience.heard(silence_s)
    other.heard(0.25)
    assert patience.stretch == other.stretch
    for _ in range(333):
        patience.heard(0.03)
    assert patience.stretch == 1


def test_who_hears_a_leader_does_not_stand_whoever_asks() -> None:
    voter = Voter(now=1000.0)
    voter.engine.receive(THEIRS, append_entries(5, 6) | {"prevLogTerm": 1})
    voter.sent.clear()
    voter.now += 0.01
    voter.asked("pre_vote", term=2)
    voter.engine.tick()
    assert voter.sent == []


def test_a_node_without_its_payload_votes_and_does_not_stand() -> None:
    voter = Voter(now=1000.0)
    voter.engine.may_lead = False
    voter.now += 10
    voter.engine.tick()
    assert voter.sent == []
    voter.asked("pre_vote", term=2)
    voter.asked("request_vote")
    assert [m["type"] for m in voter.sent] == ["pre_vote_ok", "response_vote"]


def test_a_pre_vote_that_was_won_is_not_kept_for_later() -> None:
    """Whoever used it when it was cut off raised its term unasked, and deposed a healthy leader when it came back."""
    voter = Voter(now=1000.0)
    voter.wait(RaftSettings().election_max_ms / 1000)
    assert voter.sent[-1]["type"] == "pre_vote"
    voter.now += 0.3  # it stands still, and reads what has come meanwhile
    voter.engine.receive(THEIRS, {"type": "pre_vote_ok", "term": voter.engine.term + 1})
    voter.engine.tick()
    assert not voter.engine.is_candidate
    for number in range(1, 100):  # somebody else leads, for a long time
        voter.engine.receive(THEIRS, {"type": "append_entries", "term": 2, "commit_index": 1, "seq": number})
        voter.wait(0.02)
    voter.sent.clear()
    voter.wait(3.0)
    assert {m["type"] for m in voter.sent} == {"pre_vote"}
    assert voter.engine.term == 2


def test_a_hand_over_that_cannot_be_used_is_not_made_up_for_later() -> None:
    voter = Voter(now=1000.0)
    voter.engine.receive(THEIRS, {"type": "append_entries", "term": 1, "commit_index": 1, "seq": 1})
    voter.engine.receive(THEIRS, {"type": "timeout_now", "term": 1})
    voter.engine.receive(THEIRS, {"type": "append_entries", "term": 1, "commit_index": 1, "seq": 2})
    may = voter.engine.membership.may_campaign
    voter.engine.membership.may_campaign = lambda _: False  # type: ignore[method-assign]
    voter.wait(0.05)
    voter.engine.membership.may_campaign = may  # type: ignore[method-assign]
    voter.sent.clear()
    voter.wait(3.0)
    assert {m["type"] for m in voter.sent} == {"pre_vote"}


def test_nor_is_one_that_came_while_a_batch_is_missing() -> None:
    """When that was back, minutes later, a healthy leader was deposed; nor was one missed who was gone meanwhile."""
    voter = Voter(now=1000.0)
    voter.engine.receive(THEIRS, {"type": "append_entries", "term": 1, "commit_index": 1, "seq": 1})
    voter.engine.receive(THEIRS, {"type": "timeout_now", "term": 1})
    voter.engine.may_lead = False
    voter.wait(3.0)
    assert voter.engine.leader is None
    voter.engine.receive(THEIRS, {"type": "append_entries", "term": 1, "commit_index": 1, "seq": 2})
    voter.engine.may_lead = True
    voter.wait(0.05)
    assert (voter.engine.leader, voter.engine.is_candidate) == (THEIRS, False)


def test_a_hand_over_is_used_though_the_leader_is_still_heard() -> None:
    voter = Voter(now=1000.0)
    voter.engine.receive(THEIRS, {"type": "append_entries", "term": 1, "commit_index": 1, "seq": 1})
    voter.engine.receive(THEIRS, {"type": "timeout_now", "term": 1})
    voter.engine.receive(THEIRS, {"type": "append_entries", "term": 1, "commit_index": 1, "seq": 2})
    voter.wait(0.02)
    assert voter.engine.is_candidate
    assert voter.sent[-1]["type"] == "request_vote"
    assert voter.sent[-1]["force"]


def handed_over(number: int = 1) -> list[dict[str, Any]]:
    """What a follower hears of a leader that hands over to it: heartbeats, and that between them."""
    beat = {"type": "append_entries", "term": 1, "commit_index": 1}
    return [beat | {"seq": number}, {"type": "timeout_now", "term": 1}, beat | {"seq": number + 1}]


def test_a_hand_over_that_lay_in_a_socket_while_its_target_stood_still_is_over() -> None:
    """The leader had given it up and led on; whoever woke deposed it, with a force that nobody wanted any more."""
    voter = Voter(now=1000.0)
    first, *rest = handed_over()
    voter.engine.receive(THEIRS, first)
    voter.engine.tick()
    voter.now += 10
    for message in rest:
        voter.engine.receive(THEIRS, message)
    voter.wait(0.1)
    assert (voter.engine.is_candidate, voter.engine.term, voter.engine.leader) == (False, 1, THEIRS)


def test_so_it_is_where_it_is_read_a_moment_after_the_first_turn_and_no_longer() -> None:
    voter = Voter(now=1000.0)
    voter.engine.receive(THEIRS, handed_over()[0])
    voter.engine.tick()
    voter.now += 10
    voter.engine.tick()
    for message in handed_over():
        voter.engine.receive(THEIRS, message)
    voter.wait(2 * RaftSettings().heartbeat_ms / 1000)
    assert (voter.engine.is_candidate, voter.engine.term) == (False, 1)
    for message in handed_over(3):
        voter.engine.receive(THEIRS, message)
    voter.wait(0.02)
    assert voter.engine.is_candidate, "this one is of now"


def test_a_hand_over_is_over_once_its_leader_admits_again() -> None:
    """What comes over a slow line late comes with what was admitted since: a leader that hands over admits nothing."""
    voter = Voter(now=1000.0)
    for message in handed_over():
        voter.engine.receive(THEIRS, message)
    voter.engine.receive(THEIRS, append_entries(3, 4))  # sent again
    assert voter.engine._handed_over
    voter.engine.receive(THEIRS, append_entries(4, 5))
    voter.wait(0.1)
    assert (voter.engine.is_candidate, voter.engine.term, voter.engine.leader) == (False, 1, THEIRS)


def test_who_alone_has_an_entry_whose_batch_nobody_has_lets_others_lead_first() -> None:
    """It led at once, and had the entry committed: a partition was lost for a batch that nobody had been told of."""
    settings = RaftSettings()
    longest = GIVE_WAY * settings.election_max_ms / 1000
    voter = Voter(now=1000.0)
    voter.engine.may_lead = False
    voter.wait(3.0)
    voter.engine.give_way()
    voter.engine.may_lead = True
    for _ in range(int(longest / 0.1) - 1):
        voter.asked("pre_vote", term=2, last_log_index=2)  # of who does not have it: that is no reason to hurry
        voter.wait(0.1)
    assert voter.sent == []
    voter.asked("request_vote", last_log_index=9)
    assert [m["type"] for m in voter.sent] == ["response_vote"]
    voter.sent.clear()
    voter.wait(longest + settings.election_max_ms / 1000)
    assert "pre_vote" in {m["type"] for m in voter.sent}, "nobody leads: it does"


def test_of_two_nobody_could_lead_meanwhile() -> None:
    voter = Voter(now=1000.0)
    voter.engine._voters = set(list(voter.engine._voters)[:1])
    voter.engine.give_way()
    voter.wait(RaftSettings().election_max_ms / 1000)
    assert [m["type"] for m in voter.sent] == ["pre_vote"]


@pytest.mark.parametrize(("raft_index", "gives"), [(7, True), (None, False)])
def test_it_does_so_once_and_for_what_may_not_be_committed(raft_index: int | None, gives: bool) -> None:
    gave: list[bool] = []
    engine = SimpleNamespace(may_lead=False, give_way=lambda: gave.append(True))
    repair = Repair.__new__(Repair)
    repair._missing, repair.news = [Wanted(route(9), raft_index)], False
    repair._journal = journal_of(0)
    repair.holes = {}
    mending: Any = SimpleNamespace(_engine=engine, repair=repair)
    Mending._follow(mending)
    assert (engine.may_lead, gave) == (False, [])
    repair.holes = {route(9).digest: Wanted(route(9), raft_index)}
    for _ in range(2):
        Mending._follow(mending)
        assert (engine.may_lead, gave) == (True, [True] * gives)
