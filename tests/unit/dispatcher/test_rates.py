"""Rates: how fast a principal, and all at one partition, may write; and that waiting for one ends in time."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.admission.admission import Admission, Ticket
from dispatcher.admission.budgets import Parts
from dispatcher.admission.lanes import STALE_KEPT, LaneKey, Later
from dispatcher.admission.rates import KEPT_MIN, Owed, Rates
from logboom.errors import Overloaded
from logboom.settings import AdmissionSettings
from logboom.types import PartitionId
from tests.unit.dispatcher.waiting_desk import A, B, C, Desk

PER_S = 100


def rates(**changes: Any) -> Rates:
    """A hundred operations a second for a principal, of which a second's worth may come at once."""
    return Rates(AdmissionSettings(**{"principal_ops_per_s": PER_S, **changes}))


def let_in(limits: Rates, parts: Parts, now: float, principal: str = "p") -> bool:
    """As ``Admission`` does."""
    if limits.refusal(parts, now, principal) is not None:
        return False
    limits.take(parts, now, principal)
    limits.audit()
    return True


def greedy(limits: Rates, seconds: float, *, size: int, principal: str = "p", partition: PartitionId = A) -> int:
    """Operations of somebody who asks every millisecond."""
    return sum(size * let_in(limits, [(partition, size, 0)], k / 1000, principal) for k in range(int(seconds * 1000)))


def small_and_large(*, seconds: int, size: int) -> Iterator[tuple[float, int]]:
    """When somebody asks for one operation, and somebody for so many: both again and again, as refused clients do."""
    rng = random.Random(1)
    times = [(k / 1000 + rng.uniform(0, 0.001), 1) for k in range(seconds * 1000)]
    times += [(k / 20 + rng.uniform(0, 0.05), size) for k in range(seconds * 20)]
    return iter(sorted(times))


class TestOfAPrincipal:
    def test_who_asks_for_more_gets_the_rate_and_what_may_come_at_once(self) -> None:
        assert greedy(rates(), 10, size=1) == pytest.approx(11 * PER_S, abs=2)

    @pytest.mark.parametrize("size", [1, 7, 40, 250, 1_000])
    def test_however_large_its_requests_are(self, size: int) -> None:
        got = greedy(rates(rate_burst_ms=100), 100, size=size)
        assert 100 * PER_S - size <= got <= 100 * PER_S + 10 + size

    def test_however_large_it_goes_as_soon_as_anything_may_and_the_next_one_waits_for_it(self) -> None:
        limits = rates()
        assert let_in(limits, [(A, 500, 0)], 0.0)
        assert not let_in(limits, [(A, 1, 0)], 4.0)
        assert not let_in(limits, [(A, 500, 0)], 4.0)
        assert let_in(limits, [(A, 500, 0)], 4.02)
        assert not let_in(limits, [(A, 1, 0)], 9.0)
        assert let_in(limits, [(A, 1, 0)], 9.02)

    def test_a_large_one_is_not_kept_out_by_small_ones_of_the_same_client(self) -> None:
        """It had to find nothing owed: whoever wrote little and often kept his own large ones out for ever."""
        limits, large = rates(), 0
        for now, size in small_and_large(seconds=60, size=150):
            large += let_in(limits, [(A, size, 0)], now) and size > 1
        assert large >= 10

    def test_over_all_partitions_together(self) -> None:
        limits = rates()
        assert let_in(limits, [(A, 50, 0), (B, 30, 0)], 0.0)
        assert let_in(limits, [(C, 20, 0)], 0.0)
        assert not let_in(limits, [(C, 1, 0)], 0.0)

    def test_others_have_their_own_and_whose_share_nobody_counts_has_none(self) -> None:
        limits = rates()
        assert let_in(limits, [(A, PER_S, 0)], 0.0)
        assert let_in(limits, [(A, PER_S, 0)], 0.0, "q")
        assert let_in(limits, [(A, 10 * PER_S, 0)], 0.0, "")

    @pytest.mark.parametrize("changes", [{}, {"principal_ops_per_s": 0, "partition_ops_per_s": PER_S}])
    def test_whoever_was_idle_for_long_has_no_more_for_that(self, changes: dict[str, int]) -> None:
        limits = rates(fair_share_percent=100, **changes)
        assert let_in(limits, [(A, 1, 0)], 0.0)
        assert sum(let_in(limits, [(A, 1, 0)], 1_000.0) for _ in range(10 * PER_S)) in (PER_S - 1, PER_S)

    def test_bytes_count_beside_operations(self) -> None:
        limits = rates(principal_bytes_per_s=1_000)
        assert let_in(limits, [(A, 1, 1_500)], 0.0)
        refusal = limits.refusal([(A, 1, 500)], 0.25, "p")
        assert refusal is not None
        assert refusal.gate == "principal_bytes_per_s"
        assert refusal.retry_after == pytest.approx(0.251)

    def test_none_unless_it_is_set(self) -> None:
        assert Rates(AdmissionSettings()).unbounded
        assert not rates().unbounded
        assert not rates(principal_ops_per_s=0, partition_bytes_per_s=1).unbounded


