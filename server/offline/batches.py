"""A ``.batches`` file of a backup: some batches of one partition's log, one after the other. No I/O.

Little-endian (docs/disk-format.md)::

    header  magic "LBBTCH" 6, version u16, partition id u32, batches u32, first index u64, last index u64,
            digest of the batch before 16, digest of the last one 16, bytes of all batches u64, cluster hash 12
    digest  16, over the header and all that follows
    rows    per batch: global index u64, length u32
    batches as in a partition's log

There is one way to write batches down, and a file is never changed. A ``.nothing`` file is a header and its digest:
the cluster had removed all that ended at its last index, or before. So is a ``.void`` file: that batch was lost
everywhere, and declared void.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3

from logboom.errors import CorruptData
from logboom.types import DIGEST_BYTES, NO_DIGEST, NUMBER_MAX, GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.log.batch import Batch, parse_batch
from ports.formats import refuse_format
from ports.invariant import invariant
from raftlog.entries.voids import Void

MAGIC: Final = b"LBBTCH"
VERSION: Final = 1
HEADER: Final = struct.Struct("<6sHIIQQ16s16sQ12s")
ROW: Final = struct.Struct("<QI")
ROWS_AT: Final = HEADER.size + DIGEST_BYTES
SUFFIX: Final = ".batches"
NOTHING: Final = ".nothing"
VOID: Final = ".void"


class Span(NamedTuple):
    """What a file's header says of it."""

    partition_id: PartitionId
    batches: int
    first_index: PartitionLogIndex
    last_index: PartitionLogIndex
    before_digest: bytes
    """Of the batch in front of the first one."""
    last_digest: bytes
    nbytes: int
    """Bytes of the batches."""
    cluster: bytes
    """``raftlog.journal.journal.cluster_hash`` of its id."""


class BatchFile(NamedTuple):
    """A file that is sound."""

    span: Span
    batches: list[tuple[GlobalLogIndex, Batch]]


def name_of(first_index: int) -> str:
    """Of the file that begins there."""
    return f"{first_index:020d}{SUFFIX}"


def encode(rows: Sequence[tuple[GlobalLogIndex, Batch]], *, cluster: bytes) -> bytes:
    """``rows``: at least one batch, checked, each the one that follows, with its global index."""
    invariant(bool(rows), "a file of no batches")
    first, last = rows[0][1].header, rows[-1][1].header
    nbytes = sum(batch.nbytes for _, batch in rows)
    head = HEADER.pack(
        MAGIC, VERSION, first.partition_id, len(rows), first.first_index, last.last_index, first.previous_digest,
        last.digest, nbytes, cluster,
    )  # fmt: skip
    listed = b"".join(ROW.pack(global_index, batch.nbytes) for global_index, batch in rows)
    body = b"".join(buffer for _, batch in rows for buffer in batch.buffers)
    return b"".join((head, blake3(head + listed).update(body).digest(DIGEST_BYTES), listed, body))


def encode_nothing(partition_id: PartitionId, *, last_index: int, digest: bytes, cluster: bytes) -> bytes:
    """A file that says: of what ends with this batch nobody has anything."""
    head = HEADER.pack(MAGIC, VERSION, partition_id, 0, last_index + 1, last_index, digest, digest, 0, cluster)
    return head + blake3(head).digest(DIGEST_BYTES)


def decode_nothing(raw: bytes, *, path: Path) -> Span:
    """Inverse. Raises CorruptData or IncompatibleVersion."""
    span = span_of(raw, path=path)
    if span.last_index > NUMBER_MAX:
        raise _corrupt(path, f"nothing up to {span.last_index}")
    said = encode_nothing(span.partition_id, last_index=span.last_index, digest=span.last_digest, cluster=span.cluster)
    if raw != said:
        raise _corrupt(path, "does not match its digest")
    return span


