"""Three parent logs in one world, with a fault schedule drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from logboom.errors import LogboomError
from logboom.settings import RaftSettings
from logboom.types import NodeId, PartitionId
from logboom.wire import Frame
from ports.net import ConnectionLimits
from raftlog.core import RaftLog
from raftlog.entries.configuration import Configuration
from raftlog.entries.entry import Route
from raftlog.entries.parent_state import EMPTY, ParentState, Tail
from raftlog.journal.journal import Journal
from raftlog.journal.journal_base import Base
from raftlog.journal.membership import Membership, Rejoining
from raftlog.journal.outbox import GroupLimits, GroupSync
from raftlog.links.hello import Identity
from raftlog.links.links import Links
from tests.unit.raftlog.store import Store
from tests.unit.raftlog.world import MemoryDisk, MemoryNetwork, VirtualClock, VirtualLoop, VirtualOffload, voters

PARTITIONS = (PartitionId(0), PartitionId(1))


class SimNode:
    """One process: everything in here is lost in a crash, the disk is not (less what was unsynced)."""

    def __init__(self, cluster: Cluster, node_id: NodeId) -> None:
        self.cluster, self.node_id = cluster, node_id
        loop, rng = cluster.loop, random.Random(cluster.rng.random())
        disk = cluster.disks[node_id]
        self.offload = VirtualOffload(loop, rng)
        self.journal = cluster.open_journal(node_id)
        self.store = Store(disk, Path(f"/{node_id}/aof"))
        self.parent = ParentState.decode(self.journal.base.state)
        self.cuts: list[Base] = []
        """Where the journal may begin one day."""
        self.compacting = False
        self.tails: dict[PartitionId, Tail] = {}
        self.proposed: list[tuple[PartitionId, int, bytes]] = []
        self.network = cluster.net.of(f"{node_id}:1")
        clock = VirtualClock(loop)
        begins, rejoins = self.parent.members or cluster.begins(node_id), cluster.rejoining(node_id)
        self.raft = RaftLog(
            membership=Membership(node_id=node_id, journal=self.journal, begins=begins, rejoining=rejoins),
            journal=self.journal,
            payloads=self.store,
            links_of=lambda events: Links(
                identity=Identity(node_id, "sim", b"same"),
                members={},
                network=self.network,  # type: ignore[arg-type]
                clock=clock,
                rng=rng,
                limits=ConnectionLimits(),
                tls=None,
                events=events,
                drop=lambda peer, kind: cluster.drop_payload and kind == 66 and rng.random() < 0.3,
            ),
            group=lambda synced: GroupSync(
                journal=self.journal,
                offload=self.offload,
                clock=clock,
                synced=synced,
                failed=cluster.failures.append,
                limits=cluster.limits,
            ),
            settings=cluster.settings,
            clock=clock,
            rng=rng,
            offload=self.offload,
            events=self,
            fatal=cluster.failures.append,
        )
        self.store.appended = self.raft.group.dirty
        self.raft.recover()
        cluster.put_back += self.raft.put_back

    async def start(self) -> None:
        await self.raft.start(f"{self.node_id}:1")

    def submit(self, salt: int) -> None:
        """One request over one or both partitions."""
        routes = []
        for partition in PARTITIONS[: 1 + salt % 2]:
            route, raw = self.store.make(partition, self.tails.get(partition, EMPTY), salt)
            self.tails[partition] = Tail(route.last_index, route.digest)
            self.raft.send_payload([raw])
            routes.append(route)
        self.raft.propose(routes, payload_bytes=64 * len(routes))

    # RaftEvents

    def orders(self) -> None:
        pass

    def committed(self, raft_index: int, term: int, routes: Sequence[Route]) -> None:
        first = self.parent.apply(raft_index, routes)
        for offset, route in enumerate(routes):
            assert self.store.holds(route), "I2: committed without its payload"
            self.cluster.committed(self.node_id, first + offset, route)
        if self.cluster.compacts and self.cluster.rng.random() < 0.1:
            self.cuts.append(Base(raft_index, term, self.parent.encode()))

    def control(self, raft_index: int, term: int, fields: Mapping[str, Any]) -> None:
        self.parent.control(raft_index, term, fields)

    def members_changed(self, members: Configuration) -> None:
        """Nobody minds."""

    def foretold(self, routes: Sequence[Route], through: int) -> None:
        pass

    def peer_needs_snapshot(self, peer: NodeId) -> None:
        assert peer in self.raft.lagging
        self.cluster.too_far.add(peer)

    def compact(self) -> None:
        """To a cut at random, if there is a new one."""
        self.cuts = [cut for cut in self.cuts if cut.index > self.journal.base.index]
        if self.cuts and not self.compacting:
            self.compacting = True
            self.store.file.sync()
            self.raft.compact(self.cluster.rng.choice(self.cuts), self._compacted)

    def _compacted(self) -> None:
        self.compacting = False
        self.cluster.compactions += 1

    def leads(self, term: int) -> None:
        self.cluster.leaders.setdefault(term, set()).add(self.node_id)
        self.tails = self.parent.tails_after(self.raft.uncommitted_routes())

    def lost_leadership(self) -> None:
        pass

    def peer_frame(self, peer: NodeId, frame: Frame) -> None:
        raise AssertionError(frame)

    def peer_up(self, peer: NodeId) -> None:
        pass

    peer_drained = peer_down = peer_forgot = peer_up

    def repaired(self, *_: object) -> None:
        """Nobody waits for it here."""

    synced = traced = repaired


class Cluster:
    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        segment_bytes: int = 4096,
        drop_payload: bool = False,
        compacts: bool = False,
        settings: RaftSettings = RaftSettings(),  # noqa: B008 - it is frozen
    ) -> None:
        self.settings = settings
        self.rng = random.Random(seed)
        self.loop = VirtualLoop()
        self.net = MemoryNetwork(self.loop, random.Random(self.rng.random()))
        self.ids = [NodeId(f"n{k}") for k in range(nodes)]
        self.disks = {n: MemoryDisk() for n in self.ids}
        self.nodes: dict[NodeId, SimNode] = {}
        self.log: dict[int, Route] = {}
        self.failures: list[BaseException] = []
        self.leaders: dict[int, set[NodeId]] = {}
        self.segment_bytes = segment_bytes
        redo, unsettled = self.rng.choice((0, 64, 1 << 20)), self.rng.choice((0, 2000))
        self.limits = GroupLimits(inline=0, redo=redo, unsettled=unsettled)
        self.put_back = self.reads = self.crashes = self.compactions = self.installs = 0
        self.drop_payload = drop_payload
        self.compacts = compacts
        self.too_far: set[NodeId] = set()
        """Nodes that need a snapshot, as leaders say."""

    def begins(self, node_id: NodeId) -> Configuration:  # while its log says nothing
        return voters(*self.ids)

    def rejoining(self, node_id: NodeId) -> Rejoining | None:  # whether it has lost its journal
        return None

    def open_journal(self, node_id: NodeId) -> Journal:
        return Journal.open(
            disk=self.disks[node_id],
            directory=Path(f"/{node_id}/journal"),
            cluster_id="sim",
            segment_bytes=self.segment_bytes,
            random_bytes=random.Random(0).randbytes,
        )

    def committed(self, node: NodeId, global_index: int, route: Route) -> None:
        """State-machine safety: one route per global index, ever, on every node."""
        known = self.log.setdefault(global_index, route)
        assert known[2:] == route[2:], f"{node} commits {route} at {global_index}, another had {known}"

    async def start(self, node_id: NodeId) -> None:
        self.nodes[node_id] = SimNode(self, node_id)
        await self.nodes[node_id].start()

    def crash(self, node_id: NodeId, *, power: bool) -> None:
        node = self.nodes.pop(node_id)
        node.offload.dead = True
        node.raft.turns.closed = True
        for task in [*node.raft.links._tasks, *node.raft.links.dialling.tasks()]:
            task.cancel()
        self.net.kill(f"{node_id}:1")
        self.crashes += 1
        if power:
            self.disks[node_id].crash(self.rng)

    def leader(self) -> SimNode | None:
        found = [n for n in self.nodes.values() if n.raft.admits]
        return max(found, key=lambda n: n.raft.engine.term) if found else None

    async def sleep(self, seconds: float) -> None:
        woken = self.loop.create_future()
        self.loop.call_later(seconds, lambda: woken.done() or woken.set_result(None))
        await woken

    def check(self) -> None:
        """What must hold at any moment."""
        if self.failures:
            raise self.failures[0]
        for term, leaders in self.leaders.items():
            assert len(leaders) == 1, f"term {term} was led by {leaders}"

    async def load(self, seconds: float) -> None:
        end, salt = self.loop.now + seconds, 0
        while self.loop.now < end:
            for node in list(self.nodes.values()):
                if node.raft.admits:
                    for _ in range(self.rng.randint(1, 8)):
                        salt += 1
                        node.submit(self.rng.getrandbits(64) * 2 + salt % 2)
                    node.raft.read_index(self._read_done, lone=bool(salt % 2))
            self.check()
            await self.sleep(self.rng.uniform(0.001, 0.02))

    def _read_done(self, error: LogboomError | None) -> None:
        self.reads += error is None

    async def faults(self, seconds: float) -> None:
        end = self.loop.now + seconds
        while self.loop.now < end:
            await self.sleep(self.rng.uniform(0.02, 0.5))
            a, b = self.rng.sample(self.ids, 2)
            fate = self.rng.random()
            if fate < 0.35:
                self.net.cut(f"{a}:1", f"{b}:1")
                self.loop.call_later(self.rng.uniform(0.05, 1.0), self.net.heal, f"{a}:1", f"{b}:1")
            elif fate < 0.6:
                self.net.slow[f"{a}:1", f"{b}:1"] = self.rng.uniform(0.02, 0.4)
                self.loop.call_later(self.rng.uniform(0.1, 0.6), self.net.slow.pop, (f"{a}:1", f"{b}:1"), None)
            elif fate < 0.65:
                for node in list(self.nodes):
                    self.crash(node, power=True)
                await self.sleep(0.2)
                for node in self.ids:
                    await self.start(node)
            elif len(self.nodes) == len(self.ids):
                self.crash(a, power=self.rng.random() < 0.6)
                await self.sleep(self.rng.uniform(0.05, 0.8))
                await self.start(a)

    async def compaction(self) -> None:
        """Journals begin later and later; whoever is left behind is started from what another has applied."""
        while True:
            await self.sleep(self.rng.uniform(0.02, 0.4))
            if self.nodes:
                self.rng.choice(list(self.nodes.values())).compact()
            for node_id in sorted(self.too_far & self.nodes.keys()):
                self.too_far.discard(node_id)
                await self.rescue(node_id)

    async def rescue(self, node_id: NodeId) -> None:
        """Give it the state at the latest cut that another node has."""
        others = [node for node in self.nodes.values() if node.node_id != node_id]
        found = [(cut.index, node.node_id, cut) for node in others for cut in [*node.cuts, node.journal.base]]
        if not found:
            return
        _, donor, base = max(found, key=lambda each: each[:2])
        if base.index <= self.nodes[node_id].journal.base.index:
            return
        self.crash(node_id, power=self.rng.random() < 0.3)
        state = ParentState.decode(base.state)
        Store(self.disks[node_id], Path(f"/{node_id}/aof")).adopt(self.nodes[donor].store, state.tails)
        journal = self.open_journal(node_id)
        journal.install(base)
        journal.close()
        self.installs += 1
        await self.start(node_id)

    async def heal(self) -> None:
        """Everything back; all nodes must agree within 30 simulated seconds."""
        self.net.cuts.clear()
        self.net.slow.clear()
        self.net.flips = 0.0
        self.drop_payload = False
        for node in self.ids:
            if node not in self.nodes:
                await self.start(node)
        end = self.loop.now + 30
        while self.loop.now < end:
            self.check()
            leader = self.leader()
            if leader is not None and {n.parent.global_index for n in self.nodes.values()} == {max(self.log or [0])}:
                return
            await self.sleep(0.05)
        where = {n: (s.parent.global_index, s.raft.engine.term, s.raft.admits) for n, s in self.nodes.items()}
        raise AssertionError(f"did not converge on {max(self.log or [0])}: {where}")

    async def run(self, seconds: float, *, faults: bool = True) -> None:
        for node in self.ids:
            await self.start(node)
        jobs = [self.loop.create_task(self.load(seconds))]
        if faults:
            jobs.append(self.loop.create_task(self.faults(seconds)))
        compaction = self.loop.create_task(self.compaction()) if self.compacts else None
        for job in jobs:
            await job
        await self.heal()
        if compaction is not None:
            compaction.cancel()

    def play(self, seconds: float, *, faults: bool = True) -> None:
        self.tell(self.run(seconds, faults=faults))

    def tell(self, story: Coroutine[Any, Any, None]) -> None:
        """Run a story to its end, and take everything down."""
        try:
            self.loop.run_until_complete(story)
        finally:
            for node in list(self.nodes):
                self.crash(node, power=False)
            self.loop.run_until_complete(self.sleep(1))
            self.loop.close()
