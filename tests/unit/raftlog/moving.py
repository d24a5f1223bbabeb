"""A cluster whose members change while everything else goes wrong too."""

from __future__ import annotations

from collections.abc import Callable

from logboom.errors import LogboomError
from logboom.types import NodeId
from raftlog.entries.configuration import NOBODY, Configuration, Role, Seat
from raftlog.members.changes import Change
from tests.unit.raftlog.cluster import Cluster, SimNode
from tests.unit.raftlog.world import MemoryDisk, voters


def seat(node: NodeId, role: Role = Role.JOINING) -> Seat:
    return Seat(node, f"{node}:1", f"{node}:2", role)


class MovingCluster(Cluster):
    """Nodes come, are promoted, removed and made to lead, all by chance."""

    def __init__(self, seed: int, *, nodes: int = 3, compacts: bool = False) -> None:
        super().__init__(seed, nodes=nodes, compacts=compacts)
        self.first = tuple(self.ids)
        self.said: dict[int, Configuration] = {1: self.begins(self.ids[0])}
        """What was committed, by Raft index."""
        self.changes = self.transfers = 0
        self.outcomes: list[LogboomError | None] = []

    def begins(self, node_id: NodeId) -> Configuration:
        """The first ones know each other; whoever comes later waits."""
        if node_id not in self.first:
            return NOBODY
        return voters(*self.first)

    def said_at(self, found: Configuration) -> None:
        """One configuration per index, on every node; majorities of one after the other have a node in common."""
        known = self.said.setdefault(found.index, found)
        assert known == found, f"{found} and {known}"
        order = sorted(self.said)
        before = self.said[order[order.index(found.index) - 1]] if found.index > 1 else found
        one, other = set(before.voters), set(found.voters)
        assert len(one | other) < len(one) // 2 + 1 + len(other) // 2 + 1, f"{one} and {other} need not meet"
        assert set(before.removed) <= set(found.removed)

    async def start(self, node_id: NodeId) -> None:
        await super().start(node_id)
        node = self.nodes[node_id]
        control = node.control

        def heard(raft_index: int, term: int, fields: dict[str, object]) -> None:
            control(raft_index, term, fields)
            if node.parent.members is not None and node.parent.members.index == raft_index:
                self.said_at(node.parent.members)

        node.control = heard  # type: ignore[method-assign, assignment]

    # -- changes

    def ask(self, change: Change, done: Callable[[LogboomError | None], None] | None = None) -> bool:
        """Propose it where somebody leads; False: nobody could."""
        leader = self.leader()
        if leader is None:
            return False
        try:
            leader.raft.members.changes.propose(change, done or self.outcomes.append)
        except LogboomError as error:
            self.outcomes.append(error)
            return False
        return True

    async def add(self) -> NodeId:
        """A new node, waiting; and it is asked for, once."""
        node_id = NodeId(f"n{len(self.disks)}")
        self.disks[node_id] = MemoryDisk()
        self.ids.append(node_id)
        await self.start(node_id)
        self.ask(lambda now: now.adding(seat(node_id)))
        return node_id

    async def moves(self, seconds: float) -> None:
        """Until then, something every now and then."""
        end = self.loop.now + seconds
        while self.loop.now < end:
            await self.sleep(self.rng.uniform(0.05, 0.5))
            leader = self.leader()
            if leader is None:
                continue
            now, chance = leader.raft.members.membership.current, self.rng.random()
            if chance < 0.35 and len(now.seats) < 6 and len(self.disks) < 12:
                await self.add()
            elif chance < 0.65 and len(now.voters) > 1:
                victim = self.rng.choice(now.ids)
                self.ask(lambda now, victim=victim: now.removing(victim))  # type: ignore[misc]
            elif chance < 0.8:
                await self.hand_over(leader)
            else:
                for node_id in self.ids:  # what was asked for and lost is asked for again
                    if now.seat(node_id) is None and node_id not in now.removed and node_id in self.nodes:
                        self.ask(lambda now, node_id=node_id: now.adding(seat(node_id)))  # type: ignore[misc]
                        break

    async def hand_over(self, leader: SimNode) -> None:
        """To anybody, if it can be."""

        def done(error: LogboomError | None) -> None:
            self.transfers += error is None

        try:
            leader.raft.members.transfer.begin(None, done)
        except LogboomError as error:
            self.outcomes.append(error)

    # -- the end

    async def settle(self) -> None:
        """Everything back; the members agree within 30 simulated seconds, those who were removed disturb nobody."""
        self.net.cuts.clear()
        self.net.slow.clear()
        for node in list(self.disks):
            if node not in self.nodes:
                await self.start(node)
        end = self.loop.now + 30
        while not self.agreed():
            self.check()
            assert self.loop.now < end, f"did not converge: {self.where()}"
            await self.sleep(0.05)
        leader = self.leader()
        assert leader is not None
        term = leader.raft.engine.term
        for node in sorted(self.nodes.keys() - set(leader.raft.members.membership.current.ids)):
            self.crash(node, power=True)  # it forgets what it was told
            await self.start(node)
        await self.sleep(5)
        self.check()
        assert (self.leader(), leader.raft.engine.term) == (leader, term), "somebody who was removed disturbs"

    def agreed(self) -> bool:
        leader = self.leader()
        if leader is None:
            return False
        now = leader.raft.members.membership.current
        members = [self.nodes[node] for node in now.ids]
        same = all(node.raft.members.membership.current == now for node in members)
        joined = all(each.role is Role.VOTER for each in now.seats)
        leads = leader.node_id in now.ids  # not one that has just removed itself
        return leads and same and joined and {n.parent.global_index for n in members} == {max(self.log or [0])}

    def where(self) -> dict[NodeId, object]:
        return {
            n: (s.parent.global_index, s.raft.engine.term, s.raft.admits, s.raft.members.membership.current.index)
            for n, s in self.nodes.items()
        }

    async def story(self, seconds: float, *, faults: bool = True) -> None:
        """Load, changes and faults; then peace."""
        for node in self.ids:
            await self.start(node)
        jobs = [self.loop.create_task(self.load(seconds)), self.loop.create_task(self.moves(seconds))]
        if faults:
            jobs.append(self.loop.create_task(self.faults(seconds)))
        compaction = self.loop.create_task(self.compaction()) if self.compacts else None
        for job in jobs:
            await job
        await self.settle()
        if compaction is not None:
            compaction.cancel()
        self.changes = len(self.said) - 1
