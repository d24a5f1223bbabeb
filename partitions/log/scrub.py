"""Scrubbing a partition's log: every committed batch that is durable is read again and compared with its digest (I4).

Through a file of its own, so that readers' files stay open. What compaction removes meanwhile is passed over.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final, NamedTuple

from logboom.errors import CorruptData, IndexCompacted
from partitions.log.batch import parse_batch
from partitions.log.committed import Committed
from partitions.log.reading import SegmentRemoved, damaged_batch
from partitions.log.segment import BatchRef
from ports.disk import File
from ports.scrub import AGAIN, PIECE_BYTES, UNREADABLE, Piece, Pieces

BATCHES_MAX: Final = 4096
"""Looked at in one piece."""


class _Bad(NamedTuple):
    """A batch that is damaged, and why."""

    ref: BatchRef
    why: str
    unread: bool = False


class _OneFile:
    """The segment that is being read."""

    def __init__(self, open_file: Callable[[int], File]) -> None:
        self._open_file = open_file
        self._file: File | None = None
        self._segment = 0

    def of(self, segment: int) -> File:
        """Raises SegmentRemoved, FileNotFoundError."""
        if self._file is None or self._segment != segment:
            self.close()
            self._file, self._segment = self._open_file(segment), segment
        return self._file

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def scrub_batches(
    committed: Committed, *, through: Callable[[], int], open_file: Callable[[int], File], name: Callable[[int], str]
) -> Pieces:
    """Batches from the first on up to ``through()``, as of when they are reached. ``name``: a segment, for people."""
    file = _OneFile(open_file)
    position = committed.columns.start
    try:
        while True:
            position = max(position, committed.columns.start)
            try:
                if position >= committed.end:
                    return
                if committed.is_nowhere(position):
                    if committed.last_index(position) > through():
                        return
                    position += 1
                    continue
                count = committed.run_from(position, through_index=through(), room=PIECE_BYTES, most=BATCHES_MAX)
                refs = [committed.ref(at) for at in range(position, position + count)]
                if not refs:
                    return
                found = _check(file, refs, name)
                if any(bad.unread for bad in found):
                    yield AGAIN
                    found = _check(file, refs, name)
            except (IndexCompacted, SegmentRemoved):
                position = max(position, _behind(committed, position))
                continue
            yield Piece(sum(ref.length for ref in refs))
            for ref, why, _ in found:
                # Whoever has lost it already has it fetched; whoever has mended it reads it elsewhere.
                if not committed.is_lost(ref.last_index, ref.digest) and _is_there(committed, ref):
                    yield Piece(0, damaged_batch(ref, name(ref.segment), why))
            position += count
    finally:
        file.close()


def _check(file: _OneFile, refs: list[BatchRef], name: Callable[[int], str]) -> list[_Bad]:
    """Those that are damaged. A sector that cannot be read is damage, and so is a file that is gone."""
    segment, start, end = refs[0].segment, refs[0].offset, refs[-1].offset + refs[-1].length
    try:
        whole = memoryview(file.of(segment).read_anew(offset=start, length=end - start))
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        if len(refs) == 1:
            return [_Bad(refs[0], f"cannot be read: {error}", unread=error.errno == errno.EIO)]
        return [bad for ref in refs for bad in _check(file, [ref], name)]
    found = []
    for ref in refs:
        try:
            if parse_batch(whole[ref.offset - start : ref.offset - start + ref.length]).digest != ref.digest:
                found.append(_Bad(ref, "is not the batch that the parent log committed"))
        except CorruptData as error:
            found.append(_Bad(ref, str(error)))
    return found


def _is_there(committed: Committed, ref: BatchRef) -> bool:
    """It is still read from the place that was looked at."""
    now = committed.find(ref.last_index, ref.digest)
    return now is not None and (now.segment, now.offset) == (ref.segment, ref.offset)


def _behind(committed: Committed, position: int) -> int:
    """Where to go on when what was to be read has been removed, be it known to ``committed`` yet or not."""
    try:
        return position + committed.run_from(position, through_index=1 << 62, room=1 << 62, most=1 << 30)
    except IndexCompacted:
        return committed.columns.start
