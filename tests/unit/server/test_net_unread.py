"""What clients do not take is bounded over all connections, with TLS and without; who reads notices nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from logboom import certs
from logboom.types import KIB, MIB
from ports.net import Connection
from server.world.unread import LOOK_S, SLICE_BYTES, Unread, beneath, sliced
from tests.unit.server.net_world import PATIENCE_S, Serving, Session, serving, until

MOST = 8 * MIB
WIDE = 64 * MIB
"""What one connection may have is never reached here."""
MUCH = MOST // 2 + MIB // 2
"""More than half."""
LITTLE = 512 * KIB
SYSTEM_BYTES = 64 * KIB
SECURED = pytest.mark.parametrize("secured", [False, True])


class Client(asyncio.Protocol):
    """Reads nothing until it is told to."""

    def __init__(self) -> None:
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.received += len(data)

    def has(self, size: int) -> bool:
        return self.received == size


class Port:
    def __init__(self, it: Serving, tls: Any) -> None:
        self.it, self._tls, self.system_bytes = it, tls, SYSTEM_BYTES
        self.clients: list[Client] = []

    async def connect(self) -> tuple[Client, Session]:
        host, port = self.it.address.rsplit(":", 1)
        name = None if self._tls is None else ""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(Client, host, int(port), ssl=self._tls, server_hostname=name)
        self.clients.append(client)
        number = len(self.clients)
        await until(lambda: len(self.it.sessions) == number and self.it.sessions[-1].connection)
        session = self.it.sessions[-1]
        client.transport.pause_reading()
        for transport, way in ((client.transport, socket.SO_RCVBUF), (session.open._transport, socket.SO_SNDBUF)):  # type: ignore[attr-defined]
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, way, self.system_bytes)
        return client, session


@asynccontextmanager
async def port(secured: bool, directory: Path, **limits: int) -> AsyncIterator[Port]:
    ours = theirs = None
    if secured:
        certs.make_test_authority(directory, ["n1", "n2"])
        ours, theirs = certs.peer_contexts(directory, "n1")[0], certs.peer_contexts(directory, "n2")[1]
    wide: dict[str, Any] = {"send_buffer_bytes": WIDE, "unread_bytes_max": MOST}
    async with serving(tls=ours, **{**wide, **limits}) as it:
        made = Port(it, theirs)
        try:
            yield made
        finally:
            for client in made.clients:
                client.transport.abort()


def held(connection: Any) -> int:
    connection.look()
    return int(connection._unread._held.get(connection, 0))


async def fill(connection: Connection, size: int) -> int:
    """Until so much waits, and the system takes no more of it; returns what it was sent."""
    sent = same = 0
    async with asyncio.timeout(PATIENCE_S):
        while same < 20:
            same += 1
            missing = max(size - held(connection), 0 if connection.queued else 1)
            if missing:
                piece = max(missing, 64 * KIB) if not connection.queued else missing
                connection.send([bytes(piece)])
                sent, same = sent + piece, 0
            await asyncio.sleep(0.001)
    return sent


@SECURED
async def test_what_the_transport_holds_is_counted(secured: bool, tmp_path: Path) -> None:
    """TLS passes on all that it is given at once, and said that nothing was left of it."""
    async with port(secured, tmp_path, unread_bytes_max=0) as it:
        client, session = await it.connect()
        before = session.open.left_bytes
        session.open.send([bytes(16 * MIB), b"x"])
        session.open.flush()
        assert session.open.queued >= 15 * MIB  # the system has the rest
        assert session.open.left_bytes == before + 16 * MIB + 1 - session.open.queued
        client.transport.resume_reading()
        await until(lambda: not session.open.queued)
        assert session.open.left_bytes == before + 16 * MIB + 1


@SECURED
async def test_what_lies_below_tls_is_counted_over_all(secured: bool, tmp_path: Path) -> None:
    """The first answer to each was not: that of thousands who do not read was more than there may be of all."""
    async with port(secured, tmp_path, unread_bytes_max=5 * MIB) as it:
        it.system_bytes = 4 * KIB
        pairs = [await it.connect() for _ in range(16)]
        unread: Unread = pairs[0][1].open._unread  # type: ignore[attr-defined]
        for client, session in pairs:
            if secured:
                beneath(client.transport).pause_reading()  # type: ignore[union-attr]
            session.open.send([bytes(SLICE_BYTES)])
            session.open.flush()
            assert unread.knows(session.open)  # type: ignore[arg-type]
        assert unread.tight
        assert [session.ends for _, session in pairs] == [[]] * 16
        for client, _ in pairs:
            client.transport.abort()
        await until(lambda: all(session.ends for _, session in pairs))
        assert (unread.bytes, unread._held) == (0, {})


@SECURED
async def test_who_holds_something_gets_no_more_while_all_hold_much(secured: bool, tmp_path: Path) -> None:
    async with port(secured, tmp_path) as it:
        (big, much), (_, little), (reader, none) = [await it.connect() for _ in range(3)]
        await fill(little.open, LITTLE)
        assert not little.open.congested
        await fill(much.open, MUCH)
        assert little.open.congested
        assert much.open.congested
        assert not none.open.congested
        reader.transport.resume_reading()
        none.open.send([bytes(MIB)])
        await until(lambda: reader.received == MIB and not none.open.congested)
        assert little.open.congested
        big.transport.resume_reading()
        await until(lambda: not little.open.congested)
        assert (little.ends, much.ends) == ([], [])


def drained_more_often(session: Session, times: int) -> bool:
    return session.drains > times


@SECURED
async def test_who_was_told_to_wait_is_told_when_he_has_nothing_left(secured: bool, tmp_path: Path) -> None:
    """Though it was less than what a connection alone is told of."""
    async with port(secured, tmp_path) as it:
        (_, much), (client, little) = [await it.connect() for _ in range(2)]
        await fill(much.open, MUCH)
        for again in range(3):
            await fill(little.open, LITTLE)
            assert little.open.congested
            assert little.drains == again
            client.transport.resume_reading()
            await until(partial(drained_more_often, little, again))
            assert little.drains == again + 1
            assert not little.open.congested
            client.transport.pause_reading()


@SECURED
async def test_whoever_holds_most_is_cut_when_there_is_too_much(secured: bool, tmp_path: Path) -> None:
    async with port(secured, tmp_path) as it:
        (_, most), (client, some), (reader, none) = [await it.connect() for _ in range(3)]
        await fill(most.open, MOST + MIB)
        assert most.ends == []  # one alone has a bound of its own
        sent = await fill(some.open, MIB)
        await until(lambda: most.ends)
        assert (some.ends, none.ends, it.it.traffic.cut) == ([], [], 1)
        for each in (client, reader):
            each.transport.resume_reading()
        none.open.send([bytes(MIB)])
        await until(lambda: (client.received, reader.received) == (sent, MIB))


@SECURED
async def test_what_was_taken_meanwhile_cuts_nobody(secured: bool, tmp_path: Path) -> None:
    """Most connections become empty without a word: they are asked first."""
    async with port(secured, tmp_path) as it:
        pairs = [await it.connect() for _ in range(4)]
        for client, session in pairs[:3]:
            sent = await fill(session.open, MOST // 3)
            client.transport.resume_reading()
            await until(partial(client.has, sent))
        await fill(pairs[3][1].open, MOST // 3)
        assert [session.ends for _, session in pairs] == [[]] * 4
        assert it.it.traffic.cut == 0


async def test_what_is_closed_holds_nothing(tmp_path: Path) -> None:
    async with port(False, tmp_path) as it:
        pairs = [await it.connect() for _ in range(3)]
        unread: Unread = pairs[0][1].open._unread  # type: ignore[attr-defined]
        for _, session in pairs:
            await fill(session.open, MIB)
        assert unread.bytes >= 3 * MIB
        pairs[0][1].open.abort()
        assert unread.bytes < 3 * MIB
        for client, _ in pairs:
            client.transport.abort()
        await until(lambda: all(session.ends for _, session in pairs))
        assert (unread.bytes, unread._held) == (0, {})


def test_holders_are_asked_now_and_then_and_always_before_one_is_cut() -> None:
    now, asked = [0.0], []

    class Holds:
        def look(self) -> None:
            asked.append(self)
            unread.note(self, 30)

        def cut(self) -> None:
            unread.note(self, 0)

    unread = Unread(100, lambda: now[0])
    first, second, third = Holds(), Holds(), Holds()
    unread.note(first, 51)
    assert not unread.tight
    unread.note(first, 51)
    assert unread.tight  # not asked again so soon
    now[0] = LOOK_S
    assert not unread.tight
    assert asked == [first, first]
    for each in (second, third):
        unread.note(each, 60)
    unread.make_room()  # 150: they say 90
    assert (unread.bytes, asked[2:]) == (90, [first, second, third])


@pytest.mark.parametrize("sizes", [[1], [SLICE_BYTES], [SLICE_BYTES + 1], [3, 2 * SLICE_BYTES, 0, 5], [1000] * 1000])
def test_slices_are_the_same_bytes(sizes: list[int]) -> None:
    buffers = [bytes([at % 251]) * size for at, size in enumerate(sizes)]
    some = [b"".join(each) for each in sliced(buffers)]
    assert b"".join(some) == b"".join(buffers)
    assert max(map(len, some)) <= SLICE_BYTES
    assert len(some) <= sum(sizes) // SLICE_BYTES + 1
