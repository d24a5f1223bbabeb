"""What a gate keeps back for a large request that waits, so that it gets in while small ones go on. Sans-io.

A request commits as a whole, so it is its admission that is split: of every chunk that is given back half is kept for
it, until it fits, and small ones have the other half. Nothing is taken before: a request that gives up has only kept
something back, and of two that lack each other's gates the one that came first looks past what is kept for the other.
"""

from __future__ import annotations

import sys
from typing import Final

Amounts = tuple[int, int, int]
"""Operations, bytes, batches."""

NOTHING_KEPT: Final[Amounts] = (0, 0, 0)
NEWCOMER: Final = sys.maxsize
"""The number of a request that does not wait: everything that is kept is kept from it."""


class Reservation:
    """What one gate keeps back for the request of that ``number``: they count up in the order in which they came."""

    __slots__ = ("_given", "_wanted", "amounts", "number")

    def __init__(self, number: int, wanted: Amounts) -> None:
        self.number = number
        self._wanted = wanted
        self._given = NOTHING_KEPT
        self.amounts = NOTHING_KEPT

    def kept_from(self, number: int) -> Amounts:
        """What another request cannot have: nothing, if that one came before."""
        return self.amounts if self.number < number else NOTHING_KEPT

    def add_half(self, given: Amounts, free: Amounts) -> None:
        """So much was given back, and so much is free now. Half of the sum, so that it is half of single ones, too."""
        before = self._given
        self._given = before[0] + given[0], before[1] + given[1], before[2] + given[2]
        self.fit(free)

    def fit(self, free: Amounts) -> None:
        """No more can be kept than is free: somebody who may have what is kept has taken of it."""
        rows = zip(self._given, self._wanted, free, strict=True)
        operations, nbytes, batches = (min(given // 2, wanted, left) for given, wanted, left in rows)
        self.amounts = operations, nbytes, batches


def with_shares(sizes: Amounts, factor: float, limits: Amounts) -> Amounts:
    """What has to be free for one of these sizes where shares leave something for the next: see ``Gate.share``."""
    slack = 1 + 1 / factor if factor else 1.0
    operations, nbytes, batches = (min(int(size * slack) + 1, limit) for size, limit in zip(sizes, limits, strict=True))
    return operations, nbytes, batches
