"""How much of this client is on its way to a partition at once, once a node has refused some of it, or was late.

As much as the client may have under way at all, until then. A refusal, or an answer that took a third of its request's
time, halves what may be on its way; answers widen it again, first quickly, then by one request per round (TCP Reno's
slow start and congestion avoidance: Jacobson, 1988). What has no room waits in the client, first come, first served:
a refused request costs a node as much as reading it, and one that is too late all that it costs, and the node has
better things to do. It cannot know how long a request lay in the buffers on the way to it; the client does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from logboom.client.parts import Budget
from logboom.errors import LogboomError, Overloaded, QuotaExceeded

PATIENCE: Final = 0.5
"""Share of a request's time that is spent at most before it is sent: what leaves later would hardly be answered in
time."""
LATE: Final = 0.3
"""An answer that took so much of the time that was left when its request was sent came late. Early enough to know it:
when answers take most of their time, those behind them are on their way already, and half of them take all of it."""
KEPT_MAX: Final = 1024
"""Partitions of which something is remembered though nothing is on its way to them."""


class Window:
    """How much may be on its way to one partition, or to the node that leads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.budget = Budget(most, self._in_vain)
        self._threshold = float(most)
        self._quiet_until = -math.inf
        """One refusal of a round says all that there is to be said of it."""
        self._refusal: Overloaded | QuotaExceeded | None = None

    def refused(self, error: Overloaded | QuotaExceeded, now: float) -> None:
        """A node has refused something of it."""
        self._refusal = error
        self.narrow(now, float(error.fields.get("retry_after") or 0.0))

    def narrow(self, now: float, round_s: float) -> None:
        """Half of what is on its way is enough; what is known of it within a round says the same again."""
        if now >= self._quiet_until:
            self._quiet_until = now + round_s
            self._threshold = self.budget.limit = max(1.0, self.budget.used / 2)

    def answered(self, size: int) -> None:
        """So much was taken, and is about to be given back."""
        limit = self.budget.limit
        if limit < self._most:
            limit += size if limit < self._threshold else size * size / max(limit, size)
            self.budget.limit = min(limit, self._most)

    def _in_vain(self) -> LogboomError:
        if self.budget.limit == self._most:
            return self.budget.too_late()
        refusal = self._refusal
        said, fields = (refusal.message, refusal.fields) if refusal is not None else ("answers come too late", {})
        return Overloaded(f"{said}; others of this client went first", **fields)


class Pace:
    """All windows of a client."""

    def __init__(self, most: int) -> None:
        """``most`` bytes are on their way at any time, whatever a node says."""
        self._most = most
        self._windows: dict[int | None, Window] = {}
        self._look_at = KEPT_MAX

    async def enter(self, partitions: Iterable[int], size: int, *, until: float) -> list[Window]:
        """Wait for room at all of them; what is given back goes to ``leave``. Raises Overloaded, ``not_applied``."""
        taken: list[Window] = []
        try:
            for key in (None, *sorted(partitions)):  # in this order, so that no two wait for each other
                window = self._windows.get(key)
                if window is None:
                    if len(self._windows) >= self._look_at:
                        self._forget_idle()
                    window = self._windows[key] = Window(self._most)
                if not window.budget.try_take(size):
                    await window.budget.take(size, deadline=until)
                taken.append(window)
        except BaseException:
            self.leave(taken, size)
            raise
        return taken

    def _forget_idle(self) -> None:
        """Partitions come and go; what was refused at one of so many is found out again."""
        self._windows = {key: each for key, each in self._windows.items() if key is None or not each.budget.idle}
        self._look_at = max(KEPT_MAX, 2 * len(self._windows))

    def leave(self, windows: Iterable[Window], size: int) -> None:
        """Give back what was not answered."""
        for window in windows:
            window.budget.give(size)

    def answered(self, windows: Iterable[Window], size: int, *, sent: float, now: float, deadline: float) -> None:
        """Give back what was, or what ended at its deadline."""
        node, *partitions = windows
        if now - sent > (deadline - sent) * LATE:
            for window in partitions:  # of these one may be slow, and the others not
                window.narrow(now, now - sent)
        else:
            for window in (node, *partitions):
                window.answered(size)
        self.leave(windows, size)

    def refused(self, error: Overloaded | QuotaExceeded, now: float) -> None:
        """A node has refused an attempt."""
        window = self._windows.get(error.fields.get("partition_id"))
        if window is not None:
            window.refused(error, now)


class Room:
    """One request's, within what this client may have under way, and what a node takes of it.

    As a context: taken, and given back when the request has its outcome. It may be lent in between.
    """

    def __init__(
        self, pace: Pace, budget: Budget, clock: Callable[[], float], *, partitions: Iterable[int], size: int
    ) -> None:
        self._pace, self._budget, self._clock = pace, budget, clock
        self._partitions, self._size = list(partitions), size
        self._windows: list[Window] | None = None
        self._taken_at = 0.0

    @property
    def held(self) -> bool:
        """There is room for the request."""
        return self._windows is not None

    async def take(self, *, until: float) -> None:
        """Wait for it. Raises Overloaded or DeadlineExceeded, ``not_applied``."""
        windows = await self._pace.enter(self._partitions, self._size, until=until)
        try:
            await self._budget.take(self._size, deadline=until)
        except BaseException:
            self._pace.leave(windows, self._size)
            raise
        self._windows, self._taken_at = windows, self._clock()

    def give(self) -> None:
        """Back, for a request that was not answered; without any, nothing."""
        windows, self._windows = self._windows, None
        if windows is not None:
            self._pace.leave(windows, self._size)
            self._budget.give(self._size)

    def answered(self, *, deadline: float) -> None:
        """Back, for one that was, or that ended at its deadline."""
        windows, self._windows = self._windows, None
        if windows is not None:
            self._pace.answered(windows, self._size, sent=self._taken_at, now=self._clock(), deadline=deadline)
            self._budget.give(self._size)
