"""How many targets may be waited for: without partitions a barrier has one for each that there is."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.barriers.goals import TARGETS_PER_PLACE
from logboom.errors import PartitionDestroyed, QuotaExceeded
from logboom.types import PartitionId
from logboom.wire import Kind
from tests.unit.dispatcher.barrier_desk import PARTITIONS, Desk, reached
from tests.unit.dispatcher.waits_world import World

MANY = [PartitionId(p) for p in range(TARGETS_PER_PLACE)]
"""As many as one place has."""


def desk_of(partitions: int, **limits: int) -> Desk:
    desk = Desk(**limits)
    for p in range(3, partitions):
        desk.watermarks.add(PartitionId(p))
        desk.applied_at[PartitionId(p)] = 0
    return desk


@pytest.mark.parametrize(
    ("limits", "clients", "principals", "who"),
    [
        ({"waiters_per_client": 3}, "aaa", "xyz", "this connection"),
        ({"waiters_per_principal": 3}, "abc", "xxx", "x"),
        ({"waiters_max": 3}, "abc", "xyz", "this node"),
    ],
)
def test_all_partitions_at_another_index_are_as_many_targets_again(
    limits: dict[str, int], clients: str, principals: str, who: str
) -> None:
    desk = desk_of(2 * TARGETS_PER_PLACE, **limits)
    every = [*MANY, *(PartitionId(TARGETS_PER_PLACE + p) for p in MANY)]
    _, first = desk.wait(1, MANY, client=clients[0], principal=principals[0])
    desk.wait(2, every, client=clients[1], principal=principals[1])
    with pytest.raises(QuotaExceeded, match=f"barriers of {who} wait for") as refused:
        desk.wait(3, MANY[:1], client=clients[2], principal=principals[2])
    assert (refused.value.used, refused.value.limit) == (3 * TARGETS_PER_PLACE,) * 2
    for p in MANY:
        desk.apply(p, 1)
    assert reached(first)
    desk.wait(3, MANY, client=clients[2], principal=principals[2])


def test_equal_ones_count_once_however_many_wait() -> None:
    desk = desk_of(TARGETS_PER_PLACE, waiters_per_client=6)
    for _ in range(4):
        desk.wait(5, MANY)
    for index in (6, 7):  # all places are taken
        desk.wait(index, MANY)
    desk = desk_of(2 * TARGETS_PER_PLACE, waiters_per_client=6)
    every = [*MANY, *(PartitionId(TARGETS_PER_PLACE + p) for p in MANY)]
    for index in (5, 5, 6, 7):
        desk.wait(index, every)
    with pytest.raises(QuotaExceeded, match="this connection wait for"):
        desk.wait(8, every)
    desk.wait(7, every)


def test_who_comes_later_has_the_targets_of_who_has_left() -> None:
    desk = desk_of(TARGETS_PER_PLACE, waiters_per_client=2)
    first, _ = desk.wait(5, MANY, client="a")
    desk.wait(5, MANY, client="b")
    assert first is not None
    desk.barriers.cancel(first)
    desk.wait(6, MANY[1:], client="b")
    desk.wait(6, MANY, client="a")
    with pytest.raises(QuotaExceeded):
        desk.wait(7, MANY[:2], client="b")


def test_one_alone_may_have_as_many_as_there_are() -> None:
    desk = desk_of(3 * TARGETS_PER_PLACE, waiters_per_client=2, waiters_per_principal=2, waiters_max=2)
    every = [PartitionId(p) for p in range(3 * TARGETS_PER_PLACE)]
    waiter, _ = desk.wait(5, every, principal="x")
    with pytest.raises(QuotaExceeded):
        desk.wait(6, every, principal="x")
    assert waiter is not None
    desk.barriers.cancel(waiter)
    desk.wait(6, every, principal="x")


@pytest.mark.parametrize(("reader", "principal"), [("a", "x"), ("a", "y"), ("b", "y")])
def test_what_reads_wait_for_is_among_those_of_no_barrier(reader: str, principal: str) -> None:
    """Reads have places of their own, with a target each."""
    places = {"waiters_max": 2, "waiters_per_principal": 2, "waiters_per_client": 3}
    desk = desk_of(2 * TARGETS_PER_PLACE, **places)
    every = [PartitionId(p) for p in range(2 * TARGETS_PER_PLACE)]
    waiting = [desk.wait(n, client=reader, principal=principal, reading=True)[0] for n in (1, 2)]
    waiting += [desk.wait(5, every, client="b", principal="y")[0]]
    quotas = desk.barriers._quotas
    assert quotas._targets == len(every)
    for waiter in waiting:
        assert waiter is not None
        desk.barriers.cancel(waiter)
    assert (len(quotas), quotas._targets, quotas._targets_of, quotas._targets_as) == (0, 0, {}, {})


def test_a_barrier_that_waits_for_the_same_as_a_read_has_it_counted_once_that_has_left() -> None:
    desk = Desk()
    (read, _), (barrier, _) = desk.wait(5, reading=True), desk.wait(5)
    assert read is not None
    assert barrier is not None
    desk.barriers.cancel(read)
    assert desk.barriers._quotas._targets == 1
    desk.barriers.cancel(barrier)
    assert desk.barriers._quotas._targets == 0


def test_what_is_over_leaves_nothing_behind() -> None:
    desk = desk_of(TARGETS_PER_PLACE)
    left, _ = desk.wait(5, MANY, client="a")
    desk.wait(5, MANY, client="b", deadline=1.0)
    desk.wait(6, MANY[:2], client="c")
    assert left is not None
    desk.barriers.cancel(left)
    desk.barriers.expire(2.0)
    for p in MANY[:2]:
        desk.apply(p, 6)
    quotas = desk.barriers._quotas
    assert (len(quotas), quotas._targets, quotas._targets_of, quotas._targets_as) == (0, 0, {}, {})


def test_whoever_is_told_the_progress_counts_for_itself() -> None:
    """What it was told of each partition is kept for it alone."""
    world = World(waiters_per_client=8)
    told = {"global_index": 5, "progress_ms": 20}
    world.ask(Kind.BARRIER, told, 1)  # for three partitions, twice
    world.ask(Kind.BARRIER, {"global_index": 5}, 2)
    quotas = world.barriers._quotas
    assert quotas._targets == 6
    world.ask(Kind.BARRIER, told, 3)
    assert quotas._targets == 9
    world.waits.cancel(1)
    assert quotas._targets == 6
    for p in PARTITIONS:
        world.apply(p, 5)
    assert [kind for _, kind, _, _ in world.sent].count(Kind.REACHED) == 2
    assert quotas._targets == 0


@pytest.mark.parametrize(("need", "asked"), [(-1, 1), (TARGETS_PER_PLACE - 3, 4)])
def test_one_that_is_destroyed_has_not_all_others_looked_at(need: int, asked: int) -> None:
    """A million of them stood the loop still."""
    desk = desk_of(TARGETS_PER_PLACE)
    _, answers = desk.wait(5, MANY, need=need)
    looks, frontier = list[PartitionId](), desk.barriers.frontier

    def look(partition_id: PartitionId, *where: Any) -> int:
        looks.append(partition_id)
        return frontier(partition_id, *where)

    desk.barriers.frontier = look  # type: ignore[method-assign]
    desk.barriers.ended(MANY[0], lambda: PartitionDestroyed("gone"))
    assert len(looks) == asked
    assert len(answers) == (1 if need < 0 else 0)