def encode_void(void: Void, *, cluster: bytes) -> bytes:
    """A file that says: this batch counts as nothing. Its global index stands where the bytes of batches do."""
    partition, first, last, digest, global_index = void[:5]
    head = HEADER.pack(MAGIC, VERSION, partition, 0, first, last, NO_DIGEST, digest, global_index, cluster)
    return head + blake3(head).digest(DIGEST_BYTES)


def decode_void(raw: bytes, *, path: Path) -> Void:
    """Inverse. Raises CorruptData or IncompatibleVersion."""
    span = span_of(raw, path=path)
    void = Void(span.partition_id, span.first_index, span.last_index, span.last_digest, GlobalLogIndex(span.nbytes))
    if raw != encode_void(void, cluster=span.cluster):
        raise _corrupt(path, "does not match its digest")
    if not 0 < void.first_index <= void.last_index < NUMBER_MAX or not 0 < void.global_index < NUMBER_MAX:
        raise _corrupt(path, f"a void from {void.first_index} to {void.last_index}, at {void.global_index}")
    return void


def span_of(raw: bytes, *, path: Path) -> Span:
    """Of a file's first bytes, which are checked against nothing. Raises CorruptData or IncompatibleVersion."""
    if len(raw) < ROWS_AT or raw[: len(MAGIC)] != MAGIC:
        raise _corrupt(path, "not a file of batches")
    _, version, partition, *rest = HEADER.unpack_from(raw)
    if version != VERSION:
        refuse_format(raw, known=(VERSION,), what="batches", path=str(path), holds=_is_whole)
    count, first, last, before, digest, nbytes, cluster = rest
    return Span(
        PartitionId(partition),
        batches=count,
        first_index=PartitionLogIndex(first),
        last_index=PartitionLogIndex(last),
        before_digest=before,
        last_digest=digest,
        nbytes=nbytes,
        cluster=cluster,
    )


def decode(raw: bytes, *, path: Path) -> BatchFile:
    """Every batch is checked, and follows the one before. Raises CorruptData or IncompatibleVersion."""
    span = span_of(raw, path=path)
    body_at = ROWS_AT + span.batches * ROW.size
    if len(raw) != body_at + span.nbytes or not span.batches:
        raise _corrupt(path, f"{len(raw)} bytes for {span.batches} batches of {span.nbytes}")
    view = memoryview(raw)
    if not _is_whole(raw):
        raise _corrupt(path, "does not match its digest")
    batches: list[tuple[GlobalLogIndex, Batch]] = []
    at, after, digest, newest = body_at, span.first_index - 1, span.before_digest, 0
    for global_index, length in ROW.iter_unpack(view[ROWS_AT:body_at]):
        try:
            batch = parse_batch(view[at : at + length])
        except CorruptData as error:
            raise _corrupt(path, str(error), offset=at) from error
        header = batch.header
        if (header.partition_id, header.first_index, header.previous_digest) != (span.partition_id, after + 1, digest):
            raise _corrupt(path, f"the batch at {header.first_index} does not follow {after}", offset=at)
        if not newest < global_index <= NUMBER_MAX:
            raise _corrupt(path, f"the batch at {header.first_index} at global index {global_index}", offset=at)
        batches.append((GlobalLogIndex(global_index), batch))
        at, after, digest, newest = at + length, header.last_index, header.digest, global_index
    if (at, after, digest) != (len(raw), span.last_index, span.last_digest):
        raise _corrupt(path, f"ends at {after}, not at {span.last_index}", offset=at)
    return BatchFile(span, batches)


def _is_whole(raw: bytes) -> bool:
    return (
        blake3(raw[: HEADER.size]).update(memoryview(raw)[ROWS_AT:]).digest(DIGEST_BYTES) == raw[HEADER.size : ROWS_AT]
    )


def _corrupt(path: Path, why: str, *, offset: int = 0) -> CorruptData:
    return CorruptData(f"{path}: {why}", path=str(path), offset=offset)
