"""Barriers of clients on a node that has heard of no leader for long: what it cannot see reached is sent to others."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.barriers.answers import SLICE
from dispatcher.sessions.sending_away import AWAY_S, SendingAway
from logboom.errors import BarrierTimeout
from logboom.wire import Kind
from tests.unit.dispatcher.barrier_desk import A, B
from tests.unit.dispatcher.waits_world import World

COMMITTED = 42
"""See World."""
BEYOND = {"targets": [[A, COMMITTED + 1]]}
MANY = 1_000_000


@pytest.fixture
def world() -> World:
    made = World()
    made.leaderless.for_long = True
    return made


def sent_away(world: World) -> list[int]:
    """Whoever was, and nothing is left of."""
    assert all(isinstance(error, BarrierTimeout) and "ask another" in str(error) for _, error in world.failed)
    assert all(error.fields["retry_after"] for _, error in world.failed)
    told = [number for number, _ in world.failed]
    world.failed.clear()
    return told


@pytest.mark.parametrize(
    "header",
    [
        BEYOND,
        {**BEYOND, "level": "ordered"},
        {**BEYOND, "level": "durable", "scope": "quorum"},
        {**BEYOND, "progress_ms": 20},
        {"targets": [[A, 1], [B, COMMITTED + 1]]},
        {"targets": [[A, COMMITTED + 1], [B, COMMITTED + 1]], "mode": "any"},
    ],
)
def test_what_lies_beyond_what_is_committed_here_is_asked_of_others_at_once(
    world: World, header: dict[str, Any]
) -> None:
    world.ask(Kind.BARRIER, header)
    [(_, error)] = world.failed
    assert isinstance(error, BarrierTimeout)
    assert error.behind
    assert {mark.partition_id for mark in error.watermarks} == {row[0] for row in header["targets"]}
    assert sent_away(world) == [1]
    assert (len(world.barriers), world.timers) == (0, [])
    world.barriers.expire(1000.0)
    assert not world.failed, "it is answered once"


@pytest.mark.parametrize(
    "header",
    [
        {"targets": [[A, COMMITTED]]},
        {"targets": [[A, 1], [B, COMMITTED + 1]], "mode": "any"},
    ],
)
def test_what_is_committed_here_is_waited_for_here(world: World, header: dict[str, Any]) -> None:
    world.ask(Kind.BARRIER, header)
    assert world.waits.send_away(MANY) == 0
    world.apply(A, COMMITTED)
    assert [kind for _, kind, _, _ in world.sent] == [Kind.REACHED]
    assert not world.failed


def test_who_has_no_time_to_ask_elsewhere_gets_all_of_it_here(world: World) -> None:
    world.now = 98.9
    world.ask(Kind.BARRIER, BEYOND)
    assert world.waits.send_away(MANY) == 0
    world.barriers.expire(99.9)
    assert not world.failed
    world.barriers.expire(100.0)
    [(_, error)] = world.failed
    assert "not reached in time" in str(error)


def test_what_others_would_say_has_a_moment_to_come(world: World) -> None:
    world.ask(Kind.BARRIER, {"targets": [[A, 1]], "scope": "quorum"})
    assert not world.failed
    world.waits.send_away(MANY)
    assert sent_away(world) == [1]


def test_whoever_waited_before_is_told_and_not_all_of_many_at_once(world: World) -> None:
    world.leaderless.for_long = False
    for number in range(1, 6):
        world.ask(Kind.BARRIER, BEYOND, number)
    world.ask(Kind.BARRIER, {"targets": [[A, 1]]}, 6)
    assert not world.failed
    assert world.waits.send_away(3) == 3
    assert sent_away(world) == [1, 2, 3]
    assert world.waits.send_away(MANY) == 2
    assert sent_away(world) == [4, 5]
    assert len(world.barriers) == 1


class Crowd:
    """So many wait."""

    def __init__(self, world: World, count: int) -> None:
        self.world, self.left, self.looks = world, count, 0

    def send_away(self, most: int) -> int:
        self.looks += 1
        told = min(most, self.left)
        self.left -= told
        return told


def test_a_node_looks_now_and_then_and_goes_on_soon_where_there_are_more(world: World) -> None:
    first, second, away = Crowd(world, SLICE + 7), Crowd(world, 9), SendingAway()
    away.look(1.0, world.leaderless, [first, second])
    assert (first.left, second.left) == (7, 9)
    away.look(1.02, world.leaderless, [first, second])
    assert (first.left, second.left) == (0, 0)
    looks = first.looks
    away.look(1.04, world.leaderless, [first, second])
    assert first.looks == looks
    away.look(1.02 + AWAY_S, world.leaderless, [first, second])
    assert first.looks == looks + 1
    world.leaderless.for_long = False
    away.look(9.0, world.leaderless, [first, second])
    assert first.looks == looks + 1
