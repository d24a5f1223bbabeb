"""The nodes of a cluster: a connection to each that is asked, to whichever answers, to whoever leads."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from logboom.certs import Tls, current
from logboom.client.connection import NodeConnection
from logboom.client.lookout import Lookout
from logboom.client.parts import CLOSED
from logboom.errors import InvalidRequest, LogboomError, NotLeader, Unavailable, UnknownOutcome
from logboom.types import is_address
from logboom.wire import Kind

CONNECT_S: Final = 2.0
"""For TCP, TLS and WELCOME of one node."""
STAGGER_S: Final = 0.2
"""With no connection open, the next node is tried beside the first after this long."""
MOVED_S: Final = 0.5
"""For whoever leads to say whether a node that cannot be reached is elsewhere by now; asked once in ``CONNECT_S``."""
DOWN_MIN_S: Final = 0.05
DOWN_MAX_S: Final = 2.0
DOWN_KEPT: Final = 64
"""Addresses that are remembered as out of reach: members come and go."""


def parse_endpoints(endpoints: str | Sequence[str]) -> list[str]:
    """Addresses of a comma-separated list. Raises InvalidRequest, naming the bad one."""
    rows: list[Any] = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints or ())
    if not any(rows):  # as of a variable that is not set
        raise InvalidRequest(
            "no endpoints given: addresses of nodes, host:port,host:port,... (`logboom local` prints its)"
        )
    found = []
    for row in rows:
        address = row.strip() if isinstance(row, str) else ""
        if not is_address(address) or "/" in address:  # or the name of a scheme would be looked up
            raise InvalidRequest(f"endpoint {row!r} is not host:port")
        found.append(address)
    return found


class Pool(Lookout):
    """A part of ``Cluster``: the connections to its nodes."""

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        tls: Tls | None,
        token: str | None,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__()
        self.endpoints = parse_endpoints(endpoints)
        self._tls = tls
        self._token = token
        self._opening: dict[str, asyncio.Task[NodeConnection]] = {}
        self._made: weakref.WeakValueDictionary[int, NodeConnection] = weakref.WeakValueDictionary()
        self._serial = itertools.count()
        self._left = weakref.finalize(self, _leave, self._made, os.getpid())
        self._left.atexit = False
        self._ask_again_at = 0.0
        self._rng = rng if rng is not None else random.Random()
        self._next = self._rng.randrange(len(self.endpoints))
        self.closed = False

    def addresses(self) -> list[str]:
        """Every node that is known of; given endpoints first."""
        return list(dict.fromkeys([*self.endpoints, *self.members.values()]))

    def random_bytes(self, count: int) -> bytes:
        """Bytes for ids, by chance."""
        return self._rng.randbytes(count)

    def chance(self) -> float:
        """From 0 to 1, for jitter."""
        return self._rng.random()

    # -- connections

    async def connection(self, address: str) -> NodeConnection:
        """An open connection to one node; concurrent callers share it. Raises Unavailable."""
        known = self._connections.get(address)
        if known is not None and not known.closed:
            return known
        # Shielded: one caller that gives up takes nothing from the others.
        return await asyncio.shield(self._open(address))

    def _open(self, address: str) -> asyncio.Task[NodeConnection]:
        task = self._opening.get(address)
        if task is None:
            if self.closed:  # ``close`` would cancel it before it begins, and it could not say why it ends
                raise InvalidRequest(CLOSED)
            task = self._opening[address] = asyncio.get_running_loop().create_task(self._connect(address))
            task.add_done_callback(lambda done: self._opened(address, done))
        return task

    def _opened(self, address: str, task: asyncio.Task[NodeConnection]) -> None:
        del self._opening[address]
        if not task.cancelled():
            task.exception()  # whoever waited has it; a background attempt is remembered in _down

    async def _connect(self, address: str) -> NodeConnection:
        try:
            opened = await self.dedicated(address)
        except asyncio.CancelledError:
            if self.closed:
                raise InvalidRequest(CLOSED) from None  # by ``close``: whoever waits for this was not cancelled
            raise
        except LogboomError:
            pause = self._down.get(address, (0.0, DOWN_MIN_S / 2))[1] * 2
            pause = min(pause, DOWN_MAX_S)
            if len(self._down) >= DOWN_KEPT:
                self._down = {each: until for each, until in self._down.items() if self.now < until[0]}
            self._down[address] = (self.now + pause * (0.5 + self._rng.random()), pause)
            raise
        self._down.pop(address, None)
        self._connections[address] = opened
        return opened

    def _check_open(self) -> None:
        if self.closed:
            raise InvalidRequest(CLOSED)

    async def dedicated(self, address: str) -> NodeConnection:
        """A connection of one's own, for bulk reads; the caller closes it. Raises Unavailable."""
        self._check_open()
        opened = await NodeConnection.open(
            address,
            tls=current(self._tls),
            timeout=CONNECT_S,
            token=self._token,
            cluster=self.id,
            on_beat=self._beats(),
        )
        self._made[next(self._serial)] = opened
        try:
            self._check_open()  # meanwhile it may be: nobody would close this one
            self._learn(opened.welcome)
        except LogboomError:  # it is of another history, say
            opened.close()
            raise
        return opened

    def _is_down(self, address: str) -> bool:
        return self.now < self._down.get(address, (0.0, 0.0))[0]

    def _live(self) -> list[NodeConnection]:
        """All that are open; not those to nodes that were removed, while there are others."""
        found = [each for each in self._connections.values() if not each.closed]
        return [each for each in found if not self._is_removed(each)] or found

    def _leave_them(self) -> None:
        for each in self._connections.values():
            each.close()

    async def any(self) -> NodeConnection:
        """A connection to some node, in turn; never waits for a dead one while another is there.

        Raises Unavailable when none can be reached.
        """
        addresses = self.addresses()
        self._next = (self._next + 1) % len(addresses)
        chosen = addresses[self._next]
        known, live = self._connections.get(chosen), self._led(self._live())
        if known in live:
            return known
        if live:
            if not self._is_down(chosen) and (known is None or known.closed):
                self._open(chosen)  # for the next time round
            return self._rng.choice(live)
        rotated = addresses[self._next :] + addresses[: self._next]
        return await self._first(sorted(rotated, key=self._is_down))

    async def _first(self, addresses: Sequence[str]) -> NodeConnection:
        """Whoever answers first; each next one is tried a little later."""
        error: LogboomError | None = None
        pending: list[asyncio.Task[NodeConnection]] = []
        waiting = list(addresses)
        while waiting or pending:
            if waiting:
                pending.append(self._open(waiting.pop(0)))
            await asyncio.wait(pending, timeout=STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED)
            for task in [each for each in pending if each.done()]:
                pending.remove(task)
                try:
                    return task.result()
                except LogboomError as caught:
                    # A refusal (credentials, version, another cluster) says more than a dead node.
                    if error is None or isinstance(error, Unavailable):
                        error = caught
        if error is not None and not isinstance(error, Unavailable):
            raise error
        raise Unavailable(f"no node can be reached: {error}", addresses=list(addresses))

    async def at(self, node: str) -> NodeConnection:
        """A connection to a node named by id or address. Raises InvalidRequest for an id nobody has."""
        if not isinstance(node, str):
            raise InvalidRequest(f"a node is named by its id or address, not by {node!r}")
        if node not in self.members and not is_address(node):
            await self.any()
            if node not in self.members:  # another client may have added it since
                await self.any()
            if node not in self.members:  # another client may have added it since
                await self._ask_members(timeout=CONNECT_S)
            if node not in self.members:
                raise InvalidRequest(f"no node {node!r}; members are {', '.join(sorted(self.members))}")
        address = self.members.get(node, node)
        try:
            return await self.connection(address)
        except Unavailable:
            if node not in self.members or not self._live() or self.now < self._ask_again_at:
                raise
            self._ask_again_at = self.now + CONNECT_S
            await self._ask_members(timeout=MOVED_S)  # it may be elsewhere by now
            if self.members.get(node, address) == address:
                raise
            return await self.connection(self.members[node])

    async def _ask_members(self, *, timeout: float) -> None:
        """Learn who they are now, of whoever leads, if it tells us. Raises Unavailable."""
        asked = await self.leader()
        with suppress(LogboomError, TimeoutError):
            async with asyncio.timeout(timeout):
                said = await asked.request(Kind.ADMIN, {"action": "members"})
            self.told_members(said.header.get("members"))

    async def everyone(self) -> dict[str, str]:
        """Node ids and addresses of all members. Raises Unavailable."""
        if not self.members:
            await self.any()
        return dict(self.members)

    # -- the leader

    async def leader(self) -> NodeConnection:
        """A connection to the node that is believed to lead, or, if that cannot be, to one that passes requests on.

        Raises Unavailable when no node can be reached.
        """
        if self._leader is None:
            found = await self.any()
            if self._leader is None:
                return found  # it leads, or will say who does
        leader = self._leader
        for each in self._live():
            if self._leads(each, leader):
                return each
        if not self._live():
            return await self._first([leader, *(a for a in self.addresses() if a != leader)])
        if not self._is_down(leader) and leader not in self._opening:
            task = self._open(leader)
            await asyncio.wait({task}, timeout=STAGGER_S)
            if task.done() and not task.cancelled() and task.exception() is None:
                return task.result()
        return await self.any()

    def _leads(self, connection: NodeConnection, leader: str) -> bool:
        return connection.address == leader or self.members.get(connection.welcome["node"]) == leader

    def must_forward(self, connection: NodeConnection) -> bool:
        """The leader is known and this is not it: the node is asked to pass the request on."""
        return self._leader is not None and not self._leads(connection, self._leader)

    def leads(self, connection: NodeConnection) -> bool:
        """The connection goes to the node that is believed to lead."""
        return self._leader is not None and self._leads(connection, self._leader)

    def heard(self, error: LogboomError, at: NodeConnection | None = None) -> None:
        """Learn from an answer who leads. ``at``: whose it is; None: nobody's, or whoever was believed to lead."""
        if isinstance(error, NotLeader):
            self._learn_leader(error.fields.get("leader"))
        elif isinstance(error, Unavailable | UnknownOutcome) and not self._is_elsewhere(error, at):
            self._leader = None

    def _is_elsewhere(self, error: LogboomError, at: NodeConnection | None) -> bool:
        """It is of another node than the one that is believed to lead, which can be asked: it says nothing of that."""
        leader = self._leader
        if leader is None or not any(self._leads(each, leader) for each in self._live()):
            return False
        address = error.fields.get("address") if at is None else at.address
        return not (address is None or address == leader or (at is not None and self._leads(at, leader)))

    def admitted(self, at: NodeConnection) -> None:
        """A node has taken a write that it was not to pass on: it leads, unless somebody has said another meanwhile."""
        if self._leader is None:
            self._leader = at.address

    def leader_now(self) -> NodeConnection | None:
        """An open connection to the node that is believed to lead, if a frame can be sent there at once."""
        leader = self._leader
        if leader is None:
            return None
        for each in self._connections.values():
            if not each.closed and each.is_writable and self._leads(each, leader):
                return each
        return None

    async def close(self) -> None:
        """Close every connection."""
        self.closed = True
        await asyncio.sleep(0)  # one that has not begun could not say why it ends
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        connections, self._connections = list(self._made.values()), {}
        for connection in connections:
            connection.close()
        await asyncio.sleep(0)  # transports report their end in the next turn
        for connection in connections:
            connection.abort()  # whoever does not take our last bytes is not waited for
        await asyncio.sleep(0)
        self._left.detach()  # last: whoever closes may be cancelled, and not close again


def _leave(made: weakref.WeakValueDictionary[int, NodeConnection], pid: int) -> None:
    """Close the connections of a client that nobody holds, nor has closed: the loop would keep them for ever."""
    if pid == os.getpid():
        for connection in list(made.values()):
            connection.leave()
