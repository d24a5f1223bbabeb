"""Where every committed batch of a partition is, column by column: the k-th entry is the k-th committed batch.

Written on the loop, read by any thread: a reader goes by the length of the last column to be
appended to. About 50 bytes per batch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from logboom.types import DIGEST_BYTES, NO_DIGEST, GlobalLogIndex, PartitionLogIndex, Term
from partitions.segment import BatchRef


class Committed:
    """See the module."""

    def __init__(self) -> None:
        self._last = array("Q")
        self._global = array("Q")
        self._segment = array("I")
        self._offset = array("Q")
        self._length = array("I")
        self._digests = bytearray()
        self._lost: dict[tuple[int, bytes], int] = {}
        """Batches whose bytes are damaged, by last index and digest: their position."""

    def __len__(self) -> int:
        return len(self._last)

    def append(self, ref: BatchRef, global_index: int) -> None:
        """The next one."""
        self._global.append(global_index)
        self._segment.append(ref.segment)
        self._offset.append(ref.offset)
        self._length.append(ref.length)
        self._digests += ref.digest
        self._last.append(ref.last_index)

    # -- finding

    def find(self, last_index: int, digest: bytes) -> BatchRef | None:
        """Where this batch is; None: not committed, or damaged."""
        if self._lost and (last_index, digest) in self._lost:
            return None
        position = bisect_left(self._last, last_index)
        if position < len(self._last) and self._last[position] == last_index and self.digest(position) == digest:
            return self.ref(position)
        return None

    def first_after(self, index: int) -> int:
        """Position of the batch that holds the record behind ``index``."""
        return bisect_left(self._last, index + 1)

    def first_index(self, position: int) -> int:
        """Of the batch there."""
        return self._last[position - 1] + 1 if position else 1

    def global_index(self, position: int) -> GlobalLogIndex:
        """Of the batch there."""
        return GlobalLogIndex(self._global[position])

    def ref(self, position: int) -> BatchRef:
        """The batch there; its term and order are not kept."""
        return BatchRef(
            PartitionLogIndex(self.first_index(position)),
            PartitionLogIndex(self._last[position]),
            self.digest(position),
            self.digest(position - 1) if position else NO_DIGEST,
            Term(0),
            self._segment[position],
            self._offset[position],
            self._length[position],
            0,
        )

    def digest(self, position: int) -> bytes:
        """Of the batch there."""
        return bytes(self._digests[position * DIGEST_BYTES : (position + 1) * DIGEST_BYTES])

    def run_from(self, position: int, *, through_index: int, room: int, most: int) -> int:
        """How many batches from here lie back to back in one segment and fit into ``room`` bytes, one at least."""
        segment, end = self._segment[position], self._offset[position]
        count = 0
        while position + count < len(self._last) and count < most:
            at = position + count
            before = self._last[at - 1] if at else 0
            if self._segment[at] != segment or self._offset[at] != end or before >= through_index:
                break
            if count and room < self._length[at]:
                break
            end += self._length[at]
            room -= self._length[at]
            count += 1
        return count

    def nbytes(self, start: int, stop: int) -> int:
        """Of the batches at these positions."""
        return sum(self._length[start:stop])

    # -- damage

    def is_lost(self, last_index: int, digest: bytes) -> bool:
        """Damaged, and not yet written again."""
        return bool(self._lost) and (last_index, digest) in self._lost

    def lose(self, last_index: int, digest: bytes) -> None:
        """The bytes of this batch are damaged."""
        self._lost[last_index, digest] = bisect_left(self._last, last_index)

    def mend(self, refs: Sequence[BatchRef]) -> None:
        """These are written; what was lost of them is read there from now on."""
        for ref in refs if self._lost else ():
            position = self._lost.pop((ref.last_index, ref.digest), None)
            if position is not None:
                # A reader in another thread that sees half of it finds no batch there, and asks once more.
                self._segment[position], self._offset[position] = ref.segment, ref.offset
                self._length[position] = ref.length