class TestOfAPartition:
    def limits(self, **changes: Any) -> Rates:
        return rates(**{"principal_ops_per_s": 0, "partition_ops_per_s": PER_S, **changes})

    def test_principals_have_it_together(self) -> None:
        limits = self.limits()
        got = sum(
            let_in(limits, [(A, 1, 0)], k / 1000, principal) for k in range(10_000) for principal in ("p", "q", "r")
        )
        assert got == pytest.approx(11 * PER_S, rel=0.1)

    def test_other_partitions_have_their_own(self) -> None:
        limits = self.limits()
        assert greedy(limits, 1, size=1) == greedy(limits, 1, size=1, partition=B)

    @pytest.mark.parametrize("size", [1, 10, 70])
    def test_somebody_who_takes_all_he_can_get_leaves_room_for_one_who_asks_now_and_then(self, size: int) -> None:
        limits = self.limits()
        hot, refused = 0, 0
        for k in range(20_000):
            hot += size * let_in(limits, [(A, size, 0)], k / 1000, "hot")
            if k % 100 == 50:
                refused += not let_in(limits, [(A, 1, 0)], k / 1000, "quiet")
        assert refused == 0
        assert hot >= 20 * PER_S * 0.85

    @pytest.mark.parametrize("size", [50, 70, 150])
    def test_a_large_one_is_not_kept_out_by_what_others_write_there_little_and_often(self, size: int) -> None:
        """It had to fit, or to find nothing owed, and never did."""
        limits, got = self.limits(), {1: 0, size: 0}
        for now, each in small_and_large(seconds=60, size=size):
            got[each] += each * let_in(limits, [(A, each, 0)], now, f"who asks for {each}")
        assert got[size] >= 60 * PER_S * 0.05
        assert got[1] >= 60 * PER_S * 0.25

    def test_all_of_it_goes_to_whoever_comes_first_when_shares_are_off(self) -> None:
        limits = self.limits(fair_share_percent=100)
        assert greedy(limits, 0.001, size=PER_S) == PER_S
        assert not let_in(limits, [(A, 1, 0)], 0.001, "quiet")

    def test_the_refusal_says_whose_it_is(self) -> None:
        limits = self.limits()
        assert let_in(limits, [(A, 80, 0)], 0.0)
        own = limits.refusal([(A, 5, 0)], 0.0, "p")
        assert limits.refusal([(A, 19, 0)], 0.0, "q") is None
        assert let_in(limits, [(A, 30, 0)], 0.0, "q")
        full = limits.refusal([(A, 1, 0)], 0.0, "r")
        assert own is not None
        assert full is not None
        assert [each.share_of for each in (own, full)] == ["p", None]
        assert {each.partition_id for each in (own, full)} == {A}
        assert full.retry_after == pytest.approx(0.1125)  # an eightieth more: it leaves room, too


SIZES = st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 300), st.sampled_from("pq")), min_size=1, max_size=60)


@given(SIZES, st.sampled_from([10, 200, 1_000, 5_000]))
def test_over_no_time_is_more_let_in_than_the_rate_the_burst_and_one_large_request(
    asked: Sequence[tuple[float, int, str]], burst_ms: int
) -> None:
    limits = rates(partition_ops_per_s=PER_S, rate_burst_ms=burst_ms)
    now, went = 1_000.0, list[tuple[float, int]]()
    for pause, size, principal in asked:
        now += pause
        if let_in(limits, [(A, size, 0)], now, principal):
            went.append((now, size))
    largest = max((size for _, size in went), default=0)
    for first, (since, _) in enumerate(went):
        total = 0
        for until, size in went[first:]:
            total += size
            most = PER_S * (until - since) + PER_S * burst_ms / 1000 + largest
            assert total <= most + 1e-6, (since, until)


