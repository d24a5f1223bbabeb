"""Requests of several commands: all of them took effect, or none did, on every node and in every view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chaos.history import Operation

Request = Sequence[Operation]
"""Each command an operation; each ``add`` has a key of its own and adds 1."""


def whole(requests: Sequence[Request], state: Mapping[tuple[int, str], int]) -> list[str]:
    """All counters of a request say the same. ``state``: by partition and key."""
    found = [[(op.partition, op.key, state.get((op.partition, op.key), 0)) for op in ops] for ops in requests]
    return [f"half of a request: {rows}" for rows in found if len({count for *_, count in rows}) > 1]


@dataclass(frozen=True, slots=True)
class View:
    """What somebody saw of several partitions, as of one moment."""

    start_ns: int
    moment: int
    partitions: frozenset[int]
    keys: frozenset[tuple[int, str]]


def views(requests: Sequence[Request], seen: Sequence[View]) -> list[str]:
    """A request is in a view as a whole or not at all; it is in there if it was acknowledged before, or is older."""
    problems = []
    for view in seen:
        for ops in requests:
            mine = {(op.partition, op.key) for op in ops}
            if not {op.partition for op in ops} <= view.partitions:
                continue
            there = mine & view.keys
            if 0 < len(there) < len(mine):
                problems.append(f"a view of {view.moment} has half of a request: {sorted(there)} of {sorted(mine)}")
            told = [op for op in ops if op.outcome == "ok" and (op.partition, op.key) not in view.keys]
            before = [op for op in told if op.end_ns is not None and op.end_ns <= view.start_ns]
            older = [op for op in told if op.global_index <= view.moment]
            problems += [
                f"a view of {view.moment} lacks {op.key}, of {op.global_index}: {op}" for op in before[:1] or older[:1]
            ]
    return problems
