"""When all is quiet, who takes no snapshot any more, or never removes anything, is found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.quiet import Quiet

FIRST = {"global_index": 9, "raft_index": 5}


def host(*, newest: int | None = 9, base: int = 5, under_way: Any = None, held: Any = ()) -> Any:
    """A node with a set, whose journal begins somewhere."""
    there = None if newest is None else SimpleNamespace(global_index=newest)
    snapshots = SimpleNamespace(
        taking=SimpleNamespace(progress=lambda: under_way),
        store=SimpleNamespace(newest=there),
        compaction=SimpleNamespace(_held_back=lambda: held),
    )
    journal = SimpleNamespace(base=SimpleNamespace(index=base))
    pipeline = SimpleNamespace(snapshots=snapshots, raft=SimpleNamespace(journal=journal))
    return SimpleNamespace(name="n1", node=SimpleNamespace(pipeline=pipeline))


def lacks(which: Any, first: dict[str, int] = FIRST) -> str:
    nothing: Any = None
    quiet = Quiet([which], all_there=True, loop=nothing, seen=nothing, within=nothing)
    quiet._first = first
    return quiet._not_snapshotted(which)


def test_who_has_a_set_and_begins_there_is_as_he_should_be() -> None:
    assert lacks(host()) == lacks(host(newest=12, base=8)) == ""
    assert lacks(host(base=4, held={3})) == "", "somebody fetches the set before"


@pytest.mark.parametrize(
    ("which", "why"),
    [
        (host(newest=None), "has None"),
        (host(newest=8), "has 8"),
        (host(under_way="a set"), "has not come to an end"),
        (host(base=4), "begins at 4"),
        (SimpleNamespace(name="n1", node=None), "is down"),
    ],
    ids=["none", "an older one", "under way", "not compacted", "down"],
)
def test_who_lacks_something_is_told_of(which: Any, why: str) -> None:
    assert why in lacks(which)


def test_nobody_has_anything_before_a_set_was_asked_for() -> None:
    assert lacks(host(), {}) != ""
