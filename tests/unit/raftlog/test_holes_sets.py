"""Holes, and sets of other nodes that have what such a batch did."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from logboom.errors import ProtocolError
from logboom.types import NodeId
from logboom.wire import Frame, Kind
from raftlog.entries.entry import ROUTE
from raftlog.links.lacks import Lack, unpack
from raftlog.repair.mending import Mending
from raftlog.repair.repair import ASK_AGAIN_S, ROUTES_PER_FETCH
from raftlog.repair.standing import Standing
from raftlog.repair.wanted import Wanted
from tests.unit.raftlog.holes_world import A, B, World, asked_for, route


def conceded(*indices: int, committed: bool = True) -> World:
    """Nobody has them."""
    world = World()
    world.misses(*indices, committed=committed)
    for index in indices:
        for peer in (A, B):
            world.say(peer, Lack.ABSENT, index=index)
    assert world.repair.work()
    world.sent.clear()
    return world


def settled(*, lack: Lack = Lack.ABSENT) -> World:
    """Somebody has removed it, and nobody has it."""
    world = World()
    world.payloads.why = lack
    world.misses(5, committed=True)
    world.say(A, Lack.COMPACTED)
    world.say(B, Lack.ABSENT)
    assert world.repair.work()
    return world


def asked_next(world: World) -> dict[int, bool]:
    """What is asked for next, and whether sets count."""
    world.now += ASK_AGAIN_S
    world.repair.work()
    bits = world.sent[-1][2].get("sets", 0)
    return {index: bool(bits >> at & 1) for at, index in enumerate(asked_for(world))}


def test_what_others_have_in_a_set_is_asked_for_until_it_is_here_and_stays_a_hole() -> None:
    """It was forgotten once somebody had spoken of a set: were that lost, nobody could declare it void, or find it."""
    world = conceded(5)
    for lack in (Lack.COMPACTED, Lack.ABSENT):
        world.say(A, lack)
        assert asked_next(world) == {5: True}
        assert list(world.repair.holes) == [route(5).digest]
        assert world.repair.lost() == [(route(5), lack)]
        assert not world.repair.blocked
    world.say(A, Lack.COMPACTED)
    world.payloads.held.add(5)
    assert world.repair.work()
    assert (world.repair.active, world.repair.holes, world.repair.lost()) == (False, {}, [])


def test_what_the_log_does_not_go_on_without_is_let_go_once_a_set_stands_for_it() -> None:
    world = settled()
    assert (world.repair.active, world.repair.lost()) == (False, [(route(5), Lack.COMPACTED)])


def test_nobody_is_asked_again_and_what_was_said_stays_so() -> None:
    """A broken link took it back: who still had to apply the batch took no snapshot any more, and stood still."""
    world = settled()
    world.repair.peer_down(A)
    assert world.repair.lost() == [(route(5), Lack.COMPACTED)]
    world.standing = Standing(5, B, False)
    world.repair.follow_term()
    assert world.repair.lost() == [(route(5), Lack.COMPACTED)]
    world.payloads.why = Lack.COMPACTED
    assert world.repair.lost() == []
    world.payloads.why = Lack.ABSENT
    assert world.repair.verdict(route(5).digest) is None, "it is not remembered for ever"


def test_the_log_is_to_begin_behind_it_as_soon_as_nobody_here_needs_it() -> None:
    """A tail of a state's log ended as damage, at this node for good: the others begin behind it long since."""
    world = settled()
    assert world.payloads.begun == [5]
    assert world.repair.lost() == [(route(5), Lack.COMPACTED)]
    world.payloads.needless = True
    assert world.repair.lost() == []
    assert world.payloads.begun == [5, 5, 5]
    assert (world.repair.hopeless, world.repair.verdict(route(5).digest)) == ({}, None)


def test_of_several_the_last_is_enough_and_comes_first() -> None:
    """All that is left of a log is copied each time."""
    world = World()
    world.misses(5, 6, committed=True)
    for index in (5, 6):
        world.say(A, Lack.COMPACTED, index=index)
        world.say(B, Lack.ABSENT, index=index)
    assert world.repair.work()
    world.payloads.begun.clear()
    world.repair.lost()
    assert world.payloads.begun == [6, 5]


def test_what_stands_in_a_set_alone_is_nothing_to_begin_behind() -> None:
    """It may turn up: a hole is asked for until it does, or is void."""
    world = conceded(5)
    world.say(A, Lack.COMPACTED)
    asked_next(world)
    assert world.repair.lost() == [(route(5), Lack.COMPACTED)]
    assert world.payloads.begun == []


