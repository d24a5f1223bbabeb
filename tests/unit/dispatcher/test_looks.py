"""Whoever follows something looks in his turn: so much of the loop's time is for all who do."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.sessions.looks import REST, Looks
from dispatcher.sessions.turns import TURN_S

EVERY_S = 0.01


class Loop:
    """Timers that the test lets pass, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.turns: list[int] = []
        """How many looked in each."""
        self.spent = 0.0
        self.looked: list[int] = []
        self.looks = Looks(cast(Any, SimpleNamespace(monotonic=lambda: self.now)), later=self.later)

    def later(self, seconds: float, call: Callable[[], None]) -> Any:
        self.count += 1
        entry = (self.now + seconds, self.count, call)
        self.timers.append(entry)
        return SimpleNamespace(cancel=lambda: entry in self.timers and self.timers.remove(entry))

    def run(self, until: float) -> None:
        while self.timers and min(self.timers)[0] <= until:
            entry = min(self.timers)
            self.timers.remove(entry)
            self.now, before = max(self.now, entry[0]), len(self.looked)
            entry[2]()
            self.turns.append(len(self.looked) - before)
        self.now = max(self.now, until)

    def follow(self, who: int, *, takes: float, whose: str = "") -> None:
        """Look every 10 ms, again and again."""

        def look() -> None:
            self.looked.append(who)
            self.now += takes
            self.spent += takes
            self.looks.later(EVERY_S, look, whose=lambda: whose)

        self.looks.later(EVERY_S, look, whose=lambda: whose)


def test_one_who_takes_no_time_looks_as_often_as_he_asked() -> None:
    loop = Loop()
    loop.follow(1, takes=0.0)
    loop.run(1.005)
    assert len(loop.looked) == 100


@pytest.mark.parametrize("takes", [0.0003, 0.004, 0.1])
def test_however_many_look_and_however_long_it_takes_the_loop_has_its_time(takes: float) -> None:
    """Sixty-four streams over a thousand partitions had it for a quarter of a second, every ten milliseconds."""
    loop = Loop()
    for who in range(64):
        loop.follow(who, takes=takes)
    loop.run(40.0)
    assert loop.spent <= loop.now / (1 + REST) + TURN_S + takes
    assert max(loop.turns) * takes < TURN_S + takes + 1e-9
    counts = [loop.looked.count(who) for who in range(64)]
    assert max(counts) - min(counts) <= 1, "each has his turn"
    assert min(counts) >= 1


@pytest.mark.parametrize("count", [1, 5])
def test_who_follows_much_makes_nobody_wait_for_all_of_it(count: int) -> None:
    """All were in one line: sixty-four streams of ten thousand partitions had everybody else wait for half a minute."""
    loop = Loop()
    for who in range(64):
        loop.follow(who, takes=0.1, whose="much")
    for who in range(64, 64 + count):
        loop.follow(who, takes=0.0001, whose="little")
    loop.run(40.0)
    much = [at for at, who in enumerate(loop.looked) if who < 64]
    assert len(much) >= 70
    for begin, end in zip(much, much[2:], strict=False):
        assert {who for who in loop.looked[begin:end] if who >= 64} == set(range(64, 64 + count))
    assert set(range(64)) < set(loop.looked)


def test_who_has_gone_before_his_turn_has_none() -> None:
    loop, told = Loop(), list[str]()

    def slow() -> None:
        told.append("slow")
        loop.now += TURN_S

    loop.looks.later(0.0, slow)
    gone, stays = (loop.looks.later(0.0, lambda name=name: told.append(name)) for name in ("gone", "stays"))  # type: ignore[misc]
    later = loop.looks.later(1.0, lambda: told.append("later"))
    loop.run(TURN_S)
    assert told == ["slow"]
    gone.cancel()
    later.cancel()
    gone.cancel()
    loop.run(5.0)
    assert (told, stays is not gone) == (["slow", "stays"], True)


def test_what_goes_wrong_costs_nobody_else_his_turn() -> None:
    loop, told = Loop(), list[str]()

    def wrong() -> None:
        raise ValueError("nobody thought of that")

    def slow() -> None:
        loop.now += TURN_S

    loop.looks.later(0.0, slow)
    loop.looks.later(0.0, wrong)
    loop.looks.later(0.0, lambda: told.append("next"))
    with pytest.raises(ValueError, match="nobody"):
        loop.run(1.0)
    loop.run(1.0)
    assert told == ["next"]
