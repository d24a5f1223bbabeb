"""The operators' HTTP port on real sockets (ports.http). One request at a time per connection, everything bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from typing import Final, cast

import structlog

from logboom.certs import Tls
from logboom.errors import ConfigError
from ports.http import HttpLimits, HttpRequest, HttpResponse, Respond
from ports.invariant import InvariantViolated
from ports.seldom import Seldom
from server.world.accepting import Port, why_not
from server.world.addresses import names_in, split_address
from server.world.clock_os import OsClock
from server.world.http_requests import REASONS, HttpRefused, RequestDecoder

log = structlog.get_logger(__name__)

ALWAYS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
CUT_S: Final = 1.0
"""Seconds that whoever has been refused has to read why."""


class _Connection(asyncio.Protocol):
    """From opening to closing. Nothing is read while an answer is made: the next request waits in the kernel."""

    def __init__(self, server: OsHttpListener) -> None:
        self._server = server
        self._limits = server.limits
        self._decoder = RequestDecoder(server.limits)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._due: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._names: frozenset[str] = frozenset()
        self._begun = False
        """A request has begun to come."""
        self.making = False
        """An answer is being made."""
        self._over = False

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._names = names_in(transport.get_extra_info("peercert"))
        self._transport.set_write_buffer_limits(high=0)  # "writing resumes" then means: all of it has been taken
        full = not self._server.make_room()
        self._server.connections[self] = None
        if full:
            self._refuse(503, f"at most {self._limits.connections_max} connections")
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._decoder.feed(data)
        if self._answering is None:
            self._go_on()

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._server.connections.pop(self, None)
        self._unwatch()
        self.resume_writing()
        if self._answering is not None:
            self._answering.cancel()

    # -- requests

    @property
    def answering(self) -> bool:
        """An answer is made, or has not been taken yet."""
        return self._answering is not None

    def _go_on(self) -> None:
        try:
            request = self._decoder.next_request()
        except HttpRefused as error:
            self._refuse(error.status, error.why)
            return
        if request is None:
            if self._decoder.mid_request and not self._begun:
                self._begun = True
                self._watch()  # once for the whole request, however slowly it comes
            return
        if self._transport is None:
            return
        self._begun = False
        self.making = True
        self._unwatch()
        self._transport.pause_reading()
        self._answering = self._loop.create_task(self._answer(replace(request, names=self._names)))

    async def _answer(self, request: HttpRequest) -> None:
        try:
            response = await self._server.respond(request)
        except InvariantViolated as error:
            self._server.fatal(error)
            self.abort()
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not worth more than this answer
            self._server.seldom.say(log.error, "http_failed", path=request.path, exc_info=error)
            response = HttpResponse.text(500, "the node failed to answer; its log says why")
        self.making = False
        if self._over or self._transport is None:
            return
        keep_alive = request.keep_alive and not self._server.closing
        self._watch()
        self._transport.writelines(encode(response, keep_alive=keep_alive, body=request.method != "HEAD"))
        if self._room is not None:
            await self._room
        self._answering = None
        if not keep_alive:
            self._close(self._limits.request_s)
        elif not self._over:
            self._watch()
            self._transport.resume_reading()
            self._go_on()

    def _refuse(self, status: int, why: str) -> None:
        if self._over or self._transport is None:
            return
        self._over = True
        self._unwatch()
        headers = {"Allow": "GET, HEAD"} if status == 405 else {}
        response = HttpResponse(status, f"{why}\n".encode(), headers=headers)
        self._transport.writelines(encode(response, keep_alive=False, body=True))
        self._close()

    def _close(self, cut_s: float = CUT_S) -> None:
        self._over = True
        self._unwatch()
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            # Whoever still sends would get a reset for it, in front of the answer. What comes now is dropped.
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()
        self._due = self._loop.call_later(cut_s, self._transport.abort)

    def abort(self) -> None:
        """At once; what the system has of an answer goes out all the same."""
        self._over = True
        self._server.connections.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    # -- time

    def _watch(self) -> None:
        self._unwatch()
        self._due = self._loop.call_later(self._limits.request_s, self._too_slow)

    def _unwatch(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _too_slow(self) -> None:
        if self._answering is None and self._decoder.mid_request:
            self._refuse(408, f"a request must be whole within {self._limits.request_s:g} s")
        elif self._answering is None:
            self._close()  # idle
        else:
            self.abort()  # it does not take its answer


class OsHttpListener:
    """A bound port (ports.net.Listener)."""

    def __init__(
        self,
        respond: Respond,
        limits: HttpLimits,
        fatal: Callable[[BaseException], None],
        port: Callable[..., Port] = Port,
    ) -> None:
        self._port_of = port
        self.respond = respond
        self.seldom = Seldom(OsClock().monotonic)
        self.fatal = fatal
        self.limits = limits
        self.connections: dict[_Connection, None] = {}
        """The oldest first."""
        self.closing = False
        self.address = ""
        self._port: Port | None = None

    async def bind(self, address: str, tls: Tls | None) -> None:
        """Raises ConfigError."""
        host, port = split_address(address)
        self._port = self._port_of(
            lambda: _Connection(self),
            connections=self.connections,
            connections_max=2
            * self.limits.connections_max,  # the others are being cut, or told that there are too many
            tls=tls,
            handshake_s=self.limits.request_s,
            refused=lambda: None,
        )
        try:
            self.address = await self._port.bind(host, port, self.limits.connections_max)
        except OSError as error:
            raise ConfigError(f"cannot listen on {address}: {why_not(error)}", path="node.http_address") from error

    def make_room(self) -> bool:
        """For one more. Where there is none the oldest goes that asks for nothing, else that does not take its answer.

        Whoever asks is answered then, however many are there who only keep a place: he asks as soon as he has come.
        """
        if len(self.connections) < self.limits.connections_max:
            return True
        idle = (connection for connection in self.connections if not connection.making)
        oldest = min(idle, key=lambda connection: connection.answering, default=None)
        if oldest is None:
            return False
        self.seldom.say(log.warning, "http_connection_cut", limit=self.limits.connections_max)
        oldest.abort()
        return True

    async def close(self) -> None:
        """See Listener."""
        self.closing = True
        if self._port is None:
            return
        self._port.stop()
        for connection in list(self.connections):
            connection.abort()
        await self._port.ended()


class OsHttp:
    """HTTP on the running loop (ports.http.HttpServers)."""

    def __init__(self, *, on_fatal: Callable[[BaseException], None], port: Callable[..., Port] = Port) -> None:
        """``port``: makes one."""
        self._fatal = on_fatal
        self._port = port

    async def listen(self, address: str, respond: Respond, *, limits: HttpLimits, tls: Tls | None) -> OsHttpListener:
        """See HttpServers."""
        listener = OsHttpListener(respond, limits, self._fatal, self._port)
        await listener.bind(address, tls)
        return listener


def encode(response: HttpResponse, *, keep_alive: bool, body: bool) -> list[bytes]:
    """As it is sent."""
    headers = {
        "Date": formatdate(usegmt=True),
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        "Connection": "keep-alive" if keep_alive else "close",
        **ALWAYS,
        **response.headers,
    }
    lines = [f"HTTP/1.1 {response.status} {REASONS[response.status]}", *(f"{k}: {v}" for k, v in headers.items())]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return [head, response.body] if body and response.body else [head]
