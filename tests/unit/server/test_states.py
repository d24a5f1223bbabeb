"""Which state a node goes on with: its own, a snapshot's, none; and what becomes of a damaged one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from dispatcher.upkeep.rebuilding import Rebuilt
from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import Entry, Machine, Position, Space
from logboom.types import GlobalLogIndex, PartitionId
from partitions.machines import kv
from partitions.machines.guarded import guard
from partitions.machines.kv import KvMachine
from server.directory.states import LOADING, States, anywhere
from tests.unit.server.states_world import HERE, STATE, P, World, log_from, position
from tests.unit.snapshots.states_world import Dump, set_meta


class Refuses(KvMachine):
    """A machine of a user: there are sets that it does not take."""

    refused = 0

    def load(self, entries: Iterator[Entry], position: Position) -> None:
        if position.applied_index >= self.refused:
            next(entries)
            raise RuntimeError("not today")
        super().load(entries, position)


class Garbles(KvMachine):
    """A machine of a user: what it hands back of its producers is not what it was given."""

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        if self.position().applied_index:
            yield b"p" * 16, b"garbage"


class Lost(KvMachine):
    """A machine of a user: where it keeps how far it is is damaged, and nothing else."""

    def position(self) -> Position:
        raise CorruptData("the position is not one")


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("saved", "sets", "first", "expected"),
    [
        (7, [], 1, 7),
        (7, [5], 8, 7),
        (7, [9], 1, 7),
        (3, [5, 9], 5, 9),
        (0, [], 1, 0),
        (0, [5, 9], 6, 9),
    ],
)
def test_whole_states_go_on_unless_the_log_begins_behind_them(
    world: World, saved: int, sets: list[int], first: int, expected: int
) -> None:
    if saved:
        world.saved(saved)
    for index in sets:
        world.set_at(index)
    machine, lacks = world.states.open(P, log_from(first), None, leads_to=anywhere)
    assert lacks is None
    assert machine.position() == position(expected)
    assert machine.get([b"k"])[0] == [b"%d" % expected if expected else None]
    assert not world.aside()


def test_a_damaged_one_is_kept_aside_and_made_anew_from_the_newest_set(world: World) -> None:
    world.saved(7)
    world.set_at(5)
    world.set_at(6)
    world.broken = 1
    machine, lacks = world.states.open(P, log_from(3), None, leads_to=anywhere)
    assert (machine.position(), lacks) == (position(6), None)
    assert world.aside() == ["state.damaged-1"]


@pytest.mark.parametrize("kind", [Garbles, Lost])
def test_so_is_one_that_garbles_its_producers(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: type[KvMachine]
) -> None:
    """The node of a user's machine, which has no sums of its own, never started again."""
    world.saved(7)
    world.set_at(7)
    made: list[Machine] = []

    def open_machine(_: PartitionId, directory: Path) -> Machine:
        file = world.files.open(directory, ApplySettings())
        made.append(guard("users", KvMachine(file) if made else kind(file)))
        return made[-1]

    monkeypatch.setattr(world.states, "_open_machine", open_machine)
    rebuilt = world.states.open(P, log_from(8), None, leads_to=anywhere)
    assert (rebuilt.lacks, rebuilt.machine.position(), len(world.aside())) == (None, position(7), 1)


def test_one_that_garbles_what_it_loads_is_no_good_and_the_set_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.set_at(7)

    def open_machine(_: PartitionId, directory: Path) -> Machine:
        return guard("users", Garbles(world.files.open(directory, ApplySettings())))

    monkeypatch.setattr(world.states, "_open_machine", open_machine)
    rebuilt = world.states.open(P, log_from(8), None, leads_to=anywhere)
    assert rebuilt.lacks is not None
    assert "a producer's entry cannot be read" in rebuilt.lacks.story
    assert [meta.global_index for meta in world.sets.sets()] == [7]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(ConnectionError("no service"), "close"), (TypeError("at"), "close"), (CorruptData("a bit"), "discard")],
)
def test_only_one_that_is_damaged_is_discarded(error: Exception, expected: str) -> None:
    """One that could not say for now where it was had all of its state removed by the class that it is of."""
    world, called = World(), list[str]()
    world.disk.make_directory(STATE)

    def position() -> NoReturn:
        raise error

    def end(how: str) -> None:
        called.append(how)
        raise RuntimeError("nor can it do that")

    machine = SimpleNamespace(position=position, close=lambda: end("close"), discard=lambda: end("discard"))
    world.states._open_machine = lambda *_: cast(Any, machine)
    with pytest.raises(type(error), match=str(error)):
        world.states.open(P, log_from(1), None, leads_to=anywhere)
    assert set(called) == {expected}


