"""What a node that is given a snapshot has, and fetches, of logs whose records are kept nowhere else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dispatcher.upkeep import installing, serving, sources
from dispatcher.upkeep.installing import Check
from logboom.errors import CorruptData
from logboom.types import GlobalLogIndex, NodeId, RaftIndex
from logboom.wire import Frame, Kind
from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from raftlog.entries.parent_state import Tail
from server.offline.findings import Report
from server.offline.logs import check_log
from tests.unit.dispatcher.installing_world import COUNT, G, Source, Target, Wire, cut_off, given, history
from tests.unit.partitions.batches import P
from tests.unit.partitions.compaction_world import append, base_at, chain, commit, digests, flush, open_log

BEHIND = chain(COUNT + 10)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ANSWER_S", 0.05)
    monkeypatch.setattr(sources, "PAUSE_S", 0.001)
    monkeypatch.setattr(sources, "SILENT_PAUSE_S", 0.001)
    monkeypatch.setattr(installing, "DURABLE_POLL_S", 0.001)


def committed(target: Target, batches: list[Batch], *, start: int) -> None:
    for batch in batches:
        assert target.log.append(batch)
    commit(target.log, batches, start=start)


class TestWhatIsHere:
    async def test_what_is_committed_is_waited_for_until_it_is_on_the_disk(self) -> None:
        """Found by review: an invariant ended the node."""
        wire = Wire()
        source, target = Source("a", wire), Target(wire, has=30)
        committed(target, BEHIND[30:], start=30)
        assert target.log.durable_index < source.batches[-1].last_index < target.log.committed_index
        asyncio.get_running_loop().call_later(0.05, flush, target.log)
        await given(source, target)
        assert history(target.reopened()) == history(source.log)

    async def test_a_batch_that_nobody_has_is_not_waited_for(self) -> None:
        """Found by review: a node that needed a snapshot for a batch that others had applied ended at every fetch."""
        wire = Wire()
        source, target = Source("a", wire), Target(wire, has=30)
        hole = source.batches[30]
        assert target.log.concede(hole.last_index, hole.digest)
        append(target.log, source.batches[31:])
        commit(target.log, source.batches[30:], start=30)
        assert target.log.durable_index == source.batches[29].last_index
        await given(source, target)
        again = target.reopened()
        assert again.first_available_index == 1
        assert again.void_behind(source.batches[29].last_index) is None, "nobody has declared that"
        assert again.lost() == [(hole.last_index, hole.digest)]

    @pytest.mark.parametrize("has", [0, 30])
    async def test_what_is_committed_while_it_is_fetched_is_there_once(self, has: int) -> None:
        """Found by review: the places were out of order then, a start could not read them, and all of it was gone."""
        wire = Wire()
        source, target = Source("a", wire), Target(wire, has=has)

        def catch_up(frame: Frame) -> Frame:
            if frame.kind is Kind.LOG_CHUNK and target.log.committed_index < source.batches[-1].last_index:
                append(target.log, BEHIND[has:])
                commit(target.log, BEHIND[has:], start=has)
            return frame

        wire.spoil = catch_up
        await given(source, target)
        assert history(target.reopened()) == history(source.log)


class TestWhoHasIt:
    async def test_the_others_are_asked_before_history_counts_as_gone(self) -> None:
        """Found by review: the first one that was asked had the last word."""
        wire = Wire()
        source, other, target = Source("a", wire), Source("b", wire), Target(wire)
        cut_off(source, first=20)
        await given(source, target)
        assert history(target.reopened()) == history(other.log)

    async def test_who_does_not_answer_for_a_moment_may_have_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Found by review: a node that was starting again counted as one that has nothing."""
        wire = Wire()
        source, other, target = Source("a", wire), Source("b", wire), Target(wire, has=5)
        cut_off(source, first=20)
        wire.down.add("b")

        async def comes_back(_: float) -> None:
            wire.down.clear()

        monkeypatch.setattr(sources, "wait", comes_back)
        await given(source, target)
        again = target.reopened()
        assert history(again) == history(other.log)
        assert again.first_available_index == 1

    async def test_who_stays_silent_is_waited_for_once_in_a_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With thousands of partitions one that is gone for good would be waited for all day."""
        wire, waits = Wire(), list[float]()

        async def waited(seconds: float) -> None:
            waits.append(seconds)

        monkeypatch.setattr(sources, "wait", waited)
        source, _, target = Source("a", wire), Source("b", wire), Target(wire)
        cut_off(source, first=20)
        wire.down.add("b")
        asked = target.installing._sources
        ask = {"global_index": G, "partition": P, "after": 0, "through": source.batches[-1].last_index}
        for _ in range(3):
            assert (await asked.ask_for_log(ask)).header["first"] == source.log.first_available_index
            assert len(waits) == sources.ROUNDS_MAX
        wire.down.clear()
        assert sources.batches_in(await asked.ask_for_log(ask))
        asked.begin(G, NodeId("a"))
        wire.down.add("b")
        await asked.ask_for_log(ask)
        assert len(waits) == 2 * sources.ROUNDS_MAX

    async def test_of_several_that_begin_later_the_first_counts(self) -> None:
        wire = Wire()
        source, other, target = Source("a", wire), Source("b", wire), Target(wire)
        cut_off(source, first=30)
        cut_off(other, first=10)
        await given(source, target)
        assert history(target.reopened()) == history(other.log)

    async def test_a_log_that_nobody_has_any_more_is_asked_of_each_once(self) -> None:
        """Its partition was destroyed since: what they said was taken for no answer, and asked for thirty times."""
        wire = Wire()
        source, other, target = Source("a", wire), Source("b", wire), Target(wire)
        for each in (source, other):
            each.serving._logs.clear()
        source.serving.offer(NodeId("t"))
        await target.ended()
        assert (target.ready, target.fatal, target.installing.failed) == ([], [], 1)
        assert len(wire.asked(Kind.LOG_FETCH)) == 2

    async def test_a_log_that_one_node_has_no_more_comes_of_another(self) -> None:
        wire = Wire()
        source, other, target = Source("a", wire), Source("b", wire), Target(wire)
        source.serving._logs.clear()
        await given(source, target)
        assert history(target.reopened()) == history(other.log)

    @pytest.mark.parametrize("down", [False, True])
    async def test_what_the_others_keep_comes_though_what_is_between_is_gone(self, down: bool) -> None:
        """Found by review: the log began at the cut then, and what the others retained was on one node less."""
        wire = Wire()
        source, target = Source("a", wire), Target(wire, has=5)
        other: Any = Source("b", wire)
        for each in (source, other):
            cut_off(each, first=20)
        if down:
            wire.down.add("b")
        await given(source, target)
        again = target.reopened()
        assert history(again) == history(source.log)
        assert again.first_available_index == source.log.first_available_index
        # Found by review: what lies between the last that is gone and the first that is not was said to be gone.
        assert again.first_global_index == source.log.first_global_index
        assert again.position_at_global(again.first_global_index) == again.position_at_global(0)

    async def test_a_fetch_that_failed_leaves_nothing_that_counts_as_held(self) -> None:
        wire = Wire()
        source, target = Source("a", wire, digest=b"x" * 16), Target(wire, has=5)
        cut_off(source, first=20)
        before = source.log.first_available_index - 1, source.log.before_digest
        source.serving.offer(NodeId("t"))
        await target.ended()
        assert (target.ready, target.fatal, target.installing.failed) == ([], [], 1)
        assert not target.log.holds(*before)

    @pytest.mark.parametrize("number", [5, 20, COUNT - 1])
    async def test_what_is_void_since_the_set_was_taken_is_stepped_over(self, number: int) -> None:
        """Found by review: whatever a node had, and was given, of before it was let go."""
        wire = Wire()
        source, target = Source("a", wire), Target(wire, has=5)
        void = source.batches[number]
        source.log.lose(void.last_index, void.digest)
        source.log.void(void.last_index, void.digest)
        await given(source, target)
        again, before = target.reopened(), source.batches[number - 1].last_index
        assert again.first_available_index == 1
        assert again.void_behind(before) == source.log.void_behind(before)
        left = [batch.digest for batch in source.batches if batch is not void]
        assert digests(again)[:number] == left[:number]
        assert number == COUNT - 1 or digests(again, after=void.last_index) == left[number:]

    @pytest.mark.parametrize(("field", "more"), [(0, -1), (0, 1), (1, -10_000)])
    async def test_a_void_that_is_of_another_batch_or_of_none_is_not_taken(self, field: int, more: int) -> None:
        """Whoever says so would be asked again and again."""
        wire = Wire()
        source, target = Source("a", wire), Target(wire, has=5)
        void = source.batches[20]
        source.log.lose(void.last_index, void.digest)
        source.log.void(void.last_index, void.digest)

        def lie(frame: Frame) -> Frame:
            if "void" not in frame.header:
                return frame
            said = list(frame.header["void"])
            said[field] += more
            return frame._replace(header={**frame.header, "void": said, "first": 1})

        wire.spoil = lie
        source.serving.offer(NodeId("t"))
        await target.ended()
        assert (target.ready, target.fatal, target.installing.failed) == ([], [], 1)

    @pytest.mark.parametrize("silent", [False, True])
    @pytest.mark.parametrize("gone", [(0,), (5,), (20,), (COUNT - 1,), (20, 21), (7, 30)])
    async def test_what_nobody_has_is_lost_on_whoever_is_given_the_rest(
        self, gone: tuple[int, ...], *, silent: bool
    ) -> None:
        """No set was given at all until it was void: nobody gives the snapshot any more, that node said."""
        wire = Wire()
        source: Any = Source("a", wire, lost=gone)
        other = Source("b", wire, lost=gone)
        target = Target(wire)
        if silent:
            wire.down.add("b")
        await given(source, target)
        again = target.reopened()
        lost = [(source.batches[number].last_index, source.batches[number].digest) for number in gone]
        assert (again.first_available_index, again.lost()) == (1, lost)
        assert [again.void_behind(last_index - 1) for last_index, _ in lost] == [None] * len(gone)
        for number in gone:
            assert again.append(source.batches[number]), "it turns up"
            flush(again)
        assert digests(again) == [each.digest for each in other.batches]

    @pytest.mark.parametrize("durable", [False, True])
    async def test_what_one_node_has_is_not_lost(self, *, durable: bool) -> None:
        """Whether the state of who says that it is lost has what it did, or not."""
        wire = Wire()
        source, other, target = Source("a", wire, lost=(20,), excused=durable), Source("b", wire), Target(wire)
        await given(source, target)
        again = target.reopened()
        assert (again.lost(), history(again)) == ([], history(other.log))

    async def test_what_is_damaged_in_its_place_on_all_nodes_is_lost_as_well(self) -> None:
        """It was durable everywhere, and has rotted since: each has said so to all others."""
        wire = Wire()
        source, other, target = Source("a", wire), Source("b", wire), Target(wire)
        gone = source.batches[20]
        for each in (source, other):
            ref = each.log.find(gone.last_index, gone.digest)
            assert ref is not None
            each.disk.flip(Path("/n1/log") / each.log._names[ref.segment], ref.offset + 70, 0x40)
            assert each.log.lose(gone.last_index, gone.digest)
            assert each.log.concede(gone.last_index, gone.digest)
        await given(source, target)
        again = target.reopened()
        assert again.lost() == [(gone.last_index, gone.digest)]
        assert digests(again)[:20] == [each.digest for each in source.batches[:20]]
        assert digests(again, after=gone.last_index) == [each.digest for each in source.batches[21:]]

    async def test_what_is_void_on_one_node_is_not_lost_because_of_another_that_is_behind(self) -> None:
        wire = Wire()
        source, other, target = Source("a", wire, lost=(20,)), Source("b", wire, lost=(20,)), Target(wire)
        void, before = source.batches[20], source.batches[19].last_index
        other.log.void(void.last_index, void.digest)
        await given(source, target)
        again = target.reopened()
        assert (again.lost(), again.void_behind(before)) == ([], other.log.void_behind(before))

    async def test_of_what_all_have_that_answer_and_cannot_read_that_is_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody gives the snapshot any more, it said."""
        monkeypatch.setattr(sources, "ROUNDS_MAX", 2)
        wire = Wire()
        source, target = Source("a", wire), Target(wire)
        gone = source.batches[0]
        ref = source.log.find(gone.last_index, gone.digest)
        assert ref is not None
        source.disk.flip(Path("/n1/log") / source.log._names[ref.segment], ref.offset + 70, 0x40)
        asked = target.installing._sources
        asked.begin(G, NodeId("a"))
        with pytest.raises(CorruptData, match=r"\.log at "):
            await asked.ask_for_log({"global_index": G, "partition": P, "after": 0, "through": 1 << 20})

    async def test_what_is_removed_while_it_is_fetched_is_stepped_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(serving, "CHUNK_BYTES", 400)
        wire = Wire()
        source, target = Source("a", wire, big=10), Target(wire)
        chunks = 0

        def compact(frame: Frame) -> Frame:
            nonlocal chunks
            if frame.kind is Kind.LOG_CHUNK:
                chunks += 1
                if chunks == 1:
                    cut_off(source, first=30)
            return frame

        wire.spoil = compact
        await given(source, target)
        assert history(target.reopened()) == history(source.log)

    async def test_what_comes_of_another_partition_is_no_answer(self) -> None:
        """Found by review: that one begins behind this log's end, and so nothing of this log was fetched."""
        wire, wrong = Wire(), 1
        source, target = Source("a", wire, big=10), Target(wire)

        def late(frame: Frame) -> Frame:
            nonlocal wrong
            if frame.kind is Kind.LOG_CHUNK and wrong:
                wrong -= 1
                header = {**frame.header, "partition": P + 1, "rows": [], "first": 1 << 30}
                return frame._replace(header=header, body=memoryview(b""))
            return frame

        wire.spoil = late
        await given(source, target)
        assert wrong == 0
        assert history(target.reopened()) == history(source.log)

    async def test_one_that_always_gives_nothing_is_given_up(self) -> None:
        wire = Wire()
        source, target = Source("a", wire, big=10), Target(wire)

        def nothing(frame: Frame) -> Frame:
            if frame.kind is Kind.LOG_CHUNK:
                return frame._replace(header={**frame.header, "rows": [], "first": 1}, body=memoryview(b""))
            return frame

        wire.spoil = nothing
        source.serving.offer(NodeId("t"))
        await target.ended()
        assert (target.ready, target.fatal, target.installing.failed) == ([], [], 1)


