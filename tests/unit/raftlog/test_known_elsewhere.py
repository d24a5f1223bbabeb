"""What other implementations of Raft have got wrong, one by one; each test names where it was reported.

More of them are elsewhere: a deposed leader's tail (etcd 11964) in ``test_divergence``, an empty disk under an old id
(rethinkdb 5289) in ``test_lost_disk``, removed nodes that come back (hashicorp/raft 524) in ``test_members``, a handing
over that a heartbeat undoes (canonical/raft 203) in ``test_livelocks``, and what the simulator's mutants have, such as
reads before an entry of the leader's own term (etcd 7331) and commits by counting older terms (figure 8).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logboom.settings import RaftSettings
from logboom.types import NodeId
from raftlog.entries.configuration import Role, Seat
from raftlog.entries.entry import pack_control
from raftlog.journal.journal_base import Base
from raftlog.journal.membership import Membership
from tests.unit.raftlog.base_world import grown, opened
from tests.unit.raftlog.sides import FOLLOWER, LEADER, THIRD, Side
from tests.unit.raftlog.world import voters

HEARTBEAT = {"type": "append_entries", "commit_index": 1, "seq": 1}


def entries(first: int, count: int, *, term: int, previous: int, commit: int = 1) -> dict[str, Any]:
    rows = [(b"\x10" + bytes(31), index, term) for index in range(first, first + count)]
    message = {"type": "append_entries", "term": term, "commit_index": commit, "seq": 1}
    return message | {"entries": rows, "prevLogIdx": first - 1, "prevLogTerm": previous}


def together(*sides: Side, seconds: float) -> Side | None:
    """Both talk to each other, the third is away; whoever leads first."""
    names = (LEADER, FOLLOWER)
    for _ in range(int(seconds / 0.01)):
        sides[0].clock.now += 0.01
        for side in sides:
            side.engine.tick()
        for side, own, other in zip(sides, names, reversed(names), strict=True):
            peer = sides[1] if side is sides[0] else sides[0]
            for message in side.to(other):
                peer.engine.receive(own, message)
        found = [side for side in sides if side.engine.is_leader]
        if found:
            return found[0]
    return None


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_later_term_and_the_longer_journal_may_be_two_nodes(ahead: int) -> None:
    """With pre-votes they have refused each other for ever: etcd 8501, canonical/raft 279."""
    clock = SimpleNamespace(now=1000.0)
    sides = [Side(clock, own, [1] * (9 if k == ahead else 5)) for k, own in enumerate((LEADER, FOLLOWER))]
    sides[1 - ahead].engine.receive(THIRD, {"type": "pre_vote_no", "term": 7})
    assert sides[1 - ahead].engine.term == 7
    assert together(*sides, seconds=5) is sides[ahead]
    assert sides[ahead].engine.term > 7


def test_a_leader_that_has_stepped_down_may_lead_again_with_those_who_followed_it() -> None:
    """Its followers refused its pre-vote since they had a leader: itself (hashicorp/raft 606)."""
    clock = SimpleNamespace(now=1000.0)
    sides = [Side(clock, own, [1] * 5) for own in (LEADER, FOLLOWER)]
    sides[0].lead()
    together(*sides, seconds=0.02)
    sides[0].engine.receive(THIRD, {"type": "next_node_idx", "term": 3, "next_node_idx": 2, "reset": False,
                                    "success": False, "seq": 1})  # fmt: skip
    assert not sides[0].engine.is_leader
    assert together(*sides, seconds=5) is not None


def test_who_asks_for_pre_votes_again_and_again_and_hears_no_answer_keeps_nobody_else_from_standing() -> None:
    """Each question counted as a sign of life of the leader (hashicorp/raft 609)."""
    clock = SimpleNamespace(now=1000.0)
    side = Side(clock, FOLLOWER, [1] * 5)
    settings = RaftSettings()
    for step in range(1000):
        if step % (settings.election_min_ms // 10) == 0:
            last = {"last_log_index": 6, "last_log_term": 1}
            side.engine.receive(LEADER, {"type": "pre_vote", "term": 2, **last})
        clock.now += 0.01
        side.engine.tick()
    asked = [message for _, message in side.sent if message["type"] == "pre_vote"]
    assert len(asked) > 4


@pytest.mark.parametrize(("base", "term", "left"), [(14, 2, 3), (10, 2, 3), (10, 1, 4)])
def test_a_snapshot_takes_the_place_of_members_that_were_never_committed(
    tmp_path: Path, base: int, term: int, left: int
) -> None:
    """They went on to count where the entry that named them was gone: openraft 1808, scylladb 9551."""
    journal = grown(tmp_path, 10)
    begins = voters(LEADER, FOLLOWER, THIRD)
    more = begins.adding(Seat(NodeId("n4"), "n4:1", "n4:2", Role.VOTER))
    journal.add(pack_control(more.fields()), 12, 1)
    journal.flush()
    assert len(Membership(node_id=LEADER, journal=journal, begins=begins).current.voters) == 4
    journal.install(Base(base, term, b"theirs"))
    journal.close()
    again = opened(tmp_path)
    assert len(Membership(node_id=LEADER, journal=again, begins=begins).current.voters) == left
    again.close()


def test_members_of_the_journal_count_after_a_restart_committed_or_not(tmp_path: Path) -> None:
    """Those that were committed last did: camunda 55856."""
    journal = grown(tmp_path, 3)
    alone = voters(LEADER, FOLLOWER).removing(FOLLOWER)
    journal.add(pack_control(alone.fields()), 5, 1)
    journal.flush()
    journal.close()
    again = opened(tmp_path)
    known = Membership(node_id=LEADER, journal=again, begins=voters(LEADER, FOLLOWER))
    assert known.current.voters == (LEADER,)
    assert known.before is not None
    assert known.before.voters == (LEADER, FOLLOWER)
    again.close()


def test_what_is_cut_off_and_written_again_during_a_sync_is_not_synced_by_it() -> None:
    """Redpanda 15201."""
    side = Side(SimpleNamespace(now=1000.0), FOLLOWER, [1] * 5)
    side.engine.receive(LEADER, entries(7, 3, term=1, previous=1))
    job = side.journal.take()
    assert job is not None
    side.engine.receive(THIRD, entries(8, 4, term=2, previous=1))
    job.run()
    job.done()
    assert (side.journal.durable_index, side.journal.last_index) == (7, 11)
    side.journal.flush()
    assert side.journal.durable_index == 11


def test_what_was_committed_before_it_was_synced_here_is_handed_up_once_it_is() -> None:
    """Nobody looked again until the next message (redpanda 503, 31642)."""
    applied: list[int] = []
    side = Side(SimpleNamespace(now=1000.0), FOLLOWER, [1] * 5)
    side.engine._apply = lambda index, *_: applied.append(index)
    side.engine.receive(LEADER, entries(7, 2, term=1, previous=1, commit=8))
    side.engine.tick()
    assert applied == [2, 3, 4, 5, 6]
    assert not side.engine.due
    side.journal.flush()
    assert side.engine.due
    side.engine.tick()
    assert applied[-2:] == [7, 8]


@pytest.mark.parametrize("message", [{"term": 1}, {"term": 3}, {"term": 2, "from": THIRD}])
def test_a_word_to_stand_at_once_counts_from_who_leads_now_alone(message: dict[str, Any]) -> None:
    """Late, or from somebody else, it deposed a healthy leader (PySyncObj takes that of any later term)."""
    side = Side(SimpleNamespace(now=1000.0), FOLLOWER, [1] * 5)
    side.engine.receive(LEADER, HEARTBEAT | {"term": 2})
    side.engine.receive(message.get("from", LEADER), {"type": "timeout_now", "term": message["term"]})
    side.engine.tick()
    assert (side.engine.is_candidate, side.engine.term) == (False, 2)


def test_a_node_that_has_no_vote_does_not_stand_whoever_says_so() -> None:
    side = Side(SimpleNamespace(now=1000.0), FOLLOWER, [1] * 5)
    seats = tuple(
        seat._replace(role=Role.LEARNER) if seat.node == FOLLOWER else seat
        for seat in side.engine.membership.current.seats
    )
    command = pack_control({"do": "members", "members": [list(map(str, seat)) for seat in seats], "removed": []})
    message = entries(7, 1, term=1, previous=1, commit=7)
    side.engine.receive(LEADER, message | {"entries": [(command, 7, 1)]})
    side.journal.flush()
    side.engine.tick()
    assert not side.engine.votes
    side.engine.receive(LEADER, {"type": "timeout_now", "term": 1})
    for _ in range(200):
        side.tick()
    assert {message["type"] for _, message in side.sent} == {"next_node_idx"}
