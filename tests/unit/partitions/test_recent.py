"""What was appended is applied from memory; whatever is not there any more is read from the file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from logboom.records import RecordBlock
from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from partitions.log.reading import CommittedBatch
from partitions.log.recent import COPY_BYTES, HEADER_BYTES, RecentBatches
from tests.unit.partitions.batches import chain, flush, make, open_log


def commit(log: PartitionLog, batches: list[Batch]) -> None:
    for batch in batches:
        log.commit(last_index=batch.last_index, digest=batch.digest, global_index=batch.last_index, term=1)


def read(log: PartitionLog, *, after: int = 0, batches: int = 1 << 30, headers: bool = False) -> list[CommittedBatch]:
    return log.read_committed(
        after_index=after,
        through_index=log.committed_index,
        max_bytes=1 << 30,
        max_batches=batches,
        headers_only=headers,
        recent=log.recent,
    )


def reads(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each read of the file brought."""
    runs: list[int] = []
    whole = log._reader._read_run

    def noted(position: int, count: int, *, headers_only: bool) -> list[CommittedBatch]:
        runs.append(count)
        return whole(position, count, headers_only=headers_only)

    monkeypatch.setattr(log._reader, "_read_run", noted)
    return runs


@pytest.mark.parametrize("headers", [False, True])
def test_what_was_just_appended_is_not_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, headers: bool
) -> None:
    log, batches = open_log(tmp_path, segment_bytes=1 << 20), chain(9)
    for batch in batches:
        log.append(batch)
    flush(log)
    commit(log, batches)
    runs = reads(log, monkeypatch)
    first = read(log, headers=headers)
    assert runs == []
    again = read(log, headers=headers)  # a failed apply is tried again
    assert sum(runs) == 9
    assert [(b.header, b.global_index) for b in first] == [(b.header, b.global_index) for b in again]
    if not headers:
        assert [b.records.payloads() for b in first if b.records] == [b.records.payloads() for b in again if b.records]
    log.close()


@pytest.mark.parametrize("seed", range(8))
def test_memory_and_file_together_give_every_batch_once_and_leave_nothing_behind(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = open_log(tmp_path, segment_bytes=8192, recent_bytes=rng.choice((0, 700, 3_000)))
    first, previous, made, applied = 1, bytes(16), list[Batch](), list[bytes]()
    for _ in range(60):
        batch = make(first, previous, [rng.randbytes(rng.randrange(300)) for _ in range(rng.randrange(1, 5))])
        log.append(batch)
        made.append(batch)
        first, previous = batch.last_index + 1, batch.digest
        if rng.random() < 0.4:
            lost = make(first, previous, [b"of another term"], term=2)  # appended, and never committed
            log.append(lost)
        if rng.random() < 0.5:
            flush(log)
            commit(log, [each for each in made if each.last_index > log.committed_index])
        while log.committed_index and rng.random() < 0.5:
            after = sum(each.header.record_count for each in made[: len(applied)])
            if after == log.committed_index:
                break
            applied += [each.header.digest for each in read(log, after=after, batches=rng.randrange(1, 9))]
    flush(log)
    commit(log, [each for each in made if each.last_index > log.committed_index])
    while len(applied) < len(made):
        after = made[len(applied) - 1].last_index if applied else 0
        applied += [each.header.digest for each in read(log, after=after)]
    assert applied == [each.digest for each in made]
    assert not log.recent
    log.close()


class TestHeadersOnly:
    def test_no_record_is_kept_and_a_header_counts_as_one(self) -> None:
        batches = chain(3)
        recent = RecentBatches(2 * HEADER_BYTES, headers_only=True)
        for batch in batches:
            recent.appended(batch)
            recent.committed(batch.digest)
        assert [batch.digest in recent for batch in batches] == [True, True, False]  # the newest is read from the file
        taken = recent.take(batches[0].digest)
        assert taken is not None
        assert (taken.header, taken.buffers) == (batches[0].header, [])
        recent.appended(batches[2])
        recent.committed(batches[2].digest)
        assert batches[2].digest in recent
        recent.drop(batches[2].digest)
        recent.drop(batches[1].digest)
        assert not recent

    def test_a_log_at_hand_is_as_large_as_its_headers(self, tmp_path: Path) -> None:
        log = open_log(tmp_path, headers_only=True)
        batches = chain(2)
        for number, batch in enumerate(batches, 1):
            log.append(batch)
            flush(log)
            log.commit(last_index=batch.last_index, digest=batch.digest, global_index=number, term=1)
        through = batches[-1].last_index
        assert log.is_recent(after_index=0, through_index=through, nbytes=2 * HEADER_BYTES)
        assert not log.is_recent(after_index=0, through_index=through, nbytes=2 * HEADER_BYTES - 1)
        found = log.read_committed(
            after_index=0, through_index=through, max_bytes=1 << 20, headers_only=True, recent=log.recent
        )
        assert [each.header for each in found] == [batch.header for batch in batches]
        assert not log.recent
        log.close()


@pytest.mark.parametrize(("count", "parsed"), [(1, 1), (64, 1), (65, 0), (1_000, 0)])
def test_of_more_than_the_loop_ever_applies_no_record_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, count: int, parsed: int
) -> None:
    """Half a million transactions had what they look at counted on the loop: for 64 ms, and for nothing."""
    looks, records = list[int](), Batch.records

    def noted(batch: Batch) -> RecordBlock:
        looks.append(batch.header.record_count)
        return records(batch)

    monkeypatch.setattr(Batch, "records", noted)
    batch = make(1, bytes(16), [b"\5\1\1\0"] * count, wide=True)
    recent = RecentBatches(1 << 20)
    recent.appended(batch)
    recent.committed(batch.digest)
    assert (batch.digest in recent, len(looks)) == (True, parsed)


