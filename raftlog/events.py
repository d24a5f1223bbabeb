"""What the parent log tells whoever uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from logboom.types import NodeId
from logboom.wire import Frame
from raftlog.entries.configuration import Configuration
from raftlog.entries.entry import Route


class RaftEvents(Protocol):
    """Who uses the parent log; called on the loop."""

    def committed(self, raft_index: int, term: int, routes: Sequence[Route]) -> None:
        """Every node, in order, exactly once per process; the payload of all routes is held and synced here."""
        ...

    def control(self, raft_index: int, term: int, fields: Mapping[str, Any]) -> None:
        """A control entry: every node, in one order with ``committed``, exactly once per process."""
        ...

    def orders(self) -> None:
        """Leader only: what is proposed now is ordered next. Nothing may be held back for later proposals."""
        ...

    def leads(self, term: int) -> None:
        """This node leads and knows all that is committed: it may admit."""
        ...

    def lost_leadership(self) -> None:
        """What was proposed and is not committed has an unknown outcome."""
        ...

    def peer_frame(self, peer: NodeId, frame: Frame) -> None:
        """A frame that is not the parent log's own."""
        ...

    def peer_up(self, peer: NodeId) -> None:
        """A link to it is open."""
        ...

    def peer_forgot(self, peer: NodeId) -> None:
        """It begins anew, on another disk: what it has told of itself is no longer so. Before ``peer_up``."""
        ...

    def peer_drained(self, peer: NodeId) -> None:
        """Its link takes frames again, after it did not."""
        ...

    def peer_down(self, peer: NodeId) -> None:
        """Its link is gone."""
        ...

    def foretold(self, routes: Sequence[Route], through: int) -> None:
        """The leader goes on with these behind an entry that is ours, too; of some a batch is not held here.

        Up to ``through`` the two journals are the same. It may take these to commit any of it.
        """
        ...

    def peer_needs_snapshot(self, peer: NodeId) -> None:
        """Leader only, again and again: it lacks entries that the journal no longer has."""
        ...

    def members_changed(self, members: Configuration) -> None:
        """Another configuration counts here, committed or not."""
        ...

    def traced(self, route: Route, traceparent: object) -> None:
        """A batch of a traced request has come and is appended: it is synced once what is held back now is sent."""
        ...

    def synced(self) -> None:
        """A group sync is done: durable watermarks may have moved."""
        ...

    def repaired(self) -> None:
        """All payload that was missing or damaged here is back."""
        ...
