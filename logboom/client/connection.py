"""One connection to one node: handshake, pipelined requests, streams, cancellation, signs of life."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

from logboom.client import handshake
from logboom.client.arrivals import Stream
from logboom.client.turns import Turns
from logboom.dialing import connect
from logboom.errors import (
    InvalidRequest,
    LogboomError,
    Unavailable,
    UnknownOutcome,
    from_wire,
)
from logboom.wire import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    PROTOCOL_VERSION,
    REPLY_BYTES_MAX,
    Buffer,
    Frame,
    FrameDecoder,
    Kind,
    encode,
)

CLIENT_NAME: Final = "logboom-py/0.1"
BEAT_S: Final = 1.0
PING_AFTER_S: Final = 1.0
DEAD_AFTER_S: Final = 4.0
"""A node that owes answers and is silent for this long, PINGs included, is given up."""
STREAM_BYTES_MAX: Final = 16 * 1024 * 1024
"""Received and not yet consumed, per stream; then the connection stops reading, unless somebody waits for more."""
QUEUED_BYTES_MAX: Final = 64 * 1024
"""Before the next flush; who wants to send more waits for his turn."""
UNSENT_BYTES_MAX: Final = 256 * 1024
"""What the kernel takes beyond what the other side has room for: what is in there cannot be given up any more."""
TCP_NOTSENT_LOWAT: Final = 25
"""Of Linux; ``socket`` has it from Python 3.12 on."""

Answered = Callable[[Frame | LogboomError], None]
"""Told once: the reply, or what went wrong."""
OnBeat = Callable[["NodeConnection"], None]
"""Called once a second from WELCOME on, until it is closed."""


class NodeConnection(asyncio.BufferedProtocol):
    """Made by ``open``. Every request gets its reply, or an error that says what may have happened."""

    def __init__(self, address: str, on_beat: OnBeat | None = None) -> None:
        self.address = address
        self._beaten = on_beat
        self.welcome: dict[str, Any] = {}
        self.closed = False
        self._heard = self._secured = False
        self._frame_bytes_max = FRAME_BYTES_MAX
        """Largest frame that we send: what the node says in WELCOME."""
        self._decoder = FrameDecoder(frame_bytes_max=REPLY_BYTES_MAX, header_bytes_max=REPLY_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._replies: dict[int, Answered] = {}
        self._streams: dict[int, Stream] = {}
        self._queue: list[Buffer] = []
        self._queued = 0
        self._congested = False
        self._turns = Turns(self._loop, has_room=self._has_room)
        self._reading = True
        self._alive_at = self._loop.time()
        self._in_debt = False
        """Nothing has come since something was asked for: whoever asked may have given up, and it may be dead."""
        self._unsent = 0
        self._beat_at = self._alive_at
        self._beat: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        tls: ssl.SSLContext | None,
        timeout: float,
        token: str | None,
        cluster: str | None = None,
        on_beat: OnBeat | None = None,
    ) -> NodeConnection:
        """Connect and introduce ourselves.

        Raises Unavailable, Unauthenticated, WrongNode, or what the node answered.
        """
        host, _, port = address.rpartition(":")
        connection: NodeConnection | None = None
        begun = cls(address, on_beat)
        try:
            async with asyncio.timeout(timeout):
                try:
                    _, connection = await connect(
                        lambda: begun,
                        host.strip("[]"),
                        int(port),
                        ssl=tls,
                        server_hostname="" if tls is not None else None,
                    )
                    hello = {"version": PROTOCOL_VERSION, "client": CLIENT_NAME, "cluster": cluster, "token": token}
                    connection.welcome = (await connection.request(Kind.HELLO, hello)).header
                    connection._welcomed()  # noqa: SLF001 - its own class
                except BaseException:
                    begun.abort()  # a TLS transport that is closed waits for the other side's goodbye
                    raise
        except ssl.SSLError as error:
            if not handshake.is_refusal(error):
                raise Unavailable(f"{address} cannot be reached: {error}", address=address) from error
            raise handshake.refused(address, error) from error
        except UnknownOutcome as error:
            hint = "" if connection is None else connection._hint()  # noqa: SLF001
            raise Unavailable(f"{address} cannot be reached: {error}{hint}", address=address) from error
        except (OSError, UnicodeError, TimeoutError) as error:  # a name that cannot be one, too
            other = "" if connection is None else "; is that the port for clients?"
            why = str(error) or f"no answer within {timeout} s{other}"
            raise Unavailable(f"{address} cannot be reached: {why}", address=address) from error
        return connection

    def _welcomed(self) -> None:
        """Raises WrongNode."""
        handshake.check_identity(self.address, self.welcome.get("node"), self._transport)
        self._frame_bytes_max = self.welcome.get("frame_bytes", FRAME_BYTES_MAX)

    def _hint(self) -> str:
        return handshake.hint(heard=self._heard, secured=self._secured)

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self._secured = transport.get_extra_info("ssl_object") is not None
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if sys.platform == "linux":
                sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
        self._alive_at = self._beat_at = self._loop.time()
        self._beat = self._loop.call_later(BEAT_S, self._on_beat)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return self._decoder.room()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        self._alive_at = self._loop.time()
        self._heard, self._in_debt = True, False
        try:
            frames = self._decoder.received(nbytes)
        except LogboomError as error:
            self._lost(error)
            self.close()
            return
        for frame in frames:
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._transport = None
        self._lost(exc)

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._congested = True

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._congested = False
        self._turns.grant()

    # -- requests

    async def writable(self) -> None:
        """Wait for one's turn while the node is not reading fast enough. Then send, before anything is awaited.

        What is not sent yet can still be given up for nothing, so little is queued behind here.
        """
        if not self.is_writable and not self.closed:
            await self._turns.take()

    @property
    def is_writable(self) -> bool:
        """The node reads fast enough, and nobody waits."""
        return not self._turns.waiting and self._has_room()

    def _has_room(self) -> bool:
        return not self._congested and self._queued < QUEUED_BYTES_MAX

    def post(self, kind: Kind, header: Mapping[str, Any], body: Sequence[Buffer], answered: Answered) -> int:
        """Send, and be told of the answer. Not when it is closed. What comes back is for ``forget``.

        Raises RecordTooLarge for what the node would cut the connection for.
        """
        request_id = next(self._ids)
        frame = self._encoded(request_id, kind, header, body)
        self._expect()
        self._replies[request_id] = answered
        self._read_on()
        if len(self._replies) > 1 or self._queue:
            self._send(frame)
        else:  # alone: there is nothing to gather it with
            self._queue = frame
            self._flush()
        return request_id

    def forget(self, request_id: int) -> None:
        """Nobody waits for this answer, should it still be open: the node is told."""
        if self._replies.pop(request_id, None) is not None:
            self._send(encode(Kind.CANCEL, {}, request_id=request_id))

    def _encoded(
        self, request_id: int, kind: Kind, header: Mapping[str, Any], body: Sequence[Buffer] = ()
    ) -> list[Buffer]:
        try:
            return encode(
                kind,
                header,
                body,
                request_id=request_id,
                header_bytes_max=HEADER_BYTES_MAX,
                frame_bytes_max=self._frame_bytes_max,
            )
        except (TypeError, ValueError, OverflowError) as error:  # msgpack's, of what no node has
            raise InvalidRequest(f"{kind.name}: something that was given cannot be sent: {error}") from error

    async def request(self, kind: Kind, header: Mapping[str, Any], body: Sequence[Buffer] = ()) -> Frame:
        """Send, wait for the reply. Cancelling tells the node.

        Raises the node's error, UnknownOutcome, or, for what it would not take, RecordTooLarge.
        """
        if self.closed:
            raise Unavailable(f"the connection to {self.address} is closed", address=self.address)
        reply: asyncio.Future[Frame] = self._loop.create_future()
        request_id = self.post(kind, header, body, partial(_settle, reply))
        try:
            return await reply
        finally:
            self.forget(request_id)

    async def stream(
        self, kind: Kind, header: Mapping[str, Any], *, credit: int = 0, roams: bool = False
    ) -> AsyncGenerator[Frame, None]:
        """Frames of a streamed reply; with ``credit``, as many bytes are granted again as are consumed.

        ``roams``: see Stream.
        """
        if self.closed:
            raise Unavailable(f"the connection to {self.address} is closed", address=self.address)
        request_id = next(self._ids)
        frame = self._encoded(request_id, kind, header)
        self._expect()
        stream = self._streams[request_id] = Stream(roams=roams)
        self._read_on()
        finished = False
        self._send(frame)
        try:
            while not finished:
                item = await stream.get()
                self._read_on()
                if isinstance(item, LogboomError):
                    finished = True
                    raise item
                finished = not item.more
                yield item
                if credit and not finished:
                    self._send(encode(Kind.CREDIT, {"bytes": len(item.body)}, request_id=request_id))
        finally:
            self._streams.pop(request_id, None)
            self._read_on()
            if not finished and not self.closed:
                self._send(encode(Kind.CANCEL, {}, request_id=request_id))

    @property
    def has_streams(self) -> bool:
        """Somebody follows something over it, or reads."""
        return bool(self._streams)

    @property
    def has_roaming(self) -> bool:
        """There are streams that would go on elsewhere."""
        return any(each.roams for each in self._streams.values())

    def end_roaming(self, error: LogboomError) -> None:
        """End those streams here, with this error."""
        for request_id, stream in self._streams.items():
            if stream.roams:
                stream.roams = False
                stream.put(error)
                self._send(encode(Kind.CANCEL, {}, request_id=request_id))

    def close(self, because: LogboomError | None = None) -> None:
        """Idempotent; what waits for an answer gets UnknownOutcome."""
        self._lost(because)
        if self._transport is not None:
            self._flush()
            if not self._transport.is_closing():
                # Once only: closing a TLS transport of Python 3.11 twice leaves one that cannot be aborted.
                self._transport.close()

    def leave(self) -> None:
        """``close``, wherever the collector runs: nobody is there any more who could."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.close)

    def abort(self) -> None:
        """Close without sending what is queued. Idempotent."""
        self._lost(None)
        if self._transport is not None:
            self._transport.abort()

    # -- inside

    def _send(self, buffers: Sequence[Buffer]) -> None:
        if not self._queue:
            self._loop.call_soon(self._flush)
        self._queue.extend(buffers)
        self._queued += sum(map(len, buffers))

    def _flush(self) -> None:
        queue, self._queue, self._queued = self._queue, [], 0
        if queue and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(queue)
        if self._turns.waiting:
            self._turns.grant()

    def _expect(self) -> None:
        """Silence counts from here on, not from before there was anything to answer."""
        if not (self._replies or self._streams or self._in_debt):
            self._alive_at = self._loop.time()
        self._in_debt = True

    def _on_beat(self) -> None:
        if self._transport is None or self.closed:
            return
        self._beat = self._loop.call_later(BEAT_S, self._on_beat)
        now, unsent = self._loop.time(), self._transport.get_write_buffer_size()
        stood_still, self._beat_at = now - self._beat_at - BEAT_S, now
        if stood_still > BEAT_S:  # this loop, or the machine: nobody was asked meanwhile whether he lives
            self._alive_at = min(now, self._alive_at + stood_still)
        owes = self._replies or self._streams or self._in_debt
        if unsent < self._unsent or not self._reading or not owes:
            self._alive_at = now  # it takes what we send, or it is us who do not read, or nothing is owed
        self._unsent = unsent
        silent = now - self._alive_at
        if silent > DEAD_AFTER_S:
            self._lost(UnknownOutcome(f"{self.address} has been silent for {silent:.0f} s", address=self.address))
            self._transport.abort()
        elif silent > PING_AFTER_S:
            self._send(encode(Kind.PING, {}, request_id=next(self._ids)))
        if self._beaten is not None and self.welcome and not self.closed:
            self._beaten(self)

    def _is_waited_for(self) -> bool:
        """Something else is, behind what nobody takes: it may be the same consumer who waits."""
        return bool(self._replies) or not all(each.items for each in self._streams.values())

    def _read_on(self) -> None:
        if self._reading:
            return
        if self._is_waited_for() or all(each.nbytes < STREAM_BYTES_MAX // 2 for each in self._streams.values()):
            self._reading = True
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def _on_frame(self, frame: Frame) -> None:
        error = from_wire(frame.header) if frame.kind is Kind.ERROR else None
        stream = self._streams.get(frame.request_id)
        if stream is not None:
            stream.put(error or frame)
            full = stream.nbytes > STREAM_BYTES_MAX and not self._is_waited_for()
            if full and self._reading and self._transport is not None:
                self._reading = False
                self._transport.pause_reading()
            return
        answered = self._replies.pop(frame.request_id, None)
        if answered is not None:
            answered(error or frame)
        elif error is not None and frame.request_id == 0:
            self._lost(error)

    def _lost(self, error: BaseException | None) -> None:
        self.closed = True
        if self._beat is not None:
            self._beat.cancel()
        self._turns.end()
        replies, self._replies = self._replies, {}
        for answered in replies.values():
            answered(self._why(error))
        for stream in self._streams.values():
            stream.put(self._why(error))
        self._streams.clear()

    def _why(self, error: BaseException | None) -> LogboomError:
        return handshake.lost(self.address, error, welcomed=bool(self.welcome))


def _settle(reply: asyncio.Future[Frame], answer: Frame | LogboomError) -> None:
    if reply.done():
        return  # whoever waited has given up in this very turn
    if isinstance(answer, LogboomError):
        reply.set_exception(answer)
    else:
        reply.set_result(answer)
