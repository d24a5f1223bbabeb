"""What is done about partitions, and nodes, that apply more slowly than the parent log commits. Sans-io.

Rungs, per partition of this node: *slow* (the oldest committed command waits too long to be applied) is throttled,
*stalled* (nothing was applied for too long while something waits) is frozen, and each is undone when it has caught up.
Then, where all others are fine: a replica whose partition is chronically behind stops serving it, and a leader that is
behind as a whole hands leadership over. Nothing committed is ever dropped; every step is counted.

Nodes tell each other how they stand (``Standing``); whoever has not been heard of lately counts as not fine.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from logboom.config import PARTITIONS_MAX
from logboom.errors import ProtocolError
from logboom.settings import LagSettings
from logboom.types import NodeId, PartitionId

MARKS_MAX: Final = 64
TOLD_MAX: Final = 256
"""Partitions named in one report; with more of them behind, the node is."""
HEARD_S: Final = 5.0
"""A report older than that says nothing."""
NOT_MOVED_S: Final = 30.0
"""Until others are asked to lead again where none has: each try may stop admission for a moment."""
MS_MAX: Final = 1 << 40


class Rung(StrEnum):
    """Where one partition of this node stands."""

    STEADY = "steady"
    THROTTLED = "throttled"
    FROZEN = "frozen"


class Do(StrEnum):
    """What the dispatcher has to do."""

    THROTTLE = "throttle"
    FREEZE = "freeze"
    RELEASE = "release"
    """From throttle and freeze alike."""
    WITHDRAW = "withdraw"
    """This replica answers no reads of the partition any more: others do."""
    RETURN = "return"
    MOVE_LEADERSHIP = "move_leadership"
    REPORT = "report"
    """Another node is chronically behind: for the operator."""


class Step(NamedTuple):
    """One transition; ``partition_id`` or ``node`` says whose. Leadership goes to the first of ``among`` that can."""

    do: Do
    reason: str
    partition_id: PartitionId | None = None
    node: NodeId | None = None
    among: tuple[NodeId, ...] = ()


class Seen(NamedTuple):
    """One partition with something left to apply, as it is now; indices of its log."""

    partition_id: PartitionId
    committed: int
    applied: int


class Standing(NamedTuple):
    """How a node stands: partitions that are behind there."""

    worst_ms: int
    """Age of the oldest unapplied command."""
    behind: frozenset[PartitionId]
    partitions: int
    """How many the node has."""

    def is_behind(self, partition_id: PartitionId) -> bool:
        """This partition is behind there; where all are said to be, whatever its id."""
        return partition_id in self.behind or 0 < self.partitions <= len(self.behind)

    def row(self) -> list[object]:
        """As on the wire."""
        return [self.worst_ms, self.partitions, len(self.behind), sorted(self.behind)[:TOLD_MAX]]


class _Backlog:
    """What one partition has left to apply, since when, and what was done about it."""

    __slots__ = ("_marks", "applied", "moved_at", "rung", "slow_since", "withdrawn")

    def __init__(self, seen: Seen, now: float) -> None:
        self.applied = seen.applied
        self.moved_at = now
        self._marks: deque[tuple[float, int]] = deque()
        """When the log was first seen to reach an index."""
        self.rung = Rung.STEADY
        self.slow_since: float | None = None
        self.withdrawn = False

    def look(self, seen: Seen, now: float) -> None:
        if seen.applied > self.applied:
            self.applied, self.moved_at = seen.applied, now
        if not self._marks or seen.committed > self._marks[-1][1]:
            self._marks.append((now, seen.committed))
        while self._marks and self._marks[0][1] <= seen.applied:
            self._marks.popleft()
        if len(self._marks) > MARKS_MAX:
            pairs = list(self._marks)
            # Of two, the time of the earlier and the index of the later: an age is never too low.
            self._marks = deque((a[0], b[1]) for a, b in zip(pairs[::2], [*pairs[1::2], pairs[-1]], strict=False))

    def age_s(self, now: float) -> float:
        return now - self._marks[0][0] if self._marks else 0.0


class Ladder:
    """The rungs on which the partitions of one node stand, and what is to be done."""

    def __init__(self, settings: LagSettings, node_id: NodeId) -> None:
        self._settings = settings
        self._node_id = node_id
        self._backlogs: dict[PartitionId, _Backlog] = {}
        self._heard: dict[NodeId, tuple[float, Standing]] = {}
        self._reported: set[NodeId] = set()
        self._node_slow_since: dict[NodeId, float] = {}
        self._move_at = -1e9
        """Leadership is moved not before that."""
        self.steps: Counter[str] = Counter()
        """How often each step was taken."""
        self.standing = Standing(0, frozenset(), 0)
        """How this node stood at the last look."""

    # -- what others ask

    def rung(self, partition_id: PartitionId) -> Rung:
        """Where a partition is."""
        backlog = self._backlogs.get(partition_id)
        return Rung.STEADY if backlog is None else backlog.rung

    def withdrawn(self, partition_id: PartitionId) -> bool:
        """This replica does not serve it."""
        backlog = self._backlogs.get(partition_id)
        return backlog is not None and backlog.withdrawn

    def age_ms(self, partition_id: PartitionId, now: float) -> int:
        """Age of its oldest unapplied command, as far as looks tell."""
        backlog = self._backlogs.get(partition_id)
        return 0 if backlog is None else round(backlog.age_s(now) * 1000)

    # -- what happens

    def heard(self, node: NodeId, standing: Standing, now: float) -> None:
        """A node's own word."""
        self._heard[node] = now, standing

    def not_moved(self, now: float) -> None:
        """Nobody has taken leadership over, as was to be done."""
        self._move_at = min(self._move_at, now + NOT_MOVED_S)

    def forget(self, partition_id: PartitionId) -> None:
        """It is destroyed."""
        self._backlogs.pop(partition_id, None)

    def look(
        self,
        now: float,
        behind: Iterable[Seen],
        *,
        partitions: int,
        voters: Sequence[NodeId],
        leads: bool,
        recovering: Collection[PartitionId] = (),
    ) -> list[Step]:
        """Every ``lag.look_ms``: ``behind`` is what has something left to apply, of ``partitions`` in all.

        ``recovering``: what was there before a start is applied again. That may take its time, and not stand still.
        """
        steps: list[Step] = []
        rows = {seen.partition_id: seen for seen in behind}
        for partition_id in [p for p in self._backlogs if p not in rows]:
            steps += self._caught_up(partition_id)
        for seen in rows.values():
            backlog = self._backlogs.setdefault(seen.partition_id, _Backlog(seen, now))
            backlog.look(seen, now)
            steps += self._climb(seen.partition_id, backlog, now, recovering=seen.partition_id in recovering)
        slow = frozenset(p for p, backlog in self._backlogs.items() if backlog.slow_since is not None).union(recovering)
        worst = max((backlog.age_s(now) for backlog in self._backlogs.values()), default=0.0)
        self.standing = Standing(round(worst * 1000), slow, partitions)
        others = [node for node in voters if node != self._node_id]
        self._heard = {node: heard for node, heard in self._heard.items() if node in others}
        steps += self._serve_or_not(now, others)
        steps += self._nodes(now, others, leads=leads)
        for step in steps:
            self.steps[step.do] += 1
        return steps

    def _climb(self, partition_id: PartitionId, backlog: _Backlog, now: float, *, recovering: bool) -> list[Step]:
        limits, age_ms, still_ms = self._settings, backlog.age_s(now) * 1000, (now - backlog.moved_at) * 1000
        slow = bool(limits.slow_ms) and age_ms >= limits.slow_ms and not recovering
        # It is steady again well below where it was slow, or it would go to and from.
        well = not limits.slow_ms or age_ms < limits.slow_ms / 2
        stalled = bool(limits.stalled_ms) and min(age_ms, still_ms) >= limits.stalled_ms
        if slow or stalled:
            backlog.slow_since = backlog.slow_since if backlog.slow_since is not None else now
        elif well:
            backlog.slow_since = None
        if stalled and backlog.rung is not Rung.FROZEN:
            backlog.rung = Rung.FROZEN
            return [Step(Do.FREEZE, f"nothing was applied for {still_ms:.0f} ms, and something waits", partition_id)]
        if slow and backlog.rung is Rung.STEADY:
            backlog.rung = Rung.THROTTLED
            return [Step(Do.THROTTLE, f"its oldest command waits to be applied for {age_ms:.0f} ms", partition_id)]
        if well and not stalled and backlog.rung is not Rung.STEADY:
            backlog.rung = Rung.STEADY
            return [Step(Do.RELEASE, f"its oldest command waits for {age_ms:.0f} ms", partition_id)]
        return []

    def _caught_up(self, partition_id: PartitionId) -> list[Step]:
        gone = self._backlogs.pop(partition_id)
        steps = [Step(Do.RELEASE, "everything is applied", partition_id)] if gone.rung is not Rung.STEADY else []
        if gone.withdrawn:
            steps.append(Step(Do.RETURN, "everything is applied", partition_id))
        return steps

    # -- compared with the others

    def _fine(self, node: NodeId, now: float) -> Standing | None:
        """What it said lately, if it did."""
        at, standing = self._heard.get(node, (-1e9, None))
        return standing if now - at <= HEARD_S else None

    def _serve_or_not(self, now: float, others: Sequence[NodeId]) -> list[Step]:
        """A partition that is chronically behind here and not on a majority is read elsewhere."""
        steps = []
        chronic_s = self._settings.chronic_ms / 1000
        for partition_id, backlog in self._backlogs.items():
            since = backlog.slow_since
            if backlog.withdrawn:
                if since is None:
                    backlog.withdrawn = False
                    steps.append(Step(Do.RETURN, "it has caught up", partition_id))
            elif chronic_s and since is not None and now - since >= chronic_s:
                fine = sum(
                    (told := self._fine(node, now)) is not None and not told.is_behind(partition_id) for node in others
                )
                if 2 * fine > len(others) + 1:
                    backlog.withdrawn = True
                    reason = f"behind for {now - since:.0f} s, and {fine} others are not"
                    steps.append(Step(Do.WITHDRAW, reason, partition_id))
        return steps

    def _nodes(self, now: float, others: Sequence[NodeId], *, leads: bool) -> list[Step]:
        """Exactly one node is behind, for long: the operator is told, and it does not lead."""
        known = {node: told for node in others if (told := self._fine(node, now)) is not None}
        known[self._node_id] = self.standing
        slow = {node for node, told in known.items() if self._behind_as_a_whole(told)}
        self._node_slow_since = {node: self._node_slow_since.get(node, now) for node in slow}
        self._reported &= slow
        chronic_s = self._settings.chronic_ms / 1000
        if not chronic_s or 2 * len(known) <= len(others) + 1:
            return []
        steps = []
        chronic = [node for node in slow if len(slow) == 1 and now - self._node_slow_since[node] >= chronic_s]
        for node in chronic:
            reason = f"{len(known[node].behind)} of its {known[node].partitions} partitions are behind, no others are"
            if node not in self._reported:
                self._reported.add(node)
                steps.append(Step(Do.REPORT, reason, node=node))
        withdrawn = sum(backlog.withdrawn for backlog in self._backlogs.values())
        able = sorted(node for node, told in known.items() if node != self._node_id and not told.behind)
        if leads and able and (self._node_id in chronic or withdrawn) and now >= self._move_at:
            self._move_at = now + self._settings.move_again_ms / 1000
            reason = f"{len(self.standing.behind)} partitions are behind here, and not elsewhere"
            steps.append(Step(Do.MOVE_LEADERSHIP, reason, among=tuple(able)))
        return steps

    def _behind_as_a_whole(self, standing: Standing) -> bool:
        return 100 * len(standing.behind) >= self._settings.node_percent * max(1, standing.partitions)


def parse_standing(row: object) -> Standing:
    """A node's report. Raises ProtocolError."""
    if not isinstance(row, list) or len(row) != 4 or not isinstance(row[3], list) or len(row[3]) > TOLD_MAX:
        raise ProtocolError("PROGRESS: bad field lag")
    worst_ms, partitions, count, named = row
    numbers = (worst_ms, partitions, count, *named)
    if not all(type(v) is int and 0 <= v < MS_MAX for v in numbers) or partitions > PARTITIONS_MAX:
        raise ProtocolError("PROGRESS: bad field lag")
    # More than can be named: all of them, as far as anybody here can tell.
    behind: Iterable[int] = named if count <= len(named) else range(partitions)
    return Standing(worst_ms, frozenset(map(PartitionId, behind)), partitions)


def standing_of(header: Mapping[str, Any]) -> Standing | None:
    """What a PROGRESS frame that has one says. Raises ProtocolError."""
    return parse_standing(header["lag"]) if "lag" in header else None
