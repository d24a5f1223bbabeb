"""The places file: where the committed batches up to some index are, so that the parent journal need not say it.

A header, then the columns one after the other. What is in front of them has been removed. A batch that was declared
void lies nowhere: its segment, offset and length are 0, and the file is of version 2. Files: docs/disk-format.md.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice
from operator import lt
from pathlib import Path
from typing import Final

from blake3 import blake3

from logboom.errors import CorruptData
from logboom.types import DIGEST_BYTES, NO_DIGEST, NUMBER_MAX, PartitionId, PartitionLogIndex, Term
from partitions.log.batch import HEADER_BYTES
from partitions.log.columns import LOST_OFFSET, NOWHERE_SEGMENT, STEP, Columns
from partitions.log.segment import SEGMENT_HEADER_BYTES, BatchRef
from ports.disk import Buffer, Disk
from ports.formats import refuse_format
from ports.invariant import invariant

PLACES: Final = "places"
"""Its name, in the partition's directory."""
MAGIC: Final = b"LBPLCS"
VERSION: Final = 2
WITHOUT_VOIDS: Final = 1
HEADER: Final = struct.Struct("<6sHIIQQ16sQ")
FIRST_SEGMENT: Final = 1
GAP_MAX: Final = (1 << 32) - 1
DIGEST_AT: Final = HEADER.size
COLUMNS_AT: Final = HEADER.size + DIGEST_BYTES
_NOWHERE: Final = (
    PartitionLogIndex(0), PartitionLogIndex(0), NO_DIGEST, NO_DIGEST, Term(0), NOWHERE_SEGMENT, 0, 0, 0,
)  # fmt: skip
ROW_BYTES: Final = 8 + 8 + 4 + 8 + 4 + DIGEST_BYTES


class Rows:
    """Batches that were fetched: last index, global index and digest of each, in 32 bytes."""

    def __init__(self, rows: Iterable[tuple[int, int, bytes]] = ()) -> None:
        self._last = array("Q")
        self._global_index = array("Q")
        self._digests = bytearray()
        for row in rows:
            self.append(*row)

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[tuple[int, int, bytes]]:
        for row, (last_index, global_index) in enumerate(zip(self._last, self._global_index, strict=True)):
            yield last_index, global_index, self._digest(row)

    def append(self, last_index: int, global_index: int, digest: bytes) -> None:
        """The one that follows."""
        self._last.append(last_index)
        self._global_index.append(global_index)
        self._digests += digest

    @property
    def first_global(self) -> int:
        """Global index of the first; there is one."""
        return self._global_index[0]

    @property
    def last_digest(self) -> bytes:
        """Of the last; there is one."""
        return self._digest(len(self._last) - 1)

    def _digest(self, row: int) -> bytes:
        return bytes(self._digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES])


def saving(
    disk: Disk, path: Path, partition_id: PartitionId, made: Callable[[], Columns], *, settle: Callable[[], None]
) -> Callable[[], None]:
    """A job that calls ``settle``, which makes the batches durable, and then writes where those of ``made`` are."""

    def run() -> None:
        settle()
        disk.replace_file(path, *pieces_of(made(), partition_id))

    return run


def part_through(columns: Columns, through_index: int, lost: Collection[int] = ()) -> Columns:
    """A copy of what ends up to there, whatever is appended meanwhile. Any thread.

    ``lost``: at these positions nothing is void, wherever it lies; nor will it be after a start.
    """
    part = columns.part(columns.start, columns.through(through_index), step=STEP)
    _lose(part, lost)
    return part


def newest_of(columns: Columns) -> dict[int, int]:
    """Per segment the last index of what lies in it; what is lost, or void, does not."""
    if LOST_OFFSET in columns.offset:
        rows = zip(columns.segment, columns.last, columns.offset, strict=True)
        newest = {segment: last for segment, last, offset in rows if offset != LOST_OFFSET}
    else:  # much faster, of many
        newest = dict(zip(columns.segment, columns.last, strict=True))  # last indices ascend
    newest.pop(NOWHERE_SEGMENT, None)
    return newest


