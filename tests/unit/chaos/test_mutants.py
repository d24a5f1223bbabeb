"""Mutants change what they say, and nothing for longer; only what they say catches them; some are caught here."""

from __future__ import annotations

import ast
import builtins
import dis
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim import mutants
from chaos.sim.drawing import draw
from chaos.sim.mutants import hunt as hunting
from chaos.sim.mutants.edit import Edit, Mutant, Stale
from chaos.sim.mutants.hunt import Hunt, hunt, hunt_all
from chaos.sim.mutants.table import MUTANTS
from chaos.sim.simulation import Failure
from raftlog.journal.outbox import GroupSync

SIM = Path(mutants.__file__).parents[1]
SOURCES = "".join(path.read_text() for path in SIM.glob("*.py"))
FAILING = ("fail", "wrong", "problem", "report")
WITHOUT = {"NoRealWorld", "VoidProven", "SetKept"}
"""The first looks at the simulator: nothing of the production code may ask the machine that it runs on. Of the others
no seed was seen to catch a bug yet: they are tested directly, in ``test_sim_promises`` and ``test_sim_held``."""


@pytest.mark.parametrize("name", MUTANTS)
def test_it_applies_and_undoes_itself(name: str) -> None:
    patches = MUTANTS[name].patches
    before = [function.__code__ for function, _ in patches]
    with MUTANTS[name].applied():
        for (function, code), original in zip(patches, before, strict=True):
            assert function.__code__ is code
            assert (code.co_code, code.co_consts, code.co_names) != (
                original.co_code, original.co_consts, original.co_names,
            )  # fmt: skip
    assert [function.__code__ for function, _ in patches] == before


@pytest.mark.parametrize("name", MUTANTS)
def test_it_calls_nothing_that_is_not_there(name: str) -> None:
    for function, code in MUTANTS[name].patches:
        known = function.__globals__.keys() | vars(builtins).keys()
        asked = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
        assert asked <= known


@pytest.mark.parametrize("name", MUTANTS)
def test_its_invariants_are_ones_of_the_simulator(name: str) -> None:
    assert MUTANTS[name].noticed_by
    assert not [each for each in MUTANTS[name].noticed_by if f'"{each}"' not in SOURCES]


def test_every_invariant_has_a_mutant_that_it_may_notice() -> None:
    """A new one comes with a bug that breaks it: else nobody knows that it is looked at."""
    noticed = {each for mutant in MUTANTS.values() for each in mutant.noticed_by}
    assert _invariants() - noticed == WITHOUT
    assert _invariants() >= WITHOUT


