"""``python -m bench``: every work on all systems in turn, a table, goals and floors. See DESIGN.md."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Final

from bench import check, results
from bench.runs import Plan, Runs, say
from bench.systems import SYSTEMS, started
from bench.works import KILLED, works

__all__ = ["main", "started"]

ROOT: Final = Path(__file__).resolve().parent.parent


def _on_term(*_: object) -> None:
    raise SystemExit(143)  # so that every `finally` runs


def _plan() -> tuple[Plan, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="python -m bench", description="logboom and its peers side by side")
    parser.add_argument(
        "--quick", action="store_true", help="one run of 2 seconds, no trials: a look, not a measurement"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="per load")
    parser.add_argument(
        "--deaths", type=int, help="leaders killed per run and system; default 7 of logboom, 3 of others"
    )
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"of {','.join(SYSTEMS)}")
    parser.add_argument("--works", default="", help="parts of names, with | between: 'log|one at a time'")
    parser.add_argument("--directory", type=Path, default=ROOT / ".bench", help="on the disk to be measured")
    parser.add_argument("--out", type=Path, default=results.LATEST, help="the JSON")
    parser.add_argument("--no-floors", action="store_true", help="a missed floor does not count for the exit status")
    given = parser.parse_args()
    if given.quick:
        given.runs, given.seconds, given.deaths = 1, 2.0, given.deaths or 2
    if given.runs < 1 or given.seconds <= 0 or (given.deaths is not None and given.deaths < 1):
        parser.error("--runs, --deaths and --seconds are above 0")
    systems = given.systems.split(",")
    if unknown := set(systems) - set(SYSTEMS):
        parser.error(f"no such system: {', '.join(sorted(unknown))}")
    plan = Plan(
        given.directory.resolve(),
        systems,
        given.works.split("|"),
        given.runs,
        given.seconds,
        given.deaths,
        trials=not given.quick,
    )
    if not plan.chosen() and not plan.wants(KILLED):
        parser.error(f"no such work: there are {'; '.join([*(work.name for work in works()), KILLED])}")
    return plan, given


def main() -> int:
    """Exit status 1: a floor was missed; 2: a system that was asked for could not be measured."""
    plan, given = _plan()
    signal.signal(signal.SIGTERM, _on_term)
    runs = Runs(plan)
    runs.go()
    report = runs.report()
    results.write(given.out, report)
    print(results.text(report["table"]))
    for name, story in runs.failed.items():
        say(f"not measured: {name}: {story}")
    say(f"written: {given.out}")
    if runs.failed:
        return 2
    return 1 if check.status(report["table"]) == 1 and not given.no_floors else 0


if __name__ == "__main__":
    sys.exit(main())
