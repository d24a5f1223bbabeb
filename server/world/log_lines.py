"""Lines on their way to stderr: queued by whoever logs, written by a thread that does nothing else.

Whoever reads them may stop for a while, or for good, and leave the pipe open: a write would wait for it. Nobody of the
node does. What there is no room for is left out, counted, and said in one line where it would have been.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, NamedTuple

STDERR: Final = 2
STDERR_AGAIN: Final = "/proc/self/fd/2"


class _Line(NamedTuple):
    raw: bytes
    lost: int
    """Lines that were left out in front of this one."""


class Lines:
    """A stream, as much of one as logging uses. ``write`` never waits, and never raises."""

    def __init__(self) -> None:
        self.lost = 0
        """Lines left out since the start."""
        self.queue_bytes = 0
        self.told: Callable[[int], str] = lambda lost: f"{lost} log lines were lost\n"
        """What is said of lines that were left out."""
        self._waiting: SimpleQueue[_Line | threading.Event] = SimpleQueue()
        # The collector may end a task that nobody awaited, which logs, in the middle of all this: hence reentrant.
        self._lock = threading.RLock()
        self._queued = 0
        self._gap = 0
        """Lines left out that no line in the queue tells of."""
        self._failed = 0
        """Lines that could not be written; the writer's."""
        self._torn = False
        """The last line was written in part."""
        self._ending = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to queue. Idempotent."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="log", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads: then lines are written by whoever logs
                return
            self._thread = thread

    def write(self, text: str) -> int:
        """Queue one line, or some."""
        raw = text.encode("utf-8", "backslashreplace")
        if self._thread is None:
            self._put(raw)
            return len(text)
        with self._lock:
            # After a gap it has to be half empty again: one gap is told of, not one with every other line.
            room = self.queue_bytes // 2 if self._gap else self.queue_bytes
            if self._queued and self._queued + len(raw) > room and not self._ending:
                self._gap += 1
                self.lost += 1
            else:
                self._queued += len(raw)
                self._gap, gap = 0, self._gap
                self._waiting.put(_Line(raw, gap))
        return len(text)

    def flush(self) -> None:
        """Nothing: lines are on their way, and nobody may wait for them."""

    def ending(self) -> None:
        """The process is about to end: what is said from now on finds room."""
        self._ending = True

    def drain(self, seconds: float) -> None:
        """Until what has been said is written; so long at most."""
        if self._thread is not None:
            reached = threading.Event()
            self._waiting.put(reached)
            reached.wait(min(seconds, threading.TIMEOUT_MAX))

    # -- the thread

    def _work(self) -> None:
        while True:
            line = self._waiting.get()
            if isinstance(line, _Line):
                self._tell(line.lost)
                self._put(line.raw)
            gap = 0
            with self._lock:
                self._queued -= len(line.raw) if isinstance(line, _Line) else 0
                if self._waiting.empty():  # no line is there to tell of it
                    self._gap, gap = 0, self._gap
            self._tell(gap)
            if isinstance(line, threading.Event):
                line.set()

    def _tell(self, lost: int) -> None:
        lost += self._failed
        if lost and not self._write(self.told(lost).encode()):
            self._failed = lost
        else:
            self._failed = 0

    def _put(self, raw: bytes) -> None:
        if not self._write(raw):
            self._failed += 1
            with self._lock:
                self.lost += 1

    def _write(self, raw: bytes) -> bool:
        left = memoryview(b"\n" + raw if self._torn else raw)
        begun = False
        while left:
            try:
                left = left[os.write(STDERR, left) :]
            except BlockingIOError:  # whoever has made this pipe does not want to wait for it
                _writable()
            except OSError:
                self._torn |= begun
                return False
            begun = True
        self._torn = False
        return True


def unwaiting() -> int:
    """A descriptor to stderr for whoever may not wait, not even for a reader that has stopped: it refuses instead.

    One of its own where there can be one, as the flag is of all processes that have been given the same.
    """
    kind = os.fstat(STDERR).st_mode
    if stat.S_ISREG(kind):
        return STDERR  # nobody has to read it; two positions in one file would overwrite each other
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(STDERR_AGAIN, flags)
    except OSError:  # a socket, or a pipe of another user
        if not os.isatty(STDERR):  # a shell reads from what it is given back
            os.set_blocking(STDERR, False)
    return STDERR


def _writable() -> None:
    waiting = select.poll()
    waiting.register(STDERR, select.POLLOUT)
    waiting.poll()
