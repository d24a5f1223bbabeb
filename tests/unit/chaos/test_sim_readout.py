"""What readers are given at the end is compared with what there is."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.sim.readout import ReadOut

DUE = [(4, 0, 10), (5, 1, 3), (7, 0, 12)]


def found(got: list[tuple[int, int, int]], *, first: int = 0) -> list[str]:
    stories = list[str]()
    loop: Any = None
    out = ReadOut(
        [],
        loop=loop,
        ends=lambda _: (),
        doomed=set(),
        fail=lambda _, story: stories.append(story),
        stepped_over=lambda *_: 0,
    )
    out._compare("a scan", got, DUE, first)
    return stories


def test_all_of_it_is_right() -> None:
    assert found(DUE) == []


def test_what_was_removed_meanwhile_may_be_missing() -> None:
    assert found(DUE[1:], first=5) == []
    assert found(DUE[2:], first=5) != []


@pytest.mark.parametrize("got", [[], DUE[:2], DUE[1:], [DUE[0], DUE[2]], [*DUE, (9, 0, 13)], DUE[::-1], [*DUE, DUE[2]]])
def test_anything_else_is_not(got: list[tuple[int, int, int]]) -> None:
    assert len(found(got)) == 1
