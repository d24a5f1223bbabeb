"""Single commands that travel together: one lane per partition and level.

Commands made in the same turn of the loop travel as one part of one frame (but for the first
after one that was alone), and while many are in flight the next ones collect: load makes
frames larger, never a lone command slower. The way that nearly all take has no task, no
timer of its own, and no turn of the loop more than it needs; whatever goes wrong on it goes
on in a task, with the same sequences.

They leave in the order in which they came: while a part has to look for the leader, or waits for
its connection to take more, the next ones wait for it.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Final, Protocol

import msgspec

from logboom.client.connection import Answered
from logboom.client.parts import Budget, Part, Sequences, receipts_of
from logboom.errors import DeadlineExceeded, LogboomError, Outcome, Unavailable, UnknownOutcome
from logboom.records import RecordBlock
from logboom.types import Level, Receipt, Receipts, Record, WideRecord
from logboom.wire import Frame

IN_FLIGHT_MAX: Final = 4
BESIDE_COMMANDS_MAX: Final = 512
"""With more in flight, the next ones wait for them: frames should be large.

With two halves of a crowd under way the client answers one while the nodes have the other.
"""
LARGE_PART: Final = 2048
"""With so many queued a part leaves beside whatever is in flight: a frame is large enough then."""
EXPIRY_GRACE_S: Final = 0.05
"""The node ends a request at the same deadline and knows better why."""
EXPIRY_STEP_S: Final = 0.005
"""Commands that expire within this time do so together."""
RECORD: Final = attrgetter("record")
DEADLINE: Final = attrgetter("deadline")
ADMISSION_WAIT: Final = attrgetter("admission_wait")
CLOSED: Final = "the client was closed before an answer came"
CANCELLED: Final = "the client's task that was to deliver it was cancelled"


class Carrier(Protocol):
    """What a lane needs of the client."""

    budget: Budget
    closed: bool
    seen: Callable[[int], None]
    """Gets the global index of what is answered."""

    @property
    def part_bytes(self) -> int:
        """How large a part may become."""

    @property
    def part_records(self) -> int:
        """Of how many commands."""

    def sequences(self, partition_id: int) -> Sequences:
        """Numbers for one partition."""

    def post(
        self, part: Part, *, wait: Level | None, deadline: float, admission_wait: float, answered: Answered
    ) -> Callable[[], None] | None:
        """Send to the leader, if that can be done at once; what it gives back takes the request back."""

    async def deliver(
        self,
        parts: Sequence[Part],
        *,
        wait: Level | None,
        deadline: float,
        admission_wait: float,
        failed: LogboomError | None,
        leaves: Callable[[], None],
        wanted: Callable[[], bool],
    ) -> Receipts:
        """Send until it is answered; ``failed``: what became of a first attempt. The others: see ``Submitter``."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine that belongs to the client."""


class Single(msgspec.Struct, gc=False):
    """One command and who waits for it.

    Not for the collector, which thousands keep busy: once it is answered, no cycle goes through it. What was under way
    holds it no longer, whatever traceback leads there; and what it is told has none, see ``_fail``.
    """

    record: Record
    deadline: float
    answer: asyncio.Future[Receipt]
    size: int
    admission_wait: float = 0.0


@dataclass(slots=True, eq=False)
class _Batch:
    """Commands that are in flight as one part."""

    singles: list[Single]
    size: int
    """What all of the commands take of the budget."""
    part: Part
    deadline: float
    admission_wait: float
    """The most that any of them would wait: they are admitted together."""
    take_back: Callable[[], None] | None = None
    """While it is on the way without a task of its own."""


