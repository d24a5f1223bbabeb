"""A node that hears of no leader: others may, so whoever waits here for what was committed since is sent to them.

Until then it waits as before: an election is over sooner, and where nobody leads no other node knows more.

One that does hear of a leader, and that more is committed than it has, but has come by none of it for as long (it is to
be given a snapshot, or its disk hangs), is of no more use to them.
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
    """Since when nobody leads, or nothing new comes, and who waits for something newer meanwhile."""

    def __init__(self, clock: Clock, settings: RaftSettings) -> None:
        self._clock = clock
        self._after_s = ELECTIONS * max(settings.election_max_ms, settings.election_patience_ms) / 1000
        self._since: float | None = None
        """None: somebody leads, and what is committed comes, or nobody has looked yet."""
        self._behind = False
        """Somebody leads, and what is committed does not come."""
        self._stuck: float | None = None
        """Since when it was seen to have heard of more than it has, and to have no more than ``_applied``."""
        self._applied = -1
        """What it had when it was looked at last, as a Raft index."""
        self._looked: float | None = None
        """When somebody did, the last time."""
        self._waiting: dict[asyncio.Future[Any], None] = {}
        """In the order in which they came."""

    def notice(self, leader: NodeId | None, *, committed: int = 0, applied: int = 0) -> None:
        """Somebody looks, now and then: ``committed`` has been heard of, and ``applied`` is here, in Raft indices."""
        now = self._clock.monotonic()
        stood = self._looked is not None and now - self._looked > self._after_s / 2
        if applied >= committed:
            self._stuck = None
        elif self._stuck is None or applied != self._applied or stood:  # while it stood still itself nothing could come
            self._stuck = now
        self._applied, self._looked = applied, now
        stuck_s = 0.0 if self._stuck is None else now - self._stuck
        was_behind, self._behind = self._behind, leader is not None and stuck_s >= self._after_s
        if leader is not None:
            self._since = self._stuck if self._behind else None
        elif self._since is None or was_behind:
            self._since = now
        error = self._error()
        if error is not None:
            for each in self._waiting:
                if not each.done():
                    each.set_exception(error)

    @property
    def ms(self) -> int:
        """For so long; 0: somebody leads, and what is committed comes."""
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
        self._waiting[waiting] = None
        try:
            yield
        finally:
            self._waiting.pop(waiting, None)

    def _error(self) -> Unavailable | None:
        silent_s = 0.0 if self._since is None else self._clock.monotonic() - self._since
        if self._since is None or silent_s < self._after_s:
            return None
        heard = "come by nothing of what is committed" if self._behind else "heard of no leader"
        return Unavailable(
            f"this node has {heard} for {silent_s:.0f} s, and others may have: ask another", retry_after=RETRY_AFTER_S
        )
