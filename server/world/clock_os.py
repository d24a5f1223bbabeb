"""The real clock (ports.clock)."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""One that goes on while the machine is suspended: what was heard before is as old as it is (`max_staleness`)."""


class OsClock:
    """Monotonic and wall time of the operating system."""

    monotonic = staticmethod(partial(time.clock_gettime, CLOCK))
    """See Clock. Asked so often that a function of our own around it would show in profiles."""

    @staticmethod
    def wall_ms() -> int:
        """See Clock."""
        return time.time_ns() // 1_000_000
