"""One byte of a file goes bad, every byte in turn: never served, never silently cut below what was acknowledged."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from chaos.sim.disk import Image, SimDisk
from logboom.errors import CorruptData, IncompatibleVersion, LogboomError
from logboom.state_machine import ApplyBatch, Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.log.batch import HEADER_BYTES, Batch, parse_batch
from partitions.log.log import PartitionLog
from partitions.log.segment import SEGMENT_HEADER_BYTES
from partitions.machines.log import LogMachine
from ports.sync import Redo
from raftlog.journal.journal import Journal
from server.directory.data_dir import MANIFEST, DataDir
from tests.storage.flips import Store, flipped, mask_of, recovered, stored
from tests.storage.partition_world import held, raw
from tests.storage.small_worlds import manifest

SMALL = [0, 20, 300, 1, 700, 90, 600, 7]
LARGE = [2600] * 20 + [20, 3000, 600, 50, 4700]


@cache
def small() -> Store:
    """One segment, not sealed."""
    return stored(SMALL, segment_bytes=1 << 16)


@cache
def large() -> Store:
    """The same, 64 KiB of it."""
    return stored(LARGE, segment_bytes=1 << 16)


@cache
def sealed() -> Store:
    """Its first segment is full and has an index."""
    return stored([*SMALL, 3000, *SMALL], segment_bytes=4096)


# -- a segment that is not sealed


def open_damaged(store: Store, offset: int, by: set[str]) -> set[int] | None:
    """Open with one byte flipped; which batches are held then, with their own bytes. None: refused."""
    disk = flipped(store.image, store.file(".log"), offset, mask_of(offset))
    try:
        log = store.open_log(disk)
    except (CorruptData, IncompatibleVersion) as error:
        says(error, ".log", f"byte {offset}")
        return None
    left = held(log)
    assert left <= store.by_digest.keys(), f"byte {offset}: a batch that nobody wrote"
    number = store.batch_at(offset)
    for each in {k for k in (number or 0, (number or 1) - 1) if store.batches[k].digest in left}:
        batch = store.batches[each]
        again = log.read_batch(batch.last_index, batch.digest)
        assert without_padding(again) == without_padding(raw(batch)), f"byte {offset}: served as good"
    if log.damage:
        by.add("reported")
    if any(path.suffix == ".broken" for path in disk.paths()):
        by.add("kept aside")
    log.close()
    return {k for k, batch in enumerate(store.batches) if batch.digest in left}


def says(error: LogboomError, where: str, flipped_at: str) -> None:
    assert where in str(error), f"{flipped_at}: {error!r} does not say where"


def without_padding(batch: bytes) -> bytes:
    """Nobody reads the last four bytes of a header."""
    return batch[:124] + batch[128:]


def check_segment(store: Store, offsets: list[int]) -> Counter[str]:
    """At most the batch with the bad byte is gone, that is told, and the journal knows that it is missing."""
    everything = set(range(len(store.batches)))
    outcomes: Counter[str] = Counter()
    recovered_from: set[int] = set()
    for offset in offsets:
        by: set[str] = set()
        left, number = open_damaged(store, offset, by), store.batch_at(offset)
        assert left is not None, f"byte {offset}: refused as a whole"
        if offset < SEGMENT_HEADER_BYTES:  # the file's name says the same, and each batch whose it is
            assert left == everything, f"byte {offset}"
            assert "reported" in by, f"byte {offset}: mended without a word"
            outcomes["mended"] += 1
            continue
        assert left in ([everything] if number is None else [everything, everything - {number}]), f"byte {offset}"
        if left == everything:
            outcomes["harmless"] += 1
            continue
        assert by, f"byte {offset}: cut without a word"
        outcomes["missing"] += 1
        if number is not None and number not in recovered_from:
            recovered_from.add(number)
            start = recovered(store, flipped(store.image, store.file(".log"), offset, mask_of(offset)))
            assert [route.digest for route in start.missing] == [store.batches[number].digest]
            assert start.journal.last_index == 1 + len(store.batches), "acknowledged entries were cut"
            assert not start.may_lead
    return outcomes


def test_every_byte_of_a_segment() -> None:
    store = small()
    outcomes = check_segment(store, list(range(store.size(store.file(".log")))))
    print(outcomes)
    assert outcomes["mended"] == SEGMENT_HEADER_BYTES
    assert outcomes["missing"] == sum(batch.nbytes - 4 for batch in store.batches), "all but the padding of headers"


def test_every_byte_of_64_kib() -> None:
    """Each byte against its own batch; a whole start for all bytes of headers and one in eight of the others."""
    store = large()
    path = store.file(".log")
    assert store.size(path) == 1 << 16
    content = store.image.files[str(path)][0].ljust(1 << 16, b"\0")
    start, looked = SEGMENT_HEADER_BYTES, 0
    whole = [*range(SEGMENT_HEADER_BYTES)]
    for batch in store.batches:
        bytes_of = bytearray(content[start : start + batch.nbytes])
        for at in range(batch.nbytes):
            bytes_of[at] ^= mask_of(at)
            assert not reads_as_another(bytes_of, batch), f"byte {start + at} is served as good"
            bytes_of[at] ^= mask_of(at)
            looked += 1
        whole += [*range(start, start + 128)]
        start += batch.nbytes
    assert looked + SEGMENT_HEADER_BYTES == start
    whole += range(start, 1 << 16)
    outcomes = check_segment(store, sorted({*whole, *range(0, 1 << 16, 8)}))
    print(outcomes)
    assert outcomes["missing"] > 8000


def reads_as_another(found: bytearray, batch: Batch) -> bool:
    try:
        again = parse_batch(bytes(found))
    except LogboomError:
        return False
    return (again.header, again.records()) != (batch.header, batch.records())


# -- a sealed segment and its index


def commit_all(log: PartitionLog, store: Store) -> None:
    for number, batch in enumerate(store.batches, 1):
        log.commit(last_index=batch.last_index, digest=batch.digest, global_index=number, term=1)


def test_every_byte_of_a_sealed_segment_is_found_out_when_it_is_read() -> None:
    """With an index the segment is not looked through at start."""
    store = sealed()
    path = store.file(".log")
    assert path.with_suffix(".idx") == store.file(".idx")
    found_out = 0
    for offset in range(store.size(path)):
        disk = flipped(store.image, path, offset, mask_of(offset))
        log = store.open_log(disk)
        if offset < SEGMENT_HEADER_BYTES:
            assert log.damage, f"byte {offset}"
            header = disk.read_file(path)[:SEGMENT_HEADER_BYTES]
            assert header == store.image.files[str(path)][0][:SEGMENT_HEADER_BYTES], f"byte {offset}: not written again"
            found_out += 1
        elif store.batches[0].digest not in held(log):  # by which the index is known to be of this segment
            assert SEGMENT_HEADER_BYTES <= offset < SEGMENT_HEADER_BYTES + HEADER_BYTES, f"byte {offset}"
            assert log.damage, f"byte {offset}: gone without a word"
            assert held(log) == store.by_digest.keys() - {store.batches[0].digest}, f"byte {offset}"
            found_out += 1
            continue
        commit_all(log, store)
        damaged, blamed = store.batch_at(offset), list[int]()
        for number in range(max((damaged or 0) - 1, 0), (damaged or 0) + 2):
            batch = store.batches[number]
            try:
                (read,) = log.read_committed(
                    after_index=batch.header.first_index - 1, through_index=batch.last_index, max_bytes=1
                )
            except CorruptData as error:
                says(error, str(path), f"byte {offset}")
                blamed.append(number)
            else:
                assert (read.header, read.records) == (batch.header, batch.records()), f"byte {offset}: served as good"
        assert blamed in ([], [damaged]), f"byte {offset}"
        found_out += len(blamed)
        log.close()
    assert found_out >= sum(b.nbytes - 4 for k, b in enumerate(store.batches) if in_first(store, k))


def in_first(store: Store, number: int) -> bool:
    end = SEGMENT_HEADER_BYTES + sum(batch.nbytes for batch in store.batches[: number + 1])
    return end <= store.segment_bytes


def test_every_byte_of_an_index() -> None:
    """The segment is the truth: a wrong index is made again."""
    store = sealed()
    path = store.file(".idx")
    right = store.image.files[str(path)][0]
    for offset in range(store.size(path)):
        disk = flipped(store.image, path, offset, mask_of(offset))
        log = store.open_log(disk)
        assert not log.damage
        commit_all(log, store)
        read = log.read_committed(after_index=0, through_index=log.committed_index, max_bytes=1 << 20)
        assert [b.header for b in read] == [b.header for b in store.batches], f"byte {offset}"
        unused = 24 <= offset < 32 or 48 <= offset < 64
        assert unused or disk.read_file(path).rstrip(b"\0") == right.rstrip(b"\0"), f"byte {offset}: not made again"
        log.close()


# -- the journal


def open_journal(disk: SimDisk) -> Journal:
    return Journal.open(
        disk=disk,
        directory=Path("/n/journal"),
        cluster_id="c",
        segment_bytes=1024,
        random_bytes=random.Random(0).randbytes,
    )


@cache
def journal_files(*, proven: bool) -> tuple[Image, int]:
    """Sealed ones, one of them stripped, and a last one; and where the last group begins in that.

    ``proven``: there was quiet after it, which the journal has noted (raftlog.journal.outbox).
    """
    disk = SimDisk(random.Random(0))
    disk.make_directory(Path("/n"))
    journal, rng = open_journal(disk), random.Random(3)
    for group in range(24):
        if group % 5 == 0:
            journal.setCurrentTerm(group + 1, f"n{group % 3}")
        if group % 3 == 0:
            journal.redo(Redo(rng.randbytes(16), [rng.randbytes(40)]))
        for _ in range(1 + group % 3):
            journal.add(b"\x10" + rng.randbytes(32), journal.last_index + 1, group + 1)
        if group in (7, 20):
            journal.truncate_from(journal.last_index)
        journal.flush()
        journal.acknowledged(journal.last_index)
        if group == 14:
            through = journal.taken_sequence
            journal.settled(through)
            journal.strip(through)
    begin = journal._files.open_tail().offset
    journal.add(b"\x10last", journal.last_index + 1, 99)
    journal.flush()
    if proven:
        begin = journal._files.open_tail().offset
        assert journal.prove()
        journal.flush()
    journal.close()
    return disk.image(), begin


def said(journal: Journal) -> tuple[object, ...]:
    redo = {digest: (number, bytes(body)) for digest, (number, body) in journal._redo.items()}
    return list(journal.entries), journal.term, journal.vote, journal.floor, redo


@pytest.mark.parametrize("proven", [False, True])
def test_every_byte_of_the_journal(*, proven: bool) -> None:
    """Refused, or without meaning; in the very last group it looks like a torn write, and nothing before it goes."""
    image, begin = journal_files(proven=proven)
    whole = open_journal(SimDisk.of(image, random.Random(0)))
    right, right_end = said(whole), whole.last_index
    outcomes: Counter[str] = Counter()
    paths = [Path(path) for path in image.files]
    assert len(paths) > 3
    last = max(path for path in paths if path.suffix == ".journal")
    for path in paths:
        for offset in range(image.files[str(path)][1]):
            disk = flipped(image, path, offset, mask_of(offset + proven))
            before = disk.image()
            try:
                journal = open_journal(disk)
            except (CorruptData, IncompatibleVersion) as error:
                says(error, path.name, f"{path.name} at {offset}")
                assert disk.image() == before, f"{path.name} at {offset}: refused, and yet something was changed"
                outcomes["refused"] += 1
                continue
            found = said(journal)
            journal.close()
            if found == right:
                outcomes["without meaning"] += 1
                continue
            assert not proven, f"{path.name} at {offset}: something acknowledged was cut in silence"
            assert (path, journal.last_index) == (last, right_end - 1), f"{path.name} at {offset}"
            assert offset >= begin, f"{path.name} at {offset}: something synced was cut in silence"
            assert found[1:3] == right[1:3]
            outcomes["the last group"] += 1
    print(outcomes)
    assert outcomes["refused"] > 2500


# -- files that are replaced as a whole


@pytest.mark.parametrize("turn", range(8))
def test_every_byte_of_the_manifest(turn: int) -> None:
    disk = SimDisk(random.Random(0))
    place = Path("/n/data")
    DataDir(place, disk=disk, manifest=manifest(3)).close()
    image, path = disk.image(), place / MANIFEST
    for offset in range(image.files[str(path)][1]):
        damaged = flipped(image, path, offset, 1 << turn)
        before = damaged.image()
        with pytest.raises(CorruptData) as error:
            DataDir(place, disk=damaged, manifest=manifest(3))
        assert error.value.fields["path"] == str(path), f"byte {offset}"
        assert damaged.image() == before


@pytest.mark.parametrize("turn", range(8))
def test_every_byte_of_a_checkpoint(turn: int) -> None:
    disk, path = SimDisk(random.Random(0)), Path("/n/checkpoint")
    disk.make_directory(path.parent)
    machine, rng = LogMachine(disk, path), random.Random(2)
    for index in range(1, 9):
        at = Position(PartitionLogIndex(index), GlobalLogIndex(2 * index))
        batch = ApplyBatch(at[0], at[1], 0, 1, 10, rng.randbytes(16), None)
        meta = {rng.randbytes(16): rng.randbytes(30)}
        machine.apply([batch], lambda _, at=at, meta=meta: (at, meta))  # type: ignore[misc]
    machine.checkpoint()
    image = disk.image()
    for offset in range(image.files[str(path)][1]):
        with pytest.raises(CorruptData) as error:
            LogMachine(flipped(image, path, offset, 1 << turn), path)
        assert error.value.fields["path"] == str(path)
