"""Clients that write over several keys, in runs; and a bug of it is found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from chaos.sim.drawing import draw
from chaos.sim.mutants.table import MUTANTS
from chaos.sim.simulation import Outcome, Simulation
from chaos.sim.stories import Stories
from chaos.sim.timeline import Timeline
from chaos.sim.transfers import ACCOUNTS, unbalanced


def played(seed: int) -> tuple[Outcome, Counter[str]]:
    parameters = replace(draw(seed, seconds=8.0), stories=Stories(transfers=True), faults=(), think_s=0.2)
    simulation = Simulation(parameters, timeline=Timeline())
    outcome = simulation.play()
    moved = [op for op in simulation.seen.history.operations if "-moved-" in op.key]
    return outcome, Counter(op.outcome for op in moved)


def test_what_is_moved_adds_up() -> None:
    outcome, moved = played(3)
    assert outcome.failure is None
    assert moved["ok"] > 10
    assert moved["fail"]  # spoilt ones


def test_what_is_done_in_part_is_found() -> None:
    with MUTANTS["txn-in-part"].applied():
        outcome, _ = played(3)
    assert outcome.failure is not None
    assert outcome.failure.invariant in MUTANTS["txn-in-part"].noticed_by


def test_accounts_that_do_not_add_up_are_told() -> None:
    assert unbalanced({ACCOUNTS[0]: (3,), ACCOUNTS[1]: (-3,), ACCOUNTS[2]: None}) == []
    assert unbalanced({ACCOUNTS[0]: (3,), ACCOUNTS[1]: (-2,)})
