"""Where every committed batch of a partition is, and which are damaged.

Written on the loop, read by any thread: an operation looks at one ``Columns``, which is only appended to; what removes
or mends swaps in another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.log.columns import LOST_OFFSET, NOWHERE_SEGMENT, STEP, Columns, ref_at
from partitions.log.guessed import SUMMED
from partitions.log.segment import BatchRef

MOVED_MAX = 4096
"""More than that are copied with all others, into columns that have them."""


class _Short(NamedTuple):
    """What is left of some columns without their first batches; more may have been appended to those since."""

    of: Columns
    left: Columns


class Committed:
    """See the module."""

    def __init__(self) -> None:
        self._columns = Columns()
        self._newest: dict[int, int] = {}
        """Per segment: no committed batch in it ends behind this index."""
        self._lost: dict[tuple[int, bytes], int] = {}
        """Batches whose bytes are damaged, by last index and digest: their position."""
        self._short: _Short | None = None
        """Made by another thread, for ``forget``."""
        self.moved = 0
        """So often did a batch that was there already get another place, or none."""

    @property
    def columns(self) -> Columns:
        """As of now. More may be appended; nothing else changes in it."""
        return self._columns

    @property
    def end(self) -> int:
        """Position behind the last batch."""
        return self._columns.end

    @property
    def first_available_index(self) -> PartitionLogIndex:
        """First index that is still here; 1 when nothing was removed."""
        return PartitionLogIndex(self._columns.before_index + 1)

    def begin(self, columns: Columns) -> None:
        """At start: what was found. Private to this from now on."""
        self._columns = columns
        rows = range(len(columns.last)) if LOST_OFFSET in columns.offset else ()
        for row in (row for row in rows if columns.offset[row] == LOST_OFFSET):
            columns.segment[row], columns.offset[row], columns.length[row] = NOWHERE_SEGMENT, 0, 0
            self.lose(columns.last[row], columns.digest(columns.start + row))
        self._newest = dict(zip(columns.segment, columns.last, strict=True))  # last indices ascend
        self._newest.pop(NOWHERE_SEGMENT, None)

    def append(self, ref: BatchRef, global_index: int) -> None:
        """The next one. One that is nowhere is lost, and so before other threads find it: it would be void."""
        if ref.segment == NOWHERE_SEGMENT:
            self.lose(ref.last_index, ref.digest)
        else:
            self._newest[ref.segment] = ref.last_index
        self._columns.append(ref, global_index)

    # -- finding

    def find(self, last_index: int, digest: bytes) -> BatchRef | None:
        """Where this batch is; None: not committed, damaged, void, or removed."""
        columns = self._columns
        position = self._found(columns, last_index, digest)
        return None if position is None else ref_at(columns, position)

    def holds(self, last_index: int, digest: bytes) -> bool:
        """``find`` would."""
        return self._found(self._columns, last_index, digest) is not None

    def _found(self, columns: Columns, last_index: int, digest: bytes) -> int | None:
        lost = self._lost and (last_index, digest) in self._lost
        position = None if lost else columns.find(last_index, digest)
        is_here = position is not None and columns.place(position - columns.start)[0] != NOWHERE_SEGMENT
        return position if is_here else None

    def position(self, last_index: int, digest: bytes) -> int | None:
        """Where this batch is in the order of the log, readable or not; None: not committed, or removed."""
        return self._columns.find(last_index, digest)

    def is_nowhere(self, position: int) -> bool:
        """The batch there is void, or nobody has it: there are no bytes of it. Raises IndexCompacted."""
        columns = self._columns
        return columns.place(columns.at(position))[0] == NOWHERE_SEGMENT

    def is_void(self, last_index: int, digest: bytes) -> bool:
        """It was declared void, and is still within what is here. Any thread."""
        position = self.position(last_index, digest)
        if position is None or self.is_lost(last_index, digest):
            return False
        columns = self._columns  # read behind that: what is lost no more has its place in them
        return position >= columns.start and columns.place(position - columns.start)[0] == NOWHERE_SEGMENT

    def is_in_front(self, last_index: int, digest: bytes) -> bool:
        """This is the batch that the first one here follows."""
        columns = self._columns
        return columns.before_index == last_index and columns.before_digest == digest

    def first_after(self, index: int) -> int:
        """Position of the batch that holds the record behind ``index``. Raises IndexCompacted."""
        columns = self._columns
        if index < columns.before_index:
            columns.refuse()
        return columns.through(index)

    def first_index(self, position: int) -> int:
        """Of the batch there. Raises IndexCompacted."""
        return self._columns.last_index(position - 1) + 1

    def first_at_global(self, global_index: int) -> int:
        """Position of the first batch with this global index or a higher one; 0: of the first that is here.

        Raises IndexCompacted if a batch that was removed may have had this index or a higher one.
        """
        columns = self._columns
        row = bisect_left(columns.global_index, global_index)
        if row == 0 and columns.before_index and global_index:  # what was removed had lower ones
            first = columns.global_index[0] if columns.last else 0
            known = columns.before_global  # or who knows which
            if first != global_index and not 0 < known < global_index:
                columns.refuse()
        return columns.start + row

    def last_index(self, position: int) -> PartitionLogIndex:
        """Of the batch there. Raises IndexCompacted."""
        return PartitionLogIndex(self._columns.last_index(position))

    def global_index(self, position: int) -> GlobalLogIndex:
        """Of the batch there. Raises IndexCompacted."""
        columns = self._columns
        return GlobalLogIndex(columns.global_index[columns.at(position)])

    def ref(self, position: int) -> BatchRef:
        """The batch there; its term and order are not kept. Raises IndexCompacted."""
        return ref_at(self._columns, position)

    def digest(self, position: int) -> bytes:
        """Of the batch there. Raises IndexCompacted."""
        return self._columns.digest(position)

    def run_from(self, position: int, *, through_index: int, room: int, most: int) -> int:
        """How many batches from here lie back to back in one segment and fit into ``room`` bytes, one at least.

        Raises IndexCompacted.
        """
        columns = self._columns
        row, rows = columns.at(position), len(columns.last)
        segment, end, _ = columns.place(row)
        count = 0
        while row + count < rows and count < most:
            at = row + count
            before = columns.last[at - 1] if at else columns.before_index
            there, offset, length = columns.place(at)
            if there != segment or offset != end or before >= through_index:
                break
            if count and room < length:
                break
            end += length
            room -= length
            count += 1
        return count

    def nbytes(self, start: int, stop: int) -> int:
        """Of the batches at these positions. Raises IndexCompacted."""
        columns = self._columns
        return sum(columns.lengths(columns.at(start), columns.at(stop)))

    def retaining(self, through_index: int, nbytes: int) -> int:
        """The largest index such that batches from its own on, up to ``through_index``, have so many bytes.

        Looks at the length of each of them.
        """
        columns = self._columns
        row = columns.through(through_index) - columns.start
        while row > 0 and nbytes > 0:
            some = columns.lengths(max(0, row - SUMMED), row)
            if (of_all := sum(some)) < nbytes:
                nbytes -= of_all
                row -= len(some)
                continue
            while nbytes > 0:
                row -= 1
                nbytes -= columns.place(row)[2]
        return columns.last_index(columns.start + row - 1) + 1

    # -- removing

    def newest_in(self, segment: int) -> int:
        """No committed batch in this segment ends behind this index; 0: there is none in it."""
        return self._newest.get(segment, 0)

    def shortening(self, segments: Iterable[int]) -> Callable[[], None] | None:
        """A job, for another thread, after which ``forget`` of these does not have to copy. None: there is little."""
        columns, position = self._columns, self._behind(segments)
        if position == columns.start or columns.end - position <= STEP:
            return None
        end = columns.end

        def run() -> None:
            self._short = _Short(columns, columns.part(position, end, step=STEP))

        return run

    def forget(self, segments: Collection[int]) -> None:
        """These segments go, and with them every batch up to the last one that is in them."""
        columns, position = self._columns, self._behind(segments)
        for segment in segments:
            self._newest.pop(segment, None)
        short, self._short = self._short, None
        if position > columns.start:
            if short is not None and short.of is columns and short.left.start == position:
                short.left.take(columns, columns.end)
                self._columns = short.left
            else:
                self._columns = columns.part(position, columns.end)
            self._lost = {key: each for key, each in self._lost.items() if each >= position}

    def begin_behind(self, position: int) -> None:
        """The batch there goes, and all in front of it; their segments do when nothing that is here is in them."""
        if position >= self._columns.start:
            self._columns = self._columns.part(position + 1, self._columns.end)
            self._lost = {key: each for key, each in self._lost.items() if each > position}
            self.moved += 1  # of where the log begins its places do not tell yet

    def _behind(self, segments: Iterable[int]) -> int:
        """Position behind the last batch that is in these."""
        return self._columns.through(max((self._newest.get(segment, 0) for segment in segments), default=0))

    # -- damage

    @property
    def lost(self) -> Mapping[tuple[int, bytes], int]:
        """Positions of damaged batches, by last index and digest."""
        return self._lost

    def is_lost(self, last_index: int, digest: bytes) -> bool:
        """Damaged, and not yet written again."""
        return bool(self._lost) and (last_index, digest) in self._lost

    def lose(self, last_index: int, digest: bytes) -> None:
        """The bytes of this batch are damaged."""
        self._lost[last_index, digest] = self._columns.through(last_index - 1)

    def void(self, last_index: int, digest: bytes) -> None:
        """It counts as nothing from now on, wherever it lay; unless it has been removed."""
        self._lost.pop((last_index, digest), None)
        position = self.position(last_index, digest)
        if position is None:
            return
        self._move({self._columns.at(position): (NOWHERE_SEGMENT, 0, 0)})

    def mend(self, refs: Sequence[BatchRef]) -> None:
        """These are written; what was lost of them is read there from now on."""
        mended = {key: ref for ref in refs if (key := (ref.last_index, ref.digest)) in self._lost}
        if not mended:
            return
        for ref in mended.values():
            self._newest[ref.segment] = max(ref.last_index, self.newest_in(ref.segment))
        self._move({self._columns.at(self._lost[k]): (r.segment, r.offset, r.length) for k, r in mended.items()})
        for key in mended:  # behind that: what is nowhere, and not lost, is void to other threads
            del self._lost[key]

    def _move(self, moved: Mapping[int, tuple[int, int, int]]) -> None:
        columns = self._columns
        if len(columns.moved) > MOVED_MAX:
            columns = columns.part(columns.start, columns.end)
        self._columns = columns.with_moved(moved)
        self.moved += 1
