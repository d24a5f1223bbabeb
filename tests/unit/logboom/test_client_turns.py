"""Whoever wants to send while the node does not read takes turns, and can be given up for nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from logboom.client import turns as module
from logboom.client.connection import QUEUED_BYTES_MAX, NodeConnection
from logboom.wire import Kind


class Transport:
    """Takes so many bytes, then says that it is full."""

    def __init__(self, connection: NodeConnection, room: int) -> None:
        self._connection = connection
        self.room = room
        self.sent = self.most = 0

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False

    def writelines(self, buffers: Any) -> None:
        self.sent += sum(map(len, buffers))
        self.most = max(self.most, sum(map(len, buffers)))
        if self.sent >= self.room:
            self._connection.pause_writing()

    def close(self) -> None:
        pass

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


class Desk:
    def __init__(self, room: int = 1) -> None:
        self.connection = NodeConnection("h:1")
        self.transport = Transport(self.connection, room)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.order: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, number: int, size: int = 1000) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._ask(number, size))
        self.tasks.append(task)
        return task

    async def _ask(self, number: int, size: int) -> None:
        await self.connection.writable()
        self.connection.post(Kind.PING, {}, [bytes(size)], lambda _: None)
        self.order.append(number)

    async def drain(self) -> None:
        """The node has read everything there was."""
        self.transport.sent = 0
        self.connection.resume_writing()
        await settled()

    async def close(self) -> None:
        self.connection.close()
        await settled()
        assert all(task.done() for task in self.tasks)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_little_is_queued_however_many_want_to_send() -> None:
    """Found by a storm: all that waited went on at once, and what nobody wanted any more was sent all the same."""
    desk = Desk()
    for k in range(500):
        desk.ask(k)
    await settled()
    sent = len(desk.order)
    assert sent * 1000 <= QUEUED_BYTES_MAX + 2000
    await desk.drain()
    assert 0 < (len(desk.order) - sent) * 1000 <= QUEUED_BYTES_MAX + 2000
    assert desk.order == list(range(len(desk.order)))
    await desk.close()


async def test_what_is_sent_in_one_turn_is_little_too() -> None:
    desk = Desk(room=1 << 30)
    for k in range(500):
        desk.ask(k)
    async with asyncio.timeout(5):
        await asyncio.gather(*desk.tasks)
    assert desk.transport.most <= QUEUED_BYTES_MAX + 2000
    assert desk.order == list(range(500))
    await desk.close()


async def test_who_gives_up_is_passed_over_and_holds_up_nobody() -> None:
    desk = Desk()
    desk.ask(0)
    await settled()
    for k in (1, 2, 3):
        desk.ask(k)
    await settled()
    desk.tasks[1].cancel()
    await settled()
    await desk.drain()
    await desk.drain()
    assert desk.order == [0, 2, 3]
    await desk.close()


async def test_once_somebody_has_waited_long_the_last_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.ask(0)
    await settled()
    for k in (1, 2, 3):
        desk.ask(k, size=QUEUED_BYTES_MAX)
    await settled()
    monkeypatch.setattr(module, "LAST_FIRST_AFTER_S", -1.0)
    for _ in range(3):
        await desk.drain()
    assert desk.order == [0, 3, 2, 1]
    await desk.close()


async def test_nobody_waits_for_a_connection_that_is_gone() -> None:
    desk = Desk()
    desk.ask(0)
    await settled()
    for k in range(1, 50):
        desk.ask(k)
    await settled()
    await desk.close()
    await desk.connection.writable()
