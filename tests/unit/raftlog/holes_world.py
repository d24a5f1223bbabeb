"""A node that lacks batches, and what it asks of two others."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from logboom.types import MIB, NodeId, PartitionId, PartitionLogIndex, Term
from logboom.wire import Frame, Kind
from raftlog.core import RaftLog
from raftlog.engine.messages import Message
from raftlog.entries.entry import ROUTE, Route, pack_routes
from raftlog.journal.journal import Journal
from raftlog.links.lacks import Lack, pack
from raftlog.repair.mending import Mending
from raftlog.repair.repair import Repair
from raftlog.repair.standing import Standing
from raftlog.repair.wanted import Wanted
from tests.unit.raftlog.world import MemoryDisk

A, B = NodeId("a"), NodeId("b")


def route(index: int) -> Route:
    return Route(PartitionId(0), Term(1), PartitionLogIndex(index), index.to_bytes(16, "big"))


class Payloads:
    """Of a node that has some."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.holes: set[bytes] = set()
        self.sealed: set[bytes] = set()
        self.why = Lack.ABSENT
        self.covered = False
        self.destroyed = False
        self.needless = False
        """What others have removed is removed here, too, when it is said."""
        self.begun: list[int] = []
        """Behind what it was to begin."""
        self.unreadable: dict[int, Exception] = {}
        self.below: list[Route] = []
        """Of before the journal's base, that nobody had."""
        self.received: list[memoryview] = []
        self.sizes: dict[int, int] = {}

    def holds(self, each: Route) -> bool:
        return each.last_index in self.held

    def read(self, each: Route) -> bytes:
        if each.last_index in self.unreadable:
            raise self.unreadable[each.last_index]
        return b"%d" % each.last_index

    def size(self, each: Route) -> int:
        return self.sizes.get(each.last_index, 8)

    def receive(self, raw: memoryview) -> None:
        self.received.append(raw)

    def lack(self, each: Route) -> Lack:
        return self.why

    def is_covered(self, each: Route) -> bool:
        return self.covered

    def concede(self, each: Route) -> bool:
        if self.holds(each):
            return False
        self.holes.add(each.digest)
        return True

    def lost(self) -> list[Route]:
        return self.below

    def is_hole(self, each: Route) -> bool:
        return each.digest in self.holes

    def ended(self, each: Route) -> bool:
        return self.destroyed

    def begin_behind(self, each: Route) -> None:
        self.begun.append(each.last_index)
        if self.needless:
            self.why = Lack.COMPACTED

    def seal(self, digest: bytes, *, on: bool) -> None:
        (self.sealed.add if on else self.sealed.discard)(digest)

    def write_again(self, *_: object) -> None:
        pass

    def doubt(self, lacking: object) -> None:
        pass


class World:
    def __init__(self) -> None:
        self.journal = Journal.open(
            disk=MemoryDisk(), directory=Path("/j"), cluster_id="c", random_bytes=random.Random(0).randbytes
        )
        for index in range(2, 7):
            self.journal.add(pack_routes([route(index)]), index, 1)
        self.journal.flush()
        self.payloads = Payloads()
        self.standing = Standing(4, A, False)
        self.now = 0.0
        self.sent: list[tuple[NodeId, Kind, dict[str, Any], list[Any]]] = []
        self.linked = {A, B}
        self.queued = 0
        """On each link; in its half of ``room`` whoever is fed is fed."""
        self.left = 0
        """Bytes that have been sent over each."""
        self.fills = False
        """What is sent waits on its link."""
        self.room = 16 * MIB
        self.repair = Repair(
            peers=[A, B],
            links=SimpleNamespace(  # type: ignore[arg-type]
                send=self.send,
                connected=self.linked.__contains__,
                queued=lambda _: self.queued,
                left_bytes=lambda _: self.left,
                ups=Counter(),
                has_room=lambda _, beyond=0: 2 * (self.queued - beyond) <= self.room,
            ),
            payloads=self.payloads,  # type: ignore[arg-type]
            journal=self.journal,
            offload=SimpleNamespace(submit=lambda job, done: done(job(), None)),  # type: ignore[arg-type]
            clock=SimpleNamespace(monotonic=lambda: self.now),  # type: ignore[arg-type]
            damaged=lambda _: None,
            standing=lambda: self.standing,
        )

    def send(self, peer: NodeId, kind: Kind, header: dict[str, Any], body: list[Any]) -> bool:
        self.sent.append((peer, kind, header, body))
        self.queued += sum(map(len, body)) if self.fills else 0
        return peer in self.linked

    def say(self, peer: NodeId, lack: Lack, *, index: int = 5, term: int = 4, asked: int = 0) -> None:
        header = pack([(route(index), lack)], term=term, asked=asked)
        self.repair.on_frame(peer, Frame(Kind.FETCHED, 0, header, memoryview(b"")))

    def passes(self, *indices: int, at: int = 7, term: int = 4, takes: bool = True) -> bool:
        """The gate: an entry there, which routes these, comes from the leader of ``term``, and the engine takes it."""
        entry = pack_routes([route(index) for index in indices]), at, term
        passed = list[tuple[bytes, int, int]]()

        def receive(_: NodeId, message: Message) -> None:
            passed.extend(message["entries"])
            if passed and takes and at > self.journal.last_index:
                self.journal.add(*entry)

        engine: Any = SimpleNamespace(term=term, receive=receive, term_at=lambda _: None)
        mending = Mending(
            engine=engine,
            journal=self.journal,
            payloads=self.payloads,  # type: ignore[arg-type]
            events=SimpleNamespace(),
            repair_of=lambda *_: self.repair,
            poke=lambda: None,
        )
        raft: Any = SimpleNamespace(engine=engine, mending=mending, journal=self.journal)
        RaftLog._on_raft(raft, A, {"type": "append_entries", "term": term, "prevLogTerm": 1, "entries": [entry]})
        return bool(passed)

    def misses(self, *indices: int, committed: bool = False) -> None:
        self.repair.missing([Wanted(route(index), None if committed else index) for index in indices])


def asked_for_routes(world: World) -> list[Route]:
    """In the last question."""
    ((body,),) = (each for _, kind, _, each in world.sent[-1:] if kind is Kind.FETCH)
    return [Route(PartitionId(p), Term(t), PartitionLogIndex(i), digest) for p, t, i, digest in ROUTE.iter_unpack(body)]


def asked_for(world: World) -> list[int]:
    return [each.last_index for each in asked_for_routes(world)]
