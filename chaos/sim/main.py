"""What ``logboom chaos sim`` does."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterable
from typing import TextIO

from chaos.sim.drawing import draw
from chaos.sim.runner import Summary, minimise, replay_line, run, run_many, say
from chaos.sim.timeline import Timeline
from logboom.cli.common import unread_too

PROGRESS_S = 10.0


def one(seed: int, *, seconds: float, until: float | None, trace: bool, shrink: bool) -> int:
    """Play one seed. 0: all held; 1: something did not."""
    parameters = draw(seed, seconds=seconds)
    timeline = Timeline(keep=trace)
    ran = run(parameters, timeline=timeline, until=until)
    outcome = ran.outcome
    _show(timeline.lines)
    say(
        f"seed {seed}: {parameters.nodes} nodes, {parameters.settings.cluster.partitions} partitions, "
        f"{sum(outcome.faults.values())} faults, {sum(outcome.operations.values())} operations, "
        f"{outcome.simulated_s:.1f} simulated seconds in {ran.cpu_s:.1f}; trace {outcome.trace_hash}"
    )
    if outcome.failure is None:
        say("all invariants held")
        return 0
    say(replay_line(outcome, seconds=seconds))
    if shrink:
        say(f"minimising {len(parameters.faults)} faults")
        _show(
            f"{fault.at:8.3f}  {fault.kind:16} node {fault.node:2} for {fault.duration:.2f} s"
            for fault in minimise(parameters, outcome.failure.invariant, say)
        )
    return 1


def _show(lines: Iterable[str]) -> None:
    with unread_too():
        for line in lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()  # what nobody reads is noticed now, not when the process ends


def many(*, first: int | None, seeds: int | None, budget_s: float | None, seconds: float, workers: int) -> Summary:
    """``seeds`` from ``first`` on (None: fresh ones), or as many as begin within ``budget_s``."""
    start = first if first is not None else random.SystemRandom().randrange(1 << 40)
    end = time.monotonic() + budget_s if budget_s is not None else None
    numbers: Iterable[int] = itertools.count(start) if seeds is None else range(start, start + seeds)
    chosen = itertools.takewhile(lambda _: end is None or time.monotonic() < end, numbers)
    summary = Summary(seconds)
    told = time.monotonic()
    for ran in run_many(chosen, seconds=seconds, workers=workers):
        summary.add(ran)
        if ran.outcome.failure is not None:
            say(replay_line(ran.outcome, seconds=seconds))
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            say(f"  {summary.seeds} seeds, {sum(summary.faults.values())} faults, {len(summary.failures)} failed")
    return summary


def sim(
    *,
    seed: int | None,
    seeds: int | None,
    budget_s: float | None,
    seconds: float,
    until: float | None,
    trace: bool,
    shrink: bool,
    workers: int,
    summary_file: TextIO | None,
) -> int:
    """The exit status."""
    if seed is not None and seeds is None and budget_s is None:
        return one(seed, seconds=seconds, until=until, trace=trace, shrink=shrink)
    summary = many(first=seed, seeds=seeds, budget_s=budget_s, seconds=seconds, workers=workers)
    lines = summary.lines()
    _show(lines)
    if summary_file is not None:
        summary_file.write("\n".join(lines) + "\n")
    return 1 if summary.failures else 0
