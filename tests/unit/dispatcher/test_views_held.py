"""What views of many partitions hold of those whose turn has not come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dispatcher.reading.views import FEW, FIRST_KEYS, Views
from logboom.errors import QuotaExceeded, RecordTooLarge
from logboom.records import RecordBlock
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from tests.unit.dispatcher.scans_world import Machine
from tests.unit.dispatcher.views_world import Backend, collect, scan


class Keys(Machine):
    """So many, with values of so many bytes, in chunks as they are asked for."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.count, self.size, self.chunks = count, size, list[int]()

    def scan(self, *, start: bytes, end: bytes | None, limit: int, chunk: int) -> Iterator[Any]:
        self.open += 1
        self.chunks.append(chunk)
        try:
            for at in range(0, self.count, chunk):
                keys = range(at, min(at + chunk, self.count))
                position = Position(PartitionLogIndex(self.applied), GlobalLogIndex(self.applied))
                yield [(b"%06d" % key, bytes(self.size)) for key in keys], position
        finally:
            self.open -= 1


def many(count: int, machine: Callable[[], Machine]) -> Backend:
    backend = Backend(dict.fromkeys(range(count), 0))
    for partition, worker in backend.workers.items():
        worker.machine = backend.machines[partition] = machine()
    return backend


async def test_what_is_read_to_open_them_is_held_until_its_turn_and_no_longer() -> None:
    """The first chunks of all partitions were held to the end, for an hour, perhaps."""
    backend = many(40, lambda: Keys(100, 1_000))
    views = Views(backend, views_max=1)
    frames = scan(backend, views, *range(40))
    found, held = [], []
    async for header, _ in frames:
        found.append((header["partition"], header["count"]))
        held.append(views.held_bytes)
    assert held[0] == 39 * FIRST_KEYS * 1_006
    assert held == sorted(held, reverse=True)
    assert held[-1] == 0
    assert found == [(p, count) for p in range(40) for count in (FIRST_KEYS, 100 - FIRST_KEYS)]
    backend.check_nothing_is_left()


async def test_large_values_at_the_beginning_of_many_partitions_are_refused() -> None:
    """They were gigabytes that nothing counted."""
    backend = many(100, lambda: Keys(1, 1 << 20))
    views = Views(backend, views_max=2, bytes_max=10 << 20)
    with pytest.raises(RecordTooLarge, match="name fewer") as caught:
        await anext(scan(backend, views, *range(100)))
    assert (caught.value.limit, caught.value.size) == (10 << 20, 10 * ((1 << 20) + 6))
    assert not caught.value.retryable, "it is as much the next time"
    assert (views.open, views.held_bytes) == (0, 0)
    backend.check_nothing_is_left()


async def test_what_others_hold_is_waited_for() -> None:
    backend = many(34, lambda: Keys(1, 500_000))
    views = Views(backend, views_max=2, bytes_max=10 << 20)
    other = scan(backend, views, *range(17))
    await anext(other)
    with pytest.raises(QuotaExceeded, match="ask again") as caught:
        await anext(scan(backend, views, *range(17, 34)))
    assert caught.value.retryable
    await other.aclose()
    assert len(await collect(scan(backend, views, *range(17, 34)))) == 17
    backend.check_nothing_is_left()


async def test_values_of_a_page_are_read_of_as_many_partitions_as_there_may_be() -> None:
    """However often it was asked for."""
    backend = many(1_024, lambda: Keys(16, 4_096))
    views = Views(backend, views_max=1, bytes_max=64 << 20)
    assert len({p for p, _ in await collect(scan(backend, views, *range(1_024)))}) == 1_024
    assert {count for worker in backend.workers.values() for count in worker.machine.chunks} == {1}
    backend.check_nothing_is_left()


async def test_a_slow_view_of_many_partitions_keeps_out_none_of_few() -> None:
    """They were told to name fewer."""
    backend = many(40, lambda: Keys(FIRST_KEYS, 16_000))
    views = Views(backend, views_max=16, bytes_max=10 << 20)
    slow = scan(backend, views, *range(40))
    await anext(slow)
    few = [scan(backend, views, *range(FEW)) for _ in range(15)]
    for frames in few:
        await anext(frames)
    assert views.held_bytes > 64 << 20
    for frames in (slow, *few):
        await frames.aclose()
    assert (views.open, views.held_bytes) == (0, 0)
    backend.check_nothing_is_left()


async def test_large_values_of_few_partitions_are_read_by_one_at_a_time() -> None:
    backend = many(2 * FEW, lambda: Keys(1, 3 << 20))
    views = Views(backend, views_max=2)
    alone = scan(backend, views, *range(FEW))
    await anext(alone)
    with pytest.raises(QuotaExceeded, match="ask again"):
        await anext(scan(backend, views, *range(FEW, 2 * FEW)))
    await alone.aclose()
    assert len(await collect(scan(backend, views, *range(FEW, 2 * FEW)))) == FEW
    assert (views.open, views.held_bytes) == (0, 0)
    backend.check_nothing_is_left()


@pytest.mark.parametrize(
    ("partitions", "keys", "size", "counts"),
    [
        (FEW, 3_500, 10, [1_000, 1_000, 1_000, 500]),
        (FEW + 1, 3_500, 10, [16, 992, 992, 992, 508]),
        (FEW + 1, 30, 100_000, [10, 6, 10, 4]),
        (FEW + 1, 16, 10, [16]),
    ],
)
async def test_all_keys_are_there_however_few_are_read_at_first(
    partitions: int, keys: int, size: int, counts: list[int]
) -> None:
    backend = many(partitions, lambda: Keys(keys, size))
    found, told = dict[int, list[bytes]](), dict[int, list[int]]()
    async for header, body in scan(backend, Views(backend, views_max=1), *range(partitions)):
        block = RecordBlock.parse(header["count"], *map(bytes, body))
        keys_there = block.keys()
        found.setdefault(header["partition"], []).extend(key or b"" for key in keys_there)
        told.setdefault(header["partition"], []).append(header["count"])
    assert list(found.values()) == [[b"%06d" % number for number in range(keys)]] * partitions
    assert list(told.values()) == [counts] * partitions
    backend.check_nothing_is_left()


class Unclosable(Keys):
    """A user's."""

    def scan(self, **asked: Any) -> Iterator[Any]:
        try:
            yield from super().scan(**asked)
        except GeneratorExit:
            raise RuntimeError("no") from None


@pytest.mark.parametrize("partitions", [4, 40])
async def test_a_scan_that_cannot_be_closed_keeps_those_of_no_others_open(partitions: int) -> None:
    """Found by reading: what they held was held for good, until no view of many partitions found room."""
    made = iter([Keys(100, 1_000), Unclosable(100, 1_000)])
    backend = many(partitions, lambda: next(made, Keys(100, 1_000)))
    views = Views(backend, views_max=1)
    frames = scan(backend, views, *range(partitions))
    await anext(frames)
    await frames.aclose()
    assert (views.open, views.held_bytes) == (0, 0)
    backend.check_nothing_is_left()


async def test_nor_does_it_keep_its_worker_from_going_on_where_nobody_waits_for_it_any_more() -> None:
    backend = many(2, lambda: Unclosable(100, 1_000))
    for each in backend.logs.values():
        each.committed_index = 5
    task = asyncio.ensure_future(anext(scan(backend, Views(backend, views_max=1), 0, 1)))
    await asyncio.sleep(0)
    worker = backend.workers[0]
    stop = worker.stops.pop()  # a thread is at it
    view = stop.capture(worker.machine)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    stop.taken(view)  # as the worker does, which applies behind it
    assert worker.machine.open == 0
