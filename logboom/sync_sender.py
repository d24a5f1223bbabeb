"""``Client.sender`` for code that blocks: a future of ``concurrent.futures`` for each command."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from logboom.background import Background, closed_error
from logboom.client import Client
from logboom.client.parts import record_bytes
from logboom.client.sender import Sender
from logboom.commands import Command, to_record
from logboom.types import Receipt, Record


class SyncSender:
    """Made by ``SyncClient.sender``. Safe to use from several threads, and after a fork."""

    def __init__(self, running: Callable[[], Background], make: Callable[[Client], Sender]) -> None:
        self._running = running
        self._make = make
        self._line = _Line(running(), make)

    def send(self, command: Command | Record) -> Future[Receipt]:
        """Submit one command; its receipt, or what became of it, comes through the future.

        See ``Sender.send``. While ``max_in_flight_bytes`` are unanswered this blocks, for ``timeout`` at most; then it
        raises DeadlineExceeded, and nothing was sent. Of several threads the one that came first goes first. Who
        cancels a future is told nothing more of its command, which may take effect.
        """
        running = self._running()
        line = self._line
        if line.running is not running:  # after a fork
            line = self._line = _Line(running, self._make)
        record = to_record(command)
        return line.send(record, record_bytes(record))


class _Line:
    """Of one process: commands on their way to the client's own thread, and answers back."""

    def __init__(self, running: Background, make: Callable[[Client], Sender]) -> None:
        self.running = running
        self._sender = make(running.client)
        self._open_bytes = 0
        self._new: deque[tuple[Record, Future[Receipt], int]] = deque()
        # No condition: who is interrupted in there keeps the lock for ever, or has let go of it and ends with another
        # error. What is waited for here are locks of the interpreter's, taken in one step or not at all.
        self._lock = threading.RLock()
        self._turns: deque[threading.Lock] = deque()
        """Locks of those that wait for room, in the order in which they came. Released: look whether there is some."""
        running.add(self)

    def send(self, record: Record, size: int) -> Future[Receipt]:
        """Blocks while there is no room, or others wait for it.

        Not on the client's own thread, in a callback of an earlier future: there it passes who waits, or is refused.
        """
        answer = _Answer(self.running)
        if not self._try(record, answer, size):
            self.running.check_thread()
            self._wait(record, answer, size)
        return answer

    def _wait(self, record: Record, answer: Future[Receipt], size: int) -> None:
        turn = threading.Lock()
        turn.acquire()
        end = time.monotonic() + self._sender.timeout
        try:
            self._turns.append(turn)
            while not self._try(record, answer, size, turn):
                left = end - time.monotonic()
                if left <= 0:
                    raise self._sender.budget.too_late()
                turn.acquire(timeout=min(left, threading.TIMEOUT_MAX))
        finally:
            # No interrupt comes before the turn is over. Who is interrupted while he tells the next one, and was not
            # before, has sent something, or there was no room: what is answered then tells it, too.
            try:
                self._turns.remove(turn)
            finally:
                self._tell_first()

    def _try(self, record: Record, answer: Future[Receipt], size: int, turn: threading.Lock | None = None) -> bool:
        """Send it, if there is room and nobody waits in front of it. Raises InvalidRequest when closed."""
        with self._lock:
            if self._open_bytes and self._open_bytes + size > self._sender.budget.limit:
                return False
            if turn is None:
                if self._turns and not self.running.is_own_thread:
                    return False
            elif self._turns[0] is not turn:
                return False
            if self.running.closed:
                raise closed_error()
            if not self._new:  # first of all: who is interrupted behind it leaves nothing that nobody looks at
                self.running.soon(self._begin)
            self._open_bytes += size  # no interrupt comes between this and the next line
            self._new.append((record, answer, size))
        return True

    def _tell_first(self) -> None:
        """It is to look whether there is room now."""
        with self._lock:
            for turn in tuple(self._turns)[:1]:  # who leaves does not wait for the lock
                if turn.locked():
                    turn.release()

    # -- on the client's thread

    def _begin(self) -> None:
        for record, answer, size in self._take_new():
            try:
                sent = self._sender.send(record)
            except Exception as error:  # noqa: BLE001 - whoever waits is told, and those behind it have their turn
                self._ended(size)
                self._settle(answer, error)
            else:
                sent.add_done_callback(partial(self._done, answer, size))

    def _take_new(self) -> deque[tuple[Record, Future[Receipt], int]]:
        with self._lock:
            new, self._new = self._new, deque()
        return new

    def _done(self, answer: Future[Receipt], size: int, sent: asyncio.Future[Receipt]) -> None:
        self._ended(size)
        if sent.cancelled():  # with the loop
            self._settle(answer, closed_error(outcome="unknown"))
        else:
            self._settle(answer, sent.exception() or sent.result())

    def _ended(self, size: int) -> None:
        with self._lock:
            self._open_bytes -= size
            self._tell_first()

    def over(self) -> None:
        """The loop has ended: what has not begun on it never will."""
        for _, answer, size in self._take_new():
            self._ended(size)
            self._settle(answer, closed_error())

    def _settle(self, answer: Future[Receipt], outcome: Receipt | BaseException) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        if isinstance(outcome, BaseException):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)


class _Answer(Future[Receipt]):
    """A future whose callbacks end no thread but that of whoever calls them.

    On the client's own, one that asks to end the process asks nobody who could: those behind it have their turn.
    """

    def __init__(self, background: Background) -> None:
        super().__init__()
        self._background = background

    def add_done_callback(self, fn: Callable[[Future[Receipt]], object]) -> None:
        super().add_done_callback(partial(self._call, fn))

    def _call(self, fn: Callable[[Future[Receipt]], object], answer: Future[Receipt]) -> None:
        try:
            fn(answer)
        except Exception:
            raise  # the future logs it
        except BaseException as error:
            if not self._background.is_own_thread:
                raise
            story = {"message": "a callback of what a sender gave raised it", "exception": error}
            self._background.loop.call_exception_handler(story)
