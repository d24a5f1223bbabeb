"""Counting what happens where it happens, for whoever looks now and then: plain numbers, no locks, no clock.

A core keeps such numbers as attributes; what they are called outside is ``server.metrics``' business.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MINUTES: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
BYTES: Final = tuple(float(1 << shift) for shift in range(8, 27, 2))
"""Bounds for sizes: 256 bytes to 64 MiB."""

RECORDS: Final = (0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0)


class Buckets:
    """A histogram: one observation is a search among a few bounds and three additions. One thread at a time."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        """Each is the largest value that its bucket takes; above the last there is one more."""
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Once per group of things, never per record."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def snapshot(self) -> Counted:
        """As it is now."""
        return Counted(self.bounds, tuple(self.counts), self.total)


class Counted:
    """A histogram at one moment."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...], counts: tuple[int, ...], total: float) -> None:
        self.bounds = bounds
        self.counts = counts
        self.total = total
