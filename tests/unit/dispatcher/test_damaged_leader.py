"""A leader finds that the last batch of a partition is damaged, and somebody writes to that partition at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.sim.drawing import draw
from chaos.sim.leftovers import leftovers_unseen
from chaos.sim.simulation import Simulation
from chaos.sim.timeline import Timeline
from dispatcher.requests.requests import SubmitPart, SubmitRequest
from logboom.errors import Unavailable
from logboom.records import RecordBlock
from logboom.types import Level, Record
from raftlog.entries.entry import Route


@pytest.mark.parametrize("seed", [1, 3, 5, 6, 7])
def test_it_admits_nothing_that_would_have_to_follow_that_batch(seed: int) -> None:
    """It took the budget, could not append, and kept it (I10)."""
    print("seed", seed)
    with leftovers_unseen():
        _play(seed)


def _play(seed: int) -> None:
    drawn = draw(seed, seconds=6.0)
    drawn = replace(drawn, faults=(), stories=replace(drawn.stories, restores=False))
    simulation = Simulation(drawn, timeline=Timeline())
    answers: list[Any] = []
    seen: list[tuple[Any, ...]] = []

    def strike() -> None:
        backend: Any = leader().node.pipeline
        quiet = [(p, t) for p, t in backend.tails.items() if t.last_index == backend.logs[p].durable_index]
        if not quiet:
            simulation.loop.call_later(0.01, strike)
            return
        partition, tail = quiet[0]
        seen.append((backend.admission.used(), backend.admission.admitted))
        backend.raft.damaged(Route(partition, 0, tail.last_index, tail.digest))
        part = SubmitPart(partition, 0, 0, RecordBlock.from_records([Record(b"x")]))
        deadline = backend.clock.monotonic() + 1.0
        backend.submit(SubmitRequest(b"p" * 16, 0, False, Level.COMMITTED, deadline, (part,), 1), answers.append)
        seen.append((backend.admission.used(), backend.admission.admitted))

    def leader() -> Any:
        return next(h for h in simulation.hosts if h.node is not None and h.node.pipeline.raft.admits)

    simulation.loop.run_as(None, lambda: simulation.loop.run_as(leader().process, strike), delay=4.0)
    outcome = simulation.play()
    assert outcome.failure is None
    assert [type(answer) for answer in answers] == [Unavailable]
    assert seen[0] == seen[1]
