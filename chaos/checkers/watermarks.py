"""Watermarks as observed from outside: they never go back, not over restarts, and they stay in order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """One partition's watermarks on one node at one moment."""

    node: str
    partition: int
    log: int
    durable: int
    applied: int
    applied_global: int
    asked_ns: int = 0
    """When whoever was told it had asked; 0: it came unasked."""


class Kept(NamedTuple):
    """A barrier that was reached: what it promises of all that is asked for later."""

    scope: str
    target: int
    ended_ns: int
    nodes: tuple[str, ...]
    """For which it spoke; of a quorum, those of which a majority has come so far."""
    marks: Mapping[int, int]
    """The partitions, and where they were."""


def monotonic(samples: Iterable[Sample]) -> list[str]:
    """Per node and partition, in the order in which they were seen."""
    problems = []
    last: dict[tuple[str, int], Sample] = {}
    for sample in samples:
        before = last.get((sample.node, sample.partition))
        if before is not None and any(new < old for new, old in zip(sample[2:6], before[2:6], strict=True)):
            problems.append(f"went back: {before} then {sample}")
        if not sample.applied <= sample.durable <= sample.log:
            problems.append(f"out of order: {sample}")
        last[sample.node, sample.partition] = sample
    return problems


def barriers(kept: Sequence[Kept], samples: Sequence[Sample]) -> list[str]:
    """Whoever has come so far says so when he is asked later. ``samples`` ascend, as nodes were asked."""
    problems = []
    asked = [sample.asked_ns for sample in samples]
    for barrier in kept:
        later: dict[tuple[str, int], Sample] = {}
        for sample in samples[bisect_left(asked, barrier.ended_ns) :]:
            if sample.node in barrier.nodes and sample.partition in barrier.marks:
                later.setdefault((sample.node, sample.partition), sample)
                if len(later) == len(barrier.nodes) * len(barrier.marks):
                    break
        behind = [sample for sample in later.values() if sample.applied_global < barrier.target]
        spared = (len(barrier.nodes) - 1) // 2 if barrier.scope == "quorum" else 0
        for partition in sorted({sample.partition for sample in behind}):
            mine = [sample for sample in behind if sample.partition == partition]
            if len(mine) > spared:
                problems.append(f"a barrier ({barrier.scope}) was at {barrier.target}, and then: {mine}")
        problems += [
            f"a barrier ({barrier.scope}) at {barrier.target} answered while partition {partition} was at {index}"
            for partition, index in barrier.marks.items()
            if index < barrier.target
        ]
    return problems


def digests_equal(
    digests: Mapping[str, Mapping[int, bytes]], *, nodes: Collection[str], partitions: Collection[int]
) -> list[str]:
    """Per partition, every node's state digest: of these ``partitions`` there is one on each of ``nodes``."""
    problems = [] if nodes and partitions else ["no state of any node was looked at"]
    known = {p for rows in digests.values() for p in rows}
    for partition in sorted({*known, *partitions}):
        found = {node: digests.get(node, {}).get(partition, b"").hex() for node in sorted({*digests, *nodes})}
        if len(set(found.values())) > 1:
            problems.append(f"partition {partition}: state digests differ: {found}")
        elif "" in found.values():
            problems.append(f"partition {partition}: no node has a state")
    return problems