class TestBounds:
    def test_the_oldest_that_nobody_committed_goes_first(self) -> None:
        batches = chain(4)
        recent = RecentBatches(sum(batch.nbytes for batch in batches[1:]))
        for batch in batches:
            recent.appended(batch)
        for batch in batches:
            recent.committed(batch.digest)
        assert [batch.digest in recent for batch in batches] == [False, True, True, True]

    def test_of_what_is_committed_the_newest_is_not_kept(self) -> None:
        batches = chain(4)
        recent = RecentBatches(batches[0].nbytes + batches[1].nbytes)
        for batch in batches:
            recent.appended(batch)
            recent.committed(batch.digest)
        assert [batch.digest in recent for batch in batches] == [True, True, False, False]
        assert recent.take(batches[0].digest) is not None
        recent.appended(batches[3])
        recent.committed(batches[3].digest)
        assert (batches[0].digest in recent, batches[3].digest in recent) == (False, True)  # in its room
        assert recent.take(batches[3].digest) is not None
        assert recent.take(batches[1].digest) is not None
        assert recent.take(batches[1].digest) is None
        assert not recent

    def test_appended_twice_counts_once(self) -> None:
        one, two = chain(2)
        recent = RecentBatches(one.nbytes + two.nbytes)
        for batch in (one, one, one, two):
            recent.appended(batch)
        for batch in (one, two):
            recent.committed(batch.digest)
        assert one.digest in recent
        assert two.digest in recent

    def test_a_batch_beyond_all_bounds_pushes_nobody_out(self) -> None:
        small, large = make(1, bytes(16), [b"x"]), make(1, bytes(16), [bytes(10_000)])
        recent = RecentBatches(2_000)
        recent.appended(small)
        recent.appended(large)
        for batch in (small, large):
            recent.committed(batch.digest)
        assert (small.digest in recent, large.digest in recent) == (True, False)

    def test_a_small_batch_does_not_keep_its_frame_alive(self) -> None:
        small = make(1, bytes(16), [b"x"])
        frame = memoryview(bytearray(b"".join(small.buffers)))
        parts = [
            frame[:128],
            frame[128 : 128 + small.header.metadata_length],
            frame[128 + small.header.metadata_length :],
        ]
        recent = RecentBatches(COPY_BYTES)
        recent.appended(Batch(small.header, list(parts)))
        recent.committed(small.digest)
        kept = recent.take(small.digest)
        assert kept is not None
        assert all(isinstance(buffer, bytes) for buffer in kept.buffers)
        assert kept.records().payloads() == [b"x"]
