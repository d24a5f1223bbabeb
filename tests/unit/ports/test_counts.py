"""Histograms of plain numbers."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from ports.counts import BYTES, MINUTES, RECORDS, SECONDS, Buckets


@given(st.lists(st.floats(0, 1e6)))
def test_every_value_is_in_the_first_bucket_that_takes_it(values: list[float]) -> None:
    buckets = Buckets(SECONDS)
    for value in values:
        buckets.observe(value)
    counted = buckets.snapshot()
    assert sum(counted.counts) == len(values)
    assert counted.total == sum(values)
    for row, bound in enumerate(SECONDS):
        assert sum(counted.counts[: row + 1]) == sum(value <= bound for value in values)
        assert bisect_left(SECONDS, bound) == row


def test_a_snapshot_stays_as_it_is() -> None:
    buckets = Buckets((1.0,))
    before = buckets.snapshot()
    buckets.observe(2.0)
    assert (before.counts, before.total) == ((0, 0), 0.0)
    assert (buckets.snapshot().counts, buckets.snapshot().total) == ((0, 1), 2.0)


def test_bounds_ascend() -> None:
    for bounds in (SECONDS, MINUTES, BYTES, RECORDS):
        assert list(bounds) == sorted(set(bounds))
