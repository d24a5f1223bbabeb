"""Nodes that have a set and a log, one that has not, and the links between them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chaos.sim.disk import SimDisk
from dispatcher.upkeep.installing import Check, InstallDue, Installing
from dispatcher.upkeep.serving import SnapshotServing
from logboom.settings import ClusterSettings, SnapshotSettings
from logboom.types import GlobalLogIndex, NodeId, PartitionId, RaftIndex, Term
from logboom.wire import Frame, FrameDecoder, Kind, encode
from partitions.log.batch import parse_batch
from partitions.log.log import PartitionLog
from partitions.log.opening import LogBase
from raftlog.entries.configuration import Configuration, Role, Seat
from raftlog.entries.parent_state import ParentState, Tail
from snapshots.meta import SetMeta
from snapshots.states import StatesWriter
from snapshots.store import SnapshotStore
from tests.unit.partitions.batches import P
from tests.unit.partitions.compaction_world import append, chain, commit, flush, open_log
from tests.unit.snapshots.states_world import Dump, entries

LOG = P


G = GlobalLogIndex(400)


COUNT = 40


class Inline:
    """An offload that does not wait."""

    def submit(self, job: Callable[[], Any], done: Callable[[Any, Any], None]) -> None:
        try:
            result, error = job(), None
        except Exception as caught:  # noqa: BLE001 - handed over
            result, error = None, caught
        asyncio.get_running_loop().call_soon(done, result, error)

    async def run(self, job: Callable[[], Any]) -> Any:
        return job()


class Wire:
    """Links of all nodes: frames are encoded, decoded and delivered by the loop."""

    def __init__(self) -> None:
        self.nodes: dict[str, Callable[[str, Frame], None]] = {}
        self.down: set[str] = set()
        self.spoil: Callable[[Frame], Frame] = lambda frame: frame
        self.log: list[tuple[str, str, Kind, dict[str, Any]]] = []

    def of(self, name: str) -> Any:
        def send(peer: str, kind: Kind, header: Any, body: Any = (), *, request_id: int = 0) -> bool:
            if peer in self.down or name in self.down:
                return False
            raw = b"".join(bytes(part) for part in encode(kind, header, list(body), request_id=request_id))
            (frame,) = FrameDecoder(frame_bytes_max=1 << 23).feed(raw)
            self.log.append((name, peer, kind, dict(frame.header)))
            asyncio.get_running_loop().call_soon(self._deliver, name, peer, frame)
            return True

        return SimpleNamespace(send=send, ups=Counter(), connected=lambda peer: not {peer, name} & self.down)

    def _deliver(self, name: str, peer: str, frame: Frame) -> None:
        if peer not in self.down and peer in self.nodes:
            self.nodes[peer](name, self.spoil(frame))

    def asked(self, kind: Kind) -> list[dict[str, Any]]:
        return [header for _, _, each, header in self.log if each is kind]


class Source:
    """A node with a set, and a log of which the first records may be gone."""

    def __init__(
        self,
        name: str,
        wire: Wire,
        *,
        big: int = 3000,
        cluster: str = "c",
        digest: bytes = b"",
        raft_index: int = 77,
        lost: Sequence[int] = (),
        excused: bool = True,
        members: Sequence[str] = (),
    ) -> None:
        """``digest``: what the set says that the log ends with, should it lie. ``raft_index``: of its cut.

        ``members``: those that it names; none: it does not say.

        ``lost``: batches that it, and perhaps nobody, has; ``excused``: its state has what they did.
        """
        self.cluster, self.raft_index = cluster, RaftIndex(raft_index)
        self.now, self.doubted = 0.0, list[GlobalLogIndex]()
        self.disk, self.batches = SimDisk(random.Random(1)), chain(COUNT)
        self.log = open_log(self.disk)
        for number, batch in enumerate(self.batches):
            if number in lost:
                assert self.log.concede(batch.last_index, batch.digest)
            else:
                append(self.log, [batch])
        commit(self.log, self.batches)
        for number in lost if excused else ():
            self.log.excuse(self.batches[number].last_index)
        self.store = SnapshotStore(self.disk, Path("/s/snapshots"))
        self.big, self.digest = big, digest
        seats = tuple(Seat(NodeId(each), f"{each}:1", f"{each}:2", Role.VOTER) for each in members)
        self.named = Configuration(seats, term=1, index=2) if seats else None
        self.set_at(G)
        self.serving = SnapshotServing(
            store=self.store,
            logs={LOG: self.log},
            links=wire.of(name),
            clock=SimpleNamespace(monotonic=lambda: self.now),  # type: ignore[arg-type]
            offload=Inline(),  # type: ignore[arg-type]
            damaged=lambda *_: None,
            handed_up=lambda: 1 << 40,
            doubted=self.doubted.append,
        )
        wire.nodes[name] = lambda peer, frame: self.serving.on_frame(NodeId(peer), frame)

    def set_at(self, global_index: GlobalLogIndex) -> None:
        """A set."""
        tail = self.batches[-1]
        tails = {LOG: Tail(tail.last_index, self.digest or tail.digest, G)}
        self.parent = ParentState(global_index, self.raft_index, tails, members=self.named)
        writer = self.written_by(self.store.begin(global_index))
        self.store.complete(writer, self.meta_of(writer.finish()))

    def written_by(self, writer: StatesWriter) -> StatesWriter:
        """All states of a set."""
        writer.add(LOG, "log", Dump(entries(3), self.batches[-1].last_index))
        writer.add(PartitionId(P + 1), "kv", Dump(entries(self.big, value=bytes(range(256)) * 4), 1))
        return writer

    def meta_of(self, written: Any) -> SetMeta:
        return SetMeta(
            cluster=self.cluster,
            global_index=written.global_index,
            raft_index=self.raft_index,
            raft_term=Term(2),
            parent=self.parent.encode(),
            partitions=written.partitions,
            states_bytes=written.states_bytes,
            states_digest=written.states_digest,
            created_ms=1,
        )


def cut_off(source: Source, *, first: int) -> None:
    """Of the source's log the segments before this batch are gone."""
    source.log.save_places(source.batches[-1].last_index)()
    source.log.compact(source.batches[first].header.first_index)()
    assert source.log.first_available_index > 1


