"""What a leader sends over a new link to a node of which it knows nothing."""

from __future__ import annotations

from logboom.wire import Kind
from tests.unit.raftlog.cluster import Cluster


def test_a_node_that_has_everything_is_not_sent_it_again() -> None:
    """Found by measuring starts: after all had been started again, one was fed the whole log over its new link."""
    cluster = Cluster(5)
    fed: list[str] = []

    async def story() -> None:
        for each in cluster.ids:
            await cluster.start(each)
        await cluster.load(3.0)
        await cluster.sleep(1.0)
        held = max(node.raft.journal.last_index for node in cluster.nodes.values())
        assert held > 50
        for each in cluster.ids:
            cluster.crash(each, power=False)
        first, second, late = cluster.ids
        await cluster.start(first)
        await cluster.start(second)
        while cluster.leader() is None:
            await cluster.sleep(0.1)
        leader = cluster.leader()
        assert leader is not None
        send = leader.raft.links.send

        def sent(peer: object, kind: Kind, *args: object, **kwargs: object) -> bool:
            if peer == late and kind is Kind.PAYLOAD:
                fed.append(str(peer))
            return send(peer, kind, *args, **kwargs)  # type: ignore[arg-type]

        leader.raft.links.send = sent  # type: ignore[method-assign]
        await cluster.start(late)
        await cluster.sleep(3.0)
        assert cluster.nodes[late].raft.engine.applied_index >= held

    cluster.tell(story())
    cluster.check()
    assert len(fed) < 5
