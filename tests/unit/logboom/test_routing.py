"""Where a key belongs: fixed for ever, even, and the same for one key and for many."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logboom.client.parts import Sequences
from logboom.routing import partition_of, partitions_of


@pytest.mark.parametrize(("key", "partition"), [(b"", 0), (b"a", 0), (b"k1", 3), (b"N14228", 2)])
def test_the_examples_of_the_protocol(key: bytes, partition: int) -> None:
    assert partition_of(key, 8) == partition


@given(st.lists(st.binary(max_size=40)), st.integers(1, 100_000))
def test_many_are_routed_as_one_by_one(keys: list[bytes], partitions: int) -> None:
    assert partitions_of(keys, partitions).tolist() == [partition_of(key, partitions) for key in keys]
    assert partitions_of(iter(keys), partitions).tolist() == partitions_of(keys, partitions).tolist()


@pytest.mark.parametrize("partitions", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("pattern", ["k%d", "user/%08d", "%x", "N%dUA"])
def test_neighbours_spread_evenly(pattern: str, partitions: int) -> None:
    keys = [(pattern % k).encode() for k in range(200 * partitions)]
    counts = Counter(partitions_of(keys, partitions).tolist())
    assert len(counts) == partitions
    assert max(counts.values()) < 300
    assert min(counts.values()) > 100


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5))))
def test_the_floor_is_the_lowest_open_sequence(steps: list[tuple[int, int]]) -> None:
    sequences, unsettled, following = Sequences(), [], 0
    for count, settles in steps:
        assert sequences.take(count) == following
        unsettled.append(following)
        following += count
        for _ in range(min(settles, len(unsettled))):
            sequences.settle(unsettled.pop(settles % len(unsettled)))
        assert sequences.floor == min(unsettled, default=following)
