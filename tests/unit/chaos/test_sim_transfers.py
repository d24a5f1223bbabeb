"""Clients that write over several keys, in runs; and a bug of it is found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from chaos.history import History
from chaos.sim.drawing import draw
from chaos.sim.mutants.table import MUTANTS
from chaos.sim.simulation import Outcome, Simulation
from chaos.sim.stories import Stories
from chaos.sim.timeline import Timeline
from chaos.transfers import ACCOUNTS, BEGINS_WITH, conclude, unbalanced
from logboom import Status


def played(seed: int, what: str = "moved") -> tuple[Outcome, Counter[str]]:
    parameters = replace(draw(seed, seconds=8.0), stories=Stories(transfers=True), faults=(), think_s=0.2)
    simulation = Simulation(parameters, timeline=Timeline())
    outcome = simulation.play()
    moved = [op for op in simulation.seen.history.operations if f"-{what}-" in op.key]
    return outcome, Counter(op.outcome for op in moved)


def test_what_is_moved_adds_up() -> None:
    outcome, moved = played(3)
    assert outcome.failure is None
    assert moved["ok"] > 10
    assert moved["fail"]  # spoilt ones


def test_who_has_too_little_gives_nothing() -> None:
    outcome, refused = played(3, "refused")
    assert outcome.failure is None
    assert refused["ok"]
    assert refused["fail"] > 10


@pytest.mark.parametrize("name", ["txn-in-part", "compares-always-hold", "compares-never-hold", "otherwise-not-told"])
def test_what_is_done_in_part_or_against_what_was_compared_is_found(name: str) -> None:
    with MUTANTS[name].applied():
        outcome, _ = played(3)
    assert outcome.failure is not None
    assert outcome.failure.invariant in MUTANTS[name].noticed_by


def test_accounts_that_do_not_add_up_or_owe_something_are_told() -> None:
    right = dict.fromkeys(ACCOUNTS, (BEGINS_WITH,))
    assert unbalanced(right) == unbalanced({**right, ACCOUNTS[0]: (0,), ACCOUNTS[1]: (2 * BEGINS_WITH,)}) == []
    assert "together" in unbalanced({**right, ACCOUNTS[0]: (BEGINS_WITH - 1,)})[0]
    assert "together" in unbalanced({**right, ACCOUNTS[0]: None})[0]
    assert "has -1" in unbalanced({**right, ACCOUNTS[0]: (-1,), ACCOUNTS[1]: (2 * BEGINS_WITH + 1,)})[0]


def test_accounts_that_are_not_there_are_missed_once_they_were_opened() -> None:
    nobody = dict.fromkeys(ACCOUNTS)
    assert unbalanced(nobody) == []
    assert "there are none" in unbalanced(nobody, opened=True)[0]


@pytest.mark.parametrize(
    ("moved", "results", "refused"),
    [
        ("ok", (Status.OK,), "fail"),
        ("ok", (Status.OTHERWISE,), "ok"),
        ("ok", (Status.UNKNOWN_RESULT,), "info"),
        ("ok", None, "info"),
        ("fail", None, "fail"),
        ("info", None, "info"),
    ],
)
def test_whether_it_was_refused_is_what_the_answer_says(
    moved: str, results: tuple[Status, ...] | None, refused: str
) -> None:
    history = History(lambda: 0)
    one, two = (history.invoke(1, "add", key, 1, 0) for key in "ab")
    history.end(one, moved, index=3, global_index=7)
    assert conclude(history, one, two, results) == []
    assert (two.outcome, two.index, two.global_index) == (refused, 3, 7)


def test_an_answer_that_it_cannot_have_is_told() -> None:
    history = History(lambda: 0)
    one, two = (history.invoke(1, "add", key, 1, 0) for key in "ab")
    history.end(one, "ok")
    assert "MISMATCH" in conclude(history, one, two, (Status.MISMATCH,))[0]
