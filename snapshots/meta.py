"""What a snapshot set is of: the cut in the parent log, the parent's state, and each partition's section. No I/O.

A ``.set`` file, little-endian (docs/disk-format.md)::

    head    magic "LBSNAP", version u16, partitions u32, machine names u16, cluster bytes u16, parent bytes u32,
            global index, Raft index, Raft term, bytes of the states file, created ms u64 each, states digest 16
    cluster id, utf-8
    lineage 16, in version 2 alone: of a cluster that was restored
    names   of state machines, ascending: length u8, utf-8
    rows    one per partition, ascending: partition id u32, name u16, applied index, applied global index,
            offset, length u64 each, digest 16
    parent  opaque
    crc32c  u32, of all before

There is one way to write a set down: equal sets are equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import google_crc32c
import msgspec

from logboom.errors import CorruptData
from logboom.state_machine import Position
from logboom.types import (
    DIGEST_BYTES,
    LINEAGE_BYTES,
    GlobalLogIndex,
    PartitionId,
    PartitionLogIndex,
    RaftIndex,
    Term,
    is_lineage,
)
from ports.formats import refuse_format
from ports.invariant import invariant

MAGIC: Final = b"LBSNAP"
VERSION: Final = 2
FIRST_LINEAGE: Final = 1
"""Written as long as the cluster has not been restored; has no lineage in it."""
HEAD: Final = struct.Struct("<6sHIHHIQQQQQ16s")
ROW: Final = struct.Struct("<IHQQQQ16s")
CRC: Final = struct.Struct("<I")
NUMBER_MAX: Final = (1 << 63) - 1
STATES_HEADER_BYTES: Final = 20
"""Where the first section begins in a states file."""
SECTION_BYTES_MIN: Final = 8
"""Of an empty section: its end."""


class PartitionMeta(msgspec.Struct, frozen=True, gc=False):
    """One partition's state, and where it is in the states file."""

    partition_id: PartitionId
    state_machine: str
    """Name of the machine that dumped it; the same kind has to load it."""
    applied_index: PartitionLogIndex
    applied_global_index: GlobalLogIndex
    offset: int
    """Bytes from the file's beginning. Sections follow each other without gaps."""
    length: int
    """Bytes, with the section's end."""
    digest: bytes
    """BLAKE3-128 of the section."""

    @property
    def position(self) -> Position:
        """What the state is of."""
        return Position(self.applied_index, self.applied_global_index)


class SetMeta(msgspec.Struct, frozen=True):
    """A whole set: every partition's state as of one cut in the parent log."""

    cluster: str
    """Id of the cluster that it belongs to."""
    global_index: GlobalLogIndex
    """Reached at the cut; names the set. Sets of the same cut have the same states file on every node."""
    raft_index: RaftIndex
    """Raft index of the cut."""
    raft_term: Term
    """Term of the entry at ``raft_index``."""
    parent: bytes
    """The parent log's own state after the cut; opaque here."""
    partitions: tuple[PartitionMeta, ...]
    """Ascending by id."""
    states_bytes: int
    """Size of the states file."""
    states_digest: bytes
    """BLAKE3-128 of the states file."""
    created_ms: int
    """Wall clock of the node that wrote it, ms since the epoch: for people, and how old it is by after a start."""
    lineage: str = ""
    """Which history of the cluster it belongs to (docs/decisions/0030-lineage.md)."""


def encode(meta: SetMeta) -> bytes:
    """What a ``.set`` file has."""
    wrong = _wrong(meta)
    invariant(wrong is None, "a snapshot set that cannot be: {}", wrong)
    names = sorted({each.state_machine for each in meta.partitions})
    numbers = {name: number for number, name in enumerate(names)}
    cluster = meta.cluster.encode()
    head = HEAD.pack(
        MAGIC, VERSION if meta.lineage else FIRST_LINEAGE, len(meta.partitions), len(names), len(cluster),
        len(meta.parent),
        meta.global_index, meta.raft_index, meta.raft_term, meta.states_bytes, meta.created_ms, meta.states_digest,
    )  # fmt: skip
    rows = [
        ROW.pack(
            each.partition_id, numbers[each.state_machine], each.applied_index, each.applied_global_index,
            each.offset, each.length, each.digest,
        )
        for each in meta.partitions
    ]  # fmt: skip
    listed = [bytes([len(raw)]) + raw for raw in map(str.encode, names)]
    body = b"".join([head, cluster, bytes.fromhex(meta.lineage), *listed, *rows, meta.parent])
    return body + CRC.pack(google_crc32c.value(body))


