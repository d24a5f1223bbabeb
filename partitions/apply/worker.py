"""The worker of one partition: applies what may be applied, group by group, off the loop.

Its queue is a position in the log, so a backlog costs no memory. A few commands that are in
memory, for a machine that applies in memory, are not worth two hops between threads: those
are applied on the loop. A failing apply is retried
with growing pauses, then the partition waits for an operator; no other partition notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog

from logboom.errors import CorruptData, Unavailable, traced
from logboom.settings import ApplySettings
from logboom.state_machine import Machine, Position, StateDump
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.apply.apply_core import AppliedBatch, ApplyGroup, Begun, Cursor, WorkerState
from partitions.apply.apply_counts import Ages, ApplyCounts
from partitions.apply.checkpoints import Checkpoints
from partitions.apply.dedupe import Dedupe
from partitions.apply.slow_groups import SlowGroups
from partitions.apply.stops import Stop, Stops
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch
from partitions.log.recent import INLINE_RECORDS_MAX, INLINE_RECORDS_MIN
from ports.clock import Clock
from ports.invariant import InvariantViolated, invariant
from ports.offload import Offload

log = structlog.get_logger(__name__)
T = TypeVar("T")


class ApplyWorker:
    """See the module. ``on_progress`` is called on the loop after every group, ``save_offload`` runs checkpoints."""

    def __init__(
        self,
        *,
        log: PartitionLog,
        machine: Machine,
        offload: Offload,
        save_offload: Offload,
        clock: Clock,
        settings: ApplySettings,
        on_progress: Callable[[Sequence[AppliedBatch]], None],
        fatal: Callable[[BaseException], None],
        counts: ApplyCounts | None = None,
        slow: SlowGroups | None = None,
        begun: Begun | None = None,
        reclaimable: bool = True,
    ) -> None:
        """``counts`` and ``slow`` are shared by all workers of a node.

        ``begun``: of the machine, if that has been read. ``reclaimable``: what is applied, and in a snapshot, need not
        be kept in the log.
        """
        self.log = log
        self.machine = machine
        self.dedupe, applied = begun or Begun.of(machine, settings)
        self._before: tuple[Dedupe, PartitionLogIndex] | None = None
        """Dedupe of the worker that this one replaced, and how far it had come, until this one has come as far."""
        self._cursor = Cursor(applied=applied)
        self._offload = self.offload = offload
        """For all that is asked of the machine."""
        self._clock = clock
        self._settings = settings
        self._on_progress = on_progress
        self._fatal = fatal
        self.counts = ApplyCounts() if counts is None else counts
        self._slow = SlowGroups() if slow is None else slow
        self.reclaimable = reclaimable
        self._ages = Ages()
        self._checkpoints = Checkpoints(
            machine=machine,
            partition_id=log.partition_id,
            applied=lambda: self.applied_index,
            offload=save_offload,
            clock=clock,
            settings=settings,
            counts=self.counts,
            ended=self._saved,
        )
        self._running = False
        self._group: ApplyGroup
        """The last one that was begun."""
        self._here = False
        """What is under way is a group that waits for its turn on the loop."""
        self._stops = Stops(self, clock, self.counts.pauses)
        self._closing = False
        self._stopped: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._started = self._inline_from = -1e9
        self._inline_bytes = settings.inline_bytes
        self._aim = PartitionLogIndex(0)
        """What might be applied when the last group began."""
        self._urgent = False
        self.last_error = ""
        self.damage: DamagedBatch | None = None
        """What stopped it, in state ``damaged``, unless it was the state itself."""
        self.useless = False
        """Its state is damaged, or gone, and nothing on this node makes it anew: it applies nothing."""
        self._held = False
        """By an operator, until ``resume``."""

    @property
    def applied(self) -> Position:
        """How far it is."""
        return self._cursor.applied

    @property
    def applied_index(self) -> PartitionLogIndex:
        """``partition_applied_index``."""
        return self._cursor.applied.applied_index

    @property
    def applied_global_index(self) -> GlobalLogIndex:
        """Of the last batch that was applied."""
        return self._cursor.applied.applied_global_index

    @property
    def remembered(self) -> tuple[Dedupe, PartitionLogIndex]:
        """What has been applied of producers, and through where: a state that is made anew was further than it is."""
        return self._before or (self.dedupe, self.applied_index)

    @property
    def saved_index(self) -> PartitionLogIndex:
        """Up to here a ``save`` has made sure of what is applied."""
        return self._checkpoints.saved_index

    @property
    def is_closing(self) -> bool:
        """It applies nothing any more: what becomes of its state is somebody else's to say."""
        return self._closing

    @property
    def is_paused(self) -> bool:
        """It applies nothing until somebody resumes it: somebody wanted that, or it has failed too often."""
        return self._cursor.state is WorkerState.PAUSED and not (self._closing or self.useless)

    @property
    def idle(self) -> bool:
        """Nothing committed is left to apply: as far as the whole log is."""
        return self._cursor.applied.applied_index >= self.log.committed_index

    @property
    def backlog_age(self) -> float:
        """Seconds that the oldest batch that is committed and not applied has been so; 0: there is none."""
        return 0.0 if self.idle else self._ages.age(self.applied_index, self._clock.monotonic())

    @property
    def state(self) -> str:
        """``running``, ``retrying``, ``paused`` or ``damaged``."""
        return self._cursor.state._value_  # ``value`` is a descriptor's two calls, with each batch

    @property
    def is_about_to(self) -> bool:
        """A group is applied within this turn of the loop, if that has time; ``on_progress`` follows in any case."""
        return self._here

    def notify(self, limit_index: int, *, urgent: bool = True) -> None:
        """Records up to ``limit_index`` may be applied; ``urgent``: somebody waits for their effects."""
        self._cursor.raise_limit(min(limit_index, self.log.committed_index))
        if not self.idle:
            self._ages.note(self.log.committed_index, self._clock.monotonic())
        if urgent:
            self.hurry()
        else:
            self._start_when_due()

    def hurry(self) -> None:
        """Somebody waits: apply what may be applied now, and at once what follows a group under way."""
        self._urgent = True
        self._start()

    def _start_when_due(self) -> None:
        if not self._cursor.due and not self._stops:
            return  # as after most groups: a timer for each of a thousand partitions would wake the loop for nothing
        # Each group costs a sync; what nobody waits for is worth fewer of them.
        wait = self._started + self._settings.linger_ms / 1000 - self._clock.monotonic()
        pending = self._cursor.limit - self.applied_index
        eager = pending >= INLINE_RECORDS_MIN and self.machine.needs_records
        if wait <= 0 or self._urgent or (eager and self._is_at_hand()):
            self._start()
        elif self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(wait, self._linger_over)

    def _linger_over(self) -> None:
        self._linger = None
        self._start()

    # -- snapshots

    def cut(self, through_index: int, taken: Callable[[StateDump | None], None]) -> None:
        """Apply up to here and no further until the state of then is captured; ``taken`` gets it, to be closed.

        None: it could not be captured. That happens when it gets there, or with ``hurry`` if it is there, be it paused.
        One at a time; ``drop_cut`` takes it back. Nothing beyond ``through_index`` may have been applied.
        """
        self.stop_at(through_index, lambda machine: machine.dump(), taken, is_cut=True)

    def drop_cut(self) -> None:
        """Nobody wants it any more."""
        self._stops.drop_cut()
        self._start()

    @property
    def capturing(self) -> bool:
        """The machine is being asked for a dump; not for what a view reads of it, which is no snapshot's to give up."""
        return self._stops.under_way is not None and self._stops.under_way.is_cut

    def stop_at(
        self,
        through_index: int,
        capture: Callable[[Machine], T],
        taken: Callable[[T | None], None],
        *,
        is_cut: bool = False,
    ) -> Stop:
        """Apply up to here and no further until ``capture``, off the loop, has seen the state of then.

        ``taken``: see ``cut``. Any number at a time; ``go_on`` takes one back. Not in front of what is committed now.
        """
        going = max(self.applied_index, self._aim) if self._running else self.applied_index
        invariant(going <= through_index, "a stop at {}; {} is being applied", through_index, going)
        return self._stops.add(Stop(PartitionLogIndex(through_index), capture, taken, is_cut))

    def go_on(self, stop: Stop) -> bool:
        """Nobody wants it any more. True: it is being captured, and ``taken`` hears of it, but nothing waits for that.

        Idempotent. Not of a cut: other than a dump what views read may go on beside ``apply``.
        """
        captured = self._stops.end(stop)
        if captured:
            self._running = False
        if captured or self._stops.remove(stop):
            self._start()
            self._notice_stopped()
        return captured

    def hand_over(self, other: ApplyWorker) -> None:
        """``other`` goes on in the place of this one, which is closed, with a state that is as old or older."""
        self._checkpoints.fail(CorruptData(f"the state of partition {self.log.partition_id} is damaged"))
        self._stops.move_to(other._stops)
        other._cursor.raise_limit(self._cursor.limit)
        if other.applied_index < self.remembered[1]:
            other._before = self.remembered
        if self._held:  # it comes as far as this one was, and no further
            other._held = True
            other.stop_at(self.remembered[1], lambda _: None, other._as_far)

    def _as_far(self, _: object) -> None:
        if self._held and not self._closing:
            self.pause()
            self._on_progress([])  # it has said that it runs

    # -- steering

    def save(self, saved: Callable[[BaseException | None], None]) -> None:
        """Have everything that is applied now saved so that a power loss cannot undo it; then call ``saved``."""
        if self._closing:
            saved(CorruptData(f"the state of partition {self.log.partition_id} is damaged, or closed"))
            return
        self._checkpoints.save(saved)

    def secured(self, last_index: int) -> bool | None:
        """What is applied up to here is saved to stay. None: nobody can say yet: it is being applied, or saved."""
        if self.applied_index < last_index:
            return None if self._running and self._aim >= last_index else False
        if self.saved_index < last_index:
            if not self._checkpoints.wanted:
                self.save(lambda _: None)
            return None
        return True

    def pause(self) -> None:
        """Apply nothing more until resumed; a group under way finishes."""
        self._cursor.state, self._held = WorkerState.PAUSED, True

    def resume(self) -> None:
        """Go on."""
        self._cursor.state, self._cursor.attempts, self._held = WorkerState.RUNNING, 0, False
        self._cursor.gave_up = False
        if self._timer is not None:
            self._timer.cancel()
        self._checkpoints.save_when_due()
        self._start()

    async def close(self) -> None:
        """Let the group under way finish; start no other. Idempotent, and any number may wait for it."""
        self._cursor.state, self._closing = WorkerState.PAUSED, True
        self._checkpoints.close()
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        if self._running or self._checkpoints.under_way:
            if self._stopped is None:
                self._stopped = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._stopped)
        self._checkpoints.fail(Unavailable(f"partition {self.log.partition_id} is being closed"))

    def forget(self) -> None:
        """The partition is gone, see Dedupe.drop."""
        self.dedupe.drop()
        if self._before is not None:
            self._before[0].drop()

    # -- applying

    def _start(self) -> None:
        cursor = self._cursor
        unfit = self.useless or (cursor.state is WorkerState.DAMAGED and self.damage is None)
        if self._running or self._closing or unfit:
            return
        nearest = self._stops.nearest
        if nearest is not None and nearest.through_index == self.applied_index:
            self._capture(nearest)  # paused, too: its state is that of here, and nothing is applied for it
            return
        if cursor.state is not WorkerState.RUNNING or not cursor.due:
            return
        if self.machine.unsaved_bytes > 2 * self._settings.unsaved_bytes:
            return  # memory is bounded: the end of the checkpoint starts it again
        self._running, self._urgent = True, False
        limit = cursor.limit if nearest is None else min(cursor.limit, nearest.through_index)
        self._started, self._aim = self._clock.monotonic(), limit
        after, alone = cursor.applied.applied_index, cursor.one_by_one > 0
        self._group = group = ApplyGroup(
            self.log, self.machine, self.dedupe, self._settings, after=after, through=limit, alone=alone
        )
        if self._is_at_hand():
            # Soon, not now: whoever has called us is in the midst of something.
            self._here = True
            asyncio.get_running_loop().call_soon(self._run_here, group)
        else:
            self._offload.submit(group.run, self._ended)

    def _capture(self, stop: Stop) -> None:
        """As a group of its own: nothing is applied meanwhile."""
        job = self._stops.begin(stop)
        if job is None:
            self._start()
            return
        self._running, self._aim = True, self.applied_index
        self._offload.submit(job, partial(self._captured, stop))

    def _captured(self, stop: Stop, found: Any, error: BaseException | None) -> None:
        try:
            self._stops.captured(stop, found, error)
        finally:
            self.go_on(stop)

    def _is_at_hand(self) -> bool:
        cursor = self._cursor
        return (
            self._inline_bytes > 0
            and getattr(self.machine, "applies_in_memory", False)
            and (cursor.limit - self.applied_index <= INLINE_RECORDS_MAX or not self.machine.needs_records)
            and self._clock.monotonic() >= max(self._inline_from, self._slow.again)
            and self.log.is_recent(
                after_index=self.applied_index, through_index=cursor.limit, nbytes=self._inline_bytes
            )
        )

    def _run_here(self, group: ApplyGroup) -> None:
        self._here = False
        before = self._clock.monotonic()
        if before < self._slow.again:  # others of this turn have held it
            self._offload.submit(group.run, self._ended)
            self._on_progress([])
            return
        batches, error = None, None
        try:
            batches = group.run()
        except Exception as caught:  # noqa: BLE001 - as if a thread had run it
            error = caught
        self._inline_from = self._slow.took(before, self._clock.monotonic()) or self._inline_from
        self._ended(batches, error)

    def _ended(self, batches: list[AppliedBatch] | None, error: BaseException | None) -> None:
        self._running = False
        if isinstance(error, InvariantViolated):
            self._fatal(error)
        elif error is not None or batches is None:
            self._failed(error)
        else:
            self.dedupe.commit()
            nbytes = sum(batch.nbytes for batch in batches)
            self._checkpoints.since += nbytes
            self.counts.applied(batches, nbytes, self._clock.monotonic() - self._started, reclaimable=self.reclaimable)
            last = batches[-1]
            self._cursor.advance(Position(last.last_index, last.global_index))
            if self._before is not None and self._before[1] <= self.applied_index:
                self._before = None
            self._on_progress(batches)
            self._checkpoints.save_when_due()
            if self.applied_index < self._aim:
                self._start()  # the group was full: waiting would gather nothing for the next one
            else:
                self._start_when_due()
        self._notice_stopped()

    def _saved(self, error: BaseException | None) -> None:
        self._notice_stopped()
        if error is None:
            self._start_when_due()
            return
        self.last_error = repr(error)
        if isinstance(error, OSError):
            self._fatal(error)  # a later one may seem to succeed, on top of pages that the disk never got
        elif isinstance(error, CorruptData):
            self._cursor.state, self.damage = WorkerState.DAMAGED, None
            self._on_progress([])

    def _notice_stopped(self) -> None:
        under_way = self._running or self._checkpoints.under_way
        if not under_way and self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

    def _failed(self, error: BaseException | None) -> None:
        self.dedupe.rollback()
        self.counts.failures += 1
        self.last_error = repr(error)
        corrupt, self.damage = isinstance(error, CorruptData), error if isinstance(error, DamagedBatch) else None
        useless = corrupt and self.damage is None and not self._closing
        self._cursor.failed(error, group=self._group, damaged=corrupt, useless=useless)
        log.error(
            "apply_failed",
            partition=self.log.partition_id,
            after=self.applied_index,
            attempt=self._cursor.attempts,
            state=self.state,
            error=self.last_error,
            exc_info=traced(error) if self._cursor.attempts == 1 else None,
        )
        if self._cursor.state is WorkerState.RETRYING:
            self._timer = asyncio.get_running_loop().call_later(self._cursor.pause_s(self._settings), self._retry)
        self._on_progress([])

    def _retry(self) -> None:
        if self._cursor.state is WorkerState.RETRYING:
            self._cursor.state = WorkerState.RUNNING
            self.counts.retries += 1
            self._start()
