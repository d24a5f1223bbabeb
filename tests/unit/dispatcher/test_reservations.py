"""Large requests get in by chunks, and small ones pass them all the while."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.admission.budgets import Verdict
from dispatcher.admission.lanes import Waiting
from dispatcher.admission.reservations import NEWCOMER, Reservation, with_shares
from logboom.errors import Overloaded, Unavailable
from tests.unit.dispatcher.waiting_desk import A, B, C, Desk

LARGE = 1000
"""Bytes; these desks call so much large."""


def desk_of(**changes: Any) -> Desk:
    return Desk(**{"queue_chunk_bytes": LARGE - 1, **changes})


class Busy:
    """A partition that small requests of somebody keep full: whenever one has been applied, the next one comes."""

    def __init__(self, desk: Desk, *, under_way: int = 10, waiting: int = 4) -> None:
        self.desk = desk
        self._names = (f"small{k}" for k in range(10_000))
        self._under_way = iter(self._admitted())
        for _ in range(under_way + waiting):
            self.another()

    def another(self) -> None:
        self.desk.ask(next(self._names), [(A, 1, 0)], principal="small", wait=50.0)

    def _admitted(self) -> Iterator[str]:
        k = 0
        while True:
            if self.desk.order[k].startswith("small"):
                yield self.desk.order[k]
            k += 1

    def one_is_applied(self) -> None:
        self.desk.give_back(next(self._under_way))
        self.another()

    @property
    def passed(self) -> int:
        return sum(name.startswith("small") for name in self.desk.order)

    def until_in(self, name: str, *, at_most: int) -> list[bool]:
        """Until somebody is in: whether a small one got in, each time that one was applied."""
        found = []
        while name not in self.desk.order:
            assert len(found) < at_most, f"{name} is not in after {at_most}"
            before = self.passed
            self.one_is_applied()
            found.append(self.passed > before)
        return found


class TestReservation:
    def test_half_of_what_is_given_back_is_kept_up_to_what_is_wanted(self) -> None:
        kept = Reservation(1, (3, 100, 1))
        kept.add_half((2, 30, 1), free=(9, 900, 9))
        assert kept.amounts == (1, 15, 0)
        kept.add_half((5, 900, 1), free=(9, 900, 9))
        assert kept.amounts == (3, 100, 1)

    def test_of_single_ones_every_second_is_kept(self) -> None:
        kept, found = Reservation(1, (3, 100, 9)), []
        for _ in range(4):
            kept.add_half((1, 1, 1), free=(9, 9, 9))
            found.append(kept.amounts[0])
        assert found == [0, 1, 1, 2]

    def test_no_more_is_kept_than_is_there(self) -> None:
        kept = Reservation(1, (3, 100, 1))
        kept.add_half((6, 200, 2), free=(9, 900, 9))
        assert kept.amounts == (3, 100, 1)
        kept.fit((2, 10, 0))
        assert kept.amounts == (2, 10, 0)

    @pytest.mark.parametrize(("number", "is_kept"), [(1, False), (2, False), (3, True), (NEWCOMER, True)])
    def test_it_is_kept_from_those_who_came_later(self, number: int, is_kept: bool) -> None:
        kept = Reservation(2, (3, 100, 1))
        kept.add_half((2, 2, 2), free=(9, 9, 9))
        assert kept.kept_from(number) == ((1, 1, 1) if is_kept else (0, 0, 0))

    def test_with_shares_more_has_to_be_free(self) -> None:
        assert with_shares((100, 8, 1), 4.0, (1000, 1000, 1000)) == (126, 11, 2)
        assert with_shares((900, 8, 1), 4.0, (1000, 1000, 1000))[0] == 1000


class TestPassing:
    def test_small_ones_pass_a_large_one_until_it_fits(self) -> None:
        desk = desk_of()
        busy = Busy(desk)
        desk.ask("large", [(A, 8, 0)], principal="q", wait=500.0, timeout=900.0, nbytes=LARGE)
        desk.now += 2.0  # longer than anything smaller is passed
        passed = busy.until_in("large", at_most=20)
        assert sum(passed[:-1]) >= len(passed) // 2 - 1
        assert desk.admission.used(A) == (10, 0)

    def test_what_is_not_large_is_waited_for_as_a_whole(self) -> None:
        desk = desk_of()
        busy = Busy(desk)
        desk.ask("several", [(A, 8, 0)], principal="q", wait=500.0, timeout=900.0, nbytes=LARGE - 1)
        desk.now += 2.0
        passed = busy.until_in("several", at_most=9)
        assert sum(passed[1:-1]) == 0  # the first time is when it is looked at

    def test_nor_is_anything_split_where_nothing_counts_as_large(self) -> None:
        desk = desk_of(queue_chunk_bytes=0)
        busy = Busy(desk)
        desk.ask("large", [(A, 8, 0)], principal="q", wait=500.0, timeout=900.0, nbytes=LARGE)
        desk.now += 2.0
        assert sum(busy.until_in("large", at_most=9)[1:-1]) == 0

    def test_it_does_not_have_to_be_overdue_when_it_is_its_turn(self) -> None:
        desk = desk_of()
        busy = Busy(desk)
        desk.ask("large", [(A, 8, 0)], principal="q", wait=500.0, timeout=900.0, nbytes=LARGE)
        busy.until_in("large", at_most=20)
        assert desk.now == 100.0

    def test_newcomers_cannot_have_what_is_kept(self) -> None:
        desk = desk_of()
        for k in range(10):
            desk.ask(f"s{k}", [(A, 1, 0)])
        desk.ask("large", [(A, 8, 0)], principal="q", nbytes=LARGE)
        for k in range(4):
            desk.give_back(f"s{k}")
        assert dict(desk.admission.reservations()) == {A: 1}
        free = 4
        while desk.ask(f"new{free}", [(A, 1, 0)], principal="r", wait=0.0) is None:
            free -= 1
        assert free == 1  # with the first one the large one was looked at; of the three after that it keeps one
        assert desk.admission.used(A) == (9, 0)

    def test_smaller_ones_of_the_same_principal_pass_it_too(self) -> None:
        desk = desk_of()
        for k in range(10):
            desk.ask(f"s{k}", [(A, 1, 0)])
        desk.ask("large", [(A, 8, 0)], principal="q", wait=500.0, timeout=900.0, nbytes=LARGE)
        desk.now += 2.0
        desk.ask("small", [(A, 1, 0)], principal="q")
        desk.give_back("s0")
        assert desk.order[-1] == "small"

    @pytest.mark.parametrize("others", [1, 4])
    def test_large_and_small_share_what_comes_free(self, others: int) -> None:
        """As principals do by turns, in bytes: a large request is worth no more than as many small ones."""
        desk = desk_of(partition_ops=20, queue_chunk_bytes=200 * LARGE, queue_bytes=1 << 40)
        size = 4
        for k in range(20):
            desk.ask(f"first{k}", [(A, 1, 0)])
        for k in range(400):
            for name, ops in (("large", size), *((f"small{n}", 1) for n in range(others))):
                nbytes = ops * 100 * LARGE
                desk.ask(f"{name} {k}", [(A, ops, 0)], principal=name, wait=900.0, timeout=9000.0, nbytes=nbytes)
        for done in range(300):
            desk.give_back(desk.order[done])
        admitted = Counter(name.split()[0] for name in desk.order[20:])
        assert 0.7 < size * admitted["large"] / admitted["small0"] < 1.3, admitted

    def test_who_is_held_back_by_a_share_of_his_own_does_not_come_first_for_ever(self) -> None:
        desk = desk_of(fair_share_percent=50, partition_ops=20, node_ops=1000)
        for k in range(7):
            desk.ask(f"hog{k}", [(A, 1, 0)], principal="hog")
        for k in range(9):
            desk.ask(f"s{k}", [(A, 1, 0)], principal=f"p{k}")
        desk.ask("more", [(A, 1, 0)], principal="hog", wait=500.0, timeout=900.0)
        desk.room.charge("q", 1 << 20)
        desk.ask("large", [(A, 8, 0)], principal="q", wait=500.0, timeout=900.0, nbytes=LARGE)
        desk.give_back("s0")
        assert not dict(desk.admission.reservations())
        desk.now += 2.0
        desk.give_back("s1")
        assert dict(desk.admission.reservations()) == {A: 2}


class TestEnding:
    def waits(self, desk: Desk, **how: Any) -> Waiting:
        for k in range(10):
            desk.ask(f"s{k}", [(A, 1, 0)])
        found = desk.ask("large", [(A, 8, 0)], principal="q", nbytes=LARGE, **how)
        assert found is not None
        for k in range(6):
            desk.give_back(f"s{k}")
        assert desk.admission.gate(A).reservation is not None
        return found

    def test_what_gives_up_keeps_nothing(self) -> None:
        desk = desk_of()
        large = self.waits(desk)
        for k in range(6):
            desk.ask(f"w{k}", [(A, 1, 0)], principal="r")
        assert len(desk.room) > 1
        desk.room.leave(large, Unavailable("given up"))
        desk.room.serve(desk.now)
        assert desk.admission.used(A) == (10, 0)
        assert not dict(desk.admission.reservations())
        desk.audit()

    def test_nor_does_what_has_waited_in_vain(self) -> None:
        desk = desk_of()
        self.waits(desk, wait=5.0)
        desk.now += 5.0
        desk.room.expire(desk.now)
        assert isinstance(desk.failures["large"], Overloaded)
        assert not dict(desk.admission.reservations())

    def test_nor_what_is_in(self) -> None:
        desk = desk_of()
        self.waits(desk)
        for k in range(6, 10):
            desk.give_back(f"s{k}")
        assert desk.order[-1] == "large"
        assert not dict(desk.admission.reservations())

    def test_nor_what_waits_for_something_else_meanwhile(self) -> None:
        """Time, or a signal: what is kept would be of no use to anybody."""
        desk = desk_of()
        self.waits(desk)
        desk.admission.judge(A, Verdict("stands still", 1.0))
        desk.room.touch(A)
        desk.room.serve(desk.now)
        assert not dict(desk.admission.reservations())
        desk.audit()


class TestSeveral:
    def test_they_go_one_after_the_other(self) -> None:
        desk = desk_of()
        busy = Busy(desk)
        for k in range(3):
            desk.ask(f"large{k}", [(A, 8, 0)], principal=f"q{k}", wait=500.0, timeout=900.0, nbytes=LARGE)
        desk.now += 2.0
        for k in range(3):
            busy.until_in(f"large{k}", at_most=20)
            desk.give_back(f"large{k}")

    def test_two_that_lack_each_others_gates_both_get_in(self) -> None:
        desk = desk_of()
        for k in range(10):
            desk.ask(f"a{k}", [(A, 1, 0)])
            desk.ask(f"b{k}", [(B, 1, 0)])
        desk.ask("ab", [(A, 10, 0), (B, 10, 0)], wait=50.0, principal="p", nbytes=LARGE)
        desk.ask("ba", [(B, 10, 0), (A, 10, 0)], wait=50.0, principal="q", nbytes=LARGE)
        for k in range(10):
            desk.give_back(f"a{k}")
            desk.give_back(f"b{k}")
        assert desk.order[-1] == "ab"
        desk.give_back("ab")
        assert desk.order[-1] == "ba"

    def test_the_nodes_budget_is_kept_in_the_same_way(self) -> None:
        desk = desk_of(node_ops=10)
        for k in range(10):
            desk.ask(f"s{k}", [(A, 1, 0)])
        desk.ask("large", [(B, 8, 0)], principal="q", wait=500.0, timeout=900.0, nbytes=LARGE)
        for k in range(3):
            desk.give_back(f"s{k}")
        assert dict(desk.admission.reservations()) == {None: 1}
        for k in range(3, 8):
            desk.give_back(f"s{k}")
        assert desk.order[-1] == "large"

    def test_the_nodes_budget_is_kept_for_all_parts_together(self) -> None:
        desk = desk_of(node_ops=10)
        for k in range(10):
            desk.ask(f"s{k}", [(C, 1, 0)])
        desk.ask("large", [(A, 5, 0), (B, 5, 0)], principal="q", wait=500.0, timeout=900.0, nbytes=LARGE)
        desk.give_back("s0")
        for k in range(1, 9):
            desk.give_back(f"s{k}")
            desk.ask(f"n{k}", [(C, 1, 0)], principal="r", wait=0.5)
        reservation = desk.admission.gate().reservation
        assert reservation is not None
        reservation.add_half((90, 0, 0), free=(10, 0, 0))
        assert reservation.amounts[0] == 10

    def test_what_came_first_has_what_is_kept_for_a_later_one(self) -> None:
        """It lacked another gate until now. And the later one's going takes nothing from it."""
        desk = desk_of()
        desk.ask("full", [(A, 10, 0)])
        for k in range(10):
            desk.ask(f"b{k}", [(B, 1, 0)])
        desk.ask("first", [(A, 1, 0), (B, 9, 0)], principal="p", wait=50.0, nbytes=LARGE)
        later = desk.ask("later", [(B, 9, 0)], principal="q", wait=50.0, nbytes=LARGE)
        desk.give_back("b0")
        assert dict(desk.admission.reservations()) == {B: 2}
        desk.now += 2.0
        desk.give_back("full")
        desk.give_back("b1")
        assert dict(desk.admission.reservations()) == {B: 1}
        assert later is not None
        desk.room.leave(later, Unavailable("given up"))
        assert dict(desk.admission.reservations()) == {B: 1}

    def test_where_shares_leave_something_for_the_next_it_gets_in_all_the_same(self) -> None:
        desk = desk_of(partition_ops=100, node_ops=1000, fair_share_percent=80)
        busy = Busy(desk, under_way=79, waiting=20)
        desk.ask("large", [(A, 60, 0)], principal="q", wait=500.0, timeout=900.0, nbytes=LARGE)
        desk.now += 2.0
        busy.until_in("large", at_most=160)