def decode(raw: bytes, *, path: str) -> SetMeta:
    """Inverse of ``encode``. Raises IncompatibleVersion or CorruptData, naming ``path``."""
    if raw[: len(MAGIC)] != MAGIC or len(raw) < HEAD.size + CRC.size:
        raise CorruptData(f"{path}: not a snapshot set", path=path, offset=0)
    version = HEAD.unpack_from(raw)[1]
    if version not in (VERSION, FIRST_LINEAGE):
        refuse_format(raw, known=(VERSION, FIRST_LINEAGE), what="snapshot set", path=path)
    body = raw[: -CRC.size]
    if CRC.pack(google_crc32c.value(body)) != raw[-CRC.size :]:
        raise CorruptData(f"{path}: damaged snapshot set", path=path, offset=0)
    try:
        meta = _parsed(body)
        wrong = _wrong(meta)
    except (ValueError, IndexError) as error:  # UnicodeDecodeError is one
        meta, wrong = None, str(error)
    if meta is None or wrong is not None:
        raise CorruptData(f"{path}: not a snapshot set: {wrong}", path=path, offset=0)
    return meta


def _parsed(body: bytes) -> SetMeta:
    """Raises IndexError or ValueError."""
    _, version, count, kinds, cluster_bytes, parent_bytes, *numbers, states_digest = HEAD.unpack_from(body)
    global_index, raft_index, raft_term, states_bytes, created_ms = numbers
    lineage_at = HEAD.size + cluster_bytes
    names_at = lineage_at + (LINEAGE_BYTES if version == VERSION else 0)
    names, rows = _names(body, names_at, kinds)
    end = rows + count * ROW.size
    if end + parent_bytes != len(body):
        raise ValueError(f"{len(body)} bytes, {end + parent_bytes} expected")
    partitions = tuple(_rows(body[rows:end], names))
    if len({each.state_machine for each in partitions}) != len(names):
        raise ValueError("names of state machines that no partition has")
    return SetMeta(
        cluster=body[HEAD.size : lineage_at].decode(),
        lineage=body[lineage_at:names_at].hex(),
        global_index=global_index,
        raft_index=raft_index,
        raft_term=raft_term,
        parent=body[end:],
        partitions=partitions,
        states_bytes=states_bytes,
        states_digest=states_digest,
        created_ms=created_ms,
    )


def _names(body: bytes, at: int, count: int) -> tuple[list[str], int]:
    """And where they end. Raises IndexError or ValueError."""
    names: list[str] = []
    for _ in range(count):
        end = at + 1 + body[at]
        names.append(body[at + 1 : end].decode())
        at = end
    if names != sorted(set(names)):
        raise ValueError("names of state machines that are not in order")
    return names, at


def _rows(raw: bytes, names: list[str]) -> Iterator[PartitionMeta]:
    """Raises IndexError for a name that is not there."""
    for partition_id, name, *rest in ROW.iter_unpack(raw):
        yield PartitionMeta(partition_id, names[name], *rest)


def _wrong(meta: SetMeta) -> str | None:
    """What is not as it has to be."""
    numbers = (meta.global_index, meta.raft_term, meta.states_bytes, meta.created_ms)
    if any(not 0 <= number <= NUMBER_MAX for number in numbers) or not 1 <= meta.raft_index <= NUMBER_MAX:
        return "numbers out of range"
    if not 1 <= len(meta.cluster.encode()) < 1 << 16 or len(meta.parent) >= 1 << 32:
        return "a cluster id or parent state of impossible length"
    if not is_lineage(meta.lineage):
        return "a lineage that cannot be"
    if len(meta.states_digest) != DIGEST_BYTES:
        return "a digest of another length"
    before, end = -1, STATES_HEADER_BYTES
    for each in meta.partitions:
        if not before < each.partition_id < 1 << 32:
            return f"partition {each.partition_id} after partition {before}"
        if not 1 <= len(each.state_machine.encode()) < 1 << 8:
            return f"partition {each.partition_id}: a state machine's name of impossible length"
        if not (0 <= each.applied_index <= NUMBER_MAX and 0 <= each.applied_global_index <= meta.global_index):
            return f"partition {each.partition_id}: a position beyond the cut"
        if each.offset != end or each.length < SECTION_BYTES_MIN or len(each.digest) != DIGEST_BYTES:
            return f"partition {each.partition_id}: a section that does not follow the one before"
        before, end = each.partition_id, end + each.length
    if end != meta.states_bytes:
        return f"sections end at {end}, the states file at {meta.states_bytes}"
    return None
