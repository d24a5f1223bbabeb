"""Targets: what a backup directory holds beside snapshot sets, and what a backup is given by a node."""

from __future__ import annotations

import struct
from array import array
from pathlib import Path
from typing import Any, Final

import msgspec
from blake3 import blake3

from chaos.fuzz.batches import seal_batch
from chaos.fuzz.samples import batch, block, raw
from chaos.fuzz.target import Cursor, Target, counted, framed, holds, packed
from logboom.client.log_batches import LogBatch, LogMetadata, batches_of, metadata_of
from logboom.client.operations import log_piece_of
from logboom.errors import CorruptData, IncompatibleVersion, ProtocolError
from logboom.types import GlobalLogIndex
from logboom.wire import Kind
from partitions.log.batch import HEADER_BYTES
from raftlog.entries.voids import Void
from server.directory.manifest import sealed
from server.offline.backup_dir import Contents, Kept, decode_contents, encode_contents
from server.offline.batches import (
    HEADER,
    MAGIC,
    ROW,
    ROWS_AT,
    VERSION,
    decode,
    decode_nothing,
    decode_void,
    encode,
    encode_nothing,
    encode_void,
)

HERE: Final = Path("/kept/logs/1/file.batches")
CLUSTER: Final = b"cluster hash"


def _seal_file(data: bytes) -> bytes:
    """Header, rows and batches as they have to be, as far as lengths reach."""
    first, rest = data[: HEADER.size].ljust(HEADER.size, b"\0"), data[HEADER.size :]
    rows: list[bytes] = []
    batches: list[bytes] = []
    while len(rest) >= HEADER_BYTES:
        metadata, of_data = struct.unpack_from("<II", rest, 80)
        one = seal_batch(rest[: HEADER_BYTES + metadata % 4096 + of_data % 4096])
        rows.append(ROW.pack(rest[60] + len(rows) + 1, len(one)))
        batches.append(one)
        rest = rest[len(one) :]
    head = MAGIC + struct.pack("<H", VERSION) + first[8:12] + struct.pack("<I", len(rows)) + first[16:64]
    head += struct.pack("<Q", sum(map(len, batches))) + first[72:]
    body = b"".join([*rows, *batches])
    return head + blake3(head + body).digest(16) + body


