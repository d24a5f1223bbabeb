"""One client, and more than one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from logboom import Client, Put
from logboom.errors import DeadlineExceeded, InvalidRequest, Unavailable
from logboom.wire import Kind
from tests.unit.logboom.fake_server import FakeNode

CALLS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "one": lambda boom: boom.submit(0, Put(b"a", b"")),
    "several": lambda boom: boom.submit(0, [Put(b"a", b"")] * 2),
    "get": lambda boom: boom.get(0, b"a"),
    "scan": lambda boom: anext(boom.scan(0)),
    "barrier": lambda boom: boom.barrier(1),
    "status": lambda boom: boom.status(),
    "partitions": lambda boom: boom.partitions(),
    "tail": lambda boom: anext(boom.tail(0)),
    "metadata": lambda boom: anext(boom.tail_metadata(0, follow=True)),
    "logs": lambda boom: anext(boom.scan_log([0])),
    "watch": lambda boom: anext(boom.watermarks_stream()),
}


async def used(node: FakeNode) -> Client:
    boom = Client(node.address)
    await boom.submit(0, Put(b"a", b""))
    return boom


async def outcome(call: Callable[[Client], Awaitable[Any]], boom: Client) -> object:
    try:
        return await call(boom)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error


@pytest.mark.parametrize("name", CALLS)
def test_another_loop_is_refused(node: FakeNode, name: str) -> None:
    """RuntimeError: "attached to a different loop", or "Event loop is closed"."""
    with asyncio.Runner() as home, asyncio.Runner() as other:
        boom = home.run(used(node))
        error = other.run(outcome(CALLS[name], boom))
        assert isinstance(error, InvalidRequest)
        assert "another: make one on each" in str(error)
        home.run(boom.close())


def test_of_a_loop_that_is_closed_nothing_is_left_to_close(node: FakeNode) -> None:
    async def fails() -> Client:
        boom = Client("127.0.0.1:1", timeout=0.01)
        assert isinstance(await outcome(CALLS["get"], boom), Unavailable | DeadlineExceeded)
        return boom

    asyncio.run(asyncio.run(fails()).close())


@pytest.mark.parametrize("name", CALLS)
async def test_a_loop_on_another_thread_is_refused_before_anything_is_sent(node: FakeNode, name: str) -> None:
    """The write took effect, and whoever made it got a RuntimeError."""
    boom, errors, calls = await used(node), list[object](), (CALLS[name], Client.close)
    thread = threading.Thread(target=lambda: errors.extend(asyncio.run(outcome(c, boom)) for c in calls))
    thread.start()
    await asyncio.to_thread(thread.join, 20)
    assert [type(each) for each in errors] == [InvalidRequest] * 2
    assert len(node.of(Kind.SUBMIT)) == 1
    await boom.submit(0, Put(b"a", b""))
    await boom.close()
    await boom.close()
