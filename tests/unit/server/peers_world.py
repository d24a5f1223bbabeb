"""Links between nodes, and what they tell."""

from __future__ import annotations

import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from logboom.settings import Member
from logboom.types import NodeId
from logboom.wire import Frame
from ports.net import Connection, ConnectionLimits
from raftlog.links.hello import Identity
from raftlog.links.links import Links
from server.world.clock_os import OsClock
from server.world.net_os import AsyncioNetwork
from tests.unit.server.net_world import LIMITS, LONG_S, sockets, until


class Events:
    """Links' user: who is connected."""

    def __init__(self) -> None:
        self.ups: list[str] = []

    def link_up(self, peer: NodeId) -> None:
        self.ups.append(peer)

    def link_down(self, peer: NodeId) -> None:
        self.ups.append(f"-{peer}")

    def link_frame(self, peer: NodeId, frame: Frame) -> None:
        raise AssertionError(f"{peer} sent {frame.kind.name}")

    def link_arriving(self, peer: NodeId, frame: Frame) -> None:
        pass

    def link_read(self, peer: NodeId) -> None:
        pass

    def link_drained(self, peer: NodeId) -> None:
        """Nothing waits."""


class Dials(AsyncioNetwork):
    """Counts them."""

    count = 0

    async def dial(self, address: str, *args: Any, **options: Any) -> Connection:
        self.count += 1
        return await super().dial(address, *args, **options)


def links_of(
    node: str,
    events: Events,
    *,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    network: AsyncioNetwork | None = None,
    peer_address: str = "127.0.0.1:1",
    lineage: str | None = "",
    adopt: Callable[[str], None] | None = None,
    handshake_s: float = LONG_S,
) -> Links:
    return Links(
        identity=Identity(NodeId(node), "c1", b"digest", lineage),
        members={NodeId(n): Member(id=n, peer_address=peer_address, client_address="") for n in ("n1", "n2", "n9")},
        network=network or AsyncioNetwork(clock=OsClock(), on_fatal=lambda _: None),
        clock=OsClock(),
        rng=random.Random(0),
        limits=ConnectionLimits(**LIMITS | {"handshake_s": handshake_s}),
        tls=tls,
        events=events,
        adopt=adopt,
    )


@asynccontextmanager
async def linked(tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None) -> AsyncIterator[tuple[str, Events]]:
    """The peer port of n9, which dials nobody and waits for n1 and n2."""
    before, events = sockets(), Events()
    links = links_of("n9", events, tls=tls)
    address = await links.start("127.0.0.1:0")
    yield address, events
    await links.close()
    await until(lambda: sockets() == before)


HELLO = {"version": 1, "node": "n1", "cluster": "c1", "settings": b"digest"}
