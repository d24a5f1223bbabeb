"""The real clock (ports.clock)."""

from __future__ import annotations

import time


class OsClock:
    """Monotonic and wall time of the operating system."""

    @staticmethod
    def monotonic() -> float:
        """See Clock."""
        return time.monotonic()

    @staticmethod
    def wall_ms() -> int:
        """See Clock."""
        return time.time_ns() // 1_000_000
