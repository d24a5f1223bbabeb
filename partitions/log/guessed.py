"""A sum over very many rows: a guess, by some of them from all over. Sans-io."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

SUMMED: Final = 4096
"""Rows that are added up at a time."""
PLACES: Final = 64
"""Where those are, of more than so many: next to each other they may all be large, or small."""


def guessed(rows: Callable[[int, int], Sequence[int]], low: int, high: int) -> int:
    """Of those from ``low`` on and below ``high``, which ``rows`` tells; exact where they are few."""
    count, each = high - low, SUMMED // PLACES
    if count <= SUMMED:
        return sum(rows(low, high))
    places = (low + count * place // PLACES for place in range(PLACES))
    return sum(sum(rows(at, at + each)) for at in places) * count // SUMMED
