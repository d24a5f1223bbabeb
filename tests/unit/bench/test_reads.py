"""What the benchmark of reads and barriers makes of its figures."""

from __future__ import annotations

import pytest

from bench.reads import ALONE, AT_ONCE, BESIDE, IN_TURN, TOGETHER, Row, judge, loop_alone


def rows(**p99: float) -> list[Row]:
    known = {BESIDE: 1.0, IN_TURN: 1.0, AT_ONCE: 300.0, TOGETHER: 30.0, ALONE: 15.0} | {
        {"beside": BESIDE, "in_turn": IN_TURN, "together": TOGETHER, "alone": ALONE}[name]: value
        for name, value in p99.items()
    }
    what = {"get, linearizable (default)": 0.4, "barrier, wake-up": 0.1} | known
    return [Row("idle", name, value, value, 100) for name, value in what.items()] + [Row("bulk", TOGETHER, 1e9, 1e9, 1)]


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        ({}, []),
        ({"together": 151.0}, [TOGETHER]),
        ({"alone": 2.9}, [TOGETHER]),
        ({"beside": 2.1}, [BESIDE]),
        ({"in_turn": 2.1}, [IN_TURN]),
    ],
)
def test_wake_ups_have_a_bound_and_callers_of_one_client_one_by_what_a_loop_takes(
    figures: dict[str, float], missed: list[str]
) -> None:
    found = [check.name for check in judge(rows(**figures)) if not check.met]
    assert len(found) == len(missed)
    assert all(what in name for name, what in zip(found, missed, strict=True))


async def test_the_loop_alone_wakes_every_task_of_every_trial() -> None:
    found = await loop_alone(count=50, trials=3)
    assert len(found) == 150
    assert min(found) > 0
