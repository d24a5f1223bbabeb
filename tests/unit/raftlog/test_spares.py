"""A command that is alone: the followers whose answer is not waited for get it a little later."""

from __future__ import annotations

import asyncio

from logboom.settings import RaftSettings
from tests.unit.raftlog.cluster import Cluster, SimNode

LINGER_S = RaftSettings().spare_linger_ms / 1000


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
