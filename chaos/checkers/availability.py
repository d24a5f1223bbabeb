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
    """Longest time between two acknowledged writes."""
    ends = sorted(op.end_ns for op in operations if op.outcome == "ok" and op.f not in READS and op.end_ns is not None)
    return max((b - a for a, b in pairwise(ends)), default=0) / 1e9


def longest_gap_began_s(operations: Sequence[Operation]) -> float:
    """When it began, after the first of all."""
    ends = sorted(op.end_ns for op in operations if op.outcome == "ok" and op.f not in READS and op.end_ns is not None)
    begin = max(pairwise(ends), key=lambda pair: pair[1] - pair[0], default=(0, 0))[0]
    return (begin - min((op.start_ns for op in operations), default=0)) / 1e9


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
