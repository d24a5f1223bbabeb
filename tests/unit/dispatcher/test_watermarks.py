"""Watermarks: in their order, never back, and carried by the commit index while there is nothing to apply."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.barriers.watermarks import Watermarks, to_row
from logboom.types import PartitionId, PartitionLogIndex, Watermark
from ports.invariant import InvariantViolated
from tests.unit.dispatcher.frontier_world import move

A, B = PARTITIONS = (PartitionId(4), PartitionId(7))


class TestSnapshots:
    def test_one_that_is_known_before_the_log_is_replayed_shows_as_far_as_it_is(self) -> None:
        """After a start the newest set is known at once (I1)."""
        marks = Watermarks(PARTITIONS)
        marks.snapshotted(A, PartitionLogIndex(5))
        assert marks.of(A).snapshot_index == 0
        move(marks, A, 3)
        assert marks.of(A).snapshot_index == 3
        move(marks, A, 9)
        assert marks.of(A).snapshot_index == 5

    def test_an_older_one_changes_nothing(self) -> None:
        marks = Watermarks(PARTITIONS)
        move(marks, A, 9)
        marks.snapshotted(A, PartitionLogIndex(5))
        marks.snapshotted(A, PartitionLogIndex(4))
        assert marks.of(A).snapshot_index == 5


class TestMoving:
    def test_everything_begins_at_nothing_and_running(self) -> None:
        marks = Watermarks(PARTITIONS)
        assert [to_row(mark) for mark in marks.all()] == [[p, 0, 0, 0, 0, 0, "running"] for p in PARTITIONS]

    def test_an_update_is_seen_by_whoever_looks_and_by_every_listener(self) -> None:
        marks = Watermarks(PARTITIONS)
        heard: list[tuple[str, Watermark]] = []
        marks.listen(lambda mark: heard.append(("first", mark)))
        marks.listen(lambda mark: heard.append(("second", mark)))
        move(marks, A, 3, log=9, durable=5, at=30)
        assert to_row(marks.of(A)) == [A, 9, 5, 3, 0, 30, "running"]
        assert heard == [("first", marks.of(A)), ("second", marks.of(A))]
        assert to_row(marks.of(B)) == [B, 0, 0, 0, 0, 0, "running"]

    def test_what_does_not_change_is_not_told(self) -> None:
        marks = Watermarks(PARTITIONS)
        heard: list[Watermark] = []
        move(marks, A, 3)
        marks.listen(heard.append)
        move(marks, A, 3)
        assert heard == []

    def test_a_change_of_state_alone_is_told(self) -> None:
        marks = Watermarks(PARTITIONS)
        heard: list[str] = []
        move(marks, A, 3)
        marks.listen(lambda mark: heard.append(mark.state))
        move(marks, A, 3, state="paused")
        move(marks, A, 3, state="running")
        assert heard == ["paused", "running"]

    def test_a_log_that_is_replayed_after_a_start_trails_and_still_keeps_the_order(self) -> None:
        marks = Watermarks(PARTITIONS)
        move(marks, A, 8, log=0, durable=0, at=20)
        assert to_row(marks.of(A)) == [A, 8, 8, 8, 0, 20, "running"]

    def test_a_partition_that_does_not_exist_is_a_key_error(self) -> None:
        with pytest.raises(KeyError):
            Watermarks(PARTITIONS).of(PartitionId(5))


class TestInvariants:
    @pytest.mark.parametrize("back", ["log", "durable"])
    def test_an_index_that_goes_back_stops_the_node(self, back: str) -> None:
        marks = Watermarks(PARTITIONS)
        move(marks, A, 5, log=9, durable=8)
        with pytest.raises(InvariantViolated, match="I7"):
            move(marks, A, 5, **{"log": 9, "durable": 8, back: 7})

    def test_an_applied_index_that_goes_back_stops_the_node(self) -> None:
        marks = Watermarks(PARTITIONS)
        move(marks, A, 5, log=9, durable=8)
        with pytest.raises(InvariantViolated, match="I7"):
            move(marks, A, 4, log=9, durable=8)

    def test_durable_beyond_the_log_stops_the_node(self) -> None:
        with pytest.raises(InvariantViolated, match="I1"):
            move(Watermarks(PARTITIONS), A, 1, log=2, durable=3)

    def test_a_commit_index_that_goes_back_stops_the_node(self) -> None:
        marks = Watermarks(PARTITIONS)
        marks.committed(5)
        marks.committed(5)
        with pytest.raises(InvariantViolated, match="I7"):
            marks.committed(4)

    def test_a_violation_is_neither_kept_nor_told(self) -> None:
        marks = Watermarks(PARTITIONS)
        heard: list[Watermark] = []
        move(marks, A, 5)
        marks.listen(heard.append)
        before = marks.of(A)
        with pytest.raises(InvariantViolated):
            move(marks, A, 4)
        assert marks.of(A) == before
        assert heard == []


class TestIdle:
    def test_an_idle_partition_follows_the_commit_index(self) -> None:
        marks = Watermarks(PARTITIONS)
        move(marks, A, 2, at=2, idle=True)
        marks.committed(9)
        assert marks.idle(A)
        assert marks.of(A).applied_global_index == 9
        assert marks.of(A).applied_index == 2

    def test_one_with_something_to_apply_stays_where_it_is(self) -> None:
        marks = Watermarks(PARTITIONS)
        move(marks, A, 2, at=2, log=5)
        marks.committed(9)
        assert not marks.idle(A)
        assert marks.of(A).applied_global_index == 2

    def test_what_idleness_carried_is_kept_when_there_is_work_again(self) -> None:
        marks = Watermarks(PARTITIONS)
        move(marks, A, 2, at=2, idle=True)
        marks.committed(9)
        move(marks, A, 2, at=2, log=3)
        marks.committed(10)
        assert marks.of(A).applied_global_index == 9

    def test_what_idleness_carried_is_kept_though_nobody_looked_meanwhile(self) -> None:
        marks = Watermarks(PARTITIONS)
        move(marks, A, 2, at=2, idle=True)
        marks.committed(9)
        move(marks, A, 3, at=5, log=4)
        assert marks.of(A).applied_global_index == 9

    def test_the_minimum_is_of_those_asked_for(self) -> None:
        marks = Watermarks(PARTITIONS)
        move(marks, A, 2, at=2, log=5)
        move(marks, B, 1, at=1, idle=True)
        marks.committed(6)
        assert marks.minimum() == 2
        assert marks.minimum([B]) == 6
        assert marks.minimum([]) == 0

    def test_all_are_in_the_order_asked_for(self) -> None:
        marks = Watermarks(PARTITIONS)
        assert [mark.partition_id for mark in marks.all([B, A])] == [B, A]


STEPS = st.lists(
    st.one_of(
        st.integers(1, 4),  # commit so many entries that concern neither
        st.tuples(st.sampled_from(PARTITIONS), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.booleans()),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_no_watermark_ever_goes_back_or_out_of_order(steps: list[Any]) -> None:
    marks = Watermarks(PARTITIONS)
    seen = {p: marks.of(p) for p in PARTITIONS}
    logs = {p: [0, 0, 0] for p in PARTITIONS}
    commit, reached, idle = 0, dict.fromkeys(PARTITIONS, 0), set[PartitionId]()
    for step in steps:
        if isinstance(step, int):
            commit += step
            marks.committed(commit)
        else:
            partition, more, synced, applied, look = step
            log = logs[partition]
            log[0] += more
            log[1] = min(log[0], log[1] + synced)
            log[2] = min(log[1], log[2] + applied)
            now_idle = log[2] == log[0]
            at = commit if applied and log[2] else reached[partition]
            reached[partition] = max(at, commit if partition in idle else 0, reached[partition])
            (idle.add if now_idle else idle.discard)(partition)
            move(marks, partition, log[2], log=log[0], durable=log[1], at=at, idle=now_idle)
            if not look:
                continue  # what nobody looked at has to be true later all the same
        for partition in PARTITIONS:
            now, before = marks.of(partition), seen[partition]
            assert now.snapshot_index <= now.applied_index <= now.durable_index <= now.log_index
            assert all(b <= n for b, n in zip(to_row(before)[:6], to_row(now)[:6], strict=True))  # type: ignore[operator]
            expected = max(reached[partition], commit) if partition in idle else reached[partition]
            assert now.applied_global_index == expected
            seen[partition] = now


def test_what_has_something_to_do_follows_the_commit_index_no_more_and_keeps_what_it_was_carried_to() -> None:
    marks = Watermarks([A])
    move(marks, A, 3, at=3, idle=True)
    marks.committed(7)
    marks.busy(A)
    marks.busy(A)
    marks.committed(9)
    assert marks.of(A).applied_global_index == 7
    assert not marks.idle(A)
