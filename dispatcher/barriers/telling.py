"""What other nodes want to hear of this node's frontiers: each row once it moves within the bounds asked for. Sans-io.

Every row is a waiter among this node's own barriers, so rows that do not move cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dispatcher.barriers.barriers import NOTICED_STATES, Barriers
from dispatcher.barriers.frontiers import FRAME_ROWS, LEVELS, ROWS_MAX, Row, parse_wanted
from dispatcher.barriers.goals import Reached, Waiter, Want
from dispatcher.barriers.watermarks import Watermarks
from logboom.errors import LogboomError, PartitionDestroyed, ProtocolError, QuotaExceeded
from logboom.types import GlobalLogIndex, Level, NodeId, PartitionId, Watermark

FOR_EVER: Final = float("inf")


@dataclass(slots=True)
class _Row:
    """A partition at a level that a node asked for: it wants to hear of frontiers from ``first`` to ``last``."""

    first: int
    last: int
    told: int = -1
    state: str = ""
    waiter: Waiter | None = None


@dataclass(slots=True)
class _Peer:
    """What one other node wants to hear."""

    rows: dict[Row, _Row] = field(default_factory=dict)
    due: dict[Row, None] = field(default_factory=dict)
    """Rows that it is to be told."""


class Telling:
    """``poke`` is called when somebody is to be told something, ``hurry`` when somebody waits for an apply."""

    def __init__(self, barriers: Barriers, watermarks: Watermarks, *, may_show: Callable[[PartitionId], bool]) -> None:
        self.poke: Callable[[], None] = lambda: None
        self.hurry: Callable[[PartitionId], None] = lambda _: None
        self._barriers = barriers
        self._watermarks = watermarks
        self._may_show = may_show
        self._peers: dict[NodeId, _Peer] = {}
        self._held: dict[tuple[NodeId, Row], None] = {}
        """Rows of partitions that are not there yet, or must not be shown yet."""
        self._blocked: dict[PartitionId, dict[tuple[NodeId, Row], None]] = {}
        """Told in a state in which whoever cannot wait may be answered at once: they wait for another one, too."""
        watermarks.listen(self._on_watermark)

    def __len__(self) -> int:
        return sum(len(peer.rows) for peer in self._peers.values())

    def asked(self, node: NodeId, header: Mapping[str, Any]) -> None:
        """A FRONTIERS_WANTED frame. Raises ProtocolError."""
        wanted = parse_wanted(header)
        if header.get("new"):
            self.peer_down(node)
        peer = self._peers.setdefault(node, _Peer())
        for partition_id, level, first, last, now in wanted:
            key = partition_id, level
            self._drop(node, key)
            if last:
                if len(peer.rows) >= 2 * ROWS_MAX:  # what is not wanted any more may be said after what is
                    raise ProtocolError(f"more than {ROWS_MAX} rows of frontiers are wanted")
                peer.rows[key] = _Row(first, last)
                self._watch(node, key)
                if now and (node, key) not in self._held:
                    self._due(node, key)

    def peer_down(self, node: NodeId) -> None:
        """Nobody there listens any more."""
        for key in list(self._peers.get(node, _Peer()).rows):
            self._drop(node, key)
        self._peers.pop(node, None)

    def tick(self) -> None:
        """Look again at what could not be shown."""
        held, self._held = self._held, {}
        for node, key in held:
            self._watch(node, key)

    # -- inside

    def _drop(self, node: NodeId, key: Row) -> None:
        peer = self._peers[node]
        row = peer.rows.pop(key, None)
        if row is not None:
            self._forget_waiter(row)
            peer.due.pop(key, None)
            self._held.pop((node, key), None)
            self._unblock(node, key)

    def _forget_waiter(self, row: _Row) -> None:
        waiter, row.waiter = row.waiter, None
        if waiter is not None:
            self._barriers.cancel(waiter)

    def _unblock(self, node: NodeId, key: Row) -> None:
        there = self._blocked.get(key[0], {})
        there.pop((node, key), None)
        if not there:
            self._blocked.pop(key[0], None)

    def _watch(self, node: NodeId, key: Row) -> None:
        """Wait for the next thing that is worth telling."""
        peer = self._peers.get(node)
        row = peer.rows.get(key) if peer is not None else None
        if row is None:
            return
        self._held.pop((node, key), None)
        partition_id, level = key
        if not self._watermarks.has(partition_id) or not self._may_show(partition_id):
            self._held[node, key] = None
            return
        target = max(row.first, row.told + 1)
        if target > row.last:
            return  # it knows all that it wants to

        def done(answer: Reached | LogboomError) -> None:
            row.waiter = None
            if isinstance(answer, PartitionDestroyed):
                self._drop(node, key)
                return
            self._due(node, key)

        if level is Level.APPLIED:
            self.hurry(partition_id)
        try:
            row.waiter = self._barriers.add(
                Want(((partition_id, GlobalLogIndex(target)),), level),
                client=self,
                deadline=FOR_EVER,
                now=0.0,
                done=done,
                wait_blocked=row.state in NOTICED_STATES,
                own=True,
            )
        except QuotaExceeded:
            self._held[node, key] = None

    def _due(self, node: NodeId, key: Row) -> None:
        peer = self._peers.get(node)
        if peer is not None and key in peer.rows:
            peer.due[key] = None
            self.poke()

    def _on_watermark(self, mark: Watermark) -> None:
        for node, key in list(self._blocked.get(mark.partition_id, ())):
            row = self._peers[node].rows[key]
            if row.state != self._watermarks.holding(*key):
                self._unblock(node, key)
                self._forget_waiter(row)
                self._due(node, key)

    # -- telling

    def due(self) -> list[NodeId]:
        """Those who are to be told something."""
        return [node for node, peer in self._peers.items() if peer.due]

    def frames(self, node: NodeId) -> int:
        """So many hold all that it is to be told now."""
        return -(-len(self._peers[node].due) // FRAME_ROWS)

    def tell(self, node: NodeId) -> dict[str, Any]:
        """A frame's header, as it is now; to be followed by ``told`` once it is sent."""
        rows: list[list[object]] = []
        for key in [key for key in self._peers[node].due if not self._watermarks.has(key[0])]:
            self._drop(node, key)  # destroyed after it had moved
        for partition_id, level in list(self._peers[node].due)[:FRAME_ROWS]:
            state = self._watermarks.holding(partition_id, level)
            rows.append([partition_id, LEVELS.index(level), self._barriers.frontier(partition_id, level), state])
        return {"rows": rows}

    def told(self, node: NodeId, header: Mapping[str, Any]) -> None:
        """``header`` is on its way, in order."""
        peer = self._peers[node]
        for partition_id, level, frontier, state in header["rows"]:
            key = partition_id, LEVELS[level]
            del peer.due[key]
            row = peer.rows[key]
            self._forget_waiter(row)
            row.told, row.state = frontier, state
            if state in NOTICED_STATES:
                self._blocked.setdefault(partition_id, {})[node, key] = None
            else:
                self._unblock(node, key)
            self._watch(node, key)
