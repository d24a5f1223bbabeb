"""Engines that talk to each other by hand: no loop, no links, no syncs but those that a test asks for."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from logboom.settings import RaftSettings
from logboom.types import NodeId
from raftlog.engine import Engine, messages
from raftlog.journal.journal import Journal
from raftlog.journal.journal_base import Base
from tests.unit.raftlog.world import MemoryDisk, membership_of

LEADER, FOLLOWER, THIRD = NodeId("n1"), NodeId("n2"), NodeId("n3")


class Side:
    """An engine whose journal has entries of these terms, from Raft index 2 on, and begins at ``base``."""

    def __init__(self, clock: SimpleNamespace, own: NodeId, terms: list[int], *, base: int = 1) -> None:
        self.clock = clock
        self.sent: list[tuple[NodeId, dict[str, Any]]] = []
        self.far: list[NodeId] = []
        self.journal = Journal.open(
            disk=MemoryDisk(), directory=Path("/j"), cluster_id="c", random_bytes=random.Random(0).randbytes
        )
        for index, term in enumerate(terms, 2):
            self.journal.add(b"\x10" + term.to_bytes(31, "little"), index, term)
        self.journal.setCurrentTerm(max(terms), None)
        self.journal.flush()
        if base > 1:
            job = self.journal.compaction(Base(base, self.journal.entry(base)[2], b""))
            job.run()
            job.done()
        others = [node for node in (LEADER, FOLLOWER, THIRD) if node != own]
        self.engine = Engine(
            membership=membership_of(self.journal, own, *others),
            journal=self.journal,
            settings=RaftSettings(),
            clock=SimpleNamespace(monotonic=lambda: clock.now),  # type: ignore[arg-type]
            rng=random.Random(1),
            send=lambda peer, message: bool(self.sent.append((peer, message))) or True,
            apply=lambda *_: None,
            sendable=lambda _: 1 << 62,
            too_far=self.far.append,
        )
        for peer in others:
            self.engine.connected(peer, up=True)

    def tick(self) -> None:
        self.clock.now += 0.05
        self.engine.tick()

    def lead(self) -> None:
        """Elected by the third."""
        term = self.engine.term + 1
        self.clock.now += 100
        self.engine.tick()
        self.engine.receive(THIRD, {"type": "pre_vote_ok", "term": term})
        self.engine.tick()
        self.engine.receive(THIRD, {"type": "response_vote", "term": term})
        assert self.engine.is_leader

    def to(self, peer: NodeId) -> list[dict[str, Any]]:
        """As it comes out at the other end."""
        sent, self.sent = self.sent, []
        return [messages.decode(memoryview(messages.encode(each))) for node, each in sent if node == peer]
