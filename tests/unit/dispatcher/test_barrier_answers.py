"""Many barriers that one move reaches: told in slices, encoded once, a write for each connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from dispatcher.barriers.answers import SLICE, Answers
from dispatcher.barriers.exchange import Exchange
from dispatcher.barriers.goals import Goal, Reached, Waiter, Want
from dispatcher.sessions import waits as waits_module
from dispatcher.sessions.waits import Waits
from logboom.errors import (
    BarrierBlocked,
    BarrierFuture,
    BarrierTimeout,
    LogboomError,
    NotLeader,
    PartitionDestroyed,
)
from logboom.types import NodeId
from logboom.wire import Alike, Frame, Kind
from tests.unit.dispatcher.barrier_desk import PARTITIONS, A, Answer, B, Desk, reached
from tests.unit.dispatcher.waits_world import World

MANY = 2 * SLICE + 500


class Turns:
    """Turns of the loop that the test lets come."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, call: Callable[[], None]) -> None:
        self.waiting.append(call)

    def pass_one(self) -> None:
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()

    def pass_all(self) -> None:
        while self.waiting:
            self.pass_one()


def crowd(desk: Desk, count: int = MANY, **how: Any) -> tuple[list[Waiter], list[list[Answer]]]:
    found = [
        desk.wait(how.get("target", 5), **{key: said for key, said in how.items() if key != "target"})
        for _ in range(count)
    ]
    return [waiter for waiter, _ in found if waiter is not None], [answers for _, answers in found]


