"""``logboom inspect``: one file, as rows for people. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from logboom.errors import CorruptData, InvalidRequest
from logboom.types import PartitionId
from partitions.log.batch import parse_header
from partitions.log.columns import LOST_OFFSET
from partitions.log.places import HEADER, decode_places
from partitions.log.segment import (
    NAME,
    SEGMENT_HEADER,
    SEGMENT_HEADER_BYTES,
    SEGMENT_MAGIC,
    check_segment_header,
    scan,
    segment_ordinal,
)
from raftlog.entries.entry import unpack_control, unpack_routes
from raftlog.entries.parent_state import EMPTY, ParentState
from raftlog.journal import journal_base, journal_newest
from raftlog.journal import journal_codec as codec
from raftlog.journal.journal_codec import JournalRecord, RecordKind
from raftlog.journal.journal_files import BASE, NEWEST
from server.directory.manifest import decode as decode_manifest
from server.offline.backup_dir import decode_contents
from server.offline.batches import decode as decode_batches
from server.world.disk_os import OsDisk
from snapshots.meta import decode as decode_set

Row = dict[str, Any]
Inspected = tuple[Row, list[Row]]
"""What a file says: about the whole, and row by row."""
CLUSTER: Final = slice(8, 20)
"""Where the cluster's hash is in a journal's base."""
CLUSTER_IN_SEGMENT: Final = slice(16, 28)
STATES: Final = ".states"


def inspect(kind: str, path: Path) -> Inspected:
    """Raises CorruptData, IncompatibleVersion, or InvalidRequest for a path that is no such file."""
    if path.is_dir():
        raise InvalidRequest(f"{path} is a directory: name a file in it")
    if kind == "snapshot" and path.suffix == STATES:
        path = path.with_suffix(".set")  # it says what is in the other, which may be larger than all memory
    return READERS[kind](path, OsDisk().read_file(path))


def _aof(path: Path, raw: bytes) -> Inspected:
    if len(raw) < SEGMENT_HEADER_BYTES or raw[:6] != SEGMENT_MAGIC:
        raise CorruptData(f"{path}: not a segment of a partition log", path=str(path), offset=0)
    _, _, partition, ordinal, first, _, _ = SEGMENT_HEADER.unpack_from(raw)
    if not NAME.fullmatch(path.name):
        raise InvalidRequest(f"{path}: a segment of a partition log is called <first index>-<ordinal>.log")
    partition_id = PartitionId(partition)
    check_segment_header(raw[:SEGMENT_HEADER_BYTES], partition_id, ordinal=segment_ordinal(path.name), path=path)
    found = scan(raw, ordinal=ordinal, path=path, partition_id=partition_id)
    rest = raw[found.end :].rstrip(b"\0")
    about = {
        "path": str(path), "partition": partition, "ordinal": ordinal, "first_index": first,
        "batches": len(found.refs), "end": found.end, "bytes": len(raw), "torn_bytes": len(rest),
        "damaged": [[each.offset, each.length] for each in found.damage],
    }  # fmt: skip
    rows = [{"offset": ref.offset, **batch_row(raw[ref.offset : ref.offset + ref.length])} for ref in found.refs]
    return about, rows


def batch_row(raw: bytes) -> Row:
    """A batch's header, for people."""
    header = parse_header(raw)
    return {
        "first_index": header.first_index,
        "last_index": header.last_index,
        "bytes": header.nbytes,
        "term": header.term,
        "timestamp_ms": header.timestamp_ms,
        "producer": header.producer.hex(),
        "epoch": header.epoch,
        "sequence": header.sequence,
        "dense": header.dense,
        "origins": header.mixed,
        "digest": header.digest.hex(),
    }


def _journal(path: Path, raw: bytes) -> Inspected:
    if path.name == BASE:
        return _base(path, raw)
    if path.name == NEWEST:
        sequence = journal_newest.decode(raw, cluster=raw[journal_newest.CLUSTER], path=str(path))
        return {"path": str(path), "first_sequence": sequence, "bytes": len(raw)}, []
    header = codec.check_segment_header(raw, cluster=raw[CLUSTER_IN_SEGMENT], path=str(path))
    records, end = codec.scan(memoryview(raw), header)
    rest = raw[end:].rstrip(b"\0")
    about = {
        "path": str(path), "first_sequence": header.first_sequence, "records": len(records), "end": end,
        "bytes": len(raw), "torn_bytes": len(rest),
    }  # fmt: skip
    return about, [_record(record) for record in records]


def _record(record: JournalRecord) -> Row:
    return {
        "offset": record.start,
        "sequence": record.sequence,
        "kind": record.kind.name.lower(),
        "synced": record.synced,
        "floor": record.floor,
        "bytes": len(record.body),
        "about": _about(record),
    }


