"""Reads of a few keys on the event loop: two hops between threads cost one more than all else (docs/decisions/0014)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from logboom.commands import Value
from logboom.state_machine import Machine, Position
from ports.clock import Clock

KEYS_MAX: Final = 16
S_MAX: Final = 0.002
AGAIN_S: Final = 1.0
"""One that took longer waited for a disk, or the loop has others to share with: threads, for so long."""


class AtHand:
    """Whether one node may read on its loop now.

    Whatever its partitions: a slow disk holds the loop for one read a second.
    """

    def __init__(self, clock: Clock, *, enabled: bool) -> None:
        self._clock = clock
        self._enabled = enabled
        self._from = -1e9

    def get(self, machine: Machine, keys: Sequence[bytes]) -> tuple[list[Value | None], Position] | None:
        """As ``machine.get``; None: ask it off the loop."""
        ask = getattr(machine, "get_at_once", None)
        if ask is None or not self._enabled or len(keys) > KEYS_MAX:
            return None
        began = self._clock.monotonic()
        if began < self._from:
            return None
        found: tuple[list[Value | None], Position] | None = ask(keys)
        if self._clock.monotonic() - began > S_MAX:
            self._from = began + AGAIN_S
        return found
