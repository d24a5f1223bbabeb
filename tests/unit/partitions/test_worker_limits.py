"""The apply worker: fewer groups for nobody, bounded memory, an orderly end; and all of it at random."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitions.apply.apply_core import AppliedBatch
from tests.unit.partitions.worker_world import HeldOffload, World, failures, world
from tests.unit.raftlog.world import VirtualOffload


class TestLinger:
    def test_what_nobody_waits_for_is_applied_in_fewer_groups(self) -> None:
        with world(linger_ms=100) as w:

            async def story() -> None:
                for _ in range(10):
                    w.commit(1)
                    w.notify(urgent=False)
                    await asyncio.sleep(0.03)
                await asyncio.sleep(1)

            w.run(story)
            assert len(w.reported) == 10
            assert [round(b - a, 6) for a, b in pairwise(w.machine.attempts)] == [0.1, 0.1, 0.1]

    @pytest.mark.parametrize("how", ["notify", "hurry"])
    def test_as_soon_as_somebody_waits_it_is_applied_at_once(self, how: str) -> None:
        with world(linger_ms=100) as w:

            async def story() -> None:
                w.commit(1)
                w.notify(urgent=False)
                await asyncio.sleep(0.01)
                w.commit(1)
                w.notify(urgent=False)
                await asyncio.sleep(0.01)
                assert w.reported == [1]
                w.notify() if how == "notify" else w.worker.hurry()
                await asyncio.sleep(0.01)
                assert w.reported == [1, 3]

            w.run(story)

    def test_what_somebody_waits_for_follows_the_group_under_way_at_once(self) -> None:
        with world(HeldOffload, linger_ms=100) as w:

            async def story() -> None:
                w.commit(1)
                w.notify(urgent=False)
                w.commit(1)
                w.notify()
                w.finish()
                assert w.under_way == 1

            w.run(story)


class TestMemory:
    """`unsaved_bytes` 100: above it a checkpoint begins, above 200 nothing is applied beside it."""

    def test_nothing_is_applied_while_too_much_is_unsaved(self) -> None:
        with world(HeldOffload, batches_max=1, unsaved_bytes=100) as w:
            w.machine.grows = 250

            async def story() -> None:
                w.commit(2)
                w.notify()
                w.finish()
                w.notify()
                w.worker.hurry()
                assert (w.reported, w.under_way) == ([1], 1)
                w.finish()
                assert (w.machine.checkpoints, w.under_way) == (1, 1)
                w.finish()

            w.run(story)
            assert w.reported == [1, 3]

    def test_little_is_saved_in_time_though_nothing_more_comes(self) -> None:
        """Found by a chaos run: small commands took seconds to be applied again after a crash."""
        with world(unsaved_bytes=100, unsaved_ms=2000) as w:
            w.machine.grows = 1

            async def story() -> None:
                w.commit(2)
                w.notify()
                await asyncio.sleep(1.9)
                assert (w.reported, w.machine.checkpoints) == ([1, 3], 0)
                await asyncio.sleep(0.2)
                assert (w.machine.unsaved_bytes, w.machine.checkpoints) == (0, 1)
                await asyncio.sleep(10)
                assert w.machine.checkpoints == 1

            w.run(story)

    def test_what_a_crash_would_repeat_is_saved_in_time_however_little_memory_it_takes(self) -> None:
        with world(batches_max=1, replay_bytes=1_000, unsaved_ms=1_000_000) as w:
            w.machine.grows = w.machine.frees = 1  # as if the same key was written again and again

            async def story() -> None:
                w.commit(40)
                w.notify()
                await asyncio.sleep(10)
                nbytes = w.progress[0][0].nbytes
                assert w.machine.checkpoints == 40 // (1_000 // nbytes + 1) > 3

            w.run(story)

    def test_applying_does_not_take_turns_with_checkpoints(self) -> None:
        saves = HeldOffload()
        with world(HeldOffload, saves=saves, batches_max=1, unsaved_bytes=100) as w:
            w.machine.grows = 150

            async def story() -> None:
                w.commit(2)
                w.notify()
                w.finish()
                assert (w.under_way, len(saves.jobs), w.machine.checkpoints) == (1, 1, 0)
                saves.finish()
                w.finish()
                assert (w.reported, w.machine.checkpoints) == ([1, 3], 1)

            w.run(story)

    def test_a_checkpoint_alone_holds_nothing_up(self) -> None:
        with world(HeldOffload, batches_max=1, unsaved_bytes=100) as w:
            w.machine.grows = 150

            async def story() -> None:
                w.commit(2)
                w.notify()
                w.finish()
                assert w.under_way == 2
                w.finish(1)

            w.run(story)
            assert (w.reported, w.machine.checkpoints) == ([1, 3], 0)

    def test_a_checkpoint_that_failed_is_tried_again_later(self) -> None:
        with world(HeldOffload, batches_max=1, unsaved_bytes=100, retry_max_ms=2000) as w:
            w.machine.grows = 250

            async def story() -> None:
                w.commit(2)
                w.notify()
                w.finish()
                w.machine.failures = [MemoryError("injected 0")]
                w.finish()
                assert (w.under_way, w.worker.state) == (0, "running")
                assert "injected 0" in w.worker.last_error
                await asyncio.sleep(1.9)
                assert w.under_way == 0
                await asyncio.sleep(0.2)
                w.finish()
                w.finish()

            w.run(story)
            assert (w.reported, w.machine.checkpoints) == ([1, 3], 2)

    def test_a_large_group_beside_a_checkpoint_is_saved_by_the_next_one(self) -> None:
        with world(HeldOffload, batches_max=1, unsaved_bytes=100) as w:
            w.machine.grows = w.machine.frees = 150

            async def story() -> None:
                w.commit(3)
                w.notify()
                w.finish()  # 150 unsaved: a checkpoint of them, and the second group beside it
                w.machine.grows = 400
                w.finish(1)  # 550 unsaved
                w.finish()  # 400 unsaved
                w.machine.frees = 1000
                for _ in range(10):
                    w.notify()
                    await asyncio.sleep(10)
                    while w.under_way:
                        w.finish()

            w.run(story)
            assert w.reported == [1, 3, 5]

    def test_a_checkpoint_that_failed_during_a_pause_is_tried_again_after_it(self) -> None:
        with world(HeldOffload, batches_max=1, unsaved_bytes=100) as w:
            w.machine.grows = 250

            async def story() -> None:
                w.commit(2)
                w.notify()
                w.finish()
                w.worker.pause()
                w.machine.failures = failures(1)
                w.finish()
                w.worker.resume()
                for _ in range(10):
                    w.notify()
                    await asyncio.sleep(10)
                    while w.under_way:
                        w.finish()

            w.run(story)
            assert w.reported == [1, 3]


class TestClose:
    def test_it_waits_for_the_group_under_way_and_starts_no_other(self) -> None:
        with world(HeldOffload, batches_max=1) as w:

            async def story() -> None:
                w.commit(2)
                w.notify()
                closing = asyncio.ensure_future(w.worker.close())
                await asyncio.sleep(10)
                assert not closing.done()
                w.finish()
                await closing
                w.notify()
                await asyncio.sleep(1000)

            w.run(story)
            assert (w.reported, w.under_way) == ([1], 0)

    def test_it_waits_for_a_checkpoint_under_way(self) -> None:
        with world(HeldOffload, unsaved_bytes=100) as w:
            w.machine.grows = 150

            async def story() -> None:
                w.commit(1)
                w.notify()
                w.finish()
                closing = asyncio.ensure_future(w.worker.close())
                await asyncio.sleep(10)
                assert not closing.done()
                w.finish()
                await closing

            w.run(story)
            assert w.machine.checkpoints == 1

    def test_several_wait_for_the_same_end_and_one_may_give_up(self) -> None:
        with world(HeldOffload) as w:

            async def story() -> None:
                w.commit(1)
                w.notify()
                closing = [asyncio.ensure_future(w.worker.close()) for _ in range(3)]
                await asyncio.sleep(1)
                closing[1].cancel()
                await asyncio.sleep(1)
                w.finish()
                await asyncio.sleep(1)
                assert [task.done() for task in closing] == [True] * 3
                assert [task.cancelled() for task in closing] == [False, True, False]

            w.run(story)

    def test_without_anything_under_way_it_is_done_at_once(self) -> None:
        with world(HeldOffload) as w:
            w.run(w.worker.close)

    def test_a_retry_or_a_linger_that_was_due_does_not_happen(self) -> None:
        for linger in (False, True):
            with world(linger_ms=100) as w:
                w.machine.failures = failures(0 if linger else 1)

                async def story(w: World = w) -> None:
                    w.commit(1)
                    w.notify()
                    await asyncio.sleep(0.01)
                    w.commit(1)
                    w.notify(urgent=False)
                    await w.worker.close()
                    await asyncio.sleep(1000)

                w.run(story)
                assert len(w.machine.attempts) == 1

    def test_nothing_is_retried_after_it(self) -> None:
        with world(HeldOffload) as w:
            w.machine.failures = failures(1)

            async def story() -> None:
                w.commit(1)
                w.notify()
                closing = asyncio.ensure_future(w.worker.close())
                await asyncio.sleep(1)
                w.finish()
                await closing
                await asyncio.sleep(1000)

            w.run(story)
            assert w.under_way == 0

    def test_no_checkpoint_is_under_way_after_it(self) -> None:
        with world(HeldOffload, unsaved_bytes=100) as w:
            w.machine.grows = 150
            left: list[int] = []

            async def story() -> None:
                w.commit(1)
                w.notify()
                closing = asyncio.ensure_future(w.worker.close())
                await asyncio.sleep(1)
                w.finish()
                await asyncio.sleep(1)
                if not closing.done():  # it may as well wait for the checkpoint
                    w.finish()
                await closing
                left.append(w.under_way)

            w.run(story)
            assert left == [0]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(1, 4)),
        st.tuples(st.just("notify"), st.booleans()),
        st.tuples(st.just("limit"), st.integers(0, 30)),
        st.tuples(st.just("fail"), st.integers(1, 3)),
        st.tuples(st.just("sleep"), st.floats(0, 0.5)),
        st.tuples(st.sampled_from(["hurry", "commit alone"])),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 1 << 30))
def test_whatever_fails_each_batch_is_applied_once_and_in_its_order(steps: list[Any], seed: int) -> None:
    with world(VirtualOffload, seed=seed, batches_max=3, linger_ms=100, retry_attempts_max=1000) as w:
        allowed = 0
        seen: list[int] = []

        def progressed(batches: Sequence[AppliedBatch]) -> None:
            w._progressed(batches)
            seen.append(w.worker.applied_index)
            assert w.worker.applied_index <= allowed

        w.worker._on_progress = progressed

        async def story() -> None:
            nonlocal allowed
            for kind, *how in steps:
                if kind == "commit":
                    w.commit(how[0])
                elif kind == "commit alone":
                    w.commit(1, records=1)
                elif kind == "notify":
                    allowed = w.log.durable_index
                    w.notify(urgent=how[0])
                elif kind == "limit" and how[0] < len(w.ends):
                    allowed = max(allowed, w.ends[how[0]])
                    w.worker.notify(w.ends[how[0]], urgent=False)
                elif kind == "fail":
                    w.machine.failures += failures(how[0])
                elif kind == "hurry":
                    w.worker.hurry()
                elif kind == "sleep":
                    await asyncio.sleep(how[0])
            allowed = w.log.durable_index
            w.notify()
            await asyncio.sleep(1000)

        w.run(story)
        everything = [1, *(end + 1 for end in w.ends[:-1])][: len(w.ends)]
        assert w.machine.applied == w.reported == everything
        assert seen == sorted(seen)
        assert w.worker.idle
        assert all(batch.duplicate == 0 for batches in w.progress for batch in batches)


def test_a_full_group_is_followed_at_once() -> None:
    """Lingering gathers; behind a full group there is nothing to gather (simulator: a replay took minutes)."""
    with world(batches_max=2, linger_ms=100) as w:

        async def story() -> None:
            w.commit(20)
            w.notify(urgent=False)
            await asyncio.sleep(0.2)

        w.run(story)
        assert len(w.reported) == 20


def test_a_checkpoint_that_meets_a_failing_disk_stops_the_node() -> None:
    """A later one may succeed on top of pages that the disk never got."""
    with world(HeldOffload, unsaved_bytes=1) as w:
        error = OSError(5, "injected")

        async def story() -> None:
            w.worker._checkpoints.under_way = True
            w.worker._checkpoints._saved(None, error)
            await asyncio.sleep(0)

        w.run(story)
        assert w.fatal == [error]