def _about(record: JournalRecord) -> str:
    body = record.body
    if record.kind is RecordKind.ENTRY:
        index, term = codec.ENTRY.unpack_from(body)
        return f"Raft {index} of term {term}: {_command(bytes(body[codec.ENTRY.size :]))}"
    if record.kind is RecordKind.HARDSTATE:
        term, vote = codec.unpack_hard_state(body)
        return f"term {term}, vote for {vote or 'nobody'}"
    if record.kind is RecordKind.REDO:
        return f"batch {bytes(body[: codec.DIGEST_BYTES]).hex()}"
    (number,) = codec.INDEX.unpack(body)
    return {
        RecordKind.TRUNCATE: f"entries from Raft {number} on are removed",
        RecordKind.SETTLED: f"batches up to record {number} are in their logs",
        RecordKind.STRIPPED: f"{number} batches were here",
    }[record.kind]


def _command(command: bytes) -> str:
    control = unpack_control(command)
    if control is not None:
        return f"control {control}"
    routes = unpack_routes(command)
    return ", ".join(f"{route.partition_id}:{route.last_index}" for route in routes) or "empty"


def _base(path: Path, raw: bytes) -> Inspected:
    record = journal_base.decode(raw, cluster=raw[CLUSTER], path=str(path))
    parent = ParentState.decode(record.base.state)
    about = {
        "path": str(path), "raft_index": record.base.index, "raft_term": record.base.term,
        "global_index": parent.global_index, "first_sequence": record.first_sequence, "term": record.hard.term,
        "vote": record.hard.vote, "floor": record.hard.floor,
    }  # fmt: skip
    return about, _tails(parent)


def _tails(parent: ParentState) -> list[Row]:
    return [
        {"partition": partition, "last_index": tail.last_index, "global_index": tail.global_index,
         "digest": tail.digest.hex()}
        for partition, tail in sorted(parent.tails.items())
    ]  # fmt: skip


def _manifest(path: Path, raw: bytes) -> Inspected:
    return {"path": str(path), **msgspec.to_builtins(decode_manifest(raw, path=str(path)))}, []


def _snapshot(path: Path, raw: bytes) -> Inspected:
    meta = decode_set(raw, path=str(path))
    parent = ParentState.decode(meta.parent)
    tails = parent.tails
    about = {
        "path": str(path), "cluster": meta.cluster, "lineage": meta.lineage, "global_index": meta.global_index,
        "raft_index": meta.raft_index, "raft_term": meta.raft_term, "created_ms": meta.created_ms,
        "states_bytes": meta.states_bytes, "states_digest": meta.states_digest.hex(),
        "voids": [[v.partition_id, v.first_index, v.last_index, v.digest.hex(), v.applied] for v in parent.voids.kept],
    }  # fmt: skip
    rows = [
        {
            "partition": each.partition_id, "state_machine": each.state_machine, "applied_index": each.applied_index,
            "applied_global_index": each.applied_global_index, "offset": each.offset, "bytes": each.length,
            "digest": each.digest.hex(), "log_digest": tails.get(each.partition_id, EMPTY).digest.hex(),
        }
        for each in meta.partitions
    ]  # fmt: skip
    return about, rows


def _places(path: Path, raw: bytes) -> Inspected:
    partition = PartitionId(HEADER.unpack_from(raw.ljust(HEADER.size, b"\0"))[2])
    columns = decode_places(raw, partition_id=partition, path=path)
    about = {
        "path": str(path), "partition": partition, "batches": len(columns.last), "start": columns.start,
        "before_index": columns.before_index, "before_digest": columns.before_digest.hex(),
    }  # fmt: skip
    rows = [
        {
            "last_index": columns.last[row], "global_index": columns.global_index[row],
            "segment": columns.segment[row], "offset": columns.offset[row], "bytes": columns.length[row],
            "digest": columns.digest(columns.start + row).hex(), "lost": columns.offset[row] == LOST_OFFSET,
        }
        for row in range(len(columns.last))
    ]  # fmt: skip
    return about, rows


def _backup(path: Path, raw: bytes) -> Inspected:
    contents = decode_contents(raw, path=str(path))
    about = {"path": str(path), "cluster": contents.cluster, "lineage": contents.lineage}
    return about, [msgspec.to_builtins(each) for each in contents.sets]


def _batches(path: Path, raw: bytes) -> Inspected:
    span, batches = decode_batches(raw, path=path)
    about = {
        "path": str(path), "partition": span.partition_id, "batches": span.batches, "first_index": span.first_index,
        "last_index": span.last_index, "before_digest": span.before_digest.hex(), "bytes": span.nbytes,
    }  # fmt: skip
    rows = [{"global_index": index, **batch_row(bytes(batch.buffers[0]))} for index, batch in batches]
    return about, rows


READERS: Final[Mapping[str, Callable[[Path, bytes], Inspected]]] = {
    "aof": _aof,
    "journal": _journal,
    "manifest": _manifest,
    "snapshot": _snapshot,
    "places": _places,
    "backup": _backup,
    "batches": _batches,
}
