"""Ctrl-C in every moment in which Python may tell of it."""

from __future__ import annotations

import dis
import gc
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, Self

import pytest

from logboom import Put, SyncClient, background
from logboom.types import KIB
from logboom.wire import Frame, Kind
from tests.unit.logboom.command_line import until
from tests.unit.logboom.fake_server import FakeNode, Session, records

ASKED_AFTER = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME")}
"""Instructions behind which the interpreter looks for signals."""
PATIENCE_S = 20.0


class Interrupt:
    """KeyboardInterrupt on this thread at the moment with that number.

    Not while the collector clears up behind other tests: what is raised there is raised to nobody.
    """

    def __init__(self, number: int) -> None:
        self.where = ""
        self._left = number
        self._before: dict[FrameType, int] = {}
        self._tracer = sys.gettrace()

    def __enter__(self) -> Self:
        gc.disable()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._tracer)
        gc.enable()
        self._before.clear()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes = True
        if event != "opcode" or self.where:
            return self._trace
        before, self._before[frame] = self._before.get(frame), frame.f_code.co_code[frame.f_lasti]
        if before in ASKED_AFTER:
            self._left -= 1
            if self._left < 0:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                raise KeyboardInterrupt
        return self._trace


def test_whenever_it_comes_it_is_raised_and_the_client_can_be_closed(node: FakeNode) -> None:
    node.answers[Kind.TAIL] = lambda session, frame: records(session, frame, 1, 1, [b"1"])
    node.answers[Kind.CREDIT] = lambda session, frame: records(session, frame, 2, 2, [b"2"])
    raised: BaseException | None
    for number in range(1000):
        client = SyncClient(node.address)
        rows = client.tail(0, follow=True)
        next(rows)
        raised = None
        with Interrupt(number) as interrupt:
            try:
                next(rows)
            except BaseException as error:  # noqa: BLE001 - which one is the question
                raised = error
        closing = threading.Thread(target=client.close, daemon=True)
        closing.start()
        closing.join(PATIENCE_S)
        assert not closing.is_alive(), f"interrupted in {interrupt.where}, it cannot be closed"
        if not interrupt.where and raised is None:
            break
        assert type(raised) is KeyboardInterrupt, f"interrupted in {interrupt.where}"
    assert number > 20


def test_whenever_it_comes_a_sender_goes_on(node: FakeNode) -> None:
    """What was called for and never begun kept all others from being begun."""
    number, at_rest = 0, False
    with SyncClient(node.address) as client:
        out = client.sender(0)
        out.send(Put(b"k", b"v")).result(PATIENCE_S)
        while not at_rest:
            with Interrupt(number) as interrupt, suppress(KeyboardInterrupt):
                out.send(Put(b"k", b"v"))
            assert out.send(Put(b"k", b"v")).result(PATIENCE_S).count == 1, f"interrupted in {interrupt.where}"
            at_rest, number = not interrupt.where, number + 1
        until(lambda: not out._line._open_bytes)
    assert number > 10


def test_whenever_it_comes_to_who_waits_for_room_those_behind_go_on(node: FakeNode) -> None:
    """Nobody waits any more for the turn of who is gone."""
    number, at_rest, waited = 0, False, 0
    with SyncClient(node.address, max_in_flight_bytes=3 * KIB) as client:
        out = client.sender(0)
        out.send(Put(b"k", b"v")).result(PATIENCE_S)
        line: Any = out._line
        while not at_rest:
            until(lambda: not line._open_bytes)
            held = list[tuple[Session, Frame]]()
            node.answers[Kind.SUBMIT] = lambda session, frame, to=held: to.append((session, frame))
            answers, over = [out.send(Put(b"k", b"v"))], threading.Event()
            until(lambda held=held: held)

            def behind(held=held, answers=answers, over=over) -> None:
                nonlocal waited
                until(lambda: over.is_set() or line._turns)
                waits = not over.is_set()
                thread = threading.Thread(target=lambda: answers.append(out.send(Put(b"k", b"v"))))
                thread.start()
                until(lambda: not thread.is_alive() or not waits or len(line._turns) > 1)
                waited += waits
                del node.answers[Kind.SUBMIT]
                for session, frame in held:
                    session.loop.call_soon_threadsafe(session.usual, frame)
                thread.join(PATIENCE_S)

            other = threading.Thread(target=behind)
            other.start()
            with Interrupt(number) as interrupt, suppress(KeyboardInterrupt):
                out.send(Put(b"k", b"l" * 3 * KIB))
            over.set()
            other.join(2 * PATIENCE_S)
            assert (len(answers), len(line._turns)) == (2, 0), f"interrupted in {interrupt.where}"
            assert [answer.result(PATIENCE_S).count for answer in answers] == [1, 1], interrupt.where
            at_rest, number = not interrupt.where, number + 1
    assert waited > 10


def test_what_goes_wrong_at_the_end_is_told_once(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further call raised it again, and the client was held for as long as the process."""
    end = background._end

    async def breaks(client: Any) -> None:
        await end(client)
        raise OSError("at the end")

    monkeypatch.setattr(background, "_end", breaks)
    client = SyncClient(node.address)
    client.partitions()
    with pytest.raises(OSError, match="at the end"):
        client.close()
    client.close()
    assert not client._left.alive


def test_whenever_it_comes_to_who_closes_it_can_be_closed_again(node: FakeNode) -> None:
    """The second time did nothing, and the thread stayed, with its connections."""
    number, at_rest = 0, False
    while not at_rest:
        client = SyncClient(node.address)
        client.partitions()
        thread = client._start().thread
        with Interrupt(number) as interrupt, suppress(KeyboardInterrupt):
            client.close()
        client.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"interrupted in {interrupt.where}"
        at_rest, number = not interrupt.where, number + 1
    assert number > 10
    until(lambda: not node.sessions)
