"""How long a column's items are, from where they end."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logboom.records import lengths_of


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=50))
def test_lengths_are_what_the_ends_were_made_of(lengths: list[int]) -> None:
    raw = np.cumsum(lengths).astype("<u4").tobytes()
    ends = np.frombuffer(raw, "<u4")  # as a block has them: they cannot be written
    assert lengths_of(ends).tolist() == lengths
    assert ends.tobytes() == raw
