"""A worker that is told to stop where somebody wants to see its state, and goes on."""

from __future__ import annotations

import asyncio
import random

import pytest

from logboom.errors import CorruptData, Unavailable
from logboom.types import PartitionLogIndex
from partitions.log.reading import DamagedBatch
from tests.unit.partitions.worker_world import HeldOffload, world

DAMAGED = DamagedBatch("bits", last_index=PartitionLogIndex(9), digest=bytes(16), segment=1, path="1.log", offset=0)


@pytest.mark.parametrize("seed", range(10))
def test_each_sees_the_state_of_its_place_and_everything_is_applied_afterwards(seed: int) -> None:
    rng = random.Random(seed)
    with world(seed=seed, batches_max=rng.choice([1, 3, 1024])) as w:
        seen: list[tuple[int, int | None]] = []

        async def story() -> None:
            for _ in range(12):
                w.commit(rng.randint(1, 4))
                w.notify()
                for _ in range(rng.randint(0, 3)):
                    through = w.ends[-1]
                    w.worker.stop_at(
                        through,
                        lambda machine: machine.at.applied_index,  # type: ignore[attr-defined]
                        lambda found, through=through: seen.append((through, found)),
                    )
                w.worker.hurry()
                await asyncio.sleep(rng.choice([0, 0.0002]))
            await asyncio.sleep(1)

        w.run(story)
        assert seen, f"seed {seed}"
        assert all(through == found for through, found in seen), f"seed {seed}: {seen}"
        assert [through for through, _ in seen] == sorted(through for through, _ in seen)
        assert w.worker.applied_index == w.ends[-1]
        assert not w.worker._stops


def test_who_does_not_want_it_any_more_holds_nothing_up() -> None:
    with world() as w:

        async def story() -> None:
            w.commit(3)
            stop = w.worker.stop_at(w.ends[0], lambda _: pytest.fail("nobody wants it"), lambda _: None)
            w.worker.go_on(stop)
            w.worker.go_on(stop)
            w.notify()
            await asyncio.sleep(0.1)
            assert w.worker.applied_index == w.ends[-1]

        w.run(story)


def test_what_is_captured_for_nobody_is_not_waited_for() -> None:
    """A scan of a user's machine that did not return, which a view had asked for, stopped its partition for good."""
    with world(HeldOffload, batches_max=1) as w:
        taken: list[object] = []

        async def story() -> None:
            w.commit(1)
            w.notify()
            w.finish()
            stop = w.worker.stop_at(w.ends[0], lambda _: "late", taken.append)
            w.worker.hurry()
            w.commit(2)
            w.notify()
            assert w.under_way == 1
            assert w.held is not None
            capture, captured = w.held.jobs.pop()
            found = capture()
            assert w.worker.go_on(stop), "it is told of it all the same"
            assert not w.worker.go_on(stop)
            w.finish()
            assert w.worker.applied_index == w.ends[1]
            assert w.under_way == 1
            captured(found, None)
            assert taken == ["late"]
            w.worker.hurry()
            assert w.under_way == 1, "one group at a time"
            w.finish()
            assert w.worker.applied_index == w.ends[2]

        w.run(story)


def test_nor_by_whoever_closes_it() -> None:
    """A partition could be destroyed no more, nor its state be made anew."""
    with world(HeldOffload) as w:

        async def story() -> None:
            stop = w.worker.stop_at(0, lambda _: "late", lambda _: None)
            w.worker.hurry()
            closing = asyncio.ensure_future(w.worker.close())
            await asyncio.sleep(0)
            assert not closing.done()
            w.worker.go_on(stop)
            await closing
            w.finish()

        w.run(story)


