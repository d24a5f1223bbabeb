"""Segments that end by their age; and a log that nobody writes to any more, whose last segment goes as well."""

from __future__ import annotations

import random

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, IndexCompacted
from logboom.settings import LogSettings
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from partitions.log.opening import LogBase
from partitions.log.segment import SEGMENT_HEADER_BYTES, segment_names, segment_ordinal
from tests.unit.partitions.batches import chain, make
from tests.unit.partitions.compaction_world import (
    COUNT,
    DIRECTORY,
    append,
    base_at,
    commit,
    digests,
    flush,
    grown,
    open_log,
    settle,
)

LARGE = LogSettings()
MORE = chain(COUNT + 10)[COUNT:]


def ordinals(disk: SimDisk) -> list[int]:
    return sorted(segment_names(disk.list(DIRECTORY)))


def emptied(log: PartitionLog, base: LogBase) -> None:
    """A compaction to the end of a log."""
    log.save_places(base.last_index)()
    sealing = log.sealing(base.last_index + 1)
    assert sealing is not None
    sealing()
    log.compact(base.last_index + 1, ends=True)()


def idle() -> tuple[SimDisk, PartitionLog, list[Batch]]:
    """A log in one segment, of which everything has been removed."""
    disk, batches = SimDisk(random.Random(1)), chain(COUNT)
    log = open_log(disk, settings=LARGE)
    append(log, batches)
    commit(log, batches)
    emptied(log, base_at(batches, COUNT))
    return disk, log, batches


def of_times(log: PartitionLog, *times_ms: int, after: Batch | None = None) -> list[Batch]:
    """Appended: one batch of one record for each time."""
    batches, before = list[Batch](), after
    for timestamp_ms in times_ms:
        first, digest = (before.last_index + 1, before.digest) if before else (1, bytes(16))
        before = make(first, digest, [b"x"], timestamp_ms=timestamp_ms)
        batches.append(before)
    append(log, batches)
    return batches


def segments_of(log: PartitionLog, batches: list[Batch]) -> list[int]:
    found = [log.find(batch.last_index, batch.digest) for batch in batches]
    return [ref.segment for ref in found if ref is not None]


class TestNobodyWrites:
    """Its newest segment was never given up: up to 64 MiB of records stayed for ever, however old they were."""

    def test_all_of_it_goes(self) -> None:
        disk, log, batches = idle()
        (left,) = [name for name in disk.list(DIRECTORY) if name.endswith((".log", ".idx"))]
        assert segment_ordinal(left) == 2
        assert len(disk.read_file(DIRECTORY / left)) == SEGMENT_HEADER_BYTES
        assert log.first_available_index == log.committed_index + 1
        assert log.committed_bytes == 0
        with pytest.raises(IndexCompacted) as caught:
            digests(log, after=batches[-2].last_index)
        assert caught.value.first == log.committed_index + 1
        assert digests(log, after=log.committed_index) == []

    @pytest.mark.parametrize("ended", ["killed", "power lost"])
    def test_a_start_finds_nothing_and_goes_on(self, ended: str) -> None:
        disk, log, batches = idle()
        base = base_at(batches, COUNT)
        for _ in range(2):  # the second one after a start that wrote nothing
            disk.kill() if ended == "killed" else disk.power_loss()
            log = open_log(disk, base, settings=LARGE)
            assert log.damage == []
            assert log.beginning == (base.last_index + 1, base.digest, base.global_index)
            assert log.committed_index == log.durable_index == log.highest_index == base.last_index
            assert log.holds(base.last_index, base.digest)
            assert log.is_durable(base.last_index, base.digest)
            assert log.first_global_index == base.global_index + 1
            assert log.position_at_global(base.global_index + 1) == log.end_position
        append(log, MORE)
        disk.power_loss()
        log = open_log(disk, base, settings=LARGE)
        commit(log, MORE, start=COUNT)
        assert digests(log, after=base.last_index) == [batch.digest for batch in MORE]
        assert ordinals(disk) == [2]

    def test_it_goes_again_and_again(self) -> None:
        disk, log, batches = idle()
        for number, batch in enumerate(MORE, COUNT):
            append(log, [batch])
            commit(log, [batch], start=number)
            base = base_at([*batches, *MORE], number + 1)
            emptied(log, base)
            disk.power_loss()
            log = open_log(disk, base, settings=LARGE)
            assert (log.damage, log.committed_bytes) == ([], 0)
        assert ordinals(disk) == [2 + len(MORE)]

    def test_a_number_is_not_used_twice_though_places_name_it(self) -> None:
        """Places of a start that saved none since name what was removed: a segment must not be taken for that."""
        disk, log, batches = idle()
        append(log, MORE)
        disk.power_loss()
        again = open_log(disk, base_at(batches, COUNT), settings=LARGE)
        commit(again, MORE, start=COUNT)
        assert digests(again, after=batches[-1].last_index) == [batch.digest for batch in MORE]
        assert again.damage == []

    @pytest.mark.parametrize("first", ["the write", "the seal"])
    @pytest.mark.parametrize("journaled", [False, True])
    def test_what_is_written_meanwhile_lies_behind_it(self, first: str, journaled: bool) -> None:
        disk, batches = SimDisk(random.Random(1)), chain(COUNT)
        log = open_log(disk, settings=LARGE)
        append(log, batches)
        commit(log, batches)
        base = base_at(batches, COUNT)
        log.save_places(base.last_index)()
        sealing = log.sealing(base.last_index + 1)
        assert sealing is not None
        assert log.append(MORE[0])
        for each in [sealing, lambda: flush(log, journaled=journaled)][:: 1 if first == "the seal" else -1]:
            each()
        log.compact(base.last_index + 1, ends=True)()
        log.open_segment.settle()
        assert ordinals(disk) == [2]
        disk.power_loss()
        again = open_log(disk, base, settings=LARGE)
        commit(again, MORE[:1], start=COUNT)
        assert digests(again, after=base.last_index) == [MORE[0].digest]

    def test_what_a_job_is_writing_is_waited_for(self) -> None:
        _, log, batches = grown()
        assert log.append(MORE[0])
        assert log.sealing(batches[-1].last_index + 1) is None
        job = log.take()
        assert job is not None
        assert log.sealing(batches[-1].last_index + 1) is None
        job.run()
        job.done()
        assert log.sealing(batches[-1].last_index + 1) is None  # it may yet be committed
        commit(log, MORE[:1], start=COUNT)
        assert log.sealing(batches[-1].last_index + 1) is None  # and has to be kept
        assert log.sealing(log.committed_index + 1) is not None
        assert log.sealing(log.committed_index + 1) is None  # done, or under way

    def test_an_empty_log_stays_as_it_is(self) -> None:
        log = open_log(SimDisk(random.Random(1)))
        assert log.sealing(1) is None

    def test_where_a_segment_was_not_made_it_is_with_the_next_write(self) -> None:
        """The job never ran: the loop has counted on it."""
        disk, log, batches = grown()
        assert log.sealing(batches[-1].last_index + 1) is not None
        settle(log, base_at(batches, COUNT))
        before = ordinals(disk)
        append(log, MORE)
        assert ordinals(disk)[0] == before[-1]
        commit(log, MORE, start=COUNT)
        assert digests(log, after=batches[-1].last_index) == [batch.digest for batch in MORE]

    def test_with_places_alone_a_log_begins_behind_them(self) -> None:
        disk, log, batches = idle()
        base = base_at(batches, COUNT)
        log.save_places(base.last_index)()
        log.close()
        for name in segment_names(disk.list(DIRECTORY)).values():
            disk.remove(DIRECTORY / name)
        again = open_log(disk, base, settings=LARGE)
        assert disk.list(DIRECTORY) == ["places"]
        assert (again.damage, again.first_available_index) == ([], base.last_index + 1)
        append(again, MORE)
        commit(again, MORE, start=COUNT)
        assert digests(again, after=base.last_index) == [batch.digest for batch in MORE]

    def test_who_lacks_what_is_gone_is_told_where_it_goes_on(self) -> None:
        _, log, batches = idle()
        with pytest.raises(IndexCompacted) as caught:
            log.read_raw(after_index=batches[3].last_index, through_index=1 << 40, max_bytes=1 << 20)
        assert caught.value.first == log.committed_index + 1
        other = open_log(SimDisk(random.Random(2)))
        append(other, batches[:4])
        commit(other, batches[:4])
        last = batches[-1]
        other.follow(PartitionLogIndex(last.last_index), last.digest, 10 * COUNT)
        append(other, MORE)
        assert [
            raw.last_index for raw in log.read_raw(after_index=last.last_index, through_index=99, max_bytes=1)
        ] == []


