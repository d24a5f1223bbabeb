"""Snapshots that a node cannot take itself: it asks for a set of the others, and goes by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dispatcher.upkeep.snapshotting import WANT_AGAIN_S
from logboom.errors import Unavailable
from logboom.settings import SnapshotSettings
from logboom.state_machine import Entry
from logboom.types import PartitionId
from tests.unit.dispatcher.snapshotting_bench import Bench, Closing

BEHIND = PartitionId(0)
STALL_S = SnapshotSettings().dump_stall_ms / 1000


def raises(bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def entries(_: Closing) -> Iterator[Entry]:
        raise error

    monkeypatch.setattr(Closing, "entries", entries)
    bench.cut(30)
    bench.offload.run()


def cannot_be_captured(bench: Bench) -> None:
    bench.workers[BEHIND].broken = True
    bench.cut(30)


def is_of_another_index(bench: Bench) -> None:
    worker = bench.workers[BEHIND]
    worker.hurry = lambda: worker.asked and worker.asked[1](Closing(9))  # type: ignore[method-assign]
    bench.cut(30)


@pytest.mark.parametrize(
    "fails",
    [
        lambda bench, patch: raises(bench, patch, KeyError("a mistake in somebody's machine")),
        lambda bench, patch: raises(bench, patch, ConnectionRefusedError(111, "no such service")),
        lambda bench, patch: raises(bench, patch, Unavailable("no such service")),
        lambda bench, _: cannot_be_captured(bench),
        lambda bench, _: is_of_another_index(bench),
    ],
    ids=["raises", "reaches no service", "is refused", "cannot be captured", "of another index"],
)
def test_where_a_machine_gives_no_dump_a_set_of_the_others_is_asked_for(
    fails: Callable[[Bench, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was removed from its logs and its journal, whatever it was but silence."""
    bench, other = Bench(partitions=3), Bench(partitions=3)
    other.cut(30)
    other.offload.run()
    (theirs,) = other.completed
    bench.taking.tick()
    assert bench.wanted == []
    fails(bench, monkeypatch)
    assert bench.taking.failed == 1
    for _ in range(40):
        bench.taking.tick()
        bench.now += WANT_AGAIN_S / 20
    assert bench.wanted == [0, WANT_AGAIN_S], "now and then"
    bench.store._sets = (theirs,)
    bench.taking.fetched(theirs)
    bench.now += WANT_AGAIN_S
    bench.taking.tick()
    assert len(bench.wanted) == 2
    assert bench.compactions == [1]
    assert (bench.kept, bench.completed) == ([theirs], []), "it says nothing of this node's states"


def test_a_set_that_came_of_another_node_while_its_own_was_to_be_written_is_not_its_own() -> None:
    bench, other = Bench(), Bench()
    for each in (bench, other):
        each.cut(30)
    other.offload.run()
    (theirs,) = other.completed
    bench.store._sets = (theirs,)
    bench.offload.run()
    assert (bench.kept, bench.completed) == ([theirs], [])


def test_while_another_cut_is_under_way_nobodys_set_is_asked_for() -> None:
    bench = Bench(partitions=3)
    cannot_be_captured(bench)
    bench.workers[BEHIND].broken = False
    bench.workers[BEHIND].applied_index = 9
    bench.cut(40)
    bench.taking.tick()
    assert bench.wanted == []
    bench.workers[BEHIND].arrive(at=10)
    bench.offload.run()
    bench.now += WANT_AGAIN_S
    bench.taking.tick()
    assert (bench.sets(), bench.wanted) == ([40], [])


def test_where_a_partition_does_not_open_a_set_of_the_others_is_asked_for() -> None:
    """Nothing was removed from any log there, nor from the journal, until somebody's call had returned."""
    bench, other = Bench(partitions=3), Bench(partitions=3)
    other.cut(30)
    other.offload.run()
    (theirs,) = other.completed
    worker = bench.workers.pop(BEHIND)
    bench.cut(30)
    bench.now += STALL_S / 2
    bench.taking.tick()
    assert bench.wanted == [], "it may just be slow"
    bench.now += STALL_S / 2
    bench.taking.tick()
    assert bench.wanted == [STALL_S]
    bench.store._sets = (theirs,)
    bench.taking.fetched(theirs)
    bench.now += WANT_AGAIN_S
    bench.taking.tick()
    assert (bench.compactions, len(bench.wanted)) == ([1], 1)
    bench.cut(40)
    bench.taking.tick()
    assert len(bench.wanted) == 2, "of the next cut it is clear at once"
    bench.workers[BEHIND] = worker
    bench.cut(50)
    bench.offload.run()
    bench.now += STALL_S
    bench.taking.tick()
    assert (bench.sets(), len(bench.wanted)) == ([30, 50], 2)


@pytest.mark.parametrize("limit_ms", [SnapshotSettings().dump_stall_ms, 0])
def test_one_that_opens_in_time_needs_no_set_of_the_others(limit_ms: int) -> None:
    bench = Bench(partitions=3, dump_stall_ms=limit_ms)
    worker = bench.workers.pop(BEHIND)
    bench.cut(30)
    bench.now += STALL_S - 1
    bench.taking.tick()
    bench.workers[BEHIND] = worker
    bench.now += STALL_S
    bench.taking.tick()
    assert bench.wanted == []
    del bench.workers[BEHIND]
    bench.cut(40)
    bench.now += STALL_S
    bench.taking.tick()
    assert len(bench.wanted) == bool(limit_ms)


def has_no_room(bench: Bench) -> None:
    bench.disk.capacity = 10
    bench.cut(30)
    bench.offload.run()


def lacks_a_state(bench: Bench) -> None:
    bench.workers[BEHIND].useless = True
    bench.cut(30)


def loses_a_partition(bench: Bench) -> None:
    bench.workers[BEHIND].applied_index = 9
    bench.cut(30)
    bench.taking.ended(BEHIND)


@pytest.mark.parametrize("fails", [has_no_room, lacks_a_state, loses_a_partition])
def test_where_another_nodes_set_would_be_of_no_use_none_is_asked_for(fails: Callable[[Bench], None]) -> None:
    """There is no room for it either, or nothing could be removed all the same."""
    bench = Bench(partitions=3)
    fails(bench)
    assert bench.taking.progress() is None
    assert bench.sets() == []
    bench.now += WANT_AGAIN_S
    bench.taking.tick()
    assert bench.wanted == []
