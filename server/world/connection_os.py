"""A real connection (ports.net): TCP, optionally TLS, frames in and out.

What callers send within one turn of the loop leaves in one gathered write. Lengths are
checked before anything is allocated for them; whoever is slow to introduce himself, slow to
end a frame, or slow to read is cut.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

import structlog

from logboom.errors import LogboomError
from logboom.wire import PLACE_BYTES, READ_BYTES, Frame, FrameDecoder
from ports.invariant import InvariantViolated
from ports.net import Buffer, Connection, ConnectionHandler, ConnectionLimits
from ports.seldom import Seldom
from server.world.accepting import keep_alive
from server.world.addresses import names_in
from server.world.crowd import Crowd
from server.world.unread import SLICE_BYTES, Unread, passed_on_by, sliced

log = structlog.get_logger(__name__)


class AsyncioConnection(asyncio.BufferedProtocol):
    """One connection, both the transport's protocol and the handler's Connection."""

    def __init__(
        self,
        handler: ConnectionHandler,
        *,
        limits: ConnectionLimits,
        fatal: Callable[[BaseException], None],
        crowd: Crowd,
        reading: Reading,
        seldom: Seldom,
        unread: Unread,
    ) -> None:
        self._handler = handler
        self._seldom = seldom
        self._unread = unread
        self._limits = limits
        self._fatal = fatal
        self._crowd = crowd
        self._decoder = FrameDecoder(
            frame_bytes_max=limits.unauthenticated_frame_bytes, shared=reading.shared, place_bytes=reading.place_bytes
        )
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._queue: list[Buffer] = []
        self._queued = 0
        self._taken = 0
        """Bytes that were to be sent, since it was opened."""
        self._unsent = 0
        """What the transport had after the last write: since then it can only have become less."""
        self._flushing = False
        self._held_back = False
        self._due: asyncio.TimerHandle | None = None
        self._closed = False
        self._was_congested = False
        self._low = False
        """The transport is to say when it has nothing left, and not when it has little."""
        self._passed_on: Callable[[], int] | None = None
        """With TLS, what that has passed on, and does not count any more."""
        self._paused = False
        self._error: Exception | None = None
        self._handshake: asyncio.TimerHandle | None = None
        self._frame_timer: asyncio.TimerHandle | None = None
        self._remote = "?"
        self._identities: frozenset[str] = frozenset()

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._crowd.opened(self)
        self._limits.traffic.opened += 1
        peer = transport.get_extra_info("peername")
        self._remote = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
        self._identities = names_in(transport.get_extra_info("peercert"))
        self._transport.set_write_buffer_limits(high=self._limits.send_buffer_bytes // 2)
        self._passed_on = passed_on_by(transport) if transport.get_extra_info("ssl_object") is not None else None
        self._handshake = self._loop.call_later(self._limits.handshake_s, self._too_slow, "introduce itself")
        self._guard(lambda: self._handler.opened(cast(Connection, self)))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.room()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closed:
            return
        self._limits.traffic.bytes_in += nbytes
        try:
            frames = self._receive(nbytes)
        except InvariantViolated as error:
            self._fatal(error)
            self._cut(error)
            return
        except Exception as error:  # noqa: BLE001 - it is logged
            if not isinstance(error, LogboomError):
                self._seldom.say(log.error, "connection_handler_failed", remote=self._remote, exc_info=error)
            self._cut(error)
            return
        self._limits.traffic.frames_in += frames
        if self._frame_timer is not None or self._decoder.mid_frame:
            self._watch_frame(fresh=frames > 0)
        self._guard(self._handler.read_done)

    def _receive(self, size: int) -> int:
        # Until the introduction is done one frame at a time: what follows it has another limit.
        count, one = 0, self._handshake is not None
        frames = self._decoder.received(size, frames_max=one)
        while frames:
            for frame in frames:
                if not self._closed:  # an earlier frame of the same read may have ended it
                    self._handler.frame(frame)
            count += len(frames)
            if not one:
                break
            one = self._handshake is not None
            frames = self._decoder.feed(b"", frames_max=one)
        return count

    def _watch_frame(self, *, fresh: bool) -> None:
        if self._frame_timer is not None and (fresh or not self._decoder.mid_frame):
            self._frame_timer.cancel()
            self._frame_timer = None
        if self._frame_timer is None and self._decoder.mid_frame and not self._paused:
            self._frame_timer = self._loop.call_later(self._limits.frame_s, self._too_slow, "end a frame")

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """The transport's own buffer is high; ``congested`` tells."""

    def resume_writing(self) -> None:
        if self._low and self._transport is not None:
            self._low = False
            self._transport.set_write_buffer_limits(high=self._limits.send_buffer_bytes // 2)
        self._notice_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.ended(self)
        self._closed = True
        self._unread.note(self, 0)
        if not self.ended.done():
            self.ended.set_result(None)
        for timer in (self._handshake, self._frame_timer, self._due):
            if timer is not None:
                timer.cancel()
        self._queue.clear()
        # Handlers and connections know each other: they are garbage that is looked for now and then, and what TLS has
        # for each of them is fifty times as large.
        self._transport = self._passed_on = None
        self._guard(lambda: self._handler.closed(self._error or exc))

    # -- the handler's side (ports.net.Connection)

    @property
    def remote(self) -> str:
        """See Connection."""
        return self._remote

    @property
    def peer_identities(self) -> frozenset[str]:
        """See Connection."""
        return self._identities

    def authenticated(self) -> None:
        """See Connection."""
        self._crowd.introduced(self)
        self._decoder.frame_bytes_max = self._limits.frame_bytes
        self._decoder.header_bytes_max = self._limits.header_bytes
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None

    def send(self, buffers: Sequence[Buffer], *, frames: int = 1) -> None:
        """See Connection."""
        if self._closed:
            return
        size = sum(map(len, buffers))
        self._queue += buffers
        self._queued += size
        self._taken += size
        self._limits.traffic.frames_out += frames
        self._limits.traffic.bytes_out += size
        self._held_back = False
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        bound = self._limits.send_buffer_bytes
        if self._queued + self._unsent > 2 * bound:
            whole = self._buffered()
            if whole > 2 * bound and whole - size > bound:  # one is taken whatever its size: it would come again
                self.cut()

    def cut(self) -> None:
        """It reads too slowly (unread.Holder)."""
        self._seldom.say(log.warning, "slow_reader_cut", remote=self._remote, bytes=self._queued + self._unsent)
        self._limits.traffic.cut += 1
        self.abort()

    def flush(self) -> None:
        """See Connection."""
        if self._queue and not self._closed:
            self._write()

    def hold_back(self, seconds: float) -> None:
        """See Connection."""
        if self._queue and not self._closed:
            self._held_back = True
            if self._due is None:
                self._due = self._loop.call_later(seconds, self._write)

    def _flush(self) -> None:
        self._flushing = False
        if self._queue and not self._held_back:
            self._write()

    def _write(self) -> None:
        queue, size, self._queue, self._queued = self._queue, self._queued, [], 0
        if self._due is not None:
            self._due.cancel()
            self._due = None
        transport = self._transport
        if transport is None or transport.is_closing() or not queue:
            return
        more = self._passed_on
        if size > SLICE_BYTES and more is not None:
            for some in sliced(queue):
                transport.writelines(some)
        elif len(queue) == 1:
            transport.write(queue[0])
        else:
            transport.writelines(queue)
        if self._unread.knows(self) or transport.get_write_buffer_size() or (more is not None and more()):
            self.look()
            self._unread.make_room()
        if self._unsent > self._limits.send_buffer_bytes:
            self._was_congested = True
        elif self._was_congested:
            self._loop.call_soon(self._notice_drained)  # the transport was never full: it will not say so

    def look(self) -> None:
        """What the transport has not sent (unread.Holder)."""
        self._unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        self._unread.note(self, self._unsent + (0 if self._passed_on is None else self._passed_on()))

    def _buffered(self) -> int:
        if self._unsent:
            self.look()
        return self._queued + self._unsent

    @property
    def queued(self) -> int:
        """See Connection."""
        return self._buffered()

    @property
    def left_bytes(self) -> int:
        """See Connection."""
        return self._taken - self._buffered()

    @property
    def arriving(self) -> Frame | None:
        """See Connection."""
        return self._decoder.arriving

    @property
    def congested(self) -> bool:
        """See Connection."""
        waiting = self._buffered() if self._unsent else self._queued
        high = waiting > self._limits.send_buffer_bytes
        if waiting and not high and self._unread.tight:
            high = True
            if self._unsent and not self._low and self._transport is not None:
                self._low = True
                self._transport.set_write_buffer_limits(high=0)
        self._was_congested |= high
        return high

    def _notice_drained(self) -> None:
        if self._was_congested and not self._closed:
            self._was_congested = False
            self._guard(self._handler.drained)

    def pause_reading(self) -> None:
        """See Connection."""
        if self._transport is not None and not self._closed:
            self._paused = True
            self._transport.pause_reading()
            if self._frame_timer is not None:
                self._frame_timer.cancel()
                self._frame_timer = None

    def resume_reading(self) -> None:
        """See Connection."""
        if self._transport is not None and not self._closed:
            self._paused = False
            self._transport.resume_reading()
            self._watch_frame(fresh=False)

    def close(self) -> None:
        """See Connection."""
        if self._transport is not None and not self._closed:
            self._write()
            self._closed = True
            self._transport.close()

    def abort(self) -> None:
        """See Connection."""
        self._closed = True
        self._unsent = 0
        self._unread.note(self, 0)
        if self._transport is not None:
            self._transport.abort()

    def _too_slow(self, what: str) -> None:
        self._seldom.say(log.warning, "connection_too_slow", remote=self._remote, to=what)
        self._cut(TimeoutError(f"{self._remote} took too long to {what}"))

    def _cut(self, error: BaseException) -> None:
        self._error = error if isinstance(error, Exception) else None
        self._limits.traffic.cut += 1
        refuse = getattr(self._handler, "refuse", None)
        if refuse is not None and isinstance(error, LogboomError) and not self._closed:
            self._guard(lambda: refuse(error))
            self._write()
            self._closed = True
            if self._transport is not None:
                # Tell it why, but do not wait for it to listen.
                self._transport.close()
                self._loop.call_later(1.0, self._transport.abort)
            return
        self.abort()

    def _guard(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except InvariantViolated as error:
            self._fatal(error)
        except Exception as error:  # noqa: BLE001 - it is logged
            self._seldom.say(log.error, "connection_handler_failed", remote=self._remote, exc_info=error)
            self.abort()


class Reading:
    """How the connections of one loop read. What has come is taken out of ``shared`` before the next one reads."""

    def __init__(self, *, shared_bytes: int = READ_BYTES, place_bytes: int = PLACE_BYTES) -> None:
        """``place_bytes``: see FrameDecoder."""
        self.shared = memoryview(bytearray(shared_bytes))
        self.place_bytes = place_bytes
