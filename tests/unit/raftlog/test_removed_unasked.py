"""Who is removed may be gone for good: a start that misses a batch does not wait for what it would say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import pytest

from logboom.types import NodeId
from raftlog.entries.configuration import Configuration
from raftlog.entries.entry import Route, pack_control, pack_routes
from raftlog.entries.parent_state import EMPTY
from tests.unit.raftlog.cluster import PARTITIONS, Cluster, SimNode
from tests.unit.raftlog.store import Store


class Conceding(Cluster):
    """Its nodes' logs go on behind holes."""

    def __init__(self, *, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(1, nodes=nodes)
        self.handed_up: set[NodeId] = set()
        monkeypatch.setattr(Store, "concede", lambda *_: True)
        monkeypatch.setattr(Store, "is_hole", lambda *_: True)

        def committed(node: SimNode, raft_index: int, term: int, routes: Sequence[Route]) -> None:
            self.handed_up.add(node.node_id)

        monkeypatch.setattr(SimNode, "committed", committed)

    def writes(self, node: NodeId, configuration: Configuration, *, there: bool) -> None:
        """Its journal names a batch, and behind it the configuration, which its base has not passed yet."""
        journal = self.open_journal(node)
        store = Store(self.disks[node], Path(f"/{node}/aof"))
        route, raw = store.make(PARTITIONS[0], EMPTY, 7)
        if there:
            store.file.write([raw], offset=0)
            store.file.sync()
        journal.setCurrentTerm(1, None)
        journal.add(pack_routes([route]), 2, 1)
        journal.add(pack_control(configuration.fields()), 3, 1)
        journal.flush()
        journal.close()

    def run(self, *nodes: NodeId) -> set[NodeId]:
        """Start them; who leads after a while."""

        async def main() -> set[NodeId]:
            for node in nodes:
                await self.start(node)
            await self.sleep(30)
            return {node for node in nodes if self.nodes[node].raft.engine.is_leader}

        asyncio.set_event_loop(self.loop)
        try:
            return self.loop.run_until_complete(main())
        finally:
            self.loop.close()
            asyncio.set_event_loop(None)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("nodes", [3, 2])
def test_who_is_alone_after_all_others_were_removed_leads_with_a_hole(
    nodes: int, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ``recover``: it waited for the nodes that it had been made to go on without, for ever."""
    cluster = Conceding(nodes=nodes, monkeypatch=monkeypatch)
    first, *others = cluster.ids
    cluster.writes(first, reduce(Configuration.removing, others, cluster.begins(first)), there=there)
    assert cluster.run(first) == {first}
    assert (cluster.handed_up, cluster.failures) == ({first}, [])


def test_the_others_go_on_when_all_that_are_left_have_said_that_they_do_not_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Conceding(nodes=3, monkeypatch=monkeypatch)
    *left, gone = cluster.ids
    for node in left:
        cluster.writes(node, cluster.begins(node).removing(gone), there=False)
    assert len(cluster.run(*left)) == 1
    assert (cluster.handed_up, cluster.failures) == (set(left), [])
