"""Barriers: modes, vectors, equal wants, quotas, leadership; nothing is walked that is not concerned."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.barriers import barriers as barriers_module
from dispatcher.barriers.goals import Reached, Want
from logboom.errors import (
    BarrierBlocked,
    BarrierFuture,
    BarrierTimeout,
    InvalidRequest,
    LogboomError,
    NotLeader,
    PartitionDestroyed,
    QuotaExceeded,
)
from logboom.types import GlobalLogIndex, Level, PartitionId
from tests.unit.dispatcher.barrier_desk import PARTITIONS, A, Answer, B, C, Desk, reached


def vector(desk: Desk, targets: dict[PartitionId, int], **how: Any) -> list[Reached | LogboomError]:
    answers: list[Reached | LogboomError] = []
    want = Want(tuple((p, GlobalLogIndex(t)) for p, t in targets.items()), **how)
    desk.barriers.add(want, client="client", deadline=100.0, now=0.0, done=answers.append)
    return answers


class TestModes:
    def test_any_is_reached_with_the_first(self) -> None:
        desk = Desk()
        _, answers = desk.wait(5, [A, B, C], need=1)
        desk.apply(B, 4)
        assert answers == []
        desk.apply(B, 5)
        assert reached(answers)
        assert len(desk.barriers) == 0

    def test_so_many_are_so_many(self) -> None:
        desk = Desk()
        _, answers = desk.wait(5, [A, B, C], need=2)
        desk.apply(C, 9)
        assert answers == []
        desk.apply(A, 5)
        assert reached(answers)

    def test_more_than_there_are_can_never_be(self) -> None:
        with pytest.raises(InvalidRequest, match="3 of 2"):
            Desk().wait(5, [A, B], need=3)

    def test_one_that_is_blocked_holds_up_only_those_who_need_it(self) -> None:
        desk = Desk()
        desk.state(B, "paused")
        _, any_of_them = desk.wait(5, [A, B], need=1)
        assert any_of_them == []
        _, both = desk.wait(5, [A, B], need=2)
        assert isinstance(both[0], BarrierBlocked)
        desk.state(A, "damaged")
        assert isinstance(any_of_them[0], BarrierBlocked)
        assert any_of_them[0].blocked == [[A, "damaged"], [B, "paused"]]

    def test_one_that_is_destroyed_ends_only_those_who_need_it(self) -> None:
        desk = Desk()
        _, two_of_three = desk.wait(5, [A, B, C], need=2)
        _, all_three = desk.wait(5, [A, B, C])
        desk.barriers.ended(C, lambda: PartitionDestroyed("gone"))
        desk.watermarks.remove(C)
        assert isinstance(all_three[0], PartitionDestroyed)
        desk.apply(A, 5)
        assert two_of_three == []
        desk.apply(B, 5)
        assert two_of_three == [desk.watermarks.all([A, B])]

    def test_who_is_told_because_one_is_destroyed_does_not_hear_of_it_as_if_it_were_there(self) -> None:
        """Simulator: of two that "may get there" one was paused, and the other on its way out."""
        desk = Desk()
        _, either = desk.wait(5, [A, C], Level.APPLIED, need=1)
        desk.state(A, "paused")
        assert either == []
        desk.barriers.ended(C, lambda: PartitionDestroyed("gone"))
        assert isinstance(either[0], BarrierBlocked)
        assert either[0].blocked == [[A, "paused"]]
        assert list(either[0].frontiers) == [A]

    def test_one_that_is_destroyed_does_not_count_as_there(self) -> None:
        desk = Desk()
        desk.apply(C, 5)
        _, answers = desk.wait(5, [A, B, C], need=2)
        desk.barriers.ended(C, lambda: PartitionDestroyed("gone"))
        desk.watermarks.remove(C)
        desk.apply(A, 5)
        assert answers == []
        desk.barriers.expire(100.0)
        assert isinstance(answers[0], BarrierTimeout)
        assert answers[0].behind == [B]


class TestVectors:
    def test_each_partition_has_its_own_target(self) -> None:
        desk = Desk()
        answers = vector(desk, {A: 3, B: 7})
        desk.apply(A, 3)
        desk.apply(B, 6)
        assert answers == []
        desk.apply(B, 7)
        (answer,) = answers
        assert isinstance(answer, Reached)
        assert answer.frontiers == [(A, 3), (B, 7)]

    def test_a_timeout_tells_how_far_each_was(self) -> None:
        desk = Desk()
        answers = vector(desk, {A: 3, B: 7}, level=Level.DURABLE)
        desk.barriers.durable(A, 4)
        desk.barriers.durable(B, 5)
        desk.barriers.expire(100.0)
        (error,) = answers
        assert isinstance(error, BarrierTimeout)
        assert (error.behind, error.frontiers) == ([B], {A: 4, B: 5})
        assert [mark.applied_global_index for mark in error.watermarks] == [0, 0]


class TestSnapshotted:
    def test_it_follows_complete_sets_and_nothing_else(self) -> None:
        desk = Desk()
        _, answers = desk.wait(5, [A, B], Level.SNAPSHOTTED)
        desk.commit(9)
        for partition in (A, B):
            desk.apply(partition, 9)
            desk.barriers.durable(partition, 9)
        desk.barriers.snapshotted(A, 6)
        assert answers == []
        desk.barriers.snapshotted(B, 5)
        assert reached(answers)

    def test_an_older_set_takes_nothing_back(self) -> None:
        desk = Desk()
        desk.barriers.snapshotted(A, 6)
        desk.barriers.snapshotted(A, 3)
        assert desk.barriers.frontier(A, Level.SNAPSHOTTED) == 6


class TestEqualWants:
    def test_they_are_one_goal_and_each_is_answered(self) -> None:
        desk = Desk()
        told = [desk.wait(5, [A, B], client=n)[1] for n in range(1000)]
        assert len(desk.barriers._goals) == 1
        assert [len(heap) for heaps in desk.barriers._heaps.values() for heap in heaps.values()] == [1, 1]
        desk.apply(A, 5)
        desk.apply(B, 5)
        assert all(reached(answers) for answers in told)
        assert len(desk.barriers) == len(desk.barriers._goals) == 0

    def test_one_that_leaves_takes_nothing_from_the_others(self) -> None:
        desk = Desk()
        waiter, left = desk.wait(5)
        _, stays = desk.wait(5)
        assert waiter is not None
        desk.barriers.cancel(waiter)
        desk.apply(A, 5)
        assert (left, reached(stays)) == ([], True)

    def test_each_has_its_own_deadline_and_patience(self) -> None:
        desk = Desk()
        _, early = desk.wait(5, deadline=1.0)
        _, late = desk.wait(5, deadline=9.0)
        _, patient = desk.wait(5, wait_blocked=True)
        desk.barriers.expire(1.0)
        desk.state(A, "paused")
        assert [type(answers[0]) for answers in (early, late)] == [BarrierTimeout, BarrierBlocked]
        assert patient == []

    def test_committed_and_ordered_are_the_same(self) -> None:
        desk = Desk()
        desk.wait(5, level=Level.COMMITTED)
        desk.wait(5, level=Level.ORDERED)
        assert len(desk.barriers._goals) == 1


class TestCost:
    """What is not concerned is not looked at: counted, not timed."""

    def test_a_commit_looks_at_no_heap_that_it_does_not_reach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        desk = Desk()
        for target in range(1000, 2000):
            desk.wait(target, PARTITIONS)
        looked = []
        monkeypatch.setattr(desk.barriers, "_wake", lambda *key: looked.append(key))
        for index in range(1, 500):
            desk.commit(index)
        assert looked == []

    def test_a_commit_wakes_whoever_follows_it_after_others_were_ahead(self) -> None:
        desk = Desk()
        desk.apply(A, 1, idle=True)
        told = {target: desk.wait(target)[1] for target in (50, 20, 30)}
        for index in range(2, 60):
            desk.commit(index)
            assert [t for t, answers in told.items() if answers] == [t for t in (50, 20, 30) if t <= index]

    def test_a_client_that_goes_costs_its_own_waiters_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        desk = Desk()
        for n in range(500):
            desk.wait(5 + n, client="stays")
        desk.wait(7, client="gone")
        cancelled = []
        cancel = desk.barriers.cancel
        monkeypatch.setattr(desk.barriers, "cancel", lambda waiter: (cancelled.append(waiter), cancel(waiter)))
        desk.barriers.client_gone("gone")
        assert len(cancelled) == 1
        assert len(desk.barriers) == 500

    def test_a_partition_that_stays_blocked_is_told_of_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        desk = Desk()
        desk.state(A, "paused")
        desk.wait(99, wait_blocked=True)
        told = []
        monkeypatch.setattr(desk.barriers, "_tell_blocked", told.append)
        for index in range(1, 50):
            desk.apply(A, index, state="paused")
        assert told == []
        desk.state(A, "running")
        desk.state(A, "paused")
        assert told == [A]

    def test_what_is_answered_is_not_kept_for_the_commit_index(self) -> None:
        desk = Desk()
        for target in range(1, 2000):
            desk.wait(target + 10)
            desk.apply(A, target + 10)
        kept = desk.barriers._ahead, desk.barriers._deadlines, desk.barriers._due
        assert max(map(len, kept)) <= 2 * barriers_module.DEAD_KEPT + 2


class TestQuotas:
    def test_a_certificate_counts_over_all_its_connections(self) -> None:
        desk = Desk(waiters_per_principal=3)
        for n in range(3):
            desk.wait(5 + n, client=n, principal="spark.example")
        with pytest.raises(QuotaExceeded, match=r"spark\.example") as refused:
            desk.wait(9, client=4, principal="spark.example")
        assert (refused.value.limit, refused.value.used) == (3, 3)
        desk.wait(9, client=4, principal="another")
        desk.barriers.client_gone(1)
        desk.wait(9, client=4, principal="spark.example")

    def test_places_are_kept_for_the_node_itself(self) -> None:
        desk = Desk(waiters_max=3, waiters_reserved=2)
        desk.wait(5)
        with pytest.raises(QuotaExceeded) as refused:
            desk.wait(6)
        assert refused.value.limit == 1
        desk.wait(6, own=True, client="node")
        desk.wait(7, own=True, client="node")
        with pytest.raises(QuotaExceeded):
            desk.wait(8, own=True, client="node")

    def test_the_node_itself_may_wait_as_often_and_as_long_as_it_likes(self) -> None:
        desk = Desk(waiters_per_client=1, waiters_per_principal=1, wait_ms_max=10, ahead_max=1)
        for n in range(5):
            desk.wait(100 + n, own=True, client="node", deadline=float("inf"))
        assert len(desk.barriers) == 5

    def test_an_answer_at_once_needs_no_place(self) -> None:
        desk = Desk(waiters_max=1)
        desk.wait(5)
        desk.apply(B, 5)
        assert reached(desk.wait(5, [B])[1])

    def test_a_target_absurdly_far_ahead_has_its_own_error(self) -> None:
        desk = Desk(ahead_max=10)
        desk.commit(3)
        with pytest.raises(BarrierFuture) as refused:
            desk.wait(14)
        assert (refused.value.target, refused.value.commit_index, refused.value.limit) == (14, 3, 10)


class TestLeading:
    def test_who_waits_for_the_leader_is_told_that_it_is_no_longer_here(self) -> None:
        desk = Desk()
        _, of_leader = desk.wait(5, leading=True)
        _, of_node = desk.wait(5)
        desk.barriers.lost_leadership(lambda: NotLeader("gone", leader="n2:1"))
        assert isinstance(of_leader[0], NotLeader)
        assert of_node == []
        desk.barriers.lost_leadership(lambda: NotLeader("gone", leader="n2:1"))
        desk.apply(A, 5)
        assert len(of_leader) == 1
        assert reached(of_node)

    def test_who_was_answered_is_not_kept_for_the_end_of_a_term(self) -> None:
        desk = Desk()
        desk.wait(5, leading=True)
        desk.apply(A, 5)
        assert not desk.barriers._leading

    @pytest.mark.parametrize(("target", "is_blocked"), [(5, False), (6, True)])
    def test_a_leader_knows_that_nobody_writes_to_what_is_frozen(self, target: int, is_blocked: bool) -> None:
        desk = Desk()
        desk.commit(5)
        desk.barriers.lead()
        _, before = desk.wait(target)
        desk.state(A, "frozen")
        _, after = desk.wait(target)
        assert [isinstance(answers[:1] and answers[0], BarrierBlocked) for answers in (before, after)] == [
            is_blocked
        ] * 2

    def test_whoever_waits_at_what_is_frozen_is_told_when_his_node_comes_to_lead(self) -> None:
        """Found by reading: he waited all of his time, and who came a moment later was told at once."""
        desk = Desk()
        desk.commit(5)
        desk.state(A, "frozen")
        desk.state(B, "paused")
        _, ahead = desk.wait(6, [A])
        _, committed = desk.wait(5, [A])
        _, other = desk.wait(6, [C])
        assert (ahead, committed, other) == ([], [], [])
        desk.barriers.lead()
        (error,) = ahead
        assert isinstance(error, BarrierBlocked)
        assert error.blocked == [[A, "frozen"]]
        assert (committed, other) == ([], [])
        _, after = desk.wait(6, [A])
        assert isinstance(after[0], BarrierBlocked)


def test_each_is_told_once_what_became_of_it() -> None:
    desk = Desk()
    there = [desk.wait(target)[1] for target in (0, 1, 1)]
    desk.apply(A, 1)
    _, late = desk.wait(9, deadline=1.0)
    desk.barriers.expire(1.0)
    desk.state(B, "paused")
    _, stuck = desk.wait(9, [B])
    assert [reached(answers) for answers in there] == [True] * 3
    assert [type(answer) for answer in (*late, *stuck)] == [BarrierTimeout, BarrierBlocked]


def test_an_answer_may_cancel_another_of_the_same_goal() -> None:
    desk = Desk()
    later: list[Any] = []
    _, first = desk.wait(1, then=lambda: desk.barriers.cancel(later[0]))
    waiter, second = desk.wait(1)
    later.append(waiter)
    told: list[Answer] = desk.wait(1)[1]
    desk.apply(A, 1)
    assert (reached(first), second, reached(told)) == (True, [], True)
