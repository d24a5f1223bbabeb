"""How old a backlog is: hardly older than it is, and close to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from logboom.errors import Voided
from logboom.types import NO_PRODUCER, GlobalLogIndex, PartitionLogIndex, Term
from partitions.apply.apply_core import AppliedBatch
from partitions.apply.apply_counts import MARK_S, MARKS_MAX, Ages, ApplyCounts
from partitions.log.columns import Columns
from partitions.log.guessed import SUMMED
from partitions.log.segment import BatchRef


def test_nothing_waits() -> None:
    ages = Ages()
    assert ages.age(0, 5.0) == 0
    ages.note(3, 1.0)
    assert ages.age(3, 5.0) == 0


def test_the_oldest_that_waits_counts_not_the_first_that_ever_came() -> None:
    ages = Ages()
    ages.note(3, 1.0)
    ages.note(5, 2.0)
    ages.note(9, 4.0)
    assert ages.age(0, 10.0) == 9.0
    assert ages.age(3, 10.0) == 8.0
    assert ages.age(4, 10.0) == 8.0
    assert ages.age(5, 10.0) == 6.0
    assert ages.age(9, 10.0) == 0.0


def test_saying_the_same_again_makes_nothing_younger() -> None:
    ages = Ages()
    ages.note(3, 1.0)
    for moment in range(2, 50):
        ages.note(3, float(moment))
    assert ages.age(0, 50.0) == 49.0


def test_what_comes_all_the_time_grows_old_all_the_same() -> None:
    """Found by Hypothesis: each mark within 10 ms of the last took its place, with its own time."""
    ages = Ages()
    for number in range(1, 1000):
        ages.note(number, number * MARK_S / 2)
    assert ages.age(0, 1000 * MARK_S / 2) >= 999 * MARK_S / 2 - MARK_S


def test_memory_is_bounded_and_the_oldest_stays_exact() -> None:
    ages = Ages()
    for number in range(1, 100_000):
        ages.note(number, float(number))
        assert len(ages._marks) <= MARKS_MAX
    assert ages.age(0, 100_000.0) == 99_999.0


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0.0, 3.0)), min_size=1, max_size=300), st.data())
def test_it_is_hardly_too_old_and_without_many_marks_nearly_exact(
    steps: list[tuple[int, float]], data: st.DataObject
) -> None:
    ages, index, now, when = Ages(), 0, 0.0, list[tuple[int, float]]()
    for more, pause in steps:
        index, now = index + more, now + pause
        when.append((index, now))
        ages.note(index, now)
    applied = data.draw(st.integers(0, index))
    true = next((now - moment for last, moment in when if last > applied), 0.0)
    told = ages.age(applied, now)
    assert told <= true + MARK_S + 1e-9
    if len(steps) < MARKS_MAX:
        assert told >= true - 1e-9


@given(st.lists(st.integers(1, 1000), max_size=60), st.data())
def test_bytes_between_two_indices_are_those_of_the_batches_that_end_there(
    sizes: list[int], data: st.DataObject
) -> None:
    columns = _of_sizes(sizes, each=10)
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, 10 * len(sizes) + 5)] * 2)))
    there = sum(size for row, size in enumerate(sizes) if low < 10 * (row + 1) <= high)
    assert (columns.bytes_between(low, high), columns.bytes_between(high, low)) == (there, -there)


def test_of_very_many_it_is_a_guess_by_some_from_all_over() -> None:
    """Found by reading: by the first of them, and what lay between two indices as what two guesses differ by."""
    columns = _of_sizes([100] * SUMMED + [900] * SUMMED)
    assert 0.95 < columns.bytes_between(0, 2 * SUMMED) / (1000 * SUMMED) < 1.05
    assert columns.bytes_between(2 * SUMMED, SUMMED // 2) < -0.95 * 950 * SUMMED
    assert columns.bytes_between(0, SUMMED) == 100 * SUMMED
    assert columns.bytes_between(2 * SUMMED - 1, 2 * SUMMED) == 900


def _of_sizes(sizes: list[int], *, each: int = 1) -> Columns:
    """Batches of so many records ``each``."""
    columns = Columns()
    for row, size in enumerate(sizes):
        columns.append(_ref(each * (row + 1), size), row + 1)
    return columns


def _ref(last: int, size: int) -> BatchRef:
    index, none = PartitionLogIndex(last), bytes(16)
    return BatchRef(index, index, none, none, Term(1), 0, 0, size, 0)


def test_what_is_stepped_over_as_void_is_neither_applied_nor_refused() -> None:
    counts = ApplyCounts()
    first, last = PartitionLogIndex(5), PartitionLogIndex(9)
    void = AppliedBatch(first, last, GlobalLogIndex(3), NO_PRODUCER, 0, 0, 0, 0, 0, None, Voided.code)
    counts.applied([void], 0, 0.1, reclaimable=True)
    assert (counts.batches, counts.records, counts.refused, sum(counts.seconds.counts)) == (0, 0, 0, 0)
    counts.applied([void._replace(record_count=5, refused="out_of_sequence")], 0, 0.1, reclaimable=True)
    assert (counts.batches, counts.refused) == (1, 1)
