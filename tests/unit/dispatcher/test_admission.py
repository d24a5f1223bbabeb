"""Admission: one step over every gate; what is taken comes back, what is refused takes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.admission.admission import Admission, Ticket
from dispatcher.admission.budgets import Taken
from logboom.errors import Overloaded, PartitionFrozen, RecordTooLarge
from logboom.settings import AdmissionSettings
from logboom.types import PartitionId
from ports.invariant import InvariantViolated

A, B, C = PARTITIONS = tuple(PartitionId(p) for p in range(3))
LIMITS = AdmissionSettings(
    partition_ops=10,
    partition_bytes=100,
    node_ops=20,
    node_bytes=200,
    retry_after_ms=70,
    fair_share_percent=100,
)

Parts = list[tuple[PartitionId, int, int]]


def gates() -> Admission:
    return Admission(LIMITS, PARTITIONS)


def every_use(admission: Admission) -> list[tuple[int, int]]:
    return [admission.used(), *(admission.used(p) for p in PARTITIONS)]


class TestTaking:
    def test_what_is_admitted_is_in_use_until_it_is_released(self) -> None:
        admission = gates()
        ticket = admission.admit([(A, 3, 30), (B, 2, 20)], 0.0)
        assert every_use(admission) == [(5, 50), (3, 30), (2, 20), (0, 0)]
        ticket.release(A)
        assert every_use(admission) == [(2, 20), (0, 0), (2, 20), (0, 0)]
        ticket.release(B)
        assert every_use(admission) == [(0, 0)] * 4

    def test_the_last_place_is_given_away_and_none_after_it(self) -> None:
        admission = gates()
        admission.admit([(A, 10, 100)], 0.0)
        assert admission.used(A) == (10, 100)
        with pytest.raises(Overloaded):
            admission.admit([(A, 1, 0)], 0.0)
        with pytest.raises(Overloaded):
            admission.admit([(A, 0, 1)], 0.0)

    def test_a_full_partition_leaves_the_others_open(self) -> None:
        admission = gates()
        admission.admit([(A, 10, 10)], 0.0)
        admission.admit([(B, 10, 10)], 0.0)
        assert admission.used(B) == (10, 10)

    def test_room_that_comes_back_can_be_taken_again(self) -> None:
        admission = gates()
        ticket = admission.admit([(A, 10, 100)], 0.0)
        ticket.release(A)
        admission.admit([(A, 10, 100)], 0.0)
        assert admission.used() == (10, 100)

    def test_admitted_and_refused_are_counted(self) -> None:
        admission = gates()
        admission.admit([(A, 10, 1)], 0.0)
        for _ in range(3):
            with pytest.raises(Overloaded):
                admission.admit([(A, 1, 1)], 0.0)
        assert (admission.admitted, admission.refused) == (1, 3)


class TestGivingBack:
    def test_a_part_given_back_twice_stops_the_node_and_frees_nothing(self) -> None:
        admission = gates()
        first = admission.admit([(A, 1, 10)], 0.0)
        admission.admit([(A, 1, 10)], 0.0)
        first.release(A)
        with pytest.raises(InvariantViolated, match="partition 0 given back twice"):
            first.release(A)
        assert admission.used(A) == (1, 10)

    def test_a_part_that_was_never_taken_stops_the_node(self) -> None:
        admission = gates()
        ticket = admission.admit([(A, 1, 10)], 0.0)
        with pytest.raises(InvariantViolated, match="partition 1"):
            ticket.release(B)

    def test_more_than_was_taken_stops_the_node(self) -> None:
        admission = gates()
        admission.admit([(A, 1, 10)], 0.0)
        with pytest.raises(InvariantViolated, match="partition 0 below zero"):
            admission.give_back(Taken(A, 2, 10, "", 0.0))


class TestRefusing:
    @pytest.mark.parametrize(
        ("before", "wanted", "limit", "partition", "maximum", "used"),
        [
            ([(A, 8, 1)], [(A, 3, 1)], "partition_ops", A, 10, 8),
            ([(B, 1, 90)], [(B, 1, 11)], "partition_bytes", B, 100, 90),
            ([(A, 9, 1), (B, 9, 1)], [(C, 3, 1)], "node_ops", None, 20, 18),
            ([(A, 1, 95), (B, 1, 95)], [(C, 1, 11)], "node_bytes", None, 200, 190),
        ],
    )
    def test_overloaded_names_the_gate_its_use_and_when_to_come_back(
        self, before: Parts, wanted: Parts, limit: str, partition: PartitionId | None, maximum: int, used: int
    ) -> None:
        admission = gates()
        admission.admit(before, 0.0)
        with pytest.raises(Overloaded) as refused:
            admission.admit(wanted, 0.0)
        error = refused.value
        assert error.fields == {
            "partition_id": partition,
            "limit": limit,
            "maximum": maximum,
            "used": used,
            "retry_after": pytest.approx(0.07, rel=0.25),
        }
        assert error.retryable
        assert error.outcome == "not_applied"
        where = "the node" if partition is None else f"partition {partition}"
        assert where in error.message
        assert f"{used} of {maximum}" in error.message

    @pytest.mark.parametrize(
        ("wanted", "size", "limit", "name"),
        [
            ([(A, 11, 1)], 11, 10, "partition_ops"),
            ([(B, 1, 101)], 101, 100, "partition_bytes"),
            ([(A, 7, 1), (B, 7, 1), (C, 7, 1)], 21, 20, "node_ops"),
            ([(A, 1, 67), (B, 1, 67), (C, 1, 67)], 201, 200, "node_bytes"),
        ],
    )
    def test_what_could_never_fit_is_too_large_and_not_worth_a_retry(
        self, wanted: Parts, size: int, limit: int, name: str
    ) -> None:
        admission = gates()
        with pytest.raises(RecordTooLarge) as refused:
            admission.admit(wanted, 0.0)
        assert (refused.value.size, refused.value.limit) == (size, limit)
        assert name in refused.value.message
        assert not refused.value.retryable
        assert every_use(admission) == [(0, 0)] * 4

    def test_one_part_that_does_not_fit_takes_nothing_for_the_others(self) -> None:
        admission = gates()
        admission.admit([(C, 10, 1)], 0.0)
        before = every_use(admission)
        with pytest.raises(Overloaded):
            admission.admit([(A, 1, 1), (B, 1, 1), (C, 1, 1)], 0.0)
        assert every_use(admission) == before


class TestFreezing:
    def test_a_frozen_partition_takes_nothing_and_says_which_it_is(self) -> None:
        admission = gates()
        admission.freeze(B)
        with pytest.raises(PartitionFrozen) as refused:
            admission.admit([(A, 1, 1), (B, 1, 1)], 0.0)
        assert refused.value.partition_id == B
        assert refused.value.retryable
        assert every_use(admission) == [(0, 0)] * 4

    def test_others_are_admitted_and_a_thawed_one_again(self) -> None:
        admission = gates()
        admission.freeze(B)
        admission.admit([(A, 1, 1)], 0.0)
        admission.thaw(B)
        admission.admit([(B, 1, 1)], 0.0)
        assert admission.used() == (2, 2)

    def test_what_was_taken_before_the_freeze_comes_back(self) -> None:
        admission = gates()
        ticket = admission.admit([(B, 4, 4)], 0.0)
        admission.freeze(B)
        ticket.release(B)
        assert admission.used(B) == (0, 0)

    def test_freezing_and_thawing_twice_is_the_same_as_once(self) -> None:
        admission = gates()
        admission.freeze(A)
        admission.freeze(A)
        assert admission.frozen(A)
        admission.thaw(A)
        admission.thaw(A)
        assert not admission.frozen(A)


PART = st.tuples(st.sampled_from(PARTITIONS), st.integers(0, 12), st.integers(0, 120))
STEPS = st.lists(
    st.one_of(
        st.lists(PART, min_size=1, max_size=3, unique_by=lambda part: part[0]),
        st.integers(0, 1 << 16),  # release one of the parts that are out
        st.tuples(st.booleans(), st.sampled_from(PARTITIONS)),  # freeze or thaw
    ),
    max_size=60,
)


def expected(use: dict[PartitionId | None, list[int]], frozen: set[PartitionId], parts: Parts) -> bool:
    node_ops, node_bytes = (use[None][k] + sum(part[1 + k] for part in parts) for k in (0, 1))
    return (
        not any(p in frozen for p, _, _ in parts)
        and all(use[p][0] + ops <= 10 and use[p][1] + size <= 100 for p, ops, size in parts)
        and node_ops <= 20
        and node_bytes <= 200
    )


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_any_sequence_is_admitted_as_the_sums_say_and_returns_to_zero(steps: list[object]) -> None:
    admission = gates()
    use: dict[PartitionId | None, list[int]] = {p: [0, 0] for p in (None, *PARTITIONS)}
    frozen: set[PartitionId] = set()
    out: list[tuple[Ticket, tuple[PartitionId, int, int]]] = []

    def change(part: tuple[PartitionId, int, int], sign: int) -> None:
        for place in (use[None], use[part[0]]):
            place[0] += sign * part[1]
            place[1] += sign * part[2]

    for step in steps:
        if isinstance(step, int):
            if out:
                ticket, part = out.pop(step % len(out))
                ticket.release(part[0])
                change(part, -1)
        elif isinstance(step, tuple):
            (admission.freeze if step[0] else admission.thaw)(step[1])
            (frozen.add if step[0] else frozen.discard)(step[1])
        elif isinstance(step, list):
            fits = expected(use, frozen, step)
            try:
                ticket = admission.admit(step, 0.0)
            except (Overloaded, PartitionFrozen, RecordTooLarge):
                assert not fits
            else:
                assert fits
                for part in step:
                    out.append((ticket, part))
                    change(part, 1)
        assert every_use(admission) == [tuple(use[p]) for p in (None, *PARTITIONS)]
    for ticket, part in out:
        ticket.release(part[0])
    assert every_use(admission) == [(0, 0)] * 4