def test_only_the_newest_is_kept_aside(world: World) -> None:
    for number in range(1, 4):
        world.saved(7)
        world.broken = 1
        machine, _ = world.states.open(P, log_from(1), None, leads_to=anywhere)
        assert machine.position() == position(0)
        machine.close()
        assert world.aside() == [f"state.damaged-{number}"]


def test_a_copy_that_an_operator_made_is_kept(world: World) -> None:
    """Found by review: it went with what it was a copy of."""
    copy = STATE.parent / "state.damaged-1.copy"
    world.disk.make_directory(copy)
    for _ in range(2):
        world.saved(7)
        world.broken = 1
        world.states.open(P, log_from(1), None, leads_to=anywhere).machine.close()
    assert world.aside() == [copy.name, "state.damaged-2"]


def test_a_damaged_set_is_removed_and_an_older_one_serves(world: World) -> None:
    world.saved(7)
    world.set_at(5)
    world.set_at(6)
    world.spoil(6)
    world.broken = 1
    machine, lacks = world.states.open(P, log_from(3), None, leads_to=anywhere)
    assert (machine.position(), lacks) == (position(5), None)
    assert [meta.global_index for meta in world.sets.sets()] == [5]


@pytest.mark.parametrize("where", ["header", "frame"])
@pytest.mark.parametrize("times", [1, 1 << 30])
def test_of_a_set_with_a_bad_sector_an_older_one_serves_and_the_disk_is_asked_twice(
    world: World, where: str, times: int
) -> None:
    """It ended the node, and each start after that: the same set was taken again."""
    world.saved(7)
    for index in (5, 6):
        world.set_at(index)
    world.broken = 1
    bad, left, reads = HERE / "snapshots" / f"{6:020d}.states", times, 0

    def hook(operation: str, path: Path, _size: int) -> None:
        nonlocal left, reads
        if operation == "read" and path == bad:
            reads += 1
            if reads > (where == "frame") and left:
                left -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    world.disk.hook = hook
    machine, lacks = world.states.open(P, log_from(3), None, leads_to=anywhere)
    assert (machine.position(), lacks) == (position(6 if times == 1 else 5), None)
    assert [meta.global_index for meta in world.sets.sets()] == ([5, 6] if times == 1 else [5])


def test_with_no_set_that_the_log_goes_on_from_it_says_what_it_lacks(world: World) -> None:
    world.saved(7)
    world.set_at(5)
    world.broken = 1
    machine, lacks = world.states.open(P, log_from(8), None, leads_to=anywhere)
    assert machine.position() == position(0)
    assert lacks is not None
    assert "begins at 8" in lacks.story
    assert lacks.behind == 0


def test_a_node_made_from_a_set_that_has_rotted_since_asks_for_another(world: World) -> None:
    world.saved(3)
    meta = world.set_at(9)
    world.spoil(9)
    machine, lacks = world.states.open(P, log_from(1), meta, leads_to=anywhere)
    assert machine.position() == position(0)
    assert lacks is not None
    assert world.sets.sets() == []


def test_a_node_made_from_a_set_keeps_what_is_further(world: World) -> None:
    world.saved(12)
    machine, lacks = world.states.open(P, log_from(1), world.set_at(9), leads_to=anywhere)
    assert (machine.position(), lacks) == (position(12), None)


