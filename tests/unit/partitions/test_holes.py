"""A log with batches that nobody has: what it commits, holds up, lets others read; filled, or declared void."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, Voided
from partitions.log.batch import Batch
from partitions.log.holes import Hole
from partitions.log.log import ChainBroken, PartitionLog
from partitions.log.opening import LogBase
from partitions.log.places import Rows
from partitions.log.reading import DamagedBatch
from ports.invariant import InvariantViolated
from raftlog.entries.parent_state import Tail
from server.offline.findings import Report
from server.offline.logs import check_log
from tests.unit.partitions.batches import P, chain, make
from tests.unit.partitions.holes_world import GONE, commit, digests, with_hole
from tests.unit.partitions.mending_world import DIRECTORY, flush, open_log
from tests.unit.partitions.worker_world import world


def test_nothing_follows_what_is_missing_before_it_is_conceded() -> None:
    log, batches = open_log(SimDisk(random.Random(1))), chain(3)
    log.append(batches[0])
    with pytest.raises(ChainBroken):
        log.append(batches[2])
    commit(log, batches[:1])
    with pytest.raises(InvariantViolated):
        log.commit(last_index=batches[1].last_index, digest=batches[1].digest, global_index=2, term=1)
    assert not log.concede(batches[0].last_index, batches[0].digest), "it is here"


def test_a_hole_is_committed_is_not_held_and_holds_up_what_is_durable() -> None:
    _, log, batches = with_hole()
    gone = batches[GONE]
    assert log.committed_index == batches[-1].last_index
    assert log.durable_index == batches[GONE - 1].last_index
    assert log.hole == Hole(gone.header.first_index, gone.last_index, gone.digest, GONE + 1)
    assert not log.holds(gone.last_index, gone.digest)
    assert log.is_hole(gone.last_index, gone.digest)
    assert log.is_lost(gone.last_index, gone.digest)
    assert digests(log) == [b.digest for b in batches[:GONE]]
    with pytest.raises(DamagedBatch):
        digests(log, batches[GONE - 1].last_index)
    with pytest.raises(DamagedBatch):
        log.read_raw(after_index=batches[GONE - 1].last_index, through_index=1 << 40, max_bytes=1)
    with pytest.raises(CorruptData):
        log.read_batch(gone.last_index, gone.digest)
    assert all(piece.damage is None for piece in log.scrub())


def test_a_hole_is_filled_by_the_batch_and_durable_when_that_is_synced() -> None:
    _, log, batches = with_hole()
    assert log.append(batches[GONE])
    assert log.hole is None
    assert log.durable_index == batches[GONE - 1].last_index, "it is not synced yet"
    flush(log)
    assert log.durable_index == batches[-1].last_index
    assert digests(log) == [b.digest for b in batches]
    assert not log.is_hole(batches[GONE].last_index, batches[GONE].digest)


def test_holes_that_the_state_makes_up_for_hold_up_nothing_behind_what_is_not_synced_yet_either() -> None:
    """Only one that was next to be durable was excused, and nobody looked again: it stayed lost until a start."""
    log, batches = open_log(SimDisk(random.Random(1))), chain(7)
    for number, batch in enumerate(batches):
        assert log.concede(batch.last_index, batch.digest) if number in (2, 3, 5) else log.append(batch)
    commit(log, batches)
    log.excuse_through(batches[3].last_index)
    assert (log.durable_index, log.hole) == (0, None), "nothing is synced yet"
    flush(log)
    assert log.durable_index == batches[4].last_index
    assert log.hole is not None
    assert log.hole.digest == batches[5].digest, "beyond the state"
    assert [log.is_lost(each.last_index, each.digest) for each in batches[2:4]] == [True, True]


def test_what_is_excused_while_it_waits_to_be_written_is_durable_once_it_is_synced() -> None:
    _, log, batches = with_hole()
    assert log.append(batches[GONE])
    log.excuse(batches[GONE].last_index)
    assert log.durable_index == batches[GONE - 1].last_index
    flush(log)
    assert log.durable_index == batches[-1].last_index


def test_a_hole_at_the_very_end_is_filled_as_well() -> None:
    """Nothing that was appended reaches as far: what comes there looks like something new."""
    log, batches = open_log(SimDisk(random.Random(1))), chain(3)
    for batch in batches[:2]:
        log.append(batch)
    flush(log)
    assert log.concede(batches[2].last_index, batches[2].digest)
    commit(log, batches)
    assert log.append(batches[2])
    assert not log.append(batches[2]), "it is held"
    flush(log)
    assert log.hole is None
    assert log.durable_index == batches[2].last_index
    assert digests(log) == [b.digest for b in batches]


def voided_log() -> tuple[SimDisk, PartitionLog, list[Batch]]:
    disk, log, batches = with_hole()
    log.void(batches[GONE].last_index, batches[GONE].digest)
    return disk, log, batches


def read_over(log: PartitionLog, batches: list[Batch]) -> None:
    assert digests(log, log.first_available_index - 1) == [b.digest for b in batches[:GONE]]
    with pytest.raises(Voided) as gap:
        digests(log, batches[GONE - 1].last_index)
    assert (gap.value.first_index, gap.value.next) == (batches[GONE].header.first_index, batches[GONE].last_index + 1)
    assert digests(log, gap.value.next - 1) == [b.digest for b in batches[GONE + 1 :]]


def test_what_is_void_holds_up_nothing_and_readers_are_told_where_to_go_on() -> None:
    _, log, batches = voided_log()
    gone = batches[GONE]
    assert log.hole is None
    assert log.durable_index == batches[-1].last_index
    read_over(log, batches)
    with pytest.raises(Voided):
        log.read_raw(after_index=batches[GONE - 1].last_index, through_index=1 << 40, max_bytes=1)
    assert log.void_behind(batches[GONE - 1].last_index) == Hole(
        gone.header.first_index, gone.last_index, gone.digest, GONE + 1
    )
    assert log.void_behind(0) is None
    assert not log.append(gone), "it comes too late"
    assert sum(piece.nbytes for piece in log.scrub()) == sum(b.nbytes for n, b in enumerate(batches) if n != GONE)


def test_a_damaged_batch_that_others_lost_too_can_be_void() -> None:
    disk, batches = SimDisk(random.Random(1)), chain(7)
    log = open_log(disk)
    for batch in batches:
        log.append(batch)
        flush(log)
    commit(log, batches)
    assert log.lose(batches[GONE].last_index, batches[GONE].digest)
    assert log.hole is None, "it was durable"
    log.void(batches[GONE].last_index, batches[GONE].digest)
    read_over(log, batches)


def test_places_tell_a_later_start_what_is_void() -> None:
    disk, log, batches = voided_log()
    log.save_places(log.durable_index)()
    log.close()
    last = batches[-1]
    again = open_log(disk, LogBase(last.last_index, last.digest, 7))  # type: ignore[arg-type]
    read_over(again, batches)
    assert again.first_available_index == 1, "no segment was taken for removed"


def excused_and_opened_again(*gone: int, fetched: bool = False) -> tuple[SimDisk, PartitionLog, list[Batch]]:
    """This node's state has what they did: the journal begins behind them. ``fetched``: as it was given a set."""
    disk, log, batches = with_hole(*gone)
    for number in gone:
        log.excuse(batches[number].last_index)
    saved = log.save_fetched(Rows()) if fetched else log.save_places(log.committed_index)
    saved()
    log.close()
    last = batches[-1]
    return disk, open_log(disk, LogBase(last.last_index, last.digest, 7)), batches  # type: ignore[arg-type]


