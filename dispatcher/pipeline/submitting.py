"""From a request to a proposal: checked, admitted (or made to wait), handed to ``Proposing``.

``Submitting`` is a part of ``Pipeline``, which has everything else.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable
from typing import Final

from dispatcher.admission.admission import Admission, Ticket
from dispatcher.admission.budgets import Refusal
from dispatcher.admission.lanes import Waiting
from dispatcher.admission.waiting import WaitingRoom
from dispatcher.pipeline.pending import Done
from dispatcher.pipeline.proposing import Admitted, Proposing
from dispatcher.pipeline.surroundings import Surroundings
from dispatcher.requests.requests import SubmitRequest, check_parts, copied
from dispatcher.requests.retries import already_applied, check_whole, making_room, ordered_before
from logboom.errors import (
    DeadlineExceeded,
    LogboomError,
    NotLeader,
    Outcome,
    PartitionFrozen,
    PartitionPaused,
    QuotaExceeded,
    Unavailable,
    UnknownOutcome,
)
from logboom.types import KV_TXN, PARTITION_SETTINGS, Level, PartitionId
from partitions.apply.dedupe import RETRY_AFTER_S

RESERVED: Final = 0.25
"""Of a request's time: what is admitted later would hardly be answered in time, and the work would be for nothing."""
TURN_S: Final = 0.01
"""So much of one turn of the loop goes to those who have waited; the others wait for the next."""
ALARM_S_MIN: Final = 0.001
ALARM_S_MAX: Final = 0.05
"""What opens later is seen in time by those who tick."""
PAUSED_AGAIN_S: Final = 1.0
"""Before whoever resumes a partition may have done so."""


