"""``python -m bench.check [file]``: is logboom as good as it has to be, by the figures of a run?

Judges the figures anew, by the goals of this checkout; those of curves, reads and Spark that lie beside the file
count as goals, by the bounds they were taken with. Exit status 1: a floor was missed (with ``--goals`` also if a
goal was); 2: there is no result, or something that a floor is about was not measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench import results
from bench.report import Check
from bench.works import FIGURES, FIRST_WRITE, KILLED, goals_of, works

OTHERS: Final = ("curves.json", "reads.json", "spark.json", "storm.json", "backlog.json")


def rows_of(table: Sequence[results.Row]) -> Iterator[results.Row]:
    """Every row that has a goal, judged; one without systems if the table has none."""
    known = {(each["work"], each["figure"]): each["systems"] for each in table}
    wanted = [(work.name, figure, unit) for work in works() for figure, unit in FIGURES.items()]
    for work, figure, unit in [*wanted, (KILLED, FIRST_WRITE, "ms")]:
        systems = known.get((work, figure), {})
        goals = [results.judged(goal, systems) for goal in goals_of(work, figure)]
        if goals:
            yield {"work": work, "figure": figure, "unit": unit, "systems": systems, "goals": goals}


def beside(file: Path) -> Iterator[tuple[str, Check]]:
    """The checks of the other benchmarks' last runs, each with its file's name. Raises OSError, ValueError."""
    for name in OTHERS:
        other = file.with_name(name)
        if other.exists():
            for each in json.loads(other.read_text())["checks"]:
                yield name, Check(each["name"], each["value"], each.get("at_most"), each.get("at_least"))


def status(rows: Sequence[results.Row], *, goals: bool = False) -> int:
    """The exit status."""
    found: list[dict[str, Any]] = [goal for each in rows for goal in each["goals"]]
    bound = [goal for goal in found if goal["kind"] == "floor" or (goals and goal["kind"] == "goal")]
    if any(not goal["met"] and goal["value"] is not None for goal in bound):
        return 1
    return 2 if any(goal["value"] is None for goal in bound) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Says each goal and floor, met, MISSED or not measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.check", description="goals and floors of a run of bench")
    parser.add_argument("file", type=Path, nargs="?", default=results.LATEST)
    parser.add_argument("--goals", action="store_true", help="goals count for the exit status, too")
    given = parser.parse_args(arguments)
    try:
        report = results.read(given.file)
        others = list(beside(given.file))
    except (OSError, ValueError, KeyError) as error:
        print(f"bench-check: {error}", file=sys.stderr)
        return 2
    rows = list(rows_of(report["table"]))
    print(f"taken {report.get('taken', 'at an unknown time')}")
    print("\n".join(results.goal_lines(rows)))
    for name, each in others:
        print(f"goal    {name}: {each}")
    missed = given.goals and not all(each.met for _, each in others)
    return status(rows, goals=given.goals) or int(missed)


if __name__ == "__main__":
    sys.exit(main())
