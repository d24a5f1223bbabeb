"""Log lines that may come again and again: because of whoever connects, or of what goes wrong for days.

Some of each are written, and how many were left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

WITHIN_S: Final = 10.0
LINES: Final = 20
"""Lines of one event within ``WITHIN_S``."""


class Seldom:
    """Writes some of one place's log lines. Events are few, and their names are the node's own."""

    def __init__(self, now: Callable[[], float]) -> None:
        """``now`` in seconds."""
        self._now = now
        self._events: dict[str, tuple[float, int]] = {}
        """When the time under way began, and how often it has happened in it."""

    def say(self, write: Callable[..., Any], event: str, **what: Any) -> None:
        """``write`` it, unless enough of it was. The next line within another time says how many were ``left_out``."""
        now = self._now()
        began, times = self._events.get(event, (now, 0))
        left_out = max(0, times - LINES)
        if now - began >= WITHIN_S:
            began, times = now, 0
        self._events[event] = began, times + 1
        if times < LINES:
            write(event, **what, **({"left_out": left_out} if left_out and not times else {}))
