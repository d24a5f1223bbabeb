"""The submits of one connection: how many are under way, which of them wait; a brake for those that are refused.

Refusing costs less than admitting, and not nothing: a connection that goes on asking what is refused is not read for
a while, so that what it sends stays with whoever sends it, and the node's time goes to what is admitted.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import structlog

from dispatcher.admission.lanes import Waiting
from dispatcher.requests.requests import SubmitReply, encode_reply, parse_submit
from dispatcher.requests.tracing import begin
from dispatcher.sessions.principals import first_name
from logboom.errors import LogboomError, Overloaded, QuotaExceeded
from logboom.wire import Frame, Kind
from ports.invariant import InvariantViolated

if TYPE_CHECKING:
    from dispatcher.sessions.service import ClientService
    from dispatcher.sessions.session import Session

log = structlog.get_logger(__name__)

REQUESTS_MAX: Final = 4096
"""Requests under way per connection."""
HELD: Final = "held"
REFUSED: Final = "refused"


class Held:
    """Frames and when they came: of one read at most, since nothing more is read meanwhile."""

    def __init__(self) -> None:
        self._frames: OrderedDict[int, tuple[float, Frame]] = OrderedDict()
        """In the order in which they came, by their number."""
        self._of: dict[int, dict[int, None]] = {}
        """Numbers of those with one request id."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, came: float, frame: Frame) -> None:
        """It has its turn behind all that are there."""
        number = next(self._numbers)
        self._frames[number] = came, frame
        self._of.setdefault(frame.request_id, {})[number] = None

    def has(self, request_id: int) -> bool:
        """Some of that request."""
        return request_id in self._of

    def first(self) -> tuple[float, Frame]:
        """The one that came first, which is taken off. KeyError if there is none."""
        number, (came, frame) = self._frames.popitem(last=False)
        numbers = self._of[frame.request_id]
        del numbers[number]
        if not numbers:
            del self._of[frame.request_id]
        return came, frame

    def forget(self, request_id: int) -> None:
        """Take all frames of that request off."""
        for number in self._of.pop(request_id, ()):
            del self._frames[number]

    def clear(self) -> None:
        """All."""
        self._frames.clear()
        self._of.clear()


