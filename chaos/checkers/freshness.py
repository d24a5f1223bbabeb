"""Reads of every kind, of tallies: counters to which one process alone adds 1, one after the other.

What a read may show is known from the history: as much as its kind promises, and never what nobody had asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from chaos.history import Operation

LINEARIZABLE, SESSION, AT_LEAST, BOUNDED, STALE = "linearizable", "session", "at_least", "bounded", "stale"
KINDS = (LINEARIZABLE, SESSION, AT_LEAST, BOUNDED, STALE)


def reads(operations: Sequence[Operation]) -> list[str]:
    """``tally`` adds 1 to its key; a ``look`` has [kind, bound]: a global index (``at_least``), or ns (``bounded``)."""
    problems = []
    by_key: dict[str, list[Operation]] = {}
    for op in operations:
        by_key.setdefault(op.key, []).append(op)
    for key, ops in sorted(by_key.items()):
        tally = _Tally([op for op in ops if op.f == "tally"])
        shown = dict[int, list[tuple[int, int]]]()
        looks = sorted((op for op in ops if op.f == "look" and op.outcome == "ok"), key=lambda op: op.end_ns or 0)
        ends = [op.end_ns or 0 for op in looks]
        highest = list(accumulate((op.result for op in looks), max))
        for op in looks:
            kind, bound = op.value
            least = _least(tally, op, kind, bound, shown.get(op.process, ()))
            before = bisect_right(ends, op.start_ns)
            if kind == LINEARIZABLE and before:  # whatever anybody was shown by then had been committed
                least = max(least, highest[before - 1])
            most = tally.asked(op.end_ns or 0)
            if not least <= op.result <= most:
                problems.append(f"{key}: a {kind} read ({bound}) by {op.process} showed {op.result}; {least} to {most}")
            shown.setdefault(op.process, []).append((op.end_ns or 0, op.result))
    return problems


def _least(tally: _Tally, op: Operation, kind: str, bound: int, shown: Sequence[tuple[int, int]]) -> int:
    match kind:
        case "linearizable":
            return tally.told(op.start_ns)
        case "bounded":
            return tally.told(op.start_ns - bound)
        case "at_least":
            return tally.ordered(bound)
        case "session":
            before = [value for end, value in shown if end <= op.start_ns]
            return max([*before, tally.told(op.start_ns, process=op.process)])
    return 0


def tallies(operations: Sequence[Operation], state: Mapping[tuple[int, str], int]) -> list[str]:
    """In the end each is what was acknowledged, or what nobody knows more. ``state``: by partition and key."""
    problems = []
    for at in sorted({(op.partition, op.key) for op in operations if op.f == "tally"}):
        mine = [op for op in operations if op.f == "tally" and (op.partition, op.key) == at]
        least = sum(op.outcome == "ok" for op in mine)
        most = least + sum(op.outcome == "info" for op in mine)
        count = state.get(at, 0)
        if not least <= count <= most:
            problems.append(f"{at[1]} of partition {at[0]} is {count}, and was added to {least} to {most} times")
    return problems


class _Tally:
    """What was added to one key."""

    def __init__(self, ops: Sequence[Operation]) -> None:
        told = [op for op in ops if op.outcome == "ok"]
        self._ends = sorted(op.end_ns or 0 for op in told)
        self._indices = sorted(op.global_index for op in told)
        self._starts = sorted(op.start_ns for op in ops if op.outcome != "fail")
        self._process = ops[0].process if ops else -1

    def told(self, ns: int, *, process: int | None = None) -> int:
        """Additions that were acknowledged by then, to that process."""
        return bisect_right(self._ends, ns) if process in (None, self._process) else 0

    def ordered(self, global_index: int) -> int:
        """Acknowledged at or below this index."""
        return bisect_right(self._indices, global_index)

    def asked(self, ns: int) -> int:
        """That may have happened by then."""
        return bisect_right(self._starts, ns)