def _lose(columns: Columns, positions: Iterable[int]) -> None:
    for row in sorted(position - columns.start for position in positions):
        if 0 <= row < len(columns.last) and columns.segment[row] == NOWHERE_SEGMENT:
            rows = chain(range(row - 1, -1, -1), range(row + 1, len(columns.segment)))
            beside = (columns.segment[each] for each in rows)
            columns.segment[row] = next((each for each in beside if each != NOWHERE_SEGMENT), FIRST_SEGMENT)
            columns.offset[row], columns.length[row] = LOST_OFFSET, HEADER_BYTES


def with_fetched(
    columns: Columns,
    rows: Rows,
    *,
    through_index: int,
    followed: tuple[int, bytes, int] | None,
    find: Callable[[int, bytes], BatchRef | None],
    voids: Collection[tuple[int, bytes]] = (),
    lost: Collection[tuple[int, bytes]] = (),
) -> Columns:
    """A copy of ``columns``, up to an index, with batches behind them. Any thread. Raises CorruptData.

    What was committed since it was fetched is in the columns already. ``voids`` lie nowhere, wherever they lay here,
    and so do those of ``lost`` that are not here, nor among ``voids``: see ``part_through``.

    ``followed``: index, digest and global index (0: not known) of the batch in front of ``rows``; the columns go, if
    they end before it.
    """
    columns = part_through(columns, through_index)
    if followed is not None and followed[0] > columns.last_index(columns.end - 1):
        columns = Columns(before_index=followed[0], before_digest=followed[1])
        columns.before_global = followed[2] if rows and followed[2] < rows.first_global else 0
    for last_index, global_index, digest in rows:
        if last_index <= columns.last_index(columns.end - 1):
            continue
        ref = find(last_index, digest)
        if (last_index, digest) in voids or (ref is None and (last_index, digest) in lost):
            ref = BatchRef(*_NOWHERE)._replace(last_index=PartitionLogIndex(last_index), digest=digest)
        if ref is None:
            raise CorruptData(f"the batch that ends at {last_index} was fetched, and is not here")
        columns.append(ref, global_index)
    for row in _rows_of(columns, voids):
        columns.segment[row], columns.offset[row], columns.length[row] = NOWHERE_SEGMENT, 0, 0
    _lose(columns, [columns.start + row for row in _rows_of(columns, {*lost} - {*voids})])
    return columns


def _rows_of(columns: Columns, batches: Iterable[tuple[int, bytes]]) -> list[int]:
    """Rows of those batches, named by last index and digest, that are in the columns."""
    rows = ((columns.through(last_index) - 1 - columns.start, last_index, digest) for last_index, digest in batches)
    return [
        row
        for row, last_index, digest in rows
        if row >= 0 and columns.last[row] == last_index and columns.digest(columns.start + row) == digest
    ]


def encode_places(columns: Columns, partition_id: PartitionId) -> bytes:
    """The file. ``columns`` are the caller's own: nobody appends to them, and none has moved."""
    return b"".join(pieces_of(columns, partition_id))


def pieces_of(columns: Columns, partition_id: PartitionId) -> list[Buffer]:
    """The same in pieces, of which the large ones are the columns themselves."""
    invariant(not columns.moved, "places of {}: rows have moved", partition_id)
    head = HEADER.pack(
        MAGIC,
        VERSION if NOWHERE_SEGMENT in columns.segment else WITHOUT_VOIDS,
        partition_id,
        _gap(columns),
        columns.start,
        columns.before_index,
        columns.before_digest,
        len(columns.last),
    )
    rows = [memoryview(_little(each)).cast("B") for each in _numbers(columns)] + [memoryview(columns.digests)]
    return [head, _digest(head, rows), *rows]


