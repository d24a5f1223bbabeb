"""How far other nodes are, as they have said: asked for only while somebody here waits for several nodes. Sans-io.

What a node has said stays true, over its restarts as well: it shows nothing less again (..pipeline.recovered), unless
it loses its disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dispatcher.barriers.goals import RETRY_AFTER_S, Want
from logboom.errors import InvalidRequest, ProtocolError, QuotaExceeded
from logboom.types import NUMBER_MAX, Level, NodeId, PartitionId, Scope
from logboom.wire import shown

ROWS_MAX: Final = 16_384
"""Partitions and levels, together, that are asked for at a time."""
FRAME_ROWS: Final = 2_048
LOOK_S: Final = 0.1
"""Whoever asks for a row again and again, and however many do, others are asked so often."""
BLOCKED_STATES: Final = frozenset(("paused", "damaged", "lost"))
APPLIED_LEVELS: Final = frozenset((Level.APPLIED, Level.SNAPSHOTTED))
STATES: Final = BLOCKED_STATES | {"running", "retrying", "frozen", "withdrawn"}
LEVELS: Final = (Level.ORDERED, Level.DURABLE, Level.APPLIED, Level.SNAPSHOTTED)
"""By their number between nodes."""

Row = tuple[PartitionId, Level]


@dataclass(slots=True)
class _Asked:
    """A partition at a level that somebody waits for."""

    first: int
    """Frontiers below this need not be told."""
    last: int
    """Nor above this."""
    wants: int = 0
    looked: float = -1e9
    """When others were asked last for what they have come to."""
    said: dict[NodeId, tuple[int, str]] = field(default_factory=dict)


class Frontiers:
    """``moved(partition, level, blocking state or nothing)`` is called when a node has said something.

    ``poke`` is called when others are to be asked.
    """

    def __init__(self) -> None:
        self.moved: Callable[[PartitionId, Level, str], None] = lambda *_: None
        self.poke: Callable[[], None] = lambda: None
        self._me: NodeId | None = None
        self._members: tuple[NodeId, ...] = ()
        self._voters: tuple[NodeId, ...] = ()
        self._rows: dict[Row, _Asked] = {}
        self._unasked: dict[NodeId, dict[Row, bool]] = {}
        """What is to be said to each other node of what is wanted of it; True: and to be answered at once."""
        self._new: set[NodeId] = set()
        """Those that have to forget what a link before this one has told them."""

    def __len__(self) -> int:
        return len(self._rows)

    # -- who waits

    def want(self, want: Want) -> None:
        """Somebody waits for it, the first one. Raises QuotaExceeded, and InvalidRequest for what never fits."""
        rows = [(p, want.level) for p in want.partitions]
        if len(rows) > ROWS_MAX:
            raise InvalidRequest(f"{len(rows)} partitions on several nodes; at most {ROWS_MAX} in one barrier")
        more = sum(row not in self._rows for row in rows)
        if len(self._rows) + more > ROWS_MAX:
            raise QuotaExceeded(
                "too many partitions are waited for on several nodes",
                limit=ROWS_MAX,
                used=len(self._rows),
                retry_after=RETRY_AFTER_S,
            )
        for row, (_, target) in zip(rows, want.targets, strict=True):
            asked = self._rows.get(row)
            if asked is None:
                asked = self._rows[row] = _Asked(target, target)
                self._ask(row)
            elif not asked.first <= target <= asked.last:
                asked.first, asked.last = min(asked.first, target), max(asked.last, target)
                self._ask(row)
            asked.wants += 1

    def unwant(self, want: Want) -> None:
        """Nobody does any more."""
        for partition_id in want.partitions:
            row = partition_id, want.level
            asked = self._rows.get(row)
            if asked is not None:
                asked.wants -= 1
                if not asked.wants:
                    del self._rows[row]
                    self._ask(row)

    def look(self, want: Want, now: float) -> None:
        """Somebody wants to see how far it is: have everybody say so, once; not sooner again than after LOOK_S."""
        for partition_id in want.partitions:
            asked = self._rows.get((partition_id, want.level))
            if asked is not None and now - asked.looked >= LOOK_S:
                asked.looked = now
                self._ask((partition_id, want.level), now=True)

    def ended(self, partition_id: PartitionId) -> None:
        """The partition is gone, everywhere. Who heard of that before it was asked has to be told to forget the row."""
        for level in LEVELS:
            if self._rows.pop((partition_id, level), None) is not None:
                self._ask((partition_id, level))

    # -- who answers

    def set_members(self, me: NodeId, members: Sequence[NodeId], voters: Sequence[NodeId]) -> None:
        """Who counts from now on."""
        self._me, self._members, self._voters = me, tuple(members), tuple(voters)
        others = set(members) - {me}
        for gone in self._unasked.keys() - others:
            del self._unasked[gone]
            self._new.discard(gone)
            self.forget(gone)
        for node in sorted(others - self._unasked.keys()):
            self.link_up(node)

    def forget(self, peer: NodeId) -> None:
        """What it has said is no longer so: it has lost its disk."""
        for asked in self._rows.values():
            asked.said.pop(peer, None)

    def link_up(self, peer: NodeId) -> None:
        """A new link: everything is asked anew."""
        if peer in self._members:
            self._unasked[peer] = dict.fromkeys(self._rows, False)
            if self._rows:
                self._new.add(peer)
                self.poke()

    def _ask(self, row: Row, *, now: bool = False) -> None:
        for unasked in self._unasked.values():
            unasked[row] = now or unasked.get(row, False)
        if self._unasked:
            self.poke()

    def due(self) -> list[NodeId]:
        """Those that are to be told what is wanted of them."""
        return [peer for peer, rows in self._unasked.items() if rows]

    def ask(self, peer: NodeId) -> dict[str, Any]:
        """A frame's header; to be followed by ``asked`` once it is sent."""
        rows = []
        for (partition_id, level), now in list(self._unasked[peer].items())[:FRAME_ROWS]:
            asked = self._rows.get((partition_id, level))
            first, last = (asked.first, asked.last) if asked is not None else (0, 0)
            rows.append([partition_id, LEVELS.index(level), first, last, now])
        return {"new": peer in self._new, "rows": rows}

    def asked(self, peer: NodeId) -> None:
        """The frame is on its way, in order."""
        for row in list(self._unasked[peer])[:FRAME_ROWS]:
            del self._unasked[peer][row]
        self._new.discard(peer)

    def heard(self, peer: NodeId, header: Mapping[str, Any]) -> None:
        """A node's answer. Raises ProtocolError."""
        for partition_id, level, frontier, state in parse_told(header):
            asked = self._rows.get((partition_id, level))
            if asked is None or peer not in self._members:
                continue
            before, _ = asked.said.get(peer, (0, ""))
            asked.said[peer] = max(before, frontier), state
            self.moved(partition_id, level, state if state in BLOCKED_STATES else "")

    # -- what follows from it

    def frontier(self, partition_id: PartitionId, level: Level, scope: Scope, *, own: int) -> int:
        """A majority of voters, or all members, are this far; ``own``: this node is."""
        nodes = self._voters if scope is Scope.QUORUM else self._members
        if not nodes:
            return 0
        asked = self._rows.get((partition_id, level))
        said = asked.said if asked is not None else {}
        held = sorted((own if node == self._me else said.get(node, (0, ""))[0] for node in nodes), reverse=True)
        return held[len(nodes) // 2 if scope is Scope.QUORUM else -1]

    def stuck(self, partition_id: PartitionId, level: Level, scope: Scope, target: int, *, own: tuple[int, str]) -> str:
        """A state because of which too few come to ``target``; empty: enough can. ``own``: of this node."""
        nodes = self._voters if scope is Scope.QUORUM else self._members
        asked = self._rows.get((partition_id, level))
        said = asked.said if asked is not None else {}
        known = [own if node == self._me else said.get(node, (0, "")) for node in nodes]
        held_up = [state for frontier, state in known if frontier < target and holds_up(state, level)]
        spare = max(0, len(nodes) - 1) // 2 if scope is Scope.QUORUM else 0
        return held_up[0] if len(held_up) > spare else ""


def holds_up(state: str, level: Level) -> bool:
    """A partition in that state comes no further at that level.

    One that is paused, or cannot be applied for damage, is written and synced as ever.
    """
    return state == "lost" or (state in BLOCKED_STATES and level in APPLIED_LEVELS)


def parse_wanted(header: Mapping[str, Any]) -> list[tuple[PartitionId, Level, int, int, bool]]:
    """The rows of a FRONTIERS_WANTED frame. Raises ProtocolError."""
    found = []
    for row in _rows(header, 5):
        *numbers, now = row
        if any(type(v) is not int or not 0 <= v < NUMBER_MAX for v in numbers) or type(now) is not bool:
            raise ProtocolError(f"FRONTIERS_WANTED with {shown(row)}")
        partition_id, level, first, last = numbers
        if level >= len(LEVELS):
            raise ProtocolError(f"FRONTIERS_WANTED of level {level}")
        found.append((PartitionId(partition_id), LEVELS[level], first, last, now))
    return found


def parse_told(header: Mapping[str, Any]) -> list[tuple[PartitionId, Level, int, str]]:
    """The rows of a FRONTIERS frame. Raises ProtocolError."""
    found = []
    for row in _rows(header, 4):
        partition_id, level, frontier, state = row
        numbers = (partition_id, level, frontier)
        if any(type(v) is not int or not 0 <= v < NUMBER_MAX for v in numbers) or level >= len(LEVELS):
            raise ProtocolError(f"FRONTIERS with {shown(row)}")
        if not isinstance(state, str) or state not in STATES:
            raise ProtocolError(f"FRONTIERS with {shown(row)}")
        found.append((PartitionId(partition_id), LEVELS[level], frontier, state))
    return found


def _rows(header: Mapping[str, Any], width: int) -> list[list[Any]]:
    rows = header.get("rows")
    if not isinstance(rows, list) or len(rows) > FRAME_ROWS:
        raise ProtocolError(f"at most {FRAME_ROWS} rows of frontiers, not {shown(rows)}")
    for row in rows:
        if not isinstance(row, list) or len(row) != width:
            raise ProtocolError(f"a row of frontiers has {width} fields, not {shown(row)}")
    return rows
