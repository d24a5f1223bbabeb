"""Sets are due early where the disk is nearly full: without them nothing could ever be removed again."""

from __future__ import annotations

import msgspec
import pytest

from dispatcher.upkeep.due import DOUBLED_MAX, ENDED_S, FAILED_S, ROOM_LOOK_S, SHORT_OF_ROOM
from dispatcher.upkeep.snapshotting import CUT
from logboom.types import GIB, GlobalLogIndex, PartitionId, PartitionLogIndex
from raftlog.entries.parent_state import ParentState, Tail
from tests.unit.dispatcher.snapshotting_bench import Bench

SPARE = 1 << 20


def bench(*, log_bytes: int = 2 * GIB, spare_bytes: int = SPARE, partitions: int = 2) -> Bench:
    """With one set, and a disk that has much left."""
    made = Bench(partitions=partitions, log_bytes=log_bytes, spare_bytes=spare_bytes)
    made.cut(15)
    made.offload.run()
    return made


def short_of_room(made: Bench) -> None:
    made.disk.capacity -= made.store.free_bytes() - (SHORT_OF_ROOM * SPARE - 1)


def write(made: Bench, nbytes: int, *, reclaimable: bool = True) -> None:
    made.global_index += 1
    made.applied(nbytes, reclaimable=reclaimable)


def size(made: Bench) -> int:
    assert made.store.newest is not None
    return made.store.newest.states_bytes


def sets_taken(made: Bench) -> int:
    """Until none is due any more, with a write in between that is not worth one."""
    for taken in range(10):
        made.proposed.clear()
        made.now += ROOM_LOOK_S
        made.taking.tick()
        if not made.proposed:
            return taken
        assert made.proposed == [CUT]
        made.cut(made.global_index)
        made.offload.run()
        write(made, 1)
    raise AssertionError("always due")


def test_two_make_room_for_what_was_written_and_then_no_more() -> None:
    """Logs go up to where the one before the newest begins."""
    made = bench()
    write(made, size(made) + 1)
    assert sets_taken(made) == 0, "there is room"
    short_of_room(made)
    assert sets_taken(made) == 2


