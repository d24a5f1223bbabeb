"""The answer to a FETCH is bounded: what is sent next lies behind it, and whoever asks asks again for the rest."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from logboom.errors import ProtocolError
from logboom.types import KIB, MIB, NodeId, PartitionId
from logboom.wire import Frame, Kind
from raftlog.entries.entry import ROUTE, Route
from raftlog.links.lacks import Lack, pack, unpack
from raftlog.repair.giving import AHEAD_BYTES, GIVES_S
from raftlog.repair.repair import ASK_AGAIN_S, ROUTES_PER_FETCH
from raftlog.repair.wanted import Wanted
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
    assert world.sent[-1][2]["busy"] is True
    world.now += GIVES_S
    assert asks(world, *map(route, MANY)) == MANY
    assert asks(world, *map(route, MANY)) == []
    assert [(unpack(header), header["busy"]) for _, _, header, _ in world.sent] == [([], True)]
    world.queued = AHEAD_BYTES
    assert asks(world, *map(route, MANY)) == MANY
    assert not any("busy" in header for _, _, header, _ in world.sent)
    assert asks(world, route(99)) == []
    assert "busy" not in world.sent[-1][2], "it holds none of that"


@pytest.mark.parametrize("batch", [4 * MIB, MIB])
@pytest.mark.parametrize("leaves_a_second", [MIB, MIB // 8])
def test_it_gives_nothing_more_where_what_it_gave_waits_on_the_link(batch: int, leaves_a_second: int) -> None:
    """Else a slow line would be full of copies of one batch, until nothing else could be sent."""
    world, given = giving(batch, *MANY), 0
    world.fills = True
    world.payloads.read = lambda each: (b"%d" % each.last_index).ljust(batch)  # type: ignore[method-assign]
    for _ in range(120):
        given += len(asks(world, *map(route, MANY)))
        assert world.queued <= AHEAD_BYTES + batch
        world.now += ASK_AGAIN_S
        leave = min(world.queued, int(leaves_a_second * ASK_AGAIN_S))
        world.queued, world.left = world.queued - leave, world.left + leave
    assert given > 60 * leaves_a_second // batch - 2, "the line is never without"


@pytest.mark.parametrize("fed", [8 * MIB + 1, 8 * MIB, 3 * MIB])
def test_whoever_is_fed_as_much_as_may_be_is_given_something_now_and_then(fed: int) -> None:
    """What had been given long ago counted as waiting, for as long as the link was never without anything."""
    world, given = giving(MIB, *MANY), 0
    world.payloads.read = lambda each: (b"%d" % each.last_index).ljust(MIB)  # type: ignore[method-assign]
    world.queued = fed
    for _ in range(40):
        given += len(asks(world, *map(route, MANY)))
        world.now += ASK_AGAIN_S
        world.left += 5 * MIB // 2  # and as much has come
    assert given == 40 * ASK_AGAIN_S / GIVES_S
    fed = world.room // 2 + 1
    world.queued = fed + AHEAD_BYTES
    world.now += GIVES_S
    assert asks(world, *map(route, MANY)) == [], "that is room of what cannot wait"


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


def goes_on(asker: World, givers: dict[NodeId, World], *, turns: int, follows: dict[int, int] | None = None) -> int:
    """What ``asker`` asks for is answered, and it can take none before the one that this ``follows``; questions."""
    asker.repair._given_up = lambda _: False  # type: ignore[method-assign]
    questions, behind = 0, follows or {}
    for _ in range(turns):
        asker.sent.clear()
        if asker.repair.work():
            break
        for peer, _, header, (body,) in asker.sent:
            questions += 1
            giver = givers[peer]
            giver.sent.clear()
            giver.now = asker.now
            giver.repair.on_frame(peer, Frame(Kind.FETCH, 0, header, memoryview(body)))
            for _, kind, said, raws in giver.sent:
                raw = b"".join(raws)
                if raw and behind.get(int(raw)) in (None, *asker.payloads.held):
                    asker.payloads.held.add(int(raw))
                asker.repair.on_frame(peer, Frame(kind, 0, said, memoryview(raw)))
        if not asker.sent:
            asker.now += ASK_AGAIN_S
    return questions


@pytest.mark.parametrize("others", [[], [5, 6, 7], [*range(5, 45)]])
@pytest.mark.parametrize("committed", [False, True])
def test_what_cannot_be_taken_yet_lets_others_pass(others: list[int], *, committed: bool) -> None:
    """Found by review: given first, it was all that was given, by everybody and each time, until a restart."""
    rows = [101, *others, 100]
    places = {index: route(index)._replace(partition_id=PartitionId(int(index < 100))) for index in rows}
    asker = World()
    asker.repair.missing([Wanted(places[index], None if committed else index) for index in rows])
    questions = goes_on(asker, {A: giving(MIB, *rows), B: giving(MIB, *rows)}, turns=400, follows={101: 100})
    assert asker.payloads.held == {*rows}
    assert questions == len(rows) + 1
    assert asker.now == ASK_AGAIN_S


def test_what_is_taken_and_not_written_yet_keeps_its_place() -> None:
    world = World()
    world.payloads.receive = lambda _: route(100)  # type: ignore[assignment, method-assign, return-value]
    other = route(5)._replace(partition_id=PartitionId(1))
    world.repair.missing([Wanted(route(100), None), Wanted(other, None)])
    world.repair.work()
    answered(world, 100)
    world.now += ASK_AGAIN_S
    world.repair.work()
    assert asked_for(world) == [100, 5]


def test_somebody_else_is_asked_at_once_where_one_is_busy() -> None:
    """Each second question went to the leader, which feeds whoever mends, and cost half a second."""
    wanted = range(100, 140)
    asker, busy = World(), giving(MIB, *wanted)
    asker.repair.missing([Wanted(route(index), None) for index in wanted])
    busy.queued = 3 * busy.room
    goes_on(asker, {A: busy, B: giving(MIB, *wanted)}, turns=400)
    assert asker.payloads.held == {*wanted}
    assert asker.now <= 2 * ASK_AGAIN_S


def test_where_all_are_busy_they_are_not_asked_in_a_circle() -> None:
    asker, busy = World(), giving(MIB, *MANY)
    asker.repair.missing([Wanted(route(index), None) for index in MANY])
    busy.queued = 3 * busy.room
    turns = 200
    questions = goes_on(asker, {A: busy, B: busy}, turns=turns)
    pauses = asker.now / ASK_AGAIN_S
    assert questions == turns - pauses
    assert questions <= 2 * pauses + 2
    asker.linked.remove(B)
    questions = goes_on(asker, {A: busy, B: busy}, turns=turns)
    assert questions <= 4 * (asker.now / ASK_AGAIN_S - pauses) + 4


@pytest.mark.parametrize(("peer", "asked", "busy"), [(B, 1, True), (A, 0, True), (A, 2, True), (A, 1, False)])
def test_what_is_busy_with_something_else_changes_nothing(peer: NodeId, asked: int, *, busy: bool) -> None:
    world = World()
    world.misses(*MANY, committed=True)
    world.repair.work()
    assert (world.sent[-1][0], world.sent[-1][2]["asked"]) == (A, 1)
    header = pack([], term=4, asked=asked) | ({"busy": True} if busy else {})
    world.repair.on_frame(peer, Frame(Kind.FETCHED, 0, header, memoryview(b"")))
    world.repair.work()
    assert len(world.sent) == 1


@pytest.mark.parametrize("bad", [{"more": b"short"}, {"more": 7}, {"more": bytes(16), "asked": -1}])
def test_a_mark_that_is_none_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        World().repair.on_frame(A, Frame(Kind.FETCHED, 0, bad, memoryview(b"")))
