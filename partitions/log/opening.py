"""What a start finds of a partition's log: its segments, and the places of what is committed already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from logboom.errors import CorruptData, IncompatibleVersion
from logboom.types import NO_DIGEST, GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.log.batch import HEADER_BYTES, parse_header
from partitions.log.columns import LOST_OFFSET, Columns
from partitions.log.compaction import orphans
from partitions.log.open_segment import OpenSegment
from partitions.log.places import PLACES, decode_places, newest_of, pieces_of
from partitions.log.segment import BatchRef, Damage, load, segment_names
from ports.disk import Disk, File


class LogBase(NamedTuple):
    """The end of a partition's log where the parent journal begins: everything up to there is committed."""

    last_index: PartitionLogIndex = PartitionLogIndex(0)
    digest: bytes = NO_DIGEST
    """Digest of the batch that ends there."""
    global_index: GlobalLogIndex = GlobalLogIndex(0)
    """Global index of that batch."""
    empty_ok: bool = False
    """The node was started from a snapshot: that the log does not say where the batches up to there are is fine,
    and it begins behind them."""


FROM_THE_BEGINNING = LogBase()


@dataclass(slots=True)
class Opened:
    """What was found. ``refs``: batches above the base."""

    names: dict[int, str]
    columns: Columns
    refs: list[BatchRef]
    damage: list[Damage]
    tail_segment: int = 0
    tail_offset: int = 0
    tail_records: int = 0
    tail_ms: int = 0
    """When the first batch in it was made; 0: there is none, or it cannot be read."""


def open_segments(
    disk: Disk, directory: Path, partition_id: PartitionId, base: LogBase, open_segment: OpenSegment
) -> Opened:
    """Blocking. Raises IncompatibleVersion or CorruptData; then nothing has been changed but torn tails."""
    names = segment_names(disk.list(directory))
    opened = Opened(dict(sorted(names.items())), Columns(), [], [])
    opened.columns = _places(disk, directory, partition_id, base, opened)
    newest, above = max(names, default=0), base.last_index or -1
    lost = _lost_rows(opened.columns)
    for ordinal, name in opened.names.items():
        sealed = ordinal != newest
        found, file = load(disk, directory / name, partition_id, sealed=sealed, above=-1 if lost else above)
        opened.damage += found.damage
        opened.refs += [ref for ref in found.refs if ref.last_index > above]
        _place_lost(opened.columns, lost, found.refs)
        if file is not None:
            opened.tail_segment = ordinal
            opened.tail_ms = _made_ms(file, found.refs)
            opened.tail_records = sum(r.last_index - r.first_index + 1 for r in found.refs)
            opened.tail_offset = open_segment.reopen(
                file, found.refs, ordinal=ordinal, end=found.end, proven=found.proven
            )
    for name in orphans(disk.list(directory)):
        disk.remove(directory / name)
    return opened


def _lost_rows(columns: Columns) -> dict[tuple[int, bytes], int]:
    """By last index and digest: what was lost when the places were written. A copy may have turned up since."""
    if LOST_OFFSET not in columns.offset:
        return {}
    rows = (row for row, offset in enumerate(columns.offset) if offset == LOST_OFFSET)
    return {(columns.last[row], columns.digest(columns.start + row)): row for row in rows}


def _place_lost(columns: Columns, lost: Mapping[tuple[int, bytes], int], refs: Iterable[BatchRef]) -> None:
    """What of it is in a segment lies there; the newest copy counts."""
    for ref in refs if lost else ():
        row = lost.get((ref.last_index, ref.digest))
        if row is not None:
            columns.segment[row], columns.offset[row], columns.length[row] = ref.segment, ref.offset, ref.length


def _made_ms(file: File, refs: list[BatchRef]) -> int:
    try:
        return parse_header(file.read(offset=refs[0].offset, length=HEADER_BYTES)).timestamp_ms if refs else 0
    except CorruptData:  # an index named it; whoever reads it is told
        return 0


def begin_places(disk: Disk, directory: Path, partition_id: PartitionId, base: LogBase) -> None:
    """For a node that is made from a snapshot: unless its places reach the base, the log begins behind it.

    What its segments hold of before then counts as never committed. Blocking, and durable on return.
    """
    path = directory / PLACES
    try:
        _through_base(_read(disk, path, partition_id), base, path)
    except CorruptData:
        columns = Columns(before_index=base.last_index, before_digest=base.digest)
        disk.replace_file(path, *pieces_of(columns, partition_id))


def places_reach(disk: Disk, directory: Path, partition_id: PartitionId, base: LogBase) -> bool:
    """A log that begins at ``base`` finds there what it has of before. Blocking."""
    path = directory / PLACES
    try:
        _through_base(_read(disk, path, partition_id), base, path)
    except (CorruptData, IncompatibleVersion):
        return False
    return True


def _places(disk: Disk, directory: Path, partition_id: PartitionId, base: LogBase, opened: Opened) -> Columns:
    if not base.last_index:
        return Columns()
    path = directory / PLACES
    try:
        columns = _read(disk, path, partition_id)
        if columns.before_index > base.last_index:
            # Of a log that begins where the others' does, for a snapshot that this node did not come to start from.
            return Columns(before_index=base.last_index, before_digest=base.digest)
        columns = _through_base(columns, base, path)
    except CorruptData as error:
        if base.empty_ok:
            return Columns(before_index=base.last_index, before_digest=base.digest)
        raise CorruptData(f"{error}; this node has to be replaced", path=str(path), offset=0) from error
    return _behind_removed(columns, directory, opened)


def _read(disk: Disk, path: Path, partition_id: PartitionId) -> Columns:
    if not disk.exists(path):
        raise CorruptData(f"{path}: missing, though the parent journal begins behind what it tells")
    return decode_places(disk.read_file(path), partition_id=partition_id, path=path)


def _through_base(columns: Columns, base: LogBase, path: Path) -> Columns:
    """The file may have been written for a later base, which was not reached."""
    end = columns.through(base.last_index)
    reached = columns.last_index(end - 1), columns.digest(end - 1)
    if reached != (base.last_index, base.digest):
        raise CorruptData(f"{path}: does not have the batch at {base.last_index}, where the parent journal begins")
    return columns.part(columns.start, end) if end < columns.end else columns


def _behind_removed(columns: Columns, directory: Path, opened: Opened) -> Columns:
    """Without the batches of segments that have been removed since.

    Compaction leaves none that ends before one that it takes, unless a crash stopped it, and it takes the oldest
    first: anything else is damage. The log begins behind that, too, since this node needs nothing below its base.
    """
    newest = newest_of(columns)
    missing = {segment: last for segment, last in newest.items() if segment not in opened.names}
    if not missing:
        return columns
    present = [(segment, last) for segment, last in newest.items() if segment in opened.names]
    opened.damage += [
        Damage(str(directory / f"*-{segment:08d}.log"), 0, 0)
        for segment, last in missing.items()
        if any(older < segment and end < last for older, end in present)
    ]
    return columns.part(columns.through(max(missing.values())), columns.end)
