"""When hosts' data were damaged last: what was committed well after that they had to write down like all others."""

from __future__ import annotations

import asyncio
from typing import Final

from raftlog.entries.entry import Route

UNDER_WAY_S: Final = 5.0
"""What had been acknowledged before the damage is committed by then."""


class Struck:
    """Of a history."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        """By host."""
        self._committed: dict[tuple[int, int], float] = {}
        """By partition and last index of a batch: when it was handed up first, anywhere."""

    def now(self, host: str) -> None:
        """Its data are damaged, or are others."""
        self._at[host] = asyncio.get_running_loop().time()

    def committed(self, route: Route) -> None:
        """A batch is handed up."""
        self._committed.setdefault((route.partition_id, route.last_index), asyncio.get_running_loop().time())

    def excused(self, route: Route) -> set[str]:
        """Hosts that may have acknowledged this one, and have it no more."""
        at = self._committed.get((route.partition_id, route.last_index), 0.0)  # in a history before: nobody knows
        return {host for host, struck in self._at.items() if at <= struck + UNDER_WAY_S}
