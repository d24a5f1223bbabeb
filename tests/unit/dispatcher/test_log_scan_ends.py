"""A scan that ends at a horizon which its own partitions do not reach, or in front of what nobody has."""

from __future__ import annotations

import pytest

from logboom.errors import CorruptData, Unavailable
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


def told(client: Client) -> tuple[int, int, int]:
    (end,) = client.ends
    assert isinstance(end, CorruptData)
    return int(end.message.split()[1].rstrip(":")), end.first_index, end.last_index


@pytest.mark.parametrize("level", [Level.DURABLE, Level.APPLIED])
@pytest.mark.parametrize("through", [0, 3, 5])
async def test_in_front_of_a_batch_that_nobody_has_it_ends_as_a_tail_does(through: int, level: Level) -> None:
    """Found by review: it stood still without a word, all partitions for one, until an operator declared that void."""
    world, client = World(3), Client()
    world.append(0, [b"1"])
    world.append(1, [b"2"])
    world.applied = {0: 2, 1: 2, 2: 2}
    scan = begin(world, client, follow=not through, through=through, level=level, credit=1)
    await settle(world)
    assert client.ends == []
    world.append(0, [b"3", b"4"], is_lost=True)
    world.append(1, [b"5"])
    world.append(2, [b"6"])
    world.applied |= {1: 5, 2: 5}
    await settle(world)
    assert globals_of(client) == [1]
    assert client.ends == [], "what is safe comes first"
    scan.add_credit(1 << 20)
    await settle(world)
    assert globals_of(client) == [1, 2]
    assert told(client) == (0, 2, 3)
    assert not any(world.wakers.values())
    assert world.read_budget.nbytes == 0


@pytest.mark.parametrize("level", [Level.DURABLE, Level.APPLIED])
@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("start", [{"start_global": 3}, {"start_time_ms": 5000}])
async def test_so_it_does_where_it_begins_behind_it(start: dict[str, int], others: int, level: Level) -> None:
    """Only what comes next was looked at: of the one that is lost nothing came any more, and so no word of it."""
    world, client = World(2), Client()
    world.append(0, [b"1"])
    world.append(0, [b"2"], is_lost=True)
    for _ in range(others):
        world.append(1, [b"3"], at_ms=6000)
    world.applied = {0: 1, 1: 2 + others}
    begin(world, client, follow=True, level=level, **start)
    await settle(world)
    assert (globals_of(client), told(client)) == ([], (0, 2, 2))
    assert not any(world.wakers.values())
    assert world.read_budget.nbytes == 0


async def test_a_time_to_come_is_not_waited_for_behind_it() -> None:
    world, client = World(2), Client()
    world.append(0, [b"1"])
    begin(world, client, follow=True, start_time_ms=5000)
    await settle(world)
    assert client.ends == []
    world.append(0, [b"2"], is_lost=True)
    await settle(world)
    assert (globals_of(client), told(client)) == ([], (0, 2, 2))


@pytest.mark.parametrize("through", [0, 3])
async def test_a_state_that_comes_to_it_holds_up_what_is_behind_it_alone(through: int) -> None:
    """What others have between what it had applied last and that was not given; a scan up to there waited for good."""
    world, client = World(2), Client()
    world.append(0, [b"1"])
    world.append(0, [b"2"])
    world.append(1, [b"3"])
    world.append(0, [b"4"], is_lost=True)
    world.applied = {0: 1, 1: 4}
    begin(world, client, follow=not through, through=through, level=Level.APPLIED)
    await settle(world)
    assert (globals_of(client), client.ends) == ([1], []), "it has still to apply the second one"
    world.applied[0] = 2
    world.wake(0)
    await settle(world)
    assert globals_of(client) == [1, 2, 3]
    assert client.ends == [None] if through else told(client) == (0, 3, 3)


async def test_where_it_ends_in_front_of_that_it_just_ends() -> None:
    world, client = World(2), Client()
    world.append(0, [b"1"])
    world.append(0, [b"2"], is_lost=True)
    begin(world, client)
    await settle(world)
    assert (globals_of(client), client.ends) == ([1], [None])


@pytest.mark.parametrize("through", [0, 3])
async def test_what_is_only_not_synced_yet_is_waited_for(through: int) -> None:
    """Also in front of what nobody has."""
    world, client = World(2), Client()
    world.append(0, [b"1"])
    world.append(1, [b"2"], sync=False)
    world.append(0, [b"3"], is_lost=True)
    begin(world, client, follow=not through, through=through)
    await settle(world)
    assert (globals_of(client), client.ends) == ([1], [])
    world.sync(1)
    world.wake(1)
    await settle(world)
    assert globals_of(client) == [1, 2]
    assert told(client) == (0, 2, 2)


async def test_what_a_state_lacks_that_the_log_has_ends_only_who_waits_for_the_state() -> None:
    world, ends = World(1), []
    world.append(0, [b"1"])
    batch = world.append(0, [b"2"])
    world.applied = {0: 1}
    world.hole_of = lambda p: world.logs[p].place_of(batch.last_index, batch.digest)  # type: ignore[method-assign]
    for level in (Level.DURABLE, Level.APPLIED):
        client = Client()
        scan = begin(world, client, follow=True, level=level)
        await settle(world)
        ends.append((globals_of(client), [type(end) for end in client.ends]))
        scan.close()
    assert ends == [([1, 2], []), ([1], [CorruptData])]


@pytest.mark.parametrize("level", [Level.DURABLE, Level.APPLIED])
@pytest.mark.parametrize("at_ms", [0, 5000])
async def test_what_is_void_and_lacking_in_this_nodes_state_alone_another_goes_on_behind(
    at_ms: int, level: Level
) -> None:
    """Its client was told that no node has it, as a word that is final, where all others step over it."""
    world, client = World(2), Client()
    world.append(0, [b"1"])
    batch = world.append(0, [b"2"], is_lost=True)
    world.logs[0].excuse(batch.last_index)
    world.append(0, [b"3"], at_ms=6000)
    world.applied = {0: 1, 1: 3}
    world.lost = world.voids = {batch.digest}
    world.hole_of = lambda p: world.logs[p].place_of(batch.last_index, batch.digest)  # type: ignore[method-assign]
    begin(world, client, follow=True, level=level, start_time_ms=at_ms)
    await settle(world)
    (end,) = client.ends
    assert isinstance(end, Unavailable)
    assert end.retryable
    assert end.fields["retry_after"] > 0
    assert world.damages == []
    assert not any(world.wakers.values())
