"""A node that hears of no leader: for how long, and who is told."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.pipeline.freshness import Freshness
from dispatcher.pipeline.leaderless import ELECTIONS, Leaderless
from logboom.errors import Unavailable
from logboom.settings import RaftSettings
from logboom.types import NodeId

LEADER = NodeId("n2")
LONG_S = ELECTIONS * RaftSettings().election_patience_ms / 1000


class World:
    def __init__(self) -> None:
        self.now = 100.0
        clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        self.leaderless = Leaderless(clock, RaftSettings())

    def later(self, seconds: float, leader: NodeId | None = None, **seen: int) -> None:
        self.now += seconds
        self.leaderless.notice(leader, **seen)

    def steadily(self, seconds: float, leader: NodeId | None = None, **seen: int) -> None:
        for _ in range(10):
            self.later(seconds / 10, leader, **seen)


@pytest.fixture
def world() -> World:
    return World()


def test_an_election_is_borne_and_what_is_longer_is_not(world: World) -> None:
    world.later(0.0, LEADER)
    world.later(1000.0, LEADER)
    assert world.leaderless.ms == 0
    world.later(0.0)
    assert world.leaderless.ms > 0
    world.later(LONG_S - 0.1)
    world.leaderless.check()
    world.later(0.2)
    assert world.leaderless.ms == pytest.approx(1000 * (LONG_S + 0.1), abs=2)
    with pytest.raises(Unavailable, match="ask another") as caught:
        world.leaderless.check()
    assert caught.value.retryable
    assert caught.value.outcome == "not_applied"
    world.later(0.0, LEADER)
    world.leaderless.check()
    assert world.leaderless.ms == 0


def test_with_patience_as_with_elections(world: World) -> None:
    slow = Leaderless(SimpleNamespace(monotonic=lambda: world.now), RaftSettings(election_max_ms=8_000))  # type: ignore[arg-type]
    slow.notice(None)
    world.now += 8.0 * ELECTIONS - 0.1
    slow.check()


def test_a_leader_of_whom_nothing_comes_is_as_good_as_none(world: World) -> None:
    """A node that was to be given a snapshot, or whose disk hung, kept whoever waited until his deadline."""
    world.later(0.0, LEADER, committed=5, applied=5)
    world.later(1000.0, LEADER, committed=9, applied=5)
    assert world.leaderless.ms == 0
    world.steadily(LONG_S - 0.1, LEADER, committed=10, applied=6)
    world.later(0.1, LEADER, committed=10, applied=7)
    world.steadily(LONG_S - 0.1, LEADER, committed=11, applied=7)
    assert world.leaderless.ms == 0, "it is behind, and moves"
    world.later(0.2, LEADER, committed=12, applied=7)
    with pytest.raises(Unavailable, match="come by nothing of what is committed for 2 s, and others may have"):
        world.leaderless.check()
    assert world.leaderless.for_long
    assert world.leaderless.ms >= 1000 * LONG_S
    world.later(0.1, LEADER, committed=12, applied=8)
    assert world.leaderless.ms == 0
    world.steadily(2 * LONG_S, LEADER, committed=12, applied=12)
    world.leaderless.check()
    assert world.leaderless.ms == 0, "it has all that there is"


def test_a_node_that_stood_still_itself_is_given_as_long_again(world: World) -> None:
    """It was stopped for ten seconds, and sent everybody away at once."""
    world.later(0.0, LEADER, committed=9, applied=5)
    world.later(10.0, LEADER, committed=9, applied=5)
    assert world.leaderless.ms == 0
    world.steadily(LONG_S - 0.1, LEADER, committed=20, applied=5)
    assert not world.leaderless.for_long
    world.later(0.2, LEADER, committed=20, applied=5)
    assert world.leaderless.for_long


def test_whoever_comes_by_nothing_and_loses_its_leader_bears_an_election_too(world: World) -> None:
    world.steadily(2 * LONG_S, LEADER, committed=9, applied=5)
    assert world.leaderless.for_long
    world.later(0.1, committed=9, applied=5)
    assert world.leaderless.ms == 1
    world.steadily(LONG_S - 0.1, committed=9, applied=5)
    assert not world.leaderless.for_long
    world.later(0.2, committed=9, applied=5)
    with pytest.raises(Unavailable, match="heard of no leader for 2 s"):
        world.leaderless.check()


async def test_whoever_waits_is_told_when_it_has_come_to_that(world: World) -> None:
    loop = asyncio.get_running_loop()
    waits, over, left = (loop.create_future() for _ in range(3))
    over.set_result(1)
    world.later(0.0)
    with world.leaderless.ends(waits), world.leaderless.ends(over):
        with world.leaderless.ends(left):
            world.later(LONG_S / 2)
        assert not waits.done()
        world.later(LONG_S)
    assert not left.done()
    assert over.result() == 1
    with pytest.raises(Unavailable, match="ask another"):
        await waits


async def test_they_are_told_in_the_order_in_which_they_came(world: World) -> None:
    """Not by where they lie in memory: a seed of the simulator was another run behind another one."""
    loop = asyncio.get_running_loop()
    waits, told = [loop.create_future() for _ in range(100)], list[tuple[int, type]]()
    random.Random(1).shuffle(waits)
    world.later(0.0)
    with ExitStack() as all_of_them:
        for number, each in enumerate(waits):
            each.add_done_callback(lambda done, number=number: told.append((number, type(done.exception()))))
            all_of_them.enter_context(world.leaderless.ends(each))
        world.later(LONG_S)
    await asyncio.sleep(0)
    assert told == [(number, Unavailable) for number in range(100)]


async def test_who_asks_how_much_is_committed_is_told_too(world: World) -> None:
    backend: Any = SimpleNamespace(
        node_id="n1",
        clock=SimpleNamespace(monotonic=lambda: world.now),
        raft=SimpleNamespace(engine=SimpleNamespace(leader=None)),
    )
    fresh = Freshness(backend, check=world.leaderless.check)
    world.later(0.0)
    asked = asyncio.ensure_future(fresh.recent(1.0, world.now + 60.0))
    await asyncio.sleep(0)
    assert not asked.done()
    world.later(LONG_S)
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable, match="ask another"):
            await asked
    await fresh.close()
