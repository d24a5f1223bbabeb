"""Workers that are slow: what the ladder of lag does about them in whole runs, and that what is wrong is noticed."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from chaos.sim.drawing import draw
from chaos.sim.drawn_faults import LAG_KINDS, LEADER, Fault
from chaos.sim.mutants.edit import Mutant
from chaos.sim.mutants.lag import MUTANTS
from chaos.sim.parameters import Parameters
from chaos.sim.runner import run
from chaos.sim.simulation import Outcome
from chaos.sim.stories import Stories
from logboom.settings import LagSettings

LAG = LagSettings(look_ms=50, slow_ms=150, throttle_percent=25, stalled_ms=600, chronic_ms=1_000, move_again_ms=500)
WHOLE_NODE, ONE_WORKER = 5, 7
"""Dice of a fault."""


def stalled(seed: int, *, dice: int, kind: str = "stall_apply") -> Parameters:
    """Twelve seconds in which the leader's workers, or one of them, stand still for some, and nothing else is wrong."""
    drawn = draw(seed, seconds=12.0)
    settings = msgspec.structs.replace(drawn.settings, lag=LAG)
    fault = Fault(4.0, kind, LEADER, 5.0, dice)
    still = replace(drawn, blackout=None, members_change=False, stories=replace(drawn.stories, restores=False))
    return replace(still, settings=settings, faults=(fault,), kinds=LAG_KINDS)


def played(parameters: Parameters) -> Outcome:
    print(f"seed {parameters.seed}")
    outcome = run(parameters).outcome
    assert outcome.failure is None, outcome.failure
    return outcome


def test_a_third_of_the_seeds_have_slow_workers() -> None:
    drawn = [draw(seed) for seed in range(301)]
    assert 80 < sum(parameters.lags for parameters in drawn) < 140
    assert {parameters.settings.lag == LagSettings() for parameters in drawn if not parameters.lags} == {True}


@pytest.mark.parametrize("seed", [3, 10])
def test_a_leader_whose_workers_stand_still_freezes_gives_leadership_away_and_thaws(seed: int) -> None:
    lag = played(stalled(seed, dice=WHOLE_NODE)).lag
    assert lag["freeze"]
    assert lag["move_leadership"]
    assert lag["release"] <= lag["throttle"] + lag["freeze"]


def test_receipts_say_that_a_partition_is_held() -> None:
    assert any(
        played(stalled(seed, dice=dice, kind="slow_apply")).lag["held"]
        for seed in (3, 5)
        for dice in (WHOLE_NODE, ONE_WORKER)
    )


def test_nothing_is_done_where_nobody_is_slow() -> None:
    alone = Stories()  # nor is anything paused by an operator
    assert not played(replace(stalled(5, dice=ONE_WORKER), faults=(), stories=alone)).lag


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_is_done_wrongly_is_noticed(mutant: Mutant) -> None:
    invariants = set()
    for seed in (3, 4):
        with mutant.applied():
            failure = run(stalled(seed, dice=WHOLE_NODE, kind=LAG_KINDS[seed % 2])).outcome.failure
        invariants.add(failure.invariant if failure else "")
    assert invariants & set(mutant.noticed_by), invariants
