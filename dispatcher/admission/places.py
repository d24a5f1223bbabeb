"""Places of a node: one principal has half of them at most, so that there are some for others."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from logboom.errors import QuotaExceeded

RETRY_AFTER_S: Final = 1.0


class Places:
    """Places of one kind on one node. ``what`` takes them, for messages."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._of: dict[Hashable, int] = {}
        self.taken = 0

    def check(self, who: Hashable, more: int, *, most: int) -> None:
        """There is room for so many more; for more than there may be while less is taken. Raises QuotaExceeded."""
        mine = self._of.get(who, 0)
        for whose, used, limit in (("for you", mine, max(1, most // 2)), ("at this node", self.taken, most)):
            if used >= limit or used + more > limit >= more:
                raise QuotaExceeded(
                    f"{used} {self._what} {whose}, and {more} more are too many",
                    limit=limit,
                    used=used,
                    retry_after=RETRY_AFTER_S,
                )

    def take(self, who: Hashable, count: int) -> None:
        """So many; below 0: they are given back."""
        self.taken += count
        left = self._of.get(who, 0) + count
        if left:
            self._of[who] = left
        else:
            self._of.pop(who, None)
