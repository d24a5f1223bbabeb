"""To whom leadership is handed over."""

from __future__ import annotations

import pytest

from logboom.errors import Unavailable
from raftlog.members.transfer import BEHIND_MAX
from tests.unit.raftlog.transfer_world import LAST, NODES, Leader


def test_whoever_did_not_take_over_is_not_asked_first_again() -> None:
    """One that stands still holds all that an idle leader has: it alone was asked, until the time was up."""
    leader = Leader()
    for _ in range(4):
        leader.try_once()
    assert [type(error) for error in leader.told] == [Unavailable] * 4
    assert leader.asked == [NODES[1], NODES[2], NODES[1], NODES[2]]


def test_whoever_is_named_is_asked_however_often_it_did_not() -> None:
    leader = Leader()
    for _ in range(2):
        leader.try_once(NODES[2])
    assert leader.asked == [NODES[2], NODES[2]]


def test_of_several_the_first_that_can_is_asked() -> None:
    leader = Leader()
    leader.held[NODES[1]] = LAST - BEHIND_MAX - 1
    leader.try_once(among=(NODES[1], NODES[2]))
    assert leader.asked == [NODES[2]]


def test_of_several_the_first_that_did_not_take_over_has_others_before_it() -> None:
    leader = Leader()
    for _ in range(3):
        leader.try_once(among=(NODES[2], NODES[1]))
    assert leader.asked == [NODES[2], NODES[1], NODES[2]]


def test_who_is_asked_late_has_as_long_to_take_over_as_it_may_stand_still() -> None:
    """Its leader had led on for long, and admitted, when it woke within that time and deposed it."""
    leader = Leader()
    leader.held[NODES[2]] = LAST - 1
    leader.transfer.begin(NODES[2], leader.told.append)
    leader.now += 0.29
    leader.transfer.tick()
    leader.held[NODES[2]] = LAST
    leader.transfer.tick()
    assert leader.asked == [NODES[2]]
    leader.now += 0.29
    leader.transfer.tick()
    assert (leader.transfer.under_way, leader.told) == (True, [])
    leader.now += 0.02
    leader.transfer.tick()
    assert [type(error) for error in leader.told] == [Unavailable]


def test_who_does_not_catch_up_in_time_is_not_asked() -> None:
    leader = Leader()
    leader.held[NODES[2]] = LAST - 1
    leader.try_once(NODES[2])
    assert ([type(error) for error in leader.told], leader.asked) == ([Unavailable], [])


def test_nobody_else_is_asked_than_may_be() -> None:
    leader = Leader()
    leader.held[NODES[1]] = LAST - BEHIND_MAX - 1
    with pytest.raises(Unavailable, match="n2 would have to"):
        leader.try_once(among=(NODES[1],))
    assert not leader.transfer.under_way