class TestSlices:
    def setup_method(self) -> None:
        self.desk = Desk(waiters_per_client=10_000, waiters_per_principal=10_000)
        self.turns = self.desk.barriers.answers.soon = Turns()

    def told(self, answers: list[list[Answer]]) -> int:
        return sum(map(reached, answers))

    def test_few_are_told_at_once(self) -> None:
        _, answers = crowd(self.desk, 100)
        self.desk.apply(A, 5)
        assert self.told(answers) == 100
        assert not self.turns.waiting

    def test_many_are_told_in_slices_and_nobody_twice(self) -> None:
        _, answers = crowd(self.desk)
        self.desk.apply(A, 5)
        seen = [self.told(answers)]
        while self.turns.waiting:
            assert len(self.turns.waiting) == 1
            self.turns.pass_one()
            seen.append(self.told(answers))
        assert seen == [SLICE, 2 * SLICE, MANY]
        assert len(self.desk.barriers.answers) == 0

    def test_so_are_many_who_wait_for_different_indices_and_nor_are_all_looked_at_in_one_go(self) -> None:
        found = [self.desk.wait(1 + n)[1] for n in range(MANY)]
        self.desk.apply(A, MANY)
        assert self.told(found) == SLICE
        assert len(self.desk.barriers) == MANY - SLICE
        self.turns.pass_all()
        assert self.told(found) == MANY
        assert len(self.desk.barriers) == 0

    def test_none_of_them_is_late_for_having_to_wait_for_his_turn(self) -> None:
        found = [self.desk.wait(1 + n, [A, B], deadline=10.0, need=1)[1] for n in range(MANY)]
        _, late = self.desk.wait(MANY + 1, deadline=10.0)
        self.desk.apply(A, MANY)
        self.desk.barriers.expire(20.0)
        self.turns.pass_all()
        assert self.told(found) == MANY
        assert [type(each) for each in late] == [BarrierTimeout]

    def test_one_who_joins_meanwhile_is_told_with_the_others(self) -> None:
        for n in range(MANY):
            self.desk.wait(1 + n)
        self.desk.apply(A, MANY - 1)
        _, joined = self.desk.wait(MANY - 1)
        _, ahead = self.desk.wait(MANY)
        self.turns.pass_all()
        assert reached(joined)
        assert ahead == []

    def test_answers_over_many_partitions_count_for_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dispatcher.barriers.answers.ROWS_OF_ONE", 1)
        _, answers = crowd(self.desk, SLICE, partitions=PARTITIONS)
        for partition in PARTITIONS:
            self.desk.apply(partition, 5)
        assert self.told(answers) == SLICE // (1 + len(PARTITIONS))
        self.turns.pass_all()
        assert self.told(answers) == SLICE

    def test_one_who_cancels_before_his_turn_hears_nothing(self) -> None:
        waiters, answers = crowd(self.desk)
        self.desk.apply(A, 5)
        self.desk.barriers.cancel(waiters[-1])
        self.turns.pass_all()
        assert answers[-1] == []
        assert self.told(answers) == MANY - 1

    def test_whoever_is_reached_is_told_so_whatever_happens_before_his_turn(self) -> None:
        _, answers = crowd(self.desk, deadline=10.0, leading=True)
        self.desk.apply(A, 5)
        self.desk.state(A, "paused")
        self.desk.barriers.lost_leadership(lambda: NotLeader("gone"))
        self.desk.barriers.expire(20.0)
        self.desk.barriers.ended(A, lambda: NotLeader("gone"))
        self.turns.pass_all()
        assert self.told(answers) == MANY

    def test_one_whose_time_is_up_before_his_turn_is_not_late(self) -> None:
        """Nor are there so many of them that what they leave behind is swept up at once."""
        crowd(self.desk, 3 * MANY, target=9, client="others")
        _, answers = crowd(self.desk, deadline=10.0)
        self.desk.apply(A, 5)
        self.desk.barriers.expire(20.0)
        self.turns.pass_all()
        assert self.told(answers) == MANY

    def test_those_who_are_not_reached_time_out_meanwhile(self) -> None:
        crowd(self.desk)
        _, late = self.desk.wait(9, deadline=10.0)
        self.desk.apply(A, 5)
        self.desk.barriers.expire(20.0)
        assert [type(each) for each in late] == [BarrierTimeout]

    def test_they_hold_no_places_any_more(self) -> None:
        desk = Desk(waiters_per_client=MANY)
        desk.barriers.answers.soon = self.turns
        crowd(desk)
        desk.apply(A, 5)
        assert len(desk.barriers) == 0
        crowd(desk, target=9)  # as many again

    def test_more_who_are_reached_meanwhile_wait_for_their_turn(self) -> None:
        _, first = crowd(self.desk)
        _, second = self.desk.wait(6)
        self.desk.apply(A, 5)
        self.desk.apply(A, 6)
        assert second == []
        self.turns.pass_all()
        assert self.told(first) == MANY
        assert reached(second)

    def test_who_was_reached_first_is_told_first(self) -> None:
        _, first = crowd(self.desk, 3 * SLICE + 500)
        _, second = self.desk.wait(6)
        self.desk.apply(A, 5)
        self.desk.apply(A, 6)
        while not reached(second):
            self.turns.pass_one()
        assert self.told(first) == len(first)

    def test_what_moves_meanwhile_makes_no_slice_come_sooner(self) -> None:
        _, first = crowd(self.desk)
        self.desk.wait(6)
        self.desk.apply(A, 5)
        self.desk.apply(A, 6)
        assert self.told(first) == SLICE
        assert len(self.turns.waiting) == 1

    def test_nothing_is_kept_of_who_has_been_told(self) -> None:
        """His time, which is far off, is not waited for."""
        waiters, _ = crowd(self.desk, deadline=500.0)
        self.desk.apply(A, 5)
        self.turns.pass_all()
        self.desk.barriers.expire(0.0)
        assert not self.desk.barriers._deadlines
        assert not any(waiter.done for waiter in waiters)

    def goals(self, count: int = MANY) -> list[list[Answer]]:
        """As many as wait, each at an index of its own."""
        return [self.desk.wait(target)[1] for target in range(1, count + 1)]

    @pytest.mark.parametrize("state", ["paused", "damaged", "lost"])
    def test_whoever_is_reached_is_told_so_though_it_stands_still_before_his_turn(self, state: str) -> None:
        answers = self.goals()
        _, beyond = self.desk.wait(MANY + 1)
        self.desk.apply(A, MANY)
        self.desk.state(A, state)
        assert [type(each) for each in beyond] == [BarrierBlocked]
        self.turns.pass_all()
        assert self.told(answers) == MANY

    def test_whoever_is_reached_is_told_so_though_it_is_destroyed_before_his_turn(self) -> None:
        answers = self.goals()
        _, beyond = self.desk.wait(MANY + 1)
        self.desk.apply(A, MANY)
        self.desk.barriers.ended(A, lambda: PartitionDestroyed("gone"))
        self.desk.watermarks.remove(A)
        assert [type(each) for each in beyond] == [PartitionDestroyed]
        self.turns.pass_all()
        assert self.told(answers) == MANY
        assert len(self.desk.barriers) == 0

    def test_an_answer_may_ask_for_more(self) -> None:
        again: list[list[Answer]] = []
        self.desk.wait(5, then=lambda: again.append(self.desk.wait(6)[1]))
        self.desk.apply(A, 5)
        self.desk.apply(A, 6)
        assert [reached(each) for each in again] == [True]


def test_whatever_one_does_with_his_answer_the_others_get_theirs() -> None:
    turns, answers, told = Turns(), Answers(), list[int]()
    answers.soon = turns
    goal, where = Goal(Want(()), {}), Reached([], [])

    def waiter(number: int) -> Waiter:
        def done(_: Reached | LogboomError) -> None:
            told.append(number)
            if number == 0:
                raise ZeroDivisionError

        return Waiter("client", "client", goal, 0.0, wait_blocked=False, leading=False, done=done)

    answers.add([waiter(0)], where)
    answers.add([waiter(1)], Reached([], []))
    with pytest.raises(ZeroDivisionError):
        answers.go()
    turns.pass_all()
    assert told == [0, 1]
    answers.add([waiter(2)], where)
    answers.go()
    assert told == [0, 1, 2]


