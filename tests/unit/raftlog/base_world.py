"""A journal on real files that begins at a base, and an engine that goes on from there."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from logboom.settings import RaftSettings
from logboom.types import NodeId
from ports.sync import Redo
from raftlog.engine import Engine
from raftlog.journal.journal import Journal
from raftlog.journal.journal_base import Base
from server.world.disk_os import OsDisk
from tests.unit.raftlog.world import membership_of

OURS, PEER, OTHER = NodeId("n1"), NodeId("n2"), NodeId("n3")


def opened(directory: Path) -> Journal:
    return Journal.open(
        disk=OsDisk(),
        directory=directory,
        cluster_id="c",
        segment_bytes=4096,
        random_bytes=random.Random(0).randbytes,
    )


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.journal"))


def grown(directory: Path, entries: int, *, redo: bool = False) -> Journal:
    """Entries 2.. of term 1, one to a group."""
    journal = opened(directory)
    journal.setCurrentTerm(1, "n2")
    for number in range(entries):
        if redo and number == 0:
            journal.redo(Redo(bytes(16), [b"batch"]))
        journal.add(b"\x10" + b"r" * 96, number + 2, 1)
        journal.flush()
    return journal


def compact(journal: Journal, index: int) -> None:
    job = journal.compaction(Base(index, journal.entry(index)[2], b"state at %d" % index))
    job.run()
    job.done()


class Node:
    """An engine whose journal has the base 11, of term 1, and entries up to 16; nothing is known of its peers."""

    def __init__(self, directory: Path) -> None:
        self.journal = grown(directory, 15)
        compact(self.journal, 11)
        self.now = 1000.0
        self.sent: list[tuple[NodeId, dict[str, Any]]] = []
        self.applied: list[int] = []
        self.far: list[NodeId] = []
        self.engine = Engine(
            membership=membership_of(self.journal, OURS, PEER, OTHER),
            journal=self.journal,
            settings=RaftSettings(),
            clock=SimpleNamespace(monotonic=lambda: self.now),  # type: ignore[arg-type]
            rng=random.Random(1),
            send=lambda peer, message: bool(self.sent.append((peer, message))) or True,
            apply=lambda index, *_: self.applied.append(index),
            sendable=lambda _: 1 << 62,
            too_far=self.far.append,
        )
        for peer in (PEER, OTHER):
            self.engine.connected(peer, up=True)

    def lead(self) -> None:
        self.now += 100
        self.engine.tick()
        self.engine.receive(PEER, {"type": "pre_vote_ok", "term": 2})
        self.engine.tick()
        self.engine.receive(PEER, {"type": "response_vote", "term": 2})
        assert self.engine.is_leader
        self.journal.flush()

    def answers(self, following: int, *, reset: bool = False, success: bool = False) -> None:
        fields = {"next_node_idx": following, "reset": reset, "success": success, "term": 2, "seq": self.engine.round}
        self.engine.receive(PEER, {"type": "next_node_idx"} | fields)
        self.sent.clear()
        self.far.clear()
        self.now += 0.01
        self.engine.tick()

    def told(self) -> list[dict[str, Any]]:
        return [message for peer, message in self.sent if peer == PEER]
