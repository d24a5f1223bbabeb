"""Requests between admission and apply: who waits for which level, and what is still owed.

Sans-io: events in (committed, durable, applied, lost, time), replies out through the ``done``
callback that came with the request, each exactly once. A part stays here until it is applied
or lost, replied or not, because that is when its admission budget is given back.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from dispatcher.admission.admission import Ticket
from dispatcher.requests.requests import SubmitReply, SubmitRequest
from dispatcher.requests.retries import Ahead
from dispatcher.requests.tracing import Trace
from logboom.errors import BY_CODE, DeadlineExceeded, LogboomError, Outcome, UnknownOutcome, Voided
from logboom.types import NO_PRODUCER, GlobalLogIndex, Level, PartitionId, PartitionLogIndex, ProducerId
from partitions.apply.apply_core import AppliedBatch
from partitions.apply.ordered import Ordered
from ports.invariant import invariant

Done = Callable[[SubmitReply | LogboomError], None]
DEADLINES_KEPT = 64


@dataclass(slots=True)
class Part:
    """One partition's share of a request: one batch."""

    request: PendingRequest
    partition_id: PartitionId
    first_index: PartitionLogIndex
    last_index: PartitionLogIndex
    global_index: GlobalLogIndex = GlobalLogIndex(0)
    duplicate: int = 0
    results: bytes | None = None
    refused: LogboomError | None = None


@dataclass(slots=True)
class PendingRequest:
    """A proposed request. ``owed``: parts that have not reached the level waited for."""

    asked: Level | None
    """None: what its partitions say."""
    wait: Level
    """As its partitions say at its place in the log; while it is not committed, as they say now."""
    deadline: float
    done: Done | None
    ticket: Ticket
    parts: list[Part] = field(default_factory=list)
    owed: int = 0
    committed: bool = False
    trace: Trace | None = None
    producer: ProducerId = NO_PRODUCER
    left: int = 0
    """Parts that are neither applied nor lost."""

    def answer(self, reply: SubmitReply | LogboomError) -> None:
        """Once; later calls have nobody to tell."""
        done, self.done = self.done, None
        if done is not None:
            done(reply)
            self._let_go()

    def part_ended(self) -> None:
        """One of them is applied, or lost."""
        self.left -= 1
        invariant(self.left >= 0, "a part ended twice")
        self._let_go()

    def _let_go(self) -> None:
        # A part names its request. Left to the collector, ten thousand of these are 70 ms in which nothing else runs.
        if not self.left and self.done is None:
            self.parts.clear()


LevelOf = Callable[[Level | None, Collection[PartitionId]], Level]
"""What a request with this ``wait`` for these partitions has to wait for."""


def as_asked(asked: Level | None, _: Collection[PartitionId]) -> Level:
    """Where partitions have no say."""
    return Level.APPLIED if asked is None else asked


