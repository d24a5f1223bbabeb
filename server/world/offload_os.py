"""Threads for blocking work (ports.offload)."""

from __future__ import annotations

import asyncio
import errno
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from types import FrameType
from typing import Final, TypeVar

from ports.offload import Place
from ports.telling import tellable
from ports.timers import wait

T = TypeVar("T")
CLOSE_LOOK_S: Final = 0.002


class _Pool(ThreadPoolExecutor):
    """What is submitted while no further thread is to be had is done by those that there are."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:  # a limit of processes, of a container or a user, that others share
            if not self._threads:
                raise

    def works(self) -> bool:
        """Threads that end only after what was submitted are still there."""
        return any(thread.is_alive() for thread in self._threads)


class ThreadOffload:
    """A bounded pool; results come back on the loop that submitted."""

    def __init__(self, *, workers: int, name: str) -> None:
        """Raises OSError if there cannot be a single thread: no job is ever left lying."""
        self._workers, self._name = workers, name
        self._pool = self._begun()
        self._given_up: list[_Pool] = []
        """Pools that were given up on, whose threads may come back."""

    def _begun(self) -> _Pool:
        workers, name = self._workers, self._name
        pool = _Pool(max_workers=workers, thread_name_prefix=name)
        try:
            pool.submit(int)
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"{error}, for {name!r}: is there a limit of processes?") from error
        return pool

    def submit(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """See Offload."""
        loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                result, error = job(), None
            except BaseException as caught:  # noqa: BLE001 - handed to ``done``, as the port says
                result, error = None, caught
            if not loop.is_closed():
                loop.call_soon_threadsafe(done, result, error)

        self._pool.submit(work)

    async def run(self, job: Callable[[], T]) -> T:
        """See Offload."""

        def work() -> T:
            try:
                return job()
            except BaseException as error:
                if isinstance(error, Exception) and not isinstance(error, StopIteration):
                    raise
                # No future takes the one, and who waited would do so for ever; the others would end the loop.
                raise RuntimeError(f"a job raised {tellable(error)}") from error

        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def close(self) -> None:
        """Wait for the jobs under way; without a thread for that, which is not always to be had."""
        self._pool.shutdown(wait=False)
        while any(pool.works() for pool in (self._pool, *self._given_up)):
            await wait(CLOSE_LOOK_S)


OWN: Final = ("dispatcher", "logboom", "partitions", "ports", "raftlog", "server", "snapshots")
"""Packages of this project: places in others are in what somebody else has written."""


class SlowOffload(ThreadOffload):
    """One thread, for what may last, and where that is."""

    def __init__(self, *, name: str) -> None:
        super().__init__(workers=1, name=name)
        self._thread: int | None = None
        """The one that works, while it does."""
        self._moved = 0
        """How many jobs were begun, and naps taken: see ``Place.mark``."""

    def submit(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """See Offload."""
        super().submit(self._watched(job), done)

    async def run(self, job: Callable[[], T]) -> T:
        """See Offload."""
        return await super().run(self._watched(job))

    def _watched(self, job: Callable[[], T]) -> Callable[[], T]:
        def work() -> T:
            self._moved += 1
            thread = self._thread = threading.get_ident()
            try:
                return job()
            finally:
                if self._thread == thread:  # else it was given up
                    self._thread = None

        return work

    def give_up(self) -> None:
        """On the job under way: it keeps its thread, and what is submitted from now on gets another.

        Raises OSError if there is none; then all is as it was.
        """
        given_up, self._pool = self._pool, self._begun()
        given_up.shutdown(wait=False)
        self._given_up = [pool for pool in (*self._given_up, given_up) if pool.works()]
        self._thread = None

    def sleep(self, seconds: float) -> None:
        """Of a job that is not to be faster: it does not stand still."""
        self._moved += 1
        time.sleep(seconds)

    def place(self) -> Place | None:
        """Where the job under way is; None: there is none."""
        thread = self._thread
        frame = None if thread is None else sys._current_frames().get(thread)  # noqa: SLF001 - no other way to see it
        if frame is None:
            return None
        stack: list[FrameType] = []
        while frame is not None:
            stack.append(frame)
            frame = frame.f_back
        foreign = list(takewhile(lambda each: not _is_own(each), stack))
        shown = foreign[-1] if foreign else stack[0]
        return Place(
            (self._moved, *((id(each), each.f_lasti) for each in stack)),
            f"{shown.f_code.co_qualname} ({shown.f_code.co_filename}:{shown.f_lineno})",
        )


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in OWN