class Submitting:
    """Takes the requests of one node: refuses them, has them wait, or hands them on to be proposed."""

    def __init__(self, pipeline: Surroundings, admission: Admission) -> None:
        self._pipeline = pipeline
        self._admission = admission
        settings = pipeline.settings
        self.proposing = Proposing(pipeline)
        self._proposals_max = settings.raft.proposals_max
        self.waiting = WaitingRoom(
            settings.admission,
            admission,
            may_admit=self._may_admit,
            wake=self._serve_soon,
            check=pipeline.check_writable,
        )
        self._scheduled: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._until = math.inf
        """Who waits is admitted in this turn until then."""
        admission.room = self.waiting.touch
        admission.barred = self._barred

    # -- admitting

    def submit(self, request: SubmitRequest, done: Done, owner: Hashable) -> Waiting | None:
        """Propose, or wait, or forward; ``done`` is called once. Raises why not, and then it is not called.

        What waits can be given up by what is returned, or by its ``owner``.
        """
        pipeline = self._pipeline
        now = pipeline.clock.monotonic()
        if request.deadline <= now:
            raise DeadlineExceeded("the deadline passed before the request was looked at", outcome="not_applied")
        if not pipeline.raft.admits:
            self._redirect(request, done)
            return None
        check_parts(
            request,
            writable=pipeline.check_writable,
            bytes_max=pipeline.settings.log.batch_bytes_max,
        )
        if request.wide:
            pipeline.agreement.check(KV_TXN)
        applied = already_applied(request, pipeline.workers, pipeline.parent.global_index, pipeline.level_of)
        if applied is not None:
            pipeline.repeated += 1
            done(applied)
            return None
        self.proposing.makes_way(request.producer)
        self._check_applied(request)
        self._check_whole(request)
        lacking = self._make_room(request, now)
        parts = _sizes(request)
        found = lacking or self._proposals() or self.waiting.held_back(parts, request.principal)
        if found is None:
            admitted = self._admission.try_admit(parts, now, request.principal)
            if isinstance(admitted, Ticket):
                self.waiting.charge(request.principal, request.nbytes)
                self.proposing.propose(Admitted(request, admitted, done))
                return None
            found = admitted
        if request.admit_by <= now:
            raise self._admission.refuse(found)
        kept = copied(request)
        waiting = Waiting(
            parts=parts,
            nbytes=request.nbytes,
            principal=request.principal,
            owner=owner,
            until=min(request.admit_by, request.deadline - (request.deadline - now) * RESERVED),
            deadline=request.deadline,
            since=now,
            refusal=found,
            admitted=lambda ticket: self._propose_after_all(kept, ticket, done),
            failed=done,
            paused=lambda p: self._held_up(kept, p) if self._waits_for_apply(kept) else None,
            applies=lambda: self._waits_for_apply(kept),
        )
        self.waiting.enter(waiting)
        self._set_alarm()
        return waiting

    def _waits_for_apply(self, request: SubmitRequest) -> bool:
        """As its partitions say now; it may be otherwise when it is ordered."""
        if request.wait is Level.APPLIED:
            return True
        return self._pipeline.level_of(request.wait, [part.partition_id for part in request.parts]) is Level.APPLIED

    def _check_applied(self, request: SubmitRequest) -> None:
        """Raises PartitionPaused for what would not be answered before somebody resumes a partition."""
        if not self._waits_for_apply(request):
            return
        pipeline = self._pipeline
        for part in request.parts:
            worker = pipeline.workers.get(part.partition_id)
            if worker is not None and worker.is_paused:
                raise self._held_up(request, part.partition_id)

    def _check_whole(self, request: SubmitRequest) -> None:
        """Raises UnknownOutcome for half of a request; while it cannot be known PartitionPaused, or Unavailable."""
        pipeline = self._pipeline
        unclear = check_whole(request, pipeline.workers, pipeline.pending.ahead)
        if unclear is None:
            return
        partition_id, outcome = unclear
        if pipeline.workers[partition_id].is_paused:
            raise self._is_paused(partition_id, outcome)
        raise Unavailable(
            f"what was ordered in partition {partition_id} before this node led is not applied yet, and may have "
            "settled a part of this",
            retry_after=RETRY_AFTER_S,
            outcome=outcome,
        )

    def _held_up(self, request: SubmitRequest, partition_id: PartitionId) -> PartitionPaused:
        """For one that was not ordered, unless an earlier call with its numbers was."""
        pipeline = self._pipeline
        again = ordered_before(request, pipeline.workers, pipeline.pending.ahead)
        return self._is_paused(partition_id, "unknown" if again else "not_applied")

    def _is_paused(self, partition_id: PartitionId, outcome: Outcome) -> PartitionPaused:
        node = self._pipeline.node_id
        return PartitionPaused(
            f"partition {partition_id} is paused on {node}, which leads, and applies nothing before somebody says "
            f"`logboom partitions resume {partition_id} --node {node}`"
            + ("" if outcome == "not_applied" else "; this may be ordered already, and takes effect by then"),
            partition_id=partition_id,
            retry_after=PAUSED_AGAIN_S,
            outcome=outcome,
        )

    def _redirect(self, request: SubmitRequest, done: Done) -> None:
        pipeline = self._pipeline
        leader = pipeline.raft.engine.leader
        if leader is None or leader == pipeline.node_id:
            raise Unavailable("there is no leader right now; try again", retry_after=0.05)
        known = not request.wide or pipeline.raft.links.speaks(leader, KV_TXN)  # else it would take it for nonsense
        if request.forward and not request.forwarded and known:
            if request.wait is None and not pipeline.raft.links.speaks(leader, PARTITION_SETTINGS):
                # It would go by no partition's settings.
                wait = pipeline.level_of(None, [part.partition_id for part in request.parts])
                request = request._replace(wait=wait)
            if pipeline.forwarding.forward(leader, request, done):
                return
        raise NotLeader(f"{leader} leads", leader=pipeline.address_of(leader))

    def _proposals(self) -> Refusal | None:
        uncommitted = self.proposing.under_way
        if uncommitted < self._proposals_max:
            return None
        return Refusal("proposals", None, uncommitted, self._proposals_max)

    def _may_admit(self) -> bool:
        pipeline = self._pipeline
        is_room = self.proposing.under_way < self._proposals_max
        return is_room and pipeline.raft.admits and pipeline.clock.monotonic() < self._until

    def _make_room(self, request: SubmitRequest, now: float) -> Refusal | None:
        """Order what has to be in front of it, if anything has. Returns what that lacks: it would be refused without.

        Raises QuotaExceeded.
        """
        pipeline = self._pipeline
        full = self._proposals()
        first = None if full is not None else making_room(request, pipeline.workers, pipeline.pending.ahead)
        if first is None:
            return full
        ticket = self._admission.try_admit(_sizes(first), now, request.principal)
        if not isinstance(ticket, Ticket):
            return ticket
        self.proposing.propose(Admitted(first, ticket, lambda _: None))
        return None

    def _propose_after_all(self, request: SubmitRequest, ticket: Ticket, done: Done) -> None:
        """It has waited: other things are ordered, and applied, than when it came."""
        error: LogboomError | None = None
        self.proposing.makes_way(request.producer)
        try:
            self._check_applied(request)
            self._check_whole(request)
            lacking = self._make_room(request, self._pipeline.clock.monotonic())
            error = None if lacking is None else self._admission.refuse(lacking)
        except (PartitionPaused, QuotaExceeded, Unavailable, UnknownOutcome) as refused:
            error = refused
        if error is None:
            self.proposing.propose(Admitted(request, ticket, done))
            return
        for part in request.parts:
            ticket.release(part.partition_id)
        done(error)

    # -- those that wait

    def committed(self) -> None:
        """Requests are: there is room for other proposals."""
        for since in self._pipeline.pending.timed():
            self._admission.pace.committed(since, self._pipeline.clock.monotonic())
        if self.waiting and self.proposing.under_way < self._proposals_max:
            self.waiting.touch(None)

    def _serve_soon(self) -> None:
        # Once for all that one group gives back.
        if self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._scheduled = None
        self._serve_for_a_turn()

    def _serve_for_a_turn(self) -> None:
        clock = self._pipeline.clock
        now = clock.monotonic()
        self._until = until = now + TURN_S
        try:
            self.waiting.serve(now)
        finally:
            self._until = math.inf
        if self.waiting.unserved and clock.monotonic() >= until:
            self._serve_soon()  # heartbeats, above all, have their turn between
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Have those served who wait for a rate, as soon as it opens: that is between two ticks."""
        wait_s = self.waiting.opens_at - self._pipeline.clock.monotonic()
        if wait_s >= ALARM_S_MAX:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + max(wait_s, ALARM_S_MIN)
        if self._alarm is not None:
            if self._alarm.when() <= when:
                return
            self._alarm.cancel()
        self._alarm = loop.call_at(when, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        self._serve_soon()

    def tick(self, now: float) -> None:
        """Time passes: some have waited in vain; or this node admits again, or at another pace."""
        self._admission.pace.tick(now)
        if self.waiting:
            self.waiting.expire(now)
            self._serve_for_a_turn()

    def eased(self) -> None:
        """Signals withhold less than before."""
        self.waiting.touch_all()

    def lost_leadership(self) -> None:
        """Nobody here admits anything; nothing of these was written."""
        self._admission.pace.forget()
        self.proposing.fail(lambda _: NotLeader("leadership was lost before the request was ordered", leader=None))
        self.waiting.leave_all(lambda: NotLeader("leadership was lost before the request was admitted", leader=None))

    def proposed_end(self, partition_id: PartitionId) -> None:
        """It is about to be destroyed."""
        why = f"partition {partition_id} is being destroyed"
        self.waiting.barred(partition_id, lambda: PartitionFrozen(why, partition_id=partition_id))

    def paused(self, partition_id: PartitionId) -> None:
        """It applies nothing until somebody resumes it: whoever waits for that is told."""

        def hopeless(request: SubmitRequest) -> bool:
            return any(part.partition_id == partition_id for part in request.parts) and self._waits_for_apply(request)

        self._pipeline.pending.paused(partition_id, lambda: self._is_paused(partition_id, "unknown"))
        self.proposing.fail(lambda request: self._held_up(request, partition_id), which=hopeless)
        self.waiting.paused(partition_id)

    def _barred(self, partition_id: PartitionId) -> None:
        self.waiting.barred(partition_id, lambda: self._admission.is_frozen(partition_id))

    def gone(self, owner: Hashable) -> None:
        """Whoever asked has disconnected."""
        self.waiting.leave_all(lambda: given_up("who asked has disconnected"), owner=owner)

    def cancel(self, waiting: Waiting) -> None:
        """Whoever asked does not want it any more."""
        self.waiting.leave(waiting, given_up("it was cancelled"))

    def close(self) -> None:
        """The node stops."""
        self.proposing.fail(lambda _: Unavailable("the node is shutting down; try another", retry_after=0.05))
        self.waiting.leave_all(lambda: Unavailable("the node is shutting down; try another", retry_after=0.05))
        if self._scheduled is not None:
            self._scheduled.cancel()
        if self._alarm is not None:
            self._alarm.cancel()


def _sizes(request: SubmitRequest) -> list[tuple[PartitionId, int, int]]:
    return [(part.partition_id, part.records.count, part.records.nbytes) for part in request.parts]


def given_up(why: str) -> LogboomError:
    """The answer to nobody."""
    return UnknownOutcome(f"{why} before the request was admitted", outcome="not_applied")