@pytest.mark.parametrize("why", ["damaged", "behind its log", "half loaded"])
def test_no_state_is_made_from_a_set_that_the_journal_does_not_lead_to(world: World, why: str) -> None:
    """Found by review: it was fetched. Where the others were lost then, `recover` kept what was made of it."""
    world.saved(3)
    for index, raft_index, raft_term in ((5, 7, 2), (8, 9, 1), (9, 10, 2)):
        world.set_at(index, raft_index=raft_index, raft_term=raft_term)
    first = 1
    if why == "damaged":
        world.broken = 1
    elif why == "behind its log":
        first = 5
    else:
        world.disk.replace_file(STATE.parent / LOADING, b"")
    machine, lacks = world.states.open(P, log_from(first), None, leads_to=lambda index, term: index <= 9 and term == 2)
    assert (machine.position(), lacks) == (position(5), None)
    machine.close()
    assert len(world.sets.sets()) == 3, "the node is made from one when it has the logs, too"


def test_nor_where_no_other_helps_but_from_the_one_that_the_node_is_made_from(world: World) -> None:
    meta = world.set_at(9)
    machine, lacks = world.states.open(P, log_from(8), None, leads_to=lambda _index, _term: False)
    assert lacks is not None
    assert "no snapshot to begin with" in lacks.story
    assert machine.position() == position(0)
    machine.close()
    assert world.states.open(P, log_from(8), meta, leads_to=lambda _index, _term: False).machine.position() == position(
        9
    )


def test_while_it_runs_the_damaged_one_stays_readable_for_those_who_hold_it(world: World) -> None:
    world.saved(7)
    world.set_at(6)
    damaged, _ = world.states.open(P, log_from(1), None, leads_to=anywhere)
    with damaged.dump() as dump:
        machine, lacks = world.states.rebuild(P, log_from(1), damaged, 7)
        assert (machine.position(), lacks) == (position(6), None)
        assert list(dump.entries()) == [(Space.STATE, b"k", b"b7")]
    assert machine.get([b"k"])[0] == [b"6"]
    world.states.close()