def batch_file(data: bytes) -> None:
    """First byte odd: sealed."""
    given = _seal_file(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    try:
        nothing = decode_nothing(given, path=HERE)
    except (CorruptData, IncompatibleVersion):
        nothing = None
    if nothing is not None:
        holds(len(given) == ROWS_AT and nothing.first_index == nothing.last_index + 1, "nothing is something")
    try:
        void = decode_void(given, path=HERE)
    except (CorruptData, IncompatibleVersion):
        void = None
    if void is not None:
        void.check()
        holds(nothing is None and len(given) == ROWS_AT, "a void is something else, too")
    try:
        found = decode(given, path=HERE)
    except (CorruptData, IncompatibleVersion):
        return
    holds(encode(found.batches, cluster=found.span.cluster) == given, "a file does not come back")
    after, newest, digest = found.span.first_index - 1, 0, found.span.before_digest
    for global_index, each in found.batches:
        holds(each.header.first_index == after + 1 and each.header.previous_digest == digest, "a batch out of order")
        holds(global_index > newest, "global indices rise")
        after, newest, digest = each.last_index, global_index, each.digest
    holds((after, digest) == (found.span.last_index, found.span.last_digest), "a file that ends elsewhere")


def _file_seeds() -> list[bytes]:
    one = batch()
    two = batch(previous=one)
    rows = [(GlobalLogIndex(3), one), (GlobalLogIndex(9), two)]
    files = [encode(rows[:n], cluster=CLUSTER) for n in (1, 2)] + [encode(rows[1:], cluster=CLUSTER)]
    empty = encode_nothing(one.header.partition_id, last_index=7, digest=one.digest, cluster=CLUSTER)
    bare = b"\1" + empty[: HEADER.size]
    of = Void(one.header.partition_id, one.header.first_index, one.last_index, one.digest, GlobalLogIndex(3))
    void = encode_void(of, cluster=CLUSTER)
    plain = [each[: HEADER.size] + each[ROWS_AT + ROW.size * n :] for n, each in zip((1, 2, 1), files, strict=True)]
    return [
        *(b"\0" + each for each in (*files, files[0][:-1], b"", empty, void)),
        *(b"\1" + each for each in plain),
        bare,
    ]


# -- backup.json


def backup_list(data: bytes) -> None:
    """First byte odd: sealed, should it be JSON."""
    given = data[1:]
    if data[:1] and data[0] & 1:
        try:
            given = sealed(msgspec.json.decode(given, type=dict[str, Any]))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return
    try:
        found = decode_contents(given, path="backup.json")
    except (CorruptData, IncompatibleVersion):
        return
    indices = [each.global_index for each in found.sets]
    holds(indices == sorted(set(indices)), "sets out of order")
    holds(decode_contents(encode_contents(found), path="backup.json") == found, "a list does not come back")


def _list_seeds() -> list[bytes]:
    kept = Kept(global_index=5, raft_index=9, created_ms=1_700_000_000_000, bytes=28, digest="00" * 16)
    whole = [encode_contents(Contents("fuzz", sets)) for sets in ((), (kept,))]
    whole.append(encode_contents(Contents("fuzz", (kept,), "ab" * 16)))
    plain = [msgspec.json.decode(each) for each in whole]
    twice = {**plain[1], "sets": plain[1]["sets"] * 2}
    newer = {**plain[1], "format": 2}
    return [*(b"\0" + each for each in whole), *(b"\1" + msgspec.json.encode(each) for each in (*plain, twice, newer))]


# -- LOG_PIECE


def log_piece(data: bytes) -> None:
    """u16 length of the header, it, and the body."""
    cursor = Cursor(data)
    frame = framed(Kind.LOG_PIECE, cursor.take(cursor.number(2)), cursor.rest())
    if frame is None:
        return
    try:
        found = log_piece_of(frame)
    except ProtocolError:
        return
    holds(b"".join(bytes(each) for _, each in found.batches) == bytes(frame.body), "bytes are lost")
    holds(min(found.void, found.void_global, found.lost) >= 0, "indices are not below 0")
    holds(found.first >= 1 and all(index >= 1 for index, _ in found.batches), "indices begin at 1")


def _piece_seeds() -> list[bytes]:
    one = raw(batch())
    headers: list[dict[str, Any]] = [
        {"partition": 1, "rows": [[3, len(one)]], "first": 1, "before": bytes(16)},
        {"partition": 1, "rows": [], "first": 7, "before": bytes(16)},
        {"partition": 1, "rows": [], "first": 7, "before": bytes(16), "void": [5, 6, bytes(16), 3]},
        {"partition": 1, "rows": [], "first": 1, "before": bytes(16), "lost": [5, 6, bytes(16), 3]},
        {"partition": 1, "rows": [[3, len(one) - 4], [4, 4]], "first": 1, "before": b""},
    ]
    return [counted(packed(header), one if header["rows"] else b"") for header in headers]


# -- streams of records


def feed(data: bytes) -> None:
    """First byte: which kind of frame. u16 length of the header, it, and the body."""
    cursor = Cursor(data)
    kind = (Kind.BATCHES, Kind.RECORDS, Kind.METADATA)[cursor.number(1) % 3]
    frame = framed(kind, cursor.take(cursor.number(2)), cursor.rest())
    if frame is None:
        return
    try:
        found = [metadata_of(frame)] if kind is Kind.METADATA else list(batches_of(frame))
    except ProtocolError:
        return
    for each in found:
        block = each.block if isinstance(each, LogMetadata) else each.records
        holds(len(each.indexes()) == block.count >= 1, "an index for each record")
        if isinstance(each, LogBatch):
            holds(sum(map(len, block.payloads())) == len(block.data), "bytes are lost")


def _feed_seeds() -> list[bytes]:
    one = batch()
    two = batch(previous=one)
    header = {"partition": 1, "first_index": 2, "global_indexes": array("Q", [3, 9]).tobytes()}
    seeds = [b"\0" + counted(packed(header), raw(one) + raw(two))]
    of = block()
    fields: dict[str, Any] = {
        "partition": 1, "first_index": 1, "global_index": 3, "term": 1, "timestamp_ms": 5, "producer": bytes(16),
        "epoch": 0, "sequence": 0, "next_index": 99, "count": of.count, "metadata": len(of.metadata),
        "data": len(of.data),
    }  # fmt: skip
    offsets = array("I", range(0, 3 * of.count, 3)).tobytes()
    seeds.append(b"\1" + counted(packed({**fields, "offsets": offsets}), bytes(of.metadata) + bytes(of.data)))
    seeds.append(b"\2" + counted(packed(fields), bytes(of.metadata)))
    return seeds


TARGETS = [
    Target("feed", feed, _feed_seeds, "records that a client is sent"),
    Target("batch_file", batch_file, _file_seeds, "files of batches in a backup"),
    Target("backup_list", backup_list, _list_seeds, "backup.json"),
    Target("log_piece", log_piece, _piece_seeds, "batches that a backup is given by a node"),
]
