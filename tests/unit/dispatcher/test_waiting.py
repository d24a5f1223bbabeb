"""Waiting for admission: who is next, who is passed, who leaves; and that nobody is lost on the way."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest

from dispatcher.admission.budgets import Verdict
from dispatcher.admission.lanes import Waiting
from dispatcher.admission.waiting import FINISHED_KEPT
from logboom.errors import DeadlineExceeded, NotLeader, Overloaded, PartitionFrozen, Unavailable
from logboom.types import MIB, PartitionId
from tests.unit.dispatcher.waiting_desk import PARTITIONS, A, B, C, Desk


class TestTurns:
    def test_earliest_deadline_first(self) -> None:
        desk = Desk()
        desk.ask("full", [(A, 10, 0)])
        for name, wait in (("late", 9.0), ("soon", 3.0), ("sooner", 1.0)):
            desk.ask(name, [(A, 5, 0)], wait=wait)
        desk.give_back("full")
        assert desk.order == ["full", "sooner", "soon"]
        desk.give_back("soon")
        assert desk.order[-1] == "late"

    def test_a_full_partition_holds_up_nobody_elses_requests(self) -> None:
        desk = Desk()
        desk.ask("full", [(A, 10, 0)])
        desk.ask("waits", [(A, 1, 0)])
        desk.now += 50  # longer than anybody is passed
        desk.room.touch(A)
        desk.room.serve(desk.now)
        assert desk.ask("other", [(B, 10, 0)]) is None

    def test_principals_take_turns_however_many_requests_one_has(self) -> None:
        desk = Desk()
        desk.ask("full", [(A, 10, 0)])
        for k in range(20):
            desk.ask(f"hog{k}", [(A, 2, 0)], principal="hog", wait=1.0 + k / 100)
        for k in range(3):
            desk.ask(f"shy{k}", [(A, 2, 0)], principal="shy", wait=50.0)
        desk.give_back("full")
        assert [name[:3] for name in desk.order[1:]] == ["hog", "shy", "hog", "shy", "hog"]

    def test_who_would_be_answered_too_late_makes_room_for_who_would_not(self) -> None:
        desk = Desk()
        desk.ask("slow", [(A, 2, 0)])
        desk.ask("full", [(A, 8, 0)])
        desk.ask("late", [(A, 4, 0)], wait=4.5, timeout=9.0)
        desk.ask("in time", [(A, 4, 0)], wait=9.0, timeout=11.0)
        desk.ask("elsewhere", [(B, 10, 0)], timeout=4.5)
        desk.now += 4.0  # and what came first is still on its way
        desk.give_back("full")
        assert desk.order == ["slow", "full", "elsewhere", "in time"]
        assert isinstance(desk.failures["late"], Overloaded)

    def test_who_is_answered_before_anything_is_applied_is_not_too_late(self) -> None:
        """What was on its way for long was so because it is applied slowly."""
        desk = Desk()
        desk.ask("slow", [(A, 2, 0)])
        desk.ask("full", [(A, 8, 0)])
        desk.ask("applied", [(A, 4, 0)], timeout=9.0)
        desk.ask("committed", [(A, 4, 0)], timeout=9.0, applies=False)
        desk.now += 4.0
        desk.give_back("full")
        assert desk.order == ["slow", "full", "committed"]
        assert list(desk.failures) == ["applied"]

    def test_large_requests_count_for_more_than_small_ones(self) -> None:
        desk = Desk()
        desk.ask("full", [(A, 10, 0)])
        for k in range(10):
            desk.ask(f"big{k}", [(A, 1, 0)], principal="big", nbytes=40_960)
            desk.ask(f"few{k}", [(A, 1, 0)], principal="few", nbytes=1)
        desk.give_back("full")
        served = [name[:3] for name in desk.order[1:]]
        assert served.count("few") == 9

    def test_as_many_principals_as_fit_get_in_at_once(self) -> None:
        desk = Desk(partition_ops=100, node_ops=100)
        desk.ask("full", [(A, 100, 0)])
        for k in range(100):
            desk.ask(f"w{k}", [(A, 1, 0)], principal=f"p{k}")
        desk.give_back("full")
        assert len(desk.order) == 101

    def test_one_at_a_time_does_not_come_first_for_ever(self) -> None:
        desk = Desk()
        desk.ask("t0", [(A, 10, 0)])
        for k in range(4):
            desk.ask(f"many{k}", [(A, 10, 0)], principal="many")
        for k in range(8):
            desk.ask(f"one{k}", [(A, 10, 0)], principal="one")
            desk.give_back(desk.order[-1])
        assert sum(name.startswith("many") for name in desk.order) == 4

    def test_a_request_that_lacks_two_gates_waits_for_one_after_the_other(self) -> None:
        desk = Desk()
        desk.ask("a", [(A, 10, 0)])
        desk.ask("b", [(B, 10, 0)])
        desk.ask("both", [(A, 1, 0), (B, 1, 0)])
        desk.give_back("a")
        assert "both" not in desk.order
        desk.ask("again", [(A, 10, 0)])
        desk.give_back("again")
        assert "both" not in desk.order
        desk.give_back("b")
        assert desk.order[-1] == "both"

    def test_a_partition_that_has_its_share_of_the_node_goes_on_when_others_give_back(self) -> None:
        """It waited until something of its own was applied: for ever, where that was paused."""
        desk = Desk(partition_ops=20, fair_share_percent=50)
        desk.ask("own", [(A, 2, 0)], principal="x")
        desk.ask("other", [(B, 8, 0)], principal="y")
        desk.ask("waits", [(A, 5, 0)], principal="z")
        assert desk.order == ["own", "other"]
        desk.give_back("other")
        assert desk.order == ["own", "other", "waits"]


class TestBypass:
    def test_small_ones_pass_what_does_not_fit(self) -> None:
        desk = Desk()
        desk.ask("a", [(A, 6, 0)])
        desk.ask("large", [(A, 10, 0)])
        assert desk.ask("small", [(A, 4, 0)], principal="q") is None

    def test_what_has_waited_long_is_passed_no_more(self) -> None:
        desk = Desk()
        for k in range(10):
            desk.ask(f"s{k}", [(A, 1, 0)])
        desk.ask("large", [(A, 10, 0)], principal="q", wait=50.0)
        done = 0
        while "large" not in desk.order and done < 100:
            desk.now += 0.3
            desk.give_back(f"s{done}")
            done += 1
            desk.ask(f"s{9 + done}", [(A, 1, 0)], wait=50.0)  # there is always another small one
        assert done <= 14
        assert desk.admission.used(A) == (10, 0)

    def test_newcomers_that_do_not_wait_do_not_pass_it_either(self) -> None:
        desk = Desk()
        desk.ask("a", [(A, 6, 0)])
        desk.ask("large", [(A, 10, 0)], wait=50.0)
        desk.now += 2
        desk.room.touch(A)
        desk.room.serve(desk.now)
        assert desk.room.held_back([(A, 1, 0)], "q") is not None
        assert desk.room.held_back([(B, 1, 0)], "q") is None
        desk.give_back("a")
        assert desk.order[-1] == "large"
        assert desk.room.held_back([(A, 1, 0)], "q") is None

    def test_whoever_stood_behind_it_goes_when_it_gives_up(self) -> None:
        desk = Desk()
        desk.ask("a", [(A, 6, 0)])
        large = desk.ask("large", [(A, 10, 0)], wait=50.0)
        desk.now += 2
        desk.room.touch(A)
        desk.room.serve(desk.now)
        desk.ask("small", [(A, 1, 0)], principal="q")
        assert "small" not in desk.order
        woken = desk.woken
        assert large is not None
        desk.room.leave(large, Unavailable("given up"))
        assert desk.woken > woken
        desk.room.serve(desk.now)
        assert desk.order[-1] == "small"

    def test_two_that_hold_each_other_up_both_get_in(self) -> None:
        desk = Desk()
        desk.ask("a", [(A, 10, 0)])
        desk.ask("b", [(B, 10, 0)])
        desk.ask("ab", [(A, 10, 0), (B, 1, 0)], wait=50.0)
        desk.ask("ba", [(B, 10, 0), (A, 1, 0)], wait=50.0, principal="q")
        desk.now += 2
        desk.room.touch_all()
        desk.room.serve(desk.now)
        desk.give_back("a")
        desk.give_back("b")
        assert desk.order[-1] == "ab"
        desk.give_back("ab")
        assert desk.order[-1] == "ba"


class TestPace:
    """With ``light_commit_ms``: light clients are never slowed down by it."""

    LIMITS: ClassVar[dict[str, Any]] = {
        "light_commit_ms": 4,
        "pace_bytes_per_s_min": MIB,
        "partition_ops": 10**6,
        "node_ops": 10**6,
        "fair_share_percent": 80,
    }

    def busy(self) -> Desk:
        """Four seconds are owed by one; another, who owes nothing yet, waits for as much."""
        desk = Desk(**self.LIMITS)
        desk.admission.pace.per_s = MIB
        assert desk.ask("h1", [(A, 1, 4 * MIB)], principal="h1") is None
        desk.ask("h2", [(A, 1, 4 * MIB)], principal="h2", wait=50.0)
        assert "h2" not in desk.order
        return desk

    def test_light_ones_pass_a_heavy_newcomer_however_long_it_has_waited(self) -> None:
        desk = self.busy()
        for k in range(60):
            assert desk.ask(f"l{k}", [(B, 1, 64)], principal="light") is None
            desk.now += 0.1
            desk.give_back(f"l{k}")
        assert "h2" in desk.order, "it has its turn when that is paid"

    def test_a_light_one_that_waits_where_it_does_goes_when_it_can(self) -> None:
        desk = Desk(**{**self.LIMITS, "node_ops": 10, "fair_share_percent": 100})
        desk.admission.pace.per_s = MIB
        desk.ask("h1", [(A, 1, 4 * MIB)], principal="h1")
        desk.ask("h2", [(A, 1, 4 * MIB)], principal="h2", wait=50.0)
        desk.ask("full", [(B, 9, 64)], principal="other")
        desk.now += 0.5
        waits = desk.ask("waits", [(C, 1, 64)], principal="light", wait=50.0)
        assert waits is not None
        assert waits.refusal.gate == "node_ops"
        desk.now += 1.0
        desk.give_back("full")  # which opens what it lacks; the other one has waited long enough not to be passed
        assert desk.order == ["h1", "full", "waits"]

    def test_heavy_ones_do_not_pass_it(self) -> None:
        desk = self.busy()
        desk.ask("l", [(B, 1, 64)], principal="light")
        desk.now += 2.0
        desk.give_back("l")
        desk.now += 1.9
        assert desk.ask("h3", [(B, 1, 2 * MIB)], principal="h3", wait=50.0) is not None
        for _ in range(100):
            desk.now += 0.1
            desk.room.serve(desk.now)
        assert desk.order == ["h1", "l", "h2", "h3"]


class TestLeaving:
    def waiting(self, desk: Desk, **how: Any) -> Waiting:
        desk.ask("full", [(A, 10, 0)])
        found = desk.ask("w", [(A, 1, 0)], **how)
        assert found is not None
        return found

    def test_when_its_time_to_wait_is_over_it_is_refused(self) -> None:
        desk = Desk()
        self.waiting(desk, wait=5.0)
        desk.now += 5
        desk.room.expire(desk.now)
        error = desk.failures["w"]
        assert isinstance(error, Overloaded)
        assert (error.limit, error.outcome) == ("partition_ops", "not_applied")

    def test_when_its_deadline_has_passed_it_is_too_late(self) -> None:
        desk = Desk()
        self.waiting(desk, wait=9.0, timeout=5.0)
        desk.now += 5
        desk.room.expire(desk.now)
        error = desk.failures["w"]
        assert isinstance(error, DeadlineExceeded)
        assert error.outcome == "not_applied"

    def test_all_leave_with_the_leadership(self) -> None:
        desk = Desk()
        self.waiting(desk)
        desk.leads = False
        desk.give_back("full")
        assert desk.order == ["full"]
        desk.room.leave_all(lambda: NotLeader("gone", leader=None))
        assert isinstance(desk.failures["w"], NotLeader)
        assert not desk.room

    def test_only_the_owners_leave_with_the_connection(self) -> None:
        desk = Desk()
        self.waiting(desk, owner="one")
        desk.ask("stays", [(A, 1, 0)], owner="two")
        desk.room.leave_all(lambda: Unavailable("gone"), owner="one")
        assert list(desk.failures) == ["w"]
        desk.give_back("full")
        assert desk.order[-1] == "stays"

    def test_a_partition_that_is_frozen_keeps_nobody_waiting(self) -> None:
        desk = Desk()
        self.waiting(desk)
        desk.ask("b", [(B, 10, 0)])
        desk.ask("other", [(B, 1, 0)])
        desk.admission.barred = lambda p: desk.room.barred(p, lambda: desk.admission.is_frozen(p))
        desk.admission.freeze(A, "it lags")
        assert isinstance(desk.failures["w"], PartitionFrozen)
        assert "it lags" in desk.failures["w"].message
        assert len(desk.room) == 1

    def test_nor_does_one_that_has_become_unwritable_meanwhile(self) -> None:
        desk = Desk()
        self.waiting(desk)

        def lost(partition_id: PartitionId) -> None:
            raise Unavailable(f"partition {partition_id} is lost")

        desk.room._check = lost
        desk.give_back("full")
        assert isinstance(desk.failures["w"], Unavailable)
        assert desk.order == ["full"]

    def test_what_left_is_not_admitted_and_what_was_admitted_does_not_leave(self) -> None:
        desk = Desk()
        waiting = self.waiting(desk)
        desk.give_back("full")
        desk.room.leave(waiting, Unavailable("too late"))
        assert desk.failures == {}
        assert desk.admission.used(A) == (1, 0)


class TestBounds:
    def test_a_full_room_refuses(self) -> None:
        desk = Desk(queue_requests=2)
        desk.ask("full", [(A, 10, 0)])
        desk.ask("w1", [(A, 1, 0)])
        desk.ask("w2", [(A, 1, 0)])
        with pytest.raises(Overloaded) as refused:
            desk.ask("w3", [(A, 1, 0)])
        assert refused.value.limit == "queue_requests"
        desk.audit()

    def test_bytes_are_bounded_too(self) -> None:
        desk = Desk(queue_bytes=100)
        desk.ask("full", [(A, 10, 0)])
        desk.ask("w1", [(A, 1, 0)], nbytes=60)
        with pytest.raises(Overloaded) as refused:
            desk.ask("w2", [(A, 1, 0)], nbytes=41)
        assert refused.value.limit == "queue_bytes"

    def test_one_principal_does_not_fill_it(self) -> None:
        desk = Desk(queue_requests=10, fair_share_percent=80)
        desk.ask("full", [(A, 10, 0)], principal="hog")
        for k in range(8):
            desk.ask(f"hog{k}", [(A, 1, 0)], principal="hog")
        with pytest.raises(Overloaded):
            desk.ask("one more", [(A, 1, 0)], principal="hog")
        assert desk.ask("shy", [(A, 1, 0)], principal="shy") is not None

    def test_what_is_kept_of_those_who_were_given_something_does_not_grow_with_them(self) -> None:
        """Who has no name is a principal for as long as his connection: one entry each while anybody waited."""
        desk = Desk()
        desk.admission.judge(A, Verdict("stands still", 1.0))
        desk.ask("hog", [(B, 1, 0)], principal="hog", nbytes=1 << 20)
        desk.ask("waits", [(A, 1, 0)], wait=1000.0, timeout=9000.0)
        desk.room.charge("hog", 1 << 20)
        for k in range(4 * FINISHED_KEPT):
            desk.ask(f"r{k}", [(C, 1, 0)], principal=f"stranger {k}")
            desk.give_back(f"r{k}")
        assert len(desk.room._finished) <= 2 * (1 + FINISHED_KEPT)
        assert desk.room._start("hog") > desk.room._start(f"stranger {k}") > 0

    def test_what_signals_withhold_is_waited_for(self) -> None:
        desk = Desk()
        desk.admission.judge(None, Verdict("memory", 1.0))
        desk.ask("w", [(A, 1, 0)])
        assert desk.order == []
        assert desk.admission.judge(None, Verdict("memory", 0.5))
        desk.room.touch_all()
        desk.room.serve(desk.now)
        assert desk.order == ["w"]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_everybody_is_answered_once_and_every_budget_comes_back(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    desk = Desk(
        fair_share_percent=rng.choice([50, 80, 100]),
        queue_requests=rng.choice([5, 50]),
        queue_bypass_ms=rng.choice([1, 500, 5000]),
        queue_chunk_bytes=rng.choice([0, 1, 30]),
        partition_batches=rng.choice([3, 100]),
        partition_age_ms=rng.choice([0, 0, 3000]),
        principal_ops_per_s=rng.choice([0, 5]),
        partition_ops_per_s=rng.choice([0, 0, 10]),
        rate_burst_ms=rng.choice([100, 1000]),
    )
    asked, waiting, refused = 0, list[Waiting](), set[str]()
    for _ in range(600):
        dice = rng.random()
        desk.now += rng.random() * 0.2
        if dice < 0.45:
            parts = [(p, rng.randint(1, rng.choice([2, 10])), 0) for p in rng.sample(PARTITIONS, rng.randint(1, 2))]
            name = f"r{asked}"
            asked += 1
            try:
                entered = desk.ask(
                    name,
                    parts,
                    principal=rng.choice("xyz"),
                    owner=rng.choice("xyz"),
                    wait=rng.random() * 6,
                    nbytes=rng.randint(1, 99),
                )
            except Overloaded:
                refused.add(name)
            else:
                waiting += [entered] if entered is not None else []
        elif dice < 0.85 and desk.tickets:
            desk.give_back(rng.choice(list(desk.tickets)))
        elif dice < 0.9 and waiting:
            desk.room.leave(rng.choice(waiting), Unavailable("cancelled"))
        elif dice < 0.92:
            desk.room.leave_all(lambda: Unavailable("gone"), owner=rng.choice("xyz"))
        else:
            desk.room.expire(desk.now)
            desk.room.serve(desk.now)
            desk.audit()
    while desk.tickets:
        desk.give_back(next(iter(desk.tickets)))
    desk.now += 10
    desk.room.expire(desk.now)
    desk.audit()
    assert not desk.room
    assert {*desk.order, *desk.failures, *refused} == {f"r{k}" for k in range(asked)}
    assert desk.admission.used() == (0, 0)
    assert desk.room.nbytes == 0
