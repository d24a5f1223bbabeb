"""A command or a read that is alone: followers whose answer is not waited for get it a little later, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from logboom.settings import RaftSettings
from logboom.types import NodeId
from raftlog.journal.outbox import GroupLimits
from tests.unit.raftlog.cluster import Cluster, SimNode

LINGER_S = RaftSettings().spare_linger_ms / 1000
COMMANDS = 20


async def leading(cluster: Cluster) -> SimNode:
    """The leader of a quiet cluster, some commands later."""
    for node in cluster.ids:
        await cluster.start(node)
    while (leader := cluster.leader()) is None:
        await cluster.sleep(0.05)
    for _ in range(3):
        await submit_alone(cluster, leader)
    return leader


async def submit_alone(cluster: Cluster, leader: SimNode) -> list[str]:
    """Until it is committed; whose frames were held back."""
    cluster.net.held_back.clear()
    before = len(cluster.log)
    leader.submit(0)
    leader.raft.turn_now()
    async with asyncio.timeout(5):
        while len(cluster.log) == before:
            await cluster.sleep(0.001)
    assert {seconds for _, seconds in cluster.net.held_back} <= {LINGER_S}
    return [there for there, _ in cluster.net.held_back]


def test_the_last_quorum_is_served_first_and_the_rest_held_back() -> None:
    for nodes in (3, 5):
        cluster = Cluster(1, nodes=nodes)

        async def story(cluster: Cluster = cluster, nodes: int = nodes) -> None:
            leader = await leading(cluster)
            engine = leader.raft.engine
            assert len(engine.quickest) >= nodes // 2
            held_back = await submit_alone(cluster, leader)
            others = {f"{n}:1" for n in cluster.ids if n != leader.node_id}
            assert len(others - set(held_back)) >= nodes // 2, "too few for a quorum"

        cluster.tell(story())


def test_once_somebody_of_the_quorum_is_gone_nobody_is_held_back() -> None:
    cluster = Cluster(2)

    async def story() -> None:
        leader = await leading(cluster)
        engine = leader.raft.engine
        while len(engine.quickest) != 1:  # both had answered by the time it was counted
            await submit_alone(cluster, leader)
        (quick,) = engine.quickest
        assert engine.spares == [n for n in cluster.ids if n not in (quick, leader.node_id)]
        cluster.crash(quick, power=False)
        await cluster.sleep(0.01)
        assert engine.spares == []
        assert await submit_alone(cluster, leader) == []

    cluster.tell(story())


async def with_one_spare(cluster: Cluster) -> tuple[SimNode, str, str]:
    """The leader, who made the last quorum with it, and who did not."""
    leader = await leading(cluster)
    while len(leader.raft.engine.quickest) != 1:  # both had answered by the time it was counted
        await submit_alone(cluster, leader)
    (quick,), (spare,) = leader.raft.engine.quickest, leader.raft.engine.spares
    await cluster.sleep(0.05)  # until nothing is under way
    return leader, quick, spare


def heard(cluster: Cluster, node: str) -> list[int]:
    """The rounds that reach a follower from now on."""
    engine: Any = cluster.nodes[NodeId(node)].raft.engine
    rounds, receive = list[int](), engine.receive

    def observed(peer: NodeId, message: Any) -> None:
        rounds.append(message["seq"])
        receive(peer, message)

    engine.receive = observed
    return rounds


def test_a_lone_read_is_proven_by_those_who_made_the_last_quorum() -> None:
    cluster = Cluster(3)

    async def story() -> None:
        leader, quick, spare = await with_one_spare(cluster)
        asked, spared, answers = heard(cluster, quick), heard(cluster, spare), list[object]()
        leader.raft.read_index(answers.append, lone=True)
        mine = leader.raft.engine.round
        async with asyncio.timeout(5):
            while not answers:
                await cluster.sleep(0.0005)
        assert answers == [None]
        assert mine in asked
        assert mine not in spared
        assert leader.raft.engine.round_due is None, "the others are asked all the same"

    cluster.tell(story())


def test_a_lone_read_that_the_quickest_does_not_answer_is_asked_of_all() -> None:
    cluster = Cluster(4)

    async def story() -> None:
        leader, quick, _ = await with_one_spare(cluster)
        engine: Any = cluster.nodes[NodeId(quick)].raft.engine
        engine.receive = lambda *_: None  # it hangs, and stays connected
        answers, began = list[object](), cluster.loop.now
        leading: Any = leader.raft.engine
        leading._set("newAppendEntriesTime", began + 10.0)  # no heartbeat asks them by chance
        leader.raft.read_index(answers.append, lone=True)
        async with asyncio.timeout(5):
            while not answers:
                await cluster.sleep(0.0005)
        assert answers == [None]
        assert LINGER_S <= cluster.loop.now - began < RaftSettings().fallback_ms / 2000

    cluster.tell(story())


def test_a_read_that_comes_while_another_is_under_way_is_part_of_a_round_of_its_own() -> None:
    cluster = Cluster(5)

    async def story() -> None:
        leader, _, _ = await with_one_spare(cluster)
        answers = list[object]()
        leader.raft.read_index(answers.append, lone=True)
        first = leader.raft.engine.round
        leader.raft.read_index(answers.append, lone=True)
        assert leader.raft.engine.round == first, "sent with what else the turn has"
        async with asyncio.timeout(5):
            while len(answers) < 2:
                await cluster.sleep(0.0005)
        assert leader.raft.engine.round > first

    cluster.tell(story())


def syncing_on_the_loop(seed: int) -> Cluster:
    """A small group needs no thread, as with a node's own settings."""
    cluster = Cluster(seed)
    cluster.limits = GroupLimits()
    return cluster


