"""One gate: what is withheld of it, whose word counts, how it is measured."""

from __future__ import annotations

import pytest

from dispatcher.admission.admission import Admission
from dispatcher.admission.budgets import AGES_KEPT, RATE_KEPT, Gate, Limits, Taken, Use, Verdict
from logboom.settings import AdmissionSettings
from logboom.types import PartitionId
from ports.invariant import InvariantViolated


def gate(*, age_s: float = 0.0) -> Gate:
    return Gate(Limits("node", 100, 1000, 10, age_s), None)


def admit(where: Gate, operations: int, at: float = 0.0) -> Taken:
    taken = Taken(PartitionId(0), operations, 1, "", at)
    where.take(operations, 1, 1)
    where.admitted(taken)
    return taken


def give_back(where: Gate, taken: Taken) -> None:
    taken.given = True
    where.take(-taken.operations, -taken.nbytes, -1)
    where.drained(taken)


@pytest.mark.parametrize(
    ("used", "more", "by"), [(40, 10, None), (40, 11, "disk"), (0, 90, None), (0, 101, "node_ops")]
)
def test_a_part_that_is_withheld_leaves_the_rest_and_one_always_goes_through(
    used: int, more: int, by: str | None
) -> None:
    some = gate()
    some.judge("signals", Verdict("disk", 0.5))
    if used:
        admit(some, used)
    refusal = some.refusal((more, 1, 1), 0.0)
    assert (None if refusal is None else refusal.gate) == by


def test_the_worst_of_all_sources_counts_and_less_than_before_is_told() -> None:
    some, eased = gate(), list[bool]()
    said: list[tuple[str, float | None, float | None]] = [
        ("a", 0.5, 0.5), ("b", 0.7, 0.7), ("a", 0.6, 0.7), ("b", 0.2, 0.6), ("b", None, 0.6), ("a", 0.6, 0.6),
        ("a", None, None), ("a", None, None),
    ]  # fmt: skip
    for source, pressure, worst in said:
        eased.append(some.judge(source, None if pressure is None else Verdict(source, pressure)))
        assert (None if some.verdict is None else some.verdict.pressure) == worst
    assert eased == [False, False, False, True, False, False, True, False]


@pytest.mark.parametrize(
    ("taken", "whole"),
    [
        ((0, 0, 0), True),
        ((1, 1, 1), True),
        ((1, 0, 0), False),
        ((0, 1, 0), False),
        ((-1, 1, 1), False),
        ((1, -1, 1), False),
        ((0, 0, -1), False),
    ],
)
def test_what_is_left_over_is_seen(taken: tuple[int, int, int], whole: bool) -> None:
    use = Use()
    use.take(*taken)
    assert use.whole is whole


def test_what_was_given_back_is_not_kept_behind_one_that_was_not() -> None:
    some = gate(age_s=60.0)
    oldest = admit(some, 1, at=1.0)
    for number in range(10 * AGES_KEPT):
        give_back(some, admit(some, 1, at=2.0 + number))
    assert some._ages is not None
    assert len(some._ages) <= AGES_KEPT + 4
    assert some.outstanding() == [oldest]
    assert some.age(11.0) == 10.0
    give_back(some, oldest)
    assert (some.age(12.0), some.outstanding()) == (0.0, [])


def test_how_long_to_wait_follows_how_fast_it_drains() -> None:
    some = gate()
    for seconds, operations, rate in ((1.0, 50, 50.0), (2.0, 100, RATE_KEPT * 50 + (1 - RATE_KEPT) * 100)):
        give_back(some, admit(some, operations))
        full = admit(some, 90)
        refusal = some.refusal((20, 1, 1), seconds)
        assert refusal is not None
        assert refusal.retry_after == pytest.approx(10 / rate)
        some.take(-90, -1, -1)
        full.given = True


def test_a_share_that_is_not_what_tickets_hold_is_seen() -> None:
    admission = Admission(AdmissionSettings(), [PartitionId(0)])
    ticket = admission.admit([(PartitionId(0), 2, 20)], 0.0, "p")
    admission.audit()
    for share in admission._shares.values():
        share.operations += 1
        with pytest.raises(InvariantViolated):
            admission.audit()
        share.operations -= 1
    ticket.release(PartitionId(0))
    admission.audit()


def test_of_what_something_is_withheld_is_told_and_of_nothing_else() -> None:
    admission = Admission(AdmissionSettings(), [PartitionId(0), PartitionId(1)])
    verdict = Verdict("lag", 0.5)
    admission.judge(PartitionId(1), verdict)
    assert list(admission.judged()) == [(PartitionId(1), verdict)]
    assert not admission.judge(PartitionId(9), verdict)  # it went while they were asked


def test_what_was_given_back_long_ago_says_nothing_of_how_fast_it_drains_now() -> None:
    """After a quiet hour the first refusals named the longest time that there is: two seconds in place of 20 ms."""
    some = gate()
    for _ in range(10):
        give_back(some, admit(some, 1))
    admit(some, 90)
    first = some.refusal((20, 1, 1), 3600.0)
    assert first is not None
    assert first.retry_after == 0.0  # nobody knows: the shortest
    give_back(some, some.outstanding()[0])
    admit(some, 90)
    second = some.refusal((20, 1, 1), 3600.5)
    assert second is not None
    assert second.retry_after == pytest.approx(10 / 180)
