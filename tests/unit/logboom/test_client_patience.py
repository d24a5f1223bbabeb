"""How long a stream is begun again, and how often: as its client was told, and as nodes ask for."""

from __future__ import annotations

from typing import Any

import pytest

from logboom.client import streams
from logboom.errors import QuotaExceeded, Unavailable


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self, seed: float = 0.0) -> None:
        self.time, self.pauses, self._seed = 1000.0, list[float](), seed

    @property
    def now(self) -> float:
        return self.time

    def begin(self) -> float:
        return self.time

    def chance(self) -> float:
        return self._seed

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(streams.asyncio, "sleep", made.sleep)
    return made


async def to_the_end(clock: Any, patience: float, error: Any) -> float:
    failures = streams._Failures(clock, patience)
    began = clock.now

    async def forever() -> None:
        while True:
            await failures.another(error)

    with pytest.raises(type(error)):
        await forever()
    return float(clock.now - began)


@pytest.mark.parametrize("patience", [0.5, 30.0, 600.0])
async def test_it_lasts_as_long_as_the_client_was_told(clock: Clock, patience: float) -> None:
    assert patience - 1.5 <= await to_the_end(clock, patience, Unavailable("nobody is there")) <= patience


async def test_not_all_clients_come_back_in_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for seed in (0.0, 0.5, 0.9):
        clock = Clock(seed)
        monkeypatch.setattr(streams.asyncio, "sleep", clock.sleep)
        await to_the_end(clock, 5.0, Unavailable("the leader is gone"))
        found.append(tuple(clock.pauses[:5]))
    assert len(set(found)) == 3


async def test_a_node_that_says_when_to_come_again_is_not_asked_before(clock: Clock) -> None:
    await to_the_end(clock, 20.0, QuotaExceeded("too many", retry_after=3.0))
    assert min(clock.pauses) >= 1.5
