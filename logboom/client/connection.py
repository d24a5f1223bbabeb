"""One connection to one node: handshake, pipelined requests, streams, cancellation."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, cast

from logboom.errors import LogboomError, ProtocolError, Unavailable, UnknownOutcome, from_wire
from logboom.wire import PROTOCOL_VERSION, Buffer, Frame, FrameDecoder, Kind, encode

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
CLIENT_NAME: Final = "logboom-py/0.1"


class NodeConnection(asyncio.Protocol):
    """Made by ``open``. Every request gets its reply, or an error that says what may have happened."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.welcome: dict[str, Any] = {}
        self.closed = False
        self._decoder = FrameDecoder(frame_bytes_max=FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Frame]] = {}
        self._streams: dict[int, asyncio.Queue[Frame | LogboomError]] = {}
        self._queue: list[Buffer] = []
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def open(
        cls, address: str, *, tls: ssl.SSLContext | None, timeout: float, token: str | None
    ) -> NodeConnection:
        """Connect and introduce ourselves. Raises Unavailable or what the node answered."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                _, protocol = await loop.create_connection(
                    lambda: cls(address),
                    host.strip("[]"),
                    int(port),
                    ssl=tls,
                    server_hostname="" if tls is not None else None,
                )
                connection = cast(NodeConnection, protocol)
                hello = {"version": PROTOCOL_VERSION, "client": CLIENT_NAME, "cluster": None, "token": token}
                try:
                    connection.welcome = (await connection.request(Kind.HELLO, hello)).header
                except BaseException:
                    connection.close()
                    raise
        except (OSError, TimeoutError, UnknownOutcome) as error:
            why = str(error) or type(error).__name__
            raise Unavailable(f"{address} cannot be reached: {why}", address=address) from error
        return connection

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._decoder.feed(data)
        except LogboomError as error:
            self._lost(error)
            self.close()
            return
        for frame in frames:
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(exc)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- requests

    async def writable(self) -> None:
        """Wait while the node is not reading fast enough."""
        await self._writable.wait()

    async def request(self, kind: Kind, header: Mapping[str, Any], body: Sequence[Buffer] = ()) -> Frame:
        """Send, wait for the reply. Cancelling tells the node. Raises the node's error, or UnknownOutcome."""
        if self.closed:
            raise Unavailable(f"the connection to {self.address} is closed", address=self.address)
        request_id = next(self._ids)
        reply: asyncio.Future[Frame] = self._loop.create_future()
        self._replies[request_id] = reply
        self._send(encode(kind, header, body, request_id=request_id))
        try:
            return await reply
        except asyncio.CancelledError:
            self._send(encode(Kind.CANCEL, {}, request_id=request_id))
            raise
        finally:
            self._replies.pop(request_id, None)

    async def stream(
        self, kind: Kind, header: Mapping[str, Any], *, credit: int = 0
    ) -> AsyncIterator[Frame]:
        """Frames of a streamed reply; ``credit`` bytes are granted again as frames are consumed."""
        if self.closed:
            raise Unavailable(f"the connection to {self.address} is closed", address=self.address)
        request_id = next(self._ids)
        queue = self._streams[request_id] = asyncio.Queue()
        finished = False
        self._send(encode(kind, header, request_id=request_id))
        try:
            while True:
                item = await queue.get()
                if isinstance(item, LogboomError):
                    finished = True
                    raise item
                finished = not item.more
                yield item
                if finished:
                    return
                if credit:
                    self._send(encode(Kind.CREDIT, {"bytes": len(item.body)}, request_id=request_id))
        finally:
            self._streams.pop(request_id, None)
            if not finished and not self.closed:
                self._send(encode(Kind.CANCEL, {}, request_id=request_id))

    def close(self) -> None:
        """Idempotent."""
        self._lost(None)
        if self._transport is not None:
            self._flush()
            self._transport.close()

    # -- inside

    def _send(self, buffers: Sequence[Buffer]) -> None:
        if not self._queue:
            self._loop.call_soon(self._flush)
        self._queue.extend(buffers)

    def _flush(self) -> None:
        queue, self._queue = self._queue, []
        if queue and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(queue)

    def _on_frame(self, frame: Frame) -> None:
        stream = self._streams.get(frame.request_id)
        error = from_wire(frame.header) if frame.kind is Kind.ERROR else None
        if stream is not None:
            stream.put_nowait(error or frame)
            return
        reply = self._replies.get(frame.request_id)
        if reply is not None and not reply.done():
            if error is not None:
                reply.set_exception(error)
            else:
                reply.set_result(frame)
        elif error is not None and frame.request_id == 0:
            self._lost(error)

    def _lost(self, error: BaseException | None) -> None:
        self.closed = True
        self._writable.set()
        why = f": {error}" if error else ""
        if isinstance(error, LogboomError) and not isinstance(error, ProtocolError):
            told: LogboomError = error
        else:
            told = UnknownOutcome(f"the connection to {self.address} was lost{why}", address=self.address)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(told)
        for stream in self._streams.values():
            stream.put_nowait(told)
        self._streams.clear()
