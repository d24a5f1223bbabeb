"""Calling the members that this node has no link with, again and again, until each has one or is no member any more."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Container, Mapping
from typing import Final, Protocol

import structlog

from logboom.certs import Tls
from logboom.errors import LogboomError
from logboom.types import NodeId
from ports.clock import Clock
from ports.net import ConnectionHandler, ConnectionLimits, Network
from ports.rng import Rng
from ports.seldom import Seldom
from ports.timers import wait
from raftlog.links.refusals import Refusals

log = structlog.get_logger(__name__)

REDIAL_MIN_S = 0.05
REDIAL_MAX_S = 0.2
"""Short: a node that comes back waits for whoever has to dial it."""
CALL_BACK_S = 2.0
"""Without a link for so long after its start, the node with the larger id dials too: the other may not know of it yet.

Where there was a link it does so soon: who comes back without its disk, and was alone when the cluster began, calls
nobody, and has to be told before it begins another one (``elections.ALONE_S``)."""
WAY_S: Final = 0.3
"""For so long, after a link was lost, only the node with the smaller id calls: calls that cross may cost a link."""
CONNECT_S: Final = 1.0
"""Before a machine that says nothing is tried again: it may be another one by then, which begins a cluster
(``elections.ALONE_S``). Far longer than a round trip to wherever a follower may be."""


class Link(ConnectionHandler, Protocol):
    """One connection to another node, as far as whoever dials needs it."""

    peer: NodeId | None
    settled: asyncio.Event
    gone: asyncio.Event

    def abort(self) -> None:
        """Give up, whatever state it is in."""
        ...


class Dialling:
    """Of one node: a task per member. The node with the smaller id dials; the other only where it may have to."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        links: Mapping[NodeId, Link],
        link_to: Callable[[NodeId], Link],
        refusals: Refusals,
        seldom: Seldom,
        network: Network,
        clock: Clock,
        rng: Rng,
        limits: ConnectionLimits,
        tls: Tls | None,
    ) -> None:
        """``links`` are those that there are now; ``link_to`` makes one to be connected."""
        self._node_id = node_id
        self._links = links
        self._link_to = link_to
        self._refusals = refusals
        self._seldom = seldom
        self._network = network
        self._clock = clock
        self._rng = rng
        self._limits = limits
        self._tls = tls
        self._tasks: dict[NodeId, asyncio.Task[None]] = {}
        self.unreached: set[NodeId] = set()
        """Members that nobody was found as at their address, the last time: they may be elsewhere by now, and call."""

    def begin(self, addresses: Mapping[NodeId, str]) -> None:
        """Call whoever is not called yet."""
        loop = asyncio.get_running_loop()
        for peer in sorted(addresses.keys() - self._tasks.keys()):
            self._tasks[peer] = loop.create_task(self._keep_dialling(peer, addresses[peer]))

    def drop(self, peers: Container[NodeId]) -> None:
        """Call these no more."""
        for peer in [peer for peer in self._tasks if peer in peers]:
            self._tasks.pop(peer).cancel()
            self.unreached.discard(peer)

    def tasks(self) -> list[asyncio.Task[None]]:
        """All calls."""
        return list(self._tasks.values())

    async def _keep_dialling(self, peer: NodeId, address: str) -> None:
        pause, refused = REDIAL_MIN_S, ""
        mine = self._node_id < peer
        patient = not mine
        while True:
            if peer in self._links:
                patient = False
                since, refused = self._clock.monotonic(), ""
                await self._links[peer].gone.wait()
                if self._clock.monotonic() - since >= REDIAL_MAX_S:
                    pause = REDIAL_MIN_S
                    if not mine:
                        await wait(WAY_S * (0.5 + self._rng.random()))
                else:  # it hung up at once, and will again: to it we may be nobody
                    await wait(pause * (0.5 + self._rng.random()))
                    pause = min(pause * 2, REDIAL_MAX_S)
                continue
            if patient:
                patient = False
                await wait(CALL_BACK_S)
                continue
            link, since = self._link_to(peer), self._clock.monotonic()
            try:
                await self._call(peer, address, link)
                if peer in self._links:
                    continue
            except (OSError, TimeoutError, LogboomError) as error:
                if isinstance(error, ssl.SSLError) and str(error) != refused:
                    refused = str(error)  # once: it is tried again and again
                    log.warning("peer_not_trusted", peer=peer, address=address, error=refused)
                log.debug("dial_failed", peer=peer, error=str(error))
                link.abort()
            except asyncio.CancelledError:
                if link.peer is None:
                    link.abort()
                raise
            except Exception as error:  # noqa: BLE001 - nobody waits for this task: it would never be called again
                self._seldom.say(log.error, "dial_failed", peer=peer, exc_info=error)
                link.abort()
            pause = min(pause, self._refusals.most(peer, REDIAL_MAX_S))
            rest = self._refusals.pause(peer, pause) * (0.5 + self._rng.random())
            await wait(max(0.0, rest - (self._clock.monotonic() - since)))  # who says nothing has kept it waiting
            pause = min(pause * 2, self._refusals.most(peer, REDIAL_MAX_S))

    async def _call(self, peer: NodeId, address: str, link: Link) -> None:
        try:
            await self._meet(peer, address, link)
        except Exception:
            self.unreached.add(peer)  # whoever answers there may be somebody else
            raise
        self.unreached.discard(peer)

    async def _meet(self, peer: NodeId, address: str, link: Link) -> None:
        try:
            await self._network.dial(address, link, limits=self._limits, tls=self._tls)
        except OSError as error:
            if not isinstance(error, ssl.SSLError):
                self._refusals.let_in(peer)  # nobody is there: who comes next is another process, with other data maybe
            raise
        async with asyncio.timeout(self._limits.handshake_s):
            await link.settled.wait()
        if link.peer is None:
            raise ConnectionResetError("closed before it had introduced itself")
