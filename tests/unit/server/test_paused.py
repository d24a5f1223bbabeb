"""Who waits until a partition has applied something is told when it is paused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from logboom import Add
from logboom.errors import LogboomError, PartitionPaused
from logboom.types import PartitionId
from tests.unit.server.watched import watched

P = PartitionId(0)


def raises(*_: object) -> None:
    raise RuntimeError("a user's machine")


@pytest.mark.parametrize("by", ["an operator", "failures"])
async def test_what_is_ordered_and_not_applied_is_told_and_takes_effect_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """It was answered at its deadline: nobody knew what had become of it, nor why."""
    async with watched(tmp_path, apply__retry_attempts_max=1) as it:
        pipeline = it.node.pipeline
        worker: Any = pipeline.workers[P]
        with monkeypatch.context() as held:
            if by == "an operator":
                held.setattr(worker, "_start", lambda: None)
            else:
                held.setattr(worker.machine, "apply", raises)
            asked = asyncio.create_task(it.boom.submit(P, Add(b"n", 1), wait="applied"))
            other = asyncio.create_task(it.boom.submit(1, [Add(b"n", 1)], wait="applied"))
            if by == "an operator":
                async with asyncio.timeout(20):
                    while not pipeline.pending.awaits_applied(P):  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.001)
                assert await it.boom.admin("pause", 0, node="n1") == "paused"
            with pytest.raises(PartitionPaused) as told:
                await asked
            assert (told.value.partition_id, told.value.outcome) == (P, "unknown")
            await other
        assert await it.boom.admin("resume", 0, node="n1") == "running"
        await it.boom.submit(P, [Add(b"n", 1)], wait="applied")
        assert await it.boom.get(P, b"n") == (2,)
        assert pipeline.admission.used() == (0, 0)


async def test_a_node_that_stops_is_not_said_to_have_paused_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is closed is in the same state, and another node may go on."""
    async with watched(tmp_path) as it:
        pipeline = it.node.pipeline
        worker: Any = pipeline.workers[P]
        monkeypatch.setattr(worker, "_start", lambda: None)
        asked = asyncio.create_task(it.boom.submit(P, [Add(b"n", 1)], wait="applied", timeout=0.5))
        async with asyncio.timeout(20):
            while not pipeline.pending.awaits_applied(P):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
        await worker.close()
        pipeline.look_again(P)
        assert worker.state == "paused"
        assert not worker.is_paused
        with pytest.raises(LogboomError) as told:
            await asked
        assert not isinstance(told.value, PartitionPaused)
