"""Which state a node goes on with where a batch is void that states have in them."""

from __future__ import annotations

import pytest

from logboom.types import GlobalLogIndex, PartitionLogIndex
from raftlog.entries.voids import Void, Voids
from server.directory.states import anywhere
from tests.unit.server.states_world import P, World, log_from, position


@pytest.fixture
def world() -> World:
    return World()


def voids(*rows: tuple[int, bool]) -> Voids:
    """Batches of one record each: where, and whether some state has what it did."""
    found = Voids()
    for raft_index, (index, applied) in enumerate(rows, 1):
        last = PartitionLogIndex(index)
        found = found.after(Void(P, last, last, b"d" * 16, GlobalLogIndex(index), raft_index, applied))
    return found


class TestVoid:
    """What a batch did is in the states of others: whoever began in front of it stepped over it."""

    @pytest.mark.parametrize("first", [1, 5])
    def test_no_state_is_made_anew_from_in_front_of_it(self, world: World, first: int) -> None:
        world.saved(9)
        if first == 5:
            world.set_at(5)
        damaged, _ = world.states.open(P, log_from(1), None, leads_to=anywhere)
        found = world.states.rebuild(P, log_from(first), damaged, 9, voids((7, True)))
        assert found.machine.position() == position(0)
        assert found.lacks is not None
        assert found.lacks.behind == 6
        assert "void by now" in found.lacks.story

    @pytest.mark.parametrize("begins", ["damaged", "behind", "with nothing"])
    def test_nor_does_one_go_on_from_there_at_a_start(self, world: World, begins: str) -> None:
        if begins != "with nothing":
            world.saved(9 if begins == "damaged" else 5)
        world.set_at(5)
        world.broken = begins == "damaged"
        assert world.states.open(P, log_from(1), None, voids((7, True)), leads_to=anywhere).lacks is not None

    def test_a_set_that_reaches_it_serves(self, world: World) -> None:
        world.saved(9)
        for index in (5, 7):
            world.set_at(index)
        damaged, _ = world.states.open(P, log_from(1), None, leads_to=anywhere)
        found = world.states.rebuild(P, log_from(1), damaged, 9, voids((7, True)))
        assert (found.lacks, found.machine.position()) == (None, position(7))

    @pytest.mark.parametrize("rows", [[(7, False)], [(7, True), (7, False)], [(10, True)]])
    def test_what_no_state_has_any_more_or_this_one_never_had_is_stepped_over(
        self, world: World, rows: list[tuple[int, bool]]
    ) -> None:
        world.saved(9)
        world.set_at(5)
        damaged, _ = world.states.open(P, log_from(1), None, leads_to=anywhere)
        found = world.states.rebuild(P, log_from(1), damaged, 9, voids(*rows))
        assert (found.lacks, found.machine.position()) == (None, position(5))
