"""Ctrl-C in every moment in which Python may tell of it."""

from __future__ import annotations

import dis
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from logboom import Put, SyncClient
from logboom.wire import Kind
from tests.unit.logboom.command_line import until
from tests.unit.logboom.fake_server import FakeNode, records

ASKED_AFTER = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME")}
"""Instructions behind which the interpreter looks for signals."""
PATIENCE_S = 20.0


class Interrupt:
    """KeyboardInterrupt on this thread at the moment with that number."""

    def __init__(self, number: int) -> None:
        self.where = ""
        self._left = number
        self._before: dict[FrameType, int] = {}
        self._tracer = sys.gettrace()

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._tracer)
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