def test_what_a_follower_has_synced_goes_on_in_the_turn_that_has_synced_it() -> None:
    """Else the turn after it, in front of the next command, finds nothing to do."""
    cluster, taken = syncing_on_the_loop(3), [0]

    async def story() -> None:
        leader, quick, _ = await with_one_spare(cluster)
        turns: Any = cluster.nodes[quick].raft.turns
        take = turns.take

        def counted() -> None:
            taken[0] += turns.due
            take()

        turns.take = counted
        for _ in range(COMMANDS):
            await submit_alone(cluster, leader)

    cluster.tell(story())
    # One for the batch and one for its entry, which come in a read each here; and some now and then.
    assert 2 * COMMANDS <= taken[0] < 2.75 * COMMANDS


def test_a_leader_looks_for_something_to_sync_only_where_something_waits() -> None:
    cluster, soon = syncing_on_the_loop(3), [0]

    async def story() -> None:
        leader, _, _ = await with_one_spare(cluster)
        turns: Any = leader.raft.turns
        kick_soon = turns.kick_soon

        def counted() -> None:
            soon[0] += 1
            kick_soon()

        turns.kick_soon = counted
        for _ in range(COMMANDS):
            await submit_alone(cluster, leader)
        assert soon[0] == 0, "it syncs a lone command in the turn that it is proposed in"
        leader.submit(0)
        leader.submit(1)
        await cluster.sleep(0.5)
        assert soon[0] > 0, "others once all of one turn is there"

    cluster.tell(story())


def test_a_quorum_is_looked_for_once_somebody_else_has_acknowledged_more() -> None:
    cluster, looked = syncing_on_the_loop(3), [0]

    async def story() -> None:
        leader, _, _ = await with_one_spare(cluster)
        engine: Any = leader.raft.engine
        held_by_quorum = engine._held_by_quorum

        def counted() -> int:
            looked[0] += 1
            held: int = held_by_quorum()
            return held

        engine._held_by_quorum = counted
        leader.submit(0)
        leader.raft.turn_now()
        assert engine.journal.durable_index == engine.journal.last_index > engine.commit_index, "it is synced here"
        assert looked[0] == 0
        await cluster.sleep(0.5)
        assert looked[0] > 0
        assert engine.commit_index == engine.journal.last_index

    cluster.tell(story())


def test_who_leads_no_more_has_no_turns_for_what_it_was_about_to_tell() -> None:
    """One every other millisecond, until it led again: it had just committed something."""
    cluster, taken, ticks = syncing_on_the_loop(6), [0], [0]

    async def story() -> None:
        leader = await leading(cluster)
        raft, peer = leader.raft, next(node for node in cluster.ids if node != leader.node_id)
        engine, turns = raft.engine, cast("Any", raft.turns)
        await submit_alone(cluster, leader)
        assert engine.news_due is not None
        for node in [node for node in cluster.ids if node != leader.node_id]:
            cluster.crash(node, power=False)
        last, term = engine.journal.last_index, engine.term + 1
        _, previous, previous_term = engine.journal.entry(last)
        beat = {"type": "append_entries", "term": term, "commit_index": 1, "entries": [], "seq": 1}
        engine.receive(peer, {**beat, "prevLogIdx": previous, "prevLogTerm": previous_term})
        assert not engine.is_leader
        await cluster.sleep(0.1)
        take, rest = turns.take, raft.group.rest

        def counted() -> None:
            taken[0] += turns.due
            take()

        def ticked() -> None:
            ticks[0] += 1
            rest()

        turns.take, cast("Any", raft.group).rest = counted, ticked
        await cluster.sleep(1)
        assert not engine.due

    cluster.tell(story())
    assert 0 < taken[0] <= ticks[0] + 1
