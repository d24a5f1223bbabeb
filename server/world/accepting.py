"""A bound port that takes in as many connections as there is room for, whoever they are.

The event loop's own servers take whatever comes and show it when TLS has been agreed upon: whoever only connected could
have all of a process's descriptors, and a node that has none left for its files ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import resource
import socket
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

import structlog

from logboom.certs import Tls, current
from server.world.crowd import Crowd, address_of

log = structlog.get_logger(__name__)

AT_ONCE: Final = 64
"""How many connections are taken in during one turn of the loop."""
AGAIN_S: Final = 0.5
"""Seconds until it is tried again to accept: for want of memory, or of descriptors, which others have taken."""
TOLD_S: Final = 10.0
"""Refusals are logged at most so often."""
CLOSE_S: Final = 1.0
SPARE_MIN: Final = 64
SPARE_SHARE: Final = 8
"""One in so many descriptors is kept for files."""
SPARE_LEAST: Final = 32
FREE_S: Final = 0.001
"""By then whoever was cut has given his descriptor back."""
CONNECTIONS_LEAST: Final = 64
"""So many may take what is kept, up to the last ones: files alone may have taken all the rest, and others call all the
same, the other nodes above all."""
KEPT_ALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Whoever says nothing is asked by the system whether it is there, after so many seconds, every so many, so often: a
machine that went without a word would have its connection for ever."""
NOT_HERE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""A name may have an address that this machine has not: `localhost` where there is no IPv6, as in most containers."""


ADVICE: Final = {
    errno.EADDRNOTAVAIL: "; this machine has no such address: `client_address`, `peer_address` and `http_address` of "
    "[node] say where to listen instead",
    errno.EADDRINUSE: "; another process listens there",
}


def why_not(error: OSError) -> str:
    """For people: why a port cannot be bound."""
    return f"{error.strerror or error}{ADVICE.get(error.errno or 0, '')}"


class Port:
    """Listens until it is closed. Connections that are open are the caller's."""

    def __init__(
        self,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        connections: Collection[Any],
        connections_max: int,
        tls: Tls | None,
        handshake_s: float,
        refused: Callable[[], None],
        crowd: Crowd | None = None,
        crowds: list[Crowd] | None = None,
    ) -> None:
        """``make`` makes a protocol, which is in ``connections`` from its opening to its end.

        ``crowd``: of the same connections; then protocols can ``abort``, and those that keep a place go for others.
        ``crowds``: of all bound ports of one process, which share its descriptors.
        """
        self._crowd = crowd
        self._crowds = list[Crowd]() if crowds is None else crowds
        self._make = make
        self._connections = connections
        self._connections_max = connections_max
        self._tls = tls
        self._handshake_s = handshake_s
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._again: dict[socket.socket, asyncio.TimerHandle] = {}
        self._beginning: dict[asyncio.Task[None], asyncio.BaseProtocol] = {}
        self._told_at = -TOLD_S

    async def bind(self, host: str, port: int, backlog: int) -> str:
        """Listen; returns the address as bound. Raises OSError."""
        found = dict.fromkeys(
            await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        )
        lacking: OSError | None = None
        try:
            for family, kind, protocol, _, address in found:
                try:
                    self._listen(family, kind, protocol, address, backlog)
                except OSError as error:
                    if error.errno not in NOT_HERE:
                        raise
                    lacking = error
            if lacking is not None and not self._sockets:
                raise lacking
        except OSError:
            self._close_sockets()
            raise
        for sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)
        if self._crowd is not None:
            self._crowds.append(self._crowd)
        bound, number = self._sockets[0].getsockname()[:2]
        return f"{bound}:{number}"

    def _listen(self, family: int, kind: int, protocol: int, address: Any, backlog: int) -> None:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.settimeout(0)
            sock.bind(address)
            sock.listen(backlog)
        except OSError:
            sock.close()
            raise
        self._sockets.append(sock)

    def _accept(self, sock: socket.socket) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        spare = max(SPARE_MIN, limit // SPARE_SHARE)
        count = self._count()
        for number in range(AT_ONCE):
            few = _left(sock, limit) <= (SPARE_LEAST if count < CONNECTIONS_LEAST else spare)
            if few and number:
                return  # is there another one? The next turn says so
            if few and self._spares(count):
                self._later(sock, FREE_S)
                return
            try:
                taken, peer = sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._tell("cannot_accept", error=str(error))
                self._later(sock, AGAIN_S)
                return
            if few or not self._has_room(count, peer):
                taken.close()
                self._refused()
                self._tell("too_many_connections", limit=self._connections_max, open_files_limit=limit if few else None)
                continue
            taken.settimeout(0)
            made = self._make()
            task = self._loop.create_task(self._begin(taken, made))
            self._beginning[task] = made
            task.add_done_callback(self._begun)
            if self._crowd is not None:
                self._crowd.comes(made, address_of(peer), partial(self._cut, task, made))
            count = count + 1 if self._crowd is None else len(self._crowd)

    def _count(self) -> int:
        if self._crowd is not None:
            return len(self._crowd)
        return len(self._connections) + sum(made not in self._connections for made in self._beginning.values())

    def _spares(self, count: int) -> bool:
        """A stranger goes, of whichever port has most of them from one address: descriptors are all ports'.

        With many connections this port may have none of those that are kept, and nobody who may goes for it: another
        node, say, which is about to introduce itself. Where it is full one of its own has to go in any case.
        """
        if count >= self._connections_max:
            return self._crowd is not None and self._crowd.make_room()
        held = count >= CONNECTIONS_LEAST
        there = (each for each in self._crowds if not held or len(each) >= CONNECTIONS_LEAST)
        loudest = max(there, key=lambda each: each.loudest, default=None)
        return loudest is not None and loudest.make_room()

    def _has_room(self, count: int, peer: Any) -> bool:
        if self._crowd is None:
            return count < self._connections_max
        address = address_of(peer)
        if not self._crowd.admits(address):
            self._tell("too_many_of_one_address", address=address)
            return False
        return len(self._crowd) < self._connections_max or self._crowd.make_room()

    def _cut(self, task: asyncio.Task[None], made: Any) -> None:
        """It had not introduced itself, and others want its place."""
        self._refused()
        self._tell("stranger_cut", limit=self._connections_max)
        made.abort()
        self._loop.call_soon(task.cancel)  # once it has begun: what it was given is closed then

    def _begun(self, task: asyncio.Task[None]) -> None:
        made = self._beginning.pop(task)
        if self._crowd is not None and made not in self._connections:
            self._crowd.ended(made)  # it never opened, or has ended

    def _later(self, sock: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(sock)
        self._again[sock] = self._loop.call_later(seconds, self._accept_again, sock)

    def _accept_again(self, sock: socket.socket) -> None:
        del self._again[sock]
        self._loop.add_reader(sock, self._accept, sock)

    async def _begin(self, taken: socket.socket, made: asyncio.BaseProtocol) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: made,
                taken,
                ssl=current(self._tls),
                ssl_handshake_timeout=self._handshake_s if self._tls is not None else None,
            )
        except (OSError, TimeoutError) as error:  # also what TLS refuses
            log.debug("connection_not_begun", error=str(error))
            taken.close()

    def _tell(self, event: str, **what: object) -> None:
        now = self._loop.time()
        if now - self._told_at >= TOLD_S:
            self._told_at = now
            log.warning(event, **what)

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()

    def stop(self) -> None:
        """Take no more, and give up what is about to begin."""
        for timer in self._again.values():
            timer.cancel()
        self._close_sockets()
        if self._crowd in self._crowds:
            self._crowds.remove(self._crowd)
        for task in self._beginning:
            task.cancel()

    async def ended(self) -> None:
        """After ``stop``: what was about to begin has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*self._beginning, return_exceptions=True)


def _left(sock: socket.socket, limit: int) -> float:
    """Descriptors. The lowest number that is free is taken: a high one says that few are left."""
    if limit == resource.RLIM_INFINITY:
        return math.inf
    try:
        free = os.dup(sock.fileno())
    except OSError:
        return 0
    os.close(free)
    return limit - free


def keep_alive(sock: Any) -> None:
    """As ``KEPT_ALIVE`` says."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEPT_ALIVE.items():
        if hasattr(socket, name):  # by other names elsewhere: then as the system has it
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
