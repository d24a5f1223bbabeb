"""A sync that failed is not believed after a restart: the page cache shows what the disk never got (Linux)."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from chaos.sim.disk import SimDisk
from logboom.settings import LogSettings
from logboom.types import NO_DIGEST, DurabilityMode
from partitions.log.batch import Batch
from partitions.log.log import BatchRef, PartitionLog
from raftlog.journal.journal import Journal
from tests.unit.partitions.batches import P, make
from tests.unit.raftlog.store import failing_syncs

DIRECTORY = Path("/n1/files")


def disk_of(seed: int) -> SimDisk:
    disk = SimDisk(random.Random(seed))
    disk.make_directory(DIRECTORY)
    return disk


def journal_on(disk: SimDisk) -> Journal:
    return Journal.open(
        disk=disk, directory=DIRECTORY, cluster_id="c", segment_bytes=2048, random_bytes=random.Random(0).randbytes
    )


def write_on(journal: Journal) -> None:
    for group in range(100):
        journal.setCurrentTerm(group + 1, "n2")
        journal.add(b"\x10" + b"r" * 64, journal.last_index + 1, group + 1)
        journal.flush()


@pytest.mark.parametrize("groups", [0, 1, 2, 9, 12])
@pytest.mark.parametrize("seed", range(4))
def test_a_journal_found_after_a_failed_sync_survives_the_next_power_loss(groups: int, seed: int) -> None:
    """``groups`` groups are synced, also over several files; the next one is not, and its process ends."""
    disk = disk_of(seed)
    journal = journal_on(disk)
    disk.hook = failing_syncs(groups + 1 if groups > 9 else groups)
    with pytest.raises(OSError, match=str(errno.EIO)):
        write_on(journal)
    disk.hook = None
    disk.kill()
    again = journal_on(disk)
    found = list(again.entries), again.term, again.vote
    again.add(b"\x10", again.last_index + 1, again.term)  # it counts on what it found, and goes on
    again.flush()
    disk.power_loss()
    after = journal_on(disk)
    assert (list(after.entries[:-1]), after.term, after.vote) == found


def log_on(disk: SimDisk, *, mode: DurabilityMode = DurabilityMode.WRITE_AHEAD) -> PartitionLog:
    return PartitionLog.open(
        disk=disk, directory=DIRECTORY, partition_id=P, settings=LogSettings(segment_bytes=2048), mode=mode
    )


def flush(log: PartitionLog) -> None:
    job = log.take()
    assert job is not None
    job.run()
    job.done()


def append_each(log: PartitionLog, batches: list[Batch]) -> None:
    for batch in batches:
        log.append(batch)
        flush(log)


def chain(count: int) -> list[Batch]:
    batches: list[Batch] = []
    for number in range(count):
        previous = batches[-1].digest if batches else NO_DIGEST
        batches.append(make(number + 1, previous, [b"x" * 100], sequence=number))
    return batches


@pytest.mark.parametrize("synced", [0, 1, 3, 7, 8])
@pytest.mark.parametrize("seed", range(4))
def test_a_log_found_after_a_failed_sync_survives_the_next_power_loss(synced: int, seed: int) -> None:
    disk, batches = disk_of(seed), chain(20)
    log = log_on(disk)
    disk.hook = failing_syncs(synced + 1)
    with pytest.raises(OSError, match=str(errno.EIO)):
        append_each(log, batches)
    disk.hook = None
    disk.kill()
    again = log_on(disk)
    found = [b for b in batches if again.holds(b.last_index, b.digest)]
    proven = {b.digest for b in batches[:synced]}

    def is_proven(ref: BatchRef) -> bool:
        return ref.digest in proven

    again.write_again(is_proven)
    disk.power_loss()
    after = log_on(disk)
    assert [b for b in batches if after.holds(b.last_index, b.digest)] == found
    assert len(found) >= synced


def test_what_is_proven_is_not_written_again() -> None:
    disk = disk_of(0)
    log = log_on(disk)
    for batch in chain(3):
        log.append(batch)
        flush(log)
    log.close()
    again = log_on(disk)
    assert again.write_again(lambda ref: True) == 0
    assert again.write_again(lambda ref: ref.last_index < 3) == chain(3)[2].nbytes


@pytest.mark.parametrize("damaged", [1, 2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_a_copy_that_was_mended_is_not_proven_by_what_its_first_one_was_acknowledged_for(
    damaged: int, seed: int
) -> None:
    disk, batches = disk_of(seed), chain(4)
    log = log_on(disk)
    append_each(log, batches)
    lost = batches[damaged - 1]
    ref = log.find(lost.last_index, lost.digest)
    assert ref is not None
    log.close()
    disk.flip(log._path(ref.segment), ref.offset + 90, 1)
    mending = log_on(disk)
    assert not mending.holds(lost.last_index, lost.digest)
    disk.hook = failing_syncs(0)
    mending.append(lost)
    with pytest.raises(OSError, match=str(errno.EIO)):
        flush(mending)
    disk.hook = None
    disk.kill()
    again = log_on(disk)
    assert all(again.holds(batch.last_index, batch.digest) for batch in batches)
    again.write_again(lambda ref: True)  # the journal has all of them acknowledged
    disk.power_loss()
    after = log_on(disk)
    assert all(after.holds(batch.last_index, batch.digest) for batch in batches)
