"""A set and a log go from nodes that have them to one that has not, whatever happens on the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.disk import SimDisk
from dispatcher.upkeep import installing, sources
from dispatcher.upkeep.installing import InstallDue, Installing
from dispatcher.upkeep.serving import LEASE_S, OFFER_AGAIN_S, SnapshotServing
from logboom.errors import CorruptData
from logboom.settings import ClusterSettings, SnapshotSettings
from logboom.types import GlobalLogIndex, NodeId, PartitionId, RaftIndex, Term
from logboom.wire import Frame, FrameDecoder, Kind, encode
from partitions.log.batch import parse_batch
from partitions.log.log import PartitionLog
from partitions.log.opening import LogBase, begin_places
from raftlog.entries.parent_state import ParentState, Tail
from snapshots.meta import SetMeta
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

        return SimpleNamespace(send=send)

    def _deliver(self, name: str, peer: str, frame: Frame) -> None:
        if peer not in self.down and peer in self.nodes:
            self.nodes[peer](name, self.spoil(frame))

    def asked(self, kind: Kind) -> list[dict[str, Any]]:
        return [header for _, _, each, header in self.log if each is kind]


class Source:
    """A node with a set, and a log of which the first records may be gone."""

    def __init__(self, name: str, wire: Wire, *, big: int = 3000, cluster: str = "c", digest: bytes = b"") -> None:
        """``digest``: what the set says that the log ends with, should it lie."""
        self.cluster = cluster
        self.now = 0.0
        self.disk, self.batches = SimDisk(random.Random(1)), chain(COUNT)
        self.log = open_log(self.disk)
        append(self.log, self.batches)
        commit(self.log, self.batches)
        self.store = SnapshotStore(self.disk, Path("/s/snapshots"))
        self.big, self.digest = big, digest
        self.set_at(G)
        self.serving = SnapshotServing(
            store=self.store,
            logs={LOG: self.log},
            links=wire.of(name),
            clock=SimpleNamespace(monotonic=lambda: self.now),  # type: ignore[arg-type]
            offload=Inline(),  # type: ignore[arg-type]
            damaged=lambda *_: None,
            handed_up=lambda: 1 << 40,
        )
        wire.nodes[name] = lambda peer, frame: self.serving.on_frame(NodeId(peer), frame)

    def set_at(self, global_index: GlobalLogIndex) -> None:
        """A set."""
        tail = self.batches[-1]
        self.parent = ParentState(global_index, 77, {LOG: Tail(tail.last_index, self.digest or tail.digest, G)})
        writer = self.store.begin(global_index)
        writer.add(LOG, "log", Dump(entries(3), tail.last_index))
        writer.add(PartitionId(P + 1), "kv", Dump(entries(self.big, value=bytes(range(256)) * 4), 1))
        self.store.complete(writer, self.meta_of(writer.finish()))

    def meta_of(self, written: Any) -> SetMeta:
        return SetMeta(
            cluster=self.cluster,
            global_index=written.global_index,
            raft_index=RaftIndex(77),
            raft_term=Term(2),
            parent=self.parent.encode(),
            partitions=written.partitions,
            states_bytes=written.states_bytes,
            states_digest=written.states_digest,
            created_ms=1,
        )


class Target:
    """A node that needs it."""

    def __init__(self, wire: Wire, disk: SimDisk | None = None, *, has: int = 0) -> None:
        self.disk = disk or SimDisk(random.Random(2))
        self.log: PartitionLog = open_log(self.disk, directory=Path("/t/log"))
        self.store = SnapshotStore(self.disk, Path("/t/snapshots"))
        append(self.log, chain(COUNT)[:has])
        commit(self.log, chain(COUNT)[:has])
        self.ready, self.fatal = list[int](), list[BaseException]()
        self.ended_before = 0
        self.compaction = list[str]()
        self.take: Callable[[int], None] = self.ready.append
        self.installing = Installing(
            settings=SnapshotSettings(bytes_per_s=1 << 40),
            cluster=ClusterSettings(id="c", partitions=2),
            lineage=str,
            peers=lambda: [NodeId("a"), NodeId("b")],
            store=self.store,
            log_of=self._log_of,
            payloads=SimpleNamespace(receive=lambda raw: self.log.append(parse_batch(raw))),  # type: ignore[arg-type]
            links=wire.of("t"),
            clock=SimpleNamespace(monotonic=lambda: 0.0),  # type: ignore[arg-type]
            offload=Inline(),  # type: ignore[arg-type]
            poke=lambda: flush(self.log),
            raft_index=lambda: 5,
            base_index=lambda: 1,
            stop_compaction=self._stop,
            resume_compaction=lambda: self.compaction.append("goes on"),
            ready=self._take,
            fatal=self.fatal.append,
        )
        wire.nodes["t"] = lambda peer, frame: self.installing.on_frame(NodeId(peer), frame)

    def _take(self, global_index: int) -> None:
        self.take(global_index)

    async def _stop(self) -> None:
        self.compaction.append("stops")

    async def _log_of(self, partition_id: PartitionId, kind: Any) -> PartitionLog:
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


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ANSWER_S", 0.05)
    monkeypatch.setattr(sources, "PAUSE_S", 0.001)
    monkeypatch.setattr(installing, "DURABLE_POLL_S", 0.001)


def history(log: PartitionLog) -> list[tuple[bytes, int]]:
    after = log.first_available_index - 1
    found = log.read_committed(after_index=after, through_index=1 << 40, max_bytes=1 << 30)
    return [(each.header.digest, each.global_index) for each in found]


async def test_all_of_it_comes_over_and_the_node_starts_anew() -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert target.ready == [G]
    assert [type(error) for error in target.fatal] == [InstallDue]
    assert target.store.get(G) == source.store.get(G)
    assert history(target.reopened()) == history(source.log)


async def test_a_set_that_could_not_be_loaded_is_not_taken_again_but_the_next_one_is() -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    target.installing.want("not today", G)
    source.serving.offer(NodeId("t"))
    await asyncio.sleep(0.01)
    assert target.installing.begun == 0
    source.set_at(GlobalLogIndex(G + 1))
    source.now += 10
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert target.ready == [G + 1]


async def test_what_the_log_has_already_is_not_asked_for() -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire, has=30)
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert [asked["after"] for asked in wire.asked(Kind.LOG_FETCH)] == [chain(COUNT)[29].last_index]
    assert history(target.reopened()) == history(source.log)


async def test_a_log_whose_beginning_is_gone_everywhere_begins_where_theirs_does() -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    kept = source.batches[20].header.first_index
    source.log.save_places(source.batches[-1].last_index)()
    source.log.compact(kept)()
    assert source.log.first_available_index > 1
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert target.ready == [G]
    again = target.reopened()
    assert again.first_available_index == source.log.first_available_index
    assert history(again) == history(source.log)


async def test_a_log_of_which_nobody_has_anything_any_more_begins_at_the_cut() -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    tail = source.batches[-1]
    base, installed = LogBase(tail.last_index, tail.digest, G), Path("/s/installed")
    source.disk.make_directory(installed)
    begin_places(source.disk, installed, LOG, base)
    source.serving._logs = {LOG: open_log(source.disk, base, directory=installed)}
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert target.ready == [G]
    begin_places(target.disk, Path("/t/log"), LOG, base)
    assert target.reopened().first_available_index == tail.last_index + 1


async def test_another_node_goes_on_where_the_first_one_fell_silent() -> None:
    wire = Wire()
    first, target = Source("a", wire), Target(wire)
    Source("b", wire)

    def fall_silent(frame: Frame) -> Frame:
        if len(wire.asked(Kind.SNAPSHOT_FETCH)) > 3:
            wire.down.add("a")
        return frame

    wire.spoil = fall_silent
    first.serving.offer(NodeId("t"))
    await target.ended()
    assert target.ready == [G]
    offsets = [asked["offset"] for asked in wire.asked(Kind.SNAPSHOT_FETCH) if asked["file"] == "states"]
    assert offsets.count(0) == 1, "it began anew"


async def test_a_process_that_ends_leaves_what_it_has_to_the_next() -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire)

    def cut_off(frame: Frame) -> Frame:
        if len(wire.asked(Kind.SNAPSHOT_FETCH)) > 3:
            wire.down.add("t")
        return frame

    wire.spoil = cut_off
    source.serving.offer(NodeId("t"))
    async with asyncio.timeout(20):
        while "t" not in wire.down:  # noqa: ASYNC110 - until three pieces have come
            await asyncio.sleep(0.001)
    await target.installing.close()
    target.disk.kill()
    wire.down.clear()
    wire.spoil = lambda frame: frame
    before = len(wire.log)
    source.now += OFFER_AGAIN_S
    again = Target(wire, target.disk)
    source.serving.offer(NodeId("t"))
    await again.ended()
    assert again.ready == [G]
    states = [h for _, _, k, h in wire.log[before:] if k is Kind.SNAPSHOT_FETCH and h["file"] == "states"]
    assert states[0]["offset"] > 1_000_000


async def test_a_byte_that_was_changed_on_the_way_is_noticed_and_nothing_is_kept() -> None:
    wire = Wire()
    source, target = Source("a", wire, big=100), Target(wire)

    def spoil(frame: Frame) -> Frame:
        if frame.kind is Kind.SNAPSHOT_CHUNK and len(frame.body) > 10_000:
            body = bytearray(frame.body)
            body[5000] ^= 1
            return frame._replace(body=memoryview(bytes(body)))
        return frame

    wire.spoil = spoil
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert (target.ready, target.fatal, target.store.sets()) == ([], [], [])
    assert [name for name in target.disk.list(Path("/t/snapshots")) if "fetch" in name or "partial" in name] == []


async def test_what_fails_at_the_very_end_leaves_a_node_that_compacts_on() -> None:
    """Found by reading: compaction had been stopped for it, and stayed so."""
    wire = Wire()
    source, target = Source("a", wire), Target(wire)

    def fail(_: int) -> None:
        raise CorruptData("what was fetched is not there")

    target.take = fail
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert target.compaction == ["stops", "goes on"]
    assert target.fatal == []


async def test_what_nobody_expected_leaves_a_node_that_compacts_on_and_can_be_offered_another() -> None:
    """Found by review: the task was gone without a word, and compaction stood still until the next start."""
    wire = Wire()
    source, target = Source("a", wire), Target(wire)

    def fail(_: int) -> None:
        raise KeyError(P)

    target.take = fail
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert (target.compaction, target.installing.failed, target.fatal) == (["stops", "goes on"], 1, [])
    target.take = target.ready.append
    source.now += OFFER_AGAIN_S
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert target.ready == [G]


@pytest.mark.parametrize("file", ["meta", "states"])
async def test_a_node_that_gives_nothing_of_a_set_is_not_asked_for_ever(file: str) -> None:
    """Found by review: of its description, as fast as the link took it."""
    wire = Wire()
    source, target = Source("a", wire), Target(wire)

    def spoil(frame: Frame) -> Frame:
        asked = wire.asked(Kind.SNAPSHOT_FETCH)
        hollow = frame.kind is Kind.SNAPSHOT_CHUNK and asked[-1]["file"] == file and len(asked) < 1000
        return frame._replace(body=memoryview(b"")) if hollow else frame

    wire.spoil = spoil
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert (target.ready, target.fatal, target.installing.failed) == ([], [], 1)
    assert len(wire.asked(Kind.SNAPSHOT_FETCH)) < 10


@pytest.mark.parametrize("lie", [{"cluster": "another"}, {"digest": b"x" * 16}])
async def test_a_set_of_others_or_of_another_log_is_refused(lie: dict[str, Any]) -> None:
    wire = Wire()
    source, target = Source("a", wire, big=10, **lie), Target(wire)
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert (target.ready, target.fatal) == ([], [])


async def test_a_set_that_nobody_has_any_more_is_given_up() -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    Source("b", wire).store.remove(G)
    source.serving.offer(NodeId("t"))
    source.store.remove(G)
    await target.ended()
    assert (target.ready, target.fatal, target.installing.failed) == ([], [], 1)
    assert len(wire.asked(Kind.SNAPSHOT_FETCH)) == 2  # and each node was asked once
    assert target.installing._sources._answers == {}


async def test_what_the_disk_has_no_room_for_is_not_begun() -> None:
    """Found by review: it was written until the disk was full, which ended the node, and so at every start."""
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    target.installing._spare_bytes = 1 << 20
    target.disk.capacity = target.disk._used + source.store.sets()[0].states_bytes // 2
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert (target.ready, target.fatal, target.installing.failed) == ([], [], 1)
    assert [asked["file"] for asked in wire.asked(Kind.SNAPSHOT_FETCH) if asked["file"] == "states"] == []
    target.disk.capacity = 1 << 40
    source.now += OFFER_AGAIN_S
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert target.ready == [G]


async def test_an_offer_of_what_is_here_already_is_not_taken() -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    target.installing._raft_index = lambda: 77
    source.serving.offer(NodeId("t"))
    for _ in range(3):  # it has come by then, and would have been asked for
        await asyncio.sleep(0)
    assert wire.asked(Kind.SNAPSHOT_OFFER) != []
    assert wire.asked(Kind.SNAPSHOT_FETCH) == []


async def test_offers_are_seldom_and_what_is_fetched_is_held_back() -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    assert source.serving.held_back() is None
    for _ in range(5):
        source.serving.offer(NodeId("t"))
    assert len(wire.asked(Kind.SNAPSHOT_OFFER)) == 1
    await target.ended()
    assert source.serving.held_back() == G
    source.now += LEASE_S + 1
    assert source.serving.held_back() is None
