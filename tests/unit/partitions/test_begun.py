"""A group's share that is written first and synced later, so that the disk has all of a thread's files at once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from chaos.sim.disk import SimDisk
from chaos.sim.inode import DroppedPages
from logboom.settings import LogSettings
from logboom.types import DurabilityMode
from partitions.log import open_segment
from partitions.log.log import PartitionLog
from partitions.log.open_segment import WriteJob
from partitions.log.segment import SEGMENT_HEADER_BYTES
from server.world.disk_os import OsDisk, OsFile
from tests.unit.partitions.batches import P, chain
from tests.unit.partitions.compaction_world import append, open_log

BATCHES = chain(12)


def begun(log: PartitionLog, count: int = len(BATCHES)) -> WriteJob:
    for batch in BATCHES[:count]:
        assert log.append(batch)
    job = log.take()
    assert job is not None
    job.begin()
    return job


def forgetful() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.forgets = True
    return disk


@pytest.mark.parametrize("over", [False, True], ids=["begun", "run"])
def test_it_is_durable_once_the_job_has_run_and_not_before(over: bool) -> None:
    disk = forgetful()
    log = open_log(disk)
    append(log, BATCHES[:1])
    for batch in BATCHES[1:3]:
        log.append(batch)
    job = log.take()
    assert job is not None
    job.begin()
    if over:
        job.run()
    disk.power_loss()
    again = open_log(disk)
    assert [again.holds(batch.last_index, batch.digest) for batch in BATCHES[:3]] == [True, over, over]


def test_it_may_fill_several_segments() -> None:
    disk = forgetful()
    log = open_log(disk)
    job = begun(log)
    assert len(job.writes) > 1
    job.run()
    job.done()
    disk.power_loss()
    again = open_log(disk)
    assert all(again.is_durable(batch.last_index, batch.digest) for batch in BATCHES)


def test_one_that_syncs_the_segment_meanwhile_leaves_it_whole() -> None:
    disk = forgetful()
    log = open_log(disk)
    job = begun(log, 3)
    log.open_segment.settle()
    job.run()
    job.done()
    disk.power_loss()
    again = open_log(disk)
    assert all(again.holds(batch.last_index, batch.digest) for batch in BATCHES[:3])


def test_one_that_indexes_the_segment_while_it_is_sealed_leaves_it_the_whole_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has packed by then is a part: with that in its place a start would have to scan the segment."""
    disk = SimDisk(random.Random(1))
    log = open_log(disk)
    append(log, BATCHES[:1])
    really, sealed = open_segment.pack_index, dict[Path, bytes]()

    def beside(*what: Any, whole: bool = True, **more: Any) -> bytes:
        index = really(*what, whole=whole, **more)
        if not whole:
            append(log, BATCHES[1:])  # on a thread of its own
            sealed.update((path, disk.stable(path)) for path in disk.paths() if path.suffix == ".idx")
        return index

    monkeypatch.setattr(open_segment, "pack_index", beside)
    log.open_segment.settle()
    assert sealed
    assert {path: disk.stable(path) for path in sealed} == sealed


def test_if_the_sync_of_another_has_failed_meanwhile_the_job_fails() -> None:
    def fails(operation: str, path: Path, size: int) -> None:
        if operation == "sync":
            raise DroppedPages

    disk = SimDisk(random.Random(1))
    log = open_log(disk)
    job = begun(log, 3)
    disk.hook = fails
    with pytest.raises(OSError, match="Input/output"):
        log.open_segment.settle()
    disk.hook = None
    with pytest.raises(OSError, match="failed before"):
        job.run()


def test_what_the_journal_carries_is_written_when_its_turn_comes() -> None:
    log = open_log(forgetful())
    log.append(BATCHES[0])
    job = log.take()
    assert job is not None
    assert job.redo()
    job.begin()
    assert log.open_segment.refs == []
    job.run()
    assert len(log.open_segment.refs) == 1


def test_the_disk_is_told_what_was_written_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(OsFile, "begin_sync", lambda _, *, offset, length: told.append((offset, length)))
    log = PartitionLog.open(
        disk=OsDisk(),
        directory=tmp_path,
        partition_id=P,
        settings=LogSettings(),
        mode=DurabilityMode.WRITE_AHEAD,
    )
    job = begun(log, 3)
    assert told == [(SEGMENT_HEADER_BYTES, sum(batch.header.nbytes for batch in BATCHES[:3]))]
    job.run()
    log.close()
