"""Threads for blocking work (ports.offload)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class ThreadOffload:
    """A bounded pool; results come back on the loop that submitted."""

    def __init__(self, *, workers: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix=name)

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
        return await asyncio.get_running_loop().run_in_executor(self._pool, job)

    async def close(self) -> None:
        """Wait for the jobs under way."""
        await asyncio.to_thread(self._pool.shutdown)
