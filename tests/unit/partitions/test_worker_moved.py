"""What has raised in ``apply`` and has moved all the same is given nothing any more."""

from __future__ import annotations

import asyncio

import pytest

from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.machines.guarded import guard
from tests.unit.partitions.worker_world import HeldOffload, Untold, failures, inline, turn, world


@pytest.mark.parametrize("where", ["on a thread", "on the loop"])
def test_what_has_taken_effect_though_the_machine_raised_is_not_tried_again(where: str) -> None:
    """A counter counted twice, on this node alone."""
    with world() if where == "on a thread" else inline() as w:
        w.machine.fails_late, w.machine.failures = True, failures(1)

        async def story() -> None:
            w.commit(1)
            w.notify()
            await asyncio.sleep(1000)
            w.notify()
            await asyncio.sleep(1000)

        w.run(story)
        assert w.machine.applied == [1]
        assert (w.states, w.worker.state, w.worker.damage) == (["damaged"], "damaged", None)
        assert "injected 0" in w.worker.last_error
        assert "is at 2 all the same, not at 0" in w.worker.last_error


def test_so_it_is_where_nobody_can_say_what_it_raised() -> None:
    """Who was to say it failed himself, and the same was given to it again."""
    with world() as w:
        w.machine.fails_late, w.machine.failures = True, [ValueError(Untold()) for _ in range(9)]
        w.worker.machine = guard("mine", w.machine)  # type: ignore[arg-type]

        async def story() -> None:
            w.commit(1)
            w.notify()
            await asyncio.sleep(1000)

        w.run(story)
        assert (w.machine.applied, w.worker.state, w.worker.damage) == ([1], "damaged", None)
        assert "raised ValueError" in w.worker.last_error


def test_nor_once_somebody_resumes_it_who_had_paused_it_meanwhile() -> None:
    with world(HeldOffload) as w:
        w.machine.fails_late, w.machine.failures = True, failures(1)

        async def story() -> None:
            w.commit(1)
            w.notify()
            w.worker.pause()
            w.finish()
            await turn()
            assert w.worker.state == "damaged"

        w.run(story)
        assert w.machine.applied == [1]


def test_of_one_that_does_not_say_where_it_is_the_first_error_is_told() -> None:
    with world(retry_attempts_max=1) as w:
        w.machine.failures = failures(1)
        w.machine.position = lambda: 1 // 0  # type: ignore[method-assign, assignment, return-value]

        async def story() -> None:
            w.commit(1)
            w.notify()
            await asyncio.sleep(1)

        w.run(story)
        assert w.worker.state == "paused"
        assert "injected 0" in w.worker.last_error


@pytest.mark.parametrize(("where", "void"), [("on a thread", False), ("on a thread", True), ("on the loop", False)])
def test_one_that_begins_in_the_midst_of_a_batch_is_damaged_and_its_node_goes_on(where: str, *, void: bool) -> None:
    """Which ended, at that start and each one after it: "applying 1 after 5"."""
    at = Position(PartitionLogIndex(5), GlobalLogIndex(10))
    with world(position=at) if where == "on a thread" else inline(position=at) as w:

        async def story() -> None:
            w.commit(1, records=10)
            if void:
                w.log.void(w.batches[0].last_index, w.batches[0].digest)
            w.notify()
            await asyncio.sleep(1000)

        w.run(story)
        assert w.fatal == []
        assert w.machine.applied == []
        assert (w.states, w.worker.state, w.worker.damage) == (["damaged"], "damaged", None)
        assert "is at 5, which no batch ends at" in w.worker.last_error


def test_nor_is_what_a_worker_has_come_to_itself_anybody_elses_fault() -> None:
    with world() as w:

        async def story() -> None:
            w.commit(1, records=10)
            w.worker._cursor.applied = Position(PartitionLogIndex(5), GlobalLogIndex(5))
            w.notify()
            await asyncio.sleep(1000)

        w.run(story)
        assert ["I5: applying 1 after 5" in str(error) for error in w.fatal] == [True]
