"""Code that takes time: one piece after the other, and between any two whatever has come meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from chaos.sim.drawing import draw
from chaos.sim.drawn_faults import Fault
from chaos.sim.loop import EPOCH_S, Process, SimLoop
from chaos.sim.runner import run
from tests.unit.chaos.sim_world import CALM, World

EVERYBODY, ONE_HOST = 1, 2
"""Dice of a fault."""


class Told:
    """What ran, and when."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.rows: list[tuple[str, float]] = []

    def by(self, what: str, then: Callable[[], object] = lambda: None) -> Callable[[], None]:
        def callback() -> None:
            self.rows.append((what, round(self.loop.now - EPOCH_S, 6)))
            then()

        return callback


@pytest.fixture
def told(loop: SimLoop) -> Told:
    return Told(loop)


@pytest.fixture
def slow(loop: SimLoop) -> Process:
    process = loop.process("n1")
    process.takes = lambda: 1.0
    return process


def test_one_begins_when_the_one_before_has_ended(loop: SimLoop, told: Told, slow: Process) -> None:
    for what in "abc":
        loop.run_as(slow, told.by(what))
    loop.run_until_complete(asyncio.sleep(9.0))
    assert told.rows == [("a", 0.0), ("b", 1.0), ("c", 2.0)]


def test_what_came_meanwhile_comes_before_what_follows(loop: SimLoop, told: Told, slow: Process) -> None:
    """As on a machine: a callback of the next turn stands behind what the lines have brought since."""
    loop.run_as(slow, told.by("first", lambda: loop.call_soon(told.by("follows"))))
    loop.run_as(slow, told.by("second", lambda: loop.call_soon(told.by("follows too"))))
    loop.run_as(slow, told.by("timer"), delay=0.5)
    loop.run_until_complete(asyncio.sleep(9.0))
    assert told.rows == [("first", 0.0), ("second", 1.0), ("follows", 2.0), ("timer", 3.0), ("follows too", 4.0)]


def test_others_do_not_wait_for_it(loop: SimLoop, told: Told, slow: Process) -> None:
    other = loop.process("n2")
    for process in (slow, other, slow, other):
        loop.run_as(process, told.by(process.name))
    loop.run_until_complete(asyncio.sleep(9.0))
    assert told.rows == [("n2", 0.0), ("n2", 0.0), ("n1", 0.0), ("n1", 1.0)]


def test_what_was_cancelled_takes_no_time(loop: SimLoop, told: Told, slow: Process) -> None:
    handles = [loop.run_as(slow, told.by(what)) for what in "abc"]
    loop.call_later(0.5, handles[1].cancel)
    loop.run_until_complete(asyncio.sleep(9.0))
    assert told.rows == [("a", 0.0), ("c", 1.0)]


def test_what_waits_goes_at_once_and_in_order_when_it_is_slow_no_more(loop: SimLoop, told: Told, slow: Process) -> None:
    for what in "abc":
        loop.run_as(slow, told.by(what, lambda: loop.call_soon(told.by("later"))))
    loop.call_later(0.5, setattr, slow, "takes", None)
    loop.run_until_complete(asyncio.sleep(9.0))
    assert [what for what, _ in told.rows] == ["a", "b", "c", "later", "later", "later"]
    assert [at for _, at in told.rows] == [0.0, *[1.0] * 5]
    assert not slow.slow


def test_who_is_stopped_meanwhile_goes_on_in_order(loop: SimLoop, told: Told, slow: Process) -> None:
    for what in "abc":
        loop.run_as(slow, told.by(what))
    loop.call_later(0.5, loop.stop_process, slow)
    loop.run_as(slow, told.by("timer"), delay=2.0)
    loop.call_later(5.0, loop.continue_process, slow)
    loop.run_until_complete(asyncio.sleep(20.0))
    assert told.rows == [("a", 0.0), ("b", 5.0), ("c", 6.0), ("timer", 7.0)]


def test_nothing_of_the_dead_runs(loop: SimLoop, told: Told, slow: Process) -> None:
    for what in "abc":
        loop.run_as(slow, told.by(what))
    loop.call_later(1.5, loop.kill, slow)
    loop.run_until_complete(asyncio.sleep(9.0))
    assert told.rows == [("a", 0.0), ("b", 1.0)]


def test_what_arrives_on_a_line_waits_too() -> None:
    world = World(CALM)

    async def story() -> tuple[int, int]:
        ours, theirs = await world.pair()
        world.host("b").takes = lambda: 1.0
        for _ in range(3):
            ours.transport.write(b"x")
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        before = len(theirs.data)
        await asyncio.sleep(9.0)
        return before, len(theirs.data)

    assert world.play(story()) == (1, 3)


def test_some_seeds_have_scarce_processors() -> None:
    drawn = [draw(seed) for seed in range(200)]
    scarce = [each for each in drawn if any(fault.kind == "slow_cpu" for fault in each.faults)]
    assert 20 < len(scarce) < 60
    assert all("slow_cpu" in each.kinds for each in scarce)


@pytest.mark.parametrize("dice", [EVERYBODY, ONE_HOST])
def test_a_run_in_which_code_takes_time_holds(dice: int) -> None:
    faults = tuple(Fault(at, "slow_cpu", 0, 3.0, dice + 10 * number) for number, at in enumerate((1.0, 6.0)))
    outcome = run(replace(draw(3, seconds=10.0), faults=faults)).outcome
    assert outcome.failure is None, outcome.failure
    assert outcome.operations["ok"] > 20
