"""Time. Safety never depends on it; the wall clock only labels records."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds for deadlines, wall milliseconds for timestamps."""

    def monotonic(self) -> float:
        """Seconds; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC; may jump."""
        ...