def test_of_what_was_given_up_one_at_a_time_is_out() -> None:
    """A client that asked again after each deadline took all threads of a class, or had its queue grow for ever."""
    with world(HeldOffload) as w:
        w.machine.dump = lambda: "dump"  # type: ignore[attr-defined]
        taken: list[object] = []

        async def story() -> None:
            for _ in range(4):
                stop = w.worker.stop_at(0, lambda _: pytest.fail("nobody wants it"), taken.append)
                w.worker.hurry()
                assert w.under_way == 1
                w.worker.go_on(stop)
            assert taken == [None] * 3, "they are told at once"
            w.worker.cut(0, taken.append)
            w.worker.hurry()
            assert w.under_way == 2, "no snapshot has to do without"
            w.finish(1)
            assert taken[3:] == ["dump"]
            w.commit(1)
            w.notify()
            w.finish(1)
            assert w.worker.applied_index == w.ends[0]
            w.finish()
            assert taken[4:] == [None], "a capture that had not begun does not"
            w.worker.stop_at(w.ends[0], lambda _: "view", taken.append)
            w.worker.hurry()
            w.finish()
            assert taken[5:] == ["view"]

        w.run(story)


def test_who_fails_when_he_is_told_holds_nothing_up() -> None:
    with world(HeldOffload) as w:

        async def story() -> None:
            w.commit(1)
            w.worker.stop_at(0, lambda _: "view", lambda _: {}[1])
            w.notify()
            with pytest.raises(KeyError):
                w.finish()
            w.finish()
            assert w.worker.applied_index == w.ends[0]

        w.run(story)


def test_whoever_goes_on_with_a_stop_is_asked_to_give_it_up() -> None:
    """It was the one that had been there before, or was there now: with its partition destroyed there was none."""
    with world(HeldOffload) as w:

        async def story() -> None:
            stop = w.worker.stop_at(0, lambda _: "late", lambda _: None)
            assert stop.owner is w.worker
            await w.worker.close()
            fresh = w.another()
            w.worker.hand_over(fresh)
            assert stop.owner is fresh
            fresh.hurry()
            closing = asyncio.ensure_future(fresh.close())
            await asyncio.sleep(0)
            assert not closing.done()
            assert stop.owner.go_on(stop)
            await closing
            w.finish()

        w.run(story)


def test_a_cut_and_a_view_of_the_same_place_are_both_served() -> None:
    with world(HeldOffload) as w:
        w.machine.dump = lambda: "dump"  # type: ignore[attr-defined]
        seen: list[object] = []

        async def story() -> None:
            w.commit(2)
            w.worker.cut(w.ends[0], seen.append)
            w.worker.stop_at(w.ends[0], lambda _: "view", seen.append)
            w.notify()
            while w.under_way:
                w.finish()
            assert sorted(map(str, seen)) == ["dump", "view"]
            assert w.worker.applied_index == w.ends[-1]

        w.run(story)


def test_dropping_the_cut_leaves_the_views() -> None:
    with world() as w:
        seen: list[object] = []

        async def story() -> None:
            w.commit(2)
            w.worker.cut(w.ends[0], lambda _: pytest.fail("nobody wants it"))
            w.worker.stop_at(w.ends[0], lambda _: "view", seen.append)
            w.worker.drop_cut()
            w.notify()
            await asyncio.sleep(0.1)
            assert seen == ["view"]

        w.run(story)


@pytest.mark.parametrize("resumed", [False, True], ids=["held", "resumed"])
def test_a_pause_is_kept_by_whoever_goes_on_with_a_state_that_is_made_anew(resumed: bool) -> None:
    with world() as w:

        async def story() -> None:
            w.commit(3)
            w.notify()
            await asyncio.sleep(0.1)
            w.worker.pause()
            w.commit(3)
            w.notify()
            await w.worker.close()
            if resumed:
                w.worker.resume()
            fresh = w.another()
            w.worker.hand_over(fresh)
            w.worker = fresh
            fresh.notify(w.ends[-1])
            await asyncio.sleep(0.1)
            assert (fresh.applied_index, fresh.state) == ((w.ends[5], "running") if resumed else (w.ends[2], "paused"))
            assert w.states[-1] == fresh.state, "who waits until something is applied, and watermarks, hear of it"
            fresh.resume()
            await asyncio.sleep(0.1)
            assert (fresh.applied_index, fresh.state) == (w.ends[5], "running")

        w.run(story)


