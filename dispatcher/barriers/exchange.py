"""Frontiers between nodes: what is wanted and what is told, gathered for a moment, one frame for each node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from dispatcher.barriers.barriers import Barriers
from dispatcher.barriers.telling import Telling
from dispatcher.barriers.watermarks import Watermarks
from logboom.types import NodeId, PartitionId
from logboom.wire import Frame, Kind
from raftlog.entries.configuration import Configuration

FEATURE: Final = "frontiers"
GATHER_S: Final = 0.001
EXCHANGED: Final = frozenset((Kind.FRONTIERS_WANTED, Kind.FRONTIERS))


class Sender(Protocol):
    """raftlog.links.links.Links, as far as it is needed."""

    def send(self, peer: NodeId, kind: Kind, header: dict[str, object]) -> bool:
        """False: not now."""
        ...

    def speaks(self, peer: NodeId, feature: str) -> bool:
        """It knows these frames."""
        ...


class Exchange:
    """This node's end of it: what it asks others for (``asking``), and what they ask of it (``telling``)."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        barriers: Barriers,
        watermarks: Watermarks,
        links: Callable[[], Sender],
        may_show: Callable[[PartitionId], bool],
        hurry: Callable[[PartitionId], None],
    ) -> None:
        self._node_id = node_id
        self._barriers = barriers
        self._links = links
        self.asking = barriers.others
        self.telling = Telling(barriers, watermarks, may_show=may_show)
        self.asking.poke = self.telling.poke = self._soon
        self.telling.hurry = hurry
        barriers.answers.soon = _next_turn
        self._timer: asyncio.TimerHandle | None = None

    def members_changed(self, members: Configuration) -> None:
        """Who counts from now on."""
        self.asking.set_members(self._node_id, members.ids, members.voters)
        self._barriers.members_changed()

    def peer_up(self, peer: NodeId) -> None:
        """A new link."""
        self.telling.peer_down(peer)
        self.asking.link_up(peer)

    def peer_down(self, peer: NodeId) -> None:
        """The link is gone. What the node has said stays true."""
        self.telling.peer_down(peer)

    def on_frame(self, peer: NodeId, frame: Frame) -> None:
        """One of EXCHANGED. Raises ProtocolError."""
        if frame.kind is Kind.FRONTIERS_WANTED:
            self.telling.asked(peer, frame.header)
        else:
            self.asking.heard(peer, frame.header)

    def tick(self) -> None:
        """Now and then: what could not be sent or shown before."""
        self.telling.tick()
        self._send()

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        links = self._links()
        for peer in self.asking.due():
            if not links.speaks(peer, FEATURE):
                continue  # of an earlier release: nobody hears of it until it is upgraded
            while peer in self.asking.due() and links.send(peer, Kind.FRONTIERS_WANTED, self.asking.ask(peer)):
                self.asking.asked(peer)
        for peer in self.telling.due():
            for _ in range(self.telling.frames(peer)):  # what moves meanwhile is gathered for the next time
                header = self.telling.tell(peer)
                if not links.send(peer, Kind.FRONTIERS, header):
                    break
                self.telling.told(peer, header)


def _next_turn(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)
