"""Three nodes that tell each other of their frontiers; the test moves them and their links."""

from __future__ import annotations

from typing import Any

from dispatcher.barriers.telling import Telling
from dispatcher.barriers.watermarks import Watermarks
from logboom.types import GlobalLogIndex, NodeId, PartitionId, PartitionLogIndex, Scope
from tests.unit.dispatcher.barrier_desk import A, Desk

NODES = tuple(NodeId(f"n{k}") for k in (1, 2, 3))
N1, N2, N3 = NODES
BOTH = (Scope.QUORUM, Scope.ALL)


class Node(Desk):
    def __init__(self, world: World, name: NodeId) -> None:
        super().__init__()
        self.name, self.world = name, world
        self.shows = True
        self.others = self.barriers.others
        self.others.set_members(name, NODES, NODES)
        self.telling = Telling(self.barriers, self.watermarks, may_show=lambda _: self.shows)


class World:
    """Three nodes; what one says to another arrives in order, when ``talk`` is called and their link is up."""

    def __init__(self) -> None:
        self.nodes = {name: Node(self, name) for name in NODES}
        self.cut: set[frozenset[NodeId]] = set()
        self.frames = 0
        self.rows = 0

    def __getitem__(self, name: NodeId) -> Node:
        return self.nodes[name]

    def talk(self) -> None:
        """Until nobody has anything to say."""
        again = True
        while again:
            again = False
            for node in self.nodes.values():
                for peer in [p for p in node.others.due() if frozenset((node.name, p)) not in self.cut]:
                    header = node.others.ask(peer)
                    node.others.asked(peer)
                    self[peer].telling.asked(node.name, header)
                    self.frames += 1
                    again = True
                for peer in [p for p in node.telling.due() if frozenset((node.name, p)) not in self.cut]:
                    header = node.telling.tell(peer)
                    node.telling.told(peer, header)
                    self[peer].others.heard(node.name, header)
                    self.frames += 1
                    self.rows += len(header["rows"])
                    again = True

    def sever(self, one: NodeId, other: NodeId) -> None:
        self.cut.add(frozenset((one, other)))
        for a, b in ((one, other), (other, one)):
            self[a].telling.peer_down(b)

    def mend(self, one: NodeId, other: NodeId) -> None:
        self.cut.discard(frozenset((one, other)))
        for a, b in ((one, other), (other, one)):
            self[a].telling.peer_down(b)
            self[a].others.link_up(b)

    def members(self, ids: tuple[NodeId, ...], voters: tuple[NodeId, ...]) -> None:
        for node in self.nodes.values():
            node.others.set_members(node.name, ids, voters)
            node.barriers.members_changed()


def apply(world: World, name: NodeId, index: int, partition: PartitionId = A, **how: Any) -> None:
    world[name].apply(partition, index, **how)
    world.talk()


def move(marks: Watermarks, partition: PartitionId, applied: int, **more: Any) -> None:
    marks.update(
        partition,
        log_index=PartitionLogIndex(more.get("log", applied)),
        durable_index=PartitionLogIndex(more.get("durable", applied)),
        applied_index=PartitionLogIndex(applied),
        applied_global_index=GlobalLogIndex(more.get("at", applied)),
        state=more.get("state", "running"),
        idle=more.get("idle", False),
    )
