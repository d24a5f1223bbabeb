"""Frontiers between nodes: what is said late, of what nobody waits for, or to many at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.barriers.frontiers import FRAME_ROWS, Frontiers
from dispatcher.barriers.goals import Want
from dispatcher.pipeline.backend import Backend
from logboom.errors import QuotaExceeded
from logboom.types import GlobalLogIndex, Level, NodeId, PartitionId, Scope
from tests.unit.dispatcher.barrier_desk import A, B, reached
from tests.unit.dispatcher.frontier_world import BOTH, N1, N2, N3, NODES, Node, World, apply


def test_what_is_told_of_what_nobody_waits_for_any_more_changes_nothing() -> None:
    world = World()
    waiter, _ = world[N1].wait(5, reach=Scope.ALL)
    world.talk()
    world[N2].apply(A, 5)
    late = world[N2].telling.tell(N1)
    assert late["rows"]
    assert waiter is not None
    world[N1].barriers.cancel(waiter)
    world[N1].others.heard(N2, late)
    assert len(world[N1].others) == 0


def test_what_is_told_by_one_that_was_removed_is_not_kept() -> None:
    world = World()
    world[N1].wait(5, reach=Scope.ALL)
    world.talk()
    world[N2].apply(A, 5)
    late = world[N2].telling.tell(N1)
    others = world[N1].others
    others.set_members(N1, (N1, N3), (N1, N3))
    others.heard(N2, late)
    others.set_members(N1, (N1, N2), (N1, N2))
    assert others.frontier(A, Level.APPLIED, Scope.ALL, own=5) == 0
    world[N1].others.heard(N2, late)
    assert others.frontier(A, Level.APPLIED, Scope.ALL, own=5) == 5


def test_over_a_new_link_only_the_first_of_several_frames_says_that_it_is_new() -> None:
    others = Frontiers()
    others.set_members(N1, NODES, NODES)
    others.want(Want(tuple((PartitionId(p), GlobalLogIndex(1)) for p in range(FRAME_ROWS + 1))))
    others.link_up(N2)
    said = []
    while N2 in others.due():
        said.append(others.ask(N2)["new"])
        others.asked(N2)
    assert said == [True, False]


def test_who_wants_to_hear_what_is_applied_has_it_hurried() -> None:
    world, hurried = World(), list[PartitionId]()
    world[N2].telling.hurry = hurried.append
    world[N1].wait(5, [A], Level.APPLIED, reach=Scope.ALL)
    world[N1].wait(5, [B], Level.DURABLE, reach=Scope.ALL)
    world.talk()
    assert hurried == [A]


def test_whoever_sends_is_poked_as_soon_as_there_is_something_to_tell() -> None:
    world, pokes = World(), list[int]()
    world[N1].wait(5, reach=Scope.ALL)
    world.talk()
    world[N2].telling.poke = lambda: pokes.append(1)
    world[N2].apply(A, 4)
    assert pokes == []
    world[N2].apply(A, 5)
    assert pokes == [1]


def test_one_that_goes_on_is_heard_of_though_another_has_stopped_listening() -> None:
    world = World()
    first, _ = world[N1].wait(5, reach=Scope.ALL, wait_blocked=True)
    world[N3].wait(5, reach=Scope.ALL, wait_blocked=True)
    world.talk()
    apply(world, N2, 3, state="paused")
    assert first is not None
    world[N1].barriers.cancel(first)
    world.talk()
    apply(world, N2, 3, state="running")
    _, impatient = world[N3].wait(5, reach=Scope.ALL)
    world.talk()
    assert impatient == []
    assert [len(world[name].telling._blocked) for name in NODES] == [0, 0, 0]


def test_one_for_which_there_was_no_place_is_watched_as_soon_as_there_is() -> None:
    world, full = World(), True
    barriers = world[N2].barriers
    add = barriers.add

    def adding(*what: Any, **how: Any) -> Any:
        if full:
            raise QuotaExceeded("no place", limit=1, used=1, retry_after=0.1)
        return add(*what, **how)

    barriers.add = adding  # type: ignore[method-assign]
    _, answers = world[N1].wait(5, reach=Scope.ALL)
    world.talk()
    full = False
    world[N2].telling.tick()
    for name in NODES:
        apply(world, name, 5)
    assert len(answers) == 1


@pytest.mark.parametrize("scope", BOTH)
def test_what_a_node_said_before_its_disk_went_counts_no_more(scope: Scope) -> None:
    """A barrier was reached by a copy that was gone."""
    world = World()
    _, answers = world[N1].wait(5, reach=scope)
    world.talk()
    apply(world, N2, 9)
    if scope is Scope.ALL:
        apply(world, N3, 9)
    _lose_disk(world, N2)
    apply(world, N1, 9)
    assert answers == []
    apply(world, N2, 9)
    assert reached(answers)


@pytest.mark.parametrize("scope", BOTH)
def test_of_several_partitions_none_is_there_by_what_a_node_said_before_its_disk_went(scope: Scope) -> None:
    """Each on its own had been there once, and the copy was gone when the last one was."""
    world = World()
    _, answers = world[N1].wait(5, [A, B], reach=scope)
    world.talk()
    for name in NODES if scope is Scope.ALL else (N1, N2):
        apply(world, name, 9, A)
    _lose_disk(world, N2)
    for name in NODES if scope is Scope.ALL else (N1, N2):
        apply(world, name, 9, B)
    assert answers == []
    apply(world, N2, 4, A)
    assert answers == []
    apply(world, N2, 9, A)
    assert reached(answers)


def _lose_disk(world: World, name: NodeId) -> None:
    """It comes back to the first node as one that has nothing."""
    world.sever(N1, name)
    node: Any = Backend.__new__(Backend)
    node.stability = SimpleNamespace(forget=lambda _: None)
    node.barriers = world[N1].barriers
    node.exchange = SimpleNamespace(asking=world[N1].others)
    node.peer_forgot(name)
    world.nodes[name] = Node(world, name)
    world.mend(N1, name)
    world.talk()


def test_all_that_a_node_keeps_of_what_others_said_is_forgotten() -> None:
    forgot: list[tuple[str, NodeId]] = []
    node: Any = Backend.__new__(Backend)
    node.stability = SimpleNamespace(forget=lambda peer: forgot.append(("stability", peer)))
    node.exchange = SimpleNamespace(asking=SimpleNamespace(forget=lambda peer: forgot.append(("frontiers", peer))))
    node.barriers = SimpleNamespace(members_changed=lambda: forgot.append(("barriers", N2)))
    node.peer_forgot(N2)
    assert forgot == [("stability", N2), ("frontiers", N2), ("barriers", N2)]
