"""The apply worker: what may be applied is, once and in order; what fails is retried, then waits for somebody."""

from __future__ import annotations

import asyncio

from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from ports.scrub import AGAIN_S
from tests.unit.partitions.batches import flush
from tests.unit.partitions.sectors import BadSectors
from tests.unit.partitions.worker_world import HeldOffload, failures, pauses, world
from tests.unit.raftlog.world import MemoryDisk


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

    def test_what_is_whole_in_front_of_damage_is_applied_and_that_is_told_at_once(self) -> None:
        disk = MemoryDisk()
        with world(disk=disk, recent_bytes=0) as w:

            async def story() -> None:
                w.worker.pause()
                w.commit(5)
                third = w.batches[2]
                place = w.log.find(third.last_index, third.digest)
                assert place is not None
                disk.files[w.log._path(place.segment)][place.offset + place.length - 1] ^= 1
                w.worker.resume()
                w.notify()
                await asyncio.sleep(0.01)
                assert (w.worker.state, w.states[-1]) == ("damaged", "damaged")
                assert w.worker.damage is not None
                assert w.worker.damage.digest == third.digest

            w.run(story)
            assert w.machine.applied == w.reported == [1, 3]

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
