"""Everything that the parent log does about its members, in one place for whoever has to call it."""

from __future__ import annotations

from collections.abc import Callable

from logboom.types import NodeId
from raftlog.engine import Engine
from raftlog.engine.messages import Message
from raftlog.links.feed import Feeds
from raftlog.links.links import Links
from raftlog.members.changes import Changes
from raftlog.members.refilling import Refilling
from raftlog.members.rejoin import Rejoin
from raftlog.members.roster import Roster
from raftlog.members.transfer import Transfer
from raftlog.repair.repair import Repair


class Members:
    """Who takes part, as one node sees to it: roster, changes, transfer, and the ways back of who has forgotten."""

    def __init__(
        self, engine: Engine, feeds: Feeds, links: Links, repair: Repair, *, admits: Callable[[], bool]
    ) -> None:
        """See Roster, Changes and Transfer."""
        self.membership, clock = engine.membership, engine.clock
        self.roster = Roster(
            membership=self.membership, engine=engine, feeds=feeds, links=links, repair=repair, clock=clock
        )
        self.changes = Changes(membership=self.membership, engine=engine, clock=clock, admits=admits)
        patience_s = engine.settings.election_max_ms / 1000
        self.transfer = Transfer(membership=self.membership, engine=engine, clock=clock, patience_s=patience_s)
        self.rejoin = Rejoin(membership=self.membership, engine=engine, links=links)
        self.refilling = Refilling(membership=self.membership, engine=engine, links=links)
        self._links = links
        self.roster.follow()

    def heard(self, peer: NodeId, message: Message) -> None:
        """What it promises tells how far its journal is. Raises ProtocolError."""
        if "journal" in message and self._links.directories is not None:
            self._links.directories.told(peer, message)

    def follow(self) -> bool:
        """Every turn. True: another configuration counts since the last time."""
        if self.membership.rejoining is not None:
            self.rejoin.follow()
        if self.membership.refill is not None:
            self.refilling.follow()
        return False if self.roster.is_steady else self.roster.follow()

    def tick(self) -> None:
        """Leader only, every turn."""
        self.changes.tick()
        self.transfer.tick()

    def lost(self) -> None:
        """This node leads no more."""
        self.changes.lost()
        self.transfer.lost()
