"""What a leader has called lost, and was let in without its payload: his word counts in his term alone."""

from __future__ import annotations

import pytest

from logboom.wire import Kind
from raftlog.links.lacks import Lack
from raftlog.repair.repair import ASK_AGAIN_S, ROUTES_PER_FETCH
from raftlog.repair.standing import Standing
from tests.unit.raftlog.base_world import compact
from tests.unit.raftlog.holes_world import A, B, World, asked_for, route


@pytest.fixture
def world() -> World:
    return World()


def test_what_came_in_on_the_word_of_a_leader_is_not_acknowledged_to_the_next_one_who_may_have_it(world: World) -> None:
    """It had counted as nothing that is missing: the batch of a committed entry was on one disk alone."""
    world.say(A, Lack.LOST, index=9)
    assert world.passes(9, at=7)
    assert world.passes(9, at=7), "sent again"
    world.repair.work()
    assert (world.repair.first_index, world.repair.blocked, world.repair.missing_count) == (1 << 62, False, 1)
    world.standing = Standing(5, B, False)
    assert world.repair.first_index == 7
    world.sent.clear()
    for _ in range(2):
        world.now += ASK_AGAIN_S
        world.repair.work()
    assert {peer for peer, kind, _, _ in world.sent if kind is Kind.FETCH} == {A, B}
    assert asked_for(world) == [9]
    world.say(B, Lack.LOST, index=9, term=5)
    assert world.repair.first_index == 1 << 62
    world.standing = Standing(6, A, False)
    assert world.repair.first_index == 7
    world.payloads.held.add(9)
    assert world.repair.work()
    assert not world.repair.active


def test_what_came_in_so_and_is_cut_off_again_nobody_misses(world: World) -> None:
    world.say(A, Lack.LOST, index=9)
    assert world.passes(9, at=7)
    world.standing = Standing(5, B, False)
    world.journal.truncate_from(7)
    assert world.repair.work()
    assert not world.repair.holes


def test_what_came_in_so_is_a_committed_one_once_the_journal_begins_behind_it(world: World) -> None:
    """It was here when its entry was handed up, and was removed before anybody looked: no leader could acknowledge it.

    The node was in no quorum from the next term on, until it was started again.
    """
    world.say(A, Lack.LOST, index=9)
    assert world.passes(9, at=7)
    world.journal.flush()
    world.standing = Standing(5, B, False)
    assert (world.repair.first_index, world.repair.doubts) == (7, True)
    compact(world.journal, 7)
    assert (world.repair.first_index, world.repair.doubts) == (1 << 62, False)
    assert world.repair.work()
    assert world.repair.missing_count == 1, "nobody has said that it needs it no more"
    assert [header.get("sets") for _, _, header, _ in world.sent] == [1], "a set that has it is as good"
    world.payloads.why = Lack.COMPACTED
    assert world.repair.work()
    assert (world.repair.active, world.repair.holes) == (False, {})


def test_so_is_what_others_have_removed_and_need_not_be_asked_for_again(world: World) -> None:
    world.misses(5)
    for node in (A, B):
        world.say(node, Lack.COMPACTED)
    assert not world.repair.work()
    compact(world.journal, 5)
    assert world.repair.work()
    assert (world.repair.active, world.payloads.begun) == (False, [5])


@pytest.fixture
def old(world: World) -> range:
    """Holes in committed entries, more than are asked for at once, and the cycle is somewhere among them."""
    indices = range(100, 100 + 20 * ROUTES_PER_FETCH)
    for index in indices:
        world.repair.committed(route(index))
    for _ in range(5):
        world.now += ASK_AGAIN_S
        assert world.repair.work()
    return indices


def test_what_came_in_so_is_looked_at_in_front_of_all_that_is_committed(world: World, old: range) -> None:
    """It came after all, and was acknowledged once the cycle had been over thousands of others."""
    world.say(A, Lack.LOST, index=9)
    assert world.passes(9, at=7)
    world.standing = Standing(5, B, False)
    assert world.repair.work()
    assert world.repair.first_index == 7
    world.payloads.held.add(9)
    assert world.repair.work()
    assert (world.repair.first_index, world.repair.missing_count) == (1 << 62, len(old))


def test_what_the_next_leader_may_have_is_asked_for_before_all_that_is_committed(world: World, old: range) -> None:
    several = range(10, 10 + 2 * ROUTES_PER_FETCH)
    for index in several:
        world.say(A, Lack.LOST, index=index)
        assert world.passes(index, at=index - 3)
    world.standing = Standing(5, B, False)
    asked = list[int]()
    for _ in range(2):
        world.now += ASK_AGAIN_S
        assert world.repair.work()
        asked += asked_for(world)
    assert asked == [*several]


def test_where_nothing_came_in_so_the_cycle_goes_on_in_the_next_term(world: World, old: range) -> None:
    before = asked_for(world)
    world.standing = Standing(5, B, False)
    world.now += ASK_AGAIN_S
    assert world.repair.work()
    assert asked_for(world)[0] == before[-1] + 1


def test_what_comes_in_so_lets_nobody_pass_over_what_was_asked_for_last(world: World, old: range) -> None:
    last = asked_for(world)[-1]
    world.say(A, Lack.LOST, index=9)
    assert world.passes(9, at=7)
    world.payloads.held.add(last)
    assert world.repair.work()
    assert world.repair.missing_count == len(old), "the one that is let in, less the last"


@pytest.mark.parametrize("indices", [(9,), (9, 10)], ids=["it lacks the entry before", "the gate cut it there"])
def test_what_does_not_come_in_is_not_missing_and_costs_its_leader_no_word(world: World, indices: list[int]) -> None:
    """It was taken for one that is cut off: what he had said was forgotten, and it was told as mended."""
    world.say(A, Lack.LOST, index=9)
    assert world.passes(*indices, at=9, takes=False) == (len(indices) == 1)
    assert (world.repair.active, world.repair.news) == (False, False)
    assert world.repair.work()
    assert world.passes(9, at=7), "he need not say it again"
    assert (world.repair.missing_count, world.repair.blocked, world.repair.first_index) == (1, False, 1 << 62)


def test_the_first_entries_of_a_new_leader_do_not_come_in_on_the_word_of_the_last_one(world: World) -> None:
    """The gate looks at them before anybody here knows of the new term."""
    world.say(A, Lack.LOST, index=9)
    assert not world.passes(9, term=5)
    assert world.passes(9, term=4)
