"""Views of several partitions: of one moment, and nothing is left behind, however they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.reading.views import Views
from logboom.errors import (
    CorruptData,
    InvalidRequest,
    LogboomError,
    PartitionDestroyed,
    QuotaExceeded,
    Unavailable,
)
from logboom.types import PartitionId
from tests.unit.dispatcher.scans_world import Machine
from tests.unit.dispatcher.views_world import Backend, collect, scan


async def test_each_is_seen_where_its_log_ended_in_that_turn() -> None:
    backend = Backend({0: 3, 1: 5})
    views = Views(backend, views_max=2)
    task = asyncio.ensure_future(collect(scan(backend, views, 0, 1, 0)))
    await asyncio.sleep(0)
    for log in backend.logs.values():
        log.committed_index += 10  # comes too late for it
    backend.parent.global_index += 20
    backend.workers[1].apply(15)
    await asyncio.sleep(0)
    assert not task.done()
    backend.workers[0].apply(13)
    assert await task == [(0, 50), (0, 50), (1, 50), (1, 50)]
    assert views.open == 0
    backend.check_nothing_is_left()


async def test_one_that_does_not_come_so_far_is_not_waited_for_for_ever() -> None:
    backend = Backend({0: 3, 1: 5})
    backend.workers[1].apply(5)
    with pytest.raises(Unavailable, match="partitions 0 have not"):
        await collect(scan(backend, Views(backend, views_max=2), 0, 1, timeout=0.01))
    backend.check_nothing_is_left()


@pytest.mark.parametrize("how", ["late", "given up", "destroyed"])
@pytest.mark.parametrize("anew", [False, True], ids=["", "made anew"])
async def test_a_machine_that_does_not_give_its_first_keys_goes_on_without_and_stays_open(
    how: str, *, anew: bool
) -> None:
    """Its partition applied nothing until they came, and if they never did could not be destroyed.

    Nor could it where its state had been made anew in between. And what is done at the end of such a scan of a user's
    was done on the threads of all others.
    """
    backend = Backend({0: 3, 1: 5})
    views = Views(backend, views_max=2)
    frames = scan(backend, views, 0, 1, timeout=0.01 if how == "late" else 5.0)
    task = asyncio.ensure_future(collect(frames))
    await asyncio.sleep(0)
    worker = backend.workers[0]
    worker.machine.applied = 3
    if anew:  # the first has handed over
        worker = backend.workers[0] = worker.hand_over()
    stop = worker.begin()
    if how == "late":
        with pytest.raises(Unavailable, match="partitions 0, 1 have not"):
            await task
    elif how == "destroyed":
        backend.destroy(0)
        with pytest.raises(PartitionDestroyed):
            await task
    else:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (worker.under_way, views.open, backend.used) == ([], 0, 1), "it is still asked"
    stop.taken(stop.capture(worker.machine))
    assert backend.asked == [worker.offload] * 2, "its own"
    assert not worker.machine.open
    backend.check_nothing_is_left()


async def test_one_that_stands_still_in_front_of_it_ends_it_at_once() -> None:
    """Found by reading: it took all of its time, and said then that not everything had been applied."""
    backend = Backend({0: 3, 1: 5, 2: 4})
    backend.workers[0].apply(3)
    task = asyncio.ensure_future(collect(scan(backend, Views(backend, views_max=2), 0, 1, 2)))
    await asyncio.sleep(0)
    backend.workers[2].apply(4)
    await asyncio.sleep(0)
    assert backend.waited == [(1, 50), (2, 40)], "each that is not there"
    backend.still.set_exception(Unavailable("partition 1 is paused"))
    async with asyncio.timeout(1):
        with pytest.raises(Unavailable, match="partition 1 is paused"):
            await task
    backend.check_nothing_is_left()


@pytest.mark.parametrize("when", ["gathering", "reading"])
async def test_who_gives_up_leaves_nothing(when: str) -> None:
    backend = Backend({0: 3, 1: 5})
    views = Views(backend, views_max=2)
    frames = scan(backend, views, 0, 1)
    task = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    backend.workers[0].apply(3)
    if when == "reading":
        backend.workers[1].apply(5)
        await task
    else:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await frames.aclose()
    backend.check_nothing_is_left()
    assert views.open == 0


async def test_a_partition_that_is_destroyed_meanwhile_ends_it_at_once() -> None:
    """The others were waited for until the deadline, and then it was to be tried again."""
    backend = Backend({0: 3, 1: 5})
    task = asyncio.ensure_future(collect(scan(backend, Views(backend, views_max=2), 0, 1)))
    await asyncio.sleep(0)
    backend.workers[0].apply(3)
    backend.destroy(1)
    async with asyncio.timeout(1):
        with pytest.raises(PartitionDestroyed):
            await task
    backend.check_nothing_is_left()


async def test_one_that_was_destroyed_while_it_was_made_fresh_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend({0: 3, 1: 5})

    async def make_fresh(*_: object, **__: object) -> None:
        backend.destroy(1)

    monkeypatch.setattr("dispatcher.reading.reads.make_fresh", make_fresh)
    with pytest.raises(PartitionDestroyed):
        await collect(scan(backend, Views(backend, views_max=2), 0, 1))
    backend.check_nothing_is_left()


async def test_a_state_that_cannot_be_captured_ends_it() -> None:
    backend = Backend({0: 3, 1: 5})
    task = asyncio.ensure_future(collect(scan(backend, Views(backend, views_max=2), 0, 1)))
    await asyncio.sleep(0)
    backend.workers[1].apply(5)
    backend.workers[0].stops.pop().taken(None)
    with pytest.raises(Unavailable):
        await task
    backend.check_nothing_is_left()


async def test_a_view_of_another_moment_is_not_passed_on() -> None:
    backend = Backend({0: 3})
    task = asyncio.ensure_future(collect(scan(backend, Views(backend, views_max=2), 0)))
    await asyncio.sleep(0)
    stop = backend.workers[0].stops.pop()
    backend.machines[0].applied = 2
    stop.taken(stop.capture(backend.machines[0]))
    with pytest.raises(CorruptData, match="a view of 2, not of 3"):
        await task
    backend.check_nothing_is_left()


@pytest.mark.parametrize(("since", "told"), [("the same", [0]), ("made anew", []), ("destroyed", [])])
async def test_damage_is_that_of_the_machine_that_was_read(since: str, told: list[int]) -> None:
    """What was found in a state that had been replaced since had the new one fenced, and made anew once more."""
    backend, damaged = Backend({0: 3}), list[int]()
    backend.rebuilding = SimpleNamespace(damaged=lambda partition, _: damaged.append(partition))  # type: ignore[attr-defined]
    frames = scan(backend, Views(backend, views_max=1), 0)
    task = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    backend.workers[0].apply(3)
    await task

    async def run(_: object) -> None:
        if since == "made anew":
            backend.machines[0] = Machine()
        elif since == "destroyed":
            del backend.machines[0]
        raise CorruptData("a bit has flipped")

    backend.run = run  # type: ignore[method-assign]
    with pytest.raises(CorruptData, match="a bit"):
        await anext(frames)
    assert damaged == told


async def test_damage_at_the_very_beginning_is_told_of_too() -> None:
    """It was "could not be read", to be tried again: for ever, as nobody had the state made anew."""
    backend, damaged = Backend({0: 3}), list[int]()
    backend.rebuilding = SimpleNamespace(damaged=lambda partition, _: damaged.append(partition))  # type: ignore[attr-defined]
    views = Views(backend, views_max=1)

    def scan_damaged(**_: object) -> Iterator[Any]:
        raise CorruptData("a bit has flipped")
        yield

    backend.machines[0].scan = scan_damaged
    task = asyncio.ensure_future(collect(scan(backend, views, 0)))
    await asyncio.sleep(0)
    backend.workers[0].apply(3)
    with pytest.raises(CorruptData, match="a bit"):
        await task
    assert damaged == [0]
    backend.check_nothing_is_left()


async def test_a_partition_that_is_destroyed_before_the_view_is_taken_leaves_nothing() -> None:
    """Whoever was told to stop before that was noticed opened a view that nobody closed."""
    backend = Backend({0: 3, 1: 5})
    views = Views(backend, views_max=2)
    frames = views.scan([PartitionId(0), PartitionId(1)], {"read": "linearizable"}, 5.0)
    with pytest.raises(PartitionDestroyed):
        await anext(frames)
    backend.workers[0].apply(3)
    backend.check_nothing_is_left()
    assert views.open == 0


async def test_damage_in_a_partition_that_is_destroyed_is_nobodys() -> None:
    backend = Backend({0: 0, 1: 0})
    frames = scan(backend, Views(backend, views_max=2), 1)
    await anext(frames)

    async def run(_: Callable[[], Any]) -> Any:
        del backend.workers[1], backend.machines[1]
        raise CorruptData("a page")

    backend.run = run  # type: ignore[method-assign]
    with pytest.raises(CorruptData):
        await anext(frames)
    assert backend.used == 0


async def test_bounds() -> None:
    backend = Backend({0: 0, 1: 0})
    views = Views(backend, views_max=1)
    frames = scan(backend, views, 0)
    await anext(frames)
    refused: list[tuple[Any, type[LogboomError]]] = [(scan(backend, views, 1), QuotaExceeded)]
    for other, error in refused:
        with pytest.raises(error):
            await anext(other)
    await frames.aclose()
    backend.kinds[1] = "log"
    with pytest.raises(InvalidRequest):
        await anext(scan(backend, views, 0, 1))
    with pytest.raises(InvalidRequest):
        await anext(scan(backend, views, *([0] * 1025)))
    assert views.open == 0
    backend.check_nothing_is_left()


async def test_a_state_that_is_captured_after_its_client_has_gone_is_let_go() -> None:
    backend = Backend({0: 5, 1: 5})
    views = Views(backend, views_max=1)
    chunks = views.scan([PartitionId(0), PartitionId(1)], {"read": "stale"}, 10.0)
    scan = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    worker = backend.workers[0]
    stop = worker.stops.pop()  # a thread is at it
    view = stop.capture(worker.machine)
    assert worker.machine.open == 1
    scan.cancel()
    await asyncio.gather(scan, return_exceptions=True)
    stop.taken(view)
    assert (worker.machine.open, views.open, backend.used) == (0, 0, 0)
    stop.taken(None)
