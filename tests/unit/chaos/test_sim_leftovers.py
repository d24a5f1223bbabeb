"""A run that is over says nothing any more, however long somebody holds what it ran on."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import warnings
from typing import Any

import pytest
import structlog

from chaos.sim.drawing import draw
from chaos.sim.host import SimOffload
from chaos.sim.leftovers import leftovers_unseen, throw_away
from chaos.sim.loop import SimLoop
from chaos.sim.simulation import Simulation
from chaos.sim.timeline import Timeline

ENDS_S = (3.0, 5.0, 9.0)


@pytest.mark.parametrize("seed", [3, 17, 23])
def test_what_is_left_of_a_run_is_not_the_next_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that never began, fetches that were in the middle: they were collected whenever that came."""
    said: list[Any] = []
    held = list[Simulation]()
    with leftovers_unseen():
        for until in ENDS_S:
            held.append(Simulation(draw(seed), timeline=Timeline(), until=until))
            assert held[-1].play().failure is None
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with warnings.catch_warnings(record=True) as warned, structlog.testing.capture_logs() as logged:
        warnings.simplefilter("always")
        held.clear()
        gc.collect()
    assert not [each.exc_value for each in said]
    assert not [str(each.message) for each in warned]
    assert not logged


def test_nothing_that_awaits_while_it_is_closed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = SimLoop()  # type: ignore[abstract]  # of asyncio's loop, only what exists here
    process, ended, said = loop.process("n1"), list[str](), list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", said.append)

    async def fetch() -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            await asyncio.sleep(60.0)  # as for a file that is closed on a thread

    async def guarded() -> None:
        try:
            await fetch()
        except RuntimeError as error:
            structlog.get_logger().error("request_failed", error=str(error))
        finally:
            ended.append("once")

    loop.spawn(process, guarded())
    loop.run_until_complete(asyncio.sleep(1.0))
    loop.kill(process)
    with structlog.testing.capture_logs() as logged:
        throw_away(loop)
        assert ended == ["once"]
        del loop, process
        gc.collect()
    assert not said
    assert not logged


@pytest.mark.parametrize("killed", [False, True], ids=["lives", "killed"])
def test_what_begins_while_it_is_closed_ends_with_it(killed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that is cut off closes its file on a thread: that was begun on a loop of the real world, which asyncio
    made for it and kept, and it was said never to have been awaited when some other test made a loop of its own."""
    loop = SimLoop()  # type: ignore[abstract]  # of asyncio's loop, only what exists here
    process, said, ran = loop.process("n1"), list[Any](), list[str]()
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    offload = SimOffload(loop, random.Random(1), slowest_s=0.01)

    async def fetch() -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            await asyncio.shield(offload.run(lambda: ran.append("closed")))

    loop.spawn(process, fetch())
    loop.run_until_complete(asyncio.sleep(1.0))
    if killed:
        loop.kill(process)
    made = list[asyncio.AbstractEventLoop]()

    class Policy(asyncio.DefaultEventLoopPolicy):
        """As at the start of a process."""

        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            made.append(super().new_event_loop())
            return made[-1]

    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(Policy())
    try:
        throw_away(loop)
    finally:
        asyncio.set_event_loop_policy(before)
        for each in made:
            each.close()
    assert made == []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del loop, process
        gc.collect()
    assert not said
    assert not [str(each.message) for each in warned]
    assert ran == []


@pytest.mark.parametrize("fate", ["stopped", "killed", "at once"])
def test_what_never_began_ends_with_the_run(fate: str) -> None:
    loop = SimLoop()  # type: ignore[abstract]  # of asyncio's loop, only what exists here
    process, ran = loop.process("n1"), list[str]()

    async def work() -> None:
        ran.append("begun")

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if fate == "stopped":
            loop.stop_process(process)
        loop.spawn(process, work())
        if fate == "killed":
            loop.kill(process)
        if fate != "at once":
            loop.run_until_complete(asyncio.sleep(1.0))
        throw_away(loop)
        del loop, process
        gc.collect()
    assert not [str(each.message) for each in warned]
    assert ran == []
