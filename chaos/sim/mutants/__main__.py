"""``python -m chaos.sim.mutants``: is every mutant noticed? Exit status 1 if one survives."""

from __future__ import annotations

import argparse
import sys
import time

from chaos.sim.mutants.hunt import Caught, hunt_all
from chaos.sim.mutants.table import MUTANTS
from chaos.sim.runner import say

STORY_CHARS = 90


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m chaos.sim.mutants", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(MUTANTS), metavar="NAME", help="this one")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=250, help="most seeds per mutant")
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated seconds of faults per seed")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.list:
        for mutant in MUTANTS.values():
            sys.stdout.write(f"{mutant.name:34} {mutant.broken}\n")
        return 0
    names = options.only or list(MUTANTS)
    seeds = range(options.first, options.first + options.seeds)
    started = time.monotonic()
    results: dict[str, Caught] = {}
    for caught in hunt_all(names, seeds=seeds, seconds=options.seconds, workers=options.workers):
        results[caught.name] = caught
        say(f"  {len(results)} of {len(names)}: {_row(caught)} ({caught.cpu_s:.0f} s)")
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


if __name__ == "__main__":
    sys.exit(main())
