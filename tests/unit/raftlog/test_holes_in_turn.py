"""Whom a node asks for what it lacks, where one of two others never says anything of some of it."""

from __future__ import annotations

import pytest

from raftlog.links.lacks import Lack
from raftlog.repair.repair import ASK_AGAIN_S, ROUTES_PER_FETCH
from tests.unit.raftlog.holes_world import A, B, World, asked_for


@pytest.mark.parametrize("count", [1, ROUTES_PER_FETCH, 200])
def test_who_says_nothing_leaves_those_their_turn_who_could_not_say(count: int) -> None:
    """The thread of A that reads hangs; the disk of B gives what it is asked for a second time."""
    world, told = World(), set[int]()
    world.misses(*range(100, 100 + count), committed=True)
    for _ in range(8):
        world.repair.work()
        if world.sent[-1][0] == B:
            _answer(world, told)
        world.now += ASK_AGAIN_S
    assert 100 in world.payloads.held


def _answer(world: World, told: set[int]) -> None:
    for index in asked_for(world):
        if index not in told:
            world.say(B, Lack.UNKNOWN, index=index)
        elif index == 100 or index - 1 in world.payloads.held:
            world.payloads.held.add(index)
    told.update(asked_for(world))


def test_who_gives_what_cannot_be_taken_leaves_others_their_turn() -> None:
    """A lacks what that follows. To give is no answer, so it had never said anything of it."""
    world, asked_b = World(), 0
    world.misses(100, 101, committed=True)
    for _ in range(8):
        world.repair.work()
        if world.sent[-1][0] == A:
            world.say(A, Lack.ABSENT, index=100)
        else:
            asked_b += 1
            world.say(B, Lack.DAMAGED, index=101)
            if asked_b == 1:
                world.say(B, Lack.UNKNOWN, index=100)
            else:
                world.payloads.held.add(100)
        world.now += ASK_AGAIN_S
    assert 100 in world.payloads.held
