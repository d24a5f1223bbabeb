"""Lines that take longer for one batch than anybody bears a leader's silence: it leads on, and a hung one does not."""

from __future__ import annotations

from typing import Any

import pytest

from logboom.settings import RaftSettings
from logboom.types import NodeId
from logboom.wire import Frame, Kind
from raftlog.links.feed import LIVE
from tests.unit.raftlog.cluster import Cluster, SimNode
from tests.unit.raftlog.voter_world import THEIRS, Voter

OTHER = NodeId("n3")
STEP_S = 0.02


def hears(voter: Voter, *, term: int = 1, seq: int = 7) -> None:
    voter.engine.receive(THEIRS, {"type": "append_entries", "term": term, "commit_index": 1, "seq": seq})
    voter.sent.clear()


def is_fed(voter: Voter, peer: NodeId, seconds: float) -> None:
    for _ in range(round(seconds / STEP_S)):
        voter.wait(STEP_S)
        voter.engine.feeding(peer)


async def led(cluster: Cluster) -> SimNode:
    """All of it, with somebody who has led for a while."""
    for each in cluster.ids:
        await cluster.start(each)
    await cluster.load(1.0)
    leader = cluster.leader()
    assert leader is not None
    return leader


def kinds(voter: Voter) -> set[str]:
    return {message["type"] for message in voter.sent}


def test_whoever_is_in_the_middle_of_what_its_leader_sends_waits_for_the_rest_and_says_that_it_is_there() -> None:
    voter = Voter(now=1000.0)
    hears(voter)
    is_fed(voter, THEIRS, 3.0)
    assert kinds(voter) == {"next_node_idx"}
    beats = 3.0 / (RaftSettings().heartbeat_ms / 1000)
    assert beats / 3 <= len(voter.sent) <= beats
    answer = voter.sent[-1]
    assert (answer["seq"], answer["term"], answer["success"], answer["reset"]) == (7, 1, False, False)
    voter.asked("pre_vote", term=2)
    assert kinds(voter) == {"next_node_idx"}, "it bears its leader"
    voter.wait(3.0)
    assert "pre_vote" in kinds(voter), "and then it is silent"


def test_a_leader_that_was_missed_is_named_again_once_its_payload_comes() -> None:
    """It is there, and clients may be sent to it."""
    voter = Voter(now=1000.0)
    hears(voter)
    voter.wait(3.0)
    assert voter.engine.leader is None
    voter.engine.feeding(THEIRS)
    assert voter.engine.leader == THEIRS


@pytest.mark.parametrize("peer", [OTHER, NodeId("n9")])
def test_what_others_send_is_no_sign_of_a_leader(peer: NodeId) -> None:
    voter = Voter(now=1000.0)
    hears(voter)
    is_fed(voter, peer, 1.0)
    assert kinds(voter) == {"pre_vote"}


def test_nor_is_what_is_left_of_a_leader_of_before() -> None:
    voter = Voter(now=1000.0)
    hears(voter)
    voter.engine.receive(OTHER, {"type": "pre_vote_no", "term": 5})
    is_fed(voter, THEIRS, 1.0)
    assert kinds(voter) == {"pre_vote"}


def test_what_it_says_keeps_the_leader_in_office_and_proves_no_more_than_it_did() -> None:
    leader = Voter(now=1000.0)
    leader.wait(1.0)
    leader.engine.receive(THEIRS, {"type": "pre_vote_ok", "term": leader.engine.term + 1})
    leader.wait(STEP_S)
    vote: dict[str, Any] = {"type": "response_vote", "term": leader.engine.term}
    leader.engine.receive(THEIRS, vote)
    assert leader.engine.is_leader
    answer = {"type": "next_node_idx", "next_node_idx": 3, "reset": False, "success": False, "term": leader.engine.term}
    round_before = leader.engine.round
    for _ in range(100):
        leader.wait(STEP_S)
        leader.engine.receive(THEIRS, answer | {"seq": round_before})
    assert leader.engine.is_leader
    assert leader.engine.quorum_round() == round_before < leader.engine.round
    leader.wait(1.0)
    assert not leader.engine.is_leader


