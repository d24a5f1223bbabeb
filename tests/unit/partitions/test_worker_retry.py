"""What becomes of a group that the machine could not apply: it is tried again, then waits for somebody."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from logboom.errors import CorruptData
from partitions.log.unread import NotRead
from partitions.machines.guarded import guard
from ports.invariant import InvariantViolated
from tests.unit.partitions.batches import PRODUCER
from tests.unit.partitions.worker_world import Untold, failures, pauses, world


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

    @pytest.mark.parametrize("where", ["on a thread", "on the loop"])
    def test_so_is_what_nobody_can_say_of_a_machine_of_a_user(self, where: str) -> None:
        """Its partition stood still, with no word of it, and whoever closed it waited for good."""
        how = {"applies_in_memory": where == "on the loop"}
        with world(retry_initial_ms=50, retry_max_ms=300, retry_attempts_max=3, **how) as w:
            w.machine.failures = [ValueError(Untold()) for _ in range(9)]
            w.worker.machine = guard("mine", w.machine)  # type: ignore[arg-type]

            async def story() -> None:
                w.commit(1)
                w.notify()
                await asyncio.sleep(1000)
                assert w.states == ["retrying", "retrying", "paused"]
                assert "'mine' raised ValueError" in w.worker.last_error
                w.worker.resume()
                await w.worker.close()

            w.run(story)
            assert w.machine.applied == []

    @pytest.mark.parametrize("lacks", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
    def test_so_is_memory(self, lacks: Exception) -> None:
        with world(retry_initial_ms=50, retry_max_ms=300, retry_attempts_max=3) as w:
            w.machine.failures = [lacks] * 10

            async def story() -> None:
                w.commit(1)
                w.notify()
                await asyncio.sleep(1000)

            w.run(story)
            assert (w.states[-1], w.machine.applied) == ("running", [1])

    def test_but_not_for_good_where_a_user_s_machine_may_ask_for_more_than_there_is(self) -> None:
        with world(retry_initial_ms=50, retry_attempts_max=3) as w:
            w.machine.failures = [MemoryError("8 TiB") for _ in range(10)]
            w.worker.machine = guard("mine", w.machine)  # type: ignore[arg-type]

            async def story() -> None:
                w.commit(1)
                w.notify()
                await asyncio.sleep(1000)

            w.run(story)
            assert (w.worker.state, w.machine.applied) == ("paused", [])
            assert "8 TiB" in w.worker.last_error

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
            assert [(batch.duplicate, batch.results) for batches in w.progress for batch in batches] == [(0, b"\0")] * 2

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


class TestOneByOne:
    @pytest.mark.parametrize("where", ["on a thread", "on the loop"])
    def test_what_is_in_front_of_one_that_fails_is_applied_however_they_came(self, where: str) -> None:
        """Where lone commands came it was applied, and read there; where they came together it was not, for good."""
        with world(retry_initial_ms=50, applies_in_memory=where == "on the loop") as w:
            w.machine.poison = 5

            async def story() -> None:
                w.commit(5)
                w.notify()
                await asyncio.sleep(1000)
                assert (w.machine.applied, w.worker.applied_index, w.worker.state) == ([1, 3], 4, "paused")
                w.machine.poison = 0
                w.worker.resume()
                await asyncio.sleep(1)

            w.run(story)
            assert (w.machine.applied, w.worker.state) == ([1, 3, 5, 7, 9], "running")

    def test_groups_are_as_large_as_ever_behind_where_the_one_that_failed_ended(self) -> None:
        with world(retry_initial_ms=50, batches_max=3) as w:
            w.machine.failures = failures(1)

            async def story() -> None:
                w.commit(8)
                w.notify()
                await asyncio.sleep(1000)
                w.commit(2)
                w.notify()
                await asyncio.sleep(1000)

            w.run(story)
            assert [len(batches) for batches in w.progress] == [0, 1, 1, 1, 3, 2, 2]

    def test_so_they_are_where_it_failed_before_it_knew_its_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with world(retry_initial_ms=50, batches_max=3) as w:
            read = w.log.read_committed

            def fails_once(**how: Any) -> Any:
                monkeypatch.undo()
                raise MemoryError

            async def story() -> None:
                w.commit(8, records=1)
                monkeypatch.setattr(w.log, "read_committed", fails_once)
                w.notify()
                await asyncio.sleep(1000)

            w.run(story)
            assert w.log.read_committed == read
            assert [len(batches) for batches in w.progress] == [0, 1, 1, 1, 3, 2]

    def test_what_is_damaged_or_cannot_be_read_now_is_read_together_again(self) -> None:
        with world(retry_initial_ms=50) as w:
            w.machine.failures = [NotRead("injected")]

            async def story() -> None:
                w.commit(3)
                w.notify()
                await asyncio.sleep(1000)

            w.run(story)
            assert [len(batches) for batches in w.progress] == [0, 3]

    def test_a_void_one_that_fails_stops_nothing_that_follows_it_for_good(self) -> None:
        with world(retry_initial_ms=50) as w:
            w.machine.failures = failures(1)

            async def story() -> None:
                w.commit(4)
                w.log.void(w.batches[0].last_index, w.batches[0].digest)
                w.notify()
                await asyncio.sleep(1000)

            w.run(story)
            assert [len(batches) for batches in w.progress] == [0, 1, 3]
