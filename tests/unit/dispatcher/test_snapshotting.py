"""When a snapshot is due, who is captured, and what becomes of a cut that is in the way of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.upkeep.due import FAILED_S, KEPT_BYTES_PER_BYTE
from dispatcher.upkeep.snapshotting import ASK_AGAIN_S, CAPTURES_MAX, CUT, HOLE_LOOK_S
from logboom.errors import LogboomError, NotLeader, Unavailable
from logboom.state_machine import Entry
from logboom.types import MIB, GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.log.holes import Hole
from tests.unit.dispatcher.snapshotting_bench import Bench, Closing
from tests.unit.snapshots.states_world import Dump, entries


class TestWhen:
    @pytest.mark.parametrize(
        ("setting", "value", "reach"),
        [
            ("entries", 7, lambda b: setattr(b, "global_index", 7)),
            ("log_bytes", 1000, lambda b: b.applied(1000)),
            ("age_ms", 3000, lambda b: setattr(b, "now", 3.0)),
        ],
    )
    def test_each_trigger(self, setting: str, value: int, reach: Callable[[Bench], None]) -> None:
        bench = Bench(**{setting: value})
        bench.global_index = 1
        bench.taking.tick()
        assert bench.proposed == []
        reach(bench)
        bench.taking.tick()
        assert bench.proposed == [CUT]

    def test_nothing_new_is_never_due(self) -> None:
        bench = Bench(age_ms=1, log_bytes=1)
        bench.now = 100.0
        bench.applied(100)
        bench.taking.tick()
        assert bench.proposed == []

    def test_where_the_only_set_is_gone_that_the_journal_goes_on_from(self) -> None:
        """Found by review: after a restore nothing else was due before a write, and who was added joined for ever."""
        bench = Bench()
        bench.cut(15)
        bench.offload.run()
        bench.journal.base.index = 5
        bench.taking.tick()
        assert bench.proposed == []
        bench.store.drop(bench.store.sets()[0].global_index)
        bench.taking.tick()
        assert bench.proposed == [CUT]
        bench.cut(15, raft_index=6)  # nothing was written since
        bench.offload.run()
        assert [(meta.global_index, meta.raft_index) for meta in bench.store.sets()] == [(15, 6)]
        bench.now += ASK_AGAIN_S
        bench.taking.tick()
        assert bench.proposed == [CUT]

    def test_but_not_at_once_after_one_that_failed_nor_where_the_journal_has_all(self) -> None:
        bench = Bench()
        bench.taking.tick()
        assert bench.proposed == []
        bench.journal.base.index = 5
        bench.workers[PartitionId(0)].useless = True
        for tries in range(1, 4):
            bench.taking.tick()
            bench.taking.tick()
            assert bench.proposed == [CUT] * tries
            bench.cut(15)
            bench.now += FAILED_S * 2 ** (tries - 1) - 1
            bench.taking.tick()
            assert bench.proposed == [CUT] * tries
            bench.now += 1

    def test_where_no_set_has_what_the_void_has_had_effects_of(self) -> None:
        """Found by reading: whoever led asked for it once, and who came to lead then did not."""
        bench = Bench()
        bench.cut(15)
        bench.offload.run()
        bench.needed_at = 15
        bench.taking.tick()
        assert bench.proposed == []
        bench.needed_at = 16
        bench.raft.admits = False
        bench.taking.tick()
        assert bench.proposed == []
        bench.raft.admits = True
        bench.taking.tick()
        assert bench.proposed == [CUT]
        bench.workers[PartitionId(0)].broken = True
        bench.cut(16, raft_index=6)  # which comes to nothing
        bench.now += FAILED_S - 1
        bench.taking.tick()
        assert len(bench.proposed) == 1
        bench.now += 1
        bench.taking.tick()
        assert len(bench.proposed) == 2
        bench.workers[PartitionId(0)].broken = False
        bench.cut(16, raft_index=7)
        bench.offload.run()
        bench.now += ASK_AGAIN_S
        bench.taking.tick()
        assert (bench.sets(), len(bench.proposed)) == ([15, 16], 2)

    def test_a_lost_batch_that_was_in_the_way_puts_none_off_once_it_is_void(self) -> None:
        """It was an hour, or two, in which nothing made room where writes were refused for want of it."""
        bench = Bench(behind=1)
        bench.cut(30)
        worker, at = bench.workers[PartitionId(0)], PartitionLogIndex(10)
        lost = bench.holes[PartitionId(0)] = Hole(at, at, bytes(16), GlobalLogIndex(29))
        bench.needed_at = 40
        for _ in range(7):
            bench.now += HOLE_LOOK_S
            bench.taking.tick()
            bench.cut(31)
        assert (bench.taking.progress(), bench.taking.failed) == (None, 1), "one that was under way, and those since"
        bench.holes.clear()
        assert not bench.due.is_needed(), "one after the other, all the same"
        bench.now += FAILED_S
        assert bench.due.is_needed()
        worker.broken, worker.applied_index = True, 10
        bench.cut(32)
        bench.cut(33)
        assert bench.taking.failed == 3
        bench.holes[PartitionId(0)], worker.applied_index = lost, 9
        bench.cut(34)
        bench.now += 2 * FAILED_S - 1
        assert not bench.due.is_needed(), "what a machine refused is put off as ever"
        bench.now += 1
        assert bench.due.is_needed()

    def test_as_much_is_gained_as_the_last_set_is_large(self) -> None:
        bench = Bench(log_bytes=10)
        bench.applied(100_000)  # before the cut: it is in the set
        bench.cut(15)
        bench.offload.run()
        size = bench.store.newest.states_bytes  # type: ignore[union-attr]
        assert size > 10
        bench.global_index += 1
        bench.applied(size - 1)
        bench.taking.tick()
        assert bench.proposed == []
        bench.applied(1)
        bench.taking.tick()
        assert bench.proposed == [CUT]

    def test_what_is_kept_for_ever_gains_little(self) -> None:
        bench = Bench(log_bytes=10)
        bench.applied(100_000)  # before the cut: it is in the set
        bench.cut(15)
        bench.offload.run()
        size = bench.store.newest.states_bytes  # type: ignore[union-attr]
        bench.global_index += 1
        bench.applied(KEPT_BYTES_PER_BYTE * size - 1, reclaimable=False)
        bench.taking.tick()
        assert bench.proposed == []
        bench.applied(1, reclaimable=False)
        bench.taking.tick()
        assert bench.proposed == [CUT]

    def test_without_a_set_nothing_is_in_the_way(self) -> None:
        bench = Bench(log_bytes=10)
        bench.global_index = 1
        bench.applied(10, reclaimable=False)
        bench.taking.tick()
        assert bench.proposed == [CUT]

    def test_a_cut_that_does_not_come_is_asked_for_again_later(self) -> None:
        bench = Bench(entries=1)
        bench.global_index = 5
        bench.taking.tick()
        bench.now = ASK_AGAIN_S / 2
        bench.taking.tick()
        assert len(bench.proposed) == 1
        bench.now = ASK_AGAIN_S
        bench.taking.tick()
        assert len(bench.proposed) == 2

    def test_it_counts_from_the_last_cut(self) -> None:
        bench = Bench(entries=5)
        bench.cut(15)
        bench.offload.run()
        bench.global_index = 19
        bench.taking.tick()
        assert bench.proposed == []
        bench.global_index = 20
        bench.taking.tick()
        assert bench.proposed == [CUT]

    def test_only_a_leader_asks(self) -> None:
        bench = Bench(entries=1)
        bench.raft.admits, bench.global_index = False, 5
        bench.taking.tick()
        assert bench.proposed == []
        with pytest.raises(NotLeader):
            bench.taking.create(lambda _: None)


class TestGathering:
    def test_a_set_is_of_all_partitions_where_the_log_ended(self) -> None:
        bench = Bench(partitions=3)
        bench.cut(30)
        bench.offload.run()
        assert bench.sets() == [30]
        assert [each.applied_index for each in bench.completed[0].partitions] == [10, 10, 10]
        assert bench.compactions == [1]
        assert all(dump.closed for worker in bench.workers.values() for dump in worker.dumps)

    def test_who_is_behind_is_waited_for_and_named(self) -> None:
        bench = Bench(behind=3)
        bench.cut(30)
        bench.offload.run()
        progress = bench.taking.progress()
        assert (progress is not None, bench.sets()) == (True, [])
        assert progress is not None
        assert (progress.captured, progress.missing) == (1, (PartitionId(0),))
        bench.workers[PartitionId(0)].arrive(at=10)
        bench.offload.run()
        assert bench.sets() == [30]
        assert bench.taking.progress() is None

    def test_few_idle_partitions_are_asked_at_a_time(self) -> None:
        bench = Bench(partitions=CAPTURES_MAX + 50)
        for worker in bench.workers.values():
            worker.arrive = lambda **_: None  # type: ignore[method-assign]  # its capture is under way
        bench.cut(30)
        assert sum(worker.hurries for worker in bench.workers.values()) == CAPTURES_MAX

    def test_a_cut_that_comes_meanwhile_is_passed_over(self) -> None:
        bench = Bench(behind=1)
        bench.cut(30)
        bench.cut(40, raft_index=6)
        bench.workers[PartitionId(0)].arrive(at=10)
        bench.offload.run()
        assert bench.sets() == [30]

    def test_a_cut_of_the_past_is_passed_over(self) -> None:
        """Replayed after a start: what was applied since cannot be taken back."""
        bench = Bench()
        bench.workers[PartitionId(1)].applied_index = 11
        bench.cut(30)
        assert all(worker.asked is None for worker in bench.workers.values())
        assert bench.taking.progress() is None

    def test_a_cut_needs_the_state_of_every_partition(self) -> None:
        bench = Bench()
        answers = bench.create()
        bench.workers[PartitionId(1)].useless = True
        bench.cut(30)
        assert [type(answer) for answer in answers] == [Unavailable]
        assert all(worker.asked is None for worker in bench.workers.values())

    def test_it_is_written_no_faster_than_the_settings_say(self) -> None:
        slow, fast = Bench(bytes_per_s=10), Bench(bytes_per_s=1 << 40)
        for bench in (slow, fast):
            bench.cut(30)
            bench.offload.run()
        assert sum(slow.slept) >= slow.completed[0].states_bytes / 10
        assert sum(fast.slept) < 0.001

    def test_a_capture_that_fails_ends_it_and_the_next_one_works(self) -> None:
        bench = Bench(partitions=3, behind=1)
        bench.workers[PartitionId(2)].broken = True
        answers = bench.create()
        bench.cut(30)
        assert isinstance(answers[0], Unavailable)
        assert bench.workers[PartitionId(0)].asked is None
        assert all(dump.closed for dump in bench.workers[PartitionId(1)].dumps)
        bench.workers[PartitionId(2)].broken = False
        bench.cut(40, raft_index=6)
        bench.workers[PartitionId(0)].arrive(at=10)
        bench.offload.run()
        assert bench.sets() == [40]

    def test_a_full_disk_costs_this_snapshot_and_nothing_else(self) -> None:
        bench = Bench()
        answers = bench.create()
        bench.disk.capacity = 10
        bench.cut(30)
        bench.offload.run()
        assert [type(answer) for answer in answers] == [Unavailable]
        assert (bench.sets(), bench.fatal) == ([], [])
        assert bench.disk.list(Path("/n/snapshots")) == []
        bench.disk.capacity = 1 << 40
        bench.cut(40, raft_index=6)
        bench.offload.run()
        assert bench.sets() == [40]

    def test_it_leaves_the_logs_some_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Found by review: a snapshot too large for the disk took the last of it, and the journal's next write ended
        the node; the others, too, which write the same at the same time."""
        large = entries(6000, value=bytes(1000))
        monkeypatch.setattr(Closing, "entries", lambda _: iter(large))
        bench = Bench(partitions=1)
        answers, least = bench.create(), list[int]()
        bench.writing._spare_bytes = 2 * MIB
        bench.disk.capacity = 5 * MIB
        bench.disk.hook = lambda *_: least.append(bench.disk.free_bytes(Path("/n")))
        bench.cut(30)
        bench.offload.run()
        assert [type(answer) for answer in answers] == [Unavailable]
        assert "no room" in answers[0].message
        assert "Unavailable(" not in answers[0].message
        assert answers[0].fields["retry_after"] > 30, "each attempt has all nodes write a set"
        assert min(least) >= MIB // 2
        assert (bench.sets(), bench.fatal, bench.disk.list(Path("/n/snapshots"))) == ([], [], [])

    def test_a_machine_that_raises_what_nobody_expected_leaves_nothing_behind(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench, begun = Bench(), list[list[str]]()

        def entries_of(_: Dump) -> Iterator[Entry]:
            begun.append(bench.disk.list(Path("/n/snapshots")))
            raise KeyError("a mistake in somebody's machine")

        monkeypatch.setattr(Closing, "entries", entries_of)
        for number in range(3):
            answers = bench.create()
            bench.cut(30 + number, raft_index=5 + number)
            bench.offload.run()
            assert [type(answer) for answer in answers] == [Unavailable]
            assert bench.disk.list(Path("/n/snapshots")) == []
        assert [len(names) for names in begun] == [1, 1, 1]
        assert bench.fatal == []


class TestAskedFor:
    def test_it_is_answered_when_it_is_complete_here(self) -> None:
        bench = Bench()
        answers = bench.create()
        assert bench.proposed == [CUT]
        bench.cut(30)
        assert answers == []
        bench.offload.run()
        assert [meta.global_index for meta in answers] == [30]

    def test_while_another_is_under_way_it_is_a_new_one(self) -> None:
        """It is to have everything that was committed before it was asked for."""
        bench = Bench(behind=1)
        bench.cut(30)
        answers = bench.create()
        assert bench.proposed == []
        bench.workers[PartitionId(0)].arrive(at=10)
        bench.offload.run()
        assert answers == []
        bench.taking.tick()
        assert bench.proposed == [CUT]
        bench.cut(40, raft_index=6)
        bench.offload.run()
        assert [meta.global_index for meta in answers] == [40]

    def test_with_nothing_new_it_is_the_one_there_is(self) -> None:
        bench = Bench()
        bench.cut(30)
        bench.offload.run()
        answers = bench.create()
        bench.cut(30, raft_index=9)
        assert [meta.global_index for meta in answers] == [30]

    def test_who_leads_no_more_says_so(self) -> None:
        bench = Bench()
        answers: list[Any] = bench.create()
        bench.raft.admits = False
        bench.taking.tick()
        assert [type(answer) for answer in answers] == [NotLeader]

    async def test_a_node_that_stops_says_so_and_lets_go(self) -> None:
        bench = Bench(behind=1)
        answers: list[LogboomError] = bench.create()  # type: ignore[assignment]
        bench.cut(30)
        await bench.taking.close()
        assert [type(answer) for answer in answers] == [Unavailable]
        assert all(dump.closed for worker in bench.workers.values() for dump in worker.dumps)
        bench.workers[PartitionId(0)].arrive(at=10)
        bench.offload.run()
        assert bench.sets() == []
        assert all(dump.closed for worker in bench.workers.values() for dump in worker.dumps)

    async def test_a_node_that_stops_does_not_write_on_to_the_end(self) -> None:
        """Found by review: it wrote a whole set, no faster than the settings say, before the process ended."""
        bench = Bench(bytes_per_s=10)
        bench.cut(30)

        def sleep(seconds: float) -> None:
            bench.slept.append(seconds)
            bench.taking._closed = bench.writing.closed = True

        bench.writing._sleep = sleep
        bench.offload.run()
        assert sum(bench.slept) <= 1
        assert (bench.sets(), bench.completed, bench.fatal, bench.taking.failed) == ([], [], [], 0)
        assert all(dump.closed for worker in bench.workers.values() for dump in worker.dumps)
        assert bench.disk.list(Path("/n/snapshots")) == []

    async def test_one_that_was_not_begun_is_not_begun_any_more(self) -> None:
        bench = Bench()
        bench.cut(30)
        await bench.taking.close()
        bench.offload.run()
        assert bench.sets() == []
        assert all(dump.closed for worker in bench.workers.values() for dump in worker.dumps)
