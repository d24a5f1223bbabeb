"""A leader finds that the last batch of a partition is damaged, and somebody writes to that partition at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.sim.drawing import draw
from chaos.sim.leftovers import leftovers_unseen
from chaos.sim.simulation import Simulation
from chaos.sim.timeline import Timeline
from dispatcher.requests.requests import SubmitPart, SubmitReply, SubmitRequest
from logboom.errors import NotLeader, Unavailable, UnknownOutcome
from logboom.records import RecordBlock
from logboom.types import Level, Record
from partitions.log.reading import DamagedBatch
from raftlog.entries.entry import Route
from raftlog.links.payloads import DamagedPayload

SEEDS = [1, 3, 5, 6, 7]


@pytest.mark.parametrize("seed", SEEDS)
def test_it_admits_nothing_that_would_have_to_follow_that_batch(seed: int) -> None:
    """It took the budget, could not append, and kept it (I10)."""
    print("seed", seed)
    with leftovers_unseen():
        answers, used, _ = _play(seed, found_first=True)
    assert [type(answer) for answer in answers] == [Unavailable]
    assert used[0] == used[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_admitted_just_before_waits_until_it_is_back_or_others_lead(seed: int) -> None:
    """The node ended: what it had gathered within this turn was to follow a batch that it had not any more."""
    print("seed", seed)
    with leftovers_unseen():
        answers, _, left = _play(seed, found_first=False)
    (answer,) = answers
    assert isinstance(answer, SubmitReply | NotLeader | UnknownOutcome)
    assert not left


def _play(seed: int, *, found_first: bool) -> tuple[list[Any], list[tuple[Any, ...]], list[Any]]:
    """The answers, what admission has given away before and after, and what is still gathered in the end."""
    drawn = draw(seed, seconds=6.0)
    drawn = replace(drawn, faults=(), stories=replace(drawn.stories, restores=False))
    simulation = Simulation(drawn, timeline=Timeline())
    answers: list[Any] = []
    seen: list[tuple[Any, ...]] = []
    leading: list[Any] = []

    def strike() -> None:
        backend: Any = leader().node.pipeline
        quiet = [
            (p, t)
            for p, t in backend.tails.items()
            if t.last_index == backend.logs[p].durable_index and backend.workers[p].machine.needs_records
        ]  # to `kv` what is written there is no command
        if not quiet:
            simulation.loop.call_later(0.01, strike)
            return
        partition, tail = quiet[0]
        seen.append((backend.admission.used(), backend.admission.admitted))
        part = SubmitPart(partition, 0, 0, RecordBlock.from_records([Record(b"x")]))
        deadline = backend.clock.monotonic() + 1.0
        request = SubmitRequest(b"p" * 16, 0, False, Level.COMMITTED, deadline, (part,), 1)
        steps = [
            lambda: backend.raft.damaged(DamagedPayload("rotten", Route(partition, 0, tail.last_index, tail.digest))),
            lambda: backend.submit(request, answers.append),
        ]
        for step in steps if found_first else reversed(steps):
            step()
        leading.append(backend)
        seen.append((backend.admission.used(), backend.admission.admitted))

    def leader() -> Any:
        return next(h for h in simulation.hosts if h.node is not None and h.node.pipeline.raft.admits)

    simulation.loop.run_as(None, lambda: simulation.loop.run_as(leader().process, strike), delay=4.0)
    outcome = simulation.play()
    assert outcome.failure is None
    return answers, seen, leading[0].submitting.proposing._gathered


@pytest.mark.parametrize("seed", SEEDS)
def test_whose_read_fails_once_somebody_else_has_had_it_mended_reads_again(seed: int) -> None:
    """Found by reading: the leader gave way and fetched a batch that it had; and who had read it stood still."""
    print("seed", seed)
    drawn = draw(seed, seconds=6.0)
    simulation = Simulation(
        replace(drawn, faults=(), stories=replace(drawn.stories, restores=False)), timeline=Timeline()
    )
    seen: list[Any] = []

    def strike() -> None:
        backend: Any = leader().node.pipeline
        quiet = [
            (p, t)
            for p, t in backend.tails.items()
            if t.last_index == backend.workers[p].applied_index == backend.logs[p].durable_index > 0
        ]
        if not quiet:
            simulation.loop.call_later(0.01, strike)
            return
        partition, tail = quiet[0]
        worker = backend.workers[partition]
        elsewhere = 1 + max(backend.logs[partition]._names)
        late = DamagedBatch(
            "rotten", last_index=tail.last_index, digest=tail.digest, segment=elsewhere, path="", offset=0
        )
        worker._failed(late)
        seen.append((backend.raft.engine.may_lead, backend.logs[partition].is_lost(tail.last_index, tail.digest)))
        simulation.loop.call_later(0.1, lambda: seen.append((worker.state, worker.damage)))

    def leader() -> Any:
        return next(h for h in simulation.hosts if h.node is not None and h.node.pipeline.raft.admits)

    simulation.loop.run_as(None, lambda: simulation.loop.run_as(leader().process, strike), delay=4.0)
    with leftovers_unseen():
        outcome = simulation.play()
    assert outcome.failure is None
    assert seen == [(True, False), ("running", None)]
