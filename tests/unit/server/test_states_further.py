"""A set that has more than what was saved of a state, though that is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from logboom.settings import ApplySettings
from logboom.state_machine import ApplyBatch, Machine, Position
from logboom.types import GlobalLogIndex, PartitionId
from partitions.machines.guarded import guard
from partitions.machines.kv import KvMachine
from partitions.machines.log import LogMachine
from server.directory.states import anywhere
from tests.unit.server.states_world import STATE, P, World, log_from, position
from tests.unit.snapshots.states_world import set_meta

END = 7
"""Of the journal: every set of ``World`` is of there."""


@pytest.fixture
def world() -> World:
    return World()


def opened(world: World, *, damaged: bool, raft_index: int = END) -> Position:
    found = world.states.open(P, log_from(1, damaged=damaged), None, leads_to=lambda index, _: index <= raft_index)
    assert found.lacks is None
    found.machine.close()
    return found.machine.position()


def test_a_log_goes_on_from_it_and_nothing_of_it_is_read_again(world: World) -> None:
    """A batch in between rotted, and was declared void as if nobody had it; whoever began with that set had it."""
    world.disk.make_directory(STATE)
    world.states._open_machine = lambda _, directory: LogMachine(world.disk, directory / "checkpoint")
    machine = LogMachine(world.disk, STATE / "checkpoint")
    batch = ApplyBatch(position(50).applied_index, GlobalLogIndex(50), 1, 50, 100, b"d" * 16, None, ())
    machine.apply([batch], lambda _: (position(50), {}))
    writer = world.sets.begin(GlobalLogIndex(50))
    with machine.dump() as dump:
        writer.add(P, "log", dump)
    world.sets.complete(writer, set_meta(writer.finish()))
    assert opened(world, damaged=False, raft_index=END - 1) == position(0), "fetched, for all that it knows"
    assert opened(world, damaged=False) == position(50)
    assert world.states.open(P, log_from(1), None, leads_to=anywhere).machine.digest() == machine.digest()


@pytest.mark.parametrize(("damaged", "expected"), [(False, 5), (True, 9)])
def test_another_state_does_where_the_log_is_damaged(world: World, *, damaged: bool, expected: int) -> None:
    world.saved(5)
    for index in (3, 9):
        world.set_at(index)
    assert opened(world, damaged=damaged) == position(expected)


@pytest.mark.parametrize(("spoilt", "expected"), [([9], 7), ([7, 9], 5)])
def test_none_that_is_damaged_takes_the_place_of_what_is_whole(world: World, spoilt: list[int], expected: int) -> None:
    world.saved(5)
    for index in (7, 9):
        world.set_at(index)
    for index in spoilt:
        world.spoil(index)
    assert opened(world, damaged=True) == position(expected)
    assert [meta.global_index for meta in world.sets.sets()] == [7, 9], "a pass over them will tell"


def test_of_a_user_s_machine_one_is_gone_on_from_where_somebody_wanted_that(world: World) -> None:
    world.saved(5)
    world.set_at(9)

    def users(_: PartitionId, directory: Path) -> Machine:
        return guard("users", KvMachine(world.files.open(directory, ApplySettings())))

    world.states._open_machine = users
    assert opened(world, damaged=True) == position(5)
    assert not world.states.renew(P, 10)
    assert opened(world, damaged=True) == position(5), "it does not reach so far"
    assert world.states.renew(P, 9)
    assert opened(world, damaged=False) == position(9)


def test_nor_does_one_that_is_damaged_stand_for_anything(world: World) -> None:
    world.saved(5)
    world.set_at(9)
    world.spoil(9)
    assert not world.states.renew(P, 8)
    assert opened(world, damaged=False) == position(5)
    assert world.sets.sets() == []
