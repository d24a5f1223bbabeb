"""What all readers of a node may hold."""

from __future__ import annotations

import heapq
import random

import pytest

from dispatcher.reading.read_budget import Grant, ReadBudget


def budget(nbytes: int = 100, segments: int = 4) -> ReadBudget:
    return ReadBudget(bytes_max=nbytes, segments_max=segments)


def asked(
    room: ReadBudget, nbytes: int, *, segments: int = 1, order: int = 1, into: list[str] | None = None, name: str = ""
) -> Grant:
    said = [] if into is None else into
    return room.ask(nbytes=nbytes, segments=segments, order=order, admitted=lambda: said.append(name))


def test_bytes_and_segments_are_admitted_together_or_not_at_all() -> None:
    room = budget()
    first = asked(room, 60, segments=3)
    bytes_short, segments_short = asked(room, 50, order=2), asked(room, 10, segments=2, order=3)
    assert (first.held, bytes_short.held, segments_short.held) == (True, False, False)
    assert (room.nbytes, room.segments) == (60, 3)
    first.read(60)
    assert not bytes_short.held  # and nobody passes it
    assert not segments_short.held
    first.release()
    assert bytes_short.held
    assert segments_short.held
    assert (room.nbytes, room.segments) == (60, 3)


def test_the_earliest_comes_first_and_equals_in_turn() -> None:
    room, said = budget(), list[str]()
    first = asked(room, 100)
    for name, order in (("late", 9), ("early", 2), ("later", 9)):
        asked(room, 60, order=order, into=said, name=name)
    first.release()
    assert said == ["early"]


def test_those_who_read_old_records_keep_nobody_from_the_new_ones() -> None:
    """Found by review: whoever followed a log waited until all who read its beginning had caught up."""
    room, said = budget(), list[str]()
    held = [asked(room, 50, order=1), asked(room, 50, order=2)]
    asked(room, 50, order=1000, into=said, name="new")
    for turn in range(3, 12):
        held.append(asked(room, 50, order=turn))
        held.pop(0).release()
    assert said == ["new"]


def test_what_is_larger_than_everything_goes_on_alone() -> None:
    room = budget()
    small = asked(room, 1)
    huge = asked(room, 1000, segments=99, order=2)
    assert not huge.held
    small.release()
    assert huge.held
    assert not asked(room, 1, order=3).held
    huge.release()
    assert room.nbytes == 1


def test_what_waits_for_its_client_goes_for_somebody_else() -> None:
    """The breaker of stalls: a client that takes nothing keeps nobody from reading."""
    room, gone = budget(), list[str]()
    slow, reading = asked(room, 60), asked(room, 30)
    slow.park(lambda: (gone.append("slow"), slow.release()))  # type: ignore[func-returns-value]
    assert not gone
    third = asked(room, 60, order=7)
    assert gone == ["slow"]
    assert third.held
    assert not slow.held
    fourth = asked(room, 60, order=8)
    assert not fourth.held  # the others read: that ends by itself
    reading.release()
    third.release()
    assert fourth.held


def test_refunds_are_made_once_and_leave_nothing() -> None:
    room = budget()
    held, waits = asked(room, 80), asked(room, 50, order=2)
    held.read(70)
    held.sent(30)
    assert room.nbytes == 40 + 50
    for _ in range(2):
        waits.release()
        held.release()
    assert (room.nbytes, room.segments, room.waiters) == (0, 0, 0)


def test_who_gives_up_in_the_line_is_not_waited_for() -> None:
    room, said = budget(), list[str]()
    held = asked(room, 100)
    first = asked(room, 100, order=1)
    asked(room, 10, order=2, into=said, name="second")
    first.release()
    held.release()
    assert said == ["second"]
    assert room.waiters == 0


def test_whatever_happens_it_stays_within_its_bounds_and_everybody_gets_a_turn() -> None:
    for seed in range(40):
        rng, room = random.Random(seed), budget()
        open_, served, wanted = list[Grant](), 0, 0
        for step in range(300):
            dice = rng.random()
            if dice < 0.5:
                wanted += 1
                open_.append(asked(room, rng.randint(1, 80), segments=rng.randint(1, 4), order=step))
            held = [g for g in open_ if g.held]
            if held and dice > 0.3:
                grant = rng.choice(held)
                if rng.random() < 0.3:
                    grant.park(grant.release)
                else:
                    grant.release()
            served += sum(not g.held and not g.waiting for g in open_)
            open_ = [g for g in open_ if g.held or g.waiting]
            assert room.nbytes <= 100, f"seed {seed}"
            assert room.segments <= 4, f"seed {seed}"
            assert room.nbytes == sum(g.nbytes for g in open_ if g.held), f"seed {seed}"
        while open_:
            for grant in [g for g in open_ if g.held]:
                grant.release()
            assert any(g.held for g in open_) or not any(g.waiting for g in open_), f"seed {seed}: nobody moves"
            open_ = [g for g in open_ if g.held or g.waiting]
        assert (room.nbytes, room.segments, room.waiters) == (0, 0, 0), f"seed {seed}"


def test_many_who_leave_at_once_are_not_looked_for_among_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by review: a client that left with 36,864 tails kept its node from all else for more than a minute."""
    budget, made = ReadBudget(bytes_max=10, segments_max=1), 0

    def counted(heap: list[object]) -> None:
        nonlocal made
        made += len(heap)
        heapify(heap)

    heapify = heapq.heapify
    monkeypatch.setattr(heapq, "heapify", counted)
    admitted: list[int] = []
    grants = [
        budget.ask(nbytes=10, segments=1, order=k % 7, admitted=lambda k=k: admitted.append(k))  # type: ignore[misc]
        for k in range(2000)
    ]
    random.Random(0).shuffle(grants)
    for grant in grants[:1900]:
        grant.release()
    assert budget.waiters <= 100
    assert made < 8 * 2000
    for grant in grants[1900:]:
        grant.release()
    assert (budget.waiters, budget.nbytes, budget.segments) == (0, 0, 0)
    assert len(set(admitted)) == len(admitted)
