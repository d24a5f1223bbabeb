"""How many file descriptors the process has open, and how many it may.

Counted, not guessed from the lowest number that is free: what is closed leaves holes between those that stay.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import Final

AGE_S: Final = 0.1
"""Seconds after which they are counted anew, as long as there are plenty."""
SHARE: Final = 20
"""And after so many times as long as counting took (1 to 2 us for each): it takes a twentieth of the time at most."""
PLENTY: Final = 8
"""There are plenty where this part of the limit is left beside what is asked for."""


def count_open() -> int:
    """Those of this process, now. Raises OSError where there is not one left to look."""
    with os.scandir("/proc/self/fd") as there:
        return sum(1 for _ in there) - 1  # but the one that looks


class OpenFilesCount:
    """How many descriptors the process has open, as counted lately. Any thread."""

    def __init__(
        self, *, count: Callable[[], int] = count_open, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._monotonic = monotonic
        self._counted = 0
        self._stale_at = -AGE_S

    def none_left(self, more: int) -> str | None:
        """Why it cannot have so many more open; None: it can."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        try:
            taken = self._taken(limit, more)
        except OSError as error:
            return str(error)
        return None if taken + more <= limit else f"{taken} of {limit} file descriptors are taken: see `ulimit -n`"

    def left(self) -> int | None:
        """So many more it can have open; None: any number."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        try:
            return max(0, limit - self._taken(limit, 0))
        except OSError:
            return 0

    def _taken(self, limit: int, more: int) -> int:
        now = self._monotonic()
        if now >= self._stale_at or self._counted + more + limit // PLENTY > limit:
            self._counted = self._count()
            self._stale_at = now + max(AGE_S, SHARE * (self._monotonic() - now))
        return self._counted
