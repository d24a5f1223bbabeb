"""A scan that ends at a horizon which its own partitions do not reach."""

from __future__ import annotations

from logboom.types import Level
from tests.unit.dispatcher.log_scan_world import begin, globals_of, settle
from tests.unit.dispatcher.reading_world import ORDERED, Client, World


async def test_a_horizon_that_only_others_partitions_reach_ends_the_scan() -> None:
    """Nothing of its own moved any more: it waited for ever, where it had gone on at a node that was behind."""
    world, client = World(2), Client()
    world.append(0, [b"1"])
    begin(world, client, partitions=[0], through=2)
    await settle(world)
    assert globals_of(client) == [1]
    assert client.ends == []
    world.append(1, [b"2"])
    await settle(world)
    assert client.ends == [None]
    assert not any(world.wakers.values())


async def test_a_horizon_that_is_committed_and_does_not_show_yet_ends_the_scan() -> None:
    """All was committed when it went on here, and idle partitions' watermarks follow without a word: it stood still."""
    world, client = World(2), Client()
    world.append(0, [b"1"])
    world.append(1, [b"2"])
    world.applied = {0: 1, 1: 2}
    begin(world, client, partitions=[0], through=2, level=Level.APPLIED)
    await settle(world)
    assert globals_of(client) == [1]
    assert client.ends == []
    world.applied[0] = 2
    world.wake(ORDERED)
    await settle(world)
    assert client.ends == [None]
    assert not any(world.wakers.values())
