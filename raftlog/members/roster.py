"""Whom this node talks to: the members, guests that know better who is one, and those that are just leaving.

The engine's quorums follow the configuration at once; links, feeds and repair follow here, once per turn.
"""

from __future__ import annotations

from typing import Final

import structlog

from logboom.errors import LogboomError, WrongNode, from_wire
from logboom.types import NodeId
from logboom.wire import Frame
from ports.clock import Clock
from raftlog.engine import Engine
from raftlog.entries.configuration import Configuration
from raftlog.journal.membership import Membership
from raftlog.links.feed import Feeds
from raftlog.links.links import Links
from raftlog.repair.repair import Repair

log = structlog.get_logger(__name__)

LEAVE_S: Final = 5.0
"""A leader goes on sending to a member that is removed until it has closed its links, at most for so long."""


class Roster:
    """Whom one node talks to: members, guests, and those that are leaving."""

    def __init__(
        self, *, membership: Membership, engine: Engine, feeds: Feeds, links: Links, repair: Repair, clock: Clock
    ) -> None:
        self._membership = membership
        self._engine = engine
        self._feeds = feeds
        self._links = links
        self._repair = repair
        self._clock = clock
        self._guests: set[NodeId] = set()
        self._leaving: dict[NodeId, float] = {}
        self._told_removed = False
        self._followed: tuple[Configuration | None, bool, bool] = (None, True, False)
        """What counts, whether it is committed, whether this node is removed: as of the last time."""
        self._steady: Configuration | None = None
        """It counts, is committed, and was followed: there is nothing to do until another one counts."""

    @property
    def standing(self) -> str:
        """What this node is in its cluster: a role (``configuration``), ``waiting``, ``rejoining`` or ``removed``."""
        if self._is_removed():
            return "removed"
        if self._membership.rejoining is not None:
            return "rejoining"
        seat = self._membership.current.seat(self._membership.node_id)
        return "waiting" if seat is None else str(seat.role)

    def _is_removed(self) -> bool:
        return self._told_removed or self._membership.removed_at(self._engine.applied_index)

    @property
    def is_steady(self) -> bool:
        """There is nothing to follow, as in nearly every turn."""
        return self._membership.current is self._steady and not self._leaving

    def follow(self) -> bool:
        """Every turn, and when something here has changed. True: another configuration counts since the last time."""
        if self.is_steady:
            return False
        current, engine = self._membership.current, self._engine
        state = current, current.index <= engine.applied_index, self._is_removed()
        now = self._clock.monotonic()
        late = [peer for peer, until in self._leaving.items() if until <= now or not engine.is_leader]
        if state == self._followed and not late:
            self._steady = current if state[1] else None
            return False
        moved = current is not self._followed[0]
        for peer in late:
            del self._leaving[peer]
        if moved:
            log.info("members", index=current.index, voters=list(current.voters), members=list(current.ids))
        if engine.is_leader and state[1] and not self._followed[1]:
            until = now + LEAVE_S
            self._leaving.update((peer, until) for peer in current.removed if peer in engine.connected_peers)
        self._followed = state
        self._set(*state)
        return moved

    def _set(self, current: Configuration, settled: bool, gone: bool) -> None:  # noqa: FBT001 - of the state
        own, engine = self._membership.node_id, self._engine
        seats = self._membership.seats(engine.applied_index)
        addresses = {seat.node: seat.peer_address for seat in seats if seat.node != own}
        self._guests -= {*addresses, *(current.removed if settled else ())}
        extra = self._guests | self._leaving.keys()
        if gone:
            log.warning("removed", cluster_goes_on_with=list(current.ids))
            addresses, extra = {}, set()
        wanted = sorted(addresses.keys() | extra)
        for peer in [peer for peer in engine.peers if peer not in wanted and peer not in current.ids]:
            engine.drop_peer(peer)
        for peer in wanted:
            engine.add_peer(peer)
        self._feeds.set_peers(engine.peers)
        others = [peer for peer in wanted if peer not in current.ids]
        alone = current.ids == (own,) and not self._membership.lacks
        self._repair.set_peers(wanted, optional=others, alone=alone)
        if self._links.directories is not None:
            self._links.directories.before = self._membership.before
        self._links.set_members(addresses, current=current, settled=settled, guests=extra)

    def link_up(self, peer: NodeId) -> bool:
        """It is a guest, if it is nothing else. True: with another disk it has nothing of what it has said before."""
        directories = self._links.directories
        changed = directories is not None and directories.has_changed(peer)
        if changed:
            self._engine.lost_disk(peer)
        if peer not in self._engine.peers:
            self._guests.add(peer)
            self._set(self._membership.current, *self._followed[1:])
        return changed

    def link_down(self, peer: NodeId) -> None:
        """Guests that go are forgotten, and so are those that leave."""
        if peer in self._guests or peer in self._leaving:
            self._guests.discard(peer)
            self._leaving.pop(peer, None)
            self._set(self._membership.current, *self._followed[1:])

    def refused(self, peer: NodeId, frame: Frame) -> None:
        """Another node says why it wants no link. Raises the error, which ends the link, unless it is for good."""
        error: LogboomError = from_wire(frame.header)
        if not isinstance(error, WrongNode) or error.fields.get("gone") is not True:
            raise error
        log.warning("removed_says", peer=peer, error=error.message)
        self._told_removed, self._steady = True, None
