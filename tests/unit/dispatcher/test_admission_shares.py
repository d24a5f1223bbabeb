"""Shares of what is scarce, age, batches, and when to come back."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dispatcher.admission.admission import Admission, Ticket
from dispatcher.admission.budgets import Taken
from logboom.errors import Overloaded
from logboom.settings import AdmissionSettings
from logboom.types import PartitionId
from ports.invariant import InvariantViolated

A, B, C = PARTITIONS = [PartitionId(0), PartitionId(1), PartitionId(2)]


def gates(**changes: Any) -> Admission:
    limits: dict[str, Any] = {"partition_ops": 1000, "node_ops": 1000, "fair_share_percent": 80, **changes}
    return Admission(AdmissionSettings(**limits), PARTITIONS)


def fill(admission: Admission, partition: PartitionId, principal: str, size: int = 1) -> int:
    """Until it is refused; how much went in."""
    for count in itertools.count():
        try:
            admission.admit([(partition, size, 0)], 0.0, principal)
        except Overloaded:
            return count * size
    return 0


class TestPrincipals:
    def test_one_alone_gets_its_share_of_a_partition_and_no_more(self) -> None:
        assert fill(gates(node_ops=100_000), A, "hog") == 800

    def test_one_alone_gets_its_share_of_the_node_and_no_more(self) -> None:
        admission = gates(partition_ops=500, fair_share_percent=50)
        assert sum(fill(admission, p, "hog") for p in PARTITIONS) <= 500

    def test_a_newcomer_always_finds_room_and_less_the_more_there_are(self) -> None:
        admission = gates(node_ops=100_000)
        got = [fill(admission, A, f"p{k}") for k in range(5)]
        assert all(got)
        assert got == sorted(got, reverse=True)

    def test_the_refusal_says_that_it_is_a_share(self) -> None:
        admission = gates(node_ops=100_000)
        fill(admission, A, "hog")
        with pytest.raises(Overloaded, match="share") as refused:
            admission.admit([(A, 1, 0)], 0.0, "hog")
        assert (refused.value.limit, refused.value.used) == ("partition_ops", 800)

    def test_who_is_the_first_gets_whatever_fits(self) -> None:
        gates().admit([(A, 1000, 0)], 0.0, "large")

    def test_a_newcomer_does_not_take_what_is_left_either(self) -> None:
        """Two connections of one client had all of a partition: a third party waited until it was applied."""
        admission = gates(node_ops=100_000, partition_ops=500)
        assert fill(admission, A, "hot", 100) == 400
        with pytest.raises(Overloaded, match="partition_ops is used up"):
            admission.admit([(A, 100, 0)], 0.0, "hot too")
        admission.admit([(A, 1, 0)], 0.0, "quiet")
        admission.admit([(A, 50, 0)], 0.0, "hot too")
        admission.admit([(A, 1, 0)], 0.0, "another")
        admission.audit()

    def test_whose_share_nobody_counts_gets_whatever_fits(self) -> None:
        admission = gates(node_ops=100_000, partition_ops=500)
        fill(admission, A, "hot", 100)
        admission.admit([(A, 100, 0)], 0.0)

    def test_what_is_asked_for_counts_as_if_it_were_held(self) -> None:
        admission = gates(node_ops=100_000)
        admission.admit([(A, 1, 0)], 0.0, "p")
        with pytest.raises(Overloaded, match="your own"):
            admission.admit([(A, 900, 0)], 0.0, "p")
        admission.admit([(A, 700, 0)], 0.0, "p")

    def test_who_gives_back_may_have_it_again(self) -> None:
        admission = gates()
        tickets = [admission.admit([(A, 100, 0)], 0.0, "p") for _ in range(8)]
        with pytest.raises(Overloaded):
            admission.admit([(A, 100, 0)], 0.0, "p")
        tickets.pop().release(A)
        admission.admit([(A, 100, 0)], 0.0, "p")
        admission.audit()

    def test_all_of_it_when_shares_are_off(self) -> None:
        assert fill(gates(fair_share_percent=100), A, "hog") == 1000


class TestPartitions:
    def test_a_hot_one_leaves_room_on_the_node_for_the_others(self) -> None:
        admission = gates()
        hot = sum(fill(admission, A, f"p{k}") for k in range(50))
        assert hot == pytest.approx(800, abs=10)
        with pytest.raises(Overloaded, match="its share of node_ops") as refused:
            admission.admit([(A, 10, 0)], 0.0, "late")
        assert refused.value.partition_id == A
        admission.admit([(B, 50, 0)], 0.0, "late")


class TestOtherGates:
    def test_batches(self) -> None:
        admission = gates(partition_batches=2, fair_share_percent=100)
        for _ in range(2):
            admission.admit([(A, 1, 0)], 0.0)
        with pytest.raises(Overloaded) as refused:
            admission.admit([(A, 1, 0)], 0.0)
        assert (refused.value.limit, refused.value.maximum, refused.value.used) == ("partition_batches", 2, 2)

    @pytest.mark.parametrize(("setting", "partition"), [("partition_age_ms", A), ("node_age_ms", None)])
    def test_age_of_the_oldest_that_is_not_applied(self, setting: str, partition: PartitionId | None) -> None:
        admission = gates(**{setting: 500})
        first = admission.admit([(A, 1, 0)], 10.0)
        second = admission.admit([(A, 1, 0)], 10.3)
        admission.admit([(A, 1, 0)], 10.5)
        with pytest.raises(Overloaded) as refused:
            admission.admit([(A, 1, 0)], 10.6)
        assert (refused.value.limit, refused.value.partition_id) == (setting, partition)
        assert refused.value.used == pytest.approx(600)
        first.release(A)
        admission.admit([(A, 1, 0)], 10.7)
        second.release(A)
        admission.admit([(A, 1, 0)], 11.0)

    def test_another_partitions_age_is_its_own(self) -> None:
        admission = gates(partition_age_ms=500)
        admission.admit([(A, 1, 0)], 0.0)
        admission.admit([(B, 1, 0)], 100.0)


class TestComingBack:
    def refused_after(self, admission: Admission, size: int, now: float) -> float:
        with pytest.raises(Overloaded) as refused:
            admission.admit([(A, size, 0)], now)
        return float(refused.value.retry_after)

    def test_as_long_as_it_takes_to_drain(self) -> None:
        admission = gates(fair_share_percent=100)
        tickets = [admission.admit([(A, 10, 0)], 0.0) for _ in range(100)]
        self.refused_after(admission, 10, 0.0)
        for ticket in tickets[:50]:
            ticket.release(A)  # 500 in a second
        admission.admit([(A, 500, 0)], 1.0)
        assert self.refused_after(admission, 250, 1.0) == pytest.approx(0.5, rel=0.3)
        assert self.refused_after(admission, 500, 1.0) == pytest.approx(1.0, rel=0.3)

    def test_within_bounds_and_not_all_at_once(self) -> None:
        admission = gates(fair_share_percent=100, retry_after_ms=100, retry_after_max_ms=300)
        admission.admit([(A, 1000, 0)], 0.0)
        told = [self.refused_after(admission, 1, 0.0) for _ in range(50)]
        assert all(0.1 <= each <= 0.125 for each in told)
        assert len({round(each, 3) for each in told}) > 10
        assert admission.retry_after(1e9) <= 0.375


class TestLedger:
    def test_what_a_ticket_does_not_hold_is_noticed(self) -> None:
        admission = gates()
        admission.admit([(A, 3, 30)], 0.0, "p")
        admission.audit()
        admission.gate(A).operations += 1
        with pytest.raises(InvariantViolated, match="tickets hold"):
            admission.audit()

    def test_what_is_left_over_when_all_is_given_back_is_noticed_at_once(self) -> None:
        admission = gates()
        ticket = admission.admit([(A, 3, 30)], 0.0)
        admission.gate(A).operations += 1
        with pytest.raises(InvariantViolated, match="not whole"):
            ticket.release(A)

    def test_a_part_that_was_given_back_is_not_given_back_again(self) -> None:
        admission = gates()
        taken = Taken(A, 1, 1, "", 0.0)
        ticket = admission.admit([(A, 5, 5)], 0.0)
        assert isinstance(ticket, Ticket)
        taken.given = True
        with pytest.raises(InvariantViolated, match="twice"):
            admission.give_back(taken)

    def test_no_share_is_remembered_of_those_who_hold_nothing(self) -> None:
        admission = gates()
        for k in range(100):
            admission.admit([(A, 1, 0)], 0.0, f"p{k}").release(A)
        assert not admission._shares

    def test_ages_are_forgotten_while_one_stays(self) -> None:
        admission = gates()
        admission.admit([(A, 1, 0)], 0.0)
        for _ in range(10_000):
            admission.admit([(B, 1, 0)], 0.0).release(B)
        assert len(admission.gate()._ages or ()) < 200
