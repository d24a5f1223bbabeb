"""``python -m chaos.sim.mutants``: is every mutant noticed? Exit status 1 if one survives."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Final

from chaos.sim.mutants.hunt import Caught, hunt_all
from chaos.sim.mutants.table import MUTANTS
from chaos.sim.runner import say

STORY_CHARS = 90
KNOWN: Final = Path(".chaos/mutants.json")


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m chaos.sim.mutants", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(MUTANTS), metavar="NAME", help="this one")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=250, help="seeds to play per mutant, at most")
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated seconds of faults per seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--known", type=Path, default=KNOWN, help=f"where the seeds are kept that caught them the last time ({KNOWN})"
    )
    options = parser.parse_args()
    if options.list:
        for mutant in MUTANTS.values():
            sys.stdout.write(f"{mutant.name:34} {mutant.broken}\n")
        return 0
    names = options.only or list(MUTANTS)
    started, known = time.monotonic(), _read(options.known)
    results: dict[str, Caught] = {}
    for caught in hunt_all(
        names,
        first=options.first,
        most=options.seeds,
        seconds=options.seconds,
        workers=options.workers,
        known=known,
    ):
        results[caught.name] = caught
        say(f"  {len(results)} of {len(names)}: {_row(caught)} ({caught.cpu_s:.0f} s)")
        if caught.failure is not None:
            known[caught.name] = caught.seed
            _write(options.known, known)
    sys.stdout.write(f"{'mutant':34} {'caught by':20} {'seed':>4} {'seeds':>5} {'at':>7}\n")
    for name in names:
        sys.stdout.write(_row(results[name]) + "\n")
    survivors = [name for name in names if results[name].failure is None]
    say(f"{len(names) - len(survivors)} of {len(names)} caught in {time.monotonic() - started:.0f} s")
    return 1 if survivors else 0


def _row(caught: Caught) -> str:
    failure = caught.failure
    if failure is None:
        return f"{caught.name:34} {'SURVIVED':20} {'':4} {caught.played:5}"
    return (
        f"{caught.name:34} {failure.invariant:20} {caught.seed:4} {caught.played:5} "
        f"{failure.at:6.1f}s  {failure.story[:STORY_CHARS]}"
    )


def _read(path: Path) -> dict[str, int]:
    """A hint, no more: a seed means something else as soon as what draws it does, and then others are played."""
    return json.loads(path.read_text()) if path.exists() else {}


def _write(path: Path, known: dict[str, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
