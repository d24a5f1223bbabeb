"""Whoever follows a log while all that happens: every committed record, once, in order, and none that is not there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple


class Row(NamedTuple):
    """One record as it came out of a stream, or as it lies in the log in the end."""

    partition: int
    index: int  # type: ignore[assignment]  # a tuple's method, which nobody wants here
    global_index: int
    content: bytes


class Gone(NamedTuple):
    """What a stream was told: the records before ``first`` are no more (indices of a tail, global ones of a scan)."""

    after: int
    """How many rows had come."""
    first: int


@dataclass
class Followed:
    """One stream, over all its beginnings."""

    name: str
    partitions: Sequence[int]
    level: str = "durable"
    merged: bool = False
    """In the order of all partitions."""
    rows: list[Row] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Those after which it does not go on, or that no program should see."""


Log = Mapping[int, Sequence[Row]]
"""By partition: what some node has in the end, from its oldest record on."""


def check(
    stream: Followed, log: Log, *, removed: bool = False, begins: Mapping[int, int] = MappingProxyType({})
) -> list[str]:
    """All that is wrong. ``removed``: records may have been; ``begins``: by partition, what all nodes have from there
    on was not, whatever anybody was told.
    """
    problems = [f"{stream.name}: {error}" for error in stream.errors]
    if stream.gone and not removed:
        problems.append(f"{stream.name}: was told that records before {stream.gone[0].first} are gone; nothing removes")
    problems += _order(stream)
    for partition in stream.partitions:
        problems += _whole(stream, partition, log.get(partition, ()), begins.get(partition))
    return problems


def _order(stream: Followed) -> list[str]:
    """No row comes twice, or before one that stands in front of it; nothing is passed over without a word.

    What is gone is passed over up to where the stream was told that there is something, and no further.
    """
    problems, last_global, nexts = [], 0, dict.fromkeys(stream.partitions, 1)
    told = {each.after: each.first for each in stream.gone}  # the last word counts
    may_jump = dict[int, int]()
    """Partitions of which nothing has come since the merged stream was told; from which global index on."""
    for number, row in enumerate(stream.rows):
        if row.partition not in stream.partitions:
            problems.append(f"{stream.name}: {row} is of a partition that nobody asked for")
        if number in told and stream.merged:
            may_jump, last_global = dict.fromkeys(stream.partitions, told[number]), max(last_global, told[number])
        elif number in told:
            nexts = {partition: max(index, told[number]) for partition, index in nexts.items()}
        if row.global_index < last_global:
            problems.append(f"{stream.name}: {_place(row)} came after global index {last_global}")
        expected = nexts.get(row.partition, row.index)
        from_global = may_jump.pop(row.partition, None)
        if row.index > expected and from_global is not None and row.global_index >= from_global:
            expected = row.index
        if row.index != expected:
            what = "again" if row.index < expected else "too early"
            problems.append(f"{stream.name}: {_place(row)} came {what}, {expected} was next")
        last_global, nexts[row.partition] = row.global_index, row.index + 1
    return problems


def _whole(stream: Followed, partition: int, log: Sequence[Row], there_from: int | None) -> list[str]:
    mine = {row.index: row for row in stream.rows if row.partition == partition}
    problems = [
        f"{stream.name}: {_place(row)} came as {mine[row.index][2:]!r}, and is {row[2:]!r}"
        for row in log
        if row.index in mine and mine[row.index] != row
    ]
    end = log[-1].index if log else 0
    problems += [f"{stream.name}: {_place(row)} came and is not in the log" for row in mine.values() if row.index > end]
    all_have = math.inf if there_from is None else there_from
    missing = [row for row in log if row.index not in mine and (row.index >= all_have or not _told(stream, row))]
    if missing:
        problems.append(f"{stream.name}: {len(missing)} records did not come, the first is {_place(missing[0])}")
    return problems


def _told(stream: Followed, row: Row) -> bool:
    """It is one of those that are gone."""
    for each in stream.gone:
        before = stream.rows[each.after - 1] if each.after else Row(0, 0, 0, b"")
        last, at = (before.global_index, row.global_index) if stream.merged else (before.index, row.index)
        if last < at < each.first:
            return True
    return False


def _place(row: Row) -> str:
    return f"{row.partition}/{row.index} at {row.global_index}"


def agree(streams: Sequence[Followed]) -> list[str]:
    """What has been removed since cannot be compared with the log: all streams must have had the same."""
    problems, known = [], dict[tuple[int, int], tuple[Row, str]]()
    for stream in streams:
        for row in stream.rows:
            first, by = known.setdefault((row.partition, row.index), (row, stream.name))
            if first != row:
                problems.append(f"{_place(row)}: {stream.name} had {row[2:]!r}, {by} had {first[2:]!r}")
    return problems
