"""The apply worker: what may be applied is, once and in order; what fails is retried, then waits for somebody."""

from __future__ import annotations

import asyncio
import errno

import pytest

from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from ports.invariant import InvariantViolated
from ports.scrub import AGAIN_S
from tests.unit.partitions.batches import PRODUCER, flush
from tests.unit.partitions.sectors import BadSectors
from tests.unit.partitions.worker_world import HeldOffload, failures, pauses, world


class TestApplying:
    def test_what_may_be_applied_is_applied_and_told_once_in_order(self) -> None:
        with world(batches_max=2) as w:

            async def story() -> None:
                w.commit(5)
                w.notify()
                await asyncio.sleep(1)

            w.run(story)
            assert w.machine.applied == w.reported == [1, 3, 5, 7, 9]
            assert [len(batches) for batches in w.progress] == [2, 2, 1]
            assert (w.worker.applied_index, w.worker.applied_global_index) == (10, 50)
            assert [batch.global_index for batches in w.progress for batch in batches] == [10, 20, 30, 40, 50]

    def test_nothing_beyond_the_limit_is_applied(self) -> None:
        with world() as w:

            async def story() -> None:
                w.commit(4)
                w.worker.notify(w.ends[1])
                await asyncio.sleep(1)

            w.run(story)
            assert w.machine.applied == [1, 3]

    def test_a_limit_beyond_what_is_committed_is_cut_to_it(self) -> None:
        with world() as w:

            async def story() -> None:
                w.commit(1)
                w.worker.notify(1000)
                await asyncio.sleep(1)
                w.commit(1)
                w.worker.hurry()
                await asyncio.sleep(1)

            w.run(story)
            assert w.machine.applied == [1]

    def test_a_lower_limit_takes_nothing_back(self) -> None:
        with world(HeldOffload, batches_max=1) as w:

            async def story() -> None:
                w.commit(2)
                w.notify()
                w.worker.notify(0)
                w.finish()
                w.finish()

            w.run(story)
            assert w.machine.applied == [1, 3]

    def test_a_worker_goes_on_from_where_its_machine_is(self) -> None:
        with world(position=Position(PartitionLogIndex(4), GlobalLogIndex(20))) as w:

            async def story() -> None:
                w.commit(3)
                w.notify()
                await asyncio.sleep(1)

            assert w.worker.applied_index == 4
            w.run(story)
            assert w.machine.applied == [5]

    def test_one_group_at_a_time(self) -> None:
        with world(HeldOffload, batches_max=1) as w:

            async def story() -> None:
                w.commit(3)
                for _ in range(3):
                    w.notify()
                    w.worker.hurry()

            w.run(story)
            assert w.under_way == 1


class TestIdle:
    def test_idle_follows_what_is_committed_and_not_what_may_be_applied(self) -> None:
        with world() as w:
            seen = [w.worker.idle]

            async def story() -> None:
                w.commit(2)
                seen.append(w.worker.idle)
                w.worker.notify(w.ends[0])
                await asyncio.sleep(1)
                seen.append(w.worker.idle)
                w.notify()
                await asyncio.sleep(1)
                seen.append(w.worker.idle)
                w.commit(1)
                seen.append(w.worker.idle)

            w.run(story)
            assert seen == [True, False, False, True, False]

    def test_it_is_idle_already_when_it_tells_of_the_last_group(self) -> None:
        with world(batches_max=1) as w:
            seen: list[bool] = []
            w.worker._on_progress = lambda _: seen.append(w.worker.idle)

            async def story() -> None:
                w.commit(3)
                w.notify()
                await asyncio.sleep(1)

            w.run(story)
            assert seen == [False, False, True]

    def test_a_paused_worker_that_is_behind_is_not_idle(self) -> None:
        with world() as w:

            async def story() -> None:
                w.worker.pause()
                w.commit(1)
                w.notify()
                await asyncio.sleep(1)

            w.run(story)
            assert not w.worker.idle

    def test_a_log_that_is_replayed_after_a_start_has_nothing_new(self) -> None:
        with world(position=Position(PartitionLogIndex(4), GlobalLogIndex(20))) as w:
            seen = []
            for _ in range(3):
                w.commit(1)
                seen.append(w.worker.idle)
            assert seen == [True, True, False]