class Target:
    """A node that needs it."""

    def __init__(self, wire: Wire, disk: SimDisk | None = None, *, has: int = 0) -> None:
        self.disk = disk or SimDisk(random.Random(2))
        self.log: PartitionLog = open_log(self.disk, directory=Path("/t/log"))
        self.store = SnapshotStore(self.disk, Path("/t/snapshots"))
        append(self.log, chain(COUNT)[:has])
        commit(self.log, chain(COUNT)[:has])
        self.ready, self.fatal, self.kept = list[int](), list[BaseException](), list[SetMeta]()
        self.ended_before = 0
        self.applied, self.base, self.now = 5, 1, 0.0
        self.compaction = list[str]()
        self.take: Callable[[int], None] = self.ready.append
        self.installing = Installing(
            settings=SnapshotSettings(bytes_per_s=1 << 40),
            cluster=ClusterSettings(id="c", partitions=2),
            lineage=str,
            peers=lambda: [NodeId("a"), NodeId("b")],
            store=self.store,
            log_of=self._log_of,
            payloads=SimpleNamespace(receive=self._receive),  # type: ignore[arg-type]
            links=wire.of("t"),
            clock=SimpleNamespace(monotonic=lambda: self.now),  # type: ignore[arg-type]
            offload=Inline(),  # type: ignore[arg-type]
            poke=lambda: flush(self.log),
            raft_index=lambda: self.applied,
            base_index=lambda: self.base,
            stop_compaction=self._stop,
            resume_compaction=lambda: self.compaction.append("goes on"),
            ready=self._take,
            fatal=self.fatal.append,
            kept=self.kept.append,
        )
        wire.nodes["t"] = lambda peer, frame: self.installing.on_frame(NodeId(peer), frame)

    def _receive(self, raw: memoryview, *, behind: bytes) -> None:
        self.log.append(parse_batch(raw), behind=behind)

    def _take(self, global_index: int) -> None:
        self.take(global_index)

    async def _stop(self) -> None:
        self.compaction.append("stops")

    async def _log_of(self, partition_id: PartitionId, kind: Any, check: Check) -> PartitionLog:
        return self.log

    async def ended(self) -> None:
        """One more has begun since the last time, and is ready, or given up."""
        async with asyncio.timeout(20):
            while self.installing.begun == self.ended_before or self.installing._task is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        self.ended_before = self.installing.begun

    def reopened(self) -> PartitionLog:
        """As a start makes it, from the base that the set names."""
        self.log.close()
        tail = chain(COUNT)[-1]
        return open_log(self.disk, LogBase(tail.last_index, tail.digest, G), directory=Path("/t/log"))


def history(log: PartitionLog) -> list[tuple[bytes, int]]:
    after = log.first_available_index - 1
    found = log.read_committed(after_index=after, through_index=1 << 40, max_bytes=1 << 30)
    return [(each.header.digest, each.global_index) for each in found]


async def given(source: Source, target: Target) -> None:
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert [type(error) for error in target.fatal] == [InstallDue]
    assert target.ready == [G]