@given(SIZES)
def test_who_comes_again_when_he_was_told_to_is_let_in(asked: Sequence[tuple[float, int, str]]) -> None:
    """Alone; whoever is not has to share."""
    limits = rates(partition_ops_per_s=2 * PER_S)
    now = 1_000.0
    for pause, size, _ in asked:
        now += pause
        refusal = limits.refusal([(A, size, 0)], now, "p")
        if refusal is not None:
            assert math.isclose(refusal.opens_at, now + refusal.retry_after)
            now = refusal.opens_at + 1e-6
            again = limits.refusal([(A, size, 0)], now, "p")
            if again is not None:  # the other gate
                assert again.gate != refusal.gate
                now = again.opens_at + 1e-6
        assert let_in(limits, [(A, size, 0)], now)


def test_what_is_paid_is_forgotten() -> None:
    limits = rates()
    for k in range(10 * KEPT_MIN):
        assert let_in(limits, [(A, 1, 0)], k / 100, f"connection {k}")
    assert len(limits._paid_at) <= 2 * KEPT_MIN


class TestAdmission:
    def admission(self, **changes: Any) -> Admission:
        return Admission(AdmissionSettings(principal_ops_per_s=PER_S, **changes), [A, B, C])

    def test_a_refusal_names_the_rate_and_when_to_come_back(self) -> None:
        admission = self.admission(retry_after_ms=1)
        admission.admit([(A, PER_S, 0)], 0.0, "p")
        with pytest.raises(Overloaded, match="your own requests reach principal_ops_per_s") as refused:
            admission.admit([(A, 20, 0)], 0.0, "p")
        error = refused.value
        assert (error.limit, error.maximum, error.used, error.partition_id) == ("principal_ops_per_s", PER_S, 120, None)
        assert 0.01 <= error.fields["retry_after"] <= 0.0126
        assert admission.refused_by == {"principal_ops_per_s": 1}

    def test_what_another_gate_refuses_counts_for_no_rate(self) -> None:
        admission = self.admission(partition_ops=50, fair_share_percent=100)
        ticket = admission.admit([(A, 50, 0)], 0.0, "p")
        for _ in range(10):
            assert not isinstance(admission.try_admit([(A, 50, 0)], 0.0, "p"), Ticket)
        ticket.release(A)
        admission.admit([(A, 50, 0)], 0.0, "p")

    def test_what_is_given_back_does_not_make_anybody_faster(self) -> None:
        admission = self.admission()
        admission.admit([(A, PER_S, 0)], 0.0, "p").release(A)
        assert not isinstance(admission.try_admit([(A, 1, 0)], 0.0, "p"), Ticket)
        admission.audit()

    def test_what_a_partition_owed_goes_with_it(self) -> None:
        admission = self.admission(partition_ops_per_s=PER_S)
        admission.admit([(B, 1, 0)], 0.0, "p").release(B)
        assert admission._rates._owed
        admission.remove(B)
        assert not admission._rates._owed


