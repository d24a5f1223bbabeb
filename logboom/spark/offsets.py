"""How far a stream has come, and how far its next batch goes. What Spark keeps in a checkpoint. No I/O.

::

    {"version": 1, "next": {"0": 121, "3": 7}, "cluster": "logboom"}

``next`` is the offset that follows the last one read, also of partitions that the query does not ask for now. All that
decides what a batch reads and by how many tasks is in the offset at its end: a batch that is run again, by another
driver with other options, is the same one. Which cluster, and which of its histories, it is an offset of is there, too:
elsewhere the same numbers are other records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from logboom.errors import CorruptData, IncompatibleVersion, LineageMismatch
from logboom.spark.shares import Share, split
from logboom.types import lineage_shown

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place between two batches. A partition that is not in ``next`` has not been read: it begins at 1."""

    next: Mapping[int, int]
    begin: Mapping[int, int] | None = None
    """At the end of a query's first batch: where that began. Spark keeps ends only, and `latest` is not what it was."""
    initial: bool = False
    """No batch has been read."""
    since_global: int = 0
    """Records with a lower global offset are passed over."""
    tasks_min: int = 0
    """Least tasks of the batch that ends here."""
    cluster: str | None = None
    """None: of a release that did not say it."""
    lineage: str = ""
    """Empty: the cluster's first history."""

    def to_json(self) -> dict[str, Any]:
        """Equal places give equal text."""
        row: dict[str, Any] = {"version": VERSION, "next": _named(self.next)}
        row |= {"begin": _named(self.begin)} if self.begin is not None else {}
        row |= {"initial": True} if self.initial else {}
        row |= {"since_global": self.since_global} if self.since_global else {}
        row |= {"tasks": self.tasks_min} if self.tasks_min else {}
        row |= {"cluster": self.cluster} if self.cluster is not None else {}
        row |= {"lineage": self.lineage} if self.lineage else {}
        return row

    @classmethod
    def from_json(cls, row: Any) -> Self:
        """Raises IncompatibleVersion, CorruptData."""
        version = row.get("version") if isinstance(row, dict) else None
        if version != VERSION:
            raise IncompatibleVersion(
                f"the checkpoint has offsets of version {version}; this release reads {VERSION}",
                found=version,
                supported=[VERSION],
            )
        try:
            begin = row.get("begin")
            return cls(
                _numbered(row["next"]),
                _numbered(begin) if begin is not None else None,
                initial=row.get("initial", False) is True,
                since_global=_whole(row.get("since_global", 0)),
                tasks_min=_whole(row.get("tasks", 0)),
                cluster=_text(row.get("cluster")),
                lineage=_text(row.get("lineage")) or "",
            )
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise CorruptData(
                f"the checkpoint's offset is none of ours: {row!r}", path="checkpoint", offset=0
            ) from error

    def check(self, cluster: str, lineage: str) -> None:
        """Raises LineageMismatch if it is an offset of anything else."""
        if self.cluster not in (None, cluster):
            of, here = f"of cluster {self.cluster!r}", repr(cluster)
        elif self.lineage != lineage:
            of, here = lineage_shown(self.lineage), f"{lineage_shown(lineage)} of {cluster!r}, which was restored"
        else:
            return
        raise LineageMismatch(
            f"the checkpoint's offsets are {of}, and this is {here}: they name other records here. Begin a new query, "
            "with a new checkpoint and startingOffsets where it is to go on",
            cluster=self.lineage or self.cluster,
            expected=lineage or cluster,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """The end of the next batch; equal to its start if there is nothing to read."""

    offset: StreamOffset
    gone: tuple[int, ...] = field(default=())
    """Partitions that were read before and do not exist any more."""


def advance(
    start: StreamOffset,
    ends: Mapping[int, int],
    *,
    rows_max: int | None,
    tasks_min: int,
    chosen: Collection[int] | None = None,
) -> Step:
    """From ``start`` towards ``ends`` (exclusive), at most ``rows_max`` rows.

    A partition that is none of the ``chosen`` stays where it is: it may be asked for again.
    """
    resting = [p for p in start.next if p not in ends and chosen is not None and p not in chosen]
    gone = tuple(sorted(p for p in start.next if p not in ends and p not in resting))
    lag = {p: end - start.next.get(p, 1) for p, end in sorted(ends.items()) if end > start.next.get(p, 1)}
    if not lag and not gone:
        return Step(start)
    taken = fair(lag, rows_max, turn=sum(start.next.values()))
    following = {p: n for p, n in start.next.items() if p in ends or p in resting}
    following |= {p: start.next.get(p, 1) + count for p, count in taken.items() if count}
    begin = start.next if start.initial else None
    return Step(replace(start, next=following, begin=begin, initial=False, tasks_min=tasks_min), gone)


def fair(lag: Mapping[int, int], rows_max: int | None, *, turn: int) -> dict[int, int]:
    """How many rows of each partition: by how far it is behind, one at least; if there are too few, in turn."""
    total = sum(lag.values())
    if rows_max is None or total <= rows_max:
        return dict(lag)
    ids = sorted(lag)
    if rows_max < len(ids):
        first = turn % len(ids)
        return dict.fromkeys((ids[(first + k) % len(ids)] for k in range(rows_max)), 1)
    spare = rows_max - len(ids)
    rest = total - len(ids)
    found = {p: 1 + spare * (lag[p] - 1) // rest for p in ids}
    left = rows_max - sum(found.values())
    # What rounding left over, to those that are furthest behind.
    for p in sorted(ids, key=lambda p: (-lag[p], p)):
        extra = min(left, lag[p] - found[p])
        found[p] += extra
        left -= extra
    return found


def shares_between(start: StreamOffset, end: StreamOffset) -> list[Share]:
    """What the batch from ``start`` to ``end`` reads, task by task: the same whenever it is asked."""
    begin = start.next
    if end.begin is not None:
        begin = end.begin
    elif end.initial:
        begin = end.next
    found = [Share(p, begin.get(p, 1), following - 1) for p, following in sorted(end.next.items())]
    return split(found, end.tasks_min)


def _named(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(p): offsets[p] for p in sorted(offsets)}


def _numbered(row: Mapping[str, Any]) -> dict[int, int]:
    return {_whole(int(p)): _whole(n) for p, n in row.items()}


def _text(given: Any) -> str | None:
    if given is not None and type(given) is not str:
        raise ValueError(f"not a text: {given!r}")
    return given


def _whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"not a whole number: {number!r}")
    return number
