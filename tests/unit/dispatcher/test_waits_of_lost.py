"""A barrier at a node that was started again, where a batch is lost: whoever needs only others is not refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.barriers.goals import Want
from dispatcher.pipeline.voiding import Voiding
from logboom.errors import BarrierBlocked
from logboom.types import Level

LOST, OTHER, THIRD = 0, 1, 2


def checked(*partitions: int, in_the_log: bool = True, **how: Any) -> list[int]:
    voiding: Any = object.__new__(Voiding)
    logs = {LOST: SimpleNamespace(hole=object() if in_the_log else None)}
    voiding._pipeline = SimpleNamespace(recovery=SimpleNamespace(of=lambda wanted: LOST not in wanted), logs=logs)
    voiding.hole_of = lambda partition: object() if partition == LOST else None
    want = Want(tuple((p, 5) for p in partitions), **how)  # type: ignore[misc]
    found = voiding.check_blocked(want)
    assert found.needed == want.needed
    return list(found.partitions)


def test_some_of_several() -> None:
    assert checked(LOST, OTHER, need=1) == [OTHER]
    assert checked(LOST, OTHER, THIRD, need=2) == [OTHER, THIRD]


def test_it_need_not_be_applied_to_be_ordered() -> None:
    assert checked(LOST, OTHER, level=Level.ORDERED) == [LOST, OTHER]


def test_where_the_state_alone_lacks_it_the_log_goes_on() -> None:
    """It was refused for good; another node, or this one soon, has what comes behind it."""
    assert checked(LOST, OTHER, level=Level.DURABLE, in_the_log=False) == [LOST, OTHER]
    for how in ({"in_the_log": True, "level": Level.DURABLE}, {"in_the_log": False, "level": Level.APPLIED}):
        with pytest.raises(BarrierBlocked):
            checked(LOST, OTHER, **how)  # type: ignore[arg-type]


def test_nothing_is_lost_of_others() -> None:
    assert checked(OTHER, THIRD) == [OTHER, THIRD]


@pytest.mark.parametrize(("partitions", "need"), [((LOST,), 1), ((LOST, OTHER), -1), ((LOST, OTHER), 2)])
def test_what_is_needed_and_lost(partitions: tuple[int, ...], need: int) -> None:
    with pytest.raises(BarrierBlocked, match="partition 0 is lost") as told:
        checked(*partitions, need=need)
    assert (told.value.behind, told.value.watermarks, told.value.frontiers) == ([LOST], (), {})
