"""Batches as they lie on the disk: one read each time, every one checked, none beyond what may be shown."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from logboom.batch_layout import HEAD
from logboom.errors import IndexCompacted
from logboom.types import DIGEST_BYTES, MIB
from partitions.log.batch import CRC_AT, HEADER_BYTES
from partitions.log.chunks import Chunk
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch
from ports.disk import Advice
from server.world.disk_os import OsDisk
from tests.unit.partitions.compaction_world import COUNT, base_at, grown, open_log, raw, settle


def after(log: PartitionLog, index: int, **how: int) -> Chunk | None:
    wanted = {"through_index": 1 << 40, "max_bytes": MIB, "max_records": 1 << 30, **how}
    return log.chunks.after(index, **wanted)


def walk(log: PartitionLog, **how: int) -> list[Chunk]:
    found, index = list[Chunk](), log.first_available_index - 1
    while (chunk := after(log, index, **how)) is not None:
        found.append(chunk)
        index = chunk.last_index
    return found


@pytest.mark.parametrize("seed", range(6))
def test_chunks_are_what_was_appended_whatever_their_size(seed: int) -> None:
    rng = random.Random(seed)
    _, log, batches = grown()
    chunks = walk(log, max_bytes=rng.choice([1, 300, 700, MIB]), max_records=rng.choice([1, 3, 1 << 30]))
    assert b"".join(bytes(c.raw) for c in chunks) == b"".join(map(raw, batches)), f"seed {seed}"
    assert [g for c in chunks for g in c.global_indexes] == [10 * n for n in range(1, COUNT + 1)]
    assert [b.header.digest for c in chunks for b in c.batches()] == [b.digest for b in batches]
    assert [b.records().payloads() for c in chunks for b in c.batches()] == [b.records().payloads() for b in batches]


def test_it_is_within_its_limits_but_for_one_batch() -> None:
    _, log, batches = grown()
    assert all(len(c.lengths) == 1 for c in walk(log, max_bytes=1))
    chunk = after(log, 0, max_bytes=batches[0].nbytes + batches[1].nbytes)
    assert chunk is not None
    assert len(chunk.lengths) == 2
    few = after(log, 0, max_records=2)
    assert few is not None
    assert sum(b.header.record_count for b in few.batches()) >= 2
    assert list(few.batches())[-1].header.first_index <= 2
    last = after(log, 0, through_index=batches[2].last_index)
    assert last is not None
    assert last.last_index == batches[2].last_index
    assert after(log, batches[-1].last_index) is None


@pytest.mark.parametrize(
    "at",
    [8, HEAD.size, HEAD.size + DIGEST_BYTES, CRC_AT, HEADER_BYTES, HEADER_BYTES + 2],
    ids=["content of the header", "previous digest", "digest", "checksum", "metadata's first byte", "behind it"],
)
def test_it_ends_in_front_of_damage_and_names_it_next(at: int) -> None:
    disk, log, batches = grown()
    ref = log.find(batches[2].last_index, batches[2].digest)
    assert ref is not None
    disk.flip(log._path(ref.segment), ref.offset + at, 1)
    chunk = after(log, 0)
    assert chunk is not None
    assert chunk.last_index == batches[1].last_index
    with pytest.raises(DamagedBatch) as caught:
        after(log, chunk.last_index)
    assert (caught.value.last_index, caught.value.digest) == (batches[2].last_index, batches[2].digest)
    assert caught.value.offset == ref.offset
    whole = after(log, batches[2].last_index)
    assert whole is not None
    assert next(whole.batches()).header.digest == batches[3].digest


def test_a_batch_that_lies_where_another_belongs_is_damage() -> None:
    """It is whole, and its own digest is right: a write that went to the wrong place."""
    disk, log, batches = grown()
    here, other = batches[3], batches[0]
    ref = log.find(here.last_index, here.digest)
    assert ref is not None
    assert here.nbytes == other.nbytes
    file = disk.open(log._path(ref.segment))
    file.write([raw(other)], offset=ref.offset)
    with pytest.raises(DamagedBatch, match="not the batch that the parent log committed"):
        after(log, here.header.first_index - 1)
    front = after(log, 0)
    assert front is not None
    assert front.last_index < here.header.first_index


def test_what_was_written_again_elsewhere_is_read_there() -> None:
    disk, log, batches = grown()
    ref = log.find(batches[1].last_index, batches[1].digest)
    assert ref is not None
    disk.flip(log._path(ref.segment), ref.offset + 130, 1)
    assert log.lose(batches[1].last_index, batches[1].digest)
    assert log.append(batches[1])
    job = log.take()
    assert job is not None
    job.run()
    job.done()
    assert [b.header.digest for c in walk(log) for b in c.batches()] == [b.digest for b in batches]
    in_one = log.chunks.at(0, 3)  # as somebody may ask who looked before
    assert [b.header.digest for b in in_one.batches()] == [batches[0].digest]


def test_what_was_removed_is_said_to_be() -> None:
    _, log, batches = grown()
    settle(log, base_at(batches, 30))
    first = log.first_available_index
    for ask in (lambda: after(log, 0), lambda: log.chunks.at(0, 1), lambda: log.chunks.place(0)):
        with pytest.raises(IndexCompacted) as caught:
            ask()
        assert caught.value.first == first
    assert [b.header.digest for c in walk(log) for b in c.batches()][-10:] == [b.digest for b in batches[-10:]]


def test_by_global_index() -> None:
    _, log, batches = grown()
    assert [log.position_at_global(g) for g in (0, 1, 10, 11, 20, 400, 401)] == [0, 0, 0, 1, 1, 39, 40]
    assert log.in_front_of_first == 9
    settle(log, base_at(batches, 30))
    assert log.in_front_of_first == 0
    first = log.first_global_index
    assert first > 10
    position = log.position_after(log.first_available_index - 1)
    assert log.position_at_global(first) == log.position_at_global(0) == position
    assert log.position_at_global(400) == 39
    with pytest.raises(IndexCompacted):
        log.position_at_global(first - 1)


def test_by_global_index_after_a_start_as_before_it() -> None:
    disk, log, batches = grown()
    settle(log, base_at(batches, 30))
    settle(log, base_at(batches, 35), keep_from=log.first_available_index)  # places are written again, without the rest
    first = log.first_global_index
    assert first % 10 == 1, "behind what was removed, and in front of what is here"
    again = open_log(disk, base_at(batches, 35))
    assert again.position_at_global(first) == log.position_at_global(first)
    assert again.first_global_index == first
    with pytest.raises(IndexCompacted):
        again.position_at_global(first - 1)


def test_by_time_only_headers_of_what_is_durable_are_read() -> None:
    _, log, batches = grown()
    search = log.chunks.first_at_time
    end = batches[-1].last_index
    assert search(1, through_index=end) == 0  # all are of then
    assert search(2, through_index=end) == COUNT
    assert search(2, through_index=batches[9].last_index) == 10


def test_advice_changes_nothing(tmp_path: Path) -> None:
    _, log, batches = grown(count=3)
    assert log.chunks.at(0, 2, cold=True).raw == log.chunks.at(0, 2).raw == raw(batches[0]) + raw(batches[1])
    file = OsDisk().open(tmp_path / "file", create=True)
    file.write([b"abc"], offset=0)
    for advice in Advice:
        file.advise(advice, offset=0, length=1 << 20)
    assert file.read(offset=0, length=9) == b"abc"
    file.close()
