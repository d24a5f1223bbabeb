"""When the parent log has its turn: once however often it is asked for, later if there is need, never at the end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.turns import Turns


class Desk:
    """Turns and group syncs that are counted; ``begin`` on the loop of the test."""

    def __init__(self, *, every_s: float = 3600.0) -> None:
        self.turns_had = self.kicks = self.rests = 0
        group: Any = SimpleNamespace(kick=self._kick, rest=self._rest)
        self.it = Turns(self._turn, group, every_s=every_s)
        self.it.begin()

    def _turn(self) -> None:
        self.turns_had += self.it.due
        self.it.take()

    def _kick(self) -> None:
        self.kicks += 1

    def _rest(self) -> None:
        self.rests += 1


async def rounds(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_turn_however_often_it_is_asked_for_and_none_that_nobody_has_asked_for() -> None:
    desk = Desk()
    assert not desk.it.due
    for _ in range(5):
        desk.it.poke()
    await rounds()
    assert desk.turns_had == 1
    desk.it.poke()
    await rounds()
    assert desk.turns_had == 2


async def test_none_is_had_any_more_once_it_is_closed() -> None:
    desk = Desk()
    desk.it.poke()
    desk.it.close()
    desk.it.poke()
    await rounds()
    assert desk.turns_had == 0


async def test_there_is_one_now_and_then_without_anybody_asking() -> None:
    desk = Desk(every_s=0.001)
    desk.it.tick_later()
    async with asyncio.timeout(5):
        while min(desk.turns_had, desk.rests) < 3:  # noqa: ASYNC110 - its turns are what is waited for
            await asyncio.sleep(0.001)
    desk.it.close()


@pytest.mark.parametrize("still", [True, False])
async def test_later_means_then_if_there_is_still_something_each_time(still: bool) -> None:
    """Else followers would hear of what is committed with the next heartbeat."""
    desk = Desk()
    for expected in (1, 2):
        desk.it.later(0.0, still=lambda: still)
        desk.it.later(0.0, still=lambda: True)  # the first who asks says when, and whether
        await asyncio.sleep(0.01)
        await rounds()
        assert desk.turns_had == expected * still


async def test_a_group_waits_for_what_has_just_been_proposed_once() -> None:
    desk = Desk()
    desk.it.kick_soon()
    await rounds()
    assert desk.kicks == 1
    desk.it.scheduled = True  # a turn is due, and kicks when it is had
    desk.it.kick_soon()
    await rounds()
    assert desk.kicks == 1
    desk.it.kick_soon()
    await rounds()
    assert desk.kicks == 2