def test_a_damaged_one_is_not_asked_how_far_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It raised once more what had just been found: its node ended."""
    world.saved(7)
    world.set_at(6)
    damaged, _ = world.states.open(P, log_from(1), None, leads_to=anywhere)
    monkeypatch.setattr(damaged, "position", partial(Lost.position, damaged))
    machine, lacks = world.states.rebuild(P, log_from(1), damaged, 7)
    assert (machine.position(), lacks) == (position(6), None)
    monkeypatch.undo()
    world.states.close()


def test_a_damaged_one_is_closed_once_nobody_reads_from_it_and_what_has_its_place_is_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.saved(7)
    world.set_at(6)
    first, _ = world.states.open(P, log_from(1), None, leads_to=anywhere)
    second, _ = world.states.rebuild(P, log_from(1), first, 7)
    third, _ = world.states.rebuild(P, log_from(1), second, 6)
    closed = list[Machine]()

    def discard(machine: KvMachine) -> None:
        closed.append(machine)

    monkeypatch.setattr(KvMachine, "discard", discard)  # `close` would write into what is damaged
    world.states.retire(first, second)
    world.states.retire(second, third)
    assert closed == [first, second]
    world.states.close()
    assert closed == [first, second]


def test_a_set_that_was_fetched_and_not_installed_is_not_begun_with_while_it_runs(world: World) -> None:
    """Found by review: the state was ahead of the log then, and the first view of several partitions ended the node."""
    world.saved(7)
    world.set_at(6)
    damaged, _ = world.states.open(P, log_from(1), None, leads_to=anywhere)
    world.set_at(9)
    machine, lacks = world.states.rebuild(P, log_from(1), damaged, 7)
    assert (machine.position(), lacks) == (position(6), None)
    world.states.close()


class TestRefused:
    """Found by review: whatever the machine of a user raised ended the node, and each start after that."""

    def _open(self, world: World, refused: int, *, first: int) -> Rebuilt:
        def opened(_: PartitionId, directory: Path) -> Machine:
            machine = Refuses(world.files.open(directory, ApplySettings()))
            machine.refused = refused
            return machine

        world.states._open_machine = opened
        return world.states.open(P, log_from(first), None, leads_to=anywhere)

    def test_an_older_set_may_do(self, world: World) -> None:
        world.set_at(5)
        world.set_at(6)
        machine, lacks = self._open(world, 6, first=3)
        assert (machine.position(), lacks) == (position(5), None)
        assert machine.get([b"k"])[0] == [b"5"]
        assert len(world.sets.sets()) == 2, "nothing is wrong with it"

    def test_else_its_partition_waits_for_a_newer_one(self, world: World) -> None:
        world.set_at(5)
        world.set_at(6)
        for _ in range(2):  # and at each start
            machine, lacks = self._open(world, 1, first=3)
            assert machine.position() == position(0)
            assert machine.get([b"k"])[0] == [None]
            assert lacks is not None
            assert lacks.behind == 6
            assert "not today" in lacks.story
            machine.close()
        machine, lacks = self._open(world, 9, first=3)  # once it is mended
        assert (machine.position(), lacks) == (position(6), None)


class TestHalfLoaded:
    """Found by review: a process that was killed while it loaded a set left half of it, at NOWHERE, and the next start
    applied the log on top of that, from its beginning."""

    @staticmethod
    def _killed_while_loading(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kv, "LOAD_BYTES", 1)
        writer = world.sets.begin(GlobalLogIndex(6))
        rows = [(Space.STATE, b"k", b"b6"), (Space.STATE, b"l", b"b6"), (Space.META, b"m", b"6")]
        writer.add(P, "kv", Dump(rows, 6))
        world.sets.complete(writer, set_meta(writer.finish()))
        world.saved(7)
        world.broken = 1
        writes = 0

        def fault(_: str, __: Path) -> None:
            nonlocal writes
            writes += 1
            if writes == 3:  # it is emptied, and one key is in it
                raise Killed

        world.files.fault = fault
        with pytest.raises(Killed):
            world.states.open(P, log_from(1), None, leads_to=anywhere)
        world.files.fault = None
        world.files.crash(power=False)

    def test_is_loaded_again(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._killed_while_loading(world, monkeypatch)
        machine, lacks = world.states.open(P, log_from(1), None, leads_to=anywhere)
        assert (machine.position(), lacks) == (position(6), None)
        assert machine.get([b"k", b"l"])[0] == [b"6", b"6"]
        machine.close()
        assert world.disk.list(STATE.parent) == ["state", "state.damaged-1"]

    def test_or_begins_with_nothing(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._killed_while_loading(world, monkeypatch)
        world.sets.remove(GlobalLogIndex(6))
        for _ in range(2):
            machine, lacks = world.states.open(P, log_from(1), None, leads_to=anywhere)
            assert (machine.position(), lacks) == (position(0), None)
            assert machine.get([b"k", b"l"])[0] == [None, None]
            machine.close()


class Killed(BaseException):
    """The process ended."""


def test_a_machine_that_does_not_take_the_position_of_what_it_loads_is_no_good(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition stood still on that node: its log begins behind what it was taken to have applied."""
    world.set_at(7)
    monkeypatch.setattr(KvMachine, "load", lambda *_: None)
    refused = world.states.open(P, log_from(8), None, leads_to=anywhere)
    assert "after load: it was given a dump of" in str(refused.lacks)
    refused.machine.close()
    assert world.sets.newest is not None
    monkeypatch.undo()
    assert world.states.open(P, log_from(8), None, leads_to=anywhere).machine.position() == position(7)


def test_who_cannot_open_it_while_a_set_is_put_in_its_place_loads_that_set_later() -> None:
    """What was there before is not what the log goes on from: what is void it would never have applied."""
    world = World()
    world.saved(5)
    meta = world.set_at(7)

    def missing(_: PartitionId, directory: Path) -> Machine:
        raise ModuleNotFoundError(str(directory))

    lacking = States(
        disk=world.disk, sets=world.sets, directory_of=lambda p: HERE / "partitions" / str(p), open_machine=missing
    )
    for installing in (meta, None, None):
        with pytest.raises(ModuleNotFoundError):
            lacking.open(P, log_from(1), installing, leads_to=anywhere)
    found = world.states.open(P, log_from(1), None, leads_to=anywhere)
    assert found.lacks is None
    assert found.machine.position() == position(7)
