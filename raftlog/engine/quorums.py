"""Who counts: peers, voters, and what a majority of them has said."""

from __future__ import annotations

from collections.abc import KeysView, Sequence

from logboom.types import NodeId
from ports.invariant import invariant
from raftlog.engine.stock import Given, Peer, Stock


class Quorums(Stock):
    """Majorities are those of the configuration that counts, and this node is in them only if it votes."""

    def __init__(self, given: Given) -> None:
        self.votes = False
        """This node is a voter."""
        self._members_moved = given.members_moved
        self._voters: tuple[Peer, ...] = ()
        """The other ones."""
        self._peers: dict[NodeId, Peer] = {}
        self.lagging: set[NodeId] = set()
        """Leader only: peers that have not acknowledged anything since they were too far behind."""
        self.quickest: list[NodeId] = []
        """Peers that had acknowledged the last entry when it was committed."""
        self.round = 0
        """Sequence of the last append_entries round; echoed in replies."""
        self._furthest = 0
        """No peer has ever acknowledged more to this node: no quorum holds more, but one that is this node alone."""
        self._echoed: dict[str, int] = {}
        self._probed: dict[str, tuple[int, int]] = {}
        """What a lagging peer said of its end when it was last tried whether it has the base."""
        self.forgetful: dict[NodeId, bytes] = {}
        """Leader only: peers that have lost what they promised, and the token of that. They count for no quorum until
        they know that the log has taken them out of it: what they forgot may stand against what they say."""
        self._rewound: dict[str, int] = {}
        """Last round before a peer's entries were started over: complaints about older rounds are stale."""
        super().__init__(given)

    # -- members

    @property
    def peers(self) -> KeysView[NodeId]:
        """All that this node talks to, members or not."""
        return self._peers.keys()

    @property
    def connected_peers(self) -> list[NodeId]:
        """Those whose link is up."""
        return [peer for peer, node in self._peers.items() if node in self._SyncObj__connectedNodes]

    def _follow(self) -> None:
        """Quorums are those of the configuration that counts."""
        own, current = self.membership.node_id, self.membership.current
        for member in current.ids:
            if member != own:
                self.add_peer(member)
        self._voters = tuple(self._peers[voter] for voter in current.voters if voter != own)
        self.votes = own in current.voters

    def add_peer(self, peer: NodeId) -> None:
        """From now on messages go there once it is connected, and may come from there. It counts if it is a voter."""
        if peer in self._peers:
            return
        node = Peer(peer)
        self._peers = dict(sorted({**self._peers, peer: node}.items()))
        self._SyncObj__otherNodes.add(node)
        self._SyncObj__raftNextIndex[node] = self.journal.base_index + 1
        self._SyncObj__raftMatchIndex[node] = 0
        self._SyncObj__lastResponseTime[node] = self.clock.monotonic()

    def drop_peer(self, peer: NodeId) -> None:
        """Forget one that is no member."""
        invariant(peer not in self.membership.current.ids, "{} is dropped, and a member", peer)
        node = self._peers.pop(peer)
        for nodes in (self._SyncObj__otherNodes, self._SyncObj__connectedNodes):
            nodes.discard(node)
        for table in (self._SyncObj__raftNextIndex, self._SyncObj__raftMatchIndex, self._SyncObj__lastResponseTime):
            table.pop(node, None)
        for known in (self._echoed, self._probed, self._rewound, self.forgetful):
            known.pop(peer, None)
        self.lagging.discard(peer)
        self.quickest = [each for each in self.quickest if each != peer]

    # -- majorities

    def _majority(self, others: int) -> bool:
        """So many other voters, and this node if it is one, are more than half."""
        return 2 * (others + self.votes) > len(self._voters) + self.votes

    def _counts(self, node: Peer) -> bool:
        return node.id not in self.forgetful

    def reaches_majority(self, voters: Sequence[NodeId]) -> bool:
        """So many of these are connected, and know what they have promised, that they could commit."""
        there = {self.membership.node_id, *self.connected_peers} - self.forgetful.keys()
        return 2 * sum(voter in there for voter in voters) > len(voters)

    def _may_commit(self, more_than: int) -> bool:
        """A quorum might hold more than that; else it need not be looked for, as in most turns."""
        return more_than < self.journal.last_index and (self._furthest > more_than or not self._voters)

    def _held_by_quorum(self) -> int:
        match, forgetful = self._SyncObj__raftMatchIndex, self.forgetful
        held: list[int] = [0 if forgetful and node.id in forgetful else match[node] for node in self._voters]
        if self.votes:
            # Only up to what is synced here: our append_entries may have left before our own sync.
            held.append(self.journal.durable_index)
        held.sort(reverse=True)
        return held[len(held) // 2]

    def quorum_round(self) -> int:
        """Highest round that a quorum (ourselves included) has echoed in this term."""
        echoes: list[int] = [
            *([self.round] if self.votes else ()),
            *(self._echoed.get(node.id, 0) if self._counts(node) else 0 for node in self._voters),
        ]
        echoes.sort(reverse=True)
        return echoes[len(echoes) // 2]

    @property
    def quickest_are_connected(self) -> bool:
        """There was a quorum, and everyone who made it is still there."""
        connected = self._SyncObj__connectedNodes
        return bool(self.quickest) and all(self._peers[peer] in connected for peer in self.quickest)

    @property
    def spares(self) -> list[NodeId]:
        """Followers that the last quorum did without, while everyone who made it is connected."""
        return [peer for peer in self._peers if peer not in self.quickest] if self.quickest_are_connected else []

    def acknowledged_by(self, peer: NodeId) -> int:
        """Leader only: highest Raft index that ``peer`` is known to hold; 1 when nothing is known."""
        return max(1, int(self._SyncObj__raftMatchIndex.get(self._peers.get(peer), 0)))