class Pending:
    """All of a node's. Bounded by admission: every part holds a ticket."""

    def __init__(self, held: Mapping[PartitionId, str] = MappingProxyType({}), *, level_of: LevelOf = as_asked) -> None:
        """``held``: partitions that take fewer writes, or none, for now: whoever has one answered is told."""
        self._held = held
        self._level_of = level_of
        self.ahead = Ahead()
        self._by_end: dict[tuple[PartitionId, PartitionLogIndex], Part] = {}
        self._shares: dict[tuple[PartitionId, PartitionLogIndex], Sequence[PartitionLogIndex]] = {}
        """Where the parts end that share a mixed batch, by where it ends."""
        self._uncommitted: dict[int, PendingRequest] = {}
        self._awaiting_durable: dict[PartitionId, deque[Part]] = {}
        self._deadlines: list[tuple[float, int, PendingRequest]] = []
        self._unanswered = 0
        self._tie = itertools.count()
        self._awaiting_applied: Counter[PartitionId] = Counter()
        self._timed: list[float] = []

    def holding(self) -> Counter[PartitionId]:
        """Parts under way, by partition: each will give its budget back, and nobody else will. Looks at each."""
        return Counter(partition_id for partition_id, _ in self._by_end)

    def awaits_applied(self, partition_id: PartitionId) -> bool:
        """Somebody here waits until a batch of this partition is applied."""
        return self._awaiting_applied[partition_id] > 0

    def awaits_more(self, partition_id: PartitionId) -> bool:
        """Somebody here waits for more than the commit of a batch of this partition."""
        if self._awaiting_applied.get(partition_id, 0) > 0:
            return True
        return bool(self._awaiting_durable.get(partition_id))

    def __len__(self) -> int:
        return len(self._by_end)

    @property
    def uncommitted(self) -> int:
        """Requests proposed and not committed."""
        return len(self._uncommitted)

    def add(
        self,
        request: SubmitRequest,
        *,
        ends: Sequence[tuple[PartitionId, PartitionLogIndex, PartitionLogIndex]],
        ticket: Ticket,
        done: Done,
    ) -> None:
        """A request whose batches (partition, first, last index) have just been appended and proposed."""
        count, wait = len(ends), self._level_of(request.wait, [end[0] for end in ends])
        pending = PendingRequest(
            request.wait,
            wait,
            request.deadline,
            done,
            ticket,
            owed=count,
            left=count,
            trace=request.trace,
            producer=request.producer,
        )
        for (partition_id, first, last), said in zip(ends, request.parts, strict=True):
            part = Part(pending, partition_id, first, last)
            pending.parts.append(part)
            invariant((partition_id, last) not in self._by_end, "two requests for {}/{}", partition_id, last)
            self._by_end[partition_id, last] = part
            sequence = said.first_sequence
            ordered = Ordered(request.epoch, sequence, sequence + said.records.count, said.floor)
            self.ahead.add(partition_id, request.producer, last, ordered)
            self._awaiting_applied[partition_id] += wait is Level.APPLIED
        if pending.trace is not None:
            pending.trace.stage("append", partitions=len(ends), bytes=request.nbytes)
        self._uncommitted[id(pending)] = pending
        self._unanswered += 1
        if len(self._deadlines) > 2 * self._unanswered + DEADLINES_KEPT:
            # Answered long before their time, as nearly all are: not kept until then.
            self._deadlines = [entry for entry in self._deadlines if entry[2].done is not None]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (request.deadline, next(self._tie), pending))

    def share(
        self, partition_id: PartitionId, last_index: PartitionLogIndex, ends: Sequence[PartitionLogIndex]
    ) -> None:
        """Parts that were added and end there are in one mixed batch, which ends at ``last_index``."""
        self._shares[partition_id, last_index] = ends

    def acknowledge_anew(self, partition_id: PartitionId) -> None:
        """The log says here how writes to a partition are answered: that counts for all that are behind this place."""
        for request in self._uncommitted.values():
            partitions = [part.partition_id for part in request.parts]
            if partition_id not in partitions:
                continue
            before, request.wait = request.wait, self._level_of(request.asked, partitions)
            more = (request.wait is Level.APPLIED) - (before is Level.APPLIED)
            for each in partitions:
                self._awaiting_applied[each] += more

    def committed(
        self, partition_id: PartitionId, last_index: PartitionLogIndex, global_index: GlobalLogIndex
    ) -> GlobalLogIndex | None:
        """A routing entry was committed; replies to whoever waited for just that. None: it was somebody else's."""
        known = None
        for end in self._shares.get((partition_id, last_index), (last_index,)):
            part = self._by_end.get((partition_id, end))
            if part is not None:
                self._committed(part, global_index)
                known = global_index
        return known

    def _committed(self, part: Part, global_index: GlobalLogIndex) -> None:
        request = part.request
        part.global_index = global_index
        if not request.committed:
            request.committed = True
            if request.trace is not None:
                request.trace.committed(global_index=global_index)
            self._uncommitted.pop(id(request), None)
            if request.ticket.timed_since is not None:
                self._timed.append(request.ticket.timed_since)
        if request.wait in (Level.COMMITTED, Level.ORDERED):
            self._reached(request)
        elif request.wait is Level.DURABLE:
            self._awaiting_durable.setdefault(part.partition_id, deque()).append(part)

    def timed(self) -> Sequence[float]:
        """When those were admitted that somebody times, and that have been committed since this was asked last."""
        if not self._timed:
            return ()
        timed, self._timed = self._timed, []
        return timed

    def durable(self, partition_id: PartitionId, durable_index: PartitionLogIndex) -> None:
        """This node's durable watermark of a partition moved."""
        queue = self._awaiting_durable.get(partition_id)
        while queue and queue[0].last_index <= durable_index:
            self._reached(queue.popleft().request)

    def applied(self, batch: AppliedBatch, partition_id: PartitionId) -> None:
        """A batch was applied here, or an origin of one (or refused at apply): its budget is free again."""
        shares = self._shares.pop((partition_id, batch.last_index), ())
        if batch.refused == Voided.code:  # as a whole
            for end in shares[:-1]:
                self._applied(batch, partition_id, end)
        self._applied(batch, partition_id, batch.last_index)

    def _applied(self, batch: AppliedBatch, partition_id: PartitionId, last_index: PartitionLogIndex) -> None:
        part = self._by_end.pop((partition_id, last_index), None)
        if part is None:
            return
        request = part.request
        self.ahead.drop(partition_id, request.producer, part.last_index)
        self._awaiting_applied[partition_id] -= request.wait is Level.APPLIED
        request.ticket.release(partition_id)
        part.duplicate, part.results = batch.duplicate, batch.results
        if request.trace is not None:
            request.trace.applied(
                partition=partition_id,
                first_index=part.first_index,
                last_index=part.last_index,
                global_index=part.global_index,
                duplicate=batch.duplicate,
            )
        if batch.refused is not None:
            part.refused = BY_CODE[batch.refused](
                f"partition {partition_id}: sequence {batch.sequence} was refused ({batch.refused})",
                outcome="not_applied" if len(request.parts) == 1 else "unknown",  # its other parts may have
                partition_id=partition_id,
                got=batch.sequence,
            )
            self._answer(request, part.refused)
        if request.wait is Level.APPLIED:
            self._reached(request)
        request.part_ended()

    def voided(
        self, partition_id: PartitionId, last_index: PartitionLogIndex, error: Callable[[Outcome], LogboomError]
    ) -> None:
        """A batch was declared void: whoever waits for it is told; its budget is free when it is stepped over."""
        for end in self._shares.get((partition_id, last_index), (last_index,)):
            part = self._by_end.get((partition_id, end))
            if part is None:
                continue
            alone = len(part.request.parts) == 1
            self._answer(part.request, error("not_applied" if alone else "unknown"))  # its other parts may have been

    def paused(self, partition_id: PartitionId, error: Callable[[], LogboomError]) -> None:
        """Nobody knows when it applies anything: who waits for that is told; budgets are free once it has."""
        if self.awaits_applied(partition_id):
            for part in [part for (p, _), part in self._by_end.items() if p == partition_id]:
                if part.request.wait is Level.APPLIED and part.request.done is not None:
                    self._answer(part.request, error())

    def ended(self, partition_id: PartitionId, error: Callable[[], LogboomError]) -> None:
        """The partition is gone; what was ordered for it was committed before, and is applied no more."""
        self._awaiting_durable.pop(partition_id, None)
        self._shares = {key: ends for key, ends in self._shares.items() if key[0] != partition_id}
        for part in [part for (p, _), part in self._by_end.items() if p == partition_id]:
            invariant(part.request.committed, "partition {} is gone before {} is committed", partition_id, part)
            del self._by_end[partition_id, part.last_index]
            self.ahead.drop(partition_id, part.request.producer, part.last_index)
            part.request.ticket.release(partition_id)
            self._answer(part.request, error())
            part.request.part_ended()
        del self._awaiting_applied[partition_id]

    def lost(self) -> None:
        """Leadership is gone: nobody here can say what becomes of the uncommitted."""
        lost, self._uncommitted = list(self._uncommitted.values()), {}
        for request in lost:
            for part in tuple(request.parts):
                del self._by_end[part.partition_id, part.last_index]
                self.ahead.drop(part.partition_id, request.producer, part.last_index)
                self._awaiting_applied[part.partition_id] -= request.wait is Level.APPLIED
                request.ticket.release(part.partition_id)
                request.part_ended()
            self._answer(request, UnknownOutcome("leadership was lost before the request was committed; send it again"))
        self._shares = {key: ends for key, ends in self._shares.items() if key in self._by_end}

    def expire(self, now: float) -> None:
        """Answer those whose deadline has passed; their budget stays taken until they are applied."""
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            self._answer(
                request,
                DeadlineExceeded("the deadline passed before the level asked for was reached", outcome="unknown"),
            )

    def _answer(self, request: PendingRequest, reply: SubmitReply | LogboomError) -> None:
        self._unanswered -= request.done is not None
        request.answer(reply)

    def _reached(self, request: PendingRequest) -> None:
        request.owed -= 1
        invariant(request.owed >= 0, "a part reached its level twice")
        if request.owed or request.done is None:
            return
        last = max(part.global_index for part in request.parts)
        # Below that some may be applied by now, and others not.
        is_told = request.wait is Level.APPLIED
        parts = tuple(
            (p.partition_id, p.first_index, p.last_index, p.global_index, p.duplicate, p.results if is_told else None)
            for p in request.parts
        )
        held: tuple[tuple[PartitionId, str], ...] = ()
        if self._held:
            held = tuple(
                (p.partition_id, self._held[p.partition_id]) for p in request.parts if p.partition_id in self._held
            )
        self._answer(request, SubmitReply(parts=parts, commit_index=last, held=held))
