"""A long run: ``python -m tests.storage --states 1000000 --seed 1 --workers 2``.

Goes through the seeds of every workload until so many distinct states have been recovered from.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time

from tests.storage.plan import PLANS, small_and_quiet

ENOUGH_OF_SMALL = 3
"""Seeds of a workload that is a few operations long."""


def task(chosen: tuple[str, int]) -> tuple[str, int, int, str]:
    name, seed = chosen
    with small_and_quiet():
        try:
            plan = PLANS[name]
            found = plan.power_losses(seed)
            found.add(plan.kills(seed, every=random.Random(seed).choice((1, 3, 5))))
        except AssertionError as error:
            return name, seed, 0, str(error)
    return name, seed, len(found.states), ""


def tasks(names: list[str], first_seed: int, count: int) -> list[tuple[str, int]]:
    """The small workloads have no more to show after a few seeds."""
    return [
        (name, seed)
        for seed in range(first_seed, first_seed + count)
        for name in names
        if len(names) == 1 or PLANS[name].least > 200 or seed < first_seed + ENOUGH_OF_SMALL
    ]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--states", type=int, default=1_000_000)
    arguments.add_argument("--seed", type=int, default=1000, help="the first one")
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--only", choices=sorted(PLANS), help="one workload")
    chosen = arguments.parse_args()
    states, failures, started = 0, 0, time.monotonic()
    work = tasks([chosen.only] if chosen.only else sorted(PLANS), chosen.seed, max(8, chosen.states // 500))
    with multiprocessing.Pool(chosen.workers) as pool:
        for name, seed, found, problem in pool.imap_unordered(task, work):
            states, failures = states + found, failures + bool(problem)
            clock = f"{time.monotonic() - started:8.1f} s {states:10,} states"
            print(f"{clock}  {name}, seed {seed}: {problem or found}", flush=True)
            if states >= chosen.states:
                pool.terminate()
                break
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
