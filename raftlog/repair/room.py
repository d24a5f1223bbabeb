"""How much of what was fetched may be in memory alone: a disk may be slower than the link, or hang."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

UNBOUNDED: Final = 1 << 62


class Room:
    """What has come and is not on the disk yet."""

    def __init__(
        self, bytes_max: int = UNBOUNDED, hold: Callable[[Callable[[], None]], None] = lambda written: written()
    ) -> None:
        """``hold`` is given what it is to call once all that has come is on the disk."""
        self._bytes_max = bytes_max
        self._hold = hold
        self._unwritten = 0

    @property
    def left(self) -> bool:
        """Some more may come."""
        return self._unwritten < self._bytes_max

    def take(self, size: int) -> None:
        """So much has come."""
        self._unwritten += size
        self._hold(partial(self._written, size))

    def _written(self, size: int) -> None:
        self._unwritten -= size
