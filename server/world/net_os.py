"""The real network (ports.net): ports that are listened on, and addresses that are dialled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from logboom.certs import Tls, current
from logboom.dialing import connect
from logboom.errors import ConfigError
from ports.clock import Clock
from ports.net import Connection, ConnectionHandler, ConnectionLimits
from ports.seldom import Seldom
from server.world.accepting import CLOSE_S, Port, why_not
from server.world.addresses import split_address
from server.world.connection_os import AsyncioConnection, Reading
from server.world.crowd import Crowd
from server.world.unread import Unread

BACKLOG: Final = 1024


class AsyncioListener:
    """A bound port and the connections made through it."""

    def __init__(self, port: Port, address: str, connections: dict[AsyncioConnection, None]) -> None:
        self._port = port
        self._connections = connections
        self.address = address

    async def close(self) -> None:
        """See Listener."""
        self._port.stop()
        ends = [connection.ended for connection in self._connections]
        for connection in list(self._connections):
            connection.close()
        await self._port.ended()
        if ends:
            await asyncio.wait(ends, timeout=CLOSE_S)  # what is queued is on its way
        for connection in list(self._connections):
            connection.abort()


class AsyncioNetwork:
    """TCP on the running loop."""

    def __init__(
        self,
        *,
        clock: Clock,
        on_fatal: Callable[[BaseException], None],
        reading: Reading | None = None,
        port: Callable[..., Port] = Port,
    ) -> None:
        """``port``: makes one; of another kind where connections are not the system's."""
        self._now = clock.monotonic
        self._seldom = Seldom(clock.monotonic)
        self._fatal = on_fatal
        self._reading = Reading() if reading is None else reading
        self._port = port

    async def listen(
        self,
        address: str,
        handler: Callable[[], ConnectionHandler],
        *,
        limits: ConnectionLimits,
        tls: Tls | None,
    ) -> AsyncioListener:
        """See Network. Raises ConfigError if the address cannot be bound."""
        host, port = split_address(address)
        crowd, unread = Crowd(per_address=limits.connections_per_address), Unread(limits.unread_bytes_max, self._now)

        def refused() -> None:
            limits.traffic.refused += 1

        bound = self._port(
            lambda: self._connection(handler(), limits, crowd, unread),
            connections=crowd.open,
            crowd=crowd,
            connections_max=limits.connections_max,
            tls=tls,
            handshake_s=limits.handshake_s,
            refused=refused,
        )
        try:
            found = await bound.bind(host, port, BACKLOG)
        except OSError as error:
            raise ConfigError(f"cannot listen on {address}: {why_not(error)}", path="address") from error
        return AsyncioListener(bound, found, crowd.open)

    async def dial(
        self, address: str, handler: ConnectionHandler, *, limits: ConnectionLimits, tls: Tls | None
    ) -> Connection:
        """See Network."""
        unread = Unread(limits.unread_bytes_max, self._now)
        coroutine = connect(
            lambda: self._connection(handler, limits, Crowd(), unread),
            *split_address(address),
            connect_s=limits.connect_s,
            ssl=current(tls),
            server_hostname="" if tls is not None else None,
            ssl_handshake_timeout=limits.handshake_s if tls is not None else None,
        )
        # Not wait_for: Python 3.11's loses a cancellation that arrives together with the result.
        async with asyncio.timeout(limits.handshake_s):
            _, protocol = await coroutine
        return cast(Connection, protocol)

    def _connection(
        self, handler: ConnectionHandler, limits: ConnectionLimits, crowd: Crowd, unread: Unread
    ) -> AsyncioConnection:
        return AsyncioConnection(
            handler,
            limits=limits,
            fatal=self._fatal,
            crowd=crowd,
            reading=self._reading,
            seldom=self._seldom,
            unread=unread,
        )
