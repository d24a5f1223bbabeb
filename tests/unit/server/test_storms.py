"""Whoever connects again and again leaves a few lines in the log, not one each time."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from logboom.errors import ProtocolError
from logboom.wire import Kind, encode
from ports.seldom import LINES
from tests.unit.server.net_world import Raw, serving, until
from tests.unit.server.peers_world import HELLO, Events, linked, links_of

MANY = 60


async def test_connections_that_say_nothing() -> None:
    with capture_logs() as lines:
        async with serving(handshake_s=0.05) as it:
            clients = [await it.client() for _ in range(MANY)]
            await asyncio.gather(*(client.ended() for client in clients))
            await until(lambda: len([session for session in it.sessions if session.ends]) >= MANY)
    assert 0 < sum(line["event"] == "connection_too_slow" for line in lines) <= LINES


async def test_connections_that_read_nothing() -> None:
    with capture_logs() as lines:
        async with serving(send_buffer_bytes=1_000) as it:
            for _ in range(MANY):
                client = await it.client(receive_bytes=4_096)
                await client.say(*encode(Kind.HELLO, {}))
                for _ in range(20):
                    await client.say(*encode(Kind.PING, {}, [b"x" * 60_000], request_id=1))
                client.close()
    assert 0 < sum(line["event"] == "slow_reader_cut" for line in lines) <= LINES


async def test_strangers_at_the_port_for_other_nodes() -> None:
    with capture_logs() as lines:
        async with linked() as (address, _):
            for number in range(MANY):
                stranger = await Raw().connect(address)
                await stranger.say(*encode(Kind.PEER_HELLO, HELLO | {"cluster": f"c{number}"}))
                await stranger.ended()
                stranger.close()
    assert 0 < sum(line["event"] == "peer_refused" for line in lines) <= LINES


MEMBER = {**HELLO, "lineage": "", "members": [0, 1, ["n1", "n2", "n9"]], "rejoining": False, "features": []}


def unknown(*_: object) -> None:
    raise ProtocolError("this node knows no such frame")


async def test_a_member_whose_frames_nobody_knows() -> None:
    """One of a later release, say: it comes again at once, for days."""
    with capture_logs() as lines:
        async with linked() as (address, events):
            events.link_frame = unknown  # type: ignore[method-assign]
            for number in range(MANY):
                member = await Raw().connect(address)
                await member.say(*encode(Kind.PEER_HELLO, MEMBER), *encode(Kind.PROGRESS, {}))
                await member.ended()
                member.close()
                await until(lambda number=number: len(events.ups) >= 2 * number + 2)
    for event in ("link_cut", "link_down"):
        assert 0 < sum(line["event"] == event for line in lines) <= LINES


async def test_a_link_that_is_cut_counts_as_cut() -> None:
    events = Events()
    events.link_frame = unknown  # type: ignore[method-assign]
    links = links_of("n9", events)
    member = await Raw().connect(await links.start("127.0.0.1:0"))
    await member.say(*encode(Kind.PEER_HELLO, MEMBER), *encode(Kind.PROGRESS, {}))
    await member.ended()
    member.close()
    assert links.limits.traffic.cut == 1
    await links.close()


async def test_who_is_dialled_from_here_and_called_back_is_not_said_to_be_wrong() -> None:
    """While this node stood still the others did: `peer_refused` is what operators look for."""
    links = links_of("n1", Events())
    with capture_logs() as lines:
        member = await Raw().connect(await links.start("127.0.0.1:0"))
        await member.say(*encode(Kind.PEER_HELLO, {**MEMBER, "node": "n9"}))
        await member.ended()
        member.close()
        await links.close()
    assert not [line for line in lines if line["event"] == "peer_refused"]
