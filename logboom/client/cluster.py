"""The cluster as a client sees it: members, connections, who leads; retries within a deadline."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from logboom.client.connection import NodeConnection
from logboom.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LogboomError,
    NotLeader,
    Unavailable,
    UnknownOutcome,
)

T = TypeVar("T")

BACKOFF_MIN_S: Final = 0.01
BACKOFF_MAX_S: Final = 0.5
CONNECT_S: Final = 2.0


def parse_endpoints(endpoints: str | Sequence[str]) -> list[str]:
    """Addresses of a comma-separated list. Raises InvalidRequest, naming the bad one."""
    rows = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
    found = []
    for row in rows:
        address = row.strip()
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise InvalidRequest(f"endpoint {row!r} is not host:port")
        found.append(address)
    if not found:
        raise InvalidRequest("no endpoints given")
    return found


class Cluster:
    """Shared by everything that a client does."""

    def __init__(self, endpoints: str | Sequence[str], *, tls: ssl.SSLContext | None, token: str | None) -> None:
        self.endpoints = parse_endpoints(endpoints)
        self.members: dict[str, str] = {}
        self.partitions: list[list[Any]] = []
        self.frame_bytes = 1024 * 1024
        self._tls = tls
        self._token = token
        self._connections: dict[str, NodeConnection] = {}
        self._opening: dict[str, asyncio.Task[NodeConnection]] = {}
        self._leader: str | None = None
        self.forward = False
        """The leader is known and cannot be reached from here: other nodes must pass requests on."""
        self._next = random.randrange(len(self.endpoints))
        self._rng = random.Random()

    @property
    def now(self) -> float:
        """The loop's clock, which deadlines are on."""
        return asyncio.get_running_loop().time()

    def addresses(self) -> list[str]:
        """Every node that is known of; given endpoints first."""
        return list(dict.fromkeys([*self.endpoints, *self.members.values()]))

    async def connection(self, address: str) -> NodeConnection:
        """An open connection to one node; concurrent callers share it. Raises Unavailable."""
        known = self._connections.get(address)
        if known is not None and not known.closed:
            return known
        task = self._opening.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                NodeConnection.open(address, tls=self._tls, timeout=CONNECT_S, token=self._token)
            )
            self._opening[address] = task
            task.add_done_callback(lambda _: self._opening.pop(address, None))
        opened = await asyncio.shield(task)
        self._connections[address] = opened
        self._learn(opened.welcome)
        return opened

    def _learn(self, welcome: dict[str, Any]) -> None:
        self.members.update(welcome.get("members", {}))
        self.partitions = welcome.get("partitions", self.partitions)
        self.frame_bytes = welcome.get("frame_bytes", self.frame_bytes)
        self._leader = welcome.get("leader") or self._leader

    async def any(self) -> NodeConnection:
        """A connection to some node, in turn. Raises Unavailable when none can be reached."""
        error: LogboomError | None = None
        addresses = self.addresses()
        for _ in addresses:
            self._next += 1
            try:
                return await self.connection(addresses[self._next % len(addresses)])
            except LogboomError as caught:
                error = caught
        raise Unavailable(f"no node can be reached ({', '.join(addresses)}): {error}")

    async def leader(self) -> NodeConnection:
        """A connection to the node that is believed to lead; raises Unavailable while there is none."""
        if self._leader is not None:
            try:
                found = await self.connection(self._leader)
                self.forward = False
                return found
            except Unavailable:
                self._leader = None
        found = await self.any()
        if self._leader is None or found.address == self._leader:
            return found  # it leads, or will say who does
        try:
            return await self.connection(self._leader)
        except Unavailable:
            self.forward = True
            return found

    def heard(self, error: LogboomError) -> None:
        """Learn from an answer who leads."""
        if isinstance(error, NotLeader):
            self._leader = error.fields.get("leader")
        elif isinstance(error, Unavailable | UnknownOutcome):
            self._leader = None

    async def at_leader(self, call: Callable[[NodeConnection], Awaitable[T]], *, deadline: float) -> T:
        """``call`` at the leader, again after every retryable error, until the deadline."""
        return await self.retry(self.leader, call, deadline=deadline)

    async def retry(
        self,
        connect: Callable[[], Awaitable[NodeConnection]],
        call: Callable[[NodeConnection], Awaitable[T]],
        *,
        deadline: float,
    ) -> T:
        """Jittered exponential backoff; a redirect is followed at once (but not for ever)."""
        pause, sent, redirects, doubt = BACKOFF_MIN_S, False, 0, False
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await connect()
                    answer = call(connection)
                    sent = True
                    return await answer
            except TimeoutError:
                raise DeadlineExceeded(
                    "the deadline passed before an answer came", outcome="unknown" if sent else "not_applied"
                ) from None
            except LogboomError as error:
                self.heard(error)
                doubt |= error.outcome == "unknown"
                if doubt:
                    error.outcome = "unknown"  # an earlier attempt may have taken effect
                if not error.retryable or self.now >= deadline:
                    raise
                if isinstance(error, NotLeader) and error.fields.get("leader") and redirects < 3:
                    redirects += 1
                    continue
                redirects = 0
                hint = float(error.fields.get("retry_after") or 0.0)
                wait = max(hint, pause) * (0.5 + self._rng.random())
                if self.now + wait >= deadline:
                    raise
            await asyncio.sleep(wait)
            pause = min(pause * 2, BACKOFF_MAX_S)

    async def close(self) -> None:
        """Close every connection."""
        for task in list(self._opening.values()):
            task.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        await asyncio.sleep(0)