class TestByAge:
    @pytest.mark.parametrize(
        ("segment_ms", "times", "segments"),
        [
            (100, (10, 50, 109, 110, 200, 210), [1, 1, 1, 2, 2, 3]),
            (0, (10, 50, 10_000), [1, 1, 1]),
            (100, (10, 1_000, 5, 1_100), [1, 2, 2, 3]),  # of a leader whose clock is behind
        ],
    )
    def test_what_comes_so_long_after_the_first_begins_another(
        self, segment_ms: int, times: tuple[int, ...], segments: list[int]
    ) -> None:
        log = open_log(SimDisk(random.Random(1)), settings=LogSettings(segment_ms=segment_ms))
        assert segments_of(log, of_times(log, *times)) == segments

    @pytest.mark.parametrize("indexed", [False, True])
    def test_a_start_knows_when_it_began(self, indexed: bool) -> None:
        disk, settings = SimDisk(random.Random(1)), LogSettings(segment_ms=100)
        log = open_log(disk, settings=settings)
        first = of_times(log, 10, 50)
        if indexed:
            log.open_segment.settle()
        disk.power_loss()
        again = open_log(disk, settings=settings)
        assert segments_of(again, of_times(again, 109, 110, after=first[-1])) == [1, 2]

    def test_when_one_began_that_cannot_be_read_nobody_knows(self) -> None:
        disk, settings = SimDisk(random.Random(1)), LogSettings(segment_ms=100)
        log = open_log(disk, settings=settings)
        first = of_times(log, 10, 50)
        log.open_segment.settle()
        (path,) = [DIRECTORY / name for name in segment_names(disk.list(DIRECTORY)).values()]
        file = disk.open(path)
        file.write([b"\xff"], offset=SEGMENT_HEADER_BYTES + 3)
        file.close()
        again = open_log(disk, settings=settings)
        with pytest.raises(CorruptData):
            again.read_batch(first[0].last_index, first[0].digest)
        assert segments_of(again, of_times(again, 500, 599, 600, after=first[-1])) == [1, 1, 2]

    def test_one_with_nothing_in_it_is_as_old_as_its_first(self) -> None:
        disk, log, batches = idle()
        base = LogBase(batches[-1].last_index, batches[-1].digest, GlobalLogIndex(10 * COUNT))
        again = open_log(disk, base, settings=LogSettings(segment_ms=100))
        log.close()
        assert segments_of(again, of_times(again, 9_000, 9_099, 9_100, after=batches[-1])) == [2, 2, 3]
