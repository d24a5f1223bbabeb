"""The places file comes back as it was, or is refused by name."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.sim.disk import SimDisk
from logboom.errors import CorruptData, IncompatibleVersion
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, Term
from partitions.log.columns import NOWHERE_SEGMENT, Columns
from partitions.log.committed import Committed
from partitions.log.opening import LogBase, begin_places, places_reach
from partitions.log.places import COLUMNS_AT, HEADER, MAGIC, decode_places, encode_places
from partitions.log.segment import BatchRef

PATH = Path("/n/partitions/3/places")
P = PartitionId(3)
ROWS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.binary(min_size=16, max_size=16)), max_size=12)


def columns_of(rows: list[tuple[int, int, bytes]], *, start: int, before: int, before_global: int = 0) -> Columns:
    committed, columns = Committed(), Columns(start=start, before_index=before, before_digest=bytes(range(16)))
    columns.before_global = before_global
    committed.begin(columns)
    last, total = 0, before_global
    for step, more, digest in rows:
        last, total = last + step, total + more
        index = PartitionLogIndex(before + last)
        ref = BatchRef(index, index, digest, bytes(16), Term(1), 1 + last // 8, 64 + 128 * last, 128 + step, 0)
        committed.append(ref, total)
    return committed.columns


def voided() -> Columns:
    """Whose one batch lies nowhere."""
    committed = Committed()
    index = PartitionLogIndex(1)
    committed.append(BatchRef(index, index, bytes(16), bytes(16), Term(0), NOWHERE_SEGMENT, 0, 0, 0), 1)
    return committed.columns


def fields(columns: Columns) -> list[object]:
    return [getattr(columns, name) for name in Columns.__slots__]


@given(ROWS, st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_they_come_back(rows: list[tuple[int, int, bytes]], start: int, before: int) -> None:
    columns = columns_of(rows, start=start, before=before)
    raw = encode_places(columns, P)
    assert fields(decode_places(raw, partition_id=P, path=PATH)) == fields(columns)


@pytest.mark.parametrize(("gap", "known"), [(1, True), ((1 << 32) - 1, True), (1 << 32, False)])
def test_the_global_index_in_front_comes_back(gap: int, known: bool) -> None:
    columns = columns_of([(1, gap, bytes(16)), (1, 1, bytes(16))], start=3, before=20, before_global=7)
    raw = encode_places(columns, P)
    assert decode_places(raw, partition_id=P, path=PATH).before_global == (7 if known else 0)


def test_a_log_of_which_everything_was_removed_is_kept_too() -> None:
    raw = encode_places(columns_of([], start=3, before=20, before_global=7), P)
    found = decode_places(raw, partition_id=P, path=PATH)
    assert (found.start, found.before_index, len(found.last)) == (3, 20, 0)


def test_what_cannot_be_in_front_is_refused_whatever_its_digest() -> None:
    columns = columns_of([(1, 5, bytes(16))], start=0, before=0, before_global=2)
    with pytest.raises(CorruptData, match="in front"):
        decode_places(encode_places(columns, P), partition_id=P, path=PATH)


def test_every_flipped_byte_and_every_cut_is_noticed() -> None:
    raw = encode_places(columns_of([(1, 1, bytes(16)), (2, 3, bytes(16))], start=7, before=20), P)
    for position in range(len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 1
        with pytest.raises((CorruptData, IncompatibleVersion), match=str(PATH)):
            decode_places(bytes(damaged), partition_id=P, path=PATH)
        with pytest.raises(CorruptData, match=str(PATH)):
            decode_places(raw[:position], partition_id=P, path=PATH)
    with pytest.raises(CorruptData):
        decode_places(raw + b"\0", partition_id=P, path=PATH)


def test_another_partition_s_is_refused() -> None:
    raw = encode_places(columns_of([(1, 1, bytes(16))], start=0, before=0), P)
    with pytest.raises(CorruptData, match="partition 3"):
        decode_places(raw, partition_id=PartitionId(4), path=PATH)


def test_a_newer_version_is_refused_before_anything_else_is_looked_at() -> None:
    with pytest.raises(IncompatibleVersion):
        decode_places(MAGIC + b"\x03\0", partition_id=P, path=PATH)


@pytest.mark.parametrize("bit", range(16))
@pytest.mark.parametrize("version", [1, 2])
def test_a_number_that_has_rotted_is_damage(version: int, bit: int) -> None:
    raw = bytearray(encode_places(voided() if version == 2 else columns_of([(1, 1, bytes(16))], start=0, before=0), P))
    assert raw[6] == version
    raw[6 + bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptData, match=str(PATH)):
        decode_places(bytes(raw), partition_id=P, path=PATH)


def test_a_log_whose_places_have_rotted_begins_behind_the_snapshot_whatever_has_rotted_of_them() -> None:
    """Found by review: where it was the number of their format, the node was not made from the snapshot."""
    disk, directory = SimDisk(random.Random(0)), PATH.parent
    disk.make_directory(directory)
    base = LogBase(PartitionLogIndex(9), b"d" * 16, GlobalLogIndex(9))
    for at in range(COLUMNS_AT):
        disk.replace_file(PATH, encode_places(columns_of([(1, 1, bytes(16))], start=0, before=0), P))
        disk.flip(PATH, at, 4)
        begin_places(disk, directory, P, base)
        begun = decode_places(disk.read_file(PATH), partition_id=P, path=PATH)
        assert (begun.before_index, begun.before_digest) == (9, b"d" * 16)
        assert places_reach(disk, directory, P, base)


@pytest.mark.parametrize("column", ["last", "global_index"])
def test_what_does_not_ascend_is_refused_whatever_its_digest(column: str) -> None:
    columns = columns_of([(1, 1, bytes(16)), (1, 1, bytes(16))], start=0, before=0)
    getattr(columns, column)[1] = 1
    with pytest.raises(CorruptData, match="fit"):
        decode_places(encode_places(columns, P), partition_id=P, path=PATH)


def test_a_count_takes_no_memory() -> None:
    head = HEADER.pack(MAGIC, 1, P, 0, 0, 0, bytes(16), (1 << 64) - 1)
    with pytest.raises(CorruptData):
        decode_places(head.ljust(COLUMNS_AT, b"\0"), partition_id=P, path=PATH)