class TestOneWrite:
    HEADER: ClassVar[dict[str, Any]] = {"global_index": 5, "partitions": [A], "level": "applied"}

    def test_a_connection_gets_all_its_answers_in_one_write(self) -> None:
        world = World()
        for number in range(1, 101):
            world.ask(Kind.BARRIER, self.HEADER, number)
        world.apply(A, 5)
        assert world.writes == 1
        assert [request_id for request_id, *_ in world.sent] == list(range(1, 101))
        assert {kind for _, kind, *_ in world.sent} == {Kind.REACHED}
        assert all(header == world.sent[0][2] for _, _, header, _ in world.sent)
        assert world.sent[0][2]["frontiers"] == [[A, 5]]

    def test_an_answer_is_encoded_once_for_all_connections_and_targets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        encoded: list[Kind] = []

        def counted(kind: Kind, header: dict[str, Any]) -> Alike:
            encoded.append(kind)
            return Alike(kind, header)

        monkeypatch.setattr(waits_module, "Alike", counted)
        world = World()
        others = [Waits(cast("Any", world), world, world.named) for _ in range(4)]
        for number, waits in enumerate([world.waits, *others]):
            world.waits = waits
            world.ask(Kind.BARRIER, self.HEADER, 10 + number)
            world.ask(Kind.BARRIER, {**self.HEADER, "global_index": 1 + number}, 20 + number)
        world.apply(A, 5)
        assert len(world.sent) == 10
        assert encoded == [Kind.REACHED]

    def test_those_who_wait_for_other_partitions_are_told_of_these(self) -> None:
        world = World()
        world.apply(B, 9)
        world.ask(Kind.BARRIER, {"targets": [[A, 5], [B, 3]]}, 1)
        world.ask(Kind.BARRIER, {"targets": [[A, 5]]}, 2)
        world.ask(Kind.BARRIER, {"targets": [[B, 3], [A, 4]]}, 3)
        world.apply(A, 5)
        assert {request_id: header["frontiers"] for request_id, _, header, _ in world.sent} == {
            1: [[A, 5], [B, 9]],
            2: [[A, 5]],
            3: [[B, 9], [A, 5]],
        }

    def test_who_cancelled_or_is_gone_is_sent_nothing(self) -> None:
        world = World()
        turns = world.barriers.answers.soon = Turns()
        for number in range(1, SLICE + 3):
            world.ask(Kind.BARRIER, self.HEADER, number)
        world.apply(A, 5)
        world.waits.cancel(SLICE + 1)
        turns.pass_all()
        assert [request_id for request_id, *_ in world.sent][SLICE - 1 :] == [SLICE, SLICE + 2]

        world.ask(Kind.BARRIER, {**self.HEADER, "global_index": 6}, 1)
        world.is_open, before = False, world.writes
        world.apply(A, 6)
        assert world.writes == before

    def test_a_request_without_an_id_has_no_answer(self) -> None:
        world = World()
        world.ask(Kind.BARRIER, self.HEADER, 0)
        world.apply(A, 5)
        assert not world.sent

    def test_large_answers_leave_one_by_one_as_the_client_takes_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waits_module, "SHARED_ROWS_MAX", 0)
        world = World()
        for number in (1, 2):
            world.ask(Kind.BARRIER, self.HEADER, number)
        world.apply(A, 5)
        assert world.writes == 0
        assert [(request_id, kind) for request_id, kind, *_ in world.sent] == [(1, Kind.REACHED), (2, Kind.REACHED)]


class TestTraces:
    def ask(self, world: World, number: int, trace: Any, *, target: int = 5) -> None:
        header = {"global_index": target, "partitions": [A]}
        world.waits.barrier(Frame(Kind.BARRIER, number, header), 100.0, "me", trace)

    def test_each_ends_once_with_its_answer(self) -> None:
        world, ended = World(), dict[int, object]()
        for number in (1, 2, 3):
            self.ask(world, number, SimpleNamespace(end=partial(ended.__setitem__, number)), target=5 + number // 3)
        world.waits.cancel(1)
        world.apply(A, 5)
        assert list(ended) == [2]
        world.barriers.expire(200.0)
        assert list(ended) == [2, 3]
        assert isinstance(ended[3], BarrierTimeout)

    def test_one_that_is_refused_is_left_to_who_is_told_of_it(self) -> None:
        world, ended = World(), list[object]()
        with pytest.raises(BarrierFuture):
            self.ask(world, 1, SimpleNamespace(end=ended.append), target=1 << 40)
        self.ask(world, 1, None)
        world.apply(A, 5)
        assert ended == []


async def test_on_a_node_later_slices_are_told_in_later_turns_of_the_loop() -> None:
    desk = Desk(waiters_per_client=10_000, waiters_per_principal=10_000)
    never: Any = None
    Exchange(
        node_id=NodeId("n1"),
        barriers=desk.barriers,
        watermarks=desk.watermarks,
        links=never,
        may_show=lambda _: True,
        hurry=lambda _: None,
    )
    _, answers = crowd(desk)
    desk.apply(A, 5)
    assert sum(map(reached, answers)) == SLICE
    await asyncio.sleep(0)
    assert sum(map(reached, answers)) == 2 * SLICE
    await asyncio.sleep(0)
    assert sum(map(reached, answers)) == MANY
