"""Waiting for admission, many at once: order is kept where what is over is thrown away."""

from __future__ import annotations

import random

import pytest

from dispatcher.admission.lanes import STALE_KEPT
from tests.unit.dispatcher.waiting_desk import A, Desk

MANY = 4 * STALE_KEPT


@pytest.mark.parametrize("seed", range(5))
def test_those_who_wait_in_vain_go_in_their_order_however_many_have_gone_before(seed: int) -> None:
    desk, rng = Desk(queue_requests=10 * MANY), random.Random(seed)
    desk.ask("full", [(A, 10, 0)])
    waits = {f"w{k}": 1.0 + rng.random() for k in range(MANY)}
    waiting = {name: desk.ask(name, [(A, 1, 0)], wait=wait) for name, wait in waits.items()}
    gone = rng.sample(sorted(waits), MANY - STALE_KEPT)
    for name in gone:
        found = waiting[name]
        assert found is not None
        desk.room.leave(found, ValueError())  # type: ignore[arg-type]
    more = {f"m{k}": 1.0 + rng.random() for k in range(MANY)}
    for name, wait in more.items():
        desk.ask(name, [(A, 1, 0)], wait=wait)
    left = {name: wait for name, wait in (waits | more).items() if name not in gone}
    began = desk.now
    for step in range(1, 21):
        desk.now = began + 1 + step / 20
        desk.room.expire(desk.now)
        desk.audit()
    assert desk.failures.keys() == left.keys() | set(gone)
    assert len(desk.room) == 0


def test_nobody_is_forgotten_where_many_have_gone() -> None:
    desk, names = Desk(queue_requests=10 * MANY), [f"w{k}" for k in range(MANY)]
    desk.ask("full", [(A, 10, 0)])
    for number, name in enumerate(names):
        found = desk.ask(name, [(A, 1, 0)], wait=50.0 - number / MANY)
        if number % 50:
            assert found is not None
            desk.room.leave(found, ValueError())  # type: ignore[arg-type]
    desk.ask("more", [(A, 1, 0)], wait=49.5)
    left = [name for number, name in enumerate(names) if not number % 50]
    desk.give_back("full")
    assert desk.order[1:] == [*[name for name in reversed(left) if 50.0 - int(name[1:]) / MANY < 49.5], "more",
                              *[name for name in reversed(left) if 50.0 - int(name[1:]) / MANY >= 49.5]]  # fmt: skip


def test_of_one_principal_what_is_smaller_passes_what_does_not_fit() -> None:
    desk = Desk()
    for name in ("some", "rest"):
        desk.ask(name, [(A, 5, 0)])
    desk.ask("large", [(A, 8, 0)], wait=1.0)
    desk.ask("small", [(A, 2, 0)], wait=5.0)
    desk.give_back("some")
    assert desk.order == ["some", "rest", "small"]
