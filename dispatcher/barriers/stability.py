"""Write-behind: which prefix of a partition is durable on a majority, hence safe to apply.

Every node tells every other how far its own copy is synced; each computes the same rule.
Sans-io.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from logboom.errors import ProtocolError
from logboom.types import NodeId, PartitionId, PartitionLogIndex
from logboom.wire import shown

EARLY_MAX: Final = 4096
AGAIN_S: Final = 5.0
"""Between two times that others are asked to say all of it once more."""


class Stability:
    """Durable indices per node and write-behind partition."""

    def __init__(self, *, node_id: NodeId, members: Sequence[NodeId], partitions: Iterable[PartitionId]) -> None:
        self._node_id = node_id
        self._durable: dict[PartitionId, dict[NodeId, int]] = {p: {node_id: 0} for p in partitions}
        self._stable: dict[PartitionId, PartitionLogIndex] = dict.fromkeys(self._durable, PartitionLogIndex(0))
        self._untold: dict[NodeId, set[PartitionId]] = {}
        self._linked: set[NodeId] = set()
        self._early: dict[PartitionId, dict[NodeId, int]] = {}
        """What others have said of partitions that are not known here yet: they say it once, unless they are asked."""
        self._passed_over: set[NodeId] = set()
        """Who has said more of those than is kept."""
        self._again: set[NodeId] = set()
        """Those of them who are to say all of it once more: a partition has come to be known here since."""
        self._asked_at = -AGAIN_S
        self.set_members(members, voters=members)

    def set_members(self, members: Sequence[NodeId], *, voters: Sequence[NodeId]) -> list[PartitionId]:
        """Who is told, and whose copies count; the partitions whose stable index moved. It never goes back."""
        self._voters, self._position = tuple(voters), len(voters) // 2
        others = [member for member in members if member != self._node_id]
        for gone in self._untold.keys() - set(others):
            del self._untold[gone]
            # While its link is up it says nothing twice, and it may be a member again: where the log is replayed, or
            # its removal is cut off.
            if gone not in self._linked:
                self.forget(gone)
        for member in others:
            if member not in self._untold:
                self.forget_told(member)
        return [partition for partition in self._durable if self._count(partition)]

    def add(self, partition_id: PartitionId) -> None:
        """A new write-behind partition."""
        self._durable[partition_id] = {self._node_id: 0}
        self._stable[partition_id] = PartitionLogIndex(0)
        for node, durable_index in self._early.pop(partition_id, {}).items():
            self.update(node, partition_id, durable_index)
        if self._passed_over:
            self._again |= self._passed_over
            self._passed_over.clear()

    def remove(self, partition_id: PartitionId) -> None:
        """It is gone."""
        self._durable.pop(partition_id, None)
        self._stable.pop(partition_id, None)
        self._early.pop(partition_id, None)
        for untold in self._untold.values():
            untold.discard(partition_id)

    def early(self, node: NodeId, partition_id: PartitionId, durable_index: int) -> None:
        """A node's word of a partition that is not known here, but may be soon."""
        said = self._early.setdefault(partition_id, {})
        said[node] = max(said.get(node, 0), durable_index)
        while len(self._early) > EARLY_MAX:
            self._passed_over.update(self._early.pop(next(iter(self._early))))

    @property
    def partitions(self) -> list[PartitionId]:
        """The write-behind ones."""
        return list(self._durable)

    def stable(self, partition_id: PartitionId) -> PartitionLogIndex | None:
        """Highest index durable on a majority; None for partitions that need no such rule."""
        return self._stable.get(partition_id)

    def update(self, node: NodeId, partition_id: PartitionId, durable_index: int) -> bool:
        """A node says how far its copy is durable; True if the stable index moved."""
        nodes = self._durable.get(partition_id)
        if nodes is None:
            return False
        if node == self._node_id and durable_index > nodes[node]:
            for untold in self._untold.values():
                untold.add(partition_id)
        nodes[node] = max(nodes.get(node, 0), durable_index)
        return self._count(partition_id)

    def _count(self, partition_id: PartitionId) -> bool:
        if not self._voters:
            return False
        nodes = self._durable[partition_id]
        held = sorted((nodes.get(voter, 0) for voter in self._voters), reverse=True)
        stable = PartitionLogIndex(held[self._position])
        moved = stable > self._stable[partition_id]
        self._stable[partition_id] = max(stable, self._stable[partition_id])
        return moved

    def forget(self, node: NodeId) -> None:
        """What it has said is no longer so. What it made stable stays: that was, and may be applied."""
        for nodes in (*self._durable.values(), *self._early.values()):
            nodes.pop(node, None)

    def link_up(self, peer: NodeId) -> None:
        """A new link, which carries all that either knows."""
        self._linked.add(peer)
        self.forget_told(peer)
        self._passed_over.discard(peer)
        self._again.discard(peer)

    def link_down(self, peer: NodeId, *, member: bool) -> None:
        """What a ``member`` has said stays true, and counts."""
        self._linked.discard(peer)
        self._passed_over.discard(peer)
        self._again.discard(peer)
        if not member:
            self._untold.pop(peer, None)
            self.forget(peer)

    def forget_told(self, peer: NodeId) -> None:
        """What was on its way to ``peer`` may not have arrived."""
        self._untold[peer] = {p for p, nodes in self._durable.items() if nodes[self._node_id]}

    def untold(self) -> list[NodeId]:
        """Those who have something to hear."""
        return [peer for peer, partitions in self._untold.items() if partitions]

    def rows(self, peer: NodeId) -> list[tuple[PartitionId, int]]:
        """What ``peer`` has not been told yet: how far this node's copies are synced."""
        return [(p, self._durable[p][self._node_id]) for p in sorted(self._untold.get(peer, ()))]

    def news(self, now: float) -> list[tuple[NodeId, dict[str, Any]]]:
        """PROGRESS frames, for those who have something to hear, or are to say everything once more."""
        untold = self.untold()
        asked = sorted(self._again) if self._again and now - self._asked_at >= AGAIN_S else []
        if not (untold or asked):
            return []  # as nearly always
        if asked:
            self._asked_at = now
        more = {"again": True}
        peers = dict.fromkeys([*untold, *asked])
        return [(peer, {"durable": self.rows(peer), **(more if peer in asked else {})}) for peer in peers]

    def told(self, peer: NodeId, *, again: bool = False) -> None:
        """``rows`` are on their way, in order; it is asked to say everything ``again``, too."""
        self._untold.get(peer, set()).clear()
        if again:
            self._again.discard(peer)

    def heard(
        self, peer: NodeId, header: Mapping[str, Any], *, is_gone: Callable[[PartitionId], bool]
    ) -> list[PartitionId]:
        """A PROGRESS frame: of these partitions the stable index moved. Raises ProtocolError."""
        moved = []
        for partition_id, durable in parse_progress(header):
            if self.update(peer, partition_id, durable):
                moved.append(partition_id)
            elif partition_id not in self._durable and not is_gone(partition_id):
                self.early(peer, partition_id, durable)
        if header.get("again") is True:
            self.forget_told(peer)
        return moved


def parse_progress(header: Mapping[str, Any]) -> list[tuple[PartitionId, int]]:
    """The rows of a PROGRESS frame. Raises ProtocolError."""
    rows = header.get("durable")
    if not isinstance(rows, list):
        raise ProtocolError("PROGRESS without a list of durable indices")
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and all(type(v) is int and v >= 0 for v in row)):
            raise ProtocolError(f"PROGRESS with {shown(row)}")
    return [(PartitionId(p), index) for p, index in rows]
