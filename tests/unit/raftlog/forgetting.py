"""A cluster whose nodes lose their journals, one at a time, while everything else goes wrong too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from logboom.types import NodeId
from raftlog.journal.membership import Rejoining
from tests.unit.raftlog.cluster import SimNode
from tests.unit.raftlog.moving import MovingCluster


class ForgettingCluster(MovingCluster):
    """What a node's directory would say of it is kept here: its token, as long as it has forgotten."""

    def __init__(self, seed: int, *, nodes: int = 3, compacts: bool = False) -> None:
        super().__init__(seed, nodes=nodes, compacts=compacts)
        self.tokens: dict[NodeId, bytes] = {}
        self.forgotten = self.rejoined = 0
        self.may_forget: tuple[NodeId, ...] = tuple(self.ids)

    def rejoining(self, node_id: NodeId) -> Rejoining | None:
        token = self.tokens.get(node_id)
        return None if token is None else Rejoining(token, partial(self._over, node_id))

    def _over(self, node_id: NodeId, done: Callable[[], None]) -> None:
        node = self.nodes[node_id]

        def removed() -> None:
            if self.nodes.get(node_id) is node:  # else it died before, or between
                del self.tokens[node_id]
                self.rejoined += 1
                self.loop.call_later(self.rng.uniform(0, 0.05), self._done, node, done)

        self.loop.call_later(self.rng.uniform(0, 0.05), removed)

    def _done(self, node: SimNode, done: Callable[[], None]) -> None:
        if self.nodes.get(node.node_id) is node:
            done()

    def forget(self, node_id: NodeId) -> None:
        """Of a node that is down: its journal is set aside. Perhaps it can be read where it began."""
        base = None
        if self.rng.random() < 0.5:
            journal = self.open_journal(node_id)
            base = journal.base
            journal.close()
        disk, directory = self.disks[node_id], Path(f"/{node_id}/journal")
        for path in [path for path in disk.files if path.parent == directory]:
            for table in (disk.files, disk.stable, disk.unsynced):
                table.pop(path, None)  # type: ignore[attr-defined]
        self.tokens[node_id] = self.rng.randbytes(16)
        self.forgotten += 1
        if base is not None and base.index > 1:
            journal = self.open_journal(node_id)
            journal.install(base)
            journal.close()

    async def start(self, node_id: NodeId) -> None:
        if node_id not in self.nodes:  # two kinds of faults start nodes: never two of them on one disk
            await super().start(node_id)

    async def faults(self, seconds: float) -> None:
        """Those of everybody; and now and then a journal goes, of one that votes, if all others know what they said."""
        end = self.loop.now + seconds
        usual = self.loop.create_task(super().faults(seconds))
        while self.loop.now < end:
            await self.sleep(self.rng.uniform(0.2, 0.6))
            leader = self.leader()
            whole = leader is not None and not self.tokens and len(self.nodes) == len(self.ids)
            if whole and self._all_vote(leader):
                victim = self.rng.choice(self.may_forget)
                self.crash(victim, power=self.rng.random() < 0.5)
                self.forget(victim)
                await self.sleep(self.rng.uniform(0.0, 0.5))
                if victim not in self.nodes:  # the usual faults may have started it
                    await self.start(victim)
        await usual

    def _all_vote(self, leader: SimNode | None) -> bool:
        """Whose journal may go is a voter, and that is committed: else a quorum of those before might go with it."""
        if leader is None:
            return False
        current, committed = leader.raft.members.membership.current, leader.raft.engine.commit_index
        return current.index <= committed and set(current.voters) >= set(self.may_forget)

    async def story_of_losses(self, seconds: float) -> None:
        """Load and faults; then peace, in which everybody votes again."""
        for node in self.ids:
            await self.start(node)
        jobs = [self.loop.create_task(self.load(seconds)), self.loop.create_task(self.faults(seconds))]
        compaction = self.loop.create_task(self.compaction()) if self.compacts else None
        for job in jobs:
            await job
        await self.settle()
        assert not self.tokens, "somebody still waits to be taken back"
        if compaction is not None:
            compaction.cancel()

    def agreed(self) -> bool:
        return super().agreed() and not self.tokens

    def where(self) -> dict[NodeId, Any]:
        return {n: (*row, self.tokens.get(n)) for n, row in super().where().items()}  # type: ignore[misc]
