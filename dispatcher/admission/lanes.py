"""Who stands in one lane for admission, and in which order: requests, and the queue of each principal. Sans-io."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from dispatcher.admission.admission import Ticket
from dispatcher.admission.budgets import Parts, Refusal
from logboom.errors import LogboomError
from logboom.types import PartitionId

REQUESTS_LOOKED_AT: Final = 4
"""Requests of one principal that are looked at in one go: what is passed, however many wait, is found cheaply."""
STALE_KEPT: Final = 64

LaneKey = PartitionId | str | None
"""A partition, a principal that is faster than it may be, or (None) the node."""


class Waiting:
    """One request that waits. ``admitted`` or ``failed`` is called once."""

    __slots__ = (
        "admitted",
        "applies",
        "deadline",
        "failed",
        "lane",
        "nbytes",
        "number",
        "over",
        "owner",
        "parts",
        "paused",
        "principal",
        "refusal",
        "reserved",
        "seat",
        "since",
        "until",
    )

    def __init__(
        self,
        *,
        parts: Parts,
        nbytes: int,
        principal: str,
        owner: Hashable,
        until: float,
        deadline: float,
        since: float,
        refusal: Refusal,
        admitted: Callable[[Ticket], None],
        failed: Callable[[LogboomError], None],
        paused: Callable[[PartitionId], LogboomError | None] = lambda _: None,
        applies: Callable[[], bool] = lambda: True,
    ) -> None:
        """``until`` it waits, ``deadline`` is the request's; ``owner``: whoever may disconnect.

        ``paused``: what it is told when one of its partitions applies nothing; None: it is answered before it would be.
        ``applies``: it is answered when it is applied, and not before.
        """
        self.parts, self.nbytes = parts, nbytes
        self.principal, self.owner = principal, owner
        self.until, self.deadline, self.since = min(until, deadline), deadline, since
        self.refusal = refusal
        self.admitted, self.failed, self.paused, self.applies = admitted, failed, paused, applies
        self.lane: LaneKey = None
        self.number = 0
        """In the order in which they came."""
        self.reserved: list[PartitionId | None] = []
        """Gates (None: the node's) that were asked to keep something back for it."""
        self.seat = 0
        """Changes with its place: whatever still names an older one is stale."""
        self.over = False


class LaneQueue:
    """One principal's requests in one lane: by when they have to be in, and by when they came."""

    def __init__(self) -> None:
        self.live = 0
        self._due: list[tuple[float, int, Waiting]] = []
        self._came: deque[tuple[int, Waiting]] = deque()

    def put(self, waiting: Waiting) -> None:
        """One more waits."""
        self.live += 1
        heapq.heappush(self._due, (waiting.until, waiting.seat, waiting))
        self._came.append((waiting.seat, waiting))
        if len(self._due) > 2 * self.live + STALE_KEPT:
            self._due = [each for each in self._due if each[2].seat == each[1]]
            heapq.heapify(self._due)
        if len(self._came) > 2 * self.live + STALE_KEPT:
            self._came = deque(each for each in self._came if each[1].seat == each[0])

    def candidates(self, overdue: float) -> list[Waiting]:
        """Whoever has waited the longest, if since ``overdue`` or before; some of those that have to be in first."""
        while self._came and self._came[0][1].seat != self._came[0][0]:
            self._came.popleft()
        first = [self._came[0][1]] if self._came and self._came[0][1].since <= overdue else []
        some: list[tuple[float, int, Waiting]] = []
        while self._due and len(some) < REQUESTS_LOOKED_AT:
            found = heapq.heappop(self._due)
            if found[2].seat == found[1]:
                some.append(found)
        for each in some:
            heapq.heappush(self._due, each)
        return first + [waiting for _, _, waiting in some if waiting not in first]


class Lane:
    """Those that lack the same gate."""

    def __init__(self) -> None:
        self.queues: dict[str, LaneQueue] = {}
        self.holds: dict[str | None, Waiting] = {}
        """What nothing passes any more; by the principal that it holds up, None: everybody."""


class Later:
    """Lanes that time opens, and when."""

    def __init__(self) -> None:
        self._at: dict[LaneKey, float] = {}
        self._heap: list[tuple[float, int, LaneKey]] = []
        self._numbers = itertools.count()

    def look_at(self, key: LaneKey, when: float) -> None:
        """Then, unless it is looked at before."""
        if when < self._at.get(key, math.inf):
            self._at[key] = when
            heapq.heappush(self._heap, (when, next(self._numbers), key))
            self._tidy()

    def forget(self, key: LaneKey) -> None:
        """Nobody waits there any more."""
        self._at.pop(key, None)
        self._tidy()

    @property
    def first(self) -> float:
        """When the first one is due; infinite: none is."""
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float) -> Iterator[LaneKey]:
        """Those that are; each is given once."""
        while self._heap and self._heap[0][0] <= now:
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            self._tidy()
            yield key

    def _tidy(self) -> None:
        """The first one counts, and the others are not too many that do not."""
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if len(self._heap) > 2 * len(self._at) + STALE_KEPT:
            self._heap = [each for each in self._heap if self._at.get(each[2]) == each[0]]
            heapq.heapify(self._heap)
