"""Views that wait to be as new as they have to be: of all that there are then, and they keep nobody out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.reading.views import Views
from logboom.errors import PartitionDestroyed, QuotaExceeded, Unavailable
from logboom.types import PartitionId
from tests.unit.dispatcher.views_world import Backend, collect, scan


async def waits_for_freshness(backend: Backend, frames: Any) -> Any:
    """A view that has been begun, and is not as new yet as it has to be."""
    first = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    assert not first.done()
    assert backend.used == 0, "whoever waits holds no machine"
    return first


async def test_one_that_is_created_before_the_view_is_taken_is_in_a_view_of_all() -> None:
    """Of a request over an old partition and a new one it showed half."""
    backend = Backend({0: 3, 1: 3})
    backend.fresh.clear()
    views = Views(backend, views_max=1)
    header = {"read": "at_least", "at_least": 7}
    frames = views.scan([PartitionId(0), PartitionId(1)], header, 5.0, anew=lambda: sorted(backend.workers))
    first = await waits_for_freshness(backend, frames)
    backend.create(9)
    backend.fresh.set()
    while not first.done():
        await asyncio.sleep(0)
        for worker in backend.workers.values():
            worker.apply(3)
    assert {(await first)[0]["partition"], *(p for p, _ in await collect(frames))} == {0, 1, 9}
    backend.check_nothing_is_left()


async def test_one_that_is_destroyed_before_the_view_is_taken_ends_no_view_of_all() -> None:
    backend, header = Backend({0: 0, 1: 0, 2: 0}), {"read": "at_least", "at_least": 7}
    views = Views(backend, views_max=1)

    async def wait_applied(partition: int, *_: object, **__: object) -> None:
        if partition < 2:
            backend.destroy(partition)
            raise backend.missing(partition)

    backend.wait_applied = wait_applied  # type: ignore[method-assign]
    with pytest.raises(PartitionDestroyed):
        await anext(views.scan([PartitionId(0), PartitionId(2)], header, 5.0))
    of_all = views.scan([PartitionId(1), PartitionId(2)], header, 5.0, anew=lambda: sorted(backend.workers))
    assert {p for p, _ in await collect(of_all)} == {2}
    backend.check_nothing_is_left()


@pytest.mark.parametrize(("kind", "refused"), [("kv", True), ("log", False)])
async def test_whoever_names_all_is_told_of_one_that_was_created_since(kind: str, *, refused: bool) -> None:
    backend = Backend({0: 0, 1: 0})
    backend.fresh.clear()
    header = {"read": "at_least", "at_least": 7, "of_all": True}
    frames = Views(backend, views_max=1).scan([PartitionId(0), PartitionId(1)], header, 5.0)
    first = await waits_for_freshness(backend, frames)
    backend.create(9, kind)
    backend.fresh.set()
    if refused:
        with pytest.raises(Unavailable, match="partition 9 was created since") as caught:
            await first
        assert caught.value.retryable
    else:
        assert {(await first)[0]["partition"], *(p for p, _ in await collect(frames))} == {0, 1}
    backend.check_nothing_is_left()


async def test_those_that_wait_to_be_as_new_as_they_have_to_be_keep_nobody_out() -> None:
    """Sixteen that named an index far ahead held all places, and their machines, for ten minutes."""
    backend = Backend({0: 0, 1: 0})
    backend.fresh.clear()
    views = Views(backend, views_max=1)
    late = [views.scan([PartitionId(0)], {"read": "at_least", "at_least": 7}, 5.0) for _ in range(3)]
    waiting = [await waits_for_freshness(backend, frames) for frames in late]
    other = scan(backend, views, 1)
    await anext(other)
    backend.fresh.set()
    for first in waiting:
        with pytest.raises(QuotaExceeded):
            await first
    await other.aclose()
    backend.check_nothing_is_left()
    assert views.open == 0