def test_a_leader_leads_on_while_its_followers_send_something_behind_which_their_answers_lie() -> None:
    """Found by review: what they pass on or hand over, on a line that takes its time for it, cost it the quorum."""
    leader = Voter(now=1000.0)
    leader.wait(1.0)
    leader.engine.receive(THEIRS, {"type": "pre_vote_ok", "term": leader.engine.term + 1})
    leader.wait(STEP_S)
    leader.engine.receive(THEIRS, {"type": "response_vote", "term": leader.engine.term})
    commit = leader.engine.commit_index
    for _ in range(100):
        leader.wait(STEP_S)
        leader.engine.sends(THEIRS)
    assert leader.engine.is_leader
    assert leader.engine.quorum_round() == 0 < leader.engine.round, "that proves nothing"
    assert leader.engine.commit_index == commit
    leader.wait(1.0)
    assert not leader.engine.is_leader


@pytest.mark.parametrize("kind", [Kind.FORWARD, Kind.FETCHED, Kind.SNAPSHOT_CHUNK])
def test_whatever_a_follower_sends_says_that_it_is_there(kind: Kind) -> None:
    cluster = Cluster(3)

    async def story() -> None:
        leader = await led(cluster)
        others = [node for node in cluster.ids if node != leader.node_id]
        for each in others:
            cluster.net.cut(f"{each}:1", f"{leader.node_id}:1")
        for _ in range(100):
            await cluster.sleep(STEP_S)
            leader.raft.link_arriving(others[0], Frame(kind, 0, {}))
        assert leader.raft.engine.is_leader
        await cluster.sleep(2.0)
        assert not leader.raft.engine.is_leader
        await cluster.heal()

    cluster.tell(story())
    cluster.check()


@pytest.mark.parametrize(
    ("kind", "ahead", "counts"),
    [(Kind.PAYLOAD, 0, True), (Kind.PAYLOAD, -1, False), (Kind.PAYLOAD, 1, False), (Kind.FORWARD, 0, False)],
)
def test_a_frame_that_has_begun_says_that_its_sender_leads_if_it_is_payload_of_this_term(
    kind: Kind, ahead: int, counts: bool
) -> None:
    """Found by the simulator (seed 8): who had led and sent other things kept all others from standing for 30 s."""
    cluster = Cluster(3)

    async def story() -> None:
        leader = await led(cluster)
        one = next(node for node in cluster.nodes.values() if node is not leader)
        others = [node for node in cluster.ids if node not in (leader.node_id, one.node_id)]
        for each in [leader.node_id, *others]:
            cluster.net.cut(f"{each}:1", f"{one.node_id}:1")
        before, term = one.raft.engine.pre_votes_asked, one.raft.engine.term
        for _ in range(100):
            await cluster.sleep(STEP_S)
            one.raft.link_arriving(leader.node_id, Frame(kind, 0, {"term": term + ahead}))
        assert (one.raft.engine.pre_votes_asked == before) is counts
        await cluster.heal()

    cluster.tell(story())
    cluster.check()


def test_a_leader_whose_disk_hangs_sends_no_payload_either_until_it_does_no_more() -> None:
    """Else whoever is in the middle of it would bear it for as long as clients write."""
    cluster = Cluster(3)

    async def story() -> None:
        leader = await led(cluster)
        feeds, sent = leader.raft.feeds, list[object]()
        send_frame = leader.raft.links.send_frame

        def send(peer: NodeId, kind: Kind, frame: Any) -> bool:
            if kind is Kind.PAYLOAD:
                sent.append(frame)
            return True

        leader.raft.links.send_frame = send  # type: ignore[method-assign]
        leader.raft.group.stalled = lambda limit_s: True  # type: ignore[method-assign]
        leader.raft.send_payload([b"a batch"])
        leader.raft.send_payload([b"another"])
        assert sent == []
        assert all(feed.cursor != LIVE for feed in feeds._feeds.values())
        await cluster.sleep(2.0)
        assert sent == []
        leader.raft.links.send_frame = send_frame  # type: ignore[method-assign]
        del leader.raft.group.stalled
        await cluster.load(1.0)
        await cluster.sleep(2.0)
        assert cluster.leader() is not None

    cluster.tell(story())
    cluster.check()
