"""A batch that was damaged is here again: who stood still for it goes on, and nobody else does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.pipeline.presence import Presence
from logboom.types import PartitionId
from partitions.apply.apply_core import ApplyGroup, Cursor, WorkerState

ONE = PartitionId(1)


@pytest.mark.parametrize(("state", "resumed"), [("damaged", 1), ("paused", 0)])
def test_who_was_paused_meanwhile_stays_so(state: str, resumed: int) -> None:
    """An operator had stopped it, and the copy of another node started it again."""
    calls: list[int] = []
    damage = SimpleNamespace(last_index=3, digest=b"d")
    worker: Any = SimpleNamespace(damage=damage, state=state, idle=False, resume=lambda: calls.append(1))
    pipeline = SimpleNamespace(
        workers={ONE: worker},
        logs={ONE: SimpleNamespace(find=lambda *_: object())},
        _touched=set(),
        _settle_soon=lambda: None,
    )
    Presence.repaired(cast("Presence", pipeline))
    assert (len(calls), worker.damage) == (resumed, None)


def test_of_many_partitions_those_are_looked_at_that_stand_still() -> None:
    """All were, for each batch that came back: ten thousand of each after a power loss are minutes of the loop."""
    shown = {PartitionId(p): "running" for p in range(1000)} | {PartitionId(3): "lost"}
    workers = {p: SimpleNamespace(damage=None, state="running", idle=p != 5) for p in shown}
    pipeline = SimpleNamespace(
        workers=workers,
        watermarks=SimpleNamespace(of=lambda p: SimpleNamespace(state=shown[p])),
        _touched=set(),
        _settle_soon=lambda: None,
    )
    Presence.repaired(cast("Presence", pipeline))
    assert pipeline._touched == {3, 5}


def test_damage_that_a_group_under_way_meets_ends_no_pause() -> None:
    cursor = Cursor(state=WorkerState.PAUSED)
    cursor.failed(None, group=cast("ApplyGroup", None), damaged=True, useless=False)
    assert cursor.state is WorkerState.PAUSED
