"""Barriers: whoever waits is answered once, when it is true or when it is too late."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.barriers.watermarks import to_row
from logboom.errors import BarrierBlocked, BarrierTimeout, InvalidRequest, LogboomError, NoSuchPartition, QuotaExceeded
from logboom.types import GlobalLogIndex, Level, NodeId, PartitionId, PartitionLogIndex, Scope
from tests.unit.dispatcher.barrier_desk import PARTITIONS, A, B, C, Desk, reached


class TestReaching:
    def test_what_is_there_already_is_answered_at_once(self) -> None:
        desk = Desk()
        desk.apply(A, 5)
        waiter, answers = desk.wait(5)
        assert waiter is None
        assert answers == [desk.watermarks.all([A])]
        assert len(desk.barriers) == 0

    def test_it_waits_for_the_last_of_its_partitions(self) -> None:
        desk = Desk()
        _, answers = desk.wait(5, [A, C])
        desk.apply(A, 9)
        desk.apply(B, 9)
        desk.apply(C, 4)
        assert answers == []
        desk.apply(C, 5)
        assert [to_row(mark)[5] for mark in answers[0]] == [9, 5]  # type: ignore[union-attr]

    def test_the_answer_shows_where_partitions_were_at_that_moment(self) -> None:
        desk = Desk()
        _, answers = desk.wait(5, [A])
        desk.apply(A, 7)
        then = desk.watermarks.all([A])
        desk.apply(A, 20)
        assert answers == [then]

    def test_only_what_is_reached_wakes(self) -> None:
        desk = Desk()
        told = {target: desk.wait(target)[1] for target in (3, 1, 4, 2, 5)}
        desk.apply(A, 3)
        assert sorted(target for target, answers in told.items() if answers) == [1, 2, 3]
        assert len(desk.barriers) == 2

    def test_without_partitions_there_is_nothing_to_wait_for(self) -> None:
        _, answers = Desk().wait(5, [])
        assert answers == [[]]

    @pytest.mark.parametrize("level", [Level.ORDERED, Level.COMMITTED])
    def test_ordered_follows_the_commit_index_alone(self, level: Level) -> None:
        desk = Desk()
        _, answers = desk.wait(5, [A, B], level)
        desk.apply(A, 9)
        desk.barriers.durable(A, 9)
        desk.barriers.durable(B, 9)
        desk.commit(4)
        assert answers == []
        desk.commit(5)
        assert reached(answers)

    def test_durable_does_not_wait_for_apply(self) -> None:
        desk = Desk()
        _, answers = desk.wait(5, [A], Level.DURABLE)
        desk.commit(6)
        assert answers == []
        desk.barriers.durable(A, 5)
        assert reached(answers)

    def test_what_is_applied_is_durable(self) -> None:
        desk = Desk()
        _, answers = desk.wait(5, [A], Level.DURABLE)
        desk.apply(A, 5)
        assert reached(answers)

    def test_a_partition_all_of_which_is_durable_follows_the_commit_index(self) -> None:
        desk = Desk()
        _, answers = desk.wait(5, [A], Level.DURABLE)
        desk.barriers.durable(A, 1, whole=True)
        assert answers == []
        desk.commit(5)
        assert reached(answers)

    def test_and_no_longer_once_something_is_not_durable(self) -> None:
        desk = Desk()
        _, answers = desk.wait(5, [A], Level.DURABLE)
        desk.barriers.durable(A, 1, whole=True)
        desk.barriers.durable(A, 1, whole=False)
        desk.commit(5)
        assert answers == []

    def test_where_all_of_it_was_durable_once_stays_so(self) -> None:
        desk = Desk()
        desk.barriers.durable(A, 1, whole=True)
        desk.commit(5)
        desk.barriers.durable(A, 1, whole=False)  # what comes behind 5 is not
        desk.commit(7)
        assert desk.barriers.frontier(A, Level.DURABLE) == 5

    def test_a_durable_index_never_goes_back(self) -> None:
        desk = Desk()
        desk.barriers.durable(A, 5)
        desk.barriers.durable(A, 2)
        assert desk.barriers.frontier(A, Level.DURABLE) == 5

    def test_an_idle_partition_is_reached_by_the_commit_index(self) -> None:
        desk = Desk()
        desk.apply(A, 1, idle=True)
        _, answers = desk.wait(5, [A])
        desk.commit(5)
        assert reached(answers)

    def test_the_dispatcher_hears_for_whom_applying_is_urgent(self) -> None:
        desk = Desk()
        desk.wait(5, [A])
        desk.wait(5, [B], Level.DURABLE)
        assert [desk.barriers.awaits_applied(p) for p in PARTITIONS] == [True, False, False]
        desk.apply(A, 5)
        assert not desk.barriers.awaits_applied(A)

    def test_nothing_is_urgent_for_those_who_left(self) -> None:
        desk = Desk()
        waiter, _ = desk.wait(5, [A])
        assert waiter is not None
        desk.barriers.cancel(waiter)
        assert not desk.barriers.awaits_applied(A)


class TestTime:
    def test_too_late_names_who_is_behind_and_where_everybody_is(self) -> None:
        desk = Desk()
        _, answers = desk.wait(5, [C, A, B], deadline=10.0)
        desk.apply(A, 6)
        desk.apply(C, 4)
        desk.barriers.expire(9.999)
        assert answers == []
        desk.barriers.expire(10.0)
        (error,) = answers
        assert type(error) is BarrierTimeout
        assert (error.target, error.behind) == (5, [B, C])
        assert error.fields["watermarks"] == [to_row(mark) for mark in desk.watermarks.all([C, A, B])]
        assert error.watermarks == tuple(desk.watermarks.all([C, A, B]))
        assert "5" in error.message
        assert error.retryable

    def test_nobody_is_answered_twice(self) -> None:
        desk = Desk()
        _, late = desk.wait(5, [A], deadline=10.0)
        _, in_time = desk.wait(3, [A], deadline=10.0)
        desk.apply(A, 3)
        desk.barriers.expire(10.0)
        desk.apply(A, 5)
        desk.barriers.expire(20.0)
        assert reached(in_time)
        assert len(late) == 1
        assert isinstance(late[0], BarrierTimeout)

    def test_deadlines_pass_in_their_order_and_not_in_that_of_asking(self) -> None:
        desk = Desk()
        told = {deadline: desk.wait(5, deadline=deadline)[1] for deadline in (30.0, 10.0, 20.0)}
        desk.barriers.expire(20.0)
        assert [deadline for deadline, answers in sorted(told.items()) if answers] == [10.0, 20.0]

    def test_a_deadline_that_has_passed_already_is_answered_with_the_next_tick(self) -> None:
        desk = Desk()
        _, answers = desk.wait(5, deadline=1.0, now=2.0)
        desk.barriers.expire(2.0)
        assert isinstance(answers[0], BarrierTimeout)


class TestBlocked:
    @pytest.mark.parametrize(
        ("state", "level"),
        [
            ("paused", Level.APPLIED),
            ("paused", Level.SNAPSHOTTED),
            ("damaged", Level.APPLIED),
            ("damaged", Level.SNAPSHOTTED),
            ("lost", Level.DURABLE),
        ],
    )
    def test_a_blocked_partition_is_told_at_once(self, state: str, level: Level) -> None:
        desk = Desk()
        desk.state(B, state)
        waiter, (error,) = desk.wait(5, [A, B], level)
        assert waiter is None
        assert isinstance(error, BarrierBlocked)
        assert (error.blocked, error.target) == ([[B, state]], 5)
        assert error.watermarks == tuple(desk.watermarks.all([A, B]))
        assert f"partition 1 is {state}" in error.message
        assert len(desk.barriers) == 0

    @pytest.mark.parametrize("state", ["paused", "damaged"])
    def test_one_that_is_not_applied_is_synced_all_the_same(self, state: str) -> None:
        """A job from Spark that waited for `durable` was told of a follower's pause, which holds up nothing of that."""
        desk = Desk()
        desk.state(B, state)
        waiter, answers = desk.wait(5, [B], Level.DURABLE)
        assert waiter is not None
        assert answers == []

    def test_one_that_becomes_blocked_wakes_those_who_wait_for_it_and_no_others(self) -> None:
        desk = Desk()
        _, of_it = desk.wait(5, [A, B])
        _, of_another = desk.wait(5, [A])
        desk.state(B, "paused")
        assert isinstance(of_it[0], BarrierBlocked)
        assert of_another == []

    def test_who_waits_for_less_than_is_applied_is_not_blocked(self) -> None:
        desk = Desk()
        desk.apply(B, 7, state="paused")
        _, answers = desk.wait(7, [B])
        assert reached(answers)

    def test_who_has_that_partition_behind_already_is_not_blocked_by_it(self) -> None:
        desk = Desk()
        _, answers = desk.wait(5, [A, B])
        desk.apply(B, 5)
        desk.state(B, "damaged")
        assert answers == []
        desk.apply(A, 5)
        assert reached(answers)

    @pytest.mark.parametrize("level", [Level.ORDERED, Level.COMMITTED])
    def test_the_parent_log_knows_no_blocked_partition(self, level: Level) -> None:
        desk = Desk()
        desk.state(A, "paused")
        _, answers = desk.wait(5, [A], level)
        desk.state(A, "damaged")
        assert answers == []
        desk.commit(5)
        assert reached(answers)

    @pytest.mark.parametrize("state", ["retrying", "frozen", "running"])
    def test_states_that_may_pass_by_themselves_do_not_block(self, state: str) -> None:
        desk = Desk()
        desk.state(A, state)
        _, answers = desk.wait(5, [A])
        assert answers == []

    @pytest.mark.parametrize("reach", [Scope.NODE, Scope.QUORUM, Scope.ALL])
    def test_one_that_is_paused_with_nothing_left_to_apply_is_waited_for(self, reach: Scope) -> None:
        """Whoever came in the moment before a follower heard of his own commit was told of the pause, for good."""
        desk = Desk()
        desk.barriers.others.set_members(NodeId("n1"), [NodeId("n1")], [NodeId("n1")])
        desk.apply(B, 4, state="paused", idle=True)
        desk.commit(4)
        _, answers = desk.wait(5, [B], reach=reach)
        assert answers == []
        desk.commit(5)
        assert reached(answers)

    def test_once_it_has_something_to_apply_it_holds_up_whoever_waits(self) -> None:
        desk = Desk()
        desk.apply(B, 4, state="paused", idle=True)
        desk.commit(4)
        _, before = desk.wait(5, [B])
        _, patient = desk.wait(5, [B], wait_blocked=True)
        desk.watermarks.update(
            B,
            log_index=PartitionLogIndex(5),
            durable_index=PartitionLogIndex(5),
            applied_index=PartitionLogIndex(4),
            applied_global_index=GlobalLogIndex(4),
            state="paused",
            idle=False,
        )
        _, after = desk.wait(5, [B])
        for answers in (before, after):
            assert [getattr(answer, "blocked", None) for answer in answers] == [[[B, "paused"]]]
        desk.commit(5)
        desk.apply(B, 5)
        assert reached(patient)

    def test_who_wants_to_wait_for_the_operator_waits(self) -> None:
        desk = Desk()
        desk.state(A, "paused")
        _, before = desk.wait(5, [A], wait_blocked=True)
        _, after = desk.wait(5, [B], wait_blocked=True)
        desk.state(B, "paused")
        assert before == after == []
        desk.apply(A, 5)
        assert reached(before)
        desk.barriers.expire(100.0)
        assert type(after[0]) is BarrierTimeout


