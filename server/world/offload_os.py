"""Threads for blocking work (ports.offload)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class _Pool(ThreadPoolExecutor):
    """What is submitted while no further thread is to be had is done by those that there are."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:  # a limit of processes, of a container or a user, that others share
            if not self._threads:
                raise


class ThreadOffload:
    """A bounded pool; results come back on the loop that submitted."""

    def __init__(self, *, workers: int, name: str) -> None:
        """Raises OSError if there cannot be a single thread: no job is ever left lying."""
        self._pool = _Pool(max_workers=workers, thread_name_prefix=name)
        try:
            self._pool.submit(int)
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"{error}, for {name!r}: is there a limit of processes?") from error

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
                raise RuntimeError(f"a job raised {error!r}") from error

        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def close(self) -> None:
        """Wait for the jobs under way."""
        await asyncio.to_thread(self._pool.shutdown)
