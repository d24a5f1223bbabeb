"""The answer to a FETCH is bounded: what is sent next lies behind it, and whoever asks asks again for the rest."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from logboom.errors import ProtocolError
from logboom.types import KIB, MIB, PartitionId
from logboom.wire import Frame, Kind
from raftlog.entries.entry import ROUTE, Route
from raftlog.links.lacks import Lack, unpack
from raftlog.repair.giving import AHEAD_BYTES, GIVES_S
from raftlog.repair.repair import ASK_AGAIN_S, ROUTES_PER_FETCH, Wanted
from tests.unit.raftlog.holes_world import A, B, World, asked_for, route

MANY = [*range(100, 100 + ROUTES_PER_FETCH)]


def giving(size: int, *indices: int) -> World:
    """A node that holds these, each so large."""
    world = World()
    world.payloads.held = set(indices)
    world.payloads.sizes = dict.fromkeys(indices, size)
    return world


def asks(world: World, *rows: Route) -> list[int]:
    """What B is given when it asks for them."""
    world.sent.clear()
    body = memoryview(b"".join(ROUTE.pack(*each) for each in rows))
    world.repair.on_frame(B, Frame(Kind.FETCH, 0, {"term": 4, "asked": 7}, body))
    return [int(body[0]) for _, _, header, body in world.sent if "lacks" not in header]


@pytest.mark.parametrize(("size", "given"), [(4 * MIB, 1), (300 * KIB, 3), (KIB, ROUTES_PER_FETCH)])
def test_it_gives_about_a_mebibyte_and_one_batch_at_least(size: int, given: int) -> None:
    """Sixteen batches of 4 MiB lay in front of heartbeats, and their leader stepped down; all were read at once."""
    world, read = giving(size, *MANY), list[int]()
    world.payloads.read = lambda each: bool(read.append(each.last_index)) or b"%d" % each.last_index  # type: ignore[method-assign]
    assert asks(world, *map(route, MANY)) == read == MANY[:given]
    marks = [header.get("more") for _, _, header, _ in world.sent]
    last = route(MANY[given - 1]).digest if given < len(MANY) else None
    assert marks == [None] * (given - 1) + [last]
    assert last is None or world.sent[-1][2]["asked"] == 7


def test_where_much_waits_on_the_link_it_gives_little_now_and_then() -> None:
    """Not never: what waits may be what it is fed, for as long as others write."""
    world = giving(KIB, *MANY)
    assert asks(world, *map(route, MANY)) == MANY
    world.queued = AHEAD_BYTES + 1
    assert asks(world, route(99), *map(route, MANY[1:])) == []
    assert [unpack(header) for _, _, header, _ in world.sent] == [[(route(99), Lack.ABSENT)]], "words are small"
    world.now += GIVES_S
    assert asks(world, *map(route, MANY)) == MANY
    assert asks(world, *map(route, MANY)) == []
    world.queued = AHEAD_BYTES
    assert asks(world, *map(route, MANY)) == MANY


@pytest.mark.parametrize("unreadable", [False, True])
def test_what_may_not_be_taken_leaves_others_room(*, unreadable: bool) -> None:
    """It follows what this node does not give: given first it would be all that is given, each time."""
    other = route(5)._replace(partition_id=PartitionId(1))
    world = giving(MIB, 5, *MANY[1:])
    if unreadable:
        world.payloads.held.add(MANY[0])
        world.payloads.unreadable[MANY[0]] = OSError(errno.EIO, "Input/output error")
    assert asks(world, *map(route, MANY[:8]), other) == [5]


def answered(world: World, index: int, *, more: bool = True, asked: int | None = None) -> None:
    """By whoever was asked last."""
    peer, _, header, _ = world.sent[-1]
    number = header["asked"] if asked is None else asked
    mark = {"more": route(index).digest, "asked": number} if more else {}
    world.repair.on_frame(peer, Frame(Kind.FETCHED, 0, mark, memoryview(b"")))


def test_it_asks_for_the_rest_at_once() -> None:
    world = World()
    world.misses(*MANY, committed=True)
    for begin in MANY[:-1]:
        world.repair.work()
        assert asked_for(world)[0] == begin
        questions = len(world.sent)
        answered(world, begin)
        world.repair.work()
        assert len(world.sent) == questions, "it is not here yet"
        world.payloads.held.add(begin)


@pytest.mark.parametrize(("more", "asked"), [(False, None), (True, 0), (True, 99)])
def test_nor_does_it_for_an_answer_to_something_else(*, more: bool, asked: int | None) -> None:
    """Or of an earlier release, which gives all that its link takes."""
    world = World()
    world.misses(*MANY, committed=True)
    world.repair.work()
    answered(world, 100, more=more, asked=asked)
    world.payloads.held.add(100)
    world.repair.work()
    assert len(world.sent) == 1
    world.now += ASK_AGAIN_S
    world.repair.work()
    assert len(world.sent) == 2


def test_what_is_given_and_cannot_be_taken_is_not_in_front_of_the_same_others_each_time() -> None:
    world, begins = World(), set[int]()
    world.misses(*range(100, 148), committed=True)
    for index in range(100, 148):
        for peer in (A, B):
            world.say(peer, Lack.ABSENT, index=index)
    for _ in range(60):
        world.repair.work()
        begins.add(asked_for(world)[0])
        answered(world, asked_for(world)[0])
        world.now += ASK_AGAIN_S
    assert begins == {*range(100, 148)}


def test_all_comes_in_answers_without_a_pause() -> None:
    wanted = range(100, 300)
    asker, giver = World(), giving(MIB, *wanted)
    asker.repair.missing([Wanted(route(index), None) for index in wanted])
    while not asker.repair.work():
        peer, _, header, (body,) = asker.sent.pop()
        assert not asker.sent
        giver.sent.clear()
        giver.repair.on_frame(B, Frame(Kind.FETCH, 0, header, memoryview(body)))
        for _, kind, said, (raw,) in giver.sent:
            asker.payloads.held.add(int(raw))
            asker.repair.on_frame(peer, Frame(kind, 0, said, memoryview(raw)))
    assert asker.payloads.held == {*wanted}


@pytest.mark.parametrize("bad", [{"more": b"short"}, {"more": 7}, {"more": bytes(16), "asked": -1}])
def test_a_mark_that_is_none_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        World().repair.on_frame(A, Frame(Kind.FETCHED, 0, bad, memoryview(b"")))
