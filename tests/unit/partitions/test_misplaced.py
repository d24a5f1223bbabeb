"""Files of a log that are whole, and of another partition, as whoever copies by hand leaves them; damaged headers."""

from __future__ import annotations

import random

import pytest

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData
from logboom.types import PartitionId
from partitions.log.batch import Batch
from partitions.log.segment import pack_segment_header
from tests.unit.partitions.batches import P, make
from tests.unit.partitions.compaction_world import DIRECTORY, append, commit, grown, open_log


def others(count: int) -> list[Batch]:
    """As long as those of ``chain``, less a byte each."""
    batches, previous, first = [], bytes(16), 1
    for number in range(count):
        batch = make(first, previous, [b"%d" % number] + [b"%d-%d" % (number, k) for k in range(1, 1 + number % 3)])
        batches.append(batch)
        previous, first = batch.digest, batch.last_index + 1
    return batches


@pytest.mark.parametrize("count", [3, 5, 40])
def test_the_index_of_another_partition_is_not_used(count: int) -> None:
    """Found by review: all that its segment held counted as lost, and of the last one the end was made zeros."""
    disk, log, batches = grown(count=count)
    log.save_places(batches[-1].last_index)()
    strange = SimDisk(random.Random(2))
    theirs = open_log(strange)
    append(theirs, others(count))
    commit(theirs, others(count))
    theirs.save_places(theirs.committed_index)()
    names = [name for name in strange.list(DIRECTORY) if name.endswith(".idx") and disk.exists(DIRECTORY / name)]
    assert names
    for name in names:
        disk.replace_file(DIRECTORY / name, strange.read_file(DIRECTORY / name))
    disk.kill()
    for _ in range(2):
        again = open_log(disk)
        assert [batch.digest for batch in batches if not again.holds(batch.last_index, batch.digest)] == []
        assert again.damage == []
        again.close()


class TestHeaders:
    """What a segment's first 64 bytes say is in the file's name as well."""

    @pytest.mark.parametrize("which", [0, 1, -1])
    def test_one_that_is_damaged_is_written_again_and_no_batch_is_lost(self, which: int) -> None:
        """Found by review: one bit, and the node did not start until all of its data was removed."""
        disk, log, batches = grown()
        names = [name for name in disk.list(DIRECTORY) if name.endswith(".log")]
        path = DIRECTORY / names[which]
        log.close()
        before = disk.read_file(path)
        for bit in range(0, 8 * 64, 7):
            disk.flip(path, bit // 8, 1 << bit % 8)
            again = open_log(disk)
            assert [batch.digest for batch in batches if not again.holds(batch.last_index, batch.digest)] == []
            assert [(each.path, each.offset, each.length) for each in again.damage] == [(str(path), 0, 64)]
            assert disk.read_file(path) == before
            again.close()

    def test_one_whose_first_page_is_zeros_has_the_batches_behind_it(self) -> None:
        disk, log, batches = grown(count=3)
        (name,) = [name for name in disk.list(DIRECTORY) if name.endswith(".log")]
        log.close()
        file = disk.open(DIRECTORY / name)
        file.write([bytes(64 + batches[0].nbytes)], offset=0)
        file.sync()
        again = open_log(disk)
        assert [again.holds(batch.last_index, batch.digest) for batch in batches] == [False, True, True]

    @pytest.mark.parametrize("content", [b"", b"somebody's notes\n" * 20, bytes(1000)])
    def test_what_is_no_segment_at_all_is_left_as_it_is(self, content: bytes) -> None:
        disk, log, _ = grown()
        log.close()
        name = min(name for name in disk.list(DIRECTORY) if name.endswith(".log"))
        disk.replace_file(DIRECTORY / name, content)
        with pytest.raises(CorruptData):
            open_log(disk)
        assert disk.read_file(DIRECTORY / name) == content

    def test_one_of_another_partition_is_refused(self) -> None:
        disk, log, _ = grown()
        log.close()
        name = min(name for name in disk.list(DIRECTORY) if name.endswith(".log"))
        file = disk.open(DIRECTORY / name)
        file.write([pack_segment_header(PartitionId(P + 1), ordinal=1, first_index=1)], offset=0)
        file.sync()
        with pytest.raises(CorruptData, match="misplaced"):
            open_log(disk)
