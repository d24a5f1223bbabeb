"""Seeds against mutants: until one fails that does not fail without the bug.

A seed in which the bug can do nothing costs as much as any other. So those that do not tell what a mutant ``needs`` are
drawn, and not played; the seed that caught it the last time comes first; and all are hunted with a few seeds before
any is with many: what is caught soon, which is nearly all, is known soon.
"""

from __future__ import annotations

import itertools
import multiprocessing
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Final, NamedTuple

from chaos.sim.drawing import draw
from chaos.sim.mutants.table import MUTANTS
from chaos.sim.runner import run, say
from chaos.sim.simulation import Failure

ROUNDS: Final = (1, 5, 25)
"""Seeds that each has been played with before the others go on; then as many as there may be."""
DRAWN_MAX: Final = 400
"""For each that is played so many are drawn, at most: of a need that no seed has there would be no end."""
SEED_CPU_S: Final = 300.0
"""A bug may have a node turn round for ever: then this seed is over."""


class TooLong(Exception):
    """A seed does not end."""


class Caught(NamedTuple):
    """What became of one mutant. ``failure`` is None if it survived."""

    name: str
    failure: Failure | None
    seed: int
    """The one that caught it."""
    played: int
    """Seeds that it took, those that fail without the bug left out."""
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Hunt:
    """A job: one mutant, from which seed on, how many to play, and simulated seconds of faults per seed."""

    name: str
    first: int
    most: int
    seconds: float
    known: int | None = None
    """This one is tried before all others."""
    played: int = 0
    """Of ``most``, in rounds before."""
    cpu_s: float = 0.0


class Hunted(NamedTuple):
    """A job that has ended."""

    caught: Caught
    rest: Hunt
    """Where the next round goes on."""
    sound: dict[int, bool]
    """Seeds that are known to pass, or not, without a bug."""


_sound: dict[int, bool] = {}
"""Of this process; those of a pool are forked with what is known by then."""


def hunt(job: Hunt) -> Hunted:
    """In this process."""
    mutant, first, played, cpu_s = MUTANTS[job.name], job.first, job.played, job.cpu_s
    for seed in _seeds(job):
        if played >= job.most:
            break
        first = first if seed == job.known else seed + 1
        played += 1
        try:
            with mutant.applied(), _limited():
                ran = run(draw(seed, seconds=job.seconds))
        except TooLong:
            say(f"  {job.name}: seed {seed} does not end, which proves nothing")
            continue
        cpu_s += ran.cpu_s
        failure = ran.outcome.failure
        if failure is None:
            continue
        if failure.invariant not in mutant.noticed_by:
            # Not what the bug breaks: a bug in the bug, or one in the code that only this run has come across.
            say(f"  {job.name}: seed {seed} fails with {failure.invariant}, which proves nothing: {failure.story}")
        elif _is_sound(seed, job.seconds):
            return Hunted(Caught(job.name, failure, seed, played, cpu_s), job, dict(_sound))
        else:
            say(f"  {job.name}: seed {seed} fails without it, too")
            played -= 1
    rest = replace(job, first=first, known=None, played=played, cpu_s=cpu_s)
    return Hunted(Caught(job.name, None, 0, played, cpu_s), rest, dict(_sound))


def _seeds(job: Hunt) -> Iterator[int]:
    """The known one; then those that tell what is needed."""
    if job.known is not None:
        yield job.known
    for seed in itertools.islice(itertools.count(job.first), DRAWN_MAX * job.most):
        if seed != job.known and MUTANTS[job.name].may_be_seen(draw(seed, seconds=job.seconds)):
            yield seed


def _is_sound(seed: int, seconds: float) -> bool:
    """It passes with nothing broken."""
    if seed not in _sound:
        _sound[seed] = run(draw(seed, seconds=seconds)).outcome.failure is None
    return _sound[seed]


def hunt_all(
    names: Sequence[str], *, first: int, most: int, seconds: float, workers: int, known: Mapping[str, int]
) -> Iterator[Caught]:
    """As they are caught; who survives comes last. ``known``: the seeds that caught them the last time."""
    for name in names:
        _ = MUTANTS[name].patches  # all of them, while the sources are what was imported
    jobs = [Hunt(name, first, most, seconds, known.get(name)) for name in names]
    for upto in (*(each for each in ROUNDS if each < most), most):
        going, jobs = [replace(job, most=upto) for job in jobs], []
        # A process each: what a run leaves in memory is not the next one's concern.
        with multiprocessing.get_context("fork").Pool(workers, _begin, maxtasksperchild=1) as pool:
            for caught, rest, sound in pool.imap_unordered(hunt, going):
                _sound.update(sound)
                if caught.failure is not None or caught.played < upto or upto == most:
                    yield caught
                else:
                    jobs.append(rest)


def _begin() -> None:
    signal.signal(signal.SIGPROF, _too_long)


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise TooLong


@contextmanager
def _limited() -> Iterator[None]:
    """In a process of the pool a seed takes no more than its time of a processor."""
    if signal.getsignal(signal.SIGPROF) is _too_long:
        signal.setitimer(signal.ITIMER_PROF, SEED_CPU_S, SEED_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
