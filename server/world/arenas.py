"""What the C library keeps of freed memory: how many heaps for the threads of a node, and how much in each."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from logboom.types import MIB

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
"""See mallopt(3)."""
ARENAS: Final = 2
LARGE_BYTES: Final = 8 * MIB
"""What is as large is given back at once: more than any frame or batch, less than a journal's file."""
LIST_BYTES: Final = MIB
"""LMDB has a list of so much, and one of twice that, for every file; hardly a page of them is ever touched."""
SPARE_BYTES: Final = 32 * MIB
"""Free memory that a heap keeps for what is smaller."""


def share_arenas() -> bool:
    """Threads share two heaps, in which nothing large lies; False where the C library is not glibc.

    Whoever reads a journal's file of 16 MiB leaves as much in the heap of its thread for the next time: with a heap
    each, a node whose threads take turns at it grew by that much for each of them.
    """
    wanted = ((M_ARENA_MAX, ARENAS), (M_MMAP_THRESHOLD, LARGE_BYTES), (M_TRIM_THRESHOLD, SPARE_BYTES))
    return all(_mallopt(name, value) for name, value in wanted)


class Lists:
    """Where LMDB's lists of pages lie, of the files that are opened in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening = 0
        """Threads within ``apart``."""

    @contextmanager
    def apart(self) -> Iterator[None]:
        """While a file is opened: its lists do not lie in a heap, on pages that have been used before.

        That was 144 KB for each partition. If it were always so, large frames would be mapped anew, one by one, and
        bulk writes of large values a sixth slower.
        """
        with self._lock:
            self._opening += 1
            _mallopt(M_MMAP_THRESHOLD, LIST_BYTES)
        try:
            yield
        finally:
            with self._lock:
                self._opening -= 1
                if not self._opening:
                    _mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def _mallopt(name: int, value: int) -> bool:
    call = getattr(ctypes.CDLL(None), "mallopt", None)
    return call is not None and call(name, value) == 1