def test_the_disk_is_asked_now_and_then_and_not_at_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times a second, on the loop: whatever the file system takes to answer, nobody else is served meanwhile."""
    made = bench()
    write(made, size(made) + 1)
    asked, real = list[float](), made.store.free_bytes
    monkeypatch.setattr(made.store, "free_bytes", lambda: (asked.append(made.now), real())[1])
    for _ in range(100):
        made.now += ROOM_LOOK_S / 20
        made.taking.tick()
    assert 4 <= len(asked) <= 6


def test_also_where_there_is_no_set_yet() -> None:
    made = Bench(log_bytes=2 * GIB, spare_bytes=SPARE)
    write(made, 1000)
    short_of_room(made)
    made.taking.tick()
    assert made.proposed == [CUT]


def test_also_for_what_was_written_before_a_start() -> None:
    """Found by reading: on a disk that was full at the start nothing was admitted, so nothing was ever due."""
    before = bench()
    made = Bench(log_bytes=2 * GIB, spare_bytes=SPARE, store=before.store)
    made.disk = before.disk
    made.global_index = 15
    made.found(size(made) + 1)
    made.recovered = True
    made.taking.tick()
    assert made.proposed == [], "there is room"
    made.workers[PartitionId(0)].applied_index = 10  # where the bench cuts
    short_of_room(made)
    assert sets_taken(made) == 2


def test_what_was_destroyed_is_room_that_two_sets_make() -> None:
    """Found by reading: of a log that is kept for ever nothing counted, though all of it goes with its partition."""
    made = bench()
    made.logs[PartitionId(0)].batches.append((10, size(made) + 1))
    write(made, size(made) + 1, reclaimable=False)
    short_of_room(made)
    assert sets_taken(made) == 0
    worker = made.workers[PartitionId(0)]
    worker.reclaimable = False
    made.destroy(0)
    made.taking.ended(PartitionId(99))  # never opened here
    assert sets_taken(made) == 2


@pytest.mark.parametrize(("last_index", "sets"), [(10, 2), (11, 0), (12, 2)])
def test_but_not_what_sets_make_room_for_whether_it_is_destroyed_or_not(last_index: int, sets: int) -> None:
    """What was applied since the set before the last one counts already: not what is kept below, nor what was not."""
    made = bench()
    made.cut(16)
    made.offload.run()
    half, worker = size(made) // 2 + 1, made.workers[PartitionId(0)]
    worker.log.batches, worker.applied_index = [(last_index, half)], 11
    write(made, half)
    made.destroy(0)
    short_of_room(made)
    assert sets_taken(made) == sets


def test_what_was_destroyed_goes_as_a_whole_with_the_second_set_also_what_the_newest_had_of_it() -> None:
    """The first makes room for that of those that live: of the destroyed nothing was left that a second was due for."""
    made = Bench(log_bytes=2 * GIB, spare_bytes=SPARE)
    worker = made.workers[PartitionId(0)]
    worker.log.batches = [(10, 100_000)]
    write(made, 100_000)
    made.cut(15)
    made.offload.run()
    made.destroy(0)
    write(made, 1)
    short_of_room(made)
    assert sets_taken(made) == 2


@pytest.mark.parametrize("sets", [0, 1, 2])
def test_so_it_does_where_it_was_destroyed_while_the_newest_was_written(sets: int) -> None:
    """Found by review: what the set had of it counted as room that the next would make, which keeps all of it."""
    made = Bench(log_bytes=2 * GIB, spare_bytes=SPARE)
    for at in range(sets):
        made.cut(at + 13)
        made.offload.run()
    worker = made.workers[PartitionId(0)]
    worker.log.batches = [(10, 100_000)]
    write(made, 100_000)
    made.cut(15)
    made.destroy(0)
    made.offload.run()
    write(made, 1)
    short_of_room(made)
    assert sets_taken(made) == 2


def test_so_it_does_where_the_newest_was_another_nodes() -> None:
    made = Bench(log_bytes=2 * GIB, spare_bytes=SPARE)
    worker = made.workers[PartitionId(0)]
    worker.log.batches = [(10, 100_000)]
    write(made, 100_000)
    worker.useless = True
    made.cut(15)
    assert made.taking.progress() is None
    worker.useless = False
    other = Bench()
    other.cut(15)
    other.offload.run()
    (theirs,) = other.completed
    made.destroy(0)
    made.store._sets = (theirs,)
    made.taking.fetched(theirs)
    write(made, 1)
    short_of_room(made)
    assert sets_taken(made) == 2


def test_a_set_that_a_destroyed_partition_ends_puts_off_those_that_free_its_room_by_little() -> None:
    """Found by review: it counted as one that had failed, for minutes, and after some for an hour."""
    made = bench(partitions=3)
    write(made, size(made) + 1)
    short_of_room(made)
    for partition in (0, 1):
        made.workers[PartitionId(partition)].applied_index = 9  # paused
        made.taking.tick()
        assert made.proposed == [CUT]
        made.proposed.clear()
        made.cut(made.global_index)
        made.destroy(partition)
        made.taking.tick()
        assert made.proposed == [], "more may be destroyed right behind it"
        made.now += ENDED_S
    assert made.taking.failed == 0
    assert sets_taken(made) == 2


def test_what_is_destroyed_while_its_machine_opens_is_room_once() -> None:
    """It ends twice: once for who waits, and once for its machine."""
    made = bench()
    worker = made.workers[PartitionId(0)]
    worker.log.batches = [(11, size(made) // 2 + 1)]
    write(made, 1)
    made.taking.ended(PartitionId(0))
    made.taking.ended(PartitionId(0), worker)  # type: ignore[arg-type]
    short_of_room(made)
    assert sets_taken(made) == 0


def test_what_is_destroyed_again_after_a_start_is_all_room() -> None:
    """Nobody has looked yet at what of it was written before."""
    before = bench()
    made = Bench(log_bytes=2 * GIB, spare_bytes=SPARE, store=before.store)
    made.disk = before.disk
    made.global_index = 15
    made.found(size(made) + 1)
    worker = made.workers.pop(PartitionId(0))
    made.taking.ended(PartitionId(0), worker)  # type: ignore[arg-type]
    made.recovered = True
    made.taking.tick()
    made.workers[PartitionId(0)], worker.applied_index = worker, 10  # where the bench cuts
    short_of_room(made)
    assert sets_taken(made) == 2


@pytest.mark.parametrize("reclaimable", [True, False])
def test_not_for_less_than_they_cost(*, reclaimable: bool) -> None:
    made = bench()
    write(made, size(made) if reclaimable else 1000 * size(made), reclaimable=reclaimable)
    short_of_room(made)
    assert sets_taken(made) == 0


@pytest.mark.parametrize(("log_bytes", "spare_bytes"), [(0, SPARE), (2 * GIB, 0)])
def test_not_where_they_are_off_or_nobody_looks_at_the_disk(log_bytes: int, spare_bytes: int) -> None:
    made = bench(log_bytes=log_bytes, spare_bytes=spare_bytes)
    write(made, size(made) + 1)
    short_of_room(made)
    assert sets_taken(made) == 0


def test_one_that_is_large_is_due_while_it_still_fits() -> None:
    """It was begun where it could not be written any more: what was left was less than it is large."""
    made = bench()
    assert made.store.newest is not None
    made.store._sets = (msgspec.structs.replace(made.store.newest, states_bytes=500 * SPARE),)
    write(made, 501 * SPARE)
    made.disk.capacity -= made.store.free_bytes() - 600 * SPARE
    made.taking.tick()
    assert made.proposed == []
    made.disk.capacity -= 600 * SPARE - ((500 + SHORT_OF_ROOM) * SPARE - 1)
    made.now += ROOM_LOOK_S
    made.taking.tick()
    assert made.proposed == [CUT]


def tries(made: Bench, seconds: int, *, writes: bool = False) -> list[float]:
    """When a cut was asked for; each comes at once."""
    at = []
    for _ in range(seconds):
        made.now += ROOM_LOOK_S
        made.proposed.clear()
        made.taking.tick()
        if made.proposed:
            at.append(made.now)
            made.cut(made.global_index)
            made.offload.run()
            if writes:
                write(made, 1)
    return at


@pytest.mark.parametrize("writes", [True, False])
def test_sets_that_fail_are_tried_again_and_ever_more_seldom(*, writes: bool) -> None:
    """Each has all nodes write one. Two that failed, and none was due any more, though the reason had gone."""
    made = bench()
    write(made, size(made) + 1)
    made.disk.capacity -= made.store.free_bytes() - SPARE // 2
    first, *others = tries(made, 10_000, writes=writes)
    assert [at - first for at in others] == [FAILED_S * (2**n - 1) for n in range(1, 8)]
    assert made.sets() == [15]
    made.disk.capacity += SPARE  # enough for a set, and still little
    again = tries(made, int(FAILED_S * 2**DOUBLED_MAX))
    assert len(again) == 1
    assert made.sets() == [15, made.global_index]


def test_what_was_in_the_way_for_a_while_is_made_up_for() -> None:
    made = bench()
    write(made, size(made) + 1)
    short_of_room(made)
    away = made.workers.pop(PartitionId(0))  # it is being opened
    parent = ParentState(GlobalLogIndex(made.global_index), 6, {PartitionId(0): Tail(PartitionLogIndex(10), bytes(16))})
    for _ in range(2):
        made.taking.cut(raft_index=6, term=1, parent=parent)
    made.workers[PartitionId(0)] = away
    assert len(tries(made, int(2 * FAILED_S))) == 1
    assert made.sets() == [15, made.global_index]


def test_another_nodes_set_makes_room_as_its_own_does() -> None:
    made = bench()
    write(made, size(made) + 1)
    short_of_room(made)
    for worker in made.workers.values():
        worker.broken = True
    made.taking.tick()
    made.cut(made.global_index)
    other = Bench()
    other.cut(made.global_index)
    other.offload.run()
    (theirs,) = other.completed
    made.store._sets = (*made.store.sets(), theirs)
    made.taking.fetched(theirs)
    assert len(tries(made, 10_000)) == 0, "nothing is written"
    write(made, 1)
    assert len(tries(made, 1)) == 1, "what was written lies between the two"
    theirs = msgspec.structs.replace(theirs, global_index=made.global_index)
    made.store._sets = (*made.store.sets(), theirs)
    made.taking.fetched(theirs)
    write(made, 1)
    assert len(tries(made, 10_000)) == 0
