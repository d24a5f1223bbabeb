"""A set's ``.set`` file."""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import msgspec
import pytest

from logboom.errors import CorruptData, IncompatibleVersion
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, RaftIndex, Term
from ports.invariant import InvariantViolated
from snapshots.meta import HEAD, ROW, SECTION_BYTES_MIN, STATES_HEADER_BYTES, PartitionMeta, SetMeta, decode, encode


def meta(count: int = 3, machines: tuple[str, ...] = ("kv", "log"), **other: Any) -> SetMeta:
    partitions = tuple(
        PartitionMeta(
            PartitionId(3 * k),
            machines[k % len(machines)],
            PartitionLogIndex(10 * k),
            GlobalLogIndex(k),
            STATES_HEADER_BYTES + 100 * k,
            100,
            k.to_bytes(16, "little"),
        )
        for k in range(count)
    )
    plain = SetMeta(
        cluster="c",
        global_index=GlobalLogIndex(max(count, 9)),
        raft_index=RaftIndex(11),
        raft_term=Term(4),
        parent=b"opaque",
        partitions=partitions,
        states_bytes=STATES_HEADER_BYTES + 100 * count,
        states_digest=bytes(range(16)),
        created_ms=5,
    )
    return msgspec.structs.replace(plain, **other)


def with_partition(which: int, **other: Any) -> SetMeta:
    whole = meta()
    rows = list(whole.partitions)
    rows[which] = msgspec.structs.replace(rows[which], **other)
    return msgspec.structs.replace(whole, partitions=tuple(rows))


def resealed(raw: bytes) -> bytes:
    return raw[:-4] + struct.pack("<I", google_crc32c.value(raw[:-4]))


@pytest.mark.parametrize(
    "each",
    [
        meta(),
        meta(0),
        meta(1, ("ünsere",)),
        meta(parent=b""),
        meta(lineage="ab" * 16),
        meta(0, lineage="00" * 15 + "01"),
        meta(300, tuple(f"machine {k}" for k in range(300))),
        meta(cluster="ç" * 30_000, global_index=(1 << 63) - 1, raft_index=(1 << 63) - 1),
    ],
)
def test_it_comes_back(each: SetMeta) -> None:
    assert decode(encode(each), path="p") == each


def test_the_first_history_is_written_as_older_releases_read_it() -> None:
    first, restored = encode(meta()), encode(meta(lineage="ab" * 16))
    assert (first[6], restored[6], len(restored) - len(first)) == (1, 2, 16)
    with pytest.raises(CorruptData, match="lineage"):
        decode(resealed(restored.replace(b"\xab" * 16, bytes(16))), path="p")


def test_a_hundred_thousand_partitions() -> None:
    each = meta(100_000)
    raw = encode(each)
    assert len(raw) < 6_000_000
    assert decode(raw, path="p") == each


def test_every_flipped_byte_is_noticed() -> None:
    raw = encode(meta())
    for at in range(len(raw)):
        flipped = bytearray(raw)
        flipped[at] ^= 0x10
        with pytest.raises(CorruptData, match=r"/x/1\.set"):
            decode(bytes(flipped), path="/x/1.set")


def test_every_end_is_noticed() -> None:
    raw = encode(meta())
    for size in range(len(raw)):
        with pytest.raises(CorruptData):
            decode(raw[:size], path="p")
    for size in range(len(raw) - 4):
        with pytest.raises(CorruptData):
            decode(resealed(raw[:size] + bytes(4)), path="p")
    with pytest.raises(CorruptData):
        decode(resealed(raw + b"more"), path="p")


def test_another_version_says_so() -> None:
    raw = bytearray(encode(meta()))
    raw[6] = 3
    with pytest.raises(IncompatibleVersion) as caught:
        decode(resealed(bytes(raw)), path="p")
    assert caught.value.fields == {"found": 3, "supported": 2, "path": "p"}


BIG = 1 << 63


@pytest.mark.parametrize(
    "each",
    [
        meta(cluster=""),
        meta(global_index=1),
        meta(global_index=BIG),
        meta(raft_index=0),
        meta(raft_term=BIG),
        meta(created_ms=BIG),
        meta(states_bytes=321),
        meta(states_digest=bytes(15)),
        with_partition(1, partition_id=0),
        with_partition(1, partition_id=7),
        with_partition(2, partition_id=1 << 32),
        with_partition(1, state_machine=""),
        with_partition(1, state_machine="k" * 256),
        with_partition(1, applied_index=BIG),
        with_partition(1, applied_global_index=10),
        with_partition(0, offset=0),
        with_partition(1, offset=STATES_HEADER_BYTES + 99),
        with_partition(2, length=101),
        with_partition(2, length=SECTION_BYTES_MIN - 1),
        with_partition(1, digest=b""),
    ],
)
def test_what_cannot_be_is_not_written(each: SetMeta) -> None:
    with pytest.raises(InvariantViolated):
        encode(each)


def patched(at: int, form: str, *values: Any) -> bytes:
    raw = bytearray(encode(meta()))
    struct.pack_into(form, raw, at, *values)
    return resealed(bytes(raw))


NAMES = HEAD.size + len("c")
ROWS = NAMES + len("\2kv\3log")


@pytest.mark.parametrize(
    "raw",
    [
        patched(8, "<I", 2),
        patched(8, "<I", (1 << 32) - 1),
        patched(12, "<H", 1),
        patched(12, "<H", 60_000),
        patched(14, "<H", 0),
        patched(14, "<H", 60_000),
        patched(16, "<I", 1),
        patched(20, "<Q", 1),
        patched(20, "<Q", BIG),
        patched(28, "<Q", 0),
        patched(44, "<Q", 1 << 40),
        patched(HEAD.size, "<1s", b"\xff"),
        patched(NAMES, "<7s", b"\2zz\3log"),
        patched(NAMES, "<7s", b"\xff"),
        patched(NAMES + 1, "<2s", b"\xc3\xff"),
        patched(ROWS, "<I", 4),
        patched(ROWS + 4, "<H", 2),
        patched(ROWS + ROW.size + 4, "<H", 0),
        patched(ROWS + 14, "<Q", 10),
        patched(ROWS + 22, "<Q", 21),
        patched(ROWS + 30, "<Q", 99),
    ],
)
def test_fields_are_checked_though_the_checksum_holds(raw: bytes) -> None:
    try:
        found = decode(raw, path="p")
    except CorruptData:
        return
    pytest.fail(f"taken: {found}")
