"""``chaos``: ``sim``, whole clusters on a simulated clock, network and disk; ``run``, real nodes that are killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO

import click

from logboom.cli.node import server_module


@click.group(
    short_help="Fault runs, for those who work on logboom.",
    epilog="""\b
Examples:
  logboom chaos sim --seeds 20
  logboom chaos run --seconds 60""",
)
def chaos() -> None:
    """Tests of a kind that a release must pass; for those who work on logboom, and those who want to see."""


@chaos.command(epilog="Example:  logboom chaos sim --seed 7 --trace | less")
@click.option("--seed", type=click.IntRange(0), help="Play this one (with --seeds: the first).")
@click.option("--seeds", type=click.IntRange(1), help="So many, from --seed on, or fresh ones.")
@click.option("--for", "budget_s", type=click.FloatRange(1), help="Fresh seeds for so many real seconds.")
@click.option(
    "--seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(1, 86_400),
    help="Simulated, of faults, per seed.",
)
@click.option("--until", type=click.FloatRange(0), help="Stop one seed at this simulated second.")
@click.option("--trace", is_flag=True, help="Print one seed's timeline.")
@click.option("--minimise", "shrink", is_flag=True, help="Find the fewest faults that still make one seed fail.")
@click.option("--workers", default=os.cpu_count() or 1, show_default="one per core", type=click.IntRange(1))
@click.option(
    "--summary", "summary_file", type=click.File("w", lazy=False), help="Write the summary of many seeds here, too."
)
def sim(
    seed: int | None,
    seeds: int | None,
    budget_s: float | None,
    seconds: float,
    until: float | None,
    trace: bool,
    shrink: bool,
    workers: int,
    summary_file: TextIO | None,
) -> None:
    """Play seeds in the simulator: the production code, a bad day each. Exit status 1 if an invariant broke."""
    if (until is not None or trace or shrink) and (seeds is not None or budget_s is not None or seed is None):
        raise click.UsageError("--until, --trace and --minimise go with one --seed")
    if seed is None and seeds is None and budget_s is None:
        raise click.UsageError("name a --seed, or how many: --seeds or --for")
    status = server_module("chaos.sim.main").sim(
        seed=seed,
        seeds=seeds,
        budget_s=budget_s,
        seconds=seconds,
        until=until,
        trace=trace,
        shrink=shrink,
        workers=workers,
        summary_file=summary_file,
    )
    sys.exit(status)


@chaos.command(
    short_help="Kill and stop real nodes under load, then check.",
    epilog="Example:  logboom chaos run --seconds 60 --seed 7",
)
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(1, 86_400), help="Of faults.")
@click.option("--seed", type=click.IntRange(0), help="Replays a run's schedule; else a new one.")
@click.option("--keep", is_flag=True, help="Data and history stay when all is well, too.")
@click.option(
    "--dir", "directory", default=".chaos", show_default=True, type=click.Path(), help="Where data and history go."
)
def run(seconds: float, seed: int | None, keep: bool, directory: str) -> None:
    """Real nodes of its own on this machine, under load: killed, stopped, cut off, replaced; then every check.

    Exit status 1 if one of them failed, or the run did too little to prove anything; then data and history are kept.
    What comes when is drawn from the seed; what the nodes make of it differs from run to run. It touches no cluster
    but its own.
    """
    sys.exit(server_module("chaos.nemesis").run(seconds=seconds, seed=seed, keep=keep, directory=Path(directory)))
