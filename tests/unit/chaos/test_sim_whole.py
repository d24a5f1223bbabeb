"""Who asks for all gets all; a scan is told that something is gone only if it is, and comes to an end of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.history import History
from chaos.sim.readers import LogReaders
from chaos.sim.seen import Seen
from chaos.sim.whole import left_out, missed
from logboom.errors import IndexCompacted

BEGUN = [0, 1]


@pytest.mark.parametrize(
    ("target", "given", "doomed", "lacking"),
    [
        (7, [0, 1, 5], set(), []),
        (6, [0, 1], set(), []),  # created behind it
        (7, [0, 1], set(), [5]),
        (7, [0, 1], {5}, []),
        (0, [1, 5], set(), [0]),
    ],
)
def test_partitions_that_were_there_when_an_index_was_ordered(
    target: int, given: list[int], doomed: set[int], lacking: list[int]
) -> None:
    assert left_out(target, given, begun=BEGUN, created_at={5: 6}, doomed=doomed) == lacking
    seen = Seen(History(lambda: 0), {}, doomed=doomed, created_at={5: 6})
    seen.all_of("a barrier", target, given)
    assert not seen.last_word(), "it may be about to be opened, with nothing in it"
    seen.all_of("a barrier", target, given)
    # Ordered before, and acknowledged after the answer.
    seen.history.operations += [SimpleNamespace(partition=5, global_index=7)]  # type: ignore[list-item]
    assert bool(seen.last_word()) is (5 in lacking)  # of a run of which nothing is known
    assert len(seen.last_word()) <= 1, "each is said once"


def test_what_was_acknowledged_up_to_where_a_scan_went() -> None:
    due = [(1.0, 0, "a", 4), (2.0, 1, "b", 6), (3.0, 0, "c", 9)]
    assert missed(due, {4, 6}, 8, set()) == []
    assert missed(due, {4}, 6, set()) == [due[1]]
    assert missed(due, {4}, 6, {1}) == []


def batch(at: int, index: int) -> Any:
    records = SimpleNamespace(data=b"x")
    return SimpleNamespace(partition_id=0, global_index=at, first_index=index, position=index + 1, records=records)


async def scanned(
    *given: int, added: int = 3, gone: int = 0, newest: int = 0, seed: int = 1, paced: bool = False
) -> list[tuple[str, str]]:
    """What is wrong with scans that give batches at these indices, where one at 3 was acknowledged."""
    parameters: Any = SimpleNamespace(kv_partitions=[0], log_partitions=[], seed=seed, blackout=None, paced=paced)
    seen = Seen(History(lambda: 0), {})
    seen.told.add(0.0, 0, "a", added)
    seen.places.newest = newest

    async def scan_log(_partitions: list[int] | None, **_: Any) -> AsyncIterator[Any]:
        for index, at in enumerate(given, 1):
            yield batch(at, index)
        if gone:
            raise IndexCompacted("gone", first=gone)

    readers = LogReaders(SimpleNamespace(scan_log=scan_log), parameters, seen, random.Random(seed))  # type: ignore[arg-type]
    readers._rng = SimpleNamespace(  # type: ignore[assignment]
        choice=lambda each: readers._scan if readers._scan in each else each[0],
        random=lambda: 1.0,
        sample=random.Random(1).sample,
        randint=random.Random(1).randint,
    )
    await readers.look()
    return [(invariant, story) for invariant, story in seen.problems]


async def test_a_scan_has_what_was_acknowledged() -> None:
    assert await scanned(2, 3, 4, newest=1) == []
    assert await scanned(1, 2, newest=1) == []  # the node was not that far
    assert await scanned(2, 4) == []  # from the beginning, wherever that is
    assert [each[0] for each in await scanned(2, 4, newest=1)] == ["ScanComplete"]


@pytest.mark.parametrize(("first", "right"), [(6, True), (5, False), (2, False)])
async def test_nothing_is_gone_that_comes_next(first: int, *, right: bool) -> None:
    found = [each for each in await scanned(3, 4, gone=first) if "has all in front of 5" in each[1]]
    assert bool(found) is not right


async def test_some_scans_come_to_an_end_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    lasting = list[None]()
    timeout = asyncio.timeout

    def limited(seconds: float) -> asyncio.Timeout:
        limit = timeout(seconds)
        reschedule = limit.reschedule

        def rescheduled(when: float | None) -> None:
            lasting.extend([None] if when is None else [])
            reschedule(when)

        limit.reschedule = rescheduled  # type: ignore[method-assign]
        return limit

    monkeypatch.setattr(asyncio, "timeout", limited)
    for seed in range(30):
        await scanned(3, newest=5, seed=seed)
    assert 3 < len(lasting) < 27
    del lasting[:]
    for seed in range(30):
        await scanned(3, newest=5, seed=seed, paced=True)
        await scanned(3, newest=0, seed=seed)
    assert not lasting