class TestRetry:
    def test_each_pause_is_twice_the_last_up_to_the_longest_then_it_waits_for_somebody(self) -> None:
        with world(retry_initial_ms=50, retry_max_ms=300, retry_attempts_max=6) as w:
            w.machine.failures = failures(100)

            async def story() -> None:
                w.commit(1)
                w.notify()
                await asyncio.sleep(1000)
                w.commit(1)
                w.notify()
                await asyncio.sleep(1000)

            w.run(story)
            assert pauses(w.machine.attempts) == [50, 100, 200, 300, 300]
            assert w.states == ["retrying"] * 5 + ["paused"]
            assert w.progress == [[]] * 6
            assert "injected 5" in w.worker.last_error
            assert w.worker.applied_index == 0

    @pytest.mark.parametrize("lacks", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
    def test_what_the_machine_lacks_is_waited_for_however_long_that_takes(self, lacks: int) -> None:
        """After eight attempts, five seconds, its partition stood still until somebody resumed it."""
        with world(retry_initial_ms=50, retry_max_ms=300, retry_attempts_max=3) as w:
            w.machine.failures = [OSError(lacks, "nothing left") for _ in range(50)]

            async def story() -> None:
                w.commit(1)
                w.notify()
                await asyncio.sleep(1000)

            w.run(story)
            assert w.states[-1] == "running"
            assert set(pauses(w.machine.attempts)[3:]) == {300}
            assert w.worker.applied_index == w.log.committed_index

    def test_nobody_s_hurry_shortens_a_pause(self) -> None:
        with world(retry_initial_ms=50) as w:
            w.machine.failures = failures(1)

            async def story() -> None:
                w.commit(1)
                w.notify()
                for _ in range(4):
                    await asyncio.sleep(0.01)
                    w.commit(1)
                    w.notify()
                    w.worker.hurry()
                await asyncio.sleep(1)

            w.run(story)
            assert pauses(w.machine.attempts[:2]) == [50]
            assert w.machine.applied == w.reported == [1, 3, 5, 7, 9]

    def test_what_worked_after_all_counts_from_the_beginning(self) -> None:
        with world(retry_initial_ms=50, retry_attempts_max=3) as w:

            async def story() -> None:
                for _ in range(3):
                    w.machine.failures = failures(2)
                    w.machine.attempts.clear()
                    w.commit(1)
                    w.notify()
                    await asyncio.sleep(1)
                    assert pauses(w.machine.attempts) == [50, 100]
                    assert w.worker.state == "running"

            w.run(story)
            assert w.machine.applied == [1, 3, 5]

    def test_an_attempt_that_failed_does_not_count_as_applied_before(self) -> None:
        with world() as w:
            w.machine.failures = failures(2)

            async def story() -> None:
                w.commit(2)
                w.notify()
                await asyncio.sleep(1)

            w.run(story)
            assert [(batch.duplicate, batch.results) for batch in w.progress[-1]] == [(0, b"\0")] * 2

    def test_nor_is_a_client_told_that_it_was(self) -> None:
        with world() as w:
            w.machine.failures = failures(1)
            known: list[bool] = []

            async def story() -> None:
                w.commit(1)
                w.notify()
                for _ in range(2):
                    await asyncio.sleep(0.01)
                    known.append(w.worker.dedupe.lookup(PRODUCER, 0, 0, 2) is not None)
                    await asyncio.sleep(1)

            w.run(story)
            assert known == [False, True]

    def test_damaged_data_is_not_tried_again(self) -> None:
        with world() as w:
            w.machine.failures = [CorruptData("injected")]

            async def story() -> None:
                w.commit(1)
                w.notify()
                await asyncio.sleep(1000)
                w.notify()
                await asyncio.sleep(1000)

            w.run(story)
            assert len(w.machine.attempts) == 1
            assert (w.states, w.worker.state) == (["damaged"], "damaged")

    def test_a_broken_invariant_stops_the_node_and_is_not_tried_again(self) -> None:
        with world() as w:
            broken = InvariantViolated("injected")
            w.machine.failures = [broken]  # type: ignore[list-item]

            async def story() -> None:
                w.commit(1)
                w.notify()
                await asyncio.sleep(1000)

            w.run(story)
            assert w.fatal == [broken]
            assert len(w.machine.attempts) == 1
            assert w.progress == []


class TestPause:
    def test_nothing_is_applied_until_it_goes_on(self) -> None:
        with world() as w:

            async def story() -> None:
                w.worker.pause()
                w.commit(2)
                w.notify()
                w.worker.hurry()
                await asyncio.sleep(1000)
                assert (w.machine.attempts, w.worker.state) == ([], "paused")
                w.worker.resume()
                await asyncio.sleep(1)

            w.run(story)
            assert w.reported == [1, 3]
            assert w.worker.state == "running"

    def test_the_group_under_way_finishes_and_is_told(self) -> None:
        with world(HeldOffload, batches_max=1) as w:

            async def story() -> None:
                w.commit(2)
                w.notify()
                w.worker.pause()
                w.finish()
                assert (w.reported, w.states, w.under_way) == ([1], ["paused"], 0)
                w.worker.resume()
                w.finish()

            w.run(story)
            assert w.reported == [1, 3]

    def test_resumed_while_the_group_is_under_way_it_goes_on_as_if_nothing_had_been(self) -> None:
        with world(HeldOffload, batches_max=1) as w:

            async def story() -> None:
                w.commit(2)
                w.notify()
                w.worker.pause()
                w.worker.resume()
                assert w.under_way == 1
                w.finish()
                w.finish()

            w.run(story)
            assert w.reported == [1, 3]

    def test_a_retry_that_was_due_does_not_happen(self) -> None:
        with world(retry_initial_ms=50) as w:
            w.machine.failures = failures(1)

            async def story() -> None:
                w.commit(1)
                w.notify()
                await asyncio.sleep(0.01)
                assert w.worker.state == "retrying"
                w.worker.pause()
                await asyncio.sleep(1000)

            w.run(story)
            assert len(w.machine.attempts) == 1
            assert w.worker.state == "paused"

    def test_whoever_resumes_gets_all_attempts_and_the_short_pauses_anew(self) -> None:
        with world(retry_initial_ms=50, retry_attempts_max=3) as w:

            async def story() -> None:
                w.commit(1)
                w.notify()
                for _ in range(3):
                    w.machine.failures = failures(3)
                    w.machine.attempts.clear()
                    w.worker.resume()
                    await asyncio.sleep(10)
                    assert pauses(w.machine.attempts) == [50, 100]
                    assert w.worker.state == "paused"
                w.worker.resume()
                await asyncio.sleep(1)

            w.run(story)
            assert w.reported == [1]
            assert w.worker.state == "running"

    def test_whoever_has_mended_damaged_data_resumes(self) -> None:
        with world() as w:
            w.machine.failures = [CorruptData("injected")]

            async def story() -> None:
                w.commit(1)
                w.notify()
                await asyncio.sleep(1)
                assert w.worker.state == "damaged"
                w.worker.resume()
                await asyncio.sleep(1)

            w.run(story)
            assert w.reported == [1]
            assert w.worker.state == "running"

    def test_what_cannot_be_read_is_damage_before_long_and_not_an_operators_to_resume(self) -> None:
        disk = BadSectors()
        with world(disk=disk, recent_bytes=0) as w:

            async def story() -> None:
                w.worker.pause()
                w.commit(5)
                third = w.batches[2]
                disk.break_at(w.log, third)
                w.worker.resume()
                w.notify()
                await asyncio.sleep(AGAIN_S - 1)
                assert (w.worker.state, w.machine.applied) == ("retrying", [1, 3])
                await asyncio.sleep(1 + ApplySettings().retry_max_ms / 1000)
                assert w.worker.state == "damaged"
                assert w.worker.damage is not None
                assert (w.worker.damage.last_index, w.worker.damage.digest) == (third.last_index, third.digest)
                assert w.log.lose(third.last_index, third.digest)
                assert w.log.append(third)
                flush(w.log)
                w.worker.resume()
                await asyncio.sleep(1)

            w.run(story)
            assert w.machine.applied == w.reported == [1, 3, 5, 7, 9]
            assert w.worker.state == "running"

    def test_a_pause_holds_though_the_group_under_way_fails(self) -> None:
        with world(HeldOffload) as w:
            w.machine.failures = failures(1)

            async def story() -> None:
                w.commit(1)
                w.notify()
                w.worker.pause()
                w.finish()
                await asyncio.sleep(1000)

            w.run(story)
            assert (w.worker.state, w.under_way) == ("paused", 0)

    def test_a_pause_after_resuming_is_as_long_as_any(self) -> None:
        with world(retry_initial_ms=50) as w:
            w.machine.failures = failures(2)

            async def story() -> None:
                w.commit(1)
                w.notify()
                await asyncio.sleep(0.04)
                w.worker.resume()
                await asyncio.sleep(1)

            w.run(story)
            assert pauses(w.machine.attempts[1:]) == [50]
