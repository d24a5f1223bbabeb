"""A barrier over some of several partitions, at a node that has just started: it needs only those that it needs."""

from __future__ import annotations

from typing import Any

import pytest

from logboom.errors import Unavailable
from logboom.types import PartitionId
from logboom.wire import Kind
from tests.unit.dispatcher.barrier_desk import A, B
from tests.unit.dispatcher.waits_world import World


def recovering(*hidden: PartitionId) -> World:
    world: Any = World()
    world.recovered = lambda partitions: not set(partitions) & set(hidden)
    world.apply(A, 5)
    return world  # type: ignore[no-any-return]


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("state", ["running", "paused", "damaged"])
def test_what_is_there_already_is_enough(state: str, *, patient: bool) -> None:
    world = recovering(B)
    world.apply(B, 0, state=state)
    world.ask(Kind.BARRIER, {"targets": [[A, 5], [B, 5]], "mode": "any", "wait_blocked": patient})
    [(_, kind, header, _)] = world.sent
    assert kind is Kind.REACHED
    assert [row[0] for row in header["watermarks"]] == [A], "where it is may be less than what was shown before"


def test_one_that_stands_still_is_not_waited_for() -> None:
    world = recovering(B)
    world.apply(B, 0, state="paused")
    world.ask(Kind.BARRIER, {"targets": [[A, 7], [B, 5]], "mode": 1})
    assert not world.sent
    world.apply(A, 7)
    assert [kind for _, kind, *_ in world.sent] == [Kind.REACHED]


@pytest.mark.parametrize(
    ("state", "header"),
    [
        ("running", {"mode": "any"}),
        ("paused", {"mode": "any", "wait_blocked": True}),
        ("paused", {"mode": 2}),
        ("paused", {"mode": "any", "level": "durable"}),
        ("paused", {}),
    ],
)
def test_one_that_may_get_there_first_or_is_needed_is(state: str, header: dict[str, Any]) -> None:
    world = recovering(B)
    world.apply(B, 0, state=state)
    with pytest.raises(Unavailable, match="still recovering"):
        world.ask(Kind.BARRIER, {"targets": [[A, 7], [B, 5]], **header})
    assert not world.sent
