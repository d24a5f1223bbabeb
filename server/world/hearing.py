"""Signals that ask a node to stop, heard by a thread as well: a loop that hangs hears none, and is to end too."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

LOOK_MS: Final = 60_000
"""poll() takes no time of any length."""


class Hearing:
    """Stands between the system, which says what has come in a descriptor, and the loop, whose that one is.

    ``late`` is called by the thread, ``seconds`` after the first of these signals: unless it is closed before. Made and
    used by the main thread. What cannot be told to a thread, as there are no more of them, goes to the loop alone.
    """

    def __init__(self, numbers: Iterable[signal.Signals], late: Callable[[], None], seconds: float) -> None:
        self._numbers = frozenset(map(int, numbers))
        self._late, self._seconds = late, seconds
        self._lock = threading.Lock()
        self._before = self._loop = -1
        """The loop's own descriptor, and one that stays open when the loop closes that."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        try:
            threading.Thread(target=self._work, name="signals", daemon=True).start()
        except RuntimeError:
            os.close(self._reader)
            os.close(self._writer)
            self._writer = -1

    def listen(self) -> None:
        """From now on; again after every handler that the loop was given, as that is told itself then."""
        if self._writer < 0:
            return
        with self._lock:  # what comes meanwhile is passed on after it
            before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            if before in (-1, self._writer):
                return
            if self._loop >= 0:
                os.close(self._loop)
            self._before, self._loop = before, os.dup(before)

    def close(self) -> None:
        """The loop hears by itself again."""
        if self._writer < 0:
            return
        now = signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)
        if now != self._writer:
            signal.set_wakeup_fd(now, warn_on_full_buffer=False)
        os.close(self._writer)
        self._writer = -1

    # -- the thread

    def _work(self) -> None:
        waiting = select.poll()
        waiting.register(self._reader, select.POLLIN)
        until: float | None = None
        heard = False
        while True:
            left_ms = LOOK_MS if until is None else min(max(until - time.monotonic(), 0) * 1000, LOOK_MS)
            if waiting.poll(left_ms):
                numbers = os.read(self._reader, 64)
                if not numbers:
                    break
                self._pass_on(numbers)
                if not heard and not self._numbers.isdisjoint(numbers):
                    heard, until = True, time.monotonic() + self._seconds
            elif until is not None and time.monotonic() >= until:
                until = None
                self._late()
        os.close(self._reader)
        if self._loop >= 0:
            os.close(self._loop)

    def _pass_on(self, numbers: bytes) -> None:
        with self._lock, contextlib.suppress(BlockingIOError, BrokenPipeError):  # it wakes up anyway, or is closed
            if self._loop >= 0:
                os.write(self._loop, numbers)
