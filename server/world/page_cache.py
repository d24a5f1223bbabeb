"""What files were written last stays in the page cache, for whoever reads it soon; what is older is given back.

A log is written once and seldom read, so left alone it fills all memory that nobody else asks for. Where that memory
is new to the machine, as in a virtual one whose host takes back what lies free, writing costs four times as much
(docs/performance.md), and elsewhere it pushes out pages that are needed again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from logboom.types import MIB

CHUNK_BYTES: Final = MIB
"""What is given back at a time, at least: what a file has beyond that when it is closed, the kernel evicts."""
FOLIO_BYTES: Final = 4 * MIB
"""The kernel drops only what lies in the range as a whole: its larger pages may begin before it."""


class _Range(NamedTuple):
    path: Path
    start: int
    end: int


class PageCache:
    """Of a disk's files, the newest ``keep_bytes``. Any thread."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._lock = threading.Lock()
        self._ranges: deque[_Range] = deque()
        self._bytes = 0

    def synced(self, path: Path, start: int, end: int) -> int:
        """What a file has from ``start`` to ``end`` is on the disk, too. Returns where the next call shall start."""
        if end - start < CHUNK_BYTES:
            return start
        old: list[_Range] = []
        with self._lock:
            self._ranges.append(_Range(path, start, end))
            self._bytes += end - start
            while self._bytes > self._keep_bytes:
                old.append(self._ranges.popleft())
                self._bytes -= old[-1].end - old[-1].start
        for each in old:
            _give_back(each)
        return end


def _give_back(range_: _Range) -> None:
    start = max(0, range_.start - FOLIO_BYTES)
    with contextlib.suppress(OSError):  # removed or renamed meanwhile; advice changes nothing that anybody relies on
        fd = os.open(range_.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(fd, start, range_.end - start, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
