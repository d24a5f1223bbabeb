"""Who follows thousands of logs: what a batch in one of them costs, and that none is missed for it."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.pipeline.backend import Backend
from dispatcher.reading.lately import Lately
from logboom.types import GlobalLogIndex, Level, PartitionId
from tests.unit.dispatcher.log_scan_world import begin, globals_of, settle
from tests.unit.dispatcher.reading_world import Client, World


async def test_a_batch_is_looked_for_where_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of ten thousand it was, for every scan and commit: ten milliseconds of the loop, many times a second."""
    world, client, looked = World(30), Client(), list[int]()
    begin(world, client, follow=True)
    await settle(world)

    def place(partition: int, known: Any, position: int) -> Any:
        looked.append(partition)
        return known(position)

    for partition, log in world.logs.items():
        monkeypatch.setattr(log.chunks, "place", partial(place, partition, log.chunks.place))
    for partition in (3, 3, 17):
        world.append(partition, [b"x"])
        await settle(world)
    assert globals_of(client) == [1, 2, 3]
    assert set(looked) == {3, 17}


def test_so_is_what_is_not_durable() -> None:
    looked = list[int]()

    class Log:
        def __init__(self, number: int) -> None:
            self.number = number

        @property
        def undurable_from(self) -> int | None:
            looked.append(self.number)
            return {1: 7, 2: None, 3: 5}[self.number]

    node: Any = SimpleNamespace(
        parent=SimpleNamespace(global_index=9), logs={p: Log(p) for p in range(9)}, _touched={1, 2}, _unsynced={2, 3}
    )
    assert Backend.safe_horizon(cast("Backend", node), cast(Any, {1, 2, 4}), Level.DURABLE) == (6, 1)
    assert sorted(looked) == [1, 2]
    assert Backend.safe_horizon(cast("Backend", node), cast(Any, range(9)), Level.DURABLE) == (4, 3)


@pytest.mark.parametrize("seed", range(5))
async def test_none_is_missed_however_many_come_at_once(seed: int) -> None:
    rng, world, client = random.Random(seed), World(6), Client()
    world.lately = Lately(4)
    for _ in range(rng.randrange(3)):
        world.append(rng.randrange(6), [b"before"])
    begin(world, client, follow=True)
    for _ in range(20):
        client.congested = rng.random() < 0.3
        for _ in range(rng.choice([1, 1, 2, 9])):
            world.append(rng.randrange(6), [b"x"], sync=rng.random() < 0.7)
        await settle(world)
    client.congested = False
    for partition in world.logs:
        world.append(partition, [b"last"])
    await settle(world)
    assert globals_of(client) == list(range(1, world.parent.global_index + 1))


def test_it_knows_of_the_last_so_many() -> None:
    lately, truth = Lately(8), dict[int, int]()
    assert lately.since(0, most=100) == set(), "nothing has come since the start"
    assert lately.since(41, most=100) is None, "it never goes back"
    rng = random.Random(1)
    for number in range(42, 142):
        truth[number] = rng.randrange(5)
        lately.ordered(GlobalLogIndex(number), PartitionId(truth[number]))
        for back in range(12):
            before, known = number - back, min(8, number - 41)
            found = lately.since(before, most=6)
            assert found == (None if back > min(known, 6) else {truth[n] for n in range(before + 1, number + 1)})
