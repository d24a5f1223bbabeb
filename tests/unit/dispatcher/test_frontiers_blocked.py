"""Partitions that keep a barrier from being reached, as other nodes hear of them."""

from __future__ import annotations

import pytest

from logboom.errors import BarrierBlocked, PartitionDestroyed
from logboom.types import Level, NodeId, Scope
from tests.unit.dispatcher.barrier_desk import A, reached
from tests.unit.dispatcher.frontier_world import BOTH, N1, N2, N3, NODES, World, apply


class TestBlocked:
    def test_all_cannot_do_without_one_and_a_majority_can(self) -> None:
        world = World()
        told = {scope: world[N1].wait(5, reach=scope)[1] for scope in BOTH}
        world.talk()
        apply(world, N2, 3, state="paused")
        assert isinstance(told[Scope.ALL][0], BarrierBlocked)
        assert told[Scope.QUORUM] == []
        apply(world, N3, 3, state="damaged")
        assert isinstance(told[Scope.QUORUM][0], BarrierBlocked)

    def test_one_that_was_there_before_it_was_paused_holds_nobody_up(self) -> None:
        world = World()
        _, answers = world[N1].wait(5, reach=Scope.ALL)
        world.talk()
        apply(world, N2, 5)
        apply(world, N2, 5, state="paused")
        apply(world, N3, 5)
        assert answers == []
        apply(world, N1, 5)
        assert reached(answers)

    def test_a_majority_needs_nothing_more_of_those_who_are_there(self) -> None:
        """Found by reading: whoever had got there and was paused after it was counted as lost."""
        world = World()
        apply(world, N1, 5, state="paused")
        _, answers = world[N1].wait(5, reach=Scope.QUORUM)
        world.talk()
        apply(world, N2, 3, state="paused")
        assert answers == []
        apply(world, N3, 5)
        assert reached(answers)

    def test_one_that_goes_on_is_heard_of(self) -> None:
        world = World()
        world[N1].wait(5, reach=Scope.ALL, wait_blocked=True)
        world.talk()
        apply(world, N2, 3, state="paused")
        apply(world, N2, 3, state="running")
        _, impatient = world[N1].wait(5, reach=Scope.ALL)
        world.talk()
        assert impatient == []

    def test_what_is_frozen_at_the_leader_is_told_once(self) -> None:
        """Found by the simulator: it was told again and again, as fast as the link took it."""
        world = World()
        leader, other = world[N1], world[N2]
        leader.barriers.lead()
        leader.state(A, "frozen")
        other.wait(5, reach=Scope.ALL)
        leader.telling.asked(N2, other.others.ask(N1))
        if leader.telling.due():
            leader.telling.told(N2, leader.telling.tell(N2))
        assert leader.telling.due() == []

    @pytest.mark.parametrize("after", ["paused", "running"])
    def test_what_comes_of_one_that_was_frozen_at_the_leader_is_heard_of(self, after: str) -> None:
        world = World()
        world[N1].barriers.lead()
        world[N1].state(A, "frozen")
        _, answers = world[N2].wait(5, reach=Scope.ALL)
        world.talk()
        apply(world, N1, 3, state=after)
        assert isinstance(answers[0], BarrierBlocked) if after == "paused" else answers == []
        for name in NODES:
            apply(world, name, 5)
        assert after == "paused" or reached(answers)

    def test_one_that_is_destroyed_ends_it_everywhere(self) -> None:
        world = World()
        _, answers = world[N1].wait(5, reach=Scope.ALL)
        world.talk()
        for name in NODES:
            world[name].barriers.ended(A, lambda: PartitionDestroyed("gone"))
            world[name].watermarks.remove(A)
        world.talk()
        assert isinstance(answers[0], PartitionDestroyed)
        assert [len(world[name].telling) for name in NODES] == [0, 0, 0]

    @pytest.mark.parametrize("asked", [(N1, Scope.ALL), (N2, Scope.NODE)])
    def test_what_is_lost_of_a_state_alone_holds_up_nobody_who_waits_for_the_log(
        self, asked: tuple[NodeId, Scope]
    ) -> None:
        world, (node, reach) = World(), asked
        durable, applied = (
            world[node].wait(5, reach=reach, level=level)[1] for level in (Level.DURABLE, Level.APPLIED)
        )
        world.talk()
        apply(world, N2, 3, state="lost", log_goes_on=True)
        assert [getattr(answer, "blocked", None) for answer in applied] == [[[A, "lost"]]]
        _, late = world[node].wait(5, reach=reach, level=Level.DURABLE)
        world.talk()
        assert (durable, late) == ([], [])
        apply(world, N2, 3, state="lost")
        for answers in (durable, late):
            assert [getattr(answer, "blocked", None) for answer in answers] == [[[A, "lost"]]]
        _, patient = world[node].wait(5, reach=reach, level=Level.DURABLE, wait_blocked=True)
        world.talk()
        apply(world, N2, 3, state="lost", log_goes_on=True)
        _, again = world[node].wait(5, reach=reach, level=Level.DURABLE)
        assert (patient, again) == ([], [])
        for name in NODES:
            world[name].barriers.durable(A, 5)
        world.talk()
        assert reached(patient)
        assert reached(again)

    def test_one_that_is_paused_with_nothing_left_to_apply_is_waited_for(self) -> None:
        """Its node said that it is paused, and whoever waited for all was told that at once."""
        world = World()
        world[N2].apply(A, 3, state="paused", idle=True)
        told = {scope: world[N1].wait(5, reach=scope)[1] for scope in BOTH}
        world.talk()
        assert told == {scope: [] for scope in BOTH}
        for name in NODES:
            world[name].watermarks.committed(5)
            world[name].barriers.committed(5)
            if name != N2:
                apply(world, name, 5)
        world.talk()
        assert all(reached(answers) for answers in told.values())

    def test_once_it_has_something_to_apply_that_is_heard_of(self) -> None:
        world = World()
        world[N2].apply(A, 3, state="paused", idle=True)
        _, answers = world[N1].wait(5, reach=Scope.ALL)
        world.talk()
        assert answers == []
        world[N2].apply(A, 4, state="paused")
        world.talk()
        assert isinstance(answers[0], BarrierBlocked)
