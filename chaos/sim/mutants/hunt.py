"""Seeds against mutants: until one fails that does not fail without the bug."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from chaos.sim.mutants.table import MUTANTS
from chaos.sim.parameters import draw
from chaos.sim.runner import run, say
from chaos.sim.simulation import Failure


class Caught(NamedTuple):
    """What became of one mutant. ``failure`` is None if it survived."""

    name: str
    failure: Failure | None
    seed: int
    """The one that caught it."""
    played: int
    """Seeds that it took, those that fail without the bug left out."""
    cpu_s: float


class Hunt(NamedTuple):
    """A job: one mutant, the seeds to try, and simulated seconds of faults per seed."""

    name: str
    seeds: Sequence[int]
    seconds: float


def hunt(job: Hunt) -> Caught:
    """In this process."""
    mutant = MUTANTS[job.name]
    played, cpu_s = 0, 0.0
    for seed in job.seeds:
        parameters = draw(seed, seconds=job.seconds)
        if mutant.needs and not getattr(parameters, mutant.needs):
            continue
        with mutant.applied():
            ran = run(parameters)
        cpu_s += ran.cpu_s
        failure = ran.outcome.failure
        played += 1
        if failure is None:
            continue
        if failure.invariant not in mutant.noticed_by:
            # Not what the bug breaks: a bug in the bug, or one in the code that only this run has come across.
            say(f"  {job.name}: seed {seed} fails with {failure.invariant}, which proves nothing: {failure.story}")
        elif _sound(seed, job.seconds):
            return Caught(job.name, failure, seed, played, cpu_s)
        else:
            say(f"  {job.name}: seed {seed} fails without it, too")
            played -= 1
    return Caught(job.name, None, 0, played, cpu_s)


@cache
def _sound(seed: int, seconds: float) -> bool:
    """It passes with nothing broken."""
    return run(draw(seed, seconds=seconds)).outcome.failure is None


def hunt_all(names: Sequence[str], *, seeds: Sequence[int], seconds: float, workers: int) -> Iterator[Caught]:
    """As they are caught."""
    jobs = [Hunt(name, seeds, seconds) for name in names]
    for name in names:
        _ = MUTANTS[name].patches  # all of them, while the sources are what was imported
    if workers <= 1:
        yield from map(hunt, jobs)
        return
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(hunt, jobs)
