"""One connection to another node, from opening to closing: introduced, then frames both ways."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from logboom.errors import LineageMismatch, LogboomError, ProtocolError
from logboom.types import NodeId
from logboom.wire import Frame, Kind, encode
from ports.net import Connection

if TYPE_CHECKING:
    from raftlog.links.links import Links

log = structlog.get_logger(__name__)

ARRIVING_EVERY_S: Final = 0.005
"""A sixth of a heartbeat, by default."""


class PeerLink:
    """One connection to another node, from opening to closing."""

    def __init__(self, links: Links, expected: NodeId | None) -> None:
        self.links = links
        self.expected = expected
        self.peer: NodeId | None = None
        self.heard = links.clock.monotonic()
        self._looked = self.heard
        self.settled = asyncio.Event()
        """Introduced, or closed before that."""
        self.gone = asyncio.Event()
        self.features: frozenset[str] = frozenset()
        """What the other side speaks beyond the frames of the first release."""
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """Only once opened."""
        if self._connection is None:
            raise ProtocolError("link is not open")
        return self._connection

    def abort(self) -> None:
        """Give up, whatever state it is in."""
        if self._connection is not None:
            self._connection.abort()

    def opened(self, connection: Connection) -> None:
        self._connection = connection
        connection.send(encode(Kind.PEER_HELLO, self.links.hello(self.expected), checked=True))

    def frame(self, frame: Frame) -> None:
        if self.peer is None:
            self._introduce(frame)
        elif frame.kind is not Kind.PONG:
            try:
                if frame.kind is not Kind.PING:
                    self.links.events.link_frame(self.peer, frame)
                    return
                self.connection.send(encode(Kind.PONG, {}))
                if self.links.directories is not None:
                    self.links.directories.told(self.peer, frame.header)
            except LogboomError as error:
                self.links.seldom.say(log.warning, "link_cut", peer=self.peer, error=str(error), code=error.code)
                self.links.limits.traffic.cut += 1
                self.connection.abort()

    def _introduce(self, frame: Frame) -> None:
        try:
            if frame.kind is not Kind.PEER_HELLO:
                raise ProtocolError(f"{self.connection.remote} began with {frame.kind.name}, not PEER_HELLO")
            peer = self.links.check_hello(frame.header, self)
            self.links.introduced(peer, frame.header)
        except LogboomError as error:
            if not error.fields.get("twice"):  # else it is as it should be, or the other side says why not
                said = frame.header.get("node")
                member = next((each for each in self.links.addresses if each == said), None)
                self.links.refusals.refused(member, error, log.warning)
            if error.fields.get("gone") or isinstance(error, LineageMismatch):
                self.connection.send(encode(Kind.ERROR, error.to_wire()))  # so that it does not come again
                self.connection.close()
            elif error.fields.get("former") or error.fields.get("elsewhere"):
                self.connection.close()  # it is to hear who is here, and of whom that has met, and refuse in its turn
            else:
                self.connection.abort()
            return
        features = frame.header.get("features")
        if isinstance(features, list):
            self.features = frozenset(each for each in features if isinstance(each, str))
        self.links.said[peer] = self.features
        self.connection.authenticated()
        self.links.refusals.let_in(peer)
        older = self.links.links.pop(peer, None)
        if older is not None:
            older.connection.abort()
            self.links.events.link_down(peer)
        self.peer = peer
        self.links.links[peer] = self
        self.links.ups[peer] += 1
        self.settled.set()
        self.links.events.link_up(peer)

    def read_done(self) -> None:
        self.heard = self.links.clock.monotonic()  # a large frame may take its time on a slow line
        if self.peer is not None and self.links.links.get(self.peer) is self:
            self._look_at_what_arrives(self.peer)
            self.links.events.link_read(self.peer)

    def _look_at_what_arrives(self, peer: NodeId) -> None:
        """Now and then: on quick lines a frame comes in a few reads, and this is not to cost more than they do."""
        if self.heard - self._looked < ARRIVING_EVERY_S:
            return
        self._looked, begun = self.heard, self.connection.arriving
        if begun is not None:
            self.links.events.link_arriving(peer, begun)

    def drained(self) -> None:
        if self.peer is not None and self.links.links.get(self.peer) is self:
            self.links.events.link_drained(self.peer)

    def closed(self, error: Exception | None) -> None:
        self.gone.set()
        self.settled.set()
        if self.peer is not None and self.links.links.get(self.peer) is self:
            del self.links.links[self.peer]
            why = str(error) if error else None
            self.links.seldom.say(log.info, "link_down", peer=self.peer, error=why)
            self.links.events.link_down(self.peer)