def test_what_turns_up_after_all_is_not_lost() -> None:
    world = settled()
    world.repair.news = False
    world.payloads.held.add(5)
    assert world.repair.lost() == []
    woken = list[bool]()
    mending = Mending(
        engine=cast("Any", SimpleNamespace(term=4, leader=A, is_leader=False, may_lead=True)),
        journal=world.journal,
        payloads=cast("Any", world.payloads),
        events=cast("Any", SimpleNamespace(repaired=lambda: woken.append(True))),
        repair_of=lambda *_: world.repair,
        poke=lambda: None,
    )
    mending.turn()
    mending.turn()
    assert woken == [True], "who has stopped in front of it goes on"


def test_others_are_asked_anew_once_there_are_other_members() -> None:
    """Whoever had removed it may be gone, and nobody else have a set: then it is a hole, for an operator to declare."""
    world = settled()
    for optional in ((), (B,)):
        world.repair.set_peers([A, B], optional=optional)
        assert not world.repair.active, "whoever has removed it is a member"
    world.repair.set_peers([])
    assert not world.repair.active, "this node is none itself"
    world.repair.set_peers([B])
    assert not world.repair.blocked, "all have said that they do not have it"
    assert world.repair.lost() == [(route(5), None)]
    assert list(world.repair.holes) == [route(5).digest]
    assert asked_next(world) == {5: True}
    world.say(B, Lack.COMPACTED)
    assert world.repair.work()
    assert world.repair.lost() == [(route(5), Lack.COMPACTED)], "it has a set"


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("lack", [Lack.APPLIED, Lack.UNKNOWN])
def test_nobody_is_where_the_state_has_it(lack: Lack, *, alone: bool) -> None:
    """A guest may go at any time: it is not one who has removed it."""
    world = settled(lack=lack)
    world.repair.set_peers([A] if alone else [A, B], optional=[A], alone=alone)
    assert world.repair.active == (lack is Lack.UNKNOWN)
    assert not world.repair.blocked


def test_what_is_damaged_again_is_still_settled() -> None:
    world = settled()
    world.repair.peer_down(A)
    for _ in range(2):
        world.repair.damaged(Wanted(route(5), None))
        assert world.repair.work()
    assert not world.repair.active
    world.repair.set_peers([A])
    assert not world.repair.active


def test_sets_count_for_what_is_committed_and_lacking_in_the_state() -> None:
    assert asked_next(conceded(5, committed=False)) == {5: False}, "no proof that it may lead would ever come of it"
    world = conceded(4, 5)
    assert asked_next(world) == {4: True, 5: True}
    world.payloads.why = Lack.APPLIED
    assert asked_next(world) == {4: False, 5: False}, "only the batch helps"


def test_each_row_of_a_question_has_its_own_bit() -> None:
    world = conceded(4, 5)
    world.repair.damaged(world.repair.holes[route(5).digest]._replace(route=route(6)))
    found = [asked_next(world) for _ in range(8)]
    assert {6: False, 4: True, 5: True} in found
    assert {row for asked in found for row in asked.items()} == {(6, False), (4, True), (5, True)}


@pytest.mark.parametrize(
    ("sets", "leads", "said"),
    [
        (0b10, False, [Lack.ABSENT, Lack.COMPACTED]),
        (0, False, [Lack.ABSENT, Lack.ABSENT]),
        (0b10, True, [Lack.LOST, Lack.COMPACTED]),
    ],
)
def test_whoever_has_a_set_says_so_where_sets_count(sets: int, leads: bool, said: list[Lack]) -> None:
    world = World()
    world.payloads.covered = True
    world.payloads.holes = {route(4).digest, route(5).digest}
    world.standing = Standing(4, NodeId("me") if leads else A, leads)
    body = memoryview(ROUTE.pack(*route(4)) + ROUTE.pack(*route(5)))
    world.repair.on_frame(A, Frame(Kind.FETCH, 0, {"term": 4, "asked": 3, "sets": sets}, body))
    assert [lack for _, lack in unpack(world.sent[-1][2])] == said
    assert not world.payloads.sealed


def test_who_only_wants_to_see_what_a_void_would_do_hears_of_sets_too() -> None:
    world = conceded(5)
    world.repair.ask_all(route(5), void=False)
    assert [(header["sets"], header.get("void")) for _, _, header, _ in world.sent] == [(1, None)] * 2


@pytest.mark.parametrize("bad", [-1, "1", 1.0, None])
def test_bits_that_are_none_are_refused(bad: object) -> None:
    frame = Frame(Kind.FETCH, 0, {"sets": bad}, memoryview(ROUTE.pack(*route(5)) * ROUTES_PER_FETCH))
    with pytest.raises(ProtocolError):
        World().repair.on_frame(A, frame)
