"""A column's items, and how long they are, from where they end."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logboom.records import lengths_of, split


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=50))
def test_lengths_are_what_the_ends_were_made_of(lengths: list[int]) -> None:
    raw = np.cumsum(lengths).astype("<u4").tobytes()
    ends = np.frombuffer(raw, "<u4")  # as a block has them: they cannot be written
    assert lengths_of(ends).tolist() == lengths
    assert ends.tobytes() == raw


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=80))
def test_a_column_is_split_into_what_it_was_made_of(items: list[bytes]) -> None:
    ends = np.cumsum([len(item) for item in items]).astype("<u4")
    assert split(memoryview(b"".join(items)), ends) == items


@given(st.integers(0, 5), st.integers(1, 80), st.binary(min_size=400, max_size=400), st.integers(-1, 1))
def test_items_of_one_width_keep_their_zeros_and_one_of_another_width_is_noticed(
    width: int, count: int, raw: bytes, odd: int
) -> None:
    widths = [width] * count
    if count > 2 and width + odd >= 0:
        widths[1] += odd
        widths[2] -= odd if widths[2] >= odd else 0
    ends = np.cumsum(widths).astype("<u4")
    found = split(raw, ends)
    assert all(type(each) is bytes for each in found)
    assert list(map(len, found)) == widths
    assert b"".join(found) == raw[: sum(widths)]
    zeros = split(bytes(sum(widths)), ends)
    assert zeros == [bytes(each) for each in widths]