def _invariants() -> set[str]:
    """Whatever a run of the simulator may fail with."""
    found = set[str]()
    for path in SIM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                said = node.args[:1] if called.strip("_") in FAILING else []
            else:
                said = node.elts[:1] if isinstance(node, ast.Tuple) and len(node.elts) == 2 else []
            found |= {each.value for each in said if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return {each for each in found if re.fullmatch(r"I\d+|[A-Z][a-z]+([A-Z][a-z]+)*", each)}


@pytest.mark.parametrize("name", MUTANTS)
def test_some_seeds_tell_what_it_needs(name: str) -> None:
    assert any(MUTANTS[name].may_be_seen(draw(seed)) for seed in range(1, hunting.DRAWN_MAX))


def test_it_undoes_itself_when_a_run_fails() -> None:
    original = GroupSync.hold.__code__
    with pytest.raises(KeyError), MUTANTS["acknowledge-before-sync"].applied():
        raise KeyError
    assert GroupSync.hold.__code__ is original


@pytest.mark.parametrize(
    "edit",
    [
        Edit("raftlog.journal.outbox:GroupSync.hold", "self._held.extend(send)", "pass"),
        Edit("raftlog.journal.outbox:GroupSync.hold", "send", "receive"),
        Edit("raftlog.journal.outbox:GroupSync.keep", "send", "receive"),
        Edit("raftlog.journal.outbox:GroupSync", "send", "receive"),
        Edit("raftlog.inbox:GroupSync.hold", "send", "receive"),
    ],
    ids=["no such text", "twice", "no such method", "not a function", "no such module"],
)
def test_code_that_has_changed_is_an_error(edit: Edit) -> None:
    with pytest.raises(Stale):
        _ = Mutant("stale", "Nothing.", ("I8",), (edit,)).patches


class TestHunting:
    """``fails``: by seed, with the bug and without."""

    @pytest.fixture
    def fails(self, monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[str, str]]:
        rows: dict[int, tuple[str, str]] = {}
        original = GroupSync.hold.__code__

        def run(seed: int) -> Any:
            broken = rows.get(seed, ("", ""))[GroupSync.hold.__code__ is original]
            failure = Failure(broken, "a story", 1.0) if broken else None
            return SimpleNamespace(outcome=SimpleNamespace(failure=failure), cpu_s=0.5)

        monkeypatch.setattr(hunting, "draw", lambda seed, seconds: _Seed(seed))
        monkeypatch.setattr(hunting, "run", run)
        monkeypatch.setattr(hunting, "_sound", {})
        return rows

    def hunted(self, seeds: int, known: int | None = None) -> tuple[str | None, int, int]:
        caught = hunt(Hunt("acknowledge-before-sync", 1, seeds, 60.0, known)).caught
        return caught.failure.invariant if caught.failure else None, caught.seed, caught.played

    def test_the_first_seed_that_fails_as_it_should_catches_it(self, fails: dict[int, tuple[str, str]]) -> None:
        fails[3] = "AckDurable", ""
        assert self.hunted(5) == ("AckDurable", 3, 3)

    def test_a_seed_that_fails_without_the_bug_does_not_count(self, fails: dict[int, tuple[str, str]]) -> None:
        fails.update({2: ("AckDurable", "Liveness"), 4: ("AckDurable", "")})
        assert self.hunted(5) == ("AckDurable", 4, 3)

    def test_an_unexpected_failure_proves_nothing(self, fails: dict[int, tuple[str, str]]) -> None:
        fails[1] = "NothingUnhandled", ""
        assert self.hunted(5) == (None, 0, 5)

    def test_the_seed_that_caught_it_the_last_time_comes_first(self, fails: dict[int, tuple[str, str]]) -> None:
        fails.update({4: ("AckDurable", ""), 40: ("AckDurable", "")})
        assert self.hunted(5, known=40) == ("AckDurable", 40, 1)
        assert self.hunted(5, known=41) == ("AckDurable", 4, 5)
        assert self.hunted(5, known=3) == ("AckDurable", 4, 4)

    def test_seeds_that_do_not_tell_what_is_needed_are_not_played(
        self, fails: dict[int, tuple[str, str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fails.update(dict.fromkeys((2, 3, 4, 18), ("AckDurable", "")))
        needy = replace(MUTANTS["acknowledge-before-sync"], needs="real imag")
        monkeypatch.setitem(MUTANTS, needy.name, needy)
        assert self.hunted(2) == (None, 0, 2)
        assert self.hunted(3) == ("AckDurable", 18, 3)

    def test_where_no_seed_does_it_ends(
        self, fails: dict[int, tuple[str, str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        needy = replace(MUTANTS["acknowledge-before-sync"], needs="nothing")
        monkeypatch.setitem(MUTANTS, needy.name, needy)
        assert self.hunted(5) == (None, 0, 0)

    def test_what_the_first_seeds_catch_is_known_first(self, fails: dict[int, tuple[str, str]]) -> None:
        fails.update({5: ("AckDurable", "Liveness"), 6: ("AckDurable", ""), 7: ("AckDurable", "")})
        names = ["acknowledge-before-sync", "acknowledge-before-sync-unchecked", "tail-cut"]
        found = hunt_all(names, first=1, most=8, seconds=60.0, workers=1, known={names[1]: 7})
        rows = [(each.name, each.seed, each.played, each.cpu_s) for each in found]
        assert rows == [(names[1], 7, 1, 0.5), (names[0], 6, 5, 3.0), (names[2], 0, 8, 4.0)]
        assert hunting._sound == {5: False, 6: True, 7: True}

    def test_one_that_does_not_end_is_ended(
        self, fails: dict[int, tuple[str, str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        played = hunting.run

        def run(seed: int) -> Any:
            while seed == 1:
                pass
            return played(seed)  # type: ignore[arg-type]

        fails[2] = "AckDurable", ""
        monkeypatch.setattr(hunting, "run", run)
        monkeypatch.setattr(hunting, "SEED_CPU_S", 0.1)
        (found,) = hunt_all(["acknowledge-before-sync"], first=1, most=3, seconds=60.0, workers=1, known={})
        assert (found.seed, found.played) == (2, 2)


class _Seed(int):
    """That tells of something, if it is a multiple of six."""

    faults = ()

    @property
    def imag(self) -> int:  # type: ignore[override]
        return self % 6 == 0


@pytest.mark.parametrize(
    "name", ["acknowledge-before-sync-unchecked", "no-quorum", "barrier-early", "dedupe-not-saved"]
)
def test_it_is_caught(name: str) -> None:
    caught = hunt(Hunt(name, 1, 8, 15.0)).caught
    assert caught.failure is not None
    assert caught.failure.invariant in MUTANTS[name].noticed_by
