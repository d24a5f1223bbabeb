"""A scan whose beginning this node does not know yet, since it is behind."""

from __future__ import annotations

import pytest

from logboom.errors import IndexCompacted
from partitions.log.opening import LogBase
from tests.unit.dispatcher.log_scan_world import begin, globals_of, mixed, settle
from tests.unit.dispatcher.reading_world import Client, World


@pytest.mark.parametrize("through", [0, 3, 4])
async def test_at_a_node_that_is_behind_nothing_comes_that_is_in_front_of_the_start(through: int) -> None:
    """A scan that goes on at such a node gave what had been given already."""
    world, client = World(2), Client()
    world.append(0, [b"1"])
    scan = begin(world, client, follow=not through, through=through, start_global=4)
    for partition in (1, 0, 1):
        world.append(partition, [b"later"])
        await settle(world)
    scan.close()
    assert globals_of(client) == ([] if through == 3 else [4])
    assert client.ends == ([None] if through else [])
    assert not any(world.wakers.values())


@pytest.mark.parametrize("through", [1, 2])
async def test_a_beginning_behind_the_end_is_not_waited_for(through: int) -> None:
    world, client = World(2), Client()
    world.append(0, [b"1"])
    begin(world, client, through=through, start_global=100)
    await settle(world)
    assert client.ends == ([None] if through == 1 else [])
    world.append(1, [b"2"])
    await settle(world)
    assert (client.ends, globals_of(client)) == ([None], [])


async def test_it_holds_nothing_back_in_front_of_its_beginning_once_that_is_known() -> None:
    """Nor in a partition of which nothing comes."""
    world, client = World(2), Client()
    for _ in range(5):
        world.append(1, [b"before"])
    world.sync(1)
    scan = begin(world, client, follow=True, start_global=20)

    def held_back() -> int:
        log = world.logs[1]
        return log.compaction_point(log.durable_index, None, outdated_to=log.durable_index, now=world.clock.monotonic())

    assert held_back() == 1
    for _ in range(30):
        world.append(0, [b"later"])
    world.sync(0)
    await settle(world)
    assert globals_of(client)[0] == 20
    assert held_back() > 1
    scan.close()


async def test_a_beginning_that_is_gone_when_it_comes_is_said_to_be() -> None:
    world, client = World(2), Client()
    mixed(world, 2)
    begin(world, client, follow=True, start_global=4)
    mixed(world, 60)
    log, gone = world.logs[0], world.batches[0][len(world.batches[0]) * 2 // 3]
    base = LogBase(gone.last_index, gone.digest, 1)  # type: ignore[arg-type]
    log.save_places(base.last_index)()
    log.compact(base.last_index + 1)()
    world.wake(0)
    await settle(world)
    assert [type(error) for error in client.ends] == [IndexCompacted]
