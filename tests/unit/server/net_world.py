"""A listener on a real port, its sessions, and clients that may say anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from logboom.types import KIB
from logboom.wire import Buffer, Frame, FrameDecoder, Kind, encode
from ports.net import Connection, ConnectionLimits, Traffic
from server.world.accepting import Port
from server.world.clock_os import OsClock
from server.world.net_os import AsyncioNetwork

LONG_S = 30.0  # a deadline that no test reaches
SHORT_S = 0.25  # a deadline that a test waits for
PATIENCE_S = 15.0  # then a test has failed
LIMITS: dict[str, Any] = {
    "unauthenticated_frame_bytes": KIB,
    "frame_bytes": 64 * KIB,
    "send_buffer_bytes": 256 * KIB,
    "handshake_s": LONG_S,
    "frame_s": LONG_S,
}


@contextlib.contextmanager
def black_hole() -> Iterator[tuple[str, int]]:
    """Takes no connection, and refuses none: its backlog is full."""
    with contextlib.ExitStack() as open_:
        hole = open_.enter_context(socket.socket())
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        for _ in range(4):
            one = open_.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(hole.getsockname())
        yield hole.getsockname()


class Session:
    """The handler: HELLO introduces, everything comes back as it was sent."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.frames: list[Frame] = []
        self.drains = 0
        self.ends: list[Exception | None] = []

    @property
    def open(self) -> Connection:
        assert self.connection is not None
        return self.connection

    @property
    def error(self) -> Exception | None:
        """What it was closed for, once."""
        (error,) = self.ends
        return error

    def opened(self, connection: Connection) -> None:
        self.connection = connection

    def frame(self, frame: Frame) -> None:
        self.frames.append(frame)
        if frame.kind is Kind.HELLO:
            self.open.authenticated()
        self.open.send(encode(frame.kind, frame.header, [frame.body], request_id=frame.request_id))

    def read_done(self) -> None:
        pass

    def drained(self) -> None:
        self.drains += 1

    def closed(self, error: Exception | None) -> None:
        self.ends.append(error)


class Raw:
    """A client that may say anything."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(frame_bytes_max=1 << 30)
        self._frames: list[Frame] = []

    async def connect(self, address: str, *, receive_bytes: int | None = None) -> Raw:
        host, port = address.rsplit(":", 1)
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await self._loop.sock_connect(self._socket, (host, int(port)))
        return self

    async def say(self, *buffers: Buffer) -> None:
        """In one piece, if it fits; a connection that was cut meanwhile is no surprise."""
        with contextlib.suppress(ConnectionError):
            await self._loop.sock_sendall(self._socket, b"".join(buffers))

    async def hear(self) -> Frame:
        async with asyncio.timeout(PATIENCE_S):
            while not self._frames:
                data = await self._loop.sock_recv(self._socket, 1 << 16)
                assert data, "closed"
                self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    async def ended(self) -> bytes:
        """Wait until the other side closes; what it said before."""
        heard = b""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                while data := await self._loop.sock_recv(self._socket, 1 << 16):
                    heard += data
        return heard

    async def echoes(self, kind: Kind = Kind.PING, body: bytes = b"") -> bool:
        await self.say(*encode(kind, {"a": 1}, [body], request_id=7))
        answer = await self.hear()
        return (answer.kind, answer.header, answer.body, answer.request_id) == (kind, {"a": 1}, body, 7)

    def close(self) -> None:
        self._socket.close()


class Serving:
    """A listener, the sessions that it made, and the clients to close at the end."""

    def __init__(self, make: Callable[[], Session], port: Callable[..., Port]) -> None:
        self._make = make
        self.address = ""
        self.sessions: list[Session] = []
        self.fatal: list[BaseException] = []
        self.unhandled: list[dict[str, Any]] = []
        self.traffic = Traffic()
        self.network = AsyncioNetwork(clock=OsClock(), on_fatal=self.fatal.append, port=port)
        self._clients: list[Raw] = []

    def accept(self) -> Session:
        self.sessions.append(self._make())
        return self.sessions[-1]

    async def client(self, *, receive_bytes: int | None = None) -> Raw:
        self._clients.append(Raw())
        return await self._clients[-1].connect(self.address, receive_bytes=receive_bytes)

    async def friend(self) -> Raw:
        """A client that has introduced itself."""
        client = await self.client()
        assert await client.echoes(Kind.HELLO)
        return client

    async def session_of(self, number: int) -> Session:
        """The one that was accepted as that, once it is closed."""
        await until(lambda: len(self.sessions) > number and self.sessions[number].ends)
        return self.sessions[number]

    def hang_up(self) -> None:
        for client in self._clients:
            client.close()


async def until(condition: Callable[[], Any]) -> None:
    """Let the loop run until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - one way to await anything
            await asyncio.sleep(0.001)


def sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names of descriptors
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")  # noqa: PTH115 - the same
    return found


@asynccontextmanager
async def serving(
    make: Callable[[], Session] = Session,
    *,
    tls: ssl.SSLContext | None = None,
    port: Callable[..., Port] = Port,
    **changes: Any,
) -> AsyncIterator[Serving]:
    """A listener. When the block ends, it still serves, and nothing is left of the connections it closed.

    ``port``: makes its own.
    """
    before = sockets()
    it = Serving(make, port)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: it.unhandled.append(context))
    limits = ConnectionLimits(**{**LIMITS, "traffic": it.traffic, **changes})
    listener = await it.network.listen("127.0.0.1:0", it.accept, limits=limits, tls=tls)
    it.address = listener.address
    try:
        yield it
        if make is Session and tls is None:
            assert await (await it.friend()).echoes(body=b"still there")
        it.hang_up()
        await until(lambda: sockets() <= before + 1)  # fewer: what another test had left was collected meanwhile
    finally:
        it.hang_up()
        await listener.close()
    await until(lambda: sockets() <= before)
    assert all(len(session.ends) == 1 for session in it.sessions if session.connection)
    assert not it.unhandled
