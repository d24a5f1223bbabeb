"""Batches of a log column by column: where each lies, and which it is.

Batches are numbered from 0 in the order of the log, and keep their *position* when those in front of
them are removed. Written on the loop, read by any thread: only appended to. About 50 bytes per batch: what
is mended is noted beside the columns, which are shared with the one before, and not copied.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from typing import NoReturn

from logboom.errors import IndexCompacted
from logboom.types import DIGEST_BYTES, NO_DIGEST, NUMBER_MAX, PartitionLogIndex, Term
from partitions.log.guessed import guessed
from partitions.log.segment import BatchRef

STEP = 65_536
"""Batches that are copied at a time: what is copied at once holds up all threads."""
NOWHERE_SEGMENT = 0
"""Segment of a batch that lies nowhere: it is void, or nobody has it. Others are numbered from 1."""
LOST_OFFSET = NUMBER_MAX
"""Offset that is written for a batch that is lost, not void. No segment is so long: earlier releases find damage."""


class Columns:
    """The batches from position ``start`` on, and what is in front of them. ``last`` is appended to last."""

    __slots__ = (
        "before_digest",
        "before_global",
        "before_index",
        "digests",
        "global_index",
        "last",
        "length",
        "moved",
        "offset",
        "segment",
        "start",
    )

    def __init__(self, *, start: int = 0, before_index: int = 0, before_digest: bytes = NO_DIGEST) -> None:
        self.start = start
        self.before_index = before_index
        """Last index of the batch in front of the first one here; 0: there is none."""
        self.before_digest = before_digest
        self.before_global = 0
        """Its global index; 0: nobody has kept it."""
        self.last = array("Q")
        self.global_index = array("Q")
        self.segment = array("I")
        self.offset = array("Q")
        self.length = array("I")
        self.digests = bytearray()
        self.moved: dict[int, tuple[int, int, int]] = {}
        """Of a few rows segment, offset and length, in place of those in the columns."""

    @property
    def end(self) -> int:
        """Position behind the last batch."""
        return self.start + len(self.last)

    def place(self, row: int) -> tuple[int, int, int]:
        """Segment, offset and length of the batch there."""
        if self.moved and row in self.moved:
            return self.moved[row]
        return self.segment[row], self.offset[row], self.length[row]

    def lengths(self, low: int, high: int) -> array[int]:
        """Of the batches in these rows."""
        some = self.length[low:high]
        if self.moved:
            high = low + len(some)
            rows = range(low, high) if len(some) < len(self.moved) else self.moved
            for row in rows:
                if low <= row < high and row in self.moved:
                    some[row - low] = self.moved[row][2]
        return some

    def with_moved(self, moved: Mapping[int, tuple[int, int, int]]) -> Columns:
        """The same batches, some in other places; whatever is appended to either is in both."""
        other = Columns.__new__(Columns)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.moved = {**self.moved, **moved}
        return other

    def append(self, ref: BatchRef, global_index: int) -> None:
        """The next batch."""
        self.global_index.append(global_index)
        self.segment.append(ref.segment)
        self.offset.append(ref.offset)
        self.length.append(ref.length)
        self.digests += ref.digest
        self.last.append(ref.last_index)

    def digest(self, position: int) -> bytes:
        """Of the batch there, which may be the one in front."""
        row = position - self.start
        if row < 0:
            return self.before_digest if row == -1 else self.refuse()
        return bytes(self.digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES])

    def last_index(self, position: int) -> int:
        """Of the batch there, which may be the one in front."""
        row = position - self.start
        if row < 0:
            return self.before_index if row == -1 else self.refuse()
        return self.last[row]

    def at(self, position: int) -> int:
        """Row of a position. Raises IndexCompacted."""
        return position - self.start if position >= self.start else self.refuse()

    def refuse(self) -> NoReturn:
        """Raises IndexCompacted."""
        first = self.before_index + 1
        raise IndexCompacted(f"records before {first} have been removed", first=first)

    def through(self, index: int) -> int:
        """Position behind the last batch that ends at or before ``index``."""
        return self.start + bisect_left(self.last, index + 1)

    def find(self, last_index: int, digest: bytes) -> int | None:
        """Position of this batch, readable or not; None: it is not here."""
        rows = self.last
        newest = len(rows) - 1  # more may be appended meanwhile
        if newest < 0 or last_index > rows[newest]:
            return None  # whatever is about to be appended: as often asked as all else
        row = newest if rows[newest] == last_index else bisect_left(rows, last_index, 0, newest)
        if rows[row] == last_index:
            position = self.start + row
            return position if self.digest(position) == digest else None
        return None

    def part(self, begin: int, end: int, *, step: int = 0) -> Columns:
        """A copy of the batches at these positions; ``step``: so many at a time, and other threads in between."""
        some = Columns(start=begin, before_index=self.last_index(begin - 1), before_digest=self.digest(begin - 1))
        low = self.at(begin)
        some.before_global = self.global_index[low - 1] if low else self.before_global
        step = step or max(1, end - begin)
        for at in range(begin, end, step):
            some.take(self, min(at + step, end))
        return some

    def take(self, other: Columns, end: int) -> None:
        """What ``other`` has behind what is here, up to a position; what has moved there lies here in the columns."""
        low, high, own_low = other.at(self.end), other.at(end), len(self.last)
        for own, all_ in zip(self._numbers(), other._numbers(), strict=True):
            own.extend(all_[low:high])
        self.digests += other.digests[low * DIGEST_BYTES : high * DIGEST_BYTES]
        for row, place in other.moved.items():
            if low <= row < high:
                at = row - low + own_low
                self.segment[at], self.offset[at], self.length[at] = place
        self.last.extend(other.last[low:high])

    def _numbers(self) -> tuple[array[int], ...]:
        """But for ``last``, which counts them."""
        return self.global_index, self.segment, self.offset, self.length

    def bytes_between(self, low: int, high: int) -> int:
        """Of the batches that end behind ``low``, up to ``high``; below 0 where that is lower. Of many a guess."""
        begin, end = bisect_left(self.last, low + 1), bisect_left(self.last, high + 1)
        return guessed(self.lengths, begin, end) if begin <= end else -guessed(self.lengths, end, begin)


def ref_at(columns: Columns, position: int) -> BatchRef:
    """The batch there; its term and order are not kept. Raises IndexCompacted."""
    row = columns.at(position)
    segment, offset, length = columns.place(row)
    return BatchRef(
        PartitionLogIndex(columns.last_index(position - 1) + 1),
        PartitionLogIndex(columns.last[row]),
        columns.digest(position),
        columns.digest(position - 1),
        Term(0),
        segment,
        offset,
        length,
        0,
    )
