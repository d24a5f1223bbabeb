"""How long writes stood still, and whether the run says anything at all."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from chaos.history import Operation

RATE_MIN = 50.0
UNKNOWN_SHARE_MAX = 0.05
READS = ("get", "look")


def longest_gap_s(operations: Sequence[Operation]) -> float:
    """Longest time without an acknowledged write, from the first operation of all to the last."""
    begin, end = _longest_gap(operations)
    return (end - begin) / 1e9


def longest_gap_began_s(operations: Sequence[Operation]) -> float:
    """When it began, after the first of all."""
    return (_longest_gap(operations)[0] - min((op.start_ns for op in operations), default=0)) / 1e9


def _longest_gap(operations: Sequence[Operation]) -> tuple[int, int]:
    """The load is under way until its last operation begins, or its last write has an answer, whichever that is."""
    writes = [op for op in operations if op.f not in READS]
    asked = [op.start_ns for op in operations] + [op.end_ns for op in writes if op.end_ns is not None]
    if not asked:
        return 0, 0
    ends = [op.end_ns for op in writes if op.outcome == "ok" and op.end_ns is not None]
    return max(pairwise(sorted([min(asked), *ends, max(asked)])), key=lambda pair: pair[1] - pair[0])


def resumed_s(operations: Sequence[Operation], faults_ns: Sequence[int]) -> list[float]:
    """Per fault, seconds until a write was acknowledged that began after it; infinite if none was."""
    writes = sorted(
        (op.start_ns, op.end_ns)
        for op in operations
        if op.outcome == "ok" and op.f not in READS and op.end_ns is not None
    )
    starts = [start for start, _ in writes]
    earliest = [float("inf")] * (len(writes) + 1)
    for k in range(len(writes) - 1, -1, -1):
        earliest[k] = min(earliest[k + 1], writes[k][1])
    return [(earliest[bisect_right(starts, fault)] - fault) / 1e9 for fault in faults_ns]


def conclusive(operations: Sequence[Operation], seconds: float) -> list[str]:
    """A history that is too thin or too doubtful proves nothing."""
    problems = []
    rate = sum(op.outcome == "ok" for op in operations) / max(seconds, 1e-9)
    if rate < RATE_MIN:
        problems.append(f"inconclusive: {rate:.0f} operations/s, at least {RATE_MIN:.0f} wanted")
    unknown = sum(op.outcome == "info" for op in operations) / max(len(operations), 1)
    if unknown > UNKNOWN_SHARE_MAX:
        problems.append(f"inconclusive: {unknown:.1%} unknown outcomes, at most {UNKNOWN_SHARE_MAX:.0%} wanted")
    return problems
