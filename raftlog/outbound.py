"""Raft messages on their way out: each waits until what it depends on is synced (I3).

``append_entries`` waits for its term alone, as only that of a cluster's single voter has to: he asks nobody for votes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from logboom.types import NodeId
from logboom.wire import Kind
from ports.invariant import invariant
from raftlog.engine import Engine, messages
from raftlog.journal.journal import Journal
from raftlog.journal.outbox import GroupSync
from raftlog.links.links import Links
from raftlog.repair.repair import Repair


class Outbound:
    """Of one node. ``engine`` and ``repair`` are set once they are made: they send through it."""

    engine: Engine
    repair: Repair

    def __init__(self, *, links: Links, group: GroupSync, journal: Journal, stalled_s: float) -> None:
        """A disk that has been at a sync for ``stalled_s`` hangs."""
        self.links = links
        self.group = group
        self.journal = journal
        self.lone = False
        """This turn is for one command alone: what the quickest followers get leaves at once."""
        self._stalled_s = stalled_s
        self._waiting: dict[NodeId, _Acknowledgement] = {}
        """The last one held for each."""

    @property
    def silent(self) -> bool:
        """The disk hangs: a leader that cannot write lets another lead, and gives no sign of life."""
        return self.group.stalled(self._stalled_s)

    def send(self, peer: NodeId, message: messages.Message) -> bool:
        """Queue a message; False: not connected."""
        if not self.links.connected(peer):
            return False
        if message["type"] == "append_entries" and message["term"] <= self.journal.durable_term:
            # The one exception to I3: the engine counts ourselves only up to what is synced here, so this
            # may leave early. Not while the disk hangs: a leader that cannot write must fall silent.
            if not self.silent:
                sent = self.links.send(peer, Kind.RAFT, {}, [messages.encode(message)])
                if self.lone and peer in self.engine.quickest:
                    self.links.flush(peer)
                return sent
        elif message["type"] == "next_node_idx" and message["success"]:
            if self.repair.active:
                # What is missing here does not count as held here, though the journal has its entry.
                message = dict(message, next_node_idx=min(message["next_node_idx"], self.repair.first_index))
            self._acknowledge_later(peer, message)
            return True
        body = messages.encode(message)
        self.group.hold(lambda: self.send_now(peer, body))
        return True

    def send_now(self, peer: NodeId, body: bytes) -> None:
        """Queue it on the link, whatever it depends on."""
        self.links.send(peer, Kind.RAFT, {}, [body])

    def _acknowledge_later(self, peer: NodeId, message: messages.Message) -> None:
        missing = self.repair.active
        waiting = None if missing else self._waiting.get(peer)
        if waiting is not None and waiting.may_say(message, group=self.group.groups):
            waiting.message = message
            return
        waiting = _Acknowledgement(self.group.groups, message)
        if missing:  # what is missing changes: each says what was so when it was made
            self._waiting.pop(peer, None)
        else:
            self._waiting[peer] = waiting
        self.group.hold(partial(self._acknowledge, peer, waiting))

    def _acknowledge(self, peer: NodeId, waiting: _Acknowledgement) -> None:
        if self._waiting.get(peer) is waiting:
            del self._waiting[peer]
        message = waiting.message
        if message["term"] != self.engine.term:
            return  # a new leader may have cut what this speaks of before it was ever synced
        index = message["next_node_idx"] - 1
        invariant(index <= self.journal.durable_index, "I3: acknowledging an entry that is not synced")
        self.journal.acknowledged(index)
        self.send_now(peer, messages.encode(message))
        self.links.flush(peer)


@dataclass(slots=True)
class _Acknowledgement:
    """What a peer is to be told once a group is synced: of several that wait for one, the last says it all."""

    group: int
    """Groups that had begun when it was held: it waits for the next."""
    message: messages.Message

    def may_say(self, message: messages.Message, *, group: int) -> bool:
        """The later ``message`` in place of its own: it waits for the same group, and takes nothing back."""
        own = self.message
        more = message["next_node_idx"] >= own["next_node_idx"] and message["seq"] >= own["seq"]
        return self.group == group and message["term"] == own["term"] and more and "rejoining" not in message
