"""Requests on their way: who waits for what of a partition, and what a void batch means to those who do."""

from __future__ import annotations

import pytest

from logboom.errors import LogboomError, Outcome, UnknownOutcome
from logboom.types import Level, PartitionLogIndex
from tests.unit.dispatcher.pending_desk import WAITS, A, B, Desk


@pytest.mark.parametrize("wait", WAITS)
def test_more_than_a_commit_is_awaited_until_it_is_there(wait: Level) -> None:
    desk = Desk()
    assert not desk.pending.awaits_more(A)
    desk.submit(wait)
    desk.commit(A, 2, 1)
    assert desk.pending.awaits_more(A) is (wait is not Level.COMMITTED)
    assert desk.pending.awaits_applied(A) is (wait is Level.APPLIED)
    assert not desk.pending.awaits_more(B)
    desk.sync(A, 2)
    assert desk.pending.awaits_more(A) is (wait is Level.APPLIED)
    desk.apply(A, 2)
    assert not desk.pending.awaits_more(A)


@pytest.mark.parametrize(("parts", "outcome"), [((A,), "not_applied"), ((A, B), "unknown")])
def test_who_waits_for_a_batch_that_is_declared_void_is_told_once(parts: tuple[int, ...], outcome: Outcome) -> None:
    desk = Desk()
    places, answers = desk.submit(Level.APPLIED, parts)  # type: ignore[arg-type]
    for at, (partition, last) in enumerate(places, 1):
        desk.commit(partition, last, at)
    said: list[Outcome] = []

    def error(known: Outcome) -> LogboomError:
        said.append(known)
        return UnknownOutcome("void", outcome=known)

    desk.pending.voided(A, PartitionLogIndex(2), error)
    desk.pending.voided(A, PartitionLogIndex(4), error)  # nobody's
    assert said == [outcome]
    assert [getattr(answer, "outcome", None) for answer in answers] == [outcome]
    assert desk.used[0] == 2 * len(parts)  # until it is stepped over
    for partition, last in places:
        desk.apply(partition, last)
    assert desk.used == (0, 0)
    assert len(answers) == 1


def test_only_those_of_a_partition_that_is_gone_are_told() -> None:
    desk = Desk()
    (_, gone), (_, stays) = desk.submit(Level.APPLIED, (A,)), desk.submit(Level.APPLIED, (B,))
    for at, partition in enumerate((A, B), 1):
        desk.commit(partition, 2, at)
    desk.pending.ended(A, lambda: UnknownOutcome("gone"))
    assert (len(gone), stays, len(desk.pending)) == (1, [], 1)
    assert (desk.admission.used(A)[0], desk.admission.used(B)[0]) == (0, 2)
    desk.apply(B, 2)
    assert (len(gone), len(stays), desk.used) == (1, 1, (0, 0))
