"""What the C library keeps of freed memory: how many heaps for the threads of a node, and how much in each."""

from __future__ import annotations

import ctypes
from typing import Final

from logboom.types import MIB

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
"""See mallopt(3)."""
ARENAS: Final = 2
LARGE_BYTES: Final = 8 * MIB
"""What is as large is given back at once: more than any frame or batch, less than a journal's file."""
SPARE_BYTES: Final = 32 * MIB
"""Free memory that a heap keeps for what is smaller."""


def share_arenas() -> bool:
    """Threads share two heaps, in which nothing large lies; False where the C library is not glibc.

    Whoever reads a journal's file of 16 MiB leaves as much in the heap of its thread for the next time: with a heap
    each, a node whose threads take turns at it grew by that much for each of them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = ((M_ARENA_MAX, ARENAS), (M_MMAP_THRESHOLD, LARGE_BYTES), (M_TRIM_THRESHOLD, SPARE_BYTES))
    return all(mallopt(name, value) == 1 for name, value in wanted)
