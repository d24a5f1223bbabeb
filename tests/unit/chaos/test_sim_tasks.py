"""Tasks in the simulator, as those of Spark: what is to become of their batches, and a run in which they write."""

from __future__ import annotations

import random
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.drawing import draw
from chaos.sim.simulation import Simulation
from chaos.sim.stories import Stories
from chaos.sim.tasks import FENCED, GAP, Task, Tasks
from chaos.sim.timeline import Timeline
from partitions.apply.apply_core import AppliedBatch

PRODUCER = b"p" * 16
PARTITION = 0


def batch(at: int, epoch: int, sequence: int, count: int, *, duplicate: int = 0, refused: str | None = None) -> Any:
    rest: dict[str, Any] = {"first_index": 1, "last_index": 1, "nbytes": 1, "results": b"\0", "producer": PRODUCER}
    return AppliedBatch(
        global_index=at,  # type: ignore[arg-type]
        epoch=epoch,
        sequence=sequence,
        record_count=count,
        duplicate=duplicate,
        refused=refused,
        **rest,
    )


def tasks(found: list[str], *, doomed: AbstractSet[int] = frozenset()) -> Tasks:
    nothing: Any = None
    loop: Any = SimpleNamespace(process=lambda _: None)
    made = Tasks(
        draw(1),
        loop=loop,
        network=nothing,
        rng=random.Random(1),
        seen=SimpleNamespace(doomed=doomed),  # type: ignore[arg-type]
        fail=lambda invariant, _: found.append(invariant),
    )
    made._tasks[PRODUCER] = Task(0, PARTITION, PRODUCER)
    return made


def test_what_becomes_of_batches() -> None:
    task = Task(0, PARTITION, PRODUCER)
    rows = [(0, 0, 5), (0, 3, 4), (0, 8, 1), (0, 7, 2), (1, 1, 1), (1, 0, 2), (0, 9, 1), (1, 0, 1), (1, 2, 2)]
    assert [task.due(batch(at, *row)) for at, row in enumerate(rows)] == [
        (None, 0), (None, 2), (GAP, 0), (None, 0), (GAP, 0), (None, 0), (FENCED, 0), (None, 1), (None, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("second", "invariant"),
    [
        (batch(2, 0, 6, 1), "DenseInOrder"),
        (batch(2, 0, 4, 2), "DenseInOrder"),
        (batch(2, 0, 5, 1, refused=GAP), "DenseInOrder"),
        (batch(2, 0, 5, 1, refused=FENCED), "Fenced"),
        (batch(1, 0, 0, 5, duplicate=1), "I5"),
    ],
    ids=["a gap", "twice", "none", "nobody is newer", "elsewhere it was another"],
)
def test_a_wrong_turn_is_found(second: AppliedBatch, invariant: str) -> None:
    found = list[str]()
    mine = tasks(found)
    mine.applied("n1", batch(1, 0, 0, 5), PARTITION)
    assert found == []
    mine.applied("n2", second, PARTITION)
    assert found == [invariant]


def test_what_an_older_epoch_does_after_a_newer_one_is_found() -> None:
    found = list[str]()
    mine = tasks(found)
    mine.applied("n1", batch(1, 1, 0, 2), PARTITION)
    mine.applied("n1", batch(2, 0, 0, 2), PARTITION)
    assert found == ["Fenced"]


def test_what_is_gone_is_not_looked_at() -> None:
    found = list[str]()
    tasks(found, doomed=frozenset((PARTITION,))).applied("n1", batch(1, 0, 3, 2), PARTITION)
    assert found == []


def test_tasks_write_in_a_run() -> None:
    parameters = draw(3, seconds=8.0)
    simulation = Simulation(replace(parameters, stories=Stories(writes_tasks=True)), timeline=Timeline())
    outcome = simulation.play()
    assert outcome.failure is None
    rows = [row for task in simulation.tasks._tasks.values() for epoch in task.epochs for row in epoch]
    assert simulation.tasks.attempts
    assert {row.outcome for row in rows} == {"ok"}


def test_what_was_applied_counts_though_the_partition_was_to_go_meanwhile() -> None:
    """It was the last one, and stays."""
    found, doomed = list[str](), set[int]()
    looked = tasks(found, doomed=doomed)
    looked.applied("n1", batch(1, 0, 0, 1), PARTITION)
    doomed.add(PARTITION)
    looked.applied("n1", batch(2, 0, 1, 1), PARTITION)
    doomed.clear()
    looked.applied("n1", batch(3, 0, 2, 1), PARTITION)
    looked.applied("n2", batch(2, 0, 1, 1), PARTITION)
    assert found == []
    looked.applied("n1", batch(4, 0, 9, 1), PARTITION)
    assert found == ["DenseInOrder"]
