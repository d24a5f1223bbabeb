"""Connections between nodes: one per pair, payload and Raft messages in one FIFO.

The node with the smaller id dials. Both sides introduce themselves; a peer of another
cluster, of another history of it, with other settings, or whose certificate does not name it is turned away.
A link that stays silent is cut and made anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Protocol

import structlog

from logboom.certs import Tls
from logboom.errors import IncompatibleVersion, WrongNode
from logboom.settings import Member
from logboom.types import KV_TXN, MIXED, PARTITION_SETTINGS, NodeId
from logboom.wire import PROTOCOL_VERSION, Buffer, Frame, Kind, encode, shown
from ports.clock import Clock
from ports.net import ConnectionLimits, Listener, Network
from ports.rng import Rng
from ports.seldom import Seldom
from ports.timers import wait
from raftlog.entries.configuration import Configuration
from raftlog.links.dialling import CONNECT_S, Dialling
from raftlog.links.directories import Directories
from raftlog.links.hello import Claim, Identity, check_lineage, check_remembers
from raftlog.links.link import PeerLink
from raftlog.links.refusals import Refusals

log = structlog.get_logger(__name__)

PING_S = 1.0
SILENT_S = 4.0


class LinkEvents(Protocol):
    """Who uses the links; called on the loop."""

    def link_up(self, peer: NodeId) -> None:
        """Introduced on both sides."""
        ...

    def link_down(self, peer: NodeId) -> None:
        """Whatever was on the way may be lost."""
        ...

    def link_frame(self, peer: NodeId, frame: Frame) -> None:
        """One frame; ProtocolError and other LogboomErrors cut the link."""
        ...

    def link_arriving(self, peer: NodeId, frame: Frame) -> None:
        """One that has begun to come, without its body; again every ``ARRIVING_EVERY_S`` until it is whole."""
        ...

    def link_read(self, peer: NodeId) -> None:
        """All frames of one read have been handed over."""
        ...

    def link_drained(self, peer: NodeId) -> None:
        """No longer congested."""
        ...


FEATURES: Final = ("frontiers", KV_TXN, MIXED, PARTITION_SETTINGS)
"""What this release knows and earlier ones do not: frames for which they would cut the link, and control entries that
they could not apply."""


class Links:
    """All links of one node."""

    def __init__(
        self,
        *,
        identity: Identity,
        members: Mapping[NodeId, Member],
        network: Network,
        clock: Clock,
        rng: Rng,
        limits: ConnectionLimits,
        tls: tuple[Tls, Tls] | None,
        events: LinkEvents,
        drop: Callable[[NodeId, Kind], bool] | None = None,
        adopt: Callable[[str], None] | None = None,
        directories: Directories | None = None,
    ) -> None:
        """``tls``: server and client context. ``drop`` is a fault hook: True loses an outgoing frame.

        ``adopt`` makes a lineage this node's, durable on return; called once, if it has none. May raise Unavailable.
        Without ``directories`` this node neither says which it has, nor asks.
        """
        self.identity = identity
        self.addresses = {node: each.peer_address for node, each in members.items() if node != identity.node_id}
        """Of those to have a link with."""
        self.claim = Claim(0, 1, tuple(sorted(members)))
        self.voters: tuple[NodeId, ...] = ()
        self.removed: tuple[NodeId, ...] = ()
        self.rejoining = False
        """This node has lost its journal: it may know of nobody, and gives no vote."""
        self.network = network
        self.clock = clock
        self.rng = rng
        self.limits = limits
        self.tls = tls
        self.events = events
        self.drop = drop
        self.adopt = adopt
        self.directories = directories
        self.seldom = Seldom(clock.monotonic)
        self.refusals = Refusals(clock.monotonic, self.seldom)
        self.links: dict[NodeId, PeerLink] = {}
        self.ups: Counter[NodeId] = Counter()
        """Links that came up, per peer, since the start: all but the first are reconnects.

        What is asked over one of them is answered over the same, or not at all: a node that began anew numbers its
        requests anew."""
        self._listener: Listener | None = None
        self.said: dict[NodeId, frozenset[str]] = {}
        """Features of those to have a link with, as they said when they were last here."""
        self._tasks: list[asyncio.Task[None]] = []
        self.dialling = Dialling(
            node_id=identity.node_id,
            links=self.links,
            link_to=lambda peer: PeerLink(self, peer),
            refusals=self.refusals,
            seldom=self.seldom,
            network=network,
            clock=clock,
            rng=rng,
            limits=replace(limits, connect_s=min(CONNECT_S, limits.handshake_s)),
            tls=tls[1] if tls else None,
        )
        self._started = False

    async def start(self, address: str) -> str:
        """Listen and begin to dial; returns the bound address."""
        server = self.tls[0] if self.tls else None
        self._listener = await self.network.listen(
            address, lambda: PeerLink(self, None), limits=self.limits, tls=server
        )
        self._started = True
        self.dialling.begin(self.addresses)
        self._tasks.append(asyncio.get_running_loop().create_task(self._keep_alive()))
        return self._listener.address

    def set_members(
        self, addresses: Mapping[NodeId, str], *, current: Configuration, settled: bool, guests: Collection[NodeId]
    ) -> None:
        """Have links with these, whose peer addresses are given, and let ``guests`` keep theirs; no others.

        ``settled``: ``current`` is committed, hence whoever it has removed may be told so.
        """
        self.claim = Claim(current.term, current.index, current.ids)
        if self.directories is not None:
            self.directories.follow(current, settled=settled, rejoining=self.rejoining)
        self.voters, self.removed = current.voters, current.removed if settled else ()
        self.dialling.drop([peer for peer, known in self.addresses.items() if addresses.get(peer) != known])
        self.addresses = dict(addresses)
        self.said = {peer: said for peer, said in self.said.items() if peer in addresses}
        self.refusals.keep(set(addresses))
        for peer in [peer for peer in self.links if peer not in addresses and peer not in guests]:
            self.links[peer].connection.close()
        if self._started:
            self.dialling.begin(self.addresses)

    async def close(self) -> None:
        """Stop dialling and listening, cut all links."""
        self._started = False
        tasks = [*self._tasks, *self.dialling.tasks()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in list(self.links.values()):
            link.connection.abort()
        if self._listener is not None:
            await self._listener.close()

    def connected(self, peer: NodeId) -> bool:
        """Introduced and open."""
        return peer in self.links

    def queued(self, peer: NodeId) -> int:
        """Bytes that wait to be sent."""
        link = self.links.get(peer)
        return 0 if link is None else link.connection.queued

    def left_bytes(self, peer: NodeId) -> int:
        """So many have been sent since the link was opened."""
        link = self.links.get(peer)
        return 0 if link is None else link.connection.left_bytes

    def speaks(self, peer: NodeId, feature: str) -> bool:
        """It is there, and of a release that knows this."""
        link = self.links.get(peer)
        return link is not None and feature in link.features

    def knew(self, peer: NodeId, feature: str) -> bool:
        """It said so when it was last here, as far as this process has met it; it may come back as something else."""
        return feature in self.said.get(peer, ())

    def congested(self, peer: NodeId) -> bool:
        """Disconnected, or its send buffer is above its bound."""
        link = self.links.get(peer)
        return link is None or link.connection.congested

    def has_room(self, peer: NodeId, *, beyond: int = 0) -> bool:
        """For what can wait: the other half of its send buffer, but for ``beyond``, is left to what cannot."""
        link = self.links.get(peer)
        return link is not None and 2 * (link.connection.queued - beyond) <= self.limits.send_buffer_bytes

    # -- sending

    def send(
        self, peer: NodeId, kind: Kind, header: Mapping[str, Any], body: Sequence[Buffer] = (), *, request_id: int = 0
    ) -> bool:
        """Queue one frame; False if there is no link or it is congested (nothing was queued)."""
        return self.send_frame(peer, kind, encode(kind, header, body, request_id=request_id, checked=True))

    def send_frame(self, peer: NodeId, kind: Kind, frame: Sequence[Buffer]) -> bool:
        """The same with a frame that is encoded already."""
        link = self.links.get(peer)
        if link is None:
            return False
        connection = link.connection
        if connection.congested:
            return False
        if self.drop is None or not self.drop(peer, kind):
            connection.send(frame)
        return True

    def flush(self, peer: NodeId) -> None:
        """Send now what is queued for ``peer``."""
        link = self.links.get(peer)
        if link is not None:
            link.connection.flush()

    def hold_back(self, peers: Sequence[NodeId], seconds: float) -> None:
        """What is queued for these may wait so long, or until something else is sent there."""
        for peer in peers:
            if peer in self.links:
                self.links[peer].connection.hold_back(seconds)

    # -- making them

    def hello(self, peer: NodeId | None = None) -> dict[str, Any]:
        """How a node introduces itself; to whom, if it knows."""
        return {
            "version": PROTOCOL_VERSION,
            "node": self.identity.node_id,
            "cluster": self.identity.cluster_id,
            "lineage": self.identity.lineage,
            "settings": self.identity.settings_digest,
            "members": [self.claim.term, self.claim.index, list(self.claim.ids)],
            "rejoining": self.rejoining,
            "features": list(FEATURES),
            **({} if peer is None else {"to": peer}),
            **({} if self.identity.remembers is None else {"remembers": list(self.identity.remembers)}),
            **({} if self.directories is None else self.directories.fields(self.links, peer)),
        }

    def check_hello(self, header: Mapping[str, Any], link: PeerLink) -> NodeId:
        """Who is there. Raises a typed error for anyone who may not be."""
        peer, version, mine = header.get("node"), header.get("version"), self.identity
        if version != PROTOCOL_VERSION:
            raise IncompatibleVersion(
                f"{link.connection.remote} speaks version {shown(version)}, we speak {PROTOCOL_VERSION}",
                found=version if isinstance(version, int) else None,
                supported=PROTOCOL_VERSION,
            )
        if header.get("cluster") != mine.cluster_id:
            raise WrongNode(f"{link.connection.remote} belongs to cluster {shown(header.get('cluster'))}")
        if not isinstance(peer, str) or peer == mine.node_id:
            raise WrongNode(f"{link.connection.remote} says it is {shown(peer)}: not another member of this cluster")
        if self.tls and peer not in link.connection.peer_identities:
            names = ", ".join(sorted(link.connection.peer_identities)) or "nobody"
            raise WrongNode(f"{link.connection.remote} says it is {peer!r}; its certificate names {names}")
        if header.get("to", mine.node_id) != mine.node_id:  # before this link would end the one that there is
            raise WrongNode(f"{peer} calls {shown(header['to'])} at this node's address", twice=True, elsewhere=True)
        claim = Claim.of(header)
        if self.directories is not None and not self.rejoining and self._may_speak(NodeId(peer), claim):
            self.directories.find_out(NodeId(peer), header, claim, self.claim, mine)
            self.directories.find_former(NodeId(peer), header, claim, self.claim, mine)
        check_lineage(mine, NodeId(peer), header)
        if header.get("settings") != mine.settings_digest:
            raise WrongNode(f"{peer} has other cluster settings: partitions, machines and modes must agree")
        check_remembers(mine, NodeId(peer), header)
        if self.rejoining and "rejoining" not in header:
            why = f"{peer} does not know of nodes that have lost their journal: upgrade it"
            raise IncompatibleVersion(why, found=None, supported="rejoining")
        if self.directories is not None:
            self.directories.check(NodeId(peer), header, claim, self.claim, rejoining=self.rejoining)
        self._check_claim(NodeId(peer), claim, rejoining=header.get("rejoining") is True)
        called = link.expected is None and mine.node_id < peer and peer in self.addresses
        if called and (peer in self.links or peer not in self.dialling.unreached):
            raise WrongNode(f"{peer} is dialled from here", twice=True)  # two links would end each other
        if link.expected is not None and peer != link.expected:
            raise WrongNode(f"{link.connection.remote} is {peer!r}, expected {link.expected!r}")
        if link.expected is not None and mine.node_id > peer and peer in self.links:
            raise WrongNode(f"{peer} has called meanwhile", twice=True)  # and is about to hang up here
        return NodeId(str(peer))

    def introduced(self, peer: NodeId, header: Mapping[str, Any]) -> None:
        """It was found to be right: what is to be remembered of it. Raises Unavailable."""
        if self.directories is not None:
            self.directories.meet(peer, header)
        theirs = header.get("lineage", "")
        if self.identity.lineage is None and theirs is not None:
            if self.adopt is not None:
                self.adopt(theirs)
            self.identity = replace(self.identity, lineage=theirs)
            log.info("lineage_taken", lineage=theirs)

    def _check_claim(self, peer: NodeId, theirs: Claim | None, *, rejoining: bool) -> None:
        mine = self.claim
        if theirs is not None and theirs[:2] == mine[:2] and theirs.ids != mine.ids:
            raise WrongNode(f"{peer} begins with other cluster.members: {', '.join(theirs.ids)}")
        missed = peer in self.voters and (self.directories is None or self.directories.matters(peer))
        if theirs is not None and theirs[:2] == (0, 0) and missed and not rejoining:
            # Whoever became a voter had it in its journal: it would vote again where it has voted.
            raise WrongNode(f"{peer} votes in this cluster, and knows nothing: remove it, and add it with another id")
        if not self._may_speak(peer, theirs):
            gone = peer in self.removed
            raise WrongNode(
                f"{peer} {'has been removed from' if gone else 'is not another member of'} this cluster", gone=gone
            )

    def _may_speak(self, peer: NodeId, theirs: Claim | None) -> bool:
        """It is a member by our configuration, or by its own, newer one, which has us, too."""
        newer = theirs is not None and theirs[:2] > self.claim[:2]
        return peer in self.addresses or (newer and {peer, self.identity.node_id} <= set(theirs.ids if theirs else ()))

    async def _keep_alive(self) -> None:
        while True:
            await wait(PING_S)
            self._beat()

    def _beat(self) -> None:
        said: Mapping[str, Any] = {}
        if self.directories is not None:
            with self._goes_on():  # else a PING that says nothing: each link is to be heard of all the same
                said = self.directories.beat(rejoining=self.rejoining)
        for link in list(self.links.values()):
            with self._goes_on(peer=link.peer):
                self._look_at(link, said)

    def _look_at(self, link: PeerLink, said: Mapping[str, Any]) -> None:
        silent_s = self.clock.monotonic() - link.heard
        if silent_s > SILENT_S:
            log.warning("link_silent", peer=link.peer, seconds=round(silent_s, 1))
            self.limits.traffic.cut += 1
            link.connection.abort()
        elif not link.connection.congested:
            link.connection.send(encode(Kind.PING, said, checked=True))

    @contextmanager
    def _goes_on(self, **whose: object) -> Iterator[None]:
        """Whatever goes wrong: nobody waits for the task that keeps links alive, and there would be no other."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self.seldom.say(log.error, "keep_alive_failed", **whose, exc_info=error)