class TestWaiting:
    def desk(self, **changes: Any) -> Desk:
        return Desk(**{"partition_ops": 1_000, "node_ops": 4_000, "principal_ops_per_s": PER_S, **changes})

    def until(self, desk: Desk, then: float) -> None:
        """As the dispatcher does: woken by what is given back, or when a lane is due."""
        while desk.room.opens_at <= then:
            desk.now = max(desk.now, desk.room.opens_at) + 1e-6
            desk.room.serve(desk.now)
            desk.audit()
        desk.now = then

    def test_time_lets_in_who_waits_for_its_rate_though_nothing_is_given_back(self) -> None:
        desk = self.desk()
        for k in range(5):
            desk.ask(f"r{k}", [(A, PER_S, 0)])
        assert desk.order == ["r0"]
        self.until(desk, desk.now + 2.5)
        assert desk.order == ["r0", "r1", "r2", "r3"]
        self.until(desk, desk.now + 2)
        assert desk.order == ["r0", "r1", "r2", "r3", "r4"]
        assert math.isinf(desk.room.opens_at)

    def test_it_holds_up_nobody_else_however_many_wait_so(self) -> None:
        desk = self.desk(partition_ops=10_000, node_ops=10_000)
        for k in range(40):
            desk.ask(f"first{k}", [(A, 10, 0)], principal=f"p{k}")
            desk.ask(f"waits{k}", [(A, PER_S, 0)], principal=f"p{k}")
        desk.now += 0.05
        assert desk.ask("other", [(A, 10, 0)], principal="q") is None
        self.until(desk, desk.now + 0.1)
        assert sum(name.startswith("waits") for name in desk.order) == 40

    def test_its_own_small_ones_do_not_pass_a_large_one(self) -> None:
        desk = self.desk(queue_bypass_ms=200)
        desk.ask("first", [(A, PER_S, 0)])
        desk.ask("large", [(A, 2 * PER_S, 0)])
        for k in range(400):  # as fast as it may be
            self.until(desk, desk.now + 0.01)
            desk.ask(f"small{k}", [(B, 1, 0)])
        assert desk.order.index("large") <= 3
        assert desk.order[-1] != "large"

    def test_principals_take_turns_at_a_partition_that_is_fast_enough(self) -> None:
        desk = self.desk(principal_ops_per_s=0, partition_ops_per_s=PER_S)
        desk.ask("full", [(A, PER_S, 0)])
        for k in range(10):
            desk.ask(f"hog{k}", [(A, 50, 0)], principal="hog", wait=20.0)
        for k in range(2):
            desk.ask(f"shy{k}", [(A, 50, 0)], principal="shy", wait=20.0)
        self.until(desk, desk.now + 2.6)
        assert [name[:3] for name in desk.order[1:5]] == ["hog", "shy", "hog", "shy"]

    def test_who_waits_in_vain_is_told_which_rate_it_was(self) -> None:
        desk = self.desk()
        desk.ask("first", [(A, 900, 0)])
        desk.ask("vain", [(A, 1, 0)], wait=2.0)
        desk.now += 2.0
        desk.room.serve(desk.now)
        error = desk.failures["vain"]
        assert isinstance(error, Overloaded)
        assert (error.limit, error.outcome) == ("principal_ops_per_s", "not_applied")
        assert math.isinf(desk.room.opens_at)

    def test_who_lacks_a_rate_and_then_a_budget_waits_for_one_after_the_other(self) -> None:
        desk = self.desk(partition_ops=150)
        desk.ask("first", [(A, PER_S, 0)])
        desk.ask("both", [(A, 90, 0)])
        self.until(desk, desk.now + 3.0)
        assert desk.order == ["first"]
        desk.give_back("first")
        assert desk.order == ["first", "both"]


class TestLater:
    def test_each_when_it_is_due_and_once(self) -> None:
        later = Later()
        for key, when in ((A, 3.0), ("p", 1.0), (None, 2.0)):
            later.look_at(key, when)
        assert later.first == 1.0
        assert list(later.due(2.0)) == ["p", None]
        assert list(later.due(9.0)) == [A]
        assert math.isinf(later.first)

    def test_the_earliest_time_counts(self) -> None:
        later = Later()
        for when in (5.0, 2.0, 4.0):
            later.look_at("p", when)
        assert later.first == 2.0
        assert list(later.due(9.0)) == ["p"]

    def test_what_is_forgotten_is_not_looked_at_and_not_kept(self) -> None:
        later = Later()
        keys: list[LaneKey] = [f"p{k}" for k in range(1_000)]
        for key in keys:
            later.look_at(key, 1_000.0)
        for key in keys:
            later.forget(key)
        assert len(later._heap) <= STALE_KEPT
        assert list(later.due(2_000.0)) == []


@pytest.mark.parametrize("paid", [0.5, 2.0])
def test_a_time_before_one_that_was_paid_for_pays_nothing(paid: float) -> None:
    """As of the beginning of a turn, after one of its requests was looked at anew: it ended the turn for all others."""
    owed = Owed(10.0)
    owed.add("p", 1.0)
    owed.pay(10.0 + paid)
    left = owed.whole
    owed.pay(10.0 + paid / 2)
    assert (owed.whole, owed.of("p"), owed.at) == (left, pytest.approx(left), 10.0 + paid)
