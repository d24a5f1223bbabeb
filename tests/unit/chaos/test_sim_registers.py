"""What clients do to registers is worth checking: a compare-and-set that never succeeds tells nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from chaos.sim.drawing import draw
from chaos.sim.leftovers import leftovers_unseen
from chaos.sim.simulation import Simulation
from chaos.sim.timeline import Timeline

SEED = 3


def test_compare_and_set_of_what_was_read_succeeds_about_as_often_as_not() -> None:
    drawn = draw(SEED, seconds=30.0)
    drawn = replace(drawn, stories=replace(drawn.stories, restores=False))  # registers are of one history
    simulation = Simulation(drawn, timeline=Timeline())
    with leftovers_unseen():
        outcome = simulation.play()
    assert outcome.failure is None, f"seed {SEED}: {outcome.failure}"
    tally: Counter[Any] = Counter(
        op.result for op in simulation.seen.history.operations if op.f == "cas" and op.value[0] and op.outcome == "ok"
    )
    assert tally[True] >= 5, f"seed {SEED}: {tally}"
    assert tally[False] >= 5, f"seed {SEED}: {tally}"
