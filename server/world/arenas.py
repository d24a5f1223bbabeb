"""How many heaps the C library keeps for the threads of a node."""

from __future__ import annotations

import ctypes
from typing import Final

M_ARENA_MAX: Final = -8
"""See mallopt(3)."""
ARENAS: Final = 2


def share_arenas() -> bool:
    """Threads share two heaps; False where the C library is not glibc, which has one for each thread.

    Whoever reads a journal's file of 16 MiB leaves as much in the heap of its thread for the next time: with a heap
    each, a node whose threads take turns at it grew by that much for each of them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(M_ARENA_MAX, ARENAS) == 1
