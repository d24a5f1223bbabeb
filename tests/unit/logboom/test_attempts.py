"""A request that is tried again until its deadline: what its caller is told in the end."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from logboom.client.attempts import ANSWER_MIN_S, Attempts
from logboom.errors import LogboomError, PartitionLost, Unavailable

BEGUN, TIMEOUT_S, TOOK_S = 1000.0, 2.0, 0.001


def left_at_the_last(error: LogboomError, chance: Callable[[], float]) -> tuple[LogboomError, int, float]:
    """What the caller is told in the end, after how many attempts, and how long before the deadline the last began."""
    cluster: Any = SimpleNamespace(now=BEGUN, closed=False, chance=chance, heard=lambda *_: None)
    attempts = Attempts(cluster, deadline=BEGUN + TIMEOUT_S, writes=True)
    for number in itertools.count(1):
        left = BEGUN + TIMEOUT_S - cluster.now
        cluster.now += TOOK_S
        try:
            cluster.now += attempts.failed(error)
        except LogboomError as told:
            return told, number, left
    raise AssertionError


@pytest.mark.parametrize("retry_after", [0.1, 1.0])
def test_who_is_refused_is_told_so_and_not_left_in_doubt_by_a_last_attempt(retry_after: float) -> None:
    """Found by a run of the tests: the deadline overtook one in 200 that could have no effect."""
    lost = PartitionLost("no member has the batch", retry_after=retry_after)
    runs = [left_at_the_last(lost, random.Random(seed).random) for seed in range(1000)]
    assert all(told is lost for told, *_ in runs)
    assert max(number for _, number, _ in runs) > 2, "it is tried again all the same"
    assert min(left for *_, left in runs) >= min(retry_after / 2, ANSWER_MIN_S)


def test_who_is_told_nothing_of_the_kind_tries_as_long_as_there_is_time() -> None:
    gone = Unavailable("it cannot be reached")
    assert min(left_at_the_last(gone, random.Random(seed).random)[2] for seed in range(1000)) < 0.05
