"""Real sockets: strangers, sluggards and impostors are closed, nothing is leaked, everyone else is served.

``serving`` checks the second half of that after every test.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from logboom import certs
from logboom.errors import ConfigError, IncompatibleVersion, LogboomError, ProtocolError
from logboom.types import KIB
from logboom.wire import PREFIX, PROTOCOL_VERSION, Frame, Kind, encode
from ports.invariant import InvariantViolated, invariant
from ports.net import Connection, ConnectionLimits
from server.world.clock_os import OsClock
from server.world.net_os import AsyncioNetwork
from tests.unit.server.net_world import LIMITS, PATIENCE_S, SHORT_S, Raw, Serving, Session, serving, until


def prefix(*, size: int = 16, kind: int = 33, version: int = PROTOCOL_VERSION, header: int = 0) -> bytes:
    return PREFIX.pack(size, kind, 0, version, header, 1)


def with_header(header: bytes) -> bytes:
    return prefix(size=16 + len(header), header=len(header)) + header


UNHASHABLE = with_header(b"\x81\x90\x01")  # a map whose key is a list


class TestGarbage:
    @pytest.mark.parametrize(
        ("said", "kind"),
        [
            pytest.param(b"GET / HTTP/1.1\r\n\r\n", ProtocolError, id="http"),
            pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", ProtocolError, id="tls"),
            pytest.param(random.Random(1).randbytes(4096), ProtocolError, id="noise"),
            pytest.param(b"\xff\xff\xff\xff", ProtocolError, id="4 GiB announced"),
            pytest.param(struct.pack("<I", KIB - 3), ProtocolError, id="a byte too many announced"),
            pytest.param(bytes(4), ProtocolError, id="shorter than its prefix"),
            pytest.param(prefix(kind=255), ProtocolError, id="unknown kind"),
            pytest.param(prefix(version=2), IncompatibleVersion, id="another version"),
            pytest.param(prefix(header=1), ProtocolError, id="header longer than the frame"),
            pytest.param(prefix(header=0xFFFFFFFF), ProtocolError, id="4 GiB of header"),
            pytest.param(with_header(b"\xc1\xc1"), ProtocolError, id="not msgpack"),
            pytest.param(with_header(b"\x91" * 900 + b"\x90"), ProtocolError, id="deeply nested"),
            pytest.param(with_header(b"\x90"), ProtocolError, id="not a map"),
            pytest.param(UNHASHABLE, ProtocolError, id="key is a list"),
        ],
    )
    async def test_is_closed_for_what_it_was(self, said: bytes, kind: type[LogboomError]) -> None:
        async with serving() as it:
            client = await it.client()
            await client.say(said)
            assert await client.ended() == b""
            assert type((await it.session_of(0)).error) is kind
            assert it.sessions[0].frames == []

    async def test_after_good_frames_ends_the_connection_too(self) -> None:
        async with serving() as it:
            client = await it.friend()
            await client.say(b"\xff" * 64)
            await client.ended()
            assert isinstance((await it.session_of(0)).error, ProtocolError)

    async def test_many_at_once_leave_a_client_alone(self) -> None:
        async with serving() as it:
            friend = await it.friend()
            strangers = [await it.client() for _ in range(50)]
            for number, stranger in enumerate(strangers):
                await stranger.say(random.Random(number).randbytes(64), b"\xff" * 16)
            await asyncio.gather(*[stranger.ended() for stranger in strangers])
            assert await friend.echoes()

    async def test_a_handler_that_wants_to_says_why(self) -> None:
        class Polite(Session):
            def refuse(self, error: LogboomError) -> None:
                self.open.send(encode(Kind.ERROR, error.to_wire()))

        async with serving(Polite) as it:
            client = await it.client()
            await client.say(b"\xff" * 64)
            answer = await client.hear()
            assert (answer.kind, answer.header["code"]) == (Kind.ERROR, "protocol")
            assert await client.ended() == b""

    async def test_whoever_does_not_listen_to_why_is_cut_all_the_same(self) -> None:
        class Verbose(Session):
            def refuse(self, error: LogboomError) -> None:
                self.open.send([bytes(LIMITS["send_buffer_bytes"] * 2)])

        async with serving(Verbose, send_buffer_bytes=16 * 1024 * KIB) as it:
            client = await it.client(receive_bytes=4096)
            await client.say(b"\xff" * 64)
            await it.session_of(0)


class TestFrameSize:
    async def test_the_bound_rises_with_the_introduction(self) -> None:
        async with serving() as it:
            client = await it.friend()
            assert await client.echoes(body=bytes(60 * KIB))

    async def test_and_is_a_bound_still(self) -> None:
        async with serving() as it:
            client = await it.friend()
            await client.say(struct.pack("<I", 64 * KIB - 3))
            await client.ended()
            assert (await it.session_of(0)).error.limit == 64 * KIB

    async def test_it_holds_for_what_arrives_together_with_the_introduction(self) -> None:
        async with serving() as it:
            client = await it.client()
            await client.say(*encode(Kind.HELLO, {}), *encode(Kind.PING, {}, [bytes(2 * KIB)]))
            await until(lambda: it.sessions and (it.sessions[0].ends or len(it.sessions[0].frames) == 2))
            assert [frame.kind for frame in it.sessions[0].frames] == [Kind.HELLO, Kind.PING]


async def says_nothing(client: Raw) -> None:
    """Connected, and that was it."""


async def spells(client: Raw) -> None:
    """One byte of an introduction at a time."""
    for byte in b"".join(encode(Kind.HELLO, {"name": "x" * 900})):
        await client.say(bytes([byte]))
        await asyncio.sleep(SHORT_S / 10)


async def chats(client: Raw) -> None:
    """Whole frames, but never who it is."""
    while True:
        await client.say(*encode(Kind.PING, {}))
        await asyncio.sleep(SHORT_S / 10)


class TestDeadlines:
    @pytest.mark.parametrize("talk", [says_nothing, spells, chats])
    async def test_who_does_not_introduce_itself_is_cut(self, talk: Callable[[Raw], Coroutine[Any, Any, None]]) -> None:
        async with serving(handshake_s=SHORT_S) as it:
            client = await it.client()
            talking = asyncio.ensure_future(talk(client))
            error = (await it.session_of(0)).error
            talking.cancel()
            await client.ended()
            assert isinstance(error, TimeoutError)
            assert "introduce itself" in str(error)

    @pytest.mark.parametrize("begun", [b"\x20", prefix(size=1000, header=10), prefix(size=1000) + bytes(900)])
    async def test_who_does_not_end_a_frame_is_cut(self, begun: bytes) -> None:
        async with serving(frame_s=SHORT_S) as it:
            client = await it.friend()
            await client.say(begun)
            await client.ended()
            error = (await it.session_of(0)).error
            assert isinstance(error, TimeoutError)
            assert "end a frame" in str(error)

    async def test_who_kept_them_may_be_silent(self) -> None:
        async with serving(handshake_s=SHORT_S, frame_s=SHORT_S) as it:
            friend = await it.friend()
            frame = b"".join(encode(Kind.PING, {}))
            await friend.say(frame, frame[:5])
            await friend.hear()
            await friend.say(frame[5:])
            await friend.hear()
            for number, begun in ((1, b""), (2, b"\x20")):  # both deadlines pass for others, who came later
                await (await it.client()).say(begun)
                await it.session_of(number)
            assert await friend.echoes()

    async def test_who_is_not_read_is_not_slow(self) -> None:
        async with serving(frame_s=SHORT_S) as it:
            paused = await it.friend()
            frame = b"".join(encode(Kind.PING, {}))
            await paused.say(frame + frame[:5])
            await paused.hear()
            it.sessions[0].open.pause_reading()
            await paused.say(frame[5:])
            await (await it.friend()).say(frame[:5])
            await it.session_of(1)
            assert it.sessions[0].ends == []
            it.sessions[0].open.resume_reading()
            await paused.hear()

    async def test_nor_is_who_was_paused_by_the_very_read_that_began_the_frame(self) -> None:
        class Full(Session):
            def frame(self, frame: Frame) -> None:
                super().frame(frame)
                if frame.kind is Kind.CREDIT:
                    self.open.pause_reading()

        async with serving(Full, frame_s=SHORT_S) as it:
            paused = await it.friend()
            frame = b"".join(encode(Kind.PING, {}))
            await paused.say(*encode(Kind.CREDIT, {}), frame[:5])
            assert (await paused.hear()).kind is Kind.CREDIT
            await (await it.friend()).say(frame[:5])
            await it.session_of(1)
            assert it.sessions[0].ends == []
            await paused.say(frame[5:])
            it.sessions[0].open.resume_reading()
            assert (await paused.hear()).kind is Kind.PING


class TestBackpressure:
    async def test_a_paused_connection_takes_nothing_in_until_resumed(self) -> None:
        async with serving() as it:
            paused = await it.friend()
            it.sessions[0].open.pause_reading()
            await paused.say(*encode(Kind.PING, {}))
            assert await (await it.friend()).echoes()  # the loop has turned
            assert len(it.sessions[0].frames) == 1
            it.sessions[0].open.resume_reading()
            assert (await paused.hear()).kind is Kind.PING

    async def test_one_turn_may_queue_twice_the_bound_and_no_more(self) -> None:
        async with serving() as it:
            client = await it.friend()
            session, piece = it.sessions[0], bytes(LIMITS["send_buffer_bytes"] // 2)
            congested = []
            for _ in range(4):
                session.open.send([piece])
                congested.append(session.open.congested)
            assert congested == [False, False, True, True]
            assert session.ends == []
            session.open.send([b"x"])
            await it.session_of(0)
            session.open.send([piece])
            assert await client.ended() == b""

    @pytest.mark.parametrize("secured", [False, True])
    async def test_who_never_reads_is_cut_while_little_waits(self, secured: bool, tmp_path: Path) -> None:
        piece, taken = bytes(64 * KIB), 0
        async with secured_or_not(secured, tmp_path) as (it, connect):
            await connect()
            await until(lambda: it.sessions and it.sessions[0].connection)
            session = it.sessions[0]
            async with asyncio.timeout(PATIENCE_S):
                while not session.ends:
                    session.open.send([piece])
                    taken += len(piece)
                    await asyncio.sleep(0)
            assert taken < kernel_buffers() + 4 * LIMITS["send_buffer_bytes"]

    async def test_a_reader_that_comes_back_gets_all_and_drained_says_so(self) -> None:
        async with serving() as it:
            client = await it.client(receive_bytes=4096)
            await until(lambda: it.sessions and it.sessions[0].connection)
            session, sent = it.sessions[0], 0
            while not session.open.congested:
                session.open.send([bytes(32 * KIB)])
                sent += 32 * KIB
                await asyncio.sleep(0)
            assert session.drains == 0
            reading = asyncio.ensure_future(client.ended())
            await until(lambda: session.drains)
            assert not session.open.congested
            session.open.close()
            assert len(await reading) == sent

    async def test_drained_follows_congestion_even_when_the_kernel_took_all_at_once(self) -> None:
        async with serving() as it:
            client = await it.client()
            await until(lambda: it.sessions and it.sessions[0].connection)
            session = it.sessions[0]
            session.open.send([bytes(LIMITS["send_buffer_bytes"] + 1)])
            assert session.open.congested
            reading = asyncio.ensure_future(client.ended())
            try:
                async with asyncio.timeout(1):
                    await until(lambda: session.drains)
            finally:
                session.open.close()
                await reading

    async def test_close_flushes_first(self) -> None:
        async with serving() as it:
            client = await it.friend()
            content = random.Random(2).randbytes(LIMITS["send_buffer_bytes"])
            it.sessions[0].open.send([content[:1000], content[1000:]])
            it.sessions[0].open.close()
            it.sessions[0].open.close()
            it.sessions[0].open.send([b"too late"])
            assert await client.ended() == content

    async def test_abort_drops_what_is_queued(self) -> None:
        async with serving() as it:
            client = await it.friend()
            it.sessions[0].open.send([b"never"])
            it.sessions[0].open.abort()
            it.sessions[0].open.abort()
            assert await client.ended() == b""


def kernel_buffers() -> int:
    names = ("tcp_wmem", "tcp_rmem")
    return sum(int(Path(f"/proc/sys/net/ipv4/{name}").read_text().split()[2]) for name in names)


@asynccontextmanager
async def secured_or_not(
    secured: bool, directory: Path
) -> AsyncIterator[tuple[Serving, Callable[[], Coroutine[Any, Any, Any]]]]:
    """A listener, and a way to connect to it and never read."""
    if not secured:
        async with serving() as it:
            yield it, it.client
        return

    certs.make_test_authority(directory, ["n1", "n2"])
    server, _ = certs.peer_contexts(directory, "n1")
    _, client = certs.peer_contexts(directory, "n2")
    async with serving(tls=server) as it:
        made: list[Connection] = []

        async def connect() -> None:
            made.append(await it.network.dial(it.address, Session(), limits=ConnectionLimits(**LIMITS), tls=client))
            await until(lambda: it.sessions[0].connection)  # the handshake wants to be read too
            made[-1].pause_reading()

        try:
            yield it, connect
        finally:
            for connection in made:
                connection.abort()


class TestListener:
    async def test_connections_are_bounded(self) -> None:
        async with serving(connections_max=2) as it:
            friends = [await it.friend() for _ in range(2)]
            turned_away = await it.client()
            assert await turned_away.ended() == b""
            assert len(it.sessions) == len(friends)
            friends[0].close()
            await it.session_of(0)
            assert await friends[1].echoes()

    async def test_a_handler_that_fails_costs_its_connection_only(self) -> None:
        class Buggy(Session):
            def frame(self, frame: Frame) -> None:
                if frame.kind is Kind.GET:
                    raise ZeroDivisionError("a bug")
                super().frame(frame)

        async with serving(Buggy) as it:
            friend, unlucky = await it.friend(), await it.friend()
            await unlucky.say(*encode(Kind.GET, {}), *encode(Kind.PING, {}))
            assert await unlucky.ended() == b""
            assert isinstance((await it.session_of(1)).error, ZeroDivisionError)
            assert await friend.echoes()
            assert it.fatal == []

    @pytest.mark.parametrize("where", ["opened", "frame", "closed"])
    async def test_a_broken_invariant_reaches_the_node(self, where: str) -> None:
        class Broken(Session):
            def opened(self, connection: Connection) -> None:
                super().opened(connection)
                invariant(where != "opened", where)

            def frame(self, frame: Frame) -> None:
                invariant(where != "frame", where)

            def closed(self, error: Exception | None) -> None:
                super().closed(error)
                invariant(where != "closed", where)

        async with serving(Broken) as it:
            client = await it.client()
            await client.say(*encode(Kind.PING, {}))
            await until(lambda: it.sessions and it.sessions[0].connection)
            if where == "closed":
                client.close()
            await until(lambda: it.fatal)
            assert isinstance(it.fatal[0], InvariantViolated)

    async def test_close_ends_what_is_open_and_refuses_what_comes(self) -> None:
        sessions: list[Session] = []
        network = AsyncioNetwork(clock=OsClock(), on_fatal=lambda _: None)

        def accept() -> Session:
            sessions.append(Session())
            return sessions[-1]

        listener = await network.listen("127.0.0.1:0", accept, limits=ConnectionLimits(**LIMITS), tls=None)
        clients = [await Raw().connect(listener.address) for _ in range(3)]
        for client in clients:
            assert await client.echoes(Kind.HELLO)
        await listener.close()
        for client in clients:
            await client.ended()
            client.close()
        await until(lambda: all(session.ends for session in sessions))
        assert [session.ends for session in sessions] == [[None]] * 3
        with pytest.raises(OSError):
            await network.dial(listener.address, Session(), limits=ConnectionLimits(**LIMITS), tls=None)

    @pytest.mark.parametrize("address", ["", "host", ":1", "[]:1", "host:", "host:http", "host:65536", "host:-1"])
    async def test_an_address_that_is_none_is_a_config_error_of_one_line(self, address: str) -> None:
        network = AsyncioNetwork(clock=OsClock(), on_fatal=lambda _: None)
        with pytest.raises(ConfigError) as error:
            await network.listen(address, Session, limits=ConnectionLimits(), tls=None)
        assert address in str(error.value)
        assert len(str(error.value).splitlines()) == 1

    @pytest.mark.parametrize(
        "address", ["host:\N{SUPERSCRIPT TWO}", "h" * 64 + ":1", "host:" + "9" * 5000, "127.0.0.1\0:1"]
    )
    async def test_nor_do_odd_letters_make_another_error(self, address: str) -> None:
        network = AsyncioNetwork(clock=OsClock(), on_fatal=lambda _: None)
        with pytest.raises(ConfigError):
            await network.listen(address, Session, limits=ConnectionLimits(), tls=None)

    async def test_a_taken_port_is_a_config_error_that_names_it(self) -> None:
        async with serving() as it:
            with pytest.raises(
                ConfigError, match=rf"cannot listen on {it.address}: .*; another process listens there$"
            ):
                await it.network.listen(it.address, Session, limits=ConnectionLimits(), tls=None)


async def test_a_client_that_is_gone_is_asked_for_by_the_system() -> None:
    """Found by review: one whose machine was lost kept its place for as long as the node ran."""
    async with serving() as it:
        await it.client()
        await until(lambda: bool(it.sessions) and it.sessions[0].connection is not None)
        connection: Any = it.sessions[0].open
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, every, times = (
            sock.getsockopt(socket.IPPROTO_TCP, each)
            for each in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + every * times <= 120
