"""What two looks at a cluster say of the time between them: who does how much, how far each is behind, what waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logboom.cli.operate import Answers, absent, minority, problems, summed_up
from logboom.client.reads import watermark_of
from logboom.errors import LogboomError
from logboom.types import Watermark

Row = dict[str, Any]
Answer = Mapping[str, Any]
KIB: Final = 1024
SPARE: Final = ("sessions", "oldest_ms", "memory", "disk_free", "backlog", "bytes/s", "unapplied")
"""Columns that a narrow terminal does without, the first ones first."""
GAP: Final = 3
"""Characters between two columns."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is shown of a cluster at one moment."""

    head: Row
    """What concerns the whole cluster, as whoever leads has it; else whoever has come furthest."""
    problems: list[str]
    """What needs a hand, as ``status`` tells it."""
    remark: str
    """Who is away where that is no problem."""
    nodes: list[Row]
    partitions: list[Row]
    """The busiest first."""

    def row(self) -> Row:
        """The look for programs."""
        about = {"healthy": not self.problems, "problems": self.problems}
        return {**self.head, **about, "nodes": self.nodes, "partitions": self.partitions}


def look(before: Answers, now: Answers, *, partitions: int) -> Look:
    """Rates are of the time since ``before``; None of a node that was not there, or has begun anew since.

    ``partitions``: so many rows of them.
    """
    reached = [answer for answer in now.values() if not isinstance(answer, LogboomError)]
    first = max(reached, key=_authority, default=None)
    moved = {} if first is None else _moved(_of(before, first["node"]), first)
    nodes = [_node(name, answer, _of(before, name), first) for name, answer in now.items()]
    head: Row = {"leader": None, "term": None, "commit_index": None, "commands_per_s": None, "bytes_per_s": None}
    if first is not None:
        rates = {"commands_per_s": _sum(moved), "bytes_per_s": _bytes_per_s(_of(before, first["node"]), first)}
        leader = first["node"] if first["role"] == "leader" else None
        head = {"leader": leader, "term": first["term"], "commit_index": first["commit_index"], **rates}
    sick = problems(now)
    return Look(head, sick, minority(now, sick), nodes, _partitions(reached, moved)[:partitions])


def _authority(answer: Answer) -> tuple[bool, int, int]:
    return answer["role"] == "leader", answer["term"], answer["commit_index"]


def _of(answers: Answers, name: str) -> Answer | None:
    found = answers.get(name)
    return None if isinstance(found, LogboomError) else found


def _seconds(before: Answer | None, now: Answer) -> float | None:
    """Seconds between two looks at a node, by its own clock; None: it was not there, or has begun anew."""
    passed = 0.0 if before is None else now["uptime_s"] - before["uptime_s"]
    return passed if passed > 0 else None


def _moved(before: Answer | None, now: Answer) -> dict[int, float | None]:
    """Commands a second that came into the log of each partition."""
    seconds, marks = _seconds(before, now), _marks(now)
    earlier = {} if before is None else {mark.partition_id: mark.log_index for mark in _marks(before)}
    found: dict[int, float | None] = {}
    for mark in marks:
        more = mark.log_index - earlier.get(mark.partition_id, mark.log_index)
        found[mark.partition_id] = None if seconds is None else _rounded(max(0, more) / seconds)
    return found


def _marks(answer: Answer) -> list[Watermark]:
    return [watermark_of(row) for row in answer["partitions"]]


def _sum(rates: Mapping[int, float | None]) -> float | None:
    known = [rate for rate in rates.values() if rate is not None]
    return _rounded(sum(known)) if known or not rates else None


def _bytes_per_s(before: Answer | None, now: Answer) -> float | None:
    """Bytes a second of what was applied."""
    seconds = _seconds(before, now)
    counts = [(answer or {}).get("usage", {}).get("applied_bytes") for answer in (before, now)]
    if seconds is None or counts[0] is None or counts[1] is None or counts[1] < counts[0]:
        return None
    return _rounded((counts[1] - counts[0]) / seconds)


def _rounded(number: float) -> float:
    return round(number, 1)


def _node(name: str, answer: Answer | LogboomError, before: Answer | None, first: Answer | None) -> Row:
    if isinstance(answer, LogboomError):
        return {"node": name, "role": absent(answer), "error": answer.message, "code": answer.code}
    usage = answer.get("usage", {})
    operations, nbytes = answer.get("node_backlog", (0, 0))
    return {
        "node": answer["node"],
        "role": answer["role"],
        "term": answer["term"],
        "commit_index": answer["commit_index"],
        "commands_per_s": _sum(_moved(before, answer)),
        "bytes_per_s": _bytes_per_s(before, answer),
        "behind": max(0, (first or answer)["commit_index"] - answer["commit_index"]),
        "unapplied": sum(map(_unapplied, _marks(answer))),
        "oldest_ms": (answer.get("lag") or {}).get("worst_ms"),
        "backlog_ops": operations,
        "backlog_bytes": nbytes,
        "disk_free_bytes": usage.get("disk_free"),
        "memory_bytes": usage.get("memory"),
        "sessions": answer.get("sessions"),
    }