@pytest.mark.parametrize("has", [1, 5])
async def test_a_start_before_the_snapshot_counts_goes_on_where_its_journal_begins(has: int) -> None:
    """Killed, or stopped, between the places of the log and what says that the snapshot is to be installed, no start
    could read the log any more: it begins behind where the journal does."""
    wire = Wire()
    source, target = Source("a", wire), Target(wire, has=5)
    cut_off(source, first=20)
    base = base_at(BEHIND, has)
    target.log.save_places(base.last_index)()

    def fails(_: int) -> None:
        raise CorruptData("the set has rotted since")

    target.take = fails
    source.serving.offer(NodeId("t"))
    await target.ended()
    target.log.close()
    again = open_log(target.disk, base, directory=Path("/t/log"))
    assert again.first_available_index == base.last_index + 1
    assert (again.committed_index, again.damage) == (base.last_index, [])
    for batch in BEHIND[has:5]:
        assert again.holds(batch.last_index, batch.digest), "the journal names it"
    again.close()
    report = Report(Path("/t/log"), "data")
    tail = Tail(base.last_index, base.digest)
    check_log(target.disk, Path("/t/log"), P, tail=tail, routes=[], carried=(), report=report)
    assert not report.damaged
    assert any("has not started from" in str(found) for found in report.findings)
    target.log = again  # which reopens at what the set says, as if that were installed after all
    assert history(target.reopened()) == history(source.log)


