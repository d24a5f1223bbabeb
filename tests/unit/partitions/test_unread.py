"""A sector that cannot be read: what lies in front of it is given; nor readable some seconds later it is damage."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from logboom.settings import LogSettings
from logboom.types import DurabilityMode
from partitions.log.batch import Batch, parse_batch
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch
from partitions.log.unread import PLACES_MAX, NotRead, Unread
from ports.scrub import AGAIN_S
from tests.unit.partitions.batches import P, chain, commit, flush
from tests.unit.partitions.sectors import BadSectors

COUNT, BAD = 9, 5


@dataclass
class Bench:
    disk: BadSectors
    log: PartitionLog
    batches: list[Batch]
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def bench() -> Bench:
    disk, batches = BadSectors(), chain(COUNT)
    made = Bench(disk, None, batches)  # type: ignore[arg-type]
    made.log = log = PartitionLog.open(
        disk=disk,
        directory=Path("/log"),
        partition_id=P,
        settings=LogSettings(),
        mode=DurabilityMode.WRITE_AHEAD,
        clock=made,  # type: ignore[arg-type]
    )
    for batch in batches:
        log.append(batch)
        flush(log)
    commit(log, batches)
    disk.break_at(log, batches[BAD])
    return made


Read = Callable[[PartitionLog, Batch], list[bytes]]
"""From the record behind this batch on; digests."""


def committed(log: PartitionLog, behind: Batch) -> list[bytes]:
    found = log.read_committed(after_index=behind.last_index, through_index=1 << 40, max_bytes=1 << 30)
    return [batch.header.digest for batch in found]


def chunks(log: PartitionLog, behind: Batch) -> list[bytes]:
    chunk = log.chunks.after(behind.last_index, through_index=1 << 40, max_bytes=1 << 30, max_records=1 << 30)
    return [] if chunk is None else [batch.digest for batch in chunk.batches()]


def cold_chunks(log: PartitionLog, behind: Batch) -> list[bytes]:
    """As a scan of many logs reads."""
    position = log.position_after(behind.last_index)
    return [batch.digest for batch in log.chunks.at(position, COUNT - position, cold=True).batches()]


def alone(log: PartitionLog, behind: Batch) -> list[bytes]:
    """As one node reads for another."""
    position = log.position_after(behind.last_index)
    last_index, digest = log._committed.last_index(position), log._committed.digest(position)
    return [parse_batch(log.read_batch(last_index, digest)).digest]


def headers(log: PartitionLog, behind: Batch) -> list[bytes]:
    """As somebody looks for a time."""
    position = log.position_after(behind.last_index)
    log.chunks._timestamp(position)
    return [log._committed.digest(position)]


@pytest.mark.parametrize("read", [committed, chunks, cold_chunks])
def test_what_lies_in_front_of_it_and_behind_it_is_read(bench: Bench, read: Read) -> None:
    digests = [batch.digest for batch in bench.batches]
    found = read(bench.log, bench.batches[0])
    assert found
    while len(found) < BAD - 1:
        more = read(bench.log, bench.batches[len(found)])
        assert more
        found += more
    assert found == digests[1:BAD]
    with pytest.raises(NotRead):
        read(bench.log, bench.batches[BAD - 1])
    assert read(bench.log, bench.batches[BAD]) == digests[BAD + 1 :]


@pytest.mark.parametrize("read", [committed, chunks, cold_chunks])
def test_it_is_damage_when_it_cannot_be_read_some_seconds_later_either(bench: Bench, read: Read) -> None:
    before, bad = bench.batches[BAD - 1], bench.batches[BAD]
    with pytest.raises(NotRead) as caught:
        read(bench.log, before)
    assert caught.value.errno == errno.EIO
    bench.now += AGAIN_S / 2
    with pytest.raises(NotRead):
        bench.log.read_batch(bad.last_index, bad.digest)
    bench.now += AGAIN_S / 2
    with pytest.raises(DamagedBatch) as damaged:
        read(bench.log, before)
    assert (damaged.value.last_index, damaged.value.digest) == (bad.last_index, bad.digest)
    with pytest.raises(DamagedBatch):
        bench.log.read_batch(bad.last_index, bad.digest)
    assert bench.log.lose(bad.last_index, bad.digest)
    assert bench.log.append(bad)
    flush(bench.log)
    assert read(bench.log, before)[0] == bad.digest, "it is whole where it was written again"


@pytest.mark.parametrize("read", [committed, chunks, cold_chunks, alone, headers])
def test_who_still_reads_it_while_it_is_mended_does_not_take_that_away(bench: Bench, read: Read) -> None:
    """Found by reading: it was said of the copy that had just been written elsewhere, which was fetched once more."""
    log, before, bad = bench.log, bench.batches[BAD - 1], bench.batches[BAD]
    ref = log.find(bad.last_index, bad.digest)
    assert ref is not None
    bench.disk.bad = {(log._path(ref.segment), ref.offset)}
    with pytest.raises(NotRead):
        read(log, before)
    bench.now += AGAIN_S

    def mended() -> None:
        if log.lose(bad.last_index, bad.digest, at=(ref.segment, ref.offset)):
            assert log.append(bad)
            flush(log)

    bench.disk.meanwhile = mended
    with pytest.raises(DamagedBatch) as late:
        read(log, before)
    assert (late.value.digest, late.value.place, late.value.offset) == (
        bad.digest,
        (ref.segment, ref.offset),
        ref.offset,
    )
    now = log.find(bad.last_index, bad.digest)
    assert now is not None
    assert now.offset != ref.offset
    assert not log.lose(late.value.last_index, late.value.digest, at=late.value.place)
    assert log.find(bad.last_index, bad.digest) == now
    assert read(log, before)[0] == bad.digest
    assert log.lose(bad.last_index, bad.digest, at=(now.segment, now.offset)), "where it is now it may be damaged, too"


@pytest.mark.parametrize("read", [committed, chunks])
def test_a_disk_that_was_away_for_a_while_has_lost_nothing(bench: Bench, read: Read) -> None:
    with pytest.raises(NotRead):
        read(bench.log, bench.batches[BAD - 1])
    (sector,) = bench.disk.bad
    bench.disk.bad.clear()
    assert read(bench.log, bench.batches[BAD - 1]) == [batch.digest for batch in bench.batches[BAD:]]
    bench.disk.bad.add(sector)
    bench.now += 10 * AGAIN_S
    with pytest.raises(NotRead):
        read(bench.log, bench.batches[BAD - 1])


def test_two_blips_of_a_path_a_day_apart_are_no_damage(bench: Bench) -> None:
    """The second was, at once: others, the scrub among them, had read it well in between."""
    before = bench.batches[BAD - 1]
    for _ in range(3):
        with pytest.raises(NotRead):
            committed(bench.log, before)
        bench.now += 86_400.0
    with pytest.raises(NotRead):
        committed(bench.log, before)
    bench.now += AGAIN_S  # who tries again sooner is told all the same
    with pytest.raises(DamagedBatch):
        committed(bench.log, before)


def test_of_a_header_that_cannot_be_read_the_same_holds(bench: Bench) -> None:
    ref = bench.log.find(bench.batches[BAD].last_index, bench.batches[BAD].digest)
    assert ref is not None
    bench.disk.bad = {(bench.log._path(ref.segment), ref.offset)}

    def look() -> int:
        return bench.log.last_before(1 << 40, through_index=1 << 40, now_ms=1 << 41)

    with pytest.raises(NotRead):
        look()
    bench.now += AGAIN_S
    assert look() == bench.batches[-1].last_index, "damaged, and as old as what is behind it"


def test_a_lack_of_descriptors_is_never_damage(bench: Bench) -> None:
    def fail(**_: int) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    file = SimpleNamespace(read=fail, close=lambda: None)
    bench.disk.open = lambda *_, **__: file  # type: ignore[method-assign,assignment,return-value]
    for _ in range(3):
        with pytest.raises(OSError, match="Too many") as caught:
            committed(bench.log, bench.batches[0])
        assert not isinstance(caught.value, NotRead)
        bench.now += AGAIN_S


def test_places_that_are_remembered_are_bounded(bench: Bench) -> None:
    unread = Unread(bench)  # type: ignore[arg-type]
    files = bench.log._reader.files
    (path, _) = next(iter(bench.disk.bad))
    bench.disk.bad = {(path, at) for at in range(200, 200 + PLACES_MAX + 50)}
    for at in range(200, 200 + PLACES_MAX + 50):
        with pytest.raises(NotRead):
            unread.read(files, 1, at, 1, pytest.fail)
    assert len(unread._since) <= PLACES_MAX