def _unapplied(mark: Watermark) -> int:
    return max(0, mark.log_index - mark.applied_index)


def _partitions(reached: Sequence[Answer], moved: Mapping[int, float | None]) -> list[Row]:
    """Waiting is that of the node where most waits; a state that is not `running` is told with where."""
    rows: dict[int, Row] = {}
    for answer in reached:
        backlog = {row[0]: row[1:] for row in answer["backlog"]}
        for mark in _marks(answer):
            partition = mark.partition_id
            row = rows.setdefault(
                partition,
                {
                    "partition": partition,
                    "commands_per_s": moved.get(partition),
                    "log_index": 0,
                    "unapplied": 0,
                    "backlog_ops": 0,
                    "backlog_bytes": 0,
                    "state": "running",
                },
            )
            operations, nbytes = backlog.get(partition, (0, 0))
            most = {
                "log_index": mark.log_index,
                "unapplied": _unapplied(mark),
                "backlog_ops": operations,
                "backlog_bytes": nbytes,
            }
            row |= {name: max(row[name], value) for name, value in most.items()}
            if mark.state != "running":
                others = [] if row["state"] == "running" else [row["state"]]
                row["state"] = ", ".join([*others, f"{mark.state} on {answer['node']}"])
    return sorted(rows.values(), key=_busy)


def _busy(row: Row) -> tuple[float, int, int, bool, int]:
    rate = row["commands_per_s"] or 0.0
    return -rate, -row["unapplied"], -row["backlog_bytes"], row["state"] == "running", row["partition"]


# -- for people


def headline(seen: Look) -> str:
    """The look in a line."""
    head = seen.head
    if head["term"] is None:
        return "no node answers"
    who = f"{head['leader']} leads" if head["leader"] else "no node leads"
    rates = [] if head["commands_per_s"] is None else [f"{_number(head['commands_per_s'])} commands/s"]
    rates += [] if head["bytes_per_s"] is None else [f"{_bytes(head['bytes_per_s'])}/s"]
    return ", ".join([f"{who} (term {head['term']}): committed {head['commit_index']:,}", *rates])


def told(seen: Look) -> list[str]:
    """What needs a hand, or is to be known."""
    errors = [f"{row['node']}: {row['error']}" for row in seen.nodes if "error" in row]
    sick = [f"unhealthy: {summed_up(seen.problems)}"] if seen.problems else []
    return [*sick, *([seen.remark] if seen.remark else []), *errors]


def node_rows(seen: Look) -> list[Row]:
    """Nodes, with texts, as a table shows them."""
    return [
        {
            "node": row["node"],
            "role": row["role"],
            "commit_index": _number(row.get("commit_index")),
            "commands/s": _number(row.get("commands_per_s")),
            "bytes/s": _bytes(row.get("bytes_per_s")),
            "behind": _number(row.get("behind")),
            "unapplied": _number(row.get("unapplied")),
            "oldest_ms": _number(row.get("oldest_ms")),
            "backlog": _backlog(row),
            "disk_free": _bytes(row.get("disk_free_bytes")),
            "memory": _bytes(row.get("memory_bytes")),
            "sessions": _number(row.get("sessions")),
        }
        for row in seen.nodes
    ]


def busy_rows(seen: Look) -> list[Row]:
    """The busiest partitions, with texts, as a table shows them."""
    return [
        {
            "partition": str(row["partition"]),
            "commands/s": _number(row["commands_per_s"]),
            "log_index": _number(row["log_index"]),
            "unapplied": _number(row["unapplied"]),
            "backlog": _backlog(row),
            "state": row["state"],
        }
        for row in seen.partitions
    ]


def fitting(rows: list[Row], *, width: int) -> list[Row]:
    """Without as many columns as there is no room for, those first that matter least."""
    names = list(rows[0]) if rows else []
    spare = [name for name in SPARE if name in names]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    while spare and sum(widths[name] + GAP for name in names) > width:
        names.remove(spare.pop(0))
    return [{name: row[name] for name in names} for row in rows]


def _backlog(row: Row) -> str:
    if "backlog_ops" not in row:
        return "-"
    return "0" if not row["backlog_ops"] else f"{row['backlog_ops']:,}, {_bytes(row['backlog_bytes'])}"


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def _bytes(number: float | None) -> str:
    if number is None:
        return "-"
    size, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= KIB and len(units) > 1:
        size, units = size / KIB, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
