"""NEED: a follower asks the leader for payload that its gate has missed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from logboom.types import NodeId
from logboom.wire import Kind
from ports.clock import Clock
from raftlog.engine import Engine
from raftlog.journal.journal import Journal
from raftlog.links.feed import Feeds
from raftlog.links.links import Links

NEED_AGAIN_S: Final = 0.25
MENDS_S: Final = 30.0
"""Whoever lacks something asks all others in turn, again and again, each of them more often than this."""


class Needs:
    """NEED, asked (a follower) and answered (the leader); and who asks for what it has lost."""

    def __init__(self, *, journal: Journal, engine: Engine, feeds: Feeds, links: Links, clock: Clock) -> None:
        self._journal = journal
        self._engine = engine
        self._feeds = feeds
        self._links = links
        self._clock = clock
        self._asked: tuple[NodeId, int, float] | None = None
        self._fetched: dict[NodeId, tuple[float, int]] = {}
        """When each has last asked for what it lacks, and what it had acknowledged by then."""

    def fetched(self, peer: NodeId, header: Mapping[str, Any]) -> None:
        """It asks for what it lacks; ``header`` of its FETCH. What stays lost keeps it from acknowledging nothing."""
        if header.get("acknowledges") is True:
            self._fetched.pop(peer, None)
        else:  # or it is of an earlier release, and does not say
            self._fetched[peer] = self._clock.monotonic(), self._engine.acknowledged_by(peer)

    def mends(self, peer: NodeId) -> bool:
        """It has asked of late for something without which it acknowledges nothing behind it, nor has it since.

        Once it has it asks no more. Whoever comes on to something else that it lacks asks again, within a second or so.
        """
        asked, acknowledged = self._fetched.get(peer, (-MENDS_S, 0))
        return self._clock.monotonic() - asked < MENDS_S and self._engine.acknowledged_by(peer) == acknowledged

    def link_down(self, peer: NodeId) -> None:
        """Whoever comes next may lack nothing any more."""
        self._fetched.pop(peer, None)

    def forget(self) -> None:
        """What was asked may be lost."""
        self._asked = None

    def ask(self, leader: NodeId, index: int) -> None:
        """For the payload of entries from ``index`` on; not again and again."""
        now = self._clock.monotonic()
        if self._asked is not None and self._asked[:2] == (leader, index) and now - self._asked[2] < NEED_AGAIN_S:
            return
        self._asked = leader, index, now
        self._links.send(leader, Kind.NEED, {"raft_index": index})

    def answer(self, peer: NodeId, index: int) -> None:
        """Leader only: feed it from there on. If the journal begins later, it is too far behind."""
        if not 1 < index <= self._journal.last_index:
            return
        if index <= self._journal.base_index <= self._engine.acknowledged_by(peer):
            return  # it has had it since
        self._feeds.rewind(peer, held=index - 1)
        self._engine.rewind(peer, index)
