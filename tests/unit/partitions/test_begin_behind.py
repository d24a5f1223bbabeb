"""A log that begins behind a batch that no node gives: what is in front of it is removed, but for its files."""

from __future__ import annotations

import pytest

from logboom.errors import IndexCompacted
from partitions.log.compaction import Taken
from tests.unit.partitions.batches import make
from tests.unit.partitions.compaction_world import (
    COUNT,
    append,
    base_at,
    commit,
    digests,
    flush,
    grown,
    open_log,
    settle,
)

GONE = 17
"""Number of the batch."""


@pytest.mark.parametrize("conceded", [False, True])
def test_it_begins_behind_it_as_if_it_had_been_compacted(*, conceded: bool) -> None:
    _, log, batches = grown()
    gone = batches[GONE]
    assert log.lose(gone.last_index, gone.digest)
    assert not conceded or log.concede(gone.last_index, gone.digest)
    moved = log.moved
    assert log.begin_behind(gone.last_index, gone.digest, now=0.0)
    assert log.moved > moved, "its places are to be saved anew"
    assert log.beginning == (gone.last_index + 1, gone.digest, 10 * (GONE + 1))
    assert digests(log, after=gone.last_index) == [each.digest for each in batches[GONE + 1 :]]
    for after in (0, gone.last_index - 1):
        with pytest.raises(IndexCompacted) as removed:
            digests(log, after=after)
        assert removed.value.first == gone.last_index + 1
    assert log.lost() == []
    assert not log.is_hole(gone.last_index, gone.digest)
    log.append(gone)
    flush(log)
    assert log.first_available_index == gone.last_index + 1, "whoever has it after all comes too late"


def test_it_goes_on_and_its_segments_go_with_what_is_left_in_them() -> None:
    disk, log, batches = grown()
    gone, before = batches[GONE], len(disk.list(log._directory))
    log.begin_behind(gone.last_index, gone.digest, now=0.0)
    assert len(disk.list(log._directory)) == before
    more = make(batches[-1].last_index + 1, batches[-1].digest, [b"more"])
    append(log, [more])
    commit(log, [more], start=COUNT)
    assert digests(log, after=gone.last_index) == [each.digest for each in [*batches[GONE + 1 :], more]]
    settle(log, base_at(batches, GONE + 5))
    assert len(disk.list(log._directory)) < before
    first = log.first_available_index
    assert first > gone.last_index
    assert digests(log, after=first - 1) == [each.digest for each in [*batches, more] if each.last_index >= first]


@pytest.mark.parametrize("saved", [False, True])
def test_after_a_start_it_begins_there_if_that_was_saved_else_where_it_did(*, saved: bool) -> None:
    disk, log, batches = grown()
    gone, base = batches[GONE], base_at(batches, GONE + 5)
    log.save_places(base.last_index)()
    log.begin_behind(gone.last_index, gone.digest, now=0.0)
    if saved:
        log.save_places(base.last_index)()
    log.close()
    again = open_log(disk, base)
    commit(again, batches[GONE + 5 :], start=GONE + 5)
    assert again.first_available_index == (gone.last_index + 1 if saved else 1)
    after = again.first_available_index - 1
    assert digests(again, after=after) == [each.digest for each in batches if each.last_index > after]


def test_what_is_not_its_own_or_not_durable_yet_is_nothing_to_begin_behind() -> None:
    _, log, batches = grown()
    assert not log.begin_behind(batches[GONE].last_index, bytes(16), now=0.0)
    more = make(batches[-1].last_index + 1, batches[-1].digest, [b"more"])
    assert log.append(more)
    commit(log, [more], start=COUNT)
    assert not log.begin_behind(more.last_index, more.digest, now=0.0)
    assert log.first_available_index == 1
    log.begin_behind(batches[GONE].last_index, batches[GONE].digest, now=0.0)
    log.begin_behind(batches[3].last_index, batches[3].digest, now=0.0)
    assert log.first_available_index == batches[GONE].last_index + 1


def test_who_reads_in_front_of_it_goes_on_and_who_has_come_to_it_holds_nothing_back() -> None:
    _, log, batches = grown()
    gone, taken = batches[GONE], Taken(100.0)
    lease = log.lease(gone.header.first_index - 1, by=taken)
    assert not log.begin_behind(gone.last_index, gone.digest, now=100.5)
    assert log.first_available_index == 1
    lease.move(gone.header.first_index, now=100.5)
    log.begin_behind(gone.last_index, gone.digest, now=100.5)
    assert log.first_available_index == gone.last_index + 1
    later = batches[GONE + 4]
    lease.move(gone.last_index + 1, now=100.5)
    log.begin_behind(later.last_index, later.digest, now=101.0)
    assert log.first_available_index == gone.last_index + 1
    log.begin_behind(later.last_index, later.digest, now=101.6)
    assert log.first_available_index == later.last_index + 1, "who takes nothing holds nothing back"
