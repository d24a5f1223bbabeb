"""Files of a backup: batches of a log, and the list of what is complete."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from chaos.fuzz.disk import MemoryDisk
from chaos.fuzz.samples import batch
from logboom.errors import CorruptData, IncompatibleVersion, WrongNode
from logboom.types import DIGEST_BYTES, GlobalLogIndex, PartitionId
from partitions.log.batch import Batch
from raftlog.journal.journal import cluster_hash
from server.directory.manifest import sealed
from server.offline.backup_dir import BackupDir, Contents, Kept, LogArchive, decode_contents, encode_contents
from server.offline.batches import HEADER, ROWS_AT, decode, encode, name_of
from server.world.disk_os import OsDisk

PATH = Path("/kept/logs/1/file.batches")
CLUSTER = "shop"


def batches(count: int) -> list[tuple[GlobalLogIndex, Batch]]:
    found: list[Batch] = []
    for _ in range(count):
        found.append(batch(previous=found[-1] if found else None))
    return [(GlobalLogIndex(10 * n + 1), each) for n, each in enumerate(found)]


def archive(disk: MemoryDisk | None = None) -> LogArchive:
    return LogArchive(disk or MemoryDisk(), PATH.parent, PartitionId(1))


def test_a_file_comes_back() -> None:
    rows = batches(3)
    found = decode(encode(rows, cluster=cluster_hash(CLUSTER)), path=PATH)
    assert [(index, each.digest) for index, each in found.batches] == [(index, each.digest) for index, each in rows]
    assert (found.span.first_index, found.span.last_index) == (1, rows[-1][1].last_index)
    assert found.span.cluster == cluster_hash(CLUSTER)


def test_every_flipped_byte_is_noticed() -> None:
    raw = encode(batches(2), cluster=cluster_hash(CLUSTER))
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1
        with pytest.raises((CorruptData, IncompatibleVersion)) as caught:
            decode(bytes(damaged), path=PATH)
        assert caught.value.fields["path"] == str(PATH)


def test_every_cut_is_noticed() -> None:
    raw = encode(batches(2), cluster=cluster_hash(CLUSTER))
    for size in range(len(raw)):
        with pytest.raises(CorruptData):
            decode(raw[:size], path=PATH)


def test_batches_that_do_not_follow_each_other_are_refused() -> None:
    first, second, third = batches(3)
    for rows in ([first, third], [second, first], [(second[0], first[1]), (first[0], second[1])]):
        with pytest.raises(CorruptData):
            decode(encode(rows, cluster=cluster_hash(CLUSTER)), path=PATH)


def test_gaps_are_what_no_file_has() -> None:
    rows, kept = batches(6), archive()
    ends = [each.last_index for _, each in rows]
    assert kept.gaps(0) == []
    assert kept.gaps(ends[-1]) == [(0, ends[-1], None)]
    kept.add(rows[1:2], CLUSTER)
    kept.add(rows[3:5], CLUSTER)
    assert kept.gaps(ends[5]) == [
        (0, ends[0], None),
        (ends[1], ends[2], rows[1][1].digest),
        (ends[4], ends[5], rows[4][1].digest),
    ]
    assert kept.gaps(ends[2]) == [(0, ends[0], None), (ends[1], ends[2], rows[1][1].digest)]
    assert kept.gaps(ends[1]) == [(0, ends[0], None)]


def test_a_run_begins_behind_the_last_gap_and_ends_with_the_batch() -> None:
    rows, kept = batches(6), archive()
    for part in (rows[:1], rows[2:4], rows[4:]):
        kept.add(part, CLUSTER)
    run = kept.run_to(rows[4][1].last_index, rows[4][1].digest)
    assert [span.first_index for span in run] == [rows[2][1].header.first_index, rows[4][1].header.first_index]
    assert [span.first_index for span in kept.run_to(rows[0][1].last_index, rows[0][1].digest)] == [1]
    for last, digest in ((rows[4][1].last_index, bytes(16)), (rows[4][1].last_index + 1, rows[4][1].digest)):
        with pytest.raises(CorruptData):
            kept.run_to(last, digest)


def test_a_misplaced_file_is_refused() -> None:
    disk, (first, second, _) = MemoryDisk(), batches(3)
    kept = archive(disk)
    kept.add([first], CLUSTER)
    disk.rename(PATH.parent / name_of(1), PATH.parent / name_of(second[1].header.first_index))
    with pytest.raises(CorruptData):
        kept.spans()


def renumbered(raw: bytes, number: int, *, resealed: bool) -> bytes:
    """A file of another format; not ``resealed``: by rot alone."""
    head = raw[:6] + struct.pack("<H", number) + raw[8 : HEADER.size]
    digest = blake3(head + raw[ROWS_AT:]).digest(DIGEST_BYTES)
    return head + (digest if resealed else raw[HEADER.size : ROWS_AT]) + raw[ROWS_AT:]


def test_a_number_that_has_rotted_is_damage_and_no_other_release_s() -> None:
    """Found by review: it called for another release."""
    disk, rows = MemoryDisk(), batches(3)
    kept = archive(disk)
    kept.add(rows[:2], CLUSTER)
    kept.note_nothing(rows[2][1].last_index, rows[2][1].digest, CLUSTER)
    (path,), (note,) = kept.paths(), kept.notes()
    for place, looked in ((path, lambda: kept.span(path)), (note, lambda: kept.noted(note))):
        raw = disk.read_file(place)
        for bit in range(16):
            disk.put(place, renumbered(raw, 1 ^ 1 << bit, resealed=False))
            with pytest.raises(CorruptData, match="it was 1") as caught:
                looked()
            assert caught.value.fields["path"] == str(place)
        disk.put(place, renumbered(raw, 2, resealed=True))
        with pytest.raises(IncompatibleVersion, match="batches of format 2"):
            looked()
        disk.put(place, raw)


# -- the list


def kept_set(global_index: int) -> Kept:
    return Kept(global_index=global_index, raft_index=9, created_ms=1, bytes=28, digest="00" * 16)


def test_the_list_comes_back_and_notices_every_flipped_byte() -> None:
    contents = Contents(CLUSTER, (kept_set(4), kept_set(7)))
    raw = encode_contents(contents)
    assert decode_contents(raw, path="x") == contents
    for at, bit in itertools.product(range(len(raw)), (0, 5)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << bit
        with pytest.raises((CorruptData, IncompatibleVersion)):
            decode_contents(bytes(damaged), path="x")


def test_a_directory_is_of_one_cluster() -> None:
    disk, path = MemoryDisk(), Path("/kept")
    BackupDir(disk, path).claim(CLUSTER)
    BackupDir(disk, path).claim(CLUSTER)
    with pytest.raises(WrongNode):
        BackupDir(disk, path).claim("other")


def test_a_directory_is_of_one_history() -> None:
    for first, other in (("", "ab" * 16), ("ab" * 16, ""), ("ab" * 16, "cd" * 16)):
        disk, path = MemoryDisk(), Path("/kept")
        BackupDir(disk, path).claim(CLUSTER, first)
        BackupDir(disk, path).claim(CLUSTER, first)
        with pytest.raises(WrongNode, match="another history"):
            BackupDir(disk, path).claim(CLUSTER, other)


def test_the_list_of_the_first_history_is_as_older_releases_read_it() -> None:
    first, restored = (encode_contents(Contents(CLUSTER, (kept_set(4),), each)) for each in ("", "ab" * 16))
    assert (b'"format":1' in first, b"lineage" in first) == (True, False)
    assert b'"format":2' in restored
    assert decode_contents(restored, path="x").lineage == "ab" * 16
    fields = msgspec.json.decode(restored, type=dict[str, Any])
    del fields["checksum"]
    for change in ({"format": 1}, {"lineage": ""}, {"lineage": "ab"}, {"lineage": 1}):
        with pytest.raises(CorruptData):
            decode_contents(sealed(fields | change), path="x")


def test_a_file_system_of_its_own_is_no_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir(mode=0)
    BackupDir(OsDisk(), tmp_path).claim(CLUSTER)


def test_a_directory_of_something_else_is_refused() -> None:
    disk, path = MemoryDisk(), Path("/kept")
    disk.put(path / "notes.txt", b"mine")
    with pytest.raises(WrongNode):
        BackupDir(disk, path)
    assert list(disk.files) == [path / "notes.txt"]
