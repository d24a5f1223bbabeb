"""Batches between append and apply, in memory as they came: applying need not read them back and check them again.

A bounded number of bytes; what does not fit is read from the file. The loop puts in, the worker's
thread takes out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from logboom.errors import CorruptData
from partitions.log.batch import Batch

COPY_BYTES: Final = 4096
"""Smaller batches are copied out of the frame that they came in, which they would keep alive."""
HEADER_BYTES: Final = 512
"""Memory that a header alone takes."""
ORIGIN_BYTES: Final = 256
"""Memory that each origin of a mixed batch takes beside its header."""
TXN_KEY_BYTES: Final = 256
"""What a key that a transaction looks at counts for where so many bytes may be applied at once: it may take 15."""
INLINE_RECORDS_MIN: Final = 16
"""So many, at hand and with nobody waiting, are applied at once: later there would be more of them at a time."""
INLINE_RECORDS_MAX: Final = 64
"""So many are applied at once where the loop does that: of more nobody asks what they cost."""


class _Kept(NamedTuple):
    batch: Batch
    nbytes: int
    """Memory that it takes."""
    work: int
    """What applying it costs, counted as if it were bytes."""


class RecentBatches:
    """See the module. Known by their digests, which commit to content and place (I4)."""

    def __init__(self, bytes_max: int, *, headers_only: bool = False) -> None:
        """``headers_only``: whoever applies looks at no record; none is kept."""
        self._bytes_max = bytes_max
        self._headers_only = headers_only
        self._tentative: dict[bytes, _Kept] = {}
        self._tentative_bytes = 0
        self._committed: dict[bytes, _Kept] = {}
        self._put_bytes = 0
        self._taken_bytes = 0
        """Counted apart: the first is the loop's, the second the worker's."""

    def __bool__(self) -> bool:
        return bool(self._committed)

    def cost(self, digest: bytes) -> int | None:
        """What it takes to apply it, about, in bytes, if it is committed, and here."""
        kept = self._committed.get(digest)
        return None if kept is None else kept.work

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._committed

    def appended(self, batch: Batch) -> None:
        """It may be committed soon. The oldest of its kind goes if there is no room: it may have lost a conflict."""
        nbytes = HEADER_BYTES + ORIGIN_BYTES * len(batch.origins) if self._headers_only else batch.nbytes
        if nbytes > self._bytes_max:
            return
        more = _more_work(batch) if batch.header.wide and not self._headers_only else 0
        if more is None:
            return
        if self._headers_only:
            batch = Batch(batch.header, [], batch.origins)
        elif batch.nbytes < COPY_BYTES:
            batch = Batch(batch.header, [bytes(buffer) for buffer in batch.buffers], batch.origins)
        again = self._tentative.pop(batch.digest, None)
        if again is None:
            self._tentative_bytes += nbytes  # else it is in the sum
        self._tentative[batch.digest] = _Kept(batch, nbytes, nbytes + more)
        while self._tentative_bytes > self._bytes_max:
            oldest = next(iter(self._tentative))
            self._tentative_bytes -= self._tentative.pop(oldest).nbytes

    def committed(self, digest: bytes) -> None:
        """It will be applied. If there is no room it is not kept: those before it are applied first."""
        kept = self._tentative.pop(digest, None)
        if kept is None:
            return
        self._tentative_bytes -= kept.nbytes
        if digest not in self._committed and self._put_bytes - self._taken_bytes + kept.nbytes <= self._bytes_max:
            self._committed[digest] = kept
            self._put_bytes += kept.nbytes

    def take(self, digest: bytes) -> Batch | None:
        """By the one thread that applies, once."""
        kept = self._committed.pop(digest, None)
        if kept is None:
            return None
        self._taken_bytes += kept.nbytes
        return kept.batch

    def drop(self, digest: bytes) -> None:
        """It is damaged where it lies: from now on nobody here has it."""
        tentative, committed = self._tentative.pop(digest, None), self._committed.pop(digest, None)
        self._tentative_bytes -= tentative.nbytes if tentative is not None else 0
        self._put_bytes -= committed.nbytes if committed is not None else 0


def _more_work(batch: Batch) -> int | None:
    """What its commands over several keys cost beside its bytes. None: more than the loop has time for.

    As ranges of keys are that it removes: what is not here is applied on threads.
    """
    if batch.header.record_count > INLINE_RECORDS_MAX:
        return 0  # on threads as it is
    try:
        records = batch.records()
        return None if records.has_ranges else TXN_KEY_BYTES * records.txn_keys
    except CorruptData:  # whoever applies it says so
        return None
