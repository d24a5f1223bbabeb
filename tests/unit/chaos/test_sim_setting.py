"""Clients that set how writes to partitions are answered, in runs; and bugs of it are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.sim.drawing import draw
from chaos.sim.mutants.table import MUTANTS
from chaos.sim.simulation import Outcome, Simulation
from chaos.sim.stories import Stories
from chaos.sim.timeline import Timeline

SEED = 3


def played(*, partitions_change: bool = False) -> tuple[Outcome, Simulation]:
    drawn = draw(SEED, seconds=8.0)
    parameters = replace(drawn, stories=Stories(sets=True), faults=(), think_s=0.2, partitions_change=partitions_change)
    simulation = Simulation(parameters, timeline=Timeline())
    return simulation.play(), simulation


@pytest.mark.parametrize("partitions_change", [False, True])
def test_partitions_are_set_while_they_are_written_to(partitions_change: bool) -> None:
    outcome, simulation = played(partitions_change=partitions_change)
    assert outcome.failure is None
    assert simulation.seen.sets >= 5
    assert any(op.outcome == "ok" for op in simulation.seen.history.operations)


@pytest.mark.parametrize("name", ["linearizable-at-commit", "set-where-it-leads", "first-word-counts"])
def test_what_does_not_count_as_was_said_is_found(name: str) -> None:
    with MUTANTS[name].applied():
        outcome, _ = played()
    assert outcome.failure is not None
    assert outcome.failure.invariant in MUTANTS[name].noticed_by
