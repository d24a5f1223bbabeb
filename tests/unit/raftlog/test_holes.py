"""When a node may go on without a batch: what all others have said, and what the leader of its term says."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any, cast

import pytest

from logboom.errors import CorruptData
from logboom.types import NodeId, PartitionId, PartitionLogIndex
from logboom.wire import Frame, Kind
from raftlog.core import RaftLog
from raftlog.entries.entry import ROUTE, ROUTE_BYTES, pack_control
from raftlog.entries.voids import Void
from raftlog.links.lacks import Lack, pack, unpack
from raftlog.repair.mending import Mending
from raftlog.repair.recovery import recover
from raftlog.repair.repair import ASK_AGAIN_S, ROUTES_PER_FETCH
from raftlog.repair.standing import Standing
from raftlog.repair.wanted import Wanted
from tests.unit.raftlog.holes_world import A, B, World, asked_for, asked_for_routes, route


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("lack", [Lack.ABSENT, Lack.DAMAGED, Lack.APPLIED])
def test_it_may_lead_when_all_others_have_said_that_they_do_not_have_it(world: World, lack: Lack) -> None:
    world.misses(5)
    assert not world.repair.work()
    world.say(A, lack)
    assert not world.repair.work(), "one of two others has not said anything"
    world.say(B, Lack.ABSENT)
    assert world.repair.work()
    assert world.payloads.holes == {route(5).digest}


@pytest.mark.parametrize("lack", [Lack.COMPACTED, Lack.UNKNOWN])
def test_a_snapshot_that_stands_for_it_or_somebody_who_cannot_say_is_no_proof(world: World, lack: Lack) -> None:
    world.misses(5)
    world.say(A, Lack.ABSENT)
    world.say(B, lack)
    assert not world.repair.work()
    assert not world.payloads.holes


def test_links_that_break_and_terms_that_pass_take_answers_back(world: World) -> None:
    world.misses(5)
    world.say(A, Lack.ABSENT)
    world.repair.peer_down(A)
    world.say(B, Lack.ABSENT)
    assert not world.repair.work()
    world.say(A, Lack.ABSENT)
    world.standing = Standing(5, B, False)
    assert not world.repair.work()
    assert not world.payloads.holes


def test_what_was_conceded_stays_so_and_what_turns_up_is_no_hole(world: World) -> None:
    world.misses(5)
    for node in (A, B):
        world.say(node, Lack.ABSENT)
    assert world.repair.work()
    world.repair.peer_down(A)
    world.standing = Standing(5, None, False)
    assert world.repair.work()
    world.now += 1
    world.repair.work()
    assert world.sent[-1][1] is Kind.FETCH, "it looks for it all the same"
    world.payloads.held.add(5)
    world.repair.work()
    assert not world.repair.active
    assert not world.repair.holes


def test_it_acknowledges_a_hole_on_the_word_of_the_leader_of_its_term_alone(world: World) -> None:
    world.misses(5)
    for node in (A, B):
        world.say(node, Lack.ABSENT)
    world.repair.work()
    assert world.repair.first_index == 5, "its own proof is for leading"
    world.say(B, Lack.LOST)
    assert world.repair.first_index == 5, "b does not lead"
    world.say(A, Lack.LOST, term=3)
    assert world.repair.first_index == 5, "a did so in another term"
    assert not world.repair.may_pass(route(5), 4)
    world.say(A, Lack.LOST)
    assert world.repair.first_index > 5
    assert world.repair.may_pass(route(5), 4)
    assert world.repair.missing_count == 1
    world.standing = Standing(5, A, False)
    assert world.repair.first_index == 5
    assert not world.repair.may_pass(route(5), 5)


def test_the_gate_may_let_in_what_the_leader_calls_lost_and_nothing_else(world: World) -> None:
    world.say(A, Lack.LOST, index=9)
    world.say(A, Lack.DAMAGED, index=10)
    assert world.passes(9)
    assert not world.passes(10)
    world.payloads.held.add(11)
    world.say(A, Lack.LOST, index=11)
    assert route(11).digest not in world.payloads.holes, "it is here"
    assert world.passes(11)
    assert [wanted.route for wanted in world.repair.holes.values()] == [route(9)]


def test_a_leader_tells_and_others_say_what_is_true_of_them(world: World) -> None:
    world.payloads.holes.add(route(5).digest)
    body = memoryview(ROUTE.pack(*route(5)))
    world.repair.on_frame(B, Frame(Kind.FETCH, 0, {"term": 4, "asked": 3}, body))
    world.standing = Standing(4, NodeId("me"), True)
    world.repair.on_frame(B, Frame(Kind.FETCH, 0, {}, body))
    assert [unpack(header)[0][1] for _, _, header, _ in world.sent] == [Lack.ABSENT, Lack.LOST]
    assert [(header["term"], header["asked"]) for _, _, header, _ in world.sent] == [(4, 3), (4, 0)]


def test_what_the_leader_is_about_to_declare_void_is_sealed_until_it_asks_again_or_another_term(world: World) -> None:
    body, sealed = memoryview(ROUTE.pack(*route(5))), world.payloads.sealed
    world.repair.on_frame(B, Frame(Kind.FETCH, 0, {"term": 4, "asked": 3, "void": True}, body))
    assert not sealed, "b does not lead"
    world.repair.on_frame(A, Frame(Kind.FETCH, 0, {"term": 4, "asked": 3, "void": True}, body))
    assert sealed == {route(5).digest}
    world.repair.on_frame(A, Frame(Kind.FETCH, 0, {"term": 4, "asked": 4}, body))
    assert not sealed
    world.repair.on_frame(A, Frame(Kind.FETCH, 0, {"term": 4, "asked": 5, "void": True}, body))
    world.standing = Standing(5, None, False)
    world.repair.work()
    assert not sealed


def test_a_seal_ends_with_its_term_on_a_node_that_misses_nothing(world: World) -> None:
    """Once somebody had the batch it was fed, and dropped, again and again, until the node was started anew."""
    engine: Any = SimpleNamespace(term=4, leader=A, is_leader=False)
    mending = Mending(
        engine=engine,
        journal=world.journal,
        payloads=cast("Any", world.payloads),
        events=cast("Any", None),
        repair_of=lambda *_: world.repair,
        poke=lambda: None,
    )
    body = memoryview(ROUTE.pack(*route(9)))
    world.repair.on_frame(A, Frame(Kind.FETCH, 0, {"term": 4, "asked": 3, "void": True}, body))
    mending.turn()
    assert not world.repair.active
    assert world.payloads.sealed == {route(9).digest}
    engine.term, world.standing = 5, Standing(5, None, False)
    mending.turn()
    assert not world.payloads.sealed
    engine.leader, world.standing = B, Standing(5, B, False)
    world.repair.on_frame(B, Frame(Kind.FETCH, 0, {"term": 5, "asked": 4, "void": True}, body))
    mending.turn()
    assert world.payloads.sealed == {route(9).digest}, "it was sealed in this term"


def test_what_the_leader_gives_and_asks_no_void_for_is_taken_again(world: World) -> None:
    """It turned up there; the question that takes the seal off was lost: nothing else did before a new term."""
    body, sealed = memoryview(ROUTE.pack(*route(5))), world.payloads.sealed
    leader = World()
    leader.standing = Standing(4, A, True)
    leader.payloads.held = {5}
    with leader.repair.seals.asking(route(5).digest):
        leader.repair.on_frame(B, Frame(Kind.FETCH, 0, {"term": 4, "asked": 1}, body))
    leader.repair.on_frame(B, Frame(Kind.FETCH, 0, {"term": 4, "asked": 2}, body))
    leader.repair.seals.put(route(5).digest, on=True)
    leader.repair.on_frame(B, Frame(Kind.FETCH, 0, {"term": 4, "asked": 3}, body))
    meanwhile, given, proposed = (header for _, _, header, _ in leader.sent)

    world.repair.on_frame(A, Frame(Kind.FETCH, 0, {"term": 4, "asked": 3, "void": True}, body))
    for peer, header in [(A, meanwhile), (A, proposed), (A, {**given, "term": 3}), (B, given), (A, {})]:
        world.repair.on_frame(peer, Frame(Kind.FETCHED, 0, header, memoryview(b"5")))
        assert sealed == {route(5).digest}
    world.repair.on_frame(A, Frame(Kind.FETCHED, 0, given, memoryview(b"5")))
    assert not sealed
    assert [bytes(raw) for raw in world.payloads.received] == [b"5"] * 6, "the seal is looked at behind this"


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), CorruptData("partition 0 is not here")])
def test_what_cannot_be_read_keeps_nobody_from_the_rest(world: World, error: Exception) -> None:
    """The same sixteen were asked for again and again: none of them was given, and none was answered."""
    world.payloads.held = {5, 6, 7}
    world.payloads.unreadable[6] = error
    body = memoryview(b"".join(ROUTE.pack(*route(each)) for each in (4, 5, 6, 7)))
    world.repair.on_frame(B, Frame(Kind.FETCH, 0, {"term": 4, "asked": 3}, body))
    assert [body for _, kind, header, body in world.sent if "lacks" not in header] == [[b"5"], [b"7"]]
    ((_, kind, told, _),) = [each for each in world.sent if "lacks" in each[2]]
    assert (kind, told["asked"]) == (Kind.FETCHED, 3)
    assert dict(unpack(told)) == {route(4): Lack.ABSENT, route(6): Lack.UNKNOWN}


@pytest.mark.parametrize(
    ("void", "lack", "said"),
    [
        (True, Lack.DAMAGED, Lack.COMPACTED),
        (True, Lack.ABSENT, Lack.COMPACTED),
        (True, Lack.APPLIED, Lack.APPLIED),
        (False, Lack.DAMAGED, Lack.DAMAGED),
    ],
)
def test_whoever_has_it_in_a_set_says_so_when_it_is_to_be_void(
    world: World, void: bool, lack: Lack, said: Lack
) -> None:
    """The state was saved before that set was taken: what the batch did was thrown away, and given to new nodes."""
    world.payloads.covered, world.payloads.why = True, lack
    header = {"term": 4, "asked": 3, **({"void": True} if void else {})}
    world.repair.on_frame(A, Frame(Kind.FETCH, 0, header, memoryview(ROUTE.pack(*route(5)))))
    assert [each for _, each in unpack(world.sent[-1][2])] == [said]
    assert bool(world.payloads.sealed) == (said is Lack.APPLIED)


def test_a_follower_goes_on_asking_for_what_is_sealed_and_a_leader_does_not(world: World) -> None:
    """Simulator, seed 33: it waited for a void that it could not take before it had heard of the hole."""
    world.misses(5)
    body = memoryview(ROUTE.pack(*route(5)))
    world.repair.on_frame(A, Frame(Kind.FETCH, 0, {"term": 4, "asked": 3, "void": True}, body))
    world.sent.clear()
    world.repair.work()
    assert [kind for _, kind, _, _ in world.sent] == [Kind.FETCH]
    world.sent.clear()
    world.now += 1
    world.standing = Standing(4, NodeId("me"), True)
    world.repair.work()
    assert not world.sent


def test_for_a_void_only_answers_to_this_question_in_this_term_count(world: World) -> None:
    world.misses(5, committed=True)
    for node in (A, B):
        world.say(node, Lack.ABSENT)
    asked = world.repair.ask_all(route(5), void=True)
    assert [header.get("void") for _, _, header, _ in world.sent[-2:]] == [True, True]
    assert world.repair.said(route(5).digest, asked) == {A: None, B: None}
    world.say(A, Lack.ABSENT, asked=asked)
    world.say(B, Lack.ABSENT, asked=asked, term=3)
    assert world.repair.said(route(5).digest, asked) == {A: Lack.ABSENT, B: None}


def asked_since(world: World) -> set[int]:
    """What was asked for at all, in two seconds from now on."""
    world.sent.clear()
    for _ in range(4):
        world.now += ASK_AGAIN_S
        world.repair.work()
    return {last for _, _, _, (body,) in world.sent for _, _, last, _ in ROUTE.iter_unpack(body)}


def test_while_all_are_asked_for_a_void_nobody_is_asked_anything_else_about_it(world: World) -> None:
    """Half a second later A was asked without the void: its seal came off, and that it has a set was forgotten."""
    world.standing = Standing(4, NodeId("me"), True)
    world.misses(5, 6, committed=True)
    with world.repair.seals.asking(route(5).digest):
        asked = world.repair.ask_all(route(5), void=True)
        world.say(A, Lack.COMPACTED, asked=asked)
        with world.repair.seals.asking(route(5).digest):
            pass  # another operator, who did not wait
        assert asked_since(world) == {6}
        assert world.repair.said(route(5).digest, asked) == {A: Lack.COMPACTED, B: None}
    assert asked_since(world) == {5, 6}


@pytest.mark.parametrize("proposed", [False, True])
def test_who_only_wants_to_see_what_a_void_would_do_takes_no_seal_off(world: World, proposed: bool) -> None:
    world.standing = Standing(4, NodeId("me"), True)
    world.misses(5, committed=True)
    world.repair.work()
    world.sent.clear()
    with world.repair.seals.asking(route(5).digest):
        if proposed:
            world.repair.seals.put(route(5).digest, on=True)
        else:
            world.repair.ask_all(route(5), void=False)
            assert [header.get("void") for _, _, header, _ in world.sent] == [True, True]
    world.sent.clear()
    world.repair.ask_all(route(5), void=False)
    assert [header.get("void", False) for _, _, header, _ in world.sent] == [proposed] * 2


def test_a_start_needs_no_proof_for_what_its_journal_declares_void(world: World) -> None:
    world.payloads.held = {2, 3, 4}
    void = Void(PartitionId(0), PartitionLogIndex(5), PartitionLogIndex(5), route(5).digest, 3)  # type: ignore[arg-type]
    world.journal.add(pack_control(void.fields()), 7, 1)
    world.journal.flush()
    found = recover(world.journal, world.payloads, SimpleNamespace(flush=lambda: None))  # type: ignore[arg-type]
    assert [wanted.route.last_index for wanted in found.missing] == [6]
    assert world.payloads.holes == {route(5).digest}


def test_what_nobody_had_below_the_base_is_asked_for_from_the_start_on_and_holds_up_nothing(world: World) -> None:
    """Nobody would have asked for it any more, and no operator could have declared it void."""
    world.payloads.held, world.payloads.below = {2, 3, 4, 5, 6}, [route(1)]
    node: Any = SimpleNamespace(journal=world.journal, payloads=world.payloads, repair=world.repair)
    node.group, node.engine = SimpleNamespace(flush=lambda: None), SimpleNamespace(may_lead=False)
    RaftLog.recover(node)
    assert (node.engine.may_lead, world.repair.blocked, world.repair.first_index) == (True, False, 1 << 62)
    assert [each.last_index for each, _ in world.repair.lost()] == [1]
    world.repair.work()
    assert asked_for(world) == [1]
    world.payloads.held.add(1)
    assert world.repair.work()
    assert not world.repair.lost()


def test_a_hole_in_a_partition_that_is_destroyed_is_nobodys(world: World) -> None:
    """It was shown as lost, and could not be declared void, until its log was removed."""
    world.misses(5, 6, committed=True)
    world.say(A, Lack.ABSENT)
    world.say(B, Lack.ABSENT)
    world.repair.work()
    assert [route.last_index for route, _ in world.repair.lost()] == [5]
    world.payloads.destroyed = True
    assert not world.repair.work()
    assert not world.repair.lost()
    assert not world.repair.holes
    assert world.repair.missing_count == 1, "others may be fed with what is not known to be lost"
    assert world.payloads.holes == {route(5).digest}, "and are told of what is"


def test_a_node_that_is_alone_needs_nobody(world: World) -> None:
    world.repair.set_peers([], alone=True)
    world.misses(5)
    assert world.repair.work()
    world.repair.set_peers([])
    world.misses(6)
    assert not world.repair.work(), "it does not know of any member yet"


def test_who_is_removed_is_waited_for_while_there_is_a_link(world: World) -> None:
    """It may have the batch; once it has gone nobody can ask it any more."""
    world.repair.set_peers([A, B], optional=[B])
    world.misses(5)
    assert not world.repair.work()
    world.say(A, Lack.ABSENT)
    assert not world.repair.work(), "B may have it"
    world.linked.discard(B)
    assert world.repair.work()


def test_who_is_alone_waits_for_whom_it_has_removed_only_while_there_is_a_link(world: World) -> None:
    world.repair.set_peers([A, B], optional=[A, B], alone=True)
    world.linked.discard(A)
    world.misses(5)
    assert not world.repair.work()
    world.say(B, Lack.ABSENT)
    assert world.repair.work()
    world.misses(6)
    assert not world.repair.work()
    world.linked.discard(B)
    assert world.repair.work()


def test_what_nobody_who_is_there_has_leaves_the_others_their_turn(world: World) -> None:
    """While one member was away for long, all that came behind the first sixteen waited for it, too."""
    world.linked.discard(B)
    world.misses(*range(100, 100 + ROUTES_PER_FETCH), 5, committed=True)
    world.repair.work()
    assert [len(body[0]) // ROUTE_BYTES for _, _, _, body in world.sent] == [ROUTES_PER_FETCH]
    for index in range(100, 100 + ROUTES_PER_FETCH):
        world.say(A, Lack.ABSENT, index=index)
    world.sent.clear()
    assert not world.repair.work(), "B may have them"
    (_, kind, _, body) = world.sent[-1]
    assert kind is Kind.FETCH
    assert body[0][:ROUTE_BYTES] == ROUTE.pack(*route(5))


def test_who_has_been_asked_nothing_yet_does_not_lose_its_turn(world: World) -> None:
    world.linked.clear()
    world.misses(*range(100, 100 + ROUTES_PER_FETCH), 5, committed=True)
    for _ in range(2):
        world.repair.work()
        world.now += 1
    assert all(body[0][:ROUTE_BYTES] == ROUTE.pack(*route(100)) for _, _, _, body in world.sent)
    assert world.sent


def test_who_comes_later_is_asked_for_the_first_ones_first(world: World) -> None:
    """What follows them cannot be taken: asked for what was missing behind them, it gave that, again and again."""
    world.linked.discard(B)
    world.misses(*range(2, 41), committed=True)
    for begin in (2, 18, 34):
        assert not world.repair.work()
        assert asked_for(world)[0] == begin
        for index in asked_for(world):
            world.say(A, Lack.ABSENT, index=index)
    world.now += 1
    world.repair.work()
    world.linked.add(B)
    for begin in (2, 18, 34):
        world.now += 1
        world.repair.work()
        assert (world.sent[-1][0], asked_for(world)) == (B, list(range(begin, min(begin + ROUTES_PER_FETCH, 41))))
        world.payloads.held.update(asked_for(world))
    assert world.repair.work()


def test_what_is_given_and_cannot_be_taken_keeps_nothing_from_its_turn(world: World) -> None:
    """A has what follows one that is damaged there: it is given, again and again, until B comes."""
    world.linked.discard(B)
    world.misses(*range(100, 150), 5, committed=True)
    world.say(A, Lack.DAMAGED, index=100)
    seen = set[int]()
    for _ in range(8):
        world.repair.work()
        seen.update(asked_for(world))
        world.now += 1
    assert seen == {*range(100, 150), 5}


def test_who_cannot_say_is_asked_again_soon_and_not_all_the_time(world: World) -> None:
    """It opens its partitions, perhaps, and has it then; what it says of others does not wait for that."""
    world.linked.discard(B)
    world.misses(*range(100, 150), 5, committed=True)
    seen = list[int]()
    for _ in range(10):
        world.repair.work()
        seen.append(asked_for(world)[0])
        for index in asked_for(world):
            world.say(A, Lack.UNKNOWN if index != 5 else Lack.ABSENT, index=index)
        world.now += 1
    assert seen.count(100) >= 4
    assert world.repair._answers.said(route(5).digest) == {A: Lack.ABSENT}


def test_what_nobody_has_in_one_partition_lets_what_others_have_of_others_come_in_order(world: World) -> None:
    world.linked.discard(B)
    here = [route(index) for index in range(100, 140)]
    there = [route(index)._replace(partition_id=PartitionId(1)) for index in range(500, 540)]
    both = [each for pair in zip(here, there, strict=True) for each in pair]
    world.repair.missing([Wanted(each, None) for each in both])
    came = list[int]()
    while len(came) < len(there):
        world.repair.work()
        for each in asked_for_routes(world):
            if each.partition_id == 0:
                world.repair.on_frame(A, Frame(Kind.FETCHED, 0, pack([(each, Lack.ABSENT)], term=4), memoryview(b"")))
            elif each.last_index == 500 + len(came):
                came.append(each.last_index)
                world.payloads.held.add(each.last_index)
        assert len(world.sent) < 12, "it asks for little that cannot come"
