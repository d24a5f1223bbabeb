"""The simulated event loop: whose callbacks run, and when."""

from __future__ import annotations

import asyncio

import pytest

from chaos.sim.loop import EPOCH_S, Process, ProcessDied, SimLoop
from tests.unit.chaos.sim_world import Errors


async def sleep_then(told: list[str], seconds: float, what: str) -> None:
    await asyncio.sleep(seconds)
    told.append(what)


class TestOwnership:
    def test_is_inherited_by_everything_that_is_scheduled(self, loop: SimLoop) -> None:
        owners: dict[str, Process | None] = {}

        def note(name: str) -> None:
            owners[name] = loop.current

        async def inner() -> None:
            await asyncio.sleep(1.0)
            note("task of a task")

        async def work() -> None:
            note("task")
            loop.call_soon(note, "call_soon")
            loop.call_later(1.0, note, "call_later")
            loop.call_at(EPOCH_S + 1.0, note, "call_at")
            await asyncio.gather(inner())
            await asyncio.sleep(1.0)
            note("after a sleep")

        process = loop.process("n1")
        loop.spawn(process, work())
        loop.run_until_complete(asyncio.sleep(3.0))
        assert owners == dict.fromkeys(
            ("task", "call_soon", "call_later", "call_at", "task of a task", "after a sleep"), process
        )

    def test_does_not_pass_over_to_others(self, loop: SimLoop) -> None:
        process = loop.process("n1")
        owners = []

        async def story() -> None:
            loop.run_as(process, lambda: None)
            await asyncio.sleep(0)
            owners.append(loop.current)

        loop.run_until_complete(story())
        assert owners == [None]

    def test_numbers_tell_two_incarnations_apart(self, loop: SimLoop) -> None:
        first, second = loop.process("n1"), loop.process("n1")
        assert first.name == second.name
        assert first.number != second.number


class TestDeath:
    def test_nothing_of_the_dead_runs(self, loop: SimLoop) -> None:
        told: list[str] = []
        process = loop.process("n1")

        async def work() -> None:
            try:
                await asyncio.sleep(2.0)
                told.append("task")
            finally:
                told.append("finally")

        loop.spawn(process, work())
        loop.run_as(process, told.append, "timer", delay=2.0)
        loop.call_later(1.0, loop.kill, process)
        loop.call_later(1.5, loop.run_as, process, told.append, "new call")
        loop.run_until_complete(asyncio.sleep(5.0))
        assert told == []

    def test_what_was_ready_does_not_run_either(self, loop: SimLoop) -> None:
        told: list[str] = []
        process = loop.process("n1")

        def event() -> None:
            loop.run_as(process, told.append, "ready")
            loop.kill(process)

        loop.call_later(1.0, event)
        loop.run_until_complete(asyncio.sleep(2.0))
        assert told == []

    def test_others_go_on(self, loop: SimLoop) -> None:
        told: list[str] = []
        first, second = loop.process("n1"), loop.process("n2")
        loop.spawn(first, sleep_then(told, 2.0, "first"))
        loop.spawn(second, sleep_then(told, 2.0, "second"))
        loop.call_later(1.0, loop.kill, first)
        loop.run_until_complete(asyncio.sleep(3.0))
        assert told == ["second"]

    def test_a_next_incarnation_runs(self, loop: SimLoop) -> None:
        told: list[str] = []
        loop.kill(loop.process("n1"))
        loop.run_as(loop.process("n1"), told.append, "alive")
        loop.run_until_complete(asyncio.sleep(1.0))
        assert told == ["alive"]

    def test_of_a_stopped_process_leaves_nothing_to_go_on_with(self, loop: SimLoop) -> None:
        told: list[str] = []
        process = loop.process("n1")
        loop.stop_process(process)
        loop.run_as(process, told.append, "before")
        loop.call_later(1.0, loop.kill, process)
        loop.call_later(2.0, loop.continue_process, process)
        loop.run_until_complete(asyncio.sleep(3.0))
        assert told == []

    def test_on_the_spot_in_a_callback(self, loop: SimLoop, errors: Errors) -> None:
        told: list[str] = []
        process = loop.process("n1")

        def die() -> None:
            told.append("before")
            loop.kill(process)
            raise ProcessDied

        loop.run_as(process, die)
        loop.run_as(process, told.append, "after")
        loop.run_until_complete(asyncio.sleep(1.0))
        assert (told, errors) == (["before"], [])

    def test_on_the_spot_in_a_task(self, loop: SimLoop, errors: Errors) -> None:
        """Production code catches Exception in many places: it must not survive its own death."""
        told: list[str] = []
        process = loop.process("n1")

        def write_fails() -> None:
            loop.kill(process)
            raise ProcessDied

        async def die() -> None:
            try:
                write_fails()
            except Exception:  # noqa: BLE001 - what is shown
                told.append("caught")

        async def parent() -> None:
            await asyncio.gather(die(), return_exceptions=True)
            told.append("parent")

        loop.spawn(process, parent())
        loop.run_until_complete(asyncio.sleep(1.0))
        assert (told, errors) == ([], [])


class TestStopped:
    def test_waits_and_then_runs_everything_in_order(self, loop: SimLoop) -> None:
        told: list[tuple[int, float]] = []
        process = loop.process("n1")
        for number in range(20):
            loop.run_as(process, lambda n=number: told.append((n, loop.now - EPOCH_S)), delay=number * 0.1)
        loop.call_later(0.45, loop.stop_process, process)
        loop.call_later(1.25, loop.continue_process, process)
        loop.run_until_complete(asyncio.sleep(3.0))
        assert [number for number, _ in told] == list(range(20))
        assert [round(at, 3) for number, at in told if 5 <= number <= 12] == [1.25] * 8
        assert [round(at, 3) for number, at in told if number > 12] == pytest.approx([n * 0.1 for n in range(13, 20)])

    def test_what_comes_in_the_moment_it_goes_on_comes_last(self, loop: SimLoop) -> None:
        told: list[str] = []
        process = loop.process("n1")
        loop.stop_process(process)
        loop.run_as(process, told.append, "first")

        def go_on() -> None:
            loop.run_as(process, told.append, "second")
            loop.continue_process(process)
            loop.run_as(process, told.append, "third")

        loop.call_later(1.0, go_on)
        loop.run_until_complete(asyncio.sleep(2.0))
        assert told == ["first", "second", "third"]

    def test_the_world_goes_on_meanwhile(self, loop: SimLoop) -> None:
        told: list[str] = []
        stopped, other = loop.process("n1"), loop.process("n2")
        loop.spawn(stopped, sleep_then(told, 1.0, "stopped"))
        loop.spawn(other, sleep_then(told, 2.0, "other"))
        loop.call_later(0.5, loop.stop_process, stopped)
        loop.call_later(3.0, loop.continue_process, stopped)
        loop.run_until_complete(asyncio.sleep(4.0))
        assert told == ["other", "stopped"]

    def test_may_be_stopped_again(self, loop: SimLoop) -> None:
        told: list[str] = []
        process = loop.process("n1")
        loop.stop_process(process)
        loop.run_as(process, told.append, "work")
        loop.call_later(1.0, loop.continue_process, process)
        loop.call_later(1.0, loop.stop_process, process)
        loop.run_as(process, told.append, "more", delay=2.0)
        loop.call_later(3.0, loop.continue_process, process)
        loop.run_until_complete(asyncio.sleep(4.0))
        assert told == ["work", "more"]