class Submits:
    """The submits of one session, and whatever else of it has to wait for its turn."""

    def __init__(self, session: Session, service: ClientService) -> None:
        self._session = session
        self._service = service
        self._longest_ms = service.settings.net.request_ms_max
        self._principal = ""
        self._waiting: dict[int, Waiting] = {}
        self._held = Held()
        self._brake: Brake | None = None
        self._unread: set[str] = set()
        """Why nothing is read."""
        self.under_way = 0

    def __len__(self) -> int:
        return self.under_way

    def submit(self, frame: Frame) -> None:
        """A SUBMIT. Raises InvalidRequest, RecordTooLarge and QuotaExceeded."""
        turns = self._service.turns
        if not self._held and not turns.is_over():
            self._submit(frame, turns.now)
        else:
            self._hold(frame)

    def held_back(self, frame: Frame) -> bool:
        """Another request of the kind that comes in crowds: it has to wait for a later turn, and goes to ``begin``."""
        if not self._held and not self._service.turns.is_over():
            return False
        self._hold(frame)
        return True

    def held_behind(self, frame: Frame) -> bool:
        """It is for a request that has to wait: it comes behind it, and goes to ``begin``."""
        if not self._held.has(frame.request_id):
            return False
        self._hold(frame)
        return True

    def _hold(self, frame: Frame) -> None:
        if HELD not in self._unread:  # else it is in the queue: what it held may have been cancelled
            self._service.turns.enqueue(self)
            self.read(HELD, on=False)
        self._held.add(self._service.backend.clock.monotonic(), frame)

    def one_held(self) -> bool:
        """The next frame that was held back; True: there are more."""
        if self._held:
            came, frame = self._held.first()
            try:
                if frame.kind is Kind.SUBMIT:
                    self._submit(frame, came)
                else:
                    self._session.begin(frame, came)
            except LogboomError as error:
                self._session.fail(frame.request_id, error)
            except InvariantViolated:
                raise
            except Exception as error:  # noqa: BLE001 - it is logged, and costs nobody else's connection his turn
                about = {"remote": self._session.remote, "request_id": frame.request_id}
                self._service.seldom.say(log.error, "request_failed", **about, exc_info=error)
                self._held.clear()
                self._session.connection.abort()
        if not self._held:
            self.read(HELD, on=True)
        return bool(self._held)

    def read(self, reason: str, *, on: bool) -> None:
        """Read the connection, unless there is another reason not to; or do not."""
        was_read = not self._unread
        (self._unread.discard if on else self._unread.add)(reason)
        if self._session.is_open and was_read != (not self._unread):
            connection = self._session.connection
            connection.pause_reading() if self._unread else connection.resume_reading()

    def _submit(self, frame: Frame, came: float) -> None:
        session, backend = self._session, self._service.backend
        principal = self._principal = self._principal or self._name()
        request = parse_submit(frame, now=came, principal=principal, longest_ms=self._longest_ms)
        if self.under_way >= REQUESTS_MAX:
            raise QuotaExceeded(
                "too many submits are under way", limit=REQUESTS_MAX, used=self.under_way, retry_after=0.05
            )
        self.under_way += 1
        request_id, tracer = frame.request_id, self._service.tracer
        trace = None if tracer is None else begin(tracer, "submit", frame, session.remote)
        if trace is not None:
            request = request._replace(trace=trace)

        waiting: Waiting | None = None

        def done(answer: SubmitReply | LogboomError) -> None:
            self.under_way -= 1
            if waiting is not None and self._waiting.get(request_id) is waiting:  # or another has the same id
                del self._waiting[request_id]
            if trace is not None:
                trace.end(answer)
            if isinstance(answer, LogboomError):
                session.fail(request_id, answer)
                if isinstance(answer, Overloaded):
                    self._refused()
            else:
                session.reply(request_id, Kind.SUBMITTED, encode_reply(answer))
            if not self.under_way and session.is_open:
                session.connection.flush()  # there is nothing to gather it with

        waiting = backend.submit(request, done, session)
        if waiting is not None:
            self._waiting[request_id] = waiting

    def _name(self) -> str:
        """Whose share of what is scarce these count for: of all who have that certificate, or of this connection."""
        name = first_name(self._session.connection)
        return name if name is not None else f"{self._service.backend.node_id}#{next(self._service.strangers)}"

    def cancel(self, request_id: int) -> None:
        """It is given up if it still waits for admission; else it runs on."""
        self._held.forget(request_id)  # those who asked wait no more
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            self._service.backend.submitting.cancel(waiting)

    def close(self) -> None:
        """The connection is gone."""
        self._held.clear()
        if self.under_way:
            self._service.backend.submitting.gone(self._session)
        if self._brake is not None:
            self._brake.close()

    def _refused(self) -> None:
        if self._brake is None:
            self._brake = Brake(self, self._service)
        self._brake.refused()


class Brake:
    """Counts what one connection is refused; stops reading it when that is too often."""

    def __init__(self, submits: Submits, service: ClientService) -> None:
        self._submits = submits
        self._clock = service.backend.clock
        settings = service.settings.admission
        self._most = settings.refusals_max
        self._window_s = settings.retry_after_ms / 1000
        self._count = 0
        self._began = -1e9
        self._on: asyncio.TimerHandle | None = None

    def refused(self) -> None:
        """Once more."""
        now = self._clock.monotonic()
        if now - self._began > self._window_s:
            self._began, self._count = now, 0
        self._count += 1
        if self._most and self._count >= self._most and self._on is None:
            self._submits.read(REFUSED, on=False)
            # Not longer: cancellations and signs of life are held up with the rest.
            self._on = asyncio.get_running_loop().call_later(self._window_s, self._release)

    def _release(self) -> None:
        self._on, self._count = None, 0
        self._submits.read(REFUSED, on=True)

    def close(self) -> None:
        """Nothing is to be read any more."""
        if self._on is not None:
            self._on.cancel()