@pytest.mark.parametrize("fetched", [False, True])
@pytest.mark.parametrize("gone", [(2,), (0,), (6,), (2, 3), (0, 1), (1, 4, 6), tuple(range(7))])
def test_places_tell_a_later_start_of_what_nobody_has_that_it_is_not_void(
    gone: tuple[int, ...],
    fetched: bool,
) -> None:
    """It was void there: readers passed over what had taken effect, and a copy that turned up was refused."""
    _, again, batches = excused_and_opened_again(*gone, fetched=fetched)
    assert again.lost() == [(batches[number].last_index, batches[number].digest) for number in gone]
    assert again.first_available_index == 1, "no segment was taken for removed"
    for number in gone:
        batch = batches[number]
        before = batch.header.first_index - 1
        assert again.is_hole(batch.last_index, batch.digest)
        assert again.void_behind(before) is None
        with pytest.raises(DamagedBatch):
            digests(again, before)
        assert again.append(batch)
        flush(again)
        assert digests(again, before)[0] == batch.digest
    assert digests(again) == [each.digest for each in batches]


def test_it_may_be_declared_void_and_lost_again_over_any_number_of_starts() -> None:
    disk, again, batches = excused_and_opened_again(GONE)
    gone, last = batches[GONE], batches[-1]
    again.save_places(last.last_index)()
    again.close()
    base = LogBase(last.last_index, last.digest, 7)  # type: ignore[arg-type]
    third = open_log(disk, base)
    assert third.is_lost(gone.last_index, gone.digest)
    moved = third.moved
    third.void(gone.last_index, gone.digest)
    assert third.moved > moved, "places are saved anew"
    third.save_places(last.last_index)()
    third.close()
    read_over(open_log(disk, base), batches)


