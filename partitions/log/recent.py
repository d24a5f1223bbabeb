"""Batches between append and apply, in memory as they came: applying need not read them back and check them again.

A bounded number of bytes; what does not fit is read from the file. The loop puts in, the worker's
thread takes out.
"""

from __future__ import annotations

from typing import Final

from logboom.errors import CorruptData
from partitions.log.batch import Batch

COPY_BYTES: Final = 4096
"""Smaller batches are copied out of the frame that they came in, which they would keep alive."""
HEADER_BYTES: Final = 512
"""Of memory, for a header alone."""
ORIGIN_BYTES: Final = 256
"""Of memory, for each origin of a mixed batch beside its header."""


class RecentBatches:
    """See the module. Known by their digests, which commit to content and place (I4)."""

    def __init__(self, bytes_max: int, *, headers_only: bool = False) -> None:
        """``headers_only``: whoever applies looks at no record; none is kept."""
        self._bytes_max = bytes_max
        self._headers_only = headers_only
        self._tentative: dict[bytes, Batch] = {}
        self._tentative_bytes = 0
        self._committed: dict[bytes, Batch] = {}
        self._put_bytes = 0
        self._taken_bytes = 0
        """Counted apart: the first is the loop's, the second the worker's."""

    def __bool__(self) -> bool:
        return bool(self._committed)

    def cost(self, digest: bytes) -> int | None:
        """What it takes here, about, if it is committed, and here."""
        batch = self._committed.get(digest)
        return None if batch is None else self._cost(batch)

    def _cost(self, batch: Batch) -> int:
        return HEADER_BYTES + ORIGIN_BYTES * len(batch.origins) if self._headers_only else batch.nbytes

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._committed

    def appended(self, batch: Batch) -> None:
        """It may be committed soon. The oldest of its kind goes if there is no room: it may have lost a conflict."""
        cost = self._cost(batch)
        if cost > self._bytes_max or (batch.header.wide and not self._headers_only and _takes_time(batch)):
            return
        if self._headers_only:
            batch = Batch(batch.header, [], batch.origins)
        elif batch.nbytes < COPY_BYTES:
            batch = Batch(batch.header, [bytes(buffer) for buffer in batch.buffers], batch.origins)
        again = self._tentative.pop(batch.digest, None)
        if again is None:
            self._tentative_bytes += cost  # else it is in the sum
        self._tentative[batch.digest] = batch
        while self._tentative_bytes > self._bytes_max:
            oldest = next(iter(self._tentative))
            self._tentative_bytes -= self._cost(self._tentative.pop(oldest))

    def committed(self, digest: bytes) -> None:
        """It will be applied. If there is no room it is not kept: those before it are applied first."""
        batch = self._tentative.pop(digest, None)
        if batch is None:
            return
        cost = self._cost(batch)
        self._tentative_bytes -= cost
        if digest not in self._committed and self._put_bytes - self._taken_bytes + cost <= self._bytes_max:
            self._committed[digest] = batch
            self._put_bytes += cost

    def take(self, digest: bytes) -> Batch | None:
        """By the one thread that applies, once."""
        batch = self._committed.pop(digest, None)
        if batch is not None:
            self._taken_bytes += self._cost(batch)
        return batch

    def drop(self, digest: bytes) -> None:
        """It is damaged where it lies: from now on nobody here has it."""
        tentative, committed = self._tentative.pop(digest, None), self._committed.pop(digest, None)
        self._tentative_bytes -= self._cost(tentative) if tentative is not None else 0
        self._put_bytes -= self._cost(committed) if committed is not None else 0


def _takes_time(batch: Batch) -> bool:
    """It removes ranges of keys, more than the loop has time for: what is not here is applied on threads."""
    try:
        return batch.records().has_ranges
    except CorruptData:  # whoever applies it says so
        return True
