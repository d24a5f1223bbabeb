"""A node that hears of no leader: others may, so whoever waits here for what was committed since is sent to them.

Until then it waits as before: an election is over sooner, and where nobody leads no other node knows more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from logboom.errors import Unavailable
from logboom.settings import RaftSettings
from logboom.types import NodeId
from ports.clock import Clock

ELECTIONS: Final = 2
"""So many of the longest: then this is none."""
RETRY_AFTER_S: Final = 0.05


class Leaderless:
    """Since when, and who is to be told."""

    def __init__(self, clock: Clock, settings: RaftSettings) -> None:
        self._clock = clock
        self._after_s = ELECTIONS * max(settings.election_max_ms, settings.election_patience_ms) / 1000
        self._since: float | None = None
        """None: somebody leads, or nobody has looked yet."""
        self._waiting: set[asyncio.Future[Any]] = set()

    def notice(self, leader: NodeId | None) -> None:
        """Somebody looks, now and then."""
        if leader is not None:
            self._since = None
            return
        if self._since is None:
            self._since = self._clock.monotonic()
        error = self._error()
        if error is not None:
            for each in self._waiting:
                if not each.done():
                    each.set_exception(error)

    @property
    def ms(self) -> int:
        """For so long; 0: somebody leads."""
        return 0 if self._since is None else max(1, int((self._clock.monotonic() - self._since) * 1000))

    @property
    def for_long(self) -> bool:
        """For longer than an election takes."""
        return self._error() is not None

    def check(self) -> None:
        """Raises Unavailable when it has been so for longer than an election takes."""
        error = self._error()
        if error is not None:
            raise error

    @contextmanager
    def ends(self, waiting: asyncio.Future[Any]) -> Iterator[None]:
        """Within the block it ends with that error, should it come to be so."""
        self._waiting.add(waiting)
        try:
            yield
        finally:
            self._waiting.discard(waiting)

    def _error(self) -> Unavailable | None:
        silent_s = 0.0 if self._since is None else self._clock.monotonic() - self._since
        if self._since is None or silent_s < self._after_s:
            return None
        return Unavailable(
            f"this node has heard of no leader for {silent_s:.0f} s, and others may have: ask another",
            retry_after=RETRY_AFTER_S,
        )
