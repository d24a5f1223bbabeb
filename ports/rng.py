"""Randomness for timeouts and identities; never inside a state machine."""

from __future__ import annotations

from typing import Protocol


class Rng(Protocol):
    """The part of ``random.Random`` that logboom uses."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...

    def randbytes(self, n: int) -> bytes:
        """``n`` random bytes."""
        ...
