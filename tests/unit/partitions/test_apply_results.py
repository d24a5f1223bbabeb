"""What a state machine says of what it applied: a status for each record, or one for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from logboom.state_machine import ApplyBatch, Results, Sealed
from tests.unit.partitions.worker_world import world


@pytest.mark.parametrize(
    "gives",
    [
        lambda batches: [],
        lambda batches: [b"\0"] * (len(batches) + 1),
        lambda batches: [bytes(each.count + 1) for each in batches],
        lambda batches: [b"" for _ in batches],
        lambda batches: [[0] for _ in batches],
    ],
)
def test_others_are_an_error_of_the_machine_and_nothing_is_remembered_of_them(gives: Callable[..., Any]) -> None:
    """They were, and at the next start no node took its own producers for sound."""
    with world() as w:

        def apply(batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
            results: Results = gives(batches)
            seal(results)
            return results

        async def story() -> None:
            w.machine.apply = apply  # type: ignore[method-assign]
            w.commit(3)
            w.notify()
            await asyncio.sleep(60)
            assert w.worker.applied_index == 0
            assert w.worker.state == "paused"
            assert "state machine gave" in w.worker.last_error
            assert not w.worker.dedupe.changes()

        w.run(story)
