"""Barriers of one client that ask for the same: one request, however many wait for its answer.

Who comes while an equal request is under way *joins* it. An answer that was given before he came may be on its way
already, so he may be told it only if it stays true:

* **Reached** stays true for named partitions at ``ordered``, ``durable`` or ``applied`` of a node, up to an index that
  was given: watermarks never go back. Such a request is joined until it is answered (it is *lasting*).
* With all partitions, with scope ``leader``, ``quorum`` or ``all``, or at ``snapshotted``, it depends on which
  partitions and members there are, who leads, and which snapshots are kept, when it is answered. Such a request is
  joined only until it is sent, which is in the next turn of the loop.
* **An error** (a partition is paused, or gone) counts for those who came before the attempt that it ends was made. The
  others ask again.

A time is turned into an index by each call for itself, and only then joins. Watched barriers are not shared.

Everybody has his own deadline. The request has the latest of those who wait for it. Who has less takes a *last look*
when his time is up, together with all whose time is: a request of no length, whose answer says where everything stands.
Who comes later and has more goes on when the node says that time is up. The last one who leaves takes the request with
him.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, Final, NamedTuple

from logboom.client.attempts import is_final
from logboom.client.cluster import Cluster
from logboom.client.connection import NodeConnection
from logboom.errors import BarrierBlocked, DeadlineExceeded, LogboomError, Unavailable
from logboom.types import BarrierResult
from logboom.wire import Frame, Kind

BARRIER_GRACE_S: Final = 1.0
"""A node answers at the deadline, with where it stands: the answer needs time to arrive."""
TOGETHER_S: Final = 0.02
"""Deadlines that are no further apart are one: a node looks no more often which have passed."""
LOOK_S: Final = 0.25
"""Between two looks whether requests have gone unanswered for longer than ``BARRIER_GRACE_S``."""


class Asked(NamedTuple):
    """A barrier as it is asked for, but for the time that is left."""

    header: dict[str, Any]
    target: int
    """What has certainly been reached once it is answered."""
    where: Callable[[], Awaitable[NodeConnection]]
    place: Hashable
    """Equal for those who are asked in the same place."""
    deadline: float
    key: bytes | None
    """Equal for requests that are; None: nobody knows."""
    lasting: bool
    """What was true when it was reached stays true."""


Waiting = asyncio.Future[BarrierResult | None]
"""A call that waits for a barrier; None: its time is up, and where things stand has to be asked for."""
Read = Callable[[Asked, Frame], BarrierResult]


class Sharing:
    """All barriers of one client, and the requests that they share."""

    def __init__(self, cluster: Cluster, read: Read) -> None:
        """``read``: what an answer says."""
        self.cluster = cluster
        self.read = read
        self._joinable: dict[Hashable, Flight] = {}
        self._flights: dict[Flight, None] = {}
        """All that are not over."""
        self._gathered: dict[Hashable, list[Flight]] = {}
        """Requests that leave in the next turn, by the place that they are sent to."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._look: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._flights)

    async def reached(self, asked: Asked) -> BarrierResult:
        """Wait for it. Raises what a barrier raises."""
        flight = self._flight(asked)
        future = flight.join(asked.deadline)
        try:
            answer = await future
        finally:
            flight.leave(future)
        return answer if answer is not None else await self._last_look(asked, flight)

    async def _last_look(self, asked: Asked, before: Flight) -> BarrierResult:
        """Where it was waited for until now, if that is still there: others may be starting, and say nothing."""
        flight = self._flight(asked._replace(where=before.again, lasting=False), last=True)
        future = flight.join(asked.deadline)
        try:
            answer = await future
        finally:
            flight.leave(future)
        if answer is None:
            raise too_late()
        return answer

    def _flight(self, asked: Asked, *, last: bool = False) -> Flight:
        key = (asked.key, asked.place, last)
        found = self._joinable.get(key) if asked.key is not None else None
        if found is not None:
            return found
        made = Flight(self, asked, key, last=last)
        if asked.key is not None:
            self._joinable[key] = made
        self._flights[made] = None
        gathered = self._gathered.get(asked.place)
        if gathered is None:
            gathered = self._gathered[asked.place] = []
            sending = self.task(self._send(asked.place, gathered))
            sending.add_done_callback(partial(self._given_up, asked.place, gathered))
        gathered.append(made)
        if self._look is None:
            self._look = self.cluster.loop.call_later(LOOK_S, self._look_around)
        return made

    async def _send(self, place: Hashable, flights: list[Flight]) -> None:
        """Whatever was gathered for one place, as soon as it can be reached."""
        del self._gathered[place]
        for number, flight in enumerate(flights):
            try:
                connection = await flight.asked.where()
            except LogboomError as error:  # so it would for the others
                for each in flights[number:]:
                    each.answered(error)
                return
            except BaseException as error:
                for each in flights[number:]:
                    each.failed(error)
                raise
            if not flight.over:  # or all have gone meanwhile
                flight.send(connection)

    def _given_up(self, place: Hashable, flights: list[Flight], _: object) -> None:
        """Somebody has cancelled the task before it began."""
        if self._gathered.get(place) is flights:
            del self._gathered[place]
            for flight in flights:
                flight.failed(asyncio.CancelledError())

    def task(self, work: Any) -> asyncio.Task[None]:
        """Run from the next turn on, whatever tasks the loop makes (some begin at once); and be held until it ends."""
        task: asyncio.Task[None] = asyncio.Task(work, loop=self.cluster.loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def closed(self, flight: Flight) -> None:
        """Nobody can join it any more."""
        if self._joinable.get(flight.key) is flight:
            del self._joinable[flight.key]

    def ended(self, flight: Flight) -> None:
        """The request is over. Idempotent."""
        self.closed(flight)
        self._flights.pop(flight, None)
        if not self._flights and self._look is not None:
            self._look.cancel()
            self._look = None

    def _look_around(self) -> None:
        self._look = self.cluster.loop.call_later(LOOK_S, self._look_around)
        now = self.cluster.now
        for flight in list(self._flights):
            flight.look(now)


class Flight:
    """One request, its attempts, and who waits for it."""

    __slots__ = (
        "_at",
        "_attempts",
        "_early",
        "_last",
        "_members",
        "_request_id",
        "_sharing",
        "_task",
        "_until",
        "asked",
        "key",
    )

    def __init__(self, sharing: Sharing, asked: Asked, key: Hashable, *, last: bool) -> None:
        """``last``: those who wait have no time left."""
        self.asked = asked
        self.key = key
        self._sharing = sharing
        self._last = last
        self._members: dict[Waiting, tuple[float, int]] = {}
        """Their deadlines, and how many attempts had been made when they came."""
        self._attempts = 0
        self._until: float | None = None
        """The deadline of the attempt that is under way; None: it is not sent yet, and more may come."""
        self._early: dict[int, tuple[asyncio.TimerHandle, list[Waiting]]] | None = None
        """Those whose time is up before the attempt's, by when, in steps of ``TOGETHER_S``: one look for all of a
        step."""
        self._at: NodeConnection | None = None
        """Whom it was asked of last."""
        self._request_id = 0
        """The request that is under way there without a task; 0: there is none."""
        self._task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Nobody waits for it any more."""
        return not self._members

    async def again(self) -> NodeConnection:
        """Whom it was asked of, or who takes his place."""
        return self._at if self._at is not None and not self._at.closed else await self.asked.where()

    # -- who waits

    def join(self, deadline: float) -> Waiting:
        """Wait with the others; None: the time is up, and what is here now has to be asked for. Then ``leave``."""
        future: Waiting = self._sharing.cluster.loop.create_future()
        self._members[future] = deadline, self._attempts
        if self._until is not None:
            self._arm(future, deadline, self._until)
        return future

    def leave(self, future: Waiting) -> None:
        """Idempotent; the last one ends it."""
        if self._members.pop(future, None) is not None and not self._members:
            self._end()

    def _end(self) -> None:
        self._ended()
        self._forget()
        if self._task is not None:
            self._task.cancel()

    def _forget(self) -> None:
        """Give up the request that is under way."""
        request_id, self._request_id = self._request_id, 0
        if request_id and self._at is not None:
            self._at.forget(request_id)

    def _ended(self) -> None:
        """Nobody waits for it any more. Idempotent."""
        self._disarm()
        self._sharing.ended(self)

    def _arm(self, future: Waiting, deadline: float, until: float) -> None:
        if self._last or deadline >= until - TOGETHER_S:
            return
        step = math.ceil(deadline / TOGETHER_S)
        if self._early is None:
            self._early = {}
        if step not in self._early:
            self._early[step] = self._sharing.cluster.loop.call_at(step * TOGETHER_S, self._look_last, step), []
        self._early[step][1].append(future)

    def _disarm(self) -> None:
        early, self._early = self._early, None
        for timer, _ in (early or {}).values():
            timer.cancel()

    def _look_last(self, step: int) -> None:
        for future in self._early.pop(step)[1] if self._early else ():
            self.leave(future)
            if not future.done():
                future.set_result(None)

    def _begin(self) -> float:
        """An attempt, or several, until the latest deadline of all who wait."""
        self._until = until = max(deadline for deadline, _ in self._members.values())
        self._disarm()
        for future, (deadline, _) in self._members.items():
            self._arm(future, deadline, until)
        return until

    # -- the first attempt: without a task, and without a timer of its own

    def send(self, connection: NodeConnection) -> None:
        """Ask. Whatever comes of it but an answer: it goes on as a task."""
        self._attempted()
        self._at = connection
        header = self._header(self._begin())
        try:
            if connection.closed:
                raise Unavailable(f"the connection to {connection.address} is closed", address=connection.address)
            self._request_id = connection.post(Kind.BARRIER, header, (), self.answered)
        except LogboomError as error:
            self.answered(error)

    def _header(self, until: float) -> dict[str, Any]:
        left_ms = max(1, int((until - self._sharing.cluster.now) * 1000))
        return {**self.asked.header, "timeout_ms": left_ms}

    def _attempted(self) -> None:
        self._attempts += 1
        if not self.asked.lasting:
            self._sharing.closed(self)

    def answered(self, answer: Frame | LogboomError) -> None:
        """The first attempt is over."""
        self._request_id = 0
        if self.over:
            return
        if isinstance(answer, LogboomError):
            if self._until is None:
                self._attempted()  # there was nobody to send it to
            self._task = self._sharing.task(self._persist(answer))
        else:
            self._reached(answer)

    def look(self, now: float) -> None:
        """Some time has passed."""
        if self._task is not None:
            return
        if self._until is None:  # whom it is to be sent to cannot be reached so far
            for future, (deadline, _) in list(self._members.items()):
                if deadline + BARRIER_GRACE_S <= now:
                    self._tell(future, too_late())
        elif self._until + BARRIER_GRACE_S <= now:
            self._forget()
            self._task = self._sharing.task(self._persist(too_late()))

    # -- all others

    async def _persist(self, error: LogboomError) -> None:
        cluster = self._sharing.cluster
        try:
            failed: LogboomError | None = error
            if self._until is not None and _is_over(error, self._until - cluster.now):
                self._refused(error)
                failed = None
            while self._members:
                until = self._begin()
                try:
                    frame = await cluster.retry(
                        self._connect, self._ask, deadline=until, grace=BARRIER_GRACE_S, failed=failed, at=self._at
                    )
                except LogboomError as refused:
                    self._refused(refused)
                else:
                    self._reached(frame)
                failed = None
        except BaseException as broken:
            self.failed(broken)
            raise

    async def _connect(self) -> NodeConnection:
        try:
            return await self.asked.where()
        except LogboomError:
            self._attempted()
            raise

    async def _ask(self, connection: NodeConnection) -> Frame:
        self._attempted()
        self._at = connection
        header = self._header(self._sharing.cluster.now if self._until is None else self._until)
        return await connection.request(Kind.BARRIER, header)

    # -- what comes of it

    def _reached(self, frame: Frame) -> None:
        try:
            result = self._sharing.read(self.asked, frame)
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            self.failed(error)
            return
        first, *others = self._all()
        if not first.done():
            first.set_result(result)
        for future in others:
            if not future.done():
                # Who changes what he has been given does so for himself.
                own = dict(result.frontiers)
                future.set_result(BarrierResult(result.global_index, result.node_id, result.watermarks, own))

    def _refused(self, error: LogboomError) -> None:
        """Those whom it counts for are told; the others ask again."""
        until, closed = self._until, self._sharing.cluster.closed
        in_time = isinstance(error, DeadlineExceeded) or (error.retryable and not isinstance(error, BarrierBlocked))
        for future, (deadline, since) in list(self._members.items()):
            if closed or (until is None or deadline <= until if in_time else since < self._attempts):
                self._tell(future, error)

    def _tell(self, future: Waiting, error: LogboomError) -> None:
        told = error.again()  # each has a traceback of its own
        told.__cause__ = error.__cause__
        if not future.done():
            future.set_exception(told)
        del self._members[future]
        if not self._members:
            self._ended()

    def failed(self, error: BaseException) -> None:
        """Nobody has provided for this: all are told."""
        for future in self._all():
            if not future.done():
                future.cancel() if isinstance(error, asyncio.CancelledError) else future.set_exception(error)

    def _all(self) -> list[Waiting]:
        """Whoever waits; from now on nobody does."""
        members, self._members = list(self._members), {}
        self._ended()
        return members


def _is_over(error: LogboomError, left_s: float) -> bool:
    """Nothing more is to be tried until the deadline of those whom it counts for."""
    return isinstance(error, DeadlineExceeded) or is_final(error, left_s)


def too_late() -> DeadlineExceeded:
    """No answer came."""
    return DeadlineExceeded("the deadline passed before an answer came", outcome="not_applied")
