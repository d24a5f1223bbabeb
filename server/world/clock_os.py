"""The real clock (ports.clock)."""

from __future__ import annotations

import time
from typing import Final

CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""One that goes on while the machine is suspended: what was heard before is as old as it is (`max_staleness`)."""


class OsClock:
    """Monotonic and wall time of the operating system."""

    @staticmethod
    def monotonic() -> float:
        """See Clock."""
        return time.clock_gettime(CLOCK)

    @staticmethod
    def wall_ms() -> int:
        """See Clock."""
        return time.time_ns() // 1_000_000
