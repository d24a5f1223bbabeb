"""Whoever waits is sent from node to node, as none of them hears of a leader: how often he asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logboom.client.attempts import AWAY_MAX_S, BACKOFF_MAX_S, EARLY_S, Attempts
from logboom.errors import BarrierTimeout, LogboomError, Unavailable

BEGUN = 1000.0
TIMEOUT_S = 60.0
AWAY = BarrierTimeout("ask another", target=7, behind=[0], retry_after=0.05)


class Asking:
    """Time passes with the pauses alone."""

    def __init__(self, chance: float) -> None:
        self.cluster: Any = SimpleNamespace(now=BEGUN, closed=False, chance=lambda: chance, heard=lambda *_: None)
        self.attempts = Attempts(self.cluster, deadline=BEGUN + TIMEOUT_S, writes=False)

    def again(self, error: LogboomError) -> float:
        """It fails; the pause."""
        pause = self.attempts.failed(error)
        self.cluster.now += pause
        return pause

    def to_the_end(self) -> list[float]:
        """When it was asked again, until the answer was final."""
        asked = list[float]()
        try:
            while True:
                self.again(AWAY)
                asked.append(self.cluster.now - BEGUN)
        except BarrierTimeout:
            return asked


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.99])
def test_soon_at_first_then_seldom_and_once_more_at_the_end(chance: float) -> None:
    asked = Asking(chance).to_the_end()
    assert sum(at < 0.5 for at in asked) >= 3
    assert sum(at > 10.0 for at in asked) <= (TIMEOUT_S - 10.0) / (AWAY_MAX_S / 2) + 1
    assert asked[-1] == pytest.approx(TIMEOUT_S - EARLY_S), "a node keeps that one to its end"


def test_whatever_else_fails_is_tried_as_soon_as_ever() -> None:
    asking = Asking(0.5)
    for _ in range(12):
        last = asking.again(AWAY)
    assert last == AWAY_MAX_S
    assert asking.again(Unavailable("it is recovering")) == BACKOFF_MAX_S
