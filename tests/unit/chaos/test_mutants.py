"""Mutants change what they say, and nothing for longer; only what they say catches them; some are caught here."""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim import mutants
from chaos.sim.mutants import hunt as hunting
from chaos.sim.mutants.edit import Edit, Mutant, Stale
from chaos.sim.mutants.hunt import Hunt, hunt
from chaos.sim.mutants.table import MUTANTS
from chaos.sim.simulation import Failure
from raftlog.journal.outbox import GroupSync

SIM = Path(mutants.__file__).parents[1]


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
    texts = [path.read_text() for path in SIM.glob("*.py")]
    assert MUTANTS[name].noticed_by
    assert not [each for each in MUTANTS[name].noticed_by if not any(f'"{each}"' in text for text in texts)]


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
    def fails(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, tuple[str, str]]]:
        rows: dict[int, tuple[str, str]] = {}
        original = GroupSync.hold.__code__

        def run(seed: int) -> Any:
            broken = rows.get(seed, ("", ""))[GroupSync.hold.__code__ is original]
            failure = Failure(broken, "a story", 1.0) if broken else None
            return SimpleNamespace(outcome=SimpleNamespace(failure=failure), cpu_s=0.5)

        monkeypatch.setattr(hunting, "draw", lambda seed, seconds: seed)
        monkeypatch.setattr(hunting, "run", run)
        hunting._sound.cache_clear()
        yield rows
        hunting._sound.cache_clear()

    def hunted(self, seeds: int) -> tuple[str | None, int, int]:
        caught = hunt(Hunt("acknowledge-before-sync", range(1, seeds + 1), 60.0))
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


@pytest.mark.parametrize("name", ["acknowledge-before-sync-unchecked", "no-quorum", "barrier-early"])
def test_it_is_caught(name: str) -> None:
    caught = hunt(Hunt(name, range(1, 9), 15.0))
    assert caught.failure is not None
    assert caught.failure.invariant in MUTANTS[name].noticed_by
