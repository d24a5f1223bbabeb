"""A node that is given a snapshot, while others lack some of it, read it wrongly, or do not answer."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest

from dispatcher.upkeep import installing, serving, sources
from dispatcher.upkeep.installing import Check
from dispatcher.upkeep.log_fetching import LogFetch
from logboom.errors import CorruptData
from logboom.types import GlobalLogIndex, NodeId, RaftIndex
from logboom.wire import Frame, Kind
from partitions.log.log import PartitionLog
from ports.timers import wait
from tests.unit.dispatcher.installing_world import COUNT, G, Source, Target, Wire, cut_off, given, history
from tests.unit.partitions.batches import P
from tests.unit.partitions.compaction_world import flush
from tests.unit.raftlog.world import VirtualLoop


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ANSWER_S", 0.05)
    monkeypatch.setattr(sources, "PAUSE_S", 0.001)
    monkeypatch.setattr(sources, "SILENT_PAUSE_S", 0.001)
    monkeypatch.setattr(installing, "DURABLE_POLL_S", 0.001)


@pytest.mark.parametrize("void", [False, True])
def test_whoever_is_silent_is_not_waited_for_at_each_batch_that_is_lost(*, void: bool) -> None:
    """His link is up, and his disk hangs: with thousands of them the set was gone before all was there."""
    loop, wire = VirtualLoop(), Wire()
    source: Any = Source("a", wire, lost=range(0, COUNT, 2))
    wire.nodes["b"] = lambda *_: None
    asked, told = Target(wire).installing._sources, list[float]()
    wire.nodes["t"] = lambda peer, frame: asked.on_frame(NodeId(peer), frame)
    asked.begin(G, NodeId("a"))

    async def all_of_it() -> None:
        for _ in range(5):
            for number in range(0, COUNT, 2):
                after = source.batches[number].header.first_index - 1
                ask = {"global_index": G, "partition": P, "after": after, "through": 1 << 20}
                assert ("lost" in (await asked.ask_for_log(ask)).header) != void
            told.append(loop.now)
            await wait(sources.SILENT_AGAIN_S)

    for number in range(0, COUNT, 2) if void else ():
        source.log.void(source.batches[number].last_index, source.batches[number].digest)
    began = loop.now
    with closing(loop):
        loop.run_until_complete(all_of_it())
    assert told[0] - began < 60
    of_b = [kind for _, peer, kind, _ in wire.log if peer == "b"]
    assert len(of_b) <= (0 if void else 10)
    assert void or len(of_b) > 5, "he is asked again, but not each time"


@pytest.mark.parametrize("member", [False, True])
async def test_who_was_no_member_any_more_is_asked_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, *, member: bool
) -> None:
    """A node that came back with an empty disk waited half a minute for one that had been removed, before it voted."""
    wire, waits = Wire(), list[float]()

    async def waited(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(sources, "wait", waited)
    source, _, asked = Source("a", wire), Source("b", wire), Target(wire).installing._sources
    cut_off(source, first=20)
    asked.begin(G, NodeId("a"))
    asked.members = {NodeId(each) for each in ("at" + "b" * member)}
    ask = {"global_index": G, "partition": P, "after": 0, "through": source.batches[-1].last_index}
    wire.down.add("b")
    assert not sources.batches_in(await asked.ask_for_log(ask))
    assert bool(waits) == member
    wire.down.clear()
    assert sources.batches_in(await asked.ask_for_log(ask))
    asked.begin(G, NodeId("a"))
    wire.down.add("b")
    await asked.ask_for_log(ask)
    assert waits, "another set may say otherwise"


@pytest.mark.parametrize("members", [("a", "t"), ()])
async def test_the_set_says_who_they_were(members: tuple[str, ...]) -> None:
    wire = Wire()
    source, target = Source("a", wire, members=members), Target(wire)
    Source("b", wire, members=members)
    await given(source, target)
    assert target.installing._sources.members == (members or None)


@pytest.mark.usefixtures("_quick")
async def test_what_turns_up_is_on_the_disk_before_its_place_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows it was there, of a fetch that had failed: only the last of a piece was looked at."""
    wire, saved = Wire(), list[bool]()
    wire.down.add("b")
    target, source = Target(wire), Source("a", wire, lost=(20,), digest=b"x" * 16)
    gone = source.batches[20]
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert target.installing.failed == 1
    assert target.log.holds(source.batches[-1].last_index, source.batches[-1].digest)
    save = LogFetch.save

    def looked_at(fetch: LogFetch) -> Any:
        saved.append(target.log.is_durable(gone.last_index, gone.digest))
        return save(fetch)

    monkeypatch.setattr(LogFetch, "save", looked_at)
    loop = asyncio.get_running_loop()
    target.installing._poke = lambda: loop.call_later(0.02, flush, target.log)  # type: ignore[assignment]
    source = Source("a", wire, raft_index=78)
    await given(source, target)
    assert saved == [True]
    assert history(target.reopened()) == history(source.log)


