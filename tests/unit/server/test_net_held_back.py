"""Frames that need not leave at once: together and in time, or with whatever is sent next."""

from __future__ import annotations

import asyncio

import pytest

from logboom.wire import Kind, encode
from tests.unit.server.net_world import LIMITS, LONG_S, SHORT_S, serving


async def test_what_is_held_back_leaves_together_and_in_time() -> None:
    async with serving() as it:
        client = await it.friend()
        connection, loop = it.sessions[0].open, asyncio.get_running_loop()
        begun = loop.time()
        for k in range(3):
            connection.send(encode(Kind.PING, {"k": k}))
            connection.hold_back(SHORT_S)
            await asyncio.sleep(0.01)
        assert [(await client.hear()).header["k"] for _ in range(3)] == [0, 1, 2]
        assert loop.time() - begun >= SHORT_S - 0.01


@pytest.mark.parametrize("then", ["send", "flush", "close"])
async def test_what_is_held_back_goes_with_whatever_comes_next(then: str) -> None:
    async with serving() as it:
        client = await it.friend()
        connection = it.sessions[0].open
        connection.send(encode(Kind.PING, {"k": 0}))
        connection.hold_back(LONG_S)
        await asyncio.sleep(0.01)
        connection.send(encode(Kind.PING, {"k": 1})) if then == "send" else getattr(connection, then)()
        assert [(await client.hear()).header["k"] for _ in range(1 + (then == "send"))] == [0, 1][
            : 1 + (then == "send")
        ]


async def test_what_is_held_back_counts_as_queued() -> None:
    async with serving() as it:
        await it.friend()
        connection = it.sessions[0].open
        connection.send([bytes(LIMITS["send_buffer_bytes"] + 1)])
        connection.hold_back(LONG_S)
        await asyncio.sleep(0.01)
        assert connection.congested
        connection.abort()
        await it.session_of(0)


async def test_a_frame_larger_than_twice_the_bound_arrives_behind_little() -> None:
    """Cut for it, a link would carry it again and be cut again, for ever."""
    async with serving(send_buffer_bytes=1_000) as it:
        client = await it.friend()
        it.sessions[0].open.send([b"a little"])
        it.sessions[0].open.send([bytes(50_000)])
        it.sessions[0].open.close()
        assert len(await client.ended()) == 50_008