async def test_a_log_that_cannot_be_opened_yet_is_not_waited_for_once_the_node_is_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire = Wire()
    source, target = Source("a", wire), Target(wire)

    async def log_of(_: Any, __: Any, check: Check) -> PartitionLog:
        check()
        target.applied = 77
        check()
        raise AssertionError("it would wait on")

    monkeypatch.setattr(target.installing, "_log_of", log_of)
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert (target.ready, target.fatal, target.installing.failed) == ([], [], 0)


async def test_one_that_waits_for_files_is_overtaken_by_a_newer_set_and_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by review: it waited for files of a partition that was destroyed, where a set without it was offered."""
    wire = Wire()
    source, target = Source("a", wire), Target(wire)
    newer, waits, goes_on = GlobalLogIndex(G + 5), asyncio.Event(), asyncio.Event()

    async def log_of(_: Any, __: Any, check: Check) -> PartitionLog:
        check(stands=True)
        waits.set()
        await goes_on.wait()
        check()
        check(stands=True)
        return target.log

    monkeypatch.setattr(target.installing, "_log_of", log_of)
    source.serving.offer(NodeId("t"))
    await waits.wait()
    target.applied, before = 77 - 1, target.applied
    target.installing._offered(NodeId("a"), newer, target.applied)  # of no use here
    target.installing._offered(NodeId("a"), G, 77)
    target.applied = before
    goes_on.set()
    await target.ended()
    assert target.ready == [G]

    target = Target(wire)
    monkeypatch.setattr(target.installing, "_log_of", log_of)
    waits.clear()
    goes_on.clear()
    source.now += serving.OFFER_AGAIN_S
    source.serving.offer(NodeId("t"))
    await waits.wait()
    source.raft_index = RaftIndex(78)
    source.set_at(newer)
    source.now += serving.OFFER_AGAIN_S
    source.serving.offer(NodeId("t"))
    await asyncio.sleep(0)
    goes_on.set()
    await target.ended()
    assert (target.ready, target.fatal, target.installing.failed) == ([], [], 0)
    source.now += serving.OFFER_AGAIN_S
    source.serving.offer(NodeId("t"))
    await target.ended()
    assert target.ready == [newer]
