"""Requests that wait for admission: who is next when something is given back. Sans-io.

Each waits in the lane of the gate that it lacks (a partition's, the node's, or its principal's own), so a full
partition holds up nobody else's requests. What is given back opens a gate or, if it is a rate, time does. In a lane
principals take turns by what they were given while others waited (start-time fair queueing); of one principal's
requests the one that has to be in first goes first. What does not fit is passed by smaller ones, until it has waited
``queue_bypass_ms``: from then on nothing passes it. What is large is passed by small ones for as long as it takes: when
it is its turn, half of all that is given back is kept for it until it fits.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from dispatcher.admission.admission import Admission, Ticket
from dispatcher.admission.budgets import Parts, Refusal, Use
from dispatcher.admission.lanes import STALE_KEPT, Lane, LaneKey, LaneQueue, Later, Waiting
from dispatcher.admission.pace import GATE
from logboom.errors import DeadlineExceeded, LogboomError, Overloaded
from logboom.settings import AdmissionSettings
from logboom.types import PartitionId
from ports.invariant import invariant

PRINCIPALS_LOOKED_AT: Final = 16
"""Principals of a lane that are looked at in one go."""
LANES_LOOKED_AT: Final = 16
"""Lanes that are looked at in one go, of partitions that have their share of the node: whatever is given back there,
and nothing of their own need be, may open them."""
FINISHED_KEPT: Final = 1024
REQUEST_COST: Final = 4096
"""In bytes: what a request costs beside its own."""

LATE: Final = 1.5
"""Times what those before it have been on their way until they are applied: who waits for that and has less time left
would be answered too late."""


class WaitingRoom:
    """All that wait at one node.

    ``may_admit``: it leads, and nothing stands in the way but budgets. ``wake``: call ``serve`` soon.
    ``check`` raises what a partition that takes nothing any more answers.
    """

    def __init__(
        self,
        settings: AdmissionSettings,
        admission: Admission,
        *,
        may_admit: Callable[[], bool],
        wake: Callable[[], None],
        check: Callable[[PartitionId], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._may_admit = may_admit
        self._wake = wake
        self._check = check
        self._bypass_s = settings.queue_bypass_ms / 1000
        self._chunk_bytes = settings.queue_chunk_bytes or math.inf
        share = settings.fair_share_percent / 100
        self._factor = share / (1 - share) if share < 1 else 0.0
        self._lanes: dict[LaneKey, Lane] = {}
        self._all: dict[Waiting, None] = {}
        self._ends: list[tuple[float, int, Waiting]] = []
        self._of: dict[str, Use] = {}
        """By principal; ``operations`` counts requests."""
        self._owned: dict[Hashable, dict[Waiting, None]] = {}
        self._dirty: dict[LaneKey, None] = {}
        self._shares: dict[LaneKey, None] = {}
        """Partitions' lanes where somebody waits for a share of the node: what others give back makes it larger."""
        self._later = Later()
        self._seats = itertools.count(1)
        self._virtual = 0.0
        self._finished: dict[str, float] = {}
        self.nbytes = 0
        self.entered = 0
        self.admitted = 0

    def __len__(self) -> int:
        return len(self._all)

    # -- coming

    def held_back(self, parts: Parts, principal: str) -> Refusal | None:
        """Others have waited long enough for what a newcomer wants."""
        return self._held_back(parts, principal, None, None) if self._all else None

    def _held_back(self, parts: Parts, principal: str, lane: LaneKey, waiting: Waiting | None) -> Refusal | None:
        keys: list[LaneKey] = [None, principal, *(partition_id for partition_id, _, _ in parts)]
        for key in keys:
            found = self._lanes.get(key)
            if found is None or (waiting is not None and key == lane):
                continue
            for hold in (found.holds.get(None), found.holds.get(principal)):
                if hold is None or hold.over or (waiting is not None and hold.number >= waiting.number):
                    continue  # of two that hold each other up the one that came first goes on
                if _is_pace(hold.refusal) and self._admission.pace.exempts(parts, principal):
                    continue
                return hold.refusal if hold.refusal.is_own_rate else hold.refusal._replace(share_of=None)
        return None

    def enter(self, waiting: Waiting) -> None:
        """Wait. Raises Overloaded when the room is full, or when this principal's share of it is."""
        self._check_room(waiting)
        self.entered += 1
        waiting.number = self.entered
        self._all[waiting] = None
        self.nbytes += waiting.nbytes
        self._of.setdefault(waiting.principal, Use()).take(1, waiting.nbytes, 1)
        self._owned.setdefault(waiting.owner, {})[waiting] = None
        self._sit(waiting, waiting.refusal.lane)
        if len(self._ends) > 2 * len(self._all) + STALE_KEPT:
            self._ends = [each for each in self._ends if not each[2].over]
            heapq.heapify(self._ends)
        heapq.heappush(self._ends, (waiting.until, waiting.number, waiting))

    def _check_room(self, waiting: Waiting) -> None:
        settings, own = self._settings, self._of.get(waiting.principal)
        rows = (
            ("queue_requests", len(self._all), 1, settings.queue_requests, own.operations if own else 0),
            ("queue_bytes", self.nbytes, waiting.nbytes, settings.queue_bytes, own.nbytes if own else 0),
        )
        for gate, used, more, maximum, held in rows:
            shared = own is not None and self._factor and held + more > self._factor * (maximum - used - more)
            if used + more > maximum or shared:
                raise self._admission.refuse(
                    Refusal(gate, None, used, maximum, share_of=waiting.principal if shared else None)
                )

    def _sit(self, waiting: Waiting, key: LaneKey) -> None:
        waiting.lane, waiting.seat = key, next(self._seats)
        lane = self._lanes.setdefault(key, Lane())
        lane.queues.setdefault(waiting.principal, LaneQueue()).put(waiting)
        self._note(waiting)

    def _note(self, waiting: Waiting) -> None:
        """What opens its lane, if not what is given back there."""
        if waiting.refusal.opens_at:
            self._later.look_at(waiting.lane, waiting.refusal.opens_at)
        elif waiting.lane is not None and waiting.refusal.gate.startswith("node_"):
            self._shares[waiting.lane] = None

    def _stand_up(self, waiting: Waiting) -> None:
        lane = self._lanes[waiting.lane]
        queue = lane.queues[waiting.principal]
        queue.live -= 1
        if not queue.live:
            del lane.queues[waiting.principal]
        for held, hold in list(lane.holds.items()):
            if hold is waiting:
                del lane.holds[held]
                self.touch(waiting.lane)  # whoever stood behind it may go
        if not lane.queues:
            del self._lanes[waiting.lane]
            self._shares.pop(waiting.lane, None)
            self._later.forget(waiting.lane)

    # -- going

    def _out(self, waiting: Waiting) -> None:
        invariant(not waiting.over, "a request has waited to its end twice")
        waiting.over = True
        self._stand_up(waiting)
        waiting.seat = 0
        del self._all[waiting]
        self.nbytes -= waiting.nbytes
        own = self._of[waiting.principal]
        own.take(-1, -waiting.nbytes, -1)
        invariant(own.whole, "of {} more have gone than came", waiting.principal)
        if not own.batches:
            del self._of[waiting.principal]
        owned = self._owned[waiting.owner]
        del owned[waiting]
        if not owned:
            del self._owned[waiting.owner]
        if not self._all:
            self._finished.clear()
            self._virtual = 0.0
        self._keep_no_more(waiting)

    def _keep_no_more(self, waiting: Waiting) -> None:
        for partition_id in waiting.reserved:
            self._admission.keep_no_more(partition_id, waiting.number)
            self.touch(partition_id)  # what was kept is there for others
        waiting.reserved.clear()

    def leave(self, waiting: Waiting, error: LogboomError) -> None:
        """It is given up, unless it is over."""
        if not waiting.over:
            self._out(waiting)
            waiting.failed(error)

    def leave_all(self, error: Callable[[], LogboomError], *, owner: Hashable = None) -> None:
        """Those of one owner, who is gone; or (None) all, because this node admits nothing any more."""
        for waiting in list(self._all if owner is None else self._owned.get(owner, ())):
            self.leave(waiting, error())

    def barred(self, partition_id: PartitionId, error: Callable[[], LogboomError]) -> None:
        """A partition takes nothing any more."""
        for waiting in self._at(partition_id):
            self.leave(waiting, error())

    def paused(self, partition_id: PartitionId) -> None:
        """A partition applies nothing any more: those that are not answered before it has are told."""
        for waiting in self._at(partition_id):
            error = waiting.paused(partition_id)
            if error is not None:
                self.leave(waiting, error)

    def _at(self, partition_id: PartitionId) -> list[Waiting]:
        return [w for w in self._all if any(p == partition_id for p, _, _ in w.parts)]

    def expire(self, now: float) -> None:
        """Those whose time is over: refused, or too late for good."""
        while self._ends and self._ends[0][0] <= now:
            waiting = heapq.heappop(self._ends)[2]
            if waiting.over:
                continue
            if waiting.deadline <= now:
                gate = waiting.refusal.gate
                text = f"the deadline passed while the request waited for admission ({gate})"
                self.leave(waiting, DeadlineExceeded(text, outcome="not_applied"))
            else:
                self.leave(waiting, self._in_vain(waiting, now))

    def _in_vain(self, waiting: Waiting, now: float) -> LogboomError:
        error = self._admission.refuse(waiting.refusal)
        if isinstance(error, Overloaded):
            error = Overloaded(f"{error.message}; it waited {now - waiting.since:.3f} s", **error.fields)
        return error

    # -- next

    def touch(self, key: LaneKey) -> None:
        """Something was given back there."""
        if self._all:
            self._dirty[key] = self._dirty[None] = None
            self._wake()

    def touch_all(self) -> None:
        """Whatever stood in the way of everybody does no more."""
        if self._all:
            self._dirty.update(dict.fromkeys(self._lanes))
            self._wake()

    @property
    def opens_at(self) -> float:
        """When time opens a lane in which somebody waits: call ``serve`` then. Infinite: never."""
        return self._later.first

    @property
    def unserved(self) -> bool:
        """Somewhere something was given back that nobody was offered: ``may_admit`` has said no before."""
        return bool(self._dirty)

    def serve(self, now: float) -> None:
        """Admit whoever can be, where something was given back, or it is time."""
        self.expire(now)
        self._dirty.update(dict.fromkeys(self._later.due(now)))
        self._dirty.update(dict.fromkeys(itertools.islice(self._shares, LANES_LOOKED_AT)))
        while self._all and self._dirty and self._may_admit():
            key = next(iter(self._dirty))
            del self._dirty[key]
            if key in self._lanes:
                self._serve(key, self._lanes[key], now)
        if not self._all:
            self._dirty.clear()

    def _serve(self, key: LaneKey, lane: Lane, now: float) -> None:
        lane.holds.clear()
        self._shares.pop(key, None)  # those that still wait for it come last
        turns = [(self._start(principal), k, principal) for k, principal in enumerate(lane.queues)]
        heapq.heapify(turns)
        passed = 0
        while turns and passed < PRINCIPALS_LOOKED_AT:
            if not self._may_admit():
                self._dirty[key] = None
                return
            _, k, principal = heapq.heappop(turns)
            found = self._next_of(principal, key, lane, now, is_first=not passed)
            if found is None:
                return
            if found and principal in lane.queues:
                heapq.heappush(turns, (self._start(principal), k, principal))
            passed += not found

    def _next_of(self, principal: str, key: LaneKey, lane: Lane, now: float, *, is_first: bool) -> bool | None:
        """Admit one; or False, if none of the first fits. None: nobody may pass the one that does not.

        ``is_first``: nobody whose turn is before this one's still waits here.
        """
        queue = lane.queues.get(principal)
        for waiting in queue.candidates(now - self._bypass_s) if queue is not None else ():
            refusal = self._try(waiting, key, now)
            if refusal is None:
                return True  # or it went, or sits elsewhere: what comes next is another question
            is_overdue = waiting.since <= now - self._bypass_s
            if (is_overdue or is_first) and self._reserve(waiting):
                continue
            if is_overdue and _is_pace(refusal):
                lane.holds.setdefault(None, waiting)  # light ones still have their turn, and nobody else waits less
            elif is_overdue:
                lane.holds[refusal.share_of] = waiting
                if refusal.share_of is None:
                    return None
            if refusal.share_of is not None:
                return False
        return False

    def _reserve(self, waiting: Waiting) -> bool:
        """It is large, and gets what it lacks in chunks."""
        if waiting.nbytes <= self._chunk_bytes or not self._admission.reserve(
            waiting.refusal, waiting.parts, waiting.number
        ):
            return False
        if waiting.refusal.partition_id not in waiting.reserved:
            waiting.reserved.append(waiting.refusal.partition_id)
        return True

    def _try(self, waiting: Waiting, key: LaneKey, now: float) -> Refusal | None:
        """None: it is not there any more; else why it stays."""
        try:
            for partition_id, _, _ in waiting.parts:
                self._check(partition_id)
            if waiting.deadline - now < LATE * self._admission.delay(waiting.parts, now) and waiting.applies():
                self.leave(waiting, self._in_vain(waiting, now))
                return None
            found = self._held_back(waiting.parts, waiting.principal, key, waiting) or self._admission.try_admit(
                waiting.parts, now, waiting.principal, waiting.number
            )
        except LogboomError as error:
            self.leave(waiting, error)
            return None
        if isinstance(found, Ticket):
            self.admitted += 1
            self.charge(waiting.principal, waiting.nbytes)
            self._out(waiting)
            waiting.admitted(found)
            return None
        waiting.refusal = found
        if waiting.reserved and not found.is_budget:
            self._keep_no_more(waiting)  # meanwhile others can have it
        if found.lane == key:
            self._note(waiting)
            return found
        self._stand_up(waiting)
        self._sit(waiting, found.lane)
        return None

    def charge(self, principal: str, nbytes: int) -> None:
        """It was given so much while others waited."""
        if not self._all:
            return
        start = self._start(principal)
        self._virtual = max(self._virtual, start)
        self._finished[principal] = start + nbytes + REQUEST_COST
        if len(self._finished) > 2 * (len(self._of) + FINISHED_KEPT):
            # Of those who wait for nothing: who was given the most, so that coming again gets nobody more.
            others = ((at, p) for p, at in self._finished.items() if at > self._virtual and p not in self._of)
            waiting = {p: at for p, at in self._finished.items() if p in self._of}
            self._finished = {p: at for at, p in heapq.nlargest(FINISHED_KEPT, others)} | waiting

    def _start(self, principal: str) -> float:
        return max(self._virtual, self._finished.get(principal, 0.0))

    # -- what must hold

    def audit(self, now: float, *, late_s: float) -> None:
        """Everybody sits once, counts once, and is not long past the time to go. Looks at each."""
        waiting: Iterable[Waiting] = self._all
        sums = len(self._all), sum(each.nbytes for each in waiting)
        counted = sum(own.operations for own in self._of.values()), sum(own.nbytes for own in self._of.values())
        invariant(sums == counted == (len(self._all), self.nbytes), "{} wait, {} are counted", sums, counted)
        seated = sum(queue.live for lane in self._lanes.values() for queue in lane.queues.values())
        invariant(seated == len(self._all), "{} sit, {} wait", seated, len(self._all))
        owned = sum(map(len, self._owned.values()))
        invariant(owned == len(self._all), "{} are owned, {} wait", owned, len(self._all))
        asked = {(gate, each.number) for each in waiting for gate in each.reserved}
        kept = set(self._admission.reservations())
        invariant(kept <= asked, "kept for nobody: {}", kept - asked)
        late = [each for each in waiting if each.until < now - late_s]
        invariant(not late, "{} are past their time", len(late))


def _is_pace(refusal: Refusal) -> bool:
    """The node's, of one that owes nothing there: it holds up nobody light, and goes before whoever is not."""
    return refusal.gate == GATE and refusal.share_of is None
