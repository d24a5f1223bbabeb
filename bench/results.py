"""The table of a run, as JSON, as text and as Markdown.

A row: ``{"work", "figure", "unit", "systems": {name: {"median", "min", "max"}}, "goals": [...]}``; a goal:
``{"peer": name or null, "at_least" or "at_most": bound, "value": ratio or figure, "met": bool, "kind"}``,
with ``"of": "max"`` if the worst of all runs is bounded. ``value`` is null where something was not measured.

``python -m bench.results [file]`` prints the Markdown.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.works import Goal, goals_of

LATEST: Final = Path(__file__).resolve().parent / "results" / "latest.json"
ORDER: Final = ("disk", "etcd", "postgres", "redis", "nats", "logboom")
NOT_MEASURED: Final = "-"

Row = dict[str, Any]


def row(work: str, figure: str, unit: str, values: Mapping[str, Sequence[float]]) -> Row:
    """One figure of one work: each system's runs, and what logboom's are held to."""
    systems = {
        name: {"median": statistics.median(runs), "min": min(runs), "max": max(runs)}
        for name, runs in values.items()
        if runs
    }
    goals = [judged(goal, systems) for goal in goals_of(work, figure)]
    return {"work": work, "figure": figure, "unit": unit, "systems": systems, "goals": goals}


def judged(goal: Goal, systems: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """A goal as the JSON has it."""
    bound = {"at_least": goal.at_least} if goal.at_least is not None else {"at_most": goal.at_most}
    value = goal.value(systems)
    worst = {"of": goal.of} if goal.of == "max" else {}
    return {"peer": goal.peer, **bound, "value": value, "met": goal.met(value), "kind": goal.kind, **worst}


def say_goal(found: Mapping[str, Any], unit: str = "") -> str:
    """For people: ``>= 12 x etcd: 9.99 MISSED``."""
    sign, bound = (">=", found["at_least"]) if "at_least" in found else ("<=", found["at_most"])
    of = "worst " if found.get("of") == "max" else ""
    about = f" x {found['peer']}" if found["peer"] is not None else f" {unit}".rstrip()
    if found["value"] is None:
        return f"{of}{sign} {bound:.3g}{about}: not measured"
    value = number(found["value"]) if found["peer"] is None else f"{found['value']:.2f}"
    return f"{of}{sign} {bound:g}{about}: {value} {'met' if found['met'] else 'MISSED'}"


def number(value: float) -> str:
    """Three digits that count, or all before the point."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def spread(values: Mapping[str, float] | None) -> str:
    """Median (least-most)."""
    if values is None:
        return NOT_MEASURED
    middle, *ends = (number(values[each]) for each in ("median", "min", "max"))
    return middle if values["min"] == values["max"] else f"{middle} ({ends[0]}-{ends[1]})"


def named(each: Row) -> str:
    """A row's figure with its unit."""
    words = (
        str(each["figure"]).removesuffix("_ms").removesuffix("_per_s").replace("cpu_us", "server CPU").replace("_", " ")
    )
    return words + (each["unit"] if each["unit"] == "/s" else f", {each['unit']}")


def columns(rows: Iterable[Row]) -> list[str]:
    """The systems that any row has, peers first."""
    found = {name for each in rows for name in each["systems"]}
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


def text(rows: Sequence[Row]) -> str:
    """The table for a terminal, then every goal on a line of its own."""
    systems = columns(rows)
    cells = [["work", "figure", *systems]]
    cells += [[each["work"], named(each), *(spread(each["systems"].get(name)) for name in systems)] for each in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines, before = [], ""
    for line in cells:
        first, before = ("" if line[0] == before else line[0]), line[0]
        shown = [first.ljust(widths[0]), line[1].ljust(widths[1])]
        shown += [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        lines.append("  ".join(shown).rstrip())
    return "\n".join([*lines, "", *goal_lines(rows)])


def goal_lines(rows: Iterable[Row]) -> list[str]:
    """Every goal of every row, for people."""
    return [
        f"{goal['kind']:<8}{each['work']}, {named(each)}: {say_goal(goal, each['unit'])}"
        for each in rows
        for goal in each["goals"]
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The table for docs/performance.md."""
    systems = columns(rows)
    lines = [
        "| " + " | ".join(["Work", "Figure", *systems, "Goals and floors"]) + " |",
        "| --- | --- | " + "---: | " * len(systems) + "--- |",
    ]
    before = ""
    for each in rows:
        first, before = ("" if each["work"] == before else each["work"]), each["work"]
        goals = "<br>".join(f"{goal['kind']} {say_goal(goal, each['unit'])}" for goal in each["goals"])
        cells = [first, named(each), *(spread(each["systems"].get(name)) for name in systems)]
        lines.append("| " + " | ".join([*cells, goals.replace(">=", "≥").replace("<=", "≤")]) + " |")
    return "\n".join(lines)


def read(file: Path) -> dict[str, Any]:
    """A run's JSON. Raises OSError, ValueError."""
    found = json.loads(file.read_text())
    if not isinstance(found, dict) or "table" not in found:
        raise ValueError(f"{file} is not a result of bench")
    return found


def write(file: Path, report: Mapping[str, Any]) -> None:
    """A run's JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    print(markdown(read(Path(sys.argv[1]) if len(sys.argv) > 1 else LATEST)["table"]))
