"""Streams of watermarks: what nothing has become of costs nothing, whatever moves is told, and how many may follow."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dispatcher.barriers.watermarks import Watermarks
from dispatcher.sessions import waits as waits_module
from dispatcher.sessions.waits import Waits
from logboom.errors import InvalidRequest, QuotaExceeded
from logboom.types import PartitionId, PartitionLogIndex, Watermark
from logboom.wire import Frame, Kind
from tests.unit.dispatcher.barrier_desk import A, B
from tests.unit.dispatcher.waits_world import World


def test_where_nothing_has_moved_nothing_is_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty-four streams over a thousand partitions took 70 ms of every ten, for nothing."""
    world, looked, of = World(), 0, Watermarks.of
    for number in range(3, 1_000):
        world.create(PartitionId(number))
    for number in range(1, 65):
        world.ask(Kind.WATCH, {} if number % 2 else {"partitions": list(range(1_000))}, number)

    def counted(marks: Watermarks, partition_id: PartitionId) -> Watermark:
        nonlocal looked
        looked += 1
        return of(marks, partition_id)

    monkeypatch.setattr(Watermarks, "of", counted)
    world.sent.clear()
    world.tick()
    assert (looked, world.sent) == (0, [])
    world.apply(A, 3)
    world.tick()
    assert [row[0] for _, _, header, _ in world.sent for row in header["watermarks"]] == [A] * 64


@pytest.mark.parametrize("partitions", [None, [A, B]])
def test_whatever_moves_is_told(partitions: list[PartitionId] | None) -> None:
    """Not all that is to be seen is told to those who listen."""
    world, told = World(), list[tuple[int, int, int, int]]()
    world.ask(Kind.WATCH, {"partitions": partitions})

    def seen() -> list[tuple[int, int, int, int]]:
        world.sent.clear()
        world.tick()
        told.extend((row[0], row[3], row[4], row[5]) for _, _, h, _ in world.sent for row in h["watermarks"])
        news, told[:] = list(told), []
        return news

    assert seen() == []
    world.commit(4)
    assert seen() == []
    world.apply(A, 2, idle=True)
    assert seen() == [(A, 2, 0, 4)]
    world.commit(6)
    assert seen() == [(A, 2, 0, 6)]
    world.watermarks.snapshotted(A, PartitionLogIndex(1))
    assert seen() == [(A, 2, 1, 6)]
    world.apply(B, 0, idle=True)  # nothing else has changed
    assert seen() == [(B, 0, 0, 6)]
    assert seen() == []


def test_who_is_shown_later_is_told_of_though_nothing_moves() -> None:
    world: Any = World()
    hidden = set[PartitionId]()
    world.recovered = lambda partitions=None: not hidden & set(partitions or hidden)
    world.ask(Kind.WATCH, {})
    hidden.add(B)
    world.apply(A, 1)
    world.tick()
    assert world.sent[-1][2]["gone"] == [B]
    hidden.clear()
    world.tick()
    assert [row[0] for row in world.sent[-1][2]["watermarks"]] == [B]


def test_no_more_are_followed_than_the_node_has_room_for_by_however_many_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixty-four streams of all partitions for each connection, and any number of those."""
    monkeypatch.setattr(waits_module, "WATCHED_MAX", 6)
    world = World()
    other, third = (Waits(cast("Any", world), world, world.named, later=world._later) for _ in range(2))
    world.ask(Kind.WATCH, {"partitions": [A]}, 1)
    other.watch(Frame(Kind.WATCH, 1, {"partitions": [A, B, A]}), "other")
    with pytest.raises(InvalidRequest):
        world.ask(Kind.WATCH, {"partitions": [A], "every_ms": "often"}, 2)
    third.watch(Frame(Kind.WATCH, 1, {"partitions": [A, B]}), "third")
    with pytest.raises(QuotaExceeded, match="5 partitions are followed at this node"):
        world.ask(Kind.WATCH, {"partitions": [A, B]}, 2)
    world.ask(Kind.WATCH, {"partitions": [A]}, 2)
    world.waits.cancel(1)
    world.waits.cancel(1)
    assert world.watched.taken == 5
    third.close()
    third.close()
    other.close()
    assert world.watched.taken == 1
    world.watermarks.remove(A)
    world.tick()
    assert (world.watched.taken, world.watched._of, world.timers) == (0, {}, [])


def test_one_principal_follows_half_of_that_over_all_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """It followed all that may be followed: others were told to come again for as long as it did."""
    monkeypatch.setattr(waits_module, "WATCHED_MAX", 4)
    world = World()
    again = Waits(cast("Any", world), world, world.named, later=world._later)
    world.ask(Kind.WATCH, {"partitions": [A]})
    with pytest.raises(QuotaExceeded, match="1 partitions are followed for you") as refused:
        again.watch(Frame(Kind.WATCH, 1, {"partitions": [A, B]}), "me")
    assert (refused.value.fields["limit"], refused.value.fields["used"]) == (2, 1)
    again.watch(Frame(Kind.WATCH, 1, {"partitions": [B]}), "me")
    with pytest.raises(QuotaExceeded):
        world.ask(Kind.WATCH, {}, 2)
    world.ask(Kind.WATCH, {"partitions": [A, B]}, 2, principal="other")


def test_one_stream_alone_may_follow_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits_module, "WATCHED_MAX", 1)
    world = World()
    world.ask(Kind.WATCH, {})
    assert world.watched.taken == 3
