"""Whoever connects again and again leaves a few lines in the log, not one each time."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from logboom.wire import Kind, encode
from tests.unit.server.net_world import Raw, serving, until
from tests.unit.server.test_net_peers import HELLO, linked

MANY = 60


async def test_connections_that_say_nothing() -> None:
    with capture_logs() as lines:
        async with serving(handshake_s=0.05) as it:
            clients = [await it.client() for _ in range(MANY)]
            await asyncio.gather(*(client.ended() for client in clients))
            await until(lambda: len([session for session in it.sessions if session.ends]) >= MANY)
    assert 0 < sum(line["event"] == "connection_too_slow" for line in lines) <= 10


async def test_connections_that_read_nothing() -> None:
    with capture_logs() as lines:
        async with serving(send_buffer_bytes=1_000) as it:
            for _ in range(MANY):
                client = await it.client(receive_bytes=4_096)
                await client.say(*encode(Kind.HELLO, {}))
                for _ in range(20):
                    await client.say(*encode(Kind.PING, {}, [b"x" * 60_000], request_id=1))
                client.close()
    assert 0 < sum(line["event"] == "slow_reader_cut" for line in lines) <= 10


async def test_strangers_at_the_port_for_other_nodes() -> None:
    with capture_logs() as lines:
        async with linked() as (address, _):
            for number in range(MANY):
                stranger = await Raw().connect(address)
                await stranger.say(*encode(Kind.PEER_HELLO, HELLO | {"cluster": f"c{number}"}))
                await stranger.ended()
                stranger.close()
    assert 0 < sum(line["event"] == "peer_refused" for line in lines) <= 10
