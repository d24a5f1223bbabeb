"""A journal that is wrong about what is durable behind a cut, and a node that goes by too little after a start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.starts_and_cuts import look_at_covering, look_at_cuts

HOST: Any = SimpleNamespace(name="n1")


def journal(durable: int, last: int) -> Any:
    nothing = SimpleNamespace(deleteEntriesFrom=lambda _: None, written=lambda _: None)
    return SimpleNamespace(**vars(nothing), durable_index=durable, last_index=last, base_index=1)


@pytest.mark.parametrize(("durable", "last", "wrong"), [(5, 5, 0), (4, 5, 0), (6, 5, 1)])
def test_what_is_cut_off_is_not_durable(durable: int, last: int, wrong: int) -> None:
    found, mine = list[str](), journal(durable, last)
    look_at_cuts(HOST, mine, lambda _: True, lambda invariant, _: found.append(invariant))
    mine.deleteEntriesFrom(4)
    assert found == ["DurableTrue"] * wrong


@pytest.mark.parametrize(("on_disk", "cut", "wrong"), [(True, True, 0), (False, True, 1), (False, False, 0)])
def test_what_took_its_place_is_on_the_disk_when_it_counts(on_disk: bool, cut: bool, wrong: int) -> None:
    found, mine = list[str](), journal(4, 5)
    look_at_cuts(HOST, mine, lambda _: on_disk, lambda invariant, _: found.append(invariant))
    if cut:
        mine.deleteEntriesFrom(4)
    mine.durable_index = 5
    mine.written(None)
    mine.written(None)
    assert found == ["DurableTrue"] * wrong


@pytest.mark.parametrize(
    ("said", "term", "wrong"),
    [
        (None, 3, 0),
        (7, 3, 0),
        (8, 3, 0),
        (6, 3, 1),
        pytest.param(6, 2, 0, id="whom it follows has been replaced since"),
        pytest.param(5, 2, 1, id="in its own term, too"),
    ],
)
def test_what_a_node_goes_by_covers_what_was_committed_when_it_started(said: int | None, term: int, wrong: int) -> None:
    """Simulator, seed 22: a learner that begins anew follows a leader of term 9, while another leads 10."""
    found, engine = list[str](), SimpleNamespace(covering_commit=lambda: said, term=term)
    look_at_covering(HOST, engine, [0, 0, 1, 1, 1, 2, 2, 3], lambda invariant, _: found.append(invariant))
    assert engine.covering_commit() == said
    assert found == ["CoversAll"] * wrong