class TestBadInput:
    def refused(self, desk: Desk, kind: type[LogboomError], **how: Any) -> Any:
        before = len(desk.barriers)
        with pytest.raises(kind) as error:
            desk.wait(**{"target": 5, **how})
        assert len(desk.barriers) == before
        return error.value

    def test_a_partition_that_does_not_exist_is_named(self) -> None:
        error = self.refused(Desk(), NoSuchPartition, partitions=[A, PartitionId(77)])
        assert error.partition_id == 77
        assert "77" in error.message

    def test_a_partition_that_appears_twice(self) -> None:
        self.refused(Desk(), InvalidRequest, partitions=[A, B, A])

    def test_a_target_too_far_ahead_tells_the_commit_index_and_the_limit(self) -> None:
        desk = Desk(ahead_max=10)
        desk.commit(3)
        message = self.refused(desk, InvalidRequest, target=14).message
        assert "14" in message
        assert "commit index is 3" in message
        assert "10 ahead" in message
        desk.wait(13)
        desk.commit(4)
        desk.wait(14)

    def test_a_wait_longer_than_allowed_tells_the_limit(self) -> None:
        error = self.refused(Desk(wait_ms_max=5000), InvalidRequest, now=10.0, deadline=17.0)
        assert "5000 ms" in error.message

    def test_a_refused_barrier_is_not_counted(self) -> None:
        desk = Desk(waiters_per_client=1)
        for how in ({"partitions": [A, A]}, {"partitions": [PartitionId(9)]}, {"target": 1 << 40}):
            self.refused(desk, InvalidRequest, **how)
        assert len(desk.barriers) == 0
        desk.wait(5)
        assert len(desk.barriers) == 1

    def test_too_many_of_one_client(self) -> None:
        desk = Desk(waiters_per_client=2)
        waiter, _ = desk.wait(5)
        desk.wait(6)
        error = self.refused(desk, QuotaExceeded)
        assert (error.limit, error.used, error.retry_after) == (2, 2, 0.1)
        assert error.retryable
        desk.wait(5, client="another")
        assert waiter is not None
        desk.barriers.cancel(waiter)
        desk.wait(5)
        self.refused(desk, QuotaExceeded)

    @pytest.mark.parametrize("freed_by", ["answer", "timeout", "leaving"])
    def test_each_way_out_frees_the_place(self, freed_by: str) -> None:
        desk = Desk(waiters_per_client=1, waiters_max=1)
        desk.wait(1, deadline=10.0)
        if freed_by == "answer":
            desk.apply(A, 1)
        elif freed_by == "timeout":
            desk.barriers.expire(10.0)
        else:
            desk.barriers.client_gone("client")
        waiter, _ = desk.wait(9)
        assert waiter is not None

    def test_too_many_of_all_clients(self) -> None:
        desk = Desk(waiters_max=2)
        desk.wait(5, client="one")
        desk.wait(5, client="two")
        self.refused(desk, QuotaExceeded, client="three")
        desk.apply(A, 5)
        desk.wait(6, client="three")

    def test_a_full_node_names_its_own_limit_and_use(self) -> None:
        desk = Desk(waiters_max=2)
        desk.wait(5, client="one")
        desk.wait(5, client="two")
        error = self.refused(desk, QuotaExceeded, client="three")
        assert (error.limit, error.used) == (2, 2)
