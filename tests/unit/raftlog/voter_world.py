"""An engine by itself: what it is sent, and what it says to that."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from logboom.settings import RaftSettings
from logboom.types import NodeId, PartitionId, PartitionLogIndex, Term
from raftlog.engine import Engine
from raftlog.entries.entry import Route, pack_routes
from raftlog.journal.journal import Journal
from tests.unit.raftlog.world import MemoryDisk, membership_of

OURS, THEIRS = NodeId("n1"), NodeId("n2")


def route(index: int) -> Route:
    return Route(PartitionId(0), Term(1), PartitionLogIndex(index), index.to_bytes(16, "little"))


def journal_of(entries: int) -> Journal:
    journal = Journal.open(
        disk=MemoryDisk(), directory=Path("/j"), cluster_id="c", random_bytes=random.Random(0).randbytes
    )
    for index in range(2, entries + 2):
        journal.add(pack_routes([route(index)]), index, 1)
    journal.flush()
    return journal


def append_entries(first: int, last: int) -> dict[str, Any]:
    entries = [(pack_routes([route(index)]), index, 1) for index in range(first, last + 1)]
    message: dict[str, Any] = {"type": "append_entries", "term": 1, "commit_index": 1, "seq": 7}
    return message | {"entries": entries, "prevLogIdx": first - 1, "prevLogTerm": 1}


class Voter:
    """An engine with two peers, or those that are given, far from its own deadline or past it."""

    def __init__(self, *, now: float, peers: tuple[NodeId, ...] = (THEIRS, NodeId("n3")), entries: int = 3) -> None:
        self.now = now
        self.sent: list[dict[str, Any]] = []
        self.applied: list[int] = []
        self.engine = Engine(
            membership=membership_of(journal_of(entries), OURS, *peers),
            journal=journal_of(entries),
            settings=RaftSettings(),
            clock=SimpleNamespace(monotonic=lambda: self.now),  # type: ignore[arg-type]
            rng=random.Random(1),
            send=lambda peer, message: bool(self.sent.append(message)) or True,
            apply=lambda index, *_: self.applied.append(index),
            sendable=lambda _: 1 << 62,
            too_far=lambda _: None,
        )
        for peer in peers:
            self.engine.connected(peer, up=True)

    def wait(self, seconds: float) -> None:
        """Its own loop turns meanwhile."""
        end = self.now + seconds
        while self.now < end:
            self.engine.tick()
            self.now = min(end, self.now + 0.01)

    def asked(self, kind: str, **more: Any) -> None:
        last = {"last_log_index": 4, "last_log_term": 1}
        self.engine.receive(THEIRS, {"type": kind, "term": 1} | last | more)


OTHER = NodeId("n3")


class Leader(Voter):
    """Of three, elected with the vote of THEIRS."""

    def __init__(self) -> None:
        super().__init__(now=1000.0)
        self.wait(RaftSettings().election_max_ms / 1000 + 1)
        self.engine.receive(THEIRS, {"type": "pre_vote_ok", "term": self.engine.term + 1})
        self.engine.tick()
        self.engine.receive(THEIRS, {"type": "response_vote", "term": self.engine.term})
        assert self.engine.is_leader
        self.acknowledge(THEIRS)
        assert self.engine.leads_committed_term

    def acknowledge(self, peer: NodeId) -> None:
        """All that this one has, and it has synced it."""
        engine = self.engine
        engine.journal.flush()
        message = {"type": "next_node_idx", "term": engine.term, "seq": engine.round, "success": True, "reset": False}
        engine.receive(peer, message | {"next_node_idx": engine.journal.last_index + 1})
        engine.tick()
