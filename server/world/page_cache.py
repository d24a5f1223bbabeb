"""What files were written last stays in the page cache, for whoever reads it soon; what is older is given back.

A log is written once and seldom read, so left alone it fills all memory that nobody else asks for. Where that memory
is new to the machine, as in a virtual one whose host takes back what lies free, writing costs four times as much
(docs/performance.md), and elsewhere it pushes out pages that are needed again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final, NamedTuple

from logboom.types import MIB

CHUNK_BYTES: Final = MIB
"""What is given back at a time, at least, of a file that grows faster than others make it the oldest.

Smaller ranges count, too: a thousand files that have grown by less each hold as much as all else together.
"""
FOLIO_BYTES: Final = 4 * MIB
"""The kernel drops only what lies in the range as a whole: its larger pages may begin before it."""


class _Place(NamedTuple):
    """Where a range begins."""

    path: Path
    start: int


class PageCache:
    """Keeps the newest ``keep_bytes`` of a disk's files in the page cache, and gives back the rest. Any thread."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._lock = threading.Lock()
        self._ends: OrderedDict[_Place, int] = OrderedDict()
        """Of all that is kept, range by range, where each ends; which grew last comes last."""
        self._growing: dict[Path, _Place] = {}
        """Those of them that are less than a chunk: what the file has next belongs to it."""
        self._bytes = 0
        self._open: dict[Path, int] = {}
        """Descriptors of files that are still written to: to open each again takes as long as the advice."""

    def synced(self, path: Path, start: int, end: int, *, fd: int) -> None:
        """What a file has from ``start``, where the last call for it ended, to ``end`` is on the disk, too.

        ``fd`` is open on it until ``closed``.
        """
        if end <= start:
            return
        old: list[tuple[_Place, int]] = []
        with self._lock:
            self._open[path] = fd
            place = self._growing.get(path) or _Place(path, start)
            self._bytes += end - self._ends.pop(place, start)
            self._ends[place] = end
            if end - place.start < CHUNK_BYTES:
                self._growing[path] = place
            else:
                self._growing.pop(path, None)
            while self._bytes > self._keep_bytes:
                old.append(self._oldest())
        for range_ in old:
            _give_back(*range_, self._open.get(range_[0].path))

    def closed(self, path: Path, fd: int) -> None:
        """It is about to be. A thread that has just looked it up may give advice about whatever is opened next."""
        with self._lock:
            if self._open.get(path) == fd:
                del self._open[path]

    def _oldest(self) -> tuple[_Place, int]:
        place, end = self._ends.popitem(last=False)
        self._bytes -= end - place.start
        if self._growing.get(place.path) == place:
            del self._growing[place.path]
        return place, end


def _give_back(place: _Place, end: int, known: int | None) -> None:
    start = max(0, place.start - FOLIO_BYTES)
    with contextlib.suppress(OSError):  # removed or renamed meanwhile; advice changes nothing that anybody relies on
        fd = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC) if known is None else known
        try:
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)
        finally:
            if known is None:
                os.close(fd)
