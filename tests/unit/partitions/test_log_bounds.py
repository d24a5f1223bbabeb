"""What a partition's log counts, refuses and forgets: a change of a single operator there was seen by no test."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, IncompatibleVersion
from logboom.settings import LogSettings
from logboom.types import DurabilityMode, PartitionLogIndex, Term
from partitions.log.batch import CRC, CRC_AT, Batch, parse_batch
from partitions.log.committed import Committed
from partitions.log.log import PartitionLog
from partitions.log.recent import RecentBatches
from partitions.log.segment import SEGMENT_HEADER_BYTES, BatchRef
from partitions.log.tentative import PRUNE, Tentative
from tests.unit.partitions.batches import P, chain, make

DIRECTORY = Path("/n1/3")


def open_log(disk: SimDisk, mode: DurabilityMode = DurabilityMode.WRITE_AHEAD) -> PartitionLog:
    return PartitionLog.open(disk=disk, directory=DIRECTORY, partition_id=P, settings=LogSettings(), mode=mode)


def is_on_the_disk(disk: SimDisk, batch: Batch) -> bool:
    """Whatever becomes of what is not synced."""
    paths = [DIRECTORY / name for name in disk.list(DIRECTORY) if name.endswith(".log")]
    return any(b"".join(bytes(part) for part in batch.buffers) in disk.stable(path) for path in paths)


def commit_all(log: PartitionLog, batches: Sequence[Batch]) -> None:
    for number, batch in enumerate(batches, 1):
        log.commit(last_index=batch.last_index, digest=batch.digest, global_index=number, term=1)


def synced(log: PartitionLog) -> None:
    job = log.take()
    assert job is not None
    job.run()
    job.done()


class TestWhatTheJournalTakes:
    """A share of a group that was synced in the journal is only written to the log itself."""

    def begun(self, mode: DurabilityMode = DurabilityMode.WRITE_AHEAD) -> tuple[SimDisk, PartitionLog, list[Batch]]:
        disk, batches = SimDisk(random.Random(1)), chain(3)
        return disk, open_log(disk, mode), batches

    def test_all_of_it_or_the_log_syncs_for_itself(self) -> None:
        _, log, batches = self.begun()
        for batch in batches:
            log.append(batch)
        job = log.take()
        assert job is not None
        assert [redo.digest for redo in job.redo()] == [batch.digest for batch in batches]

    def test_what_has_to_be_synced_itself_is_not_given_to_it(self) -> None:
        """It was asked for so that the journal may forget what it has: there it would be kept for ever, or lost."""
        disk, log, batches = self.begun()
        for batch in batches[:2]:
            log.append(batch)
            job = log.take()
            assert job is not None
            job.redo()
            job.run()
            job.done()
        assert not any(is_on_the_disk(disk, batch) for batch in batches)
        assert log.request_sync()
        log.append(batches[2])
        job = log.take()
        assert job is not None
        assert not job.redo()
        job.run()
        job.done()
        assert all(is_on_the_disk(disk, batch) for batch in batches)

    def test_write_behind_gives_it_nothing(self) -> None:
        _, log, batches = self.begun(DurabilityMode.WRITE_BEHIND)
        log.append(batches[0])
        job = log.take()
        assert job is not None
        assert not job.redo()


class TestWhatWaitsForTheDisk:
    def test_a_committed_batch_does_until_it_is_synced(self) -> None:
        log, batches = open_log(SimDisk(random.Random(1))), chain(2)
        for batch in batches:
            log.append(batch)
        commit_all(log, batches)
        assert log.awaits_sync(batches[0].last_index)
        synced(log)
        assert not log.awaits_sync(batches[-1].last_index)

    def test_what_nobody_has_does_not(self) -> None:
        log, (first, second) = open_log(SimDisk(random.Random(1))), chain(2)
        assert log.concede(first.last_index, first.digest)
        log.append(second)
        synced(log)
        commit_all(log, (first, second))
        assert log.durable_index == 0
        assert not log.awaits_sync(second.last_index)


class TestRecent:
    def test_so_many_bytes_are_enough_and_one_less_is_not(self) -> None:
        log, batches = open_log(SimDisk(random.Random(1))), chain(3)
        for batch in batches:
            log.append(batch)
        commit_all(log, batches)
        asked = {"after_index": 0, "through_index": batches[-1].last_index}
        nbytes = sum(batch.nbytes for batch in batches)
        assert log.is_recent(**asked, nbytes=nbytes)
        assert not log.is_recent(**asked, nbytes=nbytes - 1)

    def test_what_is_dropped_and_was_not_there_makes_no_room(self) -> None:
        batches = [make(k + 1, bytes(16), [b"%03d" % k]) for k in range(3)]
        recent = RecentBatches(2 * batches[0].nbytes)
        for _ in range(batches[0].nbytes):
            recent.drop(b"of another node's")
        for batch in batches:
            recent.appended(batch)
            recent.committed(batch.digest)
        assert [batch.digest in recent for batch in batches] == [True, True, False]


def ref(last: int, *, segment: int = 1, offset: int = 0, length: int = 100) -> BatchRef:
    index, digest = PartitionLogIndex(last), bytes([last % 256]) * 16
    return BatchRef(index, index, digest, bytes(16), Term(1), segment, offset, length, 0)


def test_what_lost_a_conflict_is_forgotten_now_and_then() -> None:
    tentative = Tentative()
    for last in range(1, PRUNE + 3):
        tentative.hold(ref(last))
    tentative.commit(PRUNE)
    assert len(tentative) == 2


def test_batches_of_two_files_are_not_read_as_one_piece_wherever_they_lie() -> None:
    committed = Committed()
    committed.append(ref(1, offset=SEGMENT_HEADER_BYTES), 1)
    committed.append(ref(2, segment=2, offset=SEGMENT_HEADER_BYTES + 100), 2)
    assert committed.run_from(0, through_index=2, room=1 << 20, most=10) == 1


def test_a_batch_that_begins_at_nothing_is_refused() -> None:
    (batch,) = chain(1)
    raw = bytearray(b"".join(bytes(part) for part in batch.buffers))
    at = raw.index(struct.pack("<Q", batch.header.first_index))
    raw[at : at + 8] = bytes(8)
    CRC.pack_into(raw, CRC_AT, google_crc32c.value(bytes(raw[:CRC_AT])))
    with pytest.raises(CorruptData, match="index 0"):
        parse_batch(bytes(raw))


def test_only_the_beginning_of_a_header_is_one_that_was_being_made() -> None:
    """Anything else in its place is damage, also where nothing lies behind it: it may have been whole."""
    disk, batches = SimDisk(random.Random(1)), chain(1)
    log = open_log(disk)
    log.append(batches[0])
    job = log.take()
    assert job is not None
    job.run()
    job.done()
    log.close()
    (path,) = [DIRECTORY / name for name in disk.list(DIRECTORY) if name.endswith(".log")]
    file = disk.open(path)
    file.write([b"\xff" * 8, bytes(file.size() - 8)], offset=0)
    file.sync()
    file.close()
    with pytest.raises((CorruptData, IncompatibleVersion)):
        open_log(disk)


def test_what_was_torn_is_gone_from_the_file_and_kept_aside() -> None:
    """What is appended next may be shorter: what it leaves of a torn batch would lie behind it as damage."""
    disk, batches = SimDisk(random.Random(1)), chain(3)
    log = open_log(disk)
    for batch in batches:
        log.append(batch)
    job = log.take()
    assert job is not None
    job.run()
    job.done()
    log.close()
    (path,) = [DIRECTORY / name for name in disk.list(DIRECTORY) if name.endswith(".log")]
    end = SEGMENT_HEADER_BYTES + sum(batch.nbytes for batch in batches[:2])
    file = disk.open(path)
    file.write([bytes(8)], offset=end + batches[2].nbytes - 8)
    file.sync()
    file.close()
    again = open_log(disk)
    again.close()
    assert not disk.stable(path)[end:].strip(b"\0")
    assert disk.read_file(path.with_suffix(".broken"))