@pytest.mark.usefixtures("_quick")
async def test_what_one_cannot_read_of_a_set_is_no_word_against_what_others_gave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever had given the first half, and was away for a moment, was asked last from then on."""
    monkeypatch.setattr(sources, "ROUNDS_MAX", 2)
    wire = Wire()
    source, other, target = Source("a", wire), Source("b", wire), Target(wire)

    def rotten(_: GlobalLogIndex) -> Any:
        raise CorruptData("its file is damaged")

    other.store.open_states = rotten  # type: ignore[method-assign]

    def leaves(frame: Frame) -> Frame:
        if frame.kind is Kind.SNAPSHOT_CHUNK and wire.asked(Kind.SNAPSHOT_FETCH)[-1]["offset"]:
            wire.down.add("a")
        return frame

    wire.spoil = leaves
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert (target.ready, target.installing.failed) == ([], 1)
    assert target.installing._sources._doubted == (G, frozenset())
    assert source.doubted == []
    wire.down.clear()
    wire.spoil = lambda frame: frame
    source.serving._offered.clear()
    await given(source, target)


async def test_what_is_asked_for_last_counts() -> None:
    """A hole that is known later may lie in front of the others: a set of in between is of use then."""
    wire = Wire()
    _, target = Source("a", wire), Target(wire)
    target.applied = 100
    wire.down.add("t")
    target.installing.want("a batch is damaged", GlobalLogIndex(G + 100))
    wire.down.clear()
    target.installing.want("another one is", GlobalLogIndex(G - 1))
    await target.ended()
    assert target.ready == [G]


@pytest.mark.parametrize("silent", [False, True])
async def test_one_that_was_overtaken_is_not_begun_again_before_the_newer_one(
    monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    """Whoever has the older one answered first each time: it was begun, and overtaken, again and again.

    Where the newer one comes no more it is begun after all.
    """
    wire, begun = Wire(), list[int]()
    a, b, target = Source("a", wire), Source("b", wire), Target(wire)
    newer = GlobalLogIndex(G + 5)
    b.raft_index = RaftIndex(78)
    b.set_at(newer)

    async def log_of(_: Any, __: Any, check: Check) -> PartitionLog:
        begun.append(check.args[0].global_index)  # type: ignore[attr-defined]
        while begun == [G]:
            check(stands=True)
            await asyncio.sleep(0.001)
        return target.log

    monkeypatch.setattr(target.installing, "_log_of", log_of)
    target.installing.want("a state is gone")
    await target.ended()
    assert (begun, target.ready) == ([G], [])
    if silent:
        wire.down.add("b")
        target.now += installing.NEWER_S
    for source in (a, b):
        source.now += serving.OFFER_AGAIN_S
    target.installing.want("a state is gone")
    await target.ended()
    wanted = G if silent else newer
    assert (begun, target.ready, target.installing.failed) == ([G, wanted], [wanted], 0)