def fetching(log: PartitionLog, batches: list[Batch], gone: int) -> Callable[[], None]:
    """All but the first, of which nobody has one, come from others."""
    rows = Rows()
    log.append(batches[0])
    commit(log, batches[:1])
    for number, batch in enumerate(batches[1:], 2):
        assert log.concede(batch.last_index, batch.digest) if number == gone else log.append(batch)
        rows.append(batch.last_index, number, batch.digest)
    flush(log)
    return log.save_fetched(rows, lost=[(batches[gone - 1].last_index, batches[gone - 1].digest)])


@pytest.mark.parametrize("meanwhile", [False, True])
@pytest.mark.parametrize("gone", range(2, 8))
def test_what_no_source_of_a_log_has_is_lost_also_where_it_is_committed_before_places_are_saved(
    gone: int,
    meanwhile: bool,
) -> None:
    disk, batches = SimDisk(random.Random(1)), chain(7)
    log = open_log(disk)
    save = fetching(log, batches, gone)
    if meanwhile:
        commit(log, batches, after=1)
    save()
    log.close()
    last, lost = batches[-1], batches[gone - 1]
    again = open_log(disk, LogBase(last.last_index, last.digest, 7))  # type: ignore[arg-type]
    assert (again.first_available_index, again.lost()) == (1, [(lost.last_index, lost.digest)])
    assert again.append(lost)
    flush(again)
    assert digests(again) == [each.digest for each in batches]


def test_what_was_declared_void_since_it_was_lost_here_is_saved_as_void() -> None:
    disk, log, batches = with_hole()
    gone, last = batches[GONE], batches[-1]
    log.save_fetched(Rows(), voids=[(gone.last_index, gone.digest)])()
    log.close()
    read_over(open_log(disk, LogBase(last.last_index, last.digest, 7)), batches)  # type: ignore[arg-type]


@pytest.mark.parametrize("found", [True, False])
def test_what_lies_in_its_place_here_is_saved_as_void_all_the_same(*, found: bool) -> None:
    """It was damaged there for ever, or even a record, where it is void on all other nodes. ``found``: that it rots."""
    disk, batches = SimDisk(random.Random(1)), chain(7)
    log = open_log(disk)
    for batch in batches:
        log.append(batch)
        flush(log)
    commit(log, batches)
    gone, last = batches[GONE], batches[-1]
    if found:
        assert log.lose(gone.last_index, gone.digest)
    elsewhere = (gone.last_index, batches[GONE + 1].digest), (gone.last_index - 1, gone.digest), (1 << 40, gone.digest)
    log.save_fetched(Rows(), voids=[*elsewhere, (gone.last_index, gone.digest)])()
    log.close()
    again = open_log(disk, LogBase(last.last_index, last.digest, 7))  # type: ignore[arg-type]
    assert again.lost() == []
    read_over(again, batches)
    again.save_places(last.last_index)()
    again.compact(last.header.first_index)()
    assert again.first_available_index > gone.last_index


def compacted_and_opened_again(gone: int) -> tuple[tuple[int, ...], tuple[int, ...], SimDisk, LogBase]:
    """Where a log begins, and how many are lost in it: before a start, and behind it. Up to its middle it may go."""
    disk, batches = SimDisk(random.Random(1)), chain(40)
    log = open_log(disk)
    for number, batch in enumerate(batches):
        if number == gone:
            assert log.concede(batch.last_index, batch.digest)
        else:
            log.append(batch)
            flush(log)
    commit(log, batches)
    log.excuse(batches[gone].last_index)
    last = batches[-1]
    log.save_places(last.last_index)()
    log.compact(batches[20].last_index)()
    before = log.first_available_index, len(log.lost())
    log.close()
    base = LogBase(last.last_index, last.digest, 40)  # type: ignore[arg-type]
    again = open_log(disk, base)
    again.close()
    return before, (again.first_available_index, len(again.lost())), disk, base


