"""Requests on their way: each is answered once, at its level; budgets come back when a part is applied or lost."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.pipeline.pending import PendingRequest
from dispatcher.requests.requests import SubmitReply
from logboom.errors import (
    DeadlineExceeded,
    LogboomError,
    OutOfSequence,
    ProducerFenced,
    QuotaExceeded,
    UnknownOutcome,
)
from logboom.types import Level, PartitionId
from ports.invariant import InvariantViolated
from tests.unit.dispatcher.pending_desk import PARTITIONS, RECORDS, WAITS, A, Answer, B, Desk


def alive() -> int:
    return sum(isinstance(each, PendingRequest) for each in gc.get_objects())


class TestLevels:
    @pytest.mark.parametrize("wait", WAITS)
    def test_a_request_is_answered_at_the_level_that_it_waits_for(self, wait: Level) -> None:
        desk = Desk()
        _, answers = desk.submit(wait)
        counts = [len(answers)]
        desk.commit(A, 2, 7)
        counts.append(len(answers))
        desk.sync(A, 2)
        counts.append(len(answers))
        desk.apply(A, 2)
        counts.append(len(answers))
        assert counts == [0, *(int(WAITS.index(wait) <= k) for k in range(3))]

    def test_the_answer_says_where_it_landed_and_what_it_did(self) -> None:
        desk = Desk()
        _, answers = desk.submit(Level.APPLIED)
        desk.commit(A, 2, 7)
        desk.apply(A, 2, duplicate=1, results=b"\x01\x02")
        assert answers == [SubmitReply(((A, 1, 2, 7, 1, b"\x01\x02"),), 7)]  # type: ignore[arg-type]

    def test_below_applied_there_are_no_results(self) -> None:
        desk = Desk()
        _, answers = desk.submit(Level.COMMITTED)
        desk.commit(A, 2, 7)
        assert answers == [SubmitReply(((A, 1, 2, 7, 0, None),), 7)]  # type: ignore[arg-type]

    def test_nor_are_there_of_what_is_applied_before_the_rest_is_durable(self) -> None:
        """One part had results and the other had none, by the order in which two partitions were looked at."""
        desk = Desk()
        _, answers = desk.submit(Level.DURABLE, [A, B])
        for p in (A, B):
            desk.commit(p, 2, 7)
        desk.sync(A, 2)
        desk.apply(A, 2, duplicate=1, results=b"\x01\x02")
        assert answers == []
        desk.sync(B, 2)
        assert answers == [SubmitReply(((A, 1, 2, 7, 1, None), (B, 1, 2, 7, 0, None)), 7)]  # type: ignore[arg-type]

    @pytest.mark.parametrize("wait", WAITS)
    def test_the_last_part_answers_for_all(self, wait: Level) -> None:
        desk = Desk()
        _, answers = desk.submit(wait, [A, B])
        for number, p in enumerate((B, A)):
            assert answers == []
            desk.commit(p, 2, 8 + number)
            desk.sync(p, 2)
            desk.apply(p, 2)
        (reply,) = answers
        assert isinstance(reply, SubmitReply)
        assert [part[0] for part in reply.parts] == [A, B]
        assert reply.commit_index == 9

    def test_durable_answers_those_below_the_mark_and_no_others(self) -> None:
        desk = Desk()
        told = [desk.submit(Level.DURABLE)[1] for _ in range(3)]
        for number in range(3):
            desk.commit(A, 2 * number + 2, number + 1)
        desk.sync(B, 100)
        desk.sync(A, 5)
        assert [len(answers) for answers in told] == [1, 1, 0]
        desk.sync(A, 5)
        desk.sync(A, 6)
        assert [len(answers) for answers in told] == [1, 1, 1]

    def test_what_is_synced_is_not_durable_before_it_is_committed(self) -> None:
        desk = Desk()
        _, answers = desk.submit(Level.DURABLE)
        desk.sync(A, 2)
        assert answers == []
        desk.commit(A, 2, 1)
        desk.sync(A, 2)
        assert len(answers) == 1

    def test_batches_of_other_nodes_are_passed_over(self) -> None:
        desk = Desk()
        _, answers = desk.submit(Level.APPLIED)
        assert desk.commit(A, 1, 1) is None
        assert desk.commit(B, 2, 1) is None
        desk.apply(B, 2)
        assert answers == []
        assert desk.commit(A, 2, 2) == 2
        assert len(desk.pending) == 1

    def test_two_requests_for_one_place_stop_the_node(self) -> None:
        desk = Desk()
        desk.submit(Level.APPLIED)
        desk.tail[A] = 0
        with pytest.raises(InvariantViolated, match="0/2"):
            desk.submit(Level.APPLIED)


class TestBudget:
    @pytest.mark.parametrize("wait", WAITS)
    def test_it_comes_back_when_a_part_is_applied_and_not_when_it_is_answered(self, wait: Level) -> None:
        desk = Desk()
        desk.submit(wait, [A, B])
        for p in PARTITIONS:
            desk.commit(p, 2, 1 + p)
            desk.sync(p, 2)
        assert desk.used == (4, 2 * RECORDS.nbytes)
        desk.apply(A, 2)
        assert desk.used == (2, RECORDS.nbytes)
        desk.apply(B, 2)
        assert desk.used == (0, 0)
        assert len(desk.pending) == 0

    def test_a_batch_that_is_applied_again_gives_nothing_back_again(self) -> None:
        desk = Desk()
        desk.submit(Level.APPLIED)
        desk.submit(Level.APPLIED)
        desk.commit(A, 2, 1)
        desk.apply(A, 2)
        desk.apply(A, 2)
        assert desk.used == (2, RECORDS.nbytes)


class TestRefusedAtApply:
    @pytest.mark.parametrize("kind", [OutOfSequence, ProducerFenced, QuotaExceeded])
    def test_the_client_gets_the_typed_error_of_the_code(self, kind: type[LogboomError]) -> None:
        desk = Desk()
        _, answers = desk.submit(Level.APPLIED)
        desk.commit(A, 2, 1)
        desk.apply(A, 2, refused=kind.code)
        (error,) = answers
        assert type(error) is kind
        assert (error.partition_id, error.got, error.outcome) == (A, 42, "not_applied")
        assert "partition 0" in error.message
        assert "42" in error.message
        assert desk.used == (0, 0)

    def test_with_other_parts_nobody_can_say_that_nothing_was_applied(self) -> None:
        desk = Desk()
        _, answers = desk.submit(Level.APPLIED, [A, B])
        for p in PARTITIONS:
            desk.commit(p, 2, 1 + p)
        desk.apply(B, 2, refused="out_of_sequence")
        desk.apply(A, 2)
        (error,) = answers
        assert isinstance(error, OutOfSequence)
        assert (error.partition_id, error.outcome) == (B, "unknown")
        assert desk.used == (0, 0)

    def test_who_was_answered_earlier_hears_nothing_of_it(self) -> None:
        desk = Desk()
        _, answers = desk.submit(Level.COMMITTED)
        desk.commit(A, 2, 1)
        desk.apply(A, 2, refused="out_of_sequence")
        assert len(answers) == 1
        assert isinstance(answers[0], SubmitReply)
        assert desk.used == (0, 0)


class TestLost:
    def test_the_uncommitted_are_told_that_nobody_knows(self) -> None:
        desk = Desk()
        _, answers = desk.submit(Level.COMMITTED, [A, B])
        assert desk.pending.uncommitted == 1
        desk.pending.lost()
        (error,) = answers
        assert isinstance(error, UnknownOutcome)
        assert (error.outcome, error.retryable) == ("unknown", True)
        assert desk.used == (0, 0)
        assert (len(desk.pending), desk.pending.uncommitted) == (0, 0)

    def test_what_is_committed_stays_and_is_answered(self) -> None:
        desk = Desk()
        _, first = desk.submit(Level.APPLIED)
        _, second = desk.submit(Level.APPLIED)
        desk.commit(A, 2, 1)
        desk.pending.lost()
        assert first == []
        assert isinstance(second[0], UnknownOutcome)
        desk.apply(A, 2)
        assert isinstance(first[0], SubmitReply)
        assert desk.used == (0, 0)

    def test_what_the_next_leader_makes_of_it_concerns_nobody_here(self) -> None:
        desk = Desk()
        _, answers = desk.submit(Level.APPLIED)
        desk.pending.lost()
        assert desk.commit(A, 2, 1) is None
        desk.apply(A, 2)
        desk.pending.expire(1000.0)
        assert len(answers) == 1

    def test_losing_twice_is_losing_once(self) -> None:
        desk = Desk()
        _, answers = desk.submit(Level.APPLIED)
        desk.pending.lost()
        desk.pending.lost()
        assert len(answers) == 1

    def test_its_place_in_the_log_can_be_taken_by_another(self) -> None:
        desk = Desk()
        desk.submit(Level.APPLIED)
        desk.pending.lost()
        desk.tail[A] = 0
        _, answers = desk.submit(Level.APPLIED)
        desk.commit(A, 2, 1)
        desk.apply(A, 2)
        assert isinstance(answers[0], SubmitReply)


class TestDeadlines:
    def test_too_late_is_told_once_and_the_budget_stays_taken(self) -> None:
        desk = Desk()
        _, answers = desk.submit(Level.APPLIED, deadline=10.0)
        desk.pending.expire(9.999)
        assert answers == []
        desk.pending.expire(10.0)
        (error,) = answers
        assert isinstance(error, DeadlineExceeded)
        assert error.outcome == "unknown"
        assert desk.used == (2, RECORDS.nbytes)
        desk.commit(A, 2, 1)
        desk.apply(A, 2)
        assert len(answers) == 1
        assert desk.used == (0, 0)

    def test_the_earliest_goes_first_whatever_the_order_of_asking(self) -> None:
        desk = Desk()
        told = {deadline: desk.submit(Level.APPLIED, deadline=deadline)[1] for deadline in (30.0, 10.0, 20.0)}
        desk.pending.expire(20.0)
        assert [deadline for deadline, answers in sorted(told.items()) if answers] == [10.0, 20.0]

    def test_who_was_answered_has_no_deadline(self) -> None:
        desk = Desk()
        _, answers = desk.submit(Level.COMMITTED, deadline=10.0)
        desk.commit(A, 2, 1)
        desk.pending.expire(10.0)
        assert len(answers) == 1

    def test_what_is_answered_and_applied_does_not_stay_in_memory(self) -> None:
        gc.collect()
        desk, before = Desk(), alive()
        for number in range(1, 1001):
            _, answers = desk.submit(Level.APPLIED, deadline=600.0)
            desk.commit(A, 2 * number, number)
            desk.apply(A, 2 * number)
            assert len(answers) == 1
            desk.pending.expire(1.0)
        gc.collect()
        assert alive() - before < 500

    @pytest.mark.parametrize("wait", WAITS)
    @pytest.mark.parametrize("ends", ["applied", "lost", "gone", "late"])
    def test_nothing_is_left_for_the_collector(self, wait: Level, ends: str) -> None:
        gc.disable()
        desk, before = Desk(), alive()
        try:
            (first, second), answers = desk.submit(wait, (A, B), deadline=10.0)
            if ends == "lost":
                desk.pending.lost()
            else:
                desk.commit(*first, 1)
                desk.commit(*second, 2)
                if ends == "late":
                    desk.pending.expire(10.0)
                if ends == "gone":
                    desk.pending.ended(A, lambda: UnknownOutcome("gone"))
                desk.apply(*first)  # nothing is left of it if it is gone
                desk.apply(*second)
                desk.sync(*first)
                desk.sync(*second)
            assert len(answers) == 1
            desk.pending.expire(10.0)
            assert alive() == before
        finally:
            gc.enable()


class TestUrgency:
    def test_only_those_who_wait_for_effects_make_applying_urgent(self) -> None:
        desk = Desk()
        desk.submit(Level.COMMITTED, [A])
        desk.submit(Level.DURABLE, [A])
        assert not desk.pending.awaits_applied(A)
        desk.submit(Level.APPLIED, [A])
        assert desk.pending.awaits_applied(A)
        assert not desk.pending.awaits_applied(B)

    @pytest.mark.parametrize("lost", [False, True])
    def test_it_is_over_when_all_are_applied_or_lost(self, lost: bool) -> None:
        desk = Desk()
        for last in (2, 4):
            desk.submit(Level.APPLIED, [A])
            assert desk.pending.awaits_applied(A)
            if not lost:
                desk.commit(A, last, last)
        if lost:
            desk.pending.lost()
        else:
            desk.apply(A, 2)
            assert desk.pending.awaits_applied(A)
            desk.apply(A, 4)
        assert not desk.pending.awaits_applied(A)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"),
            st.sampled_from(WAITS),
            st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=2, unique=True),
            st.integers(1, 20),
        ),
        st.tuples(st.sampled_from(["commit", "lost"])),
        st.tuples(st.sampled_from(["sync", "apply", "refuse"]), st.sampled_from(PARTITIONS)),
        st.tuples(st.just("time"), st.integers(0, 5)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_whatever_happens_each_is_answered_once_and_every_budget_comes_back(steps: list[Any]) -> None:
    """Units commit in the order of submitting; a partition applies in its order what is committed."""
    desk, now, at = Desk(), 0, 0
    proposed: list[list[tuple[PartitionId, int]]] = []
    unapplied: dict[PartitionId, list[int]] = {p: [] for p in PARTITIONS}
    committed = dict.fromkeys(PARTITIONS, 0)
    told: list[list[Answer]] = []

    def commit_one() -> None:
        nonlocal at
        for p, last in proposed.pop(0):
            at += 1
            assert desk.commit(p, last, at) == at
            unapplied[p].append(last)
            committed[p] = last

    def apply_one(p: PartitionId, refused: str | None = None) -> None:
        desk.sync(p, unapplied[p][0])
        desk.apply(p, unapplied[p].pop(0), refused=refused)

    for step in steps:
        kind = step[0]
        if kind == "submit":
            places, answers = desk.submit(step[1], step[2], deadline=now + step[3])
            proposed.append(places)
            told.append(answers)
        elif kind == "commit" and proposed:
            commit_one()
        elif kind == "lost":
            desk.pending.lost()
            proposed.clear()
            desk.tail.update(committed)
        elif kind == "sync":
            desk.sync(step[1], committed[step[1]])
        elif kind in ("apply", "refuse") and unapplied[step[1]]:
            apply_one(step[1], "out_of_sequence" if kind == "refuse" else None)
        elif kind == "time":
            now += step[1]
            desk.pending.expire(now)
        out = sum(map(len, proposed)) + sum(map(len, unapplied.values()))
        assert len(desk.pending) == out
        assert desk.used == (2 * out, RECORDS.nbytes * out)
        assert desk.pending.uncommitted == len(proposed)
        assert all(len(answers) <= 1 for answers in told)
    while proposed:
        commit_one()
    for p in PARTITIONS:
        while unapplied[p]:
            apply_one(p)
    assert [len(answers) for answers in told] == [1] * len(told)
    assert desk.used == (0, 0)
    assert not any(desk.pending.awaits_applied(p) for p in PARTITIONS)
