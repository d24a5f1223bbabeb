"""Watermarks as observed from outside: they never go back, not over restarts, and they stay in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Sample(NamedTuple):
    """One partition's watermarks on one node at one moment."""

    node: str
    partition: int
    log: int
    durable: int
    applied: int
    applied_global: int


def monotonic(samples: Iterable[Sample]) -> list[str]:
    """Per node and partition, in the order in which they were seen."""
    problems = []
    last: dict[tuple[str, int], Sample] = {}
    for sample in samples:
        before = last.get((sample.node, sample.partition))
        if before is not None and any(new < old for new, old in zip(sample[2:], before[2:], strict=True)):
            problems.append(f"went back: {before} then {sample}")
        if not sample.applied <= sample.durable <= sample.log:
            problems.append(f"out of order: {sample}")
        last[sample.node, sample.partition] = sample
    return problems


def digests_equal(digests: Mapping[str, Mapping[int, bytes]]) -> list[str]:
    """Per partition, every node's state digest."""
    problems = []
    partitions = {p for rows in digests.values() for p in rows}
    for partition in sorted(partitions):
        found = {node: rows.get(partition, b"").hex() for node, rows in digests.items()}
        if len(set(found.values())) > 1:
            problems.append(f"partition {partition}: state digests differ: {found}")
    return problems
