"""The simulated event loop: virtual time, and what does not exist on it."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest

from chaos.sim.loop import EPOCH_S, SimLoop, StandsStill
from tests.unit.chaos.sim_world import Errors


class TestTime:
    def test_jumps_over_what_nobody_waits_for(self, loop: SimLoop) -> None:
        loop.run_until_complete(asyncio.sleep(86_400.0))
        assert loop.time() == EPOCH_S + 86_400.0
        assert loop.events < 10

    def test_does_not_move_while_something_is_ready(self, loop: SimLoop) -> None:
        async def busy() -> float:
            for _ in range(1_000):
                await asyncio.sleep(0)
            return loop.time()

        assert loop.run_until_complete(busy()) == EPOCH_S

    def test_timers_come_in_the_order_of_their_times(self, loop: SimLoop) -> None:
        told: list[float] = []
        delays = [random.Random(3).random() for _ in range(200)]
        for delay in delays:
            loop.call_later(delay, told.append, delay)
        loop.run_until_complete(asyncio.sleep(1.0))
        assert told == sorted(delays)

    def test_calls_at_one_time_come_in_the_order_they_were_made(self, loop: SimLoop) -> None:
        told: list[int] = []
        for number in range(50):
            if number % 3 == 0:
                loop.call_later(1.0, told.append, number)
            elif number % 3 == 1:
                loop.call_at(EPOCH_S + 1.0, told.append, number)
            else:
                loop.run_as(None, told.append, number, delay=1.0)
        loop.run_until_complete(asyncio.sleep(1.5))
        assert told == list(range(50))

    def test_calls_without_delay_come_in_the_order_they_were_made(self, loop: SimLoop) -> None:
        told: list[int] = []
        calls = [loop.call_soon, lambda *c: loop.call_later(0, *c), lambda *c: loop.call_later(-1.0, *c)]
        for number in range(30):
            calls[number % 3](told.append, number)
        loop.run_until_complete(asyncio.sleep(0.1))
        assert told == list(range(30))

    def test_what_follows_from_an_event_comes_before_the_next_timer(self, loop: SimLoop) -> None:
        told: list[str] = []
        loop.call_later(1.0, lambda: loop.call_soon(told.append, "consequence"))
        loop.call_later(1.0, told.append, "next timer")
        loop.run_until_complete(asyncio.sleep(2.0))
        assert told == ["consequence", "next timer"]

    def test_timeouts_of_asyncio_work(self, loop: SimLoop) -> None:
        async def hang() -> None:
            async with asyncio.timeout(2.5):
                await loop.create_future()

        with pytest.raises(TimeoutError):
            loop.run_until_complete(hang())
        assert loop.time() == EPOCH_S + 2.5

    def test_an_instant_is_over_when_time_moves_on(self, loop: SimLoop) -> None:
        seen: list[tuple[float, int]] = []
        done: list[int] = []
        loop.after_instant = lambda: seen.append((loop.now - EPOCH_S, len(done)))
        for delay in (1.0, 1.0, 1.0, 2.0):
            loop.call_later(delay, done.append, 1)
        loop.run_until_complete(asyncio.sleep(3.0))
        assert seen == [(0.0, 0), (1.0, 3), (2.0, 4)]

    def test_halting_ends_the_run_after_the_event_that_runs(self, loop: SimLoop) -> None:
        told: list[str] = []

        def halt() -> None:
            loop.halted = True
            told.append("to its end")

        loop.call_later(1.0, halt)
        loop.call_later(1.0, told.append, "no more")
        assert loop.run_until_complete(asyncio.sleep(5.0)) is None
        assert (told, loop.time()) == (["to its end"], EPOCH_S + 1.0)

    def test_what_can_never_end_is_an_error_at_once(self, loop: SimLoop) -> None:
        future = loop.create_future()
        loop.call_later(7.0, lambda: None)
        with pytest.raises(StandsStill):
            loop.run_until_complete(future)
        assert loop.time() == EPOCH_S + 7.0


class TestCancelledTimers:
    def test_never_run(self, loop: SimLoop) -> None:
        told: list[str] = []
        handles = [loop.call_later(1.0, told.append, "timer"), loop.call_soon(told.append, "ready")]
        for handle in handles:
            handle.cancel()
        loop.run_until_complete(asyncio.sleep(2.0))
        assert told == []
        assert all(handle.cancelled() for handle in handles)

    def test_may_be_cancelled_by_an_event_of_the_same_time(self, loop: SimLoop) -> None:
        told: list[str] = []
        handles: list[Any] = []
        loop.call_later(1.0, lambda: [handle.cancel() for handle in handles])
        handles.append(loop.call_later(1.0, told.append, "timer"))
        loop.run_until_complete(asyncio.sleep(2.0))
        assert told == []

    def test_do_not_move_time(self, loop: SimLoop) -> None:
        loop.call_later(9.0, lambda: None).cancel()
        with pytest.raises(StandsStill):
            loop.run_until_complete(loop.create_future())
        assert loop.time() == EPOCH_S

    def test_of_a_stopped_process_stay_cancelled(self, loop: SimLoop) -> None:
        told: list[str] = []
        process = loop.process("n1")
        handle = loop.run_as(process, told.append, "timer", delay=1.0)
        loop.stop_process(process)
        loop.call_later(2.0, handle.cancel)
        loop.call_later(3.0, loop.continue_process, process)
        loop.run_until_complete(asyncio.sleep(4.0))
        assert told == []


class TestErrors:
    @pytest.mark.parametrize("owned", [True, False])
    def test_of_callbacks_go_to_on_error_with_their_process(self, loop: SimLoop, errors: Errors, owned: bool) -> None:
        process = loop.process("n1") if owned else None
        told: list[str] = []
        loop.run_as(process, lambda: 1 // 0)
        loop.run_as(process, told.append, "goes on")
        loop.run_until_complete(asyncio.sleep(1.0))
        ((where, context),) = errors
        assert where is process
        assert isinstance(context["exception"], ZeroDivisionError)
        assert told == ["goes on"]

    def test_of_spawned_tasks_go_to_on_error_with_their_process(self, loop: SimLoop, errors: Errors) -> None:
        async def fail() -> None:
            await asyncio.sleep(1.0)
            raise LookupError

        process = loop.process("n1")
        loop.spawn(process, fail())
        loop.run_until_complete(asyncio.sleep(2.0))
        ((where, context),) = errors
        assert where is process
        assert isinstance(context["exception"], LookupError)

    def test_of_tasks_that_nobody_awaits_go_to_on_error(self, loop: SimLoop, errors: Errors) -> None:
        async def fail() -> None:
            raise LookupError

        async def forget() -> None:
            asyncio.ensure_future(fail())  # noqa: RUF006 - what is shown
            await asyncio.sleep(1.0)

        process = loop.process("n1")
        loop.spawn(process, forget())
        loop.run_until_complete(asyncio.sleep(2.0))
        gc.collect()
        assert [type(context["exception"]) for _, context in errors] == [LookupError]

    def test_of_the_main_coroutine_are_raised(self, loop: SimLoop, errors: Errors) -> None:
        async def fail() -> None:
            await asyncio.sleep(1.0)
            raise LookupError

        with pytest.raises(LookupError):
            loop.run_until_complete(fail())
        assert errors == []

    def test_without_on_error_end_the_run(self) -> None:
        loop = SimLoop()  # type: ignore[abstract]  # of asyncio's loop, only what exists here

        async def story() -> None:
            loop.call_soon(lambda: 1 // 0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        main = loop.create_task(story())
        with pytest.raises(RuntimeError, match="in <function"):
            loop.run_until_complete(main)
        loop.run_until_complete(main)

    def test_what_is_collected_after_a_run_says_nothing(self, errors: Errors) -> None:
        """A run that was halted leaves tasks behind; it is over, and has failed or not."""
        loop = SimLoop()  # type: ignore[abstract]  # of asyncio's loop, only what exists here
        loop.on_error = lambda process, context: errors.append((process, context))
        process = loop.process("n1")
        loop.spawn(process, asyncio.sleep(10.0))
        loop.call_later(1.0, setattr, loop, "halted", True)
        loop.run_until_complete(asyncio.sleep(5.0))
        del loop, process
        gc.collect()
        assert errors == []


class TestRealWorld:
    def test_there_are_no_threads(self, loop: SimLoop) -> None:
        async def story() -> None:
            with pytest.raises(RuntimeError, match="thread"):
                await asyncio.to_thread(lambda: None)
            with pytest.raises(RuntimeError, match="thread"):
                await loop.run_in_executor(None, lambda: None)
            with pytest.raises(RuntimeError, match="thread"):
                loop.call_soon_threadsafe(lambda: None)

        loop.run_until_complete(story())

    @pytest.mark.parametrize("name", ["add_reader", "sock_connect", "subprocess_exec", "getnameinfo"])
    def test_there_are_no_files_sockets_or_children(self, loop: SimLoop, name: str) -> None:
        async def story() -> None:
            arguments = {"subprocess_exec": (asyncio.SubprocessProtocol,), "getnameinfo": (("localhost", 1),)}
            answer = getattr(loop, name)(*arguments.get(name, (None, None)))
            if asyncio.iscoroutine(answer):
                await answer

        with pytest.raises(NotImplementedError):
            loop.run_until_complete(story())

    def test_it_is_the_running_loop_only_while_it_runs(self, loop: SimLoop) -> None:
        async def which() -> Any:
            return asyncio.get_running_loop()

        assert loop.run_until_complete(which()) is loop
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        assert not loop.is_running()


class TestTrace:
    """The hash that says whether two runs are the same."""

    @staticmethod
    def of(delays: list[float], names: list[str]) -> int:
        loop = SimLoop()  # type: ignore[abstract]  # of asyncio's loop, only what exists here
        for delay, name in zip(delays, names, strict=True):
            loop.run_as(loop.process(name), lambda: None, delay=delay)
        loop.run_until_complete(asyncio.sleep(5.0))
        return loop.trace

    def test_is_the_same_for_the_same_events(self) -> None:
        assert self.of([1.0, 2.0], ["a", "b"]) == self.of([1.0, 2.0], ["a", "b"])

    def test_tells_times_apart(self) -> None:
        assert self.of([1.0, 2.0], ["a", "b"]) != self.of([1.0, 2.0000001], ["a", "b"])

    def test_tells_apart_who_ran_first(self) -> None:
        assert self.of([1.0, 2.0], ["a", "b"]) != self.of([2.0, 1.0], ["a", "b"])
