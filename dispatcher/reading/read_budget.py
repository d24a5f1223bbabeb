"""How much all readers of one node may hold in memory, and how many segments they may read at once. Sans-io.

Bytes and segments are admitted in one step, or neither. Whoever is admitted either reads, which ends, or has said
that it waits for its client (``Grant.park``): then it gives back as soon as somebody else needs the room. Turns go to
the earliest in the log and to whoever has waited longest, one after the other: those who read old records, however
many, keep nobody from the new ones. Whose turn it is goes on, with nobody else admitted, however much it needs.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from ports.invariant import invariant

GONE_KEPT: Final = 64


class Grant:
    """What one reader holds, or waits for. Everything here may be called again."""

    __slots__ = ("_admitted", "_budget", "_reclaim", "held", "nbytes", "segments", "waiting")

    def __init__(self, budget: ReadBudget, nbytes: int, segments: int, admitted: Callable[[], None]) -> None:
        self._budget = budget
        self.nbytes = nbytes
        self.segments = segments
        self._admitted = admitted
        self._reclaim: Callable[[], None] | None = None
        self.held = False
        self.waiting = False

    def give(self) -> None:
        """Called by the budget: it has room for this reader."""
        self.held, self.waiting = True, False
        self._admitted()

    def park(self, reclaim: Callable[[], None]) -> None:
        """What was read waits for its client. ``reclaim`` is called when it has to go: it gives all back."""
        self._reclaim = reclaim
        self._budget.parked(self)

    def read(self, nbytes: int) -> None:
        """The segments were read, and so many bytes came of it."""
        if self.held:
            self._budget.adjust(self, nbytes=nbytes, segments=0)

    def sent(self, nbytes: int) -> None:
        """So much of it is somebody else's now."""
        if self.held:
            self._budget.adjust(self, nbytes=max(0, self.nbytes - nbytes), segments=self.segments)

    def release(self) -> None:
        """All of it, or the place in the line."""
        self._budget.release(self)

    def reclaim(self) -> None:
        """Called by the budget: somebody else needs the room of what is parked."""
        back, self._reclaim = self._reclaim, None
        if back is not None:
            back()
        invariant(not self.held, "a reader kept {} bytes that were asked back", self.nbytes)


class ReadBudget:
    """Bytes and segments that all readers of one node hold, and who waits for them."""

    def __init__(self, *, bytes_max: int, segments_max: int) -> None:
        self.bytes_max = bytes_max
        self.segments_max = segments_max
        self.nbytes = 0
        self.segments = 0
        self._held: set[Grant] = set()
        self._parked: OrderedDict[Grant, None] = OrderedDict()
        """Grants that wait for their clients, the first that did first."""
        self._line: OrderedDict[Grant, None] = OrderedDict()
        """Who waits, in the order in which they came."""
        self._earliest: list[tuple[int, int, Grant]] = []
        """The same, the earliest in the log first; and some who wait no more: tens of thousands may leave at once."""
        self._by_age = False
        """The next turn is that of whoever has waited longest."""
        self._serial = itertools.count()
        self._waking = False

    @property
    def waiters(self) -> int:
        """Readers in line."""
        return len(self._line)

    @property
    def is_idle(self) -> bool:
        """There is room for what may not be needed."""
        return 2 * self.nbytes <= self.bytes_max and not self._line

    def ask(self, *, nbytes: int, segments: int, order: int, admitted: Callable[[], Any]) -> Grant:
        """``admitted`` is called once there is room, perhaps before this returns; ``order``: where it is in the log."""
        grant = Grant(self, nbytes, segments, admitted)
        grant.waiting = True
        heapq.heappush(self._earliest, (order, next(self._serial), grant))
        self._line[grant] = None
        self._wake()
        return grant

    def _fits(self, grant: Grant) -> bool:
        bytes_fit = self.nbytes + grant.nbytes <= self.bytes_max
        return not self._held or (bytes_fit and self.segments + grant.segments <= self.segments_max)

    def _wake(self) -> None:
        if self._waking:
            return  # who gives back while somebody is woken is part of the same turn
        self._waking = True
        try:
            while self._line:
                grant = next(iter(self._line)) if self._by_age else self._first()
                while not self._fits(grant) and self._parked:
                    next(iter(self._parked)).reclaim()
                if not self._fits(grant):
                    return
                self._leaves(grant)
                self._by_age = bool(self._line) and not self._by_age
                self.nbytes += grant.nbytes
                self.segments += grant.segments
                self._held.add(grant)
                grant.give()
        finally:
            self._waking = False

    def _leaves(self, grant: Grant) -> None:
        del self._line[grant]
        if len(self._earliest) > 2 * len(self._line) + GONE_KEPT:
            self._earliest = [each for each in self._earliest if each[2] in self._line]
            heapq.heapify(self._earliest)

    def _first(self) -> Grant:
        """The earliest in the log, of one at least."""
        while (grant := self._earliest[0][2]) not in self._line:
            heapq.heappop(self._earliest)
        return grant

    def parked(self, grant: Grant) -> None:
        """See Grant."""
        if grant.held:
            self._parked[grant] = None
            self._wake()

    def adjust(self, grant: Grant, *, nbytes: int, segments: int) -> None:
        """See Grant."""
        self.nbytes += nbytes - grant.nbytes
        self.segments += segments - grant.segments
        grant.nbytes, grant.segments = nbytes, segments
        invariant(self.nbytes >= 0 <= self.segments, "readers hold {} bytes, {} segments", self.nbytes, self.segments)
        self._wake()

    def release(self, grant: Grant) -> None:
        """See Grant."""
        if grant.waiting:
            grant.waiting = False
            self._leaves(grant)
            self._wake()
        self._parked.pop(grant, None)
        if grant.held:
            grant.held = False
            self._held.discard(grant)
            self.adjust(grant, nbytes=0, segments=0)