@pytest.mark.parametrize("gone", range(40))
def test_what_is_lost_beside_a_segment_that_was_removed_stays_lost(gone: int) -> None:
    """It was taken to lie in that one: it was gone at the next start, and its partition as if it had never been."""
    before, behind, disk, base = compacted_and_opened_again(gone)
    assert before[0] > 1
    assert behind == before
    report = Report(DIRECTORY, "data")
    tail = Tail(base.last_index, base.digest)
    assert check_log(disk, DIRECTORY, P, tail=tail, routes=[], carried=(), report=report) == before[0]
    assert [each.path for each in report.findings] == [str(DIRECTORY / "places")] * before[1]


@pytest.mark.parametrize("gone", [(2,), (0,), (6,), (2, 3), (0, 1), (1, 4, 6), tuple(range(7))])
def test_what_turned_up_is_there_after_a_start_though_places_were_not_saved_since(gone: tuple[int, ...]) -> None:
    """It was lost again, and asked for, though it was on this disk; where the others had lost it, too, for good."""
    disk, log, batches = excused_and_opened_again(*gone)
    last = batches[-1]
    base = LogBase(last.last_index, last.digest, 7)  # type: ignore[arg-type]
    for number in gone:
        assert log.append(batches[number])
        flush(log)
    log.close()
    again = open_log(disk, base)
    assert again.lost() == []
    assert again.first_available_index == 1
    for batch in batches:
        assert again.holds(batch.last_index, batch.digest)
        assert not again.is_hole(batch.last_index, batch.digest)
    assert digests(again) == [each.digest for each in batches]
    report = Report(DIRECTORY, "data")
    check_log(disk, DIRECTORY, P, tail=Tail(last.last_index, last.digest), routes=[], carried=(), report=report)
    assert not report.findings
    again.save_places(last.last_index)()
    again.close()
    assert digests(open_log(disk, base)) == [each.digest for each in batches]


def test_so_it_is_where_more_came_behind_it_and_its_segment_is_sealed() -> None:
    disk, log, batches = excused_and_opened_again(GONE)
    base = LogBase(batches[-1].last_index, batches[-1].digest, 7)  # type: ignore[arg-type]
    more = chain(14)[7:]
    for batch in [batches[GONE], *more]:
        assert log.append(batch)
        flush(log)
    copy = log.find(batches[GONE].last_index, batches[GONE].digest)
    assert copy is not None
    log.close()
    again = open_log(disk, base)
    found = again.find(batches[GONE].last_index, batches[GONE].digest)
    assert found is not None
    assert (found.segment, found.offset, found.length) == (copy.segment, copy.offset, copy.length)
    assert found.segment < max(again._names)
    commit(again, [*batches, *more], after=7)
    assert digests(again) == [each.digest for each in [*batches, *more]]
    assert again._committed.newest_in(copy.segment) >= batches[GONE].last_index


def test_segments_in_front_of_a_void_are_compacted_like_any() -> None:
    _, log, batches = voided_log()
    log.save_places(log.durable_index)()
    log.compact(batches[-1].header.first_index)()
    assert log.first_available_index > batches[GONE].last_index
    assert digests(log, log.first_available_index - 1)[-1] == batches[-1].digest


def test_a_void_takes_its_indices_and_has_no_effect() -> None:
    with world() as w:

        async def story() -> None:
            w.commit(1)
            gone = make(3, w.head, [b"x"] * 2, sequence=2)
            w.log.concede(gone.last_index, gone.digest)
            w.log.commit(last_index=gone.last_index, digest=gone.digest, global_index=15, term=1)
            w.notify()
            await asyncio.sleep(1)
            assert (w.worker.applied_index, w.machine.applied) == (2, [1]), "not beyond the hole"
            w.log.void(gone.last_index, gone.digest)
            w.notify()
            await asyncio.sleep(1)

        w.run(story)
        assert w.machine.applied == [1]
        assert (w.worker.applied_index, w.worker.applied_global_index) == (4, 15)
        assert [batch.refused for batches in w.progress for batch in batches] == [None, "voided"]


def test_who_has_applied_it_says_so_once_that_is_saved() -> None:
    with world() as w:
        said: list[bool | None] = []

        async def story() -> None:
            w.commit(1)
            said.append(w.worker.secured(2))
            w.notify()
            await asyncio.sleep(1)
            said.append(w.worker.secured(2))
            await asyncio.sleep(1)
            said.append(w.worker.secured(2))

        w.run(story)
        assert said == [False, None, True]
        assert w.machine.checkpoints == 2, "a power loss may undo the last one"
