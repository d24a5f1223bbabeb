"""Nodes that lose their journal come back under their own id, and nothing is lost (docs/decisions/0019)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from logboom.errors import LogboomError
from logboom.types import NodeId
from raftlog.entries.configuration import Role
from raftlog.journal.journal import Journal
from raftlog.journal.membership import Membership, Rejoining
from tests.unit.raftlog.forgetting import ForgettingCluster
from tests.unit.raftlog.world import MemoryDisk, voters

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")


@pytest.mark.parametrize("seed", range(400, 408))
def test_journals_are_lost_under_crashes_cuts_and_power_losses(seed: int) -> None:
    cluster = ForgettingCluster(seed)
    cluster.tell(cluster.story_of_losses(6))
    assert len(cluster.log) > 50
    assert cluster.forgotten


@pytest.mark.parametrize("seed", range(500, 504))
def test_and_while_journals_begin_later(seed: int) -> None:
    cluster = ForgettingCluster(seed, compacts=True)
    cluster.tell(cluster.story_of_losses(6))
    assert len(cluster.log) > 50
    assert cluster.forgotten


@pytest.mark.parametrize("seed", range(600, 602))
def test_five_nodes(seed: int) -> None:
    cluster = ForgettingCluster(seed, nodes=5)
    cluster.tell(cluster.story_of_losses(5))
    assert cluster.forgotten


def test_a_leader_of_old_gets_no_quorum_with_one_that_has_forgotten_that_there_is_a_newer() -> None:
    """n0 leads and is cut off, n2 helps n1 to lead, loses its journal, and reaches nobody but n0."""
    cluster = ForgettingCluster(1)

    async def story() -> None:
        await led_by(cluster, N0)
        cluster.net.cut("n0:1", "n1:1")
        cluster.net.cut("n0:1", "n2:1")
        old = cluster.nodes[N0]
        while not cluster.nodes[N1].raft.admits and not cluster.nodes[N2].raft.admits:
            await cluster.sleep(0.001)
        if not cluster.nodes[N1].raft.admits:  # it has to be n1
            cluster.nodes[N2].raft.members.transfer.begin(N1, lambda _: None)
            while not cluster.nodes[N1].raft.admits:
                await cluster.sleep(0.001)
        assert old.raft.engine.is_leader, "it has fallen back too early for this test"
        cluster.nodes[N1].submit(1)
        await cluster.sleep(0.05)
        committed = old.raft.engine.commit_index
        cluster.crash(N2, power=False)
        cluster.forget(N2)
        cluster.net.cut("n1:1", "n2:1")
        cluster.net.heal("n0:1", "n2:1")
        await cluster.start(N2)
        old.submit(3)
        while old.raft.engine.is_leader:
            assert old.raft.engine.commit_index == committed
            assert old.raft.engine.quorum_round() < old.raft.engine.round
            assert cluster.nodes[N2].raft.engine.covering_commit() is None, "shows what may be of yesterday"
            await cluster.sleep(0.01)
        await cluster.settle()
        assert cluster.rejoined == 1

    cluster.tell(story())


def test_who_has_forgotten_helps_nobody_to_lead() -> None:
    """n0 had everything and is down, n2 has nothing, n1 lacks the last entry: it must not lead before n0 is back."""
    cluster = ForgettingCluster(2)

    async def story() -> None:
        await led_by(cluster, N0)
        cluster.net.cut("n0:1", "n1:1")
        cluster.nodes[N0].submit(1)
        await cluster.sleep(0.05)
        assert cluster.log, "n0 and n2 have not committed it"
        cluster.crash(N0, power=False)
        cluster.crash(N2, power=False)
        cluster.forget(N2)
        await cluster.start(N2)
        term = cluster.nodes[N1].raft.engine.term
        for _ in range(300):
            assert cluster.nodes[N1].raft.engine.term == term, "it was told that it might win"
            assert cluster.leader() is None
            await cluster.sleep(0.01)
        forgetful = cluster.nodes[N2].raft
        ask = {"type": "request_vote", "term": 99, "last_log_index": 1 << 40, "last_log_term": 98, "force": True}
        forgetful.engine.receive(N1, ask)
        assert forgetful.journal.vote is None, "it votes"
        forgetful.engine.receive(N1, {"type": "timeout_now", "term": forgetful.engine.term})
        await cluster.sleep(1)
        assert not forgetful.engine.is_candidate
        await cluster.start(N0)
        await cluster.settle()
        assert cluster.rejoined == 1

    cluster.tell(story())


def test_it_votes_again_and_is_taken_out_of_the_quorum_once_for_each_time() -> None:
    cluster = ForgettingCluster(3)

    async def story() -> None:
        await led_by(cluster, N0)
        for time in (1, 2):
            cluster.crash(N2, power=True)
            cluster.forget(N2)
            await cluster.start(N2)
            assert cluster.nodes[N2].raft.members.roster.standing == "rejoining"
            await cluster.settle()
            members = [each for each in cluster.said.values() if each.rejoined]
            assert [each.seat(N2).role for each in members] == [Role.JOINING, Role.VOTER] * time  # type: ignore[union-attr]
            assert cluster.nodes[N2].raft.members.roster.standing == "voter"
        # Now the cluster needs its vote.
        cluster.crash(N0, power=False)
        while cluster.leader() is None:
            await cluster.sleep(0.01)

    cluster.tell(story())


def test_two_voters_wait_and_go_on_when_whoever_led_is_there() -> None:
    """Without a leader nothing can be done; a leader that has not fallen back takes the other one out."""
    cluster = ForgettingCluster(4, nodes=2)

    async def story() -> None:
        await led_by(cluster, N0)
        cluster.crash(N1, power=False)
        cluster.forget(N1)
        while cluster.nodes[N0].raft.engine.is_leader:
            await cluster.sleep(0.01)
        await cluster.start(N1)
        await cluster.sleep(5)
        assert cluster.leader() is None
        assert cluster.tokens

    cluster.tell(story())


def test_nobody_is_taken_out_while_the_others_could_not_commit_it() -> None:
    cluster = ForgettingCluster(5)

    async def story() -> None:
        await led_by(cluster, N0)
        cluster.crash(N1, power=False)
        cluster.crash(N2, power=False)
        cluster.forget(N2)
        await cluster.start(N2)
        leader = cluster.nodes[N0].raft
        while not leader.engine.forgetful:
            await cluster.sleep(0.001)
        while leader.engine.is_leader:
            assert N2 in leader.members.membership.current.voters
            await cluster.sleep(0.001)
        await cluster.settle()

    cluster.tell(story())


def test_it_is_not_over_before_the_entry_is_committed_and_handed_up() -> None:
    journal = Journal.open(
        disk=MemoryDisk(),  # type: ignore[arg-type]
        directory=Path("/n2/journal"),
        cluster_id="c",
        random_bytes=bytes,
    )
    said = Membership(
        node_id=N2, journal=journal, begins=voters(N0, N1, N2), rejoining=Rejoining(b"t" * 16, lambda done: done())
    )
    said.take(replace(said.current.rejoining(N2, b"s" * 16), term=1, index=3))
    assert not said.began_anew(3), "that was another time"
    said.take(replace(said.current.rejoining(N2, b"t" * 16), term=1, index=5))
    assert not said.began_anew(4)
    assert said.began_anew(5)
    said.truncated(5)
    assert not said.began_anew(5)


async def led_by(cluster: ForgettingCluster, node: NodeId) -> None:
    """All there, and this one leads."""
    for each in cluster.ids:
        await cluster.start(each)
    while cluster.leader() is None:
        await cluster.sleep(0.01)
    while (leader := cluster.leader()) is None or leader.node_id != node or not leader.raft.admits:
        if leader is not None and leader.raft.admits:
            with suppress(LogboomError):
                leader.raft.members.transfer.begin(node, lambda _: None)
        await cluster.sleep(0.02)
