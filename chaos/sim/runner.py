"""Many seeds over the cores of this machine, one seed closely, and the smallest schedule that still fails."""

from __future__ import annotations

import gc
import multiprocessing
import queue
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from chaos.sim.drawing import draw
from chaos.sim.drawn_faults import Fault
from chaos.sim.leftovers import leftovers_unseen
from chaos.sim.parameters import Parameters
from chaos.sim.simulation import Outcome, Simulation
from chaos.sim.timeline import Timeline
from logboom.cli import talk
from logboom.errors import Unavailable

SEEDS_PER_PROCESS: Final = 4
"""Then a new process takes over: what runs leave in memory is looked through after each that follows."""

SEEDS_AHEAD: Final = 2
"""Per worker: one that is played and one that waits."""

SEED_S_MAX: Final = 900.0
"""A pool never says that a worker was killed (out of memory): it waits for ever. A seed takes seconds; those of CI are
nice to the tests beside them."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One seed, and what it cost."""

    outcome: Outcome
    cpu_s: float


def commit() -> str:
    """What is being tested."""
    found = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def run(parameters: Parameters, *, timeline: Timeline | None = None, until: float | None = None) -> Ran:
    """One run, here."""
    gc.disable()  # a run is short, and collecting would take a fifth of it
    try:
        with leftovers_unseen():
            started = time.process_time()
            outcome = Simulation(parameters, timeline=timeline or Timeline(), until=until).play()
            cpu_s = time.process_time() - started
    finally:
        gc.enable()
    return Ran(outcome, cpu_s)


def run_seed(job: tuple[int, float]) -> Ran:
    """For worker processes: seed, and seconds of faults."""
    return run(draw(job[0], seconds=job[1]))


def run_many(seeds: Iterable[int], *, seconds: float, workers: int) -> Iterator[Ran]:
    """As they end."""
    jobs = ((seed, seconds) for seed in seeds)
    if workers <= 1:
        yield from map(run_seed, jobs)
        return
    ended: queue.SimpleQueue[Ran | BaseException] = queue.SimpleQueue()
    # SIGTERM ends a worker whatever the parent does with it: a handler that raises would be one more fault of the run.
    default = signal.SIGTERM, signal.SIG_DFL
    forked = multiprocessing.get_context("fork")
    with forked.Pool(workers, signal.signal, default, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        under_way = 0
        for job in jobs:  # each only when it is nearly its turn: ``seeds`` may end with the time
            pool.apply_async(run_seed, (job,), callback=ended.put, error_callback=ended.put)
            under_way += 1
            if under_way == SEEDS_AHEAD * workers:
                yield _next(ended)
                under_way -= 1
        for _ in range(under_way):
            yield _next(ended)


def _next(ended: queue.SimpleQueue[Ran | BaseException]) -> Ran:
    try:
        ran = ended.get(timeout=SEED_S_MAX)
    except queue.Empty:
        raise Unavailable(f"no seed ended within {SEED_S_MAX:.0f} s: a worker has died, or hangs") from None
    if isinstance(ran, BaseException):
        raise ran
    return ran


def replay_line(outcome: Outcome, *, seconds: float) -> str:
    """All that is needed to see a failure again."""
    failure = outcome.failure
    if failure is None:
        return ""
    command = f"logboom chaos sim --seed {outcome.seed} --seconds {seconds!r} --trace"
    return (
        f"FAILED {failure.invariant} seed={outcome.seed} commit={commit()} at={failure.at:.3f}s: "
        f"{failure.story} | replay: {command}"
    )


# -- the smallest schedule


def minimise(parameters: Parameters, invariant: str, say: Callable[[str], None]) -> tuple[Fault, ...]:
    """Fewest faults that still break ``invariant``: drop halves, then quarters, down to single ones (ddmin)."""
    faults = list(parameters.faults)
    chunk = max(1, len(faults) // 2)
    while True:
        at, dropped = 0, False
        while at < len(faults):
            rest = faults[:at] + faults[at + chunk :]
            if _breaks(parameters, rest, invariant):
                faults, dropped = rest, True
                say(f"{len(faults)} faults are enough")
            else:
                at += chunk
        if chunk == 1 and not dropped:
            return tuple(faults)
        chunk = max(1, chunk // 2)


def _breaks(parameters: Parameters, faults: Sequence[Fault], invariant: str) -> bool:
    failure = run(replace(parameters, faults=tuple(faults))).outcome.failure
    return failure is not None and failure.invariant == invariant


# -- summing up


@dataclass
class Summary:
    """Of many seeds."""

    seconds: float
    seeds: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    operations: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)
    slowest: tuple[float, int] = (1e9, 0)
    """Simulated seconds per second, and whose."""
    elections: int = 0
    commits: int = 0
    shared: int = 0
    snapshots: int = 0
    installs: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    created: int = 0
    destroyed: int = 0
    lag: Counter[str] = field(default_factory=Counter)

    def add(self, ran: Ran) -> None:
        """One more."""
        outcome = ran.outcome
        self.seeds += 1
        self.simulated_s += outcome.simulated_s
        self.cpu_s += ran.cpu_s
        self.operations += outcome.operations
        self.refusals += outcome.refusals
        self.faults += outcome.faults
        self.elections += outcome.elections
        self.commits += outcome.commits
        self.shared += outcome.shared
        self.snapshots += outcome.snapshots
        self.installs += outcome.installs
        self.changes += outcome.changes
        self.created += outcome.created
        self.destroyed += outcome.destroyed
        self.lag += outcome.lag
        self.slowest = min(self.slowest, (outcome.simulated_s / max(ran.cpu_s, 1e-9), outcome.seed))
        if outcome.failure is not None:
            self.failures.append(outcome)

    def lines(self) -> list[str]:
        """For people."""
        operations = self.operations
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.faults.most_common())
        refusals = ", ".join(f"{code} {count}" for code, count in self.refusals.most_common()) or "nothing"
        rate = self.simulated_s / max(self.cpu_s, 1e-9)
        speed = f"{rate:.1f} per second and core (slowest {self.slowest[0]:.1f}, seed {self.slowest[1]})"
        outcomes = f"{operations['ok']:,} ok, {operations['fail']:,} refused, {operations['info']:,} unknown"
        taken = f"{self.elections:,} elections, {self.snapshots:,} snapshots, {self.installs:,} installs"
        lag = ", ".join(f"{step} {count}" for step, count in self.lag.most_common()) or "none"
        members = ", ".join(f"{change} {count}" for change, count in self.changes.most_common()) or "none"
        return [
            f"{self.seeds} seeds, {self.simulated_s:,.0f} simulated seconds in {self.cpu_s:,.0f} s of CPU: {speed}",
            f"{sum(self.faults.values()):,} faults of {len(self.faults)} kinds: {kinds}",
            f"{sum(operations.values()):,} operations: {outcomes}",
            f"clients were told: {refusals}",
            f"{self.commits:,} commits ({self.shared:,} requests shared batches), {taken}",
            f"changes of members: {members}; partitions: {self.created:,} created, {self.destroyed:,} destroyed",
            f"lag: {lag}",
            *[replay_line(outcome, seconds=self.seconds) for outcome in self.failures],
            f"{len(self.failures)} failed" if self.failures else "all invariants held",
        ]


def say(line: str) -> None:
    """To the person watching."""
    talk(line)