class Lane:
    """Single commands for one partition and level."""

    def __init__(self, carrier: Carrier, partition_id: int, wait: Level | None) -> None:
        self._carrier = carrier
        self._partition_id = partition_id
        self._sequences = carrier.sequences(partition_id)
        self._wait = wait
        self._loop = asyncio.get_running_loop()
        self._new_answer = self._loop.create_future
        self._queue: deque[Single] = deque()
        self._queued_bytes = 0
        self._in_flight: dict[_Batch, None] = {}
        self._commands_in_flight = 0
        self._scheduled = False
        self._in_front: _Batch | None = None
        """A part that is not on its way to the leader yet: nothing may overtake it."""
        self._wide = 0
        """Queued commands over several keys. They have parts of their own: where not all nodes know them, only they are
        refused."""
        self._lone = False
        """The last part had one command: the next command does not wait for others of its turn."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self.closed = False
        """Nothing more may be put in: the client is closed, or has another lane for this by now."""

    def put(self, record: Record, size: int, deadline: float, patience: float) -> asyncio.Future[Receipt]:
        """Take one more; it leaves at the end of this turn or, one at a time, at once; or when a frame is answered.

        ``size`` is of the budget already.
        """
        answer: asyncio.Future[Receipt] = self._new_answer()
        self._queue.append(Single(record, deadline, answer, size, patience))
        self._queued_bytes += size
        if type(record) is WideRecord:
            self._wide += 1
        if deadline < self._alarm_at:
            self._watch(deadline)
        if self._scheduled or len(self._in_flight) >= IN_FLIGHT_MAX:
            return answer
        if self._lone and not self._in_flight:
            self._flush()
        else:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return answer

    @property
    def idle(self) -> bool:
        """Nothing is queued or on its way."""
        return not (self._queue or self._in_flight or self._scheduled)

    def close(self) -> None:
        """What was never sent has not happened; of what was sent nobody knows."""
        self.closed = True
        _fail(self._queue, Unavailable("the client was closed"))
        self._queue.clear()
        self._queued_bytes = self._wide = 0
        for batch in list(self._in_flight):
            _fail(batch.singles, UnknownOutcome(CLOSED))
        if self._alarm is not None:
            self._alarm.cancel()

    # -- sending

    def _flush(self) -> None:
        self._scheduled = False
        while not self._carrier.closed and self._queue and self._may_leave():
            singles, size = self._take()
            if singles:
                self._send(singles, size)

    def _may_leave(self) -> bool:
        """Another part, beside those in flight."""
        if len(self._in_flight) >= IN_FLIGHT_MAX or self._in_front is not None:
            return False
        return self._commands_in_flight <= BESIDE_COMMANDS_MAX or len(self._queue) >= LARGE_PART

    def _take(self) -> tuple[list[Single], int]:
        """The commands of the next part: whoever has not given up while waiting, and what they take of the budget."""
        queue, carrier = self._queue, self._carrier
        if not self._wide and self._queued_bytes <= carrier.part_bytes and len(queue) <= carrier.part_records:
            leaving, size = list(queue), self._queued_bytes
            queue.clear()
        else:
            leaving, size = self._as_many_as_fit(carrier.part_bytes, carrier.part_records)
        self._queued_bytes -= size
        taken = [single for single in leaving if not single.answer.done()]
        if len(taken) < len(leaving):
            left = sum(single.size for single in taken)
            carrier.budget.give(size - left)
            size = left
        return taken, size

    def _as_many_as_fit(self, room: int, most: int) -> tuple[list[Single], int]:
        leaving: list[Single] = []
        queue, size = self._queue, 0
        wide = type(queue[0].record) is WideRecord
        while queue and len(leaving) < most:
            single = queue[0]
            if leaving and (size + single.size > room or (type(single.record) is WideRecord) != wide):
                break
            size += single.size
            leaving.append(queue.popleft())
        self._wide -= len(leaving) if wide else 0
        return leaving, size

    def _send(self, singles: list[Single], size: int) -> None:
        try:
            block = RecordBlock.from_records(list(map(RECORD, singles)))
        except LogboomError as error:
            _fail(singles, error)
            self._carrier.budget.give(size)
            return
        self._lone = len(singles) == 1
        part = Part(self._partition_id, self._sequences.take(len(singles)), block)
        patience = max(map(ADMISSION_WAIT, singles))
        batch = _Batch(singles, size, part, max(map(DEADLINE, singles)), patience)
        self._in_flight[batch] = None
        self._commands_in_flight += len(singles)
        try:
            batch.take_back = self._carrier.post(
                part,
                wait=self._wait,
                deadline=batch.deadline,
                admission_wait=patience,
                answered=partial(self._answered, batch),
            )
        except LogboomError as error:  # it was never sent
            _fail(singles, error)
            self._ended(batch)
            return
        except Exception as error:  # noqa: BLE001 - nobody expected this one: told, and reported
            self._broke(batch, error)
            self._loop.call_exception_handler({"message": "a request that cannot be sent", "exception": error})
            return
        if batch.take_back is None:
            self._in_front = batch
            self._go_on(batch, None)

    def _leaves(self, batch: _Batch) -> None:
        if self._in_front is batch:
            self._in_front = None
            self._flush_soon()

    def _answered(self, batch: _Batch, answer: Frame | LogboomError) -> None:
        batch.take_back = None
        if isinstance(answer, LogboomError) and not self._carrier.closed:
            self._go_on(batch, answer)
            return
        try:
            if isinstance(answer, LogboomError):
                _fail(batch.singles, UnknownOutcome(CLOSED))
            else:
                self._share(batch, receipts_of(answer.header)[0])
        except Exception as error:  # noqa: BLE001 - whatever a node may have answered: told, and reported
            self._broke(batch, error)
            self._loop.call_exception_handler({"message": "an answer that is none", "exception": error})
        else:
            self._ended(batch)

    def _go_on(self, batch: _Batch, failed: LogboomError | None) -> None:
        task = self._carrier.start(self._deliver(batch, failed))
        task.add_done_callback(partial(self._given_up, batch, failed))

    def _given_up(self, batch: _Batch, failed: LogboomError | None, _: object) -> None:
        """Somebody has cancelled the task of a batch before it began; one that has begun has ended the batch itself."""
        if batch in self._in_flight:
            _fail(batch.singles, Unavailable(CANCELLED) if failed is None else UnknownOutcome(CANCELLED))
            self._ended(batch)

    async def _deliver(self, batch: _Batch, failed: LogboomError | None) -> None:
        """The long way: another connection, another leader, another attempt."""
        try:
            receipts = await self._carrier.deliver(
                [batch.part],
                wait=self._wait,
                deadline=batch.deadline,
                admission_wait=batch.admission_wait,
                failed=failed,
                leaves=partial(self._leaves, batch),
                wanted=partial(_is_waited_for, batch),
            )
            self._share(batch, receipts.parts[0])
        except LogboomError as error:
            _fail(batch.singles, error)
        except asyncio.CancelledError:
            _fail(batch.singles, UnknownOutcome(CLOSED))
            raise
        except Exception as error:
            _fail(batch.singles, UnknownOutcome(f"the client failed: {error!r}"))
            raise  # nobody expected this one: let the loop report it
        finally:
            self._ended(batch)

    def _share(self, batch: _Batch, whole: Receipt) -> None:
        _share(batch.singles, whole)
        self._carrier.seen(whole.global_index)

    def _broke(self, batch: _Batch, error: Exception) -> None:
        _fail(batch.singles, UnknownOutcome(f"the client failed: {error!r}"))
        self._ended(batch)

    def _ended(self, batch: _Batch) -> None:
        del self._in_flight[batch]
        if self._in_front is batch:
            self._in_front = None
        self._commands_in_flight -= len(batch.singles)
        batch.singles.clear()
        self._sequences.settle(batch.part.first_sequence)
        self._carrier.budget.give(batch.size)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._queue and not self._scheduled:
            # After the turn of those who have just been answered: their next commands travel along.
            self._scheduled = True
            self._loop.call_soon(self._flush)

    # -- deadlines: one alarm for all that is queued or in flight

    def _watch(self, deadline: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = deadline
        self._alarm = self._loop.call_at(deadline + EXPIRY_GRACE_S, _ring, weakref.ref(self))

    def _expire(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        due = self._loop.time() - EXPIRY_GRACE_S
        earliest = math.inf
        for outcome, singles in _by_outcome(self._queue, self._in_flight):
            for single in singles:
                if single.answer.done():
                    continue
                if single.deadline > due:
                    earliest = min(earliest, single.deadline)
                    continue
                single.answer.set_exception(DeadlineExceeded("no answer came before the deadline", outcome=outcome))
        for batch in list(self._in_flight):
            if batch.take_back is None:
                continue  # its task knows the deadline
            if batch.deadline > due:
                earliest = min(earliest, batch.deadline)
                continue
            batch.take_back()
            self._ended(batch)
        if earliest < math.inf:
            self._watch(max(earliest, due + EXPIRY_STEP_S))


def _ring(lane: weakref.ref[Lane]) -> None:
    """Who waits holds it. Did a timer of the loop, a client that nobody holds would live as long as that."""
    found = lane()
    if found is not None:
        found._expire()  # noqa: SLF001 - its own class


def _is_waited_for(batch: _Batch) -> bool:
    return not all(single.answer.done() for single in batch.singles)


def _by_outcome(queue: Iterable[Single], in_flight: Iterable[_Batch]) -> Iterator[tuple[Outcome, Iterable[Single]]]:
    """What is known of those whose time is over: of what was sent, nothing."""
    yield "not_applied", queue
    for batch in in_flight:
        yield "unknown", batch.singles


def _fail(singles: Iterable[Single], error: LogboomError) -> None:
    """To each an error of its own: one object raised in many tasks would gather all their tracebacks."""
    cause = error.__cause__ and _bare(error.__cause__)
    for single in singles:
        if not single.answer.done():
            told = error.again()
            if cause is not None:
                told.__cause__ = cause
            single.answer.set_exception(told)


def _bare(error: BaseException) -> BaseException:
    """What was behind an error, without the frames that it came through: they hold all that was under way, and us.

    Whoever else waited may be told of the same one, and may look where it comes from: of ours this is another.
    """
    bare = error.again() if isinstance(error, LogboomError) else error.with_traceback(None)
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    bare.__cause__, bare.__context__ = behind and _bare(behind), None
    return bare


def _share(singles: list[Single], whole: Receipt) -> None:
    partition, at, duplicate, results = whole.partition_id, whole.global_index, whole.duplicate, whole.results
    held = whole.held
    index: Any = whole.first_index
    if results is None and not duplicate:  # what nearly all are
        for single in singles:
            answer = single.answer
            if not answer.done():
                answer.set_result(Receipt(partition, index, index, at, 0, None, held))
            index += 1
        return
    for position, single in enumerate(singles):
        if not single.answer.done():
            result = None if results is None else (results[position],)
            single.answer.set_result(Receipt(partition, index, index, at, int(position < duplicate), result, held))
        index += 1