def decode_places(raw: bytes, *, partition_id: PartitionId, path: Path) -> Columns:
    """Inverse. Raises CorruptData or IncompatibleVersion, naming ``path``."""
    if len(raw) < 8 or raw[:6] != MAGIC:
        raise _corrupt(path, "not a places file")
    (version,) = struct.unpack_from("<H", raw, 6)
    if version not in (VERSION, WITHOUT_VOIDS):
        refuse_format(raw, known=(VERSION, WITHOUT_VOIDS), what="places", path=str(path), holds=_is_whole)
    if len(raw) < COLUMNS_AT:
        raise _corrupt(path, f"{len(raw)} bytes")
    _, _, partition, gap, start, before_index, before_digest, count = HEADER.unpack_from(raw)
    if len(raw) != COLUMNS_AT + count * ROW_BYTES:
        raise _corrupt(path, f"{len(raw)} bytes for {count} batches")
    view = memoryview(raw)
    if not _is_whole(raw):
        raise _corrupt(path, "does not match its digest")
    if partition != partition_id:
        raise _corrupt(path, f"belongs to partition {partition}; it is misplaced")
    columns, at = Columns(start=start, before_index=before_index, before_digest=before_digest), COLUMNS_AT
    for column in _numbers(columns):
        nbytes = count * column.itemsize
        column.frombytes(view[at : at + nbytes])
        _little(column, own=True)
        at += nbytes
    columns.digests += view[at:]
    if max(start, before_index) > NUMBER_MAX or not _is_sound(columns, voids=version == VERSION):
        raise _corrupt(path, "its columns do not fit each other")
    if gap:
        columns.before_global = columns.global_index[0] - gap if columns.last and columns.before_index else 0
        if columns.before_global <= 0:
            raise _corrupt(path, "its columns do not fit what is in front of them")
    return columns


def _gap(columns: Columns) -> int:
    """By how much the first global index is above that of the batch in front; 0: nobody knows, or needs to.

    Releases before this one wrote zeros there, and look at nothing: of what they have written it is not known.
    """
    if not columns.before_global or not columns.last:
        return 0  # without rows the log begins at its base, which says so
    gap = columns.global_index[0] - columns.before_global
    return gap if gap <= GAP_MAX else 0


def _is_sound(columns: Columns, *, voids: bool) -> bool:
    if not columns.last:
        return not voids
    if voids != (NOWHERE_SEGMENT in columns.segment):
        return False
    if voids:
        placed = Columns()
        for segment, offset, length in zip(columns.segment, columns.offset, columns.length, strict=True):
            if segment == NOWHERE_SEGMENT and (offset or length):
                return False
            if segment != NOWHERE_SEGMENT:
                placed.segment.append(segment)
                placed.offset.append(offset)
                placed.length.append(length)
    else:
        placed = columns
    return (
        columns.before_index < columns.last[0]
        and columns.last[-1] <= NUMBER_MAX
        and columns.global_index[0] > 0
        and columns.global_index[-1] <= NUMBER_MAX
        and _ascends(columns.last)
        and _ascends(columns.global_index)
        and min(placed.segment, default=1) > 0
        and min(placed.offset, default=SEGMENT_HEADER_BYTES) >= SEGMENT_HEADER_BYTES
        and max(placed.offset, default=0) <= NUMBER_MAX
        and min(placed.length, default=HEADER_BYTES) >= HEADER_BYTES
    )


def _ascends(column: array[int]) -> bool:
    return all(map(lt, column, islice(column, 1, None)))


def _numbers(columns: Columns) -> tuple[array[int], ...]:
    return columns.last, columns.global_index, columns.segment, columns.offset, columns.length


def _little(column: array[int], *, own: bool = False) -> array[int]:
    if sys.byteorder == "little":
        return column
    column = column if own else column[:]
    column.byteswap()
    return column


def _is_whole(raw: bytes) -> bool:
    return _digest(raw[: HEADER.size], [memoryview(raw)[COLUMNS_AT:]]) == raw[DIGEST_AT:COLUMNS_AT]


def _digest(head: bytes, rows: Iterable[memoryview]) -> bytes:
    hasher = blake3(head)
    for each in rows:
        hasher.update(each)
    return hasher.digest(DIGEST_BYTES)


def _corrupt(path: Path, why: str) -> CorruptData:
    return CorruptData(f"{path}: {why}", path=str(path), offset=0)
