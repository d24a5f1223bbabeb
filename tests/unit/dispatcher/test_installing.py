"""A set and a log go from nodes that have them to one that has not, whatever happens on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dispatcher.upkeep import installing, sources
from dispatcher.upkeep.installing import WANTED_S, InstallDue
from dispatcher.upkeep.serving import LEASE_S, OFFER_AGAIN_S
from logboom.errors import CorruptData
from logboom.types import GlobalLogIndex, NodeId
from logboom.wire import Frame, Kind
from partitions.log.opening import LogBase, begin_places
from snapshots.store import SnapshotStore
from tests.unit.dispatcher.installing_world import COUNT, LOG, G, Source, Target, Wire, history
from tests.unit.partitions.batches import P
from tests.unit.partitions.compaction_world import append, chain, commit, open_log


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ANSWER_S", 0.05)
    monkeypatch.setattr(sources, "PAUSE_S", 0.001)
    monkeypatch.setattr(sources, "SILENT_PAUSE_S", 0.001)
    monkeypatch.setattr(installing, "DURABLE_POLL_S", 0.001)


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


async def test_the_next_one_that_offers_it_is_asked_where_a_copy_was_damaged() -> None:
    """Whose copy had rotted offered it again and again, and nobody else was asked for it."""
    wire = Wire()
    one, target = Source("a", wire, big=100), Target(wire)
    Source("b", wire, big=100)
    path = next(each for each in one.disk.list(Path("/s/snapshots")) if each.endswith(".states"))
    one.disk.flip(Path("/s/snapshots") / path, 5000, 1)
    one.serving.offer(NodeId("t"))
    await target.ended()
    assert (target.ready, target.store.sets()) == ([], [])
    one.now += OFFER_AGAIN_S
    one.serving.offer(NodeId("t"))
    await target.ended()
    assert target.ready == [G]


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


@pytest.mark.parametrize("closed", [False, True])
async def test_who_is_about_to_start_anew_begins_nothing_more(*, closed: bool) -> None:
    """Another fetch, in vain, set compaction going: what had been fetched of the logs was not what they said then."""
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    if closed:
        await target.installing.close()
    else:
        source.serving.offer(NodeId("t"))
        await target.ended()
    before = target.installing.begun, list(target.ready), list(target.compaction)
    target.installing._spare_bytes, target.disk.capacity = 1 << 20, target.disk._used
    source.set_at(GlobalLogIndex(G + 1))
    source.now += OFFER_AGAIN_S
    source.serving.offer(NodeId("t"))
    for _ in range(50):  # enough for a fetch to fail
        await asyncio.sleep(0)
    assert wire.asked(Kind.SNAPSHOT_OFFER)[-1]["global_index"] == G + 1
    assert before == (target.installing.begun, target.ready, target.compaction)
    assert before == ((0, [], []) if closed else (1, [G], ["stops"]))


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


async def test_a_set_of_its_own_from_before_others_cut_theirs_is_not_taken_for_the_one_that_is_offered() -> None:
    """Two cuts without a batch between them: it had come too far for its own, and fetched no other."""
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    own = Source("own", Wire(), raft_index=3)
    writer = target.store.begin(G)
    target.store.complete(own.written_by(writer), own.meta_of(writer.finish()))
    assert (target.store.get(G).raft_index, source.store.get(G).raft_index, target.applied) == (3, 77, 5)
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert target.ready == [G]
    assert target.store.get(G) == source.store.get(G)
    assert SnapshotStore(target.disk, Path("/t/snapshots")).sets() == source.store.sets()


async def test_a_set_of_its_own_stays_where_nobody_has_a_later_one() -> None:
    """Who offered it is gone, and whoever else has one of that index has one that is as early."""
    wire = Wire()
    own = Source("a", wire, raft_index=3)
    target = Target(wire)
    writer = target.store.begin(G)
    target.store.complete(own.written_by(writer), own.meta_of(writer.finish()))
    target.installing.on_frame(NodeId("b"), Frame(Kind.SNAPSHOT_OFFER, 0, {"global_index": int(G), "raft_index": 77}))
    await target.ended()
    assert (target.ready, target.fatal, target.installing.failed) == ([], [], 0)
    assert target.store.get(G).raft_index == 3


async def test_offers_are_seldom_and_what_is_fetched_is_held_back() -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    assert not source.serving.held_back()
    for _ in range(5):
        source.serving.offer(NodeId("t"))
    assert len(wire.asked(Kind.SNAPSHOT_OFFER)) == 1
    await target.ended()
    assert source.serving.held_back() == {G}
    source.now += LEASE_S + 1
    assert not source.serving.held_back()


class TestOvertaken:
    """Another leader's journal goes further back: while a set is fetched the log catches up by itself."""

    @pytest.mark.parametrize("kind", [Kind.SNAPSHOT_CHUNK, Kind.LOG_CHUNK])
    @pytest.mark.parametrize("wanted", [False, True])
    async def test_a_set_that_the_journal_begins_behind_is_not_installed(self, kind: Kind, *, wanted: bool) -> None:
        """Found by review: the log's places were cut back to the set, and no start could read them any more."""
        wire = Wire()
        source, target = Source("a", wire), Target(wire)
        if wanted:
            target.installing.want("a state is gone")
        tail = source.batches[-1]
        base = LogBase(tail.last_index, tail.digest, G)

        def overtake(frame: Frame) -> Frame:
            if frame.kind is kind and target.base == 1:
                append(target.log, chain(COUNT + 10))
                commit(target.log, chain(COUNT + 10))
                tip = chain(COUNT + 10)[-1]
                target.log.save_places(tip.last_index)()
                target.applied = target.base = 100
                nonlocal base
                base = LogBase(tip.last_index, tip.digest, GlobalLogIndex(10 * (COUNT + 10)))
            return frame

        wire.spoil = overtake
        source.serving.offer(NodeId("t"))
        await target.ended()
        assert (target.ready, target.fatal, target.installing.failed) == ([], [], 0)
        assert not any("fetch" in name for name in target.disk.list(Path("/t/snapshots"))), "it would stay for ever"
        assert target.compaction in (["goes on"], ["stops", "goes on"])
        target.log.close()
        assert open_log(target.disk, base, directory=Path("/t/log")).committed_index == base.last_index

    async def test_one_that_is_reached_meanwhile_is_not_needed(self) -> None:
        wire = Wire()
        source, target = Source("a", wire), Target(wire)

        def reach(frame: Frame) -> Frame:
            target.applied = 77
            return frame

        wire.spoil = reach
        source.serving.offer(NodeId("t"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert target.installing.begun == 0  # as the offer came too late
        target.applied = 5
        source.now += OFFER_AGAIN_S
        wire.spoil = lambda frame: frame if frame.kind is Kind.SNAPSHOT_OFFER else reach(frame)
        source.serving.offer(NodeId("t"))
        await target.ended()
        assert (target.ready, target.fatal, target.installing.failed) == ([], [], 0)


async def test_a_set_that_is_only_to_be_kept_makes_nothing_anew() -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    target.kept.clear()
    handed_up = 76
    target.installing._raft_index = lambda: handed_up
    target.installing.keep()
    await asyncio.sleep(0.05)
    assert target.installing.begun == 0, "this node has not come as far: it would be made anew"
    handed_up, source.now = 77, source.now + OFFER_AGAIN_S
    target.installing.keep()
    await target.ended()
    assert [meta.global_index for meta in target.store.sets()] == [meta.global_index for meta in target.kept] == [G]
    assert (target.ready, target.fatal, target.compaction) == ([], [], [])
    source.now += OFFER_AGAIN_S
    target.installing.keep()
    await asyncio.sleep(0.05)
    assert target.installing.begun == 1, "it has that one"


async def test_one_that_was_wanted_is_not_taken_once_nothing_is_lacking() -> None:
    """A hole was filled before anybody had offered one: whatever was offered later had the node start anew."""
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    target.applied = 100
    wire.down.add("t")
    target.installing.want("a batch is damaged", GlobalLogIndex(G + 100))
    wire.down.clear()
    target.now += WANTED_S
    source.serving.offer(NodeId("t"))
    await asyncio.sleep(0.05)
    assert target.installing.begun == 0
    source.now += OFFER_AGAIN_S
    target.installing.keep()
    await target.ended()
    assert ([meta.global_index for meta in target.kept], target.ready, target.fatal) == ([G], [], [])
    source.now += OFFER_AGAIN_S
    target.installing.want("a state is gone")
    await target.ended()
    assert target.ready == [G], "which lies in front of what was wanted first"


async def test_one_that_was_wanted_is_fetched_to_its_end() -> None:
    wire = Wire()
    _, target = Source("a", wire), Target(wire)
    target.applied = 100

    def last(frame: Frame) -> Frame:
        target.now += WANTED_S
        return frame

    target.installing.want("a state is gone")
    wire.spoil = lambda frame: last(frame) if frame.kind is Kind.SNAPSHOT_CHUNK else frame
    await target.ended()
    assert target.ready == [G]
