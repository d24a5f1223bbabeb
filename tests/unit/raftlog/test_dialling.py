"""When members are called that there is no link with: over long lines, and where another process comes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from logboom.settings import Member
from logboom.types import NodeId
from ports.net import Connection, ConnectionHandler, ConnectionLimits
from ports.timers import wait
from raftlog.entries.configuration import Configuration
from raftlog.links.directories import Directories
from raftlog.links.hello import Identity
from raftlog.links.links import Links
from tests.unit.raftlog.world import BoundNetwork, MemoryConnection, MemoryNetwork, VirtualClock, VirtualLoop, voters
from tests.unit.server.peers_world import Events

N1, N9 = NodeId("n1"), NodeId("n9")
WAY_S = 0.03
"""From one to the other."""


class FarEnd(MemoryConnection):
    """One end of a long line: that it is closed is heard of at the other only then."""

    def abort(self) -> None:
        if self.open:
            self.open = False
            self.net.loop.call_soon(self.handler.closed, None)
            if self.other is not None:
                self.net.loop.call_at(max(self.last, self.net.loop.now + WAY_S) + 1e-7, self.other.abort)

    close = abort


class FarNetwork(BoundNetwork):
    """The network as one address sees it, with all others far away."""

    async def dial(
        self, address: str, handler: ConnectionHandler, *, limits: ConnectionLimits, tls: object
    ) -> Connection:
        await wait(WAY_S)
        make = self.net.listeners.get(address)
        if make is not None:
            ours, theirs = (
                FarEnd(self.net, self.address, address, handler),
                FarEnd(self.net, address, self.address, make()),
            )
            ours.other, theirs.other = theirs, ours
            theirs.handler.opened(theirs)
        await wait(WAY_S)
        if make is None:
            raise ConnectionRefusedError(address)
        handler.opened(ours)
        return ours


class World:
    """n1 and n9, far from each other."""

    def __init__(self, seed: int = 0) -> None:
        self.loop, self.rng = VirtualLoop(), random.Random(seed)
        self.net = MemoryNetwork(self.loop, self.rng)
        self.net.slow = {("n1:1", "n9:1"): WAY_S, ("n9:1", "n1:1"): WAY_S}
        self.ups: dict[NodeId, list[str]] = {}
        self.open: list[Links] = []

    def links_of(self, node: NodeId, *, lineage: str = "", met: bytes | None = None) -> Links:
        events, clock = Events(), VirtualClock(self.loop)
        self.ups[node] = events.ups
        links = Links(
            identity=Identity(node, "c1", b"digest", lineage),
            members={n: Member(id=n, peer_address=f"{n}:1", client_address="") for n in (N1, N9)},
            network=FarNetwork(self.net, f"{node}:1"),  # type: ignore[arg-type]
            clock=clock,
            rng=self.rng,
            limits=ConnectionLimits(),
            tls=None,
            events=events,
            directories=Directories(node, node.encode() * 8, {} if met is None else {N1: met}, lambda *_: None),
        )
        self.open.append(links)
        return links

    async def start(self, links: Links) -> None:
        node = links.identity.node_id
        await links.start(f"{node}:1")
        addresses = {each: f"{each}:1" for each in (N1, N9) if each != node}
        links.set_members(addresses, current=_current(), settled=True, guests=())

    def tell(self, story: Any) -> None:
        self.loop.run_until_complete(story)

    def end(self) -> None:
        async def close() -> None:
            for links in self.open:
                await links.close()

        self.tell(close())
        self.loop.close()


def _current() -> Configuration:
    return voters(N1, NodeId("n5"), N9)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(getattr(request, "param", 0))
    yield world
    world.end()


@pytest.mark.parametrize("world", range(12), indirect=True)
@pytest.mark.parametrize("cut", [N1, N9])
def test_calls_that_cross_leave_the_link_that_is_there(world: World, cut: NodeId) -> None:
    """Both ended: the larger id let its own call in, which the other was hanging up on, for the one that was good."""

    async def story() -> None:
        links = {node: world.links_of(node) for node in (N1, N9)}
        for each in links.values():
            await world.start(each)
        await wait(10.0)
        assert all(world.ups.values())
        for ups in world.ups.values():
            ups.clear()
        links[cut].links[N1 if cut == N9 else N9].connection.abort()
        await wait(10.0)

    world.tell(story())
    assert world.ups == {N1: ["-n9", "n9"], N9: ["-n1", "n1"]}


@pytest.mark.parametrize("world", range(6), indirect=True)
@pytest.mark.parametrize("refused", [{"met": b"f" * 16}, {"lineage": "ab" * 16}])
def test_where_somebody_was_refused_and_is_gone_whoever_comes_next_is_called_soon(
    world: World, refused: dict[str, Any]
) -> None:
    """As long as one that is refused: started without its data, as it was told to, it began another cluster."""
    called: list[float] = []

    class Called:
        def __init__(self) -> None:
            called.append(world.loop.now)

        def opened(self, connection: Connection) -> None:
            connection.close()

        closed: Callable[[object, Exception | None], None] = lambda *_: None

    async def story() -> None:
        there, here = world.links_of(N1), world.links_of(N9, **refused)
        await world.start(there)
        there.set_members({}, current=_current(), settled=True, guests=())  # it calls nobody
        there.dialling.drop([N9])
        await world.start(here)
        await wait(60.0)
        assert N1 in here.refusals
        await there.close()
        await wait(30.0)
        assert not world.ups[N9]
        since = world.loop.now
        world.net.listeners["n1:1"] = Called  # type: ignore[assignment]
        await wait(0.5)
        assert called, f"nobody has called since {since}"

    world.tell(story())
