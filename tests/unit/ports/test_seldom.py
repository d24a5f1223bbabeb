"""Log lines that others can cause as often as they like."""

from __future__ import annotations

from typing import Any

from ports.seldom import LINES, WITHIN_S, Seldom


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0


def test_some_are_written_and_the_next_says_how_many_were_not() -> None:
    clock, lines = Clock(), list[dict[str, Any]]()

    def write(event: str, **what: Any) -> None:
        lines.append({"event": event, **what})

    seldom = Seldom(clock.monotonic)
    for number in range(LINES + 7):
        seldom.say(write, "cut", number=number)
    assert [line["number"] for line in lines] == list(range(LINES))
    seldom.say(write, "refused")  # of another kind
    assert lines.pop() == {"event": "refused"}
    clock.now += WITHIN_S
    seldom.say(write, "cut", number=50)
    seldom.say(write, "cut", number=51)
    assert lines[LINES:] == [{"event": "cut", "number": 50, "left_out": 7}, {"event": "cut", "number": 51}]
    clock.now += WITHIN_S
    seldom.say(write, "cut", number=52)
    assert lines[-1] == {"event": "cut", "number": 52}
