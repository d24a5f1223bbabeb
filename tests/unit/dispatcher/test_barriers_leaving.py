"""Barriers: whoever leaves leaves nothing behind; any order of moves wakes exactly those who are reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.barriers.goals import Waiter
from logboom.errors import BarrierTimeout
from logboom.types import Level, PartitionId
from tests.unit.dispatcher.barrier_desk import PARTITIONS, WAITING_LEVELS, A, Answer, B, Desk, reached, waiters_alive


class TestLeaving:
    def test_a_cancelled_waiter_hears_nothing_more(self) -> None:
        desk = Desk()
        waiter, answers = desk.wait(5, [A, B], deadline=10.0)
        assert waiter is not None
        desk.barriers.cancel(waiter)
        desk.barriers.cancel(waiter)
        desk.apply(A, 5)
        desk.state(B, "paused")
        desk.barriers.expire(10.0)
        assert answers == []
        assert len(desk.barriers) == 0

    def test_a_client_that_goes_takes_its_own_and_only_those(self) -> None:
        desk = Desk()
        gone = [desk.wait(target, [A, B], client="gone")[1] for target in (1, 2, 3)]
        _, stays = desk.wait(2, [A], client="stays")
        desk.barriers.client_gone("gone")
        desk.barriers.client_gone("never here")
        assert len(desk.barriers) == 1
        desk.apply(A, 5)
        desk.apply(B, 5)
        assert gone == [[], [], []]
        assert reached(stays)

    def test_those_who_left_do_not_stay_in_memory(self) -> None:
        desk, before = Desk(), waiters_alive()
        for _ in range(10):
            for target in range(1, 101):
                desk.wait(target, PARTITIONS, client="gone", deadline=99.0)
            desk.barriers.client_gone("gone")
        assert waiters_alive() - before < 100

    def test_nor_do_those_who_were_answered_long_before_their_deadline(self) -> None:
        desk, before = Desk(), waiters_alive()
        for target in range(1, 1001):
            _, answers = desk.wait(target, [A], deadline=99.0)
            desk.apply(A, target)
            assert reached(answers)
        assert waiters_alive() - before < 100

    def test_what_one_leaves_behind_is_not_swept_up_at_the_price_of_all_that_others_wait_for(self) -> None:
        """A hundred barriers over all of ten thousand partitions, and reads that wait: a second of each in ten."""
        desk = Desk()
        swept, sweep = 0, desk.barriers._sweep

        def counted() -> None:
            nonlocal swept
            swept += 1
            sweep()

        desk.barriers._sweep = counted  # type: ignore[method-assign]
        for target in range(2_000, 4_000):
            desk.wait(target, PARTITIONS, client="stays", deadline=600.0)
        for target in range(1, 2_000):
            _, answers = desk.wait(target, [A], client="reads")
            desk.apply(A, target)
            assert reached(answers)
        assert swept == 0
        desk.barriers.client_gone("stays")
        assert swept >= 1
        heaps = [heap for heaps in desk.barriers._heaps.values() for heap in heaps.values()]
        assert sum(map(len, heaps)) == desk.barriers._entries <= 2 * 64

    def test_a_waiter_may_leave_while_others_are_woken(self) -> None:
        desk = Desk()
        later: list[Waiter] = []
        _, first = desk.wait(1, then=lambda: desk.barriers.cancel(later[0]))
        waiter, second = desk.wait(1)
        assert waiter is not None
        later.append(waiter)
        desk.apply(A, 1)
        assert reached(first)
        assert second == []

    def test_whoever_was_answered_may_ask_again_from_within_the_answer(self) -> None:
        desk = Desk()
        again: list[list[Answer]] = []
        desk.wait(1, then=lambda: again.append(desk.wait(2)[1]))
        desk.apply(A, 1)
        assert again == [[]]
        desk.apply(A, 2)
        assert reached(again[0])

    def test_also_when_the_answer_swept_the_heaps(self) -> None:
        desk = Desk()
        for _ in range(64):  # one short of a sweep
            waiter, _ = desk.wait(1, [B])
            assert waiter is not None
            desk.barriers.cancel(waiter)
        again: list[list[Answer]] = []
        desk.wait(1, [A], then=lambda: again.append(desk.wait(2, [A])[1]))
        desk.apply(A, 1)
        desk.apply(A, 2)
        assert reached(again[0])


SUBSETS = st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3, unique=True)
WAIT = st.tuples(
    st.just("wait"),
    st.integers(0, 12),
    SUBSETS,
    st.sampled_from(WAITING_LEVELS),
    st.sampled_from("xy"),
    st.integers(1, 20),
)
MOVE = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["apply", "durable"]), st.sampled_from(PARTITIONS), st.integers(0, 12)),
    st.tuples(st.just("cancel"), st.integers(0, 100)),
    st.tuples(st.just("gone"), st.sampled_from("xy")),
    st.tuples(st.just("time"), st.integers(0, 4)),
)


class Model:
    """What is reached, worked out anew for everybody after every step."""

    def __init__(self) -> None:
        self.commit = 0
        self.now = 0
        self.applied = dict.fromkeys(PARTITIONS, 0)
        self.durable = dict.fromkeys(PARTITIONS, 0)

    def behind(self, target: int, partitions: Sequence[PartitionId], level: Level) -> list[PartitionId]:
        def frontier(p: PartitionId) -> int:
            if level is Level.APPLIED:
                return self.applied[p]
            return max(self.applied[p], self.durable[p]) if level is Level.DURABLE else self.commit

        return sorted(p for p in partitions if frontier(p) < target)


@settings(max_examples=400, deadline=None)
@given(st.lists(WAIT | MOVE, max_size=60))
def test_any_order_of_moves_wakes_exactly_those_who_are_reached(steps: list[Any]) -> None:
    desk, model = Desk(), Model()
    waiting: list[tuple[Any, Waiter, list[Answer]]] = []
    left: list[list[Answer]] = []
    for step in steps:
        kind = step[0]
        if kind == "wait":
            _, target, partitions, level, client, patience = step
            deadline = model.now + patience
            waiter, answers = desk.wait(target, partitions, level, client=client, deadline=deadline, now=model.now)
            assert (waiter is None) == (not model.behind(target, partitions, level))
            assert reached(answers) == (waiter is None)
            if waiter is not None:
                waiting.append(((target, partitions, level, client, deadline), waiter, answers))
        elif kind == "commit":
            model.commit += step[1]
            desk.commit(model.commit)
        elif kind == "apply":
            model.applied[step[1]] = max(model.applied[step[1]], step[2])
            desk.apply(step[1], step[2])
        elif kind == "durable":
            model.durable[step[1]] = max(model.durable[step[1]], step[2])
            desk.barriers.durable(step[1], step[2])
        elif kind == "time":
            model.now += step[1]
            desk.barriers.expire(model.now)
        elif kind == "cancel" and waiting:
            _, waiter, answers = waiting.pop(step[1] % len(waiting))
            desk.barriers.cancel(waiter)
            left.append(answers)
        elif kind == "gone":
            desk.barriers.client_gone(step[1])
            left += [answers for (*_, client, _), _, answers in waiting if client == step[1]]
            waiting = [entry for entry in waiting if entry[0][3] != step[1]]
        still = []
        for entry in waiting:
            (target, partitions, level, _, deadline), _, answers = entry
            behind = model.behind(target, partitions, level)
            if not behind:
                assert answers == [desk.watermarks.all(partitions)]
            elif kind == "time" and deadline <= model.now:
                (error,) = answers
                assert isinstance(error, BarrierTimeout)
                assert error.behind == behind
            else:
                assert answers == []
                still.append(entry)
        waiting = still
        assert len(desk.barriers) == len(waiting)
    for _, waiter, answers in waiting:
        desk.barriers.cancel(waiter)
        left.append(answers)
    desk.commit(model.commit + 20)
    for p in PARTITIONS:
        desk.apply(p, 20)
    desk.barriers.expire(model.now + 1000)
    assert not any(left)
    assert len(desk.barriers) == 0
    assert not any(desk.barriers.awaits_applied(p) for p in PARTITIONS)


def test_of_clients_that_wait_no_more_nothing_is_kept() -> None:
    desk = Desk()
    for client in range(10):
        waiter, _ = desk.wait(5, client=client, principal="p")
        assert waiter is not None
        desk.barriers.cancel(waiter)
    quotas = desk.barriers._quotas
    assert (len(quotas), quotas._clients, quotas._principals) == (0, {}, {})