def test_one_that_is_damaged_again_on_its_way_comes_as_far_as_the_first() -> None:
    """It stopped where the second was damaged: its partition stayed fenced for as long as it was paused."""
    with world(HeldOffload, batches_max=1) as w:

        async def story() -> None:
            w.commit(3)
            w.notify()
            for _ in range(3):
                w.finish()
            w.worker.pause()
            w.commit(3)
            for through in (w.ends[0], w.ends[5]):  # the first is damaged on its way, with the second batch under way
                closing = asyncio.ensure_future(w.worker.close())
                await asyncio.sleep(0)
                while w.under_way:
                    w.finish()
                await closing
                before, w.worker = w.worker, w.another()
                before.hand_over(w.worker)
                w.worker.notify(w.ends[-1])
                while w.under_way and w.worker.applied_index < through:
                    w.finish()
            assert (w.worker.applied_index, w.worker.state) == (w.ends[2], "paused")
            assert w.states[-1] == "paused"

        w.run(story)


def test_whoever_waits_for_a_state_to_be_saved_is_told_when_it_is_closed() -> None:
    """It waited for ever, and with it the snapshot that it saved for."""
    saves, told = HeldOffload(), list[BaseException | None]()
    with world(saves=saves) as w:

        async def story() -> None:
            w.worker.save(told.append)
            closing = asyncio.ensure_future(w.worker.close())
            await asyncio.sleep(0)
            saves.finish()
            await closing
            assert [type(each) for each in told] == [Unavailable]
            w.worker.save(told.append)
            assert len(told) == 2

        w.run(story)


@pytest.mark.parametrize("state", ["paused", "retrying", "damaged"])
def test_one_that_stands_still_is_seen_where_it_is(state: str) -> None:
    """Found by reading: whoever wanted a view of it, or a snapshot, waited until it went on, with nothing to apply."""
    with world() as w:
        seen: list[object] = []

        async def story() -> None:
            w.commit(3)
            w.notify()
            await asyncio.sleep(0.1)
            if state == "paused":
                w.worker.pause()
            else:
                w.worker._failed(DAMAGED if state == "damaged" else OSError("not now"))
            assert w.worker.state == state
            here, there = w.ends[2], w.ends[2] + 1
            w.worker.stop_at(here, lambda machine: machine.at.applied_index, seen.append)  # type: ignore[attr-defined]
            w.worker.cut(here, seen.append)
            later = w.worker.stop_at(there, lambda _: pytest.fail("it is not there"), lambda _: None)
            w.machine.dump = lambda: "dump"  # type: ignore[attr-defined]
            w.worker.hurry()
            await asyncio.sleep(0.001)
            assert seen == [here, "dump"]
            assert w.worker.applied_index == here
            assert w.worker.state == state
            w.worker.go_on(later)

        w.run(story)


@pytest.mark.parametrize("found_by", ["apply", "checkpoint"])
def test_of_a_state_that_is_damaged_nothing_is_seen(found_by: str) -> None:
    with world() as w:

        async def story() -> None:
            w.commit(3)
            w.notify()
            await asyncio.sleep(0.1)
            w.worker._failed(DAMAGED if found_by == "checkpoint" else CorruptData("the state"))
            if found_by == "checkpoint":
                w.worker._saved(CorruptData("the state"))
            assert w.worker.state == "damaged"
            stop = w.worker.stop_at(w.ends[2], lambda _: pytest.fail("of a damaged state"), lambda _: None)
            w.worker.hurry()
            await asyncio.sleep(0.1)
            w.worker.go_on(stop)

        w.run(story)
