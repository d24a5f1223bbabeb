"""A partition's machine, asked on its threads. It stays open until it has answered, whoever has given up meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ports.offload import Offload
from ports.telling import tellable

T = TypeVar("T")


class Asking:
    """One partition's threads, for those who read."""

    def __init__(self, offload: Offload, hold: Callable[[], Callable[[], None]]) -> None:
        """``hold`` keeps the machine open until what it gives is called."""
        self._offload = offload
        self.hold = hold

    async def run(self, job: Callable[[], T]) -> T:
        """As ``Offload.run``. Cancelling the wait stops neither the job nor what it reads from."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(found: T | None, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(found)  # type: ignore[arg-type]  # None is one, where there is no error
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                answer.set_exception(error)
            else:
                answer.set_exception(RuntimeError(f"a read raised {tellable(error)}"))

        self.begin(job, done)
        return await answer

    def begin(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """As ``Offload.submit``."""
        let_go = self.hold()

        def ended(found: T | None, error: BaseException | None) -> None:
            let_go()
            done(found, error)

        try:
            self._offload.submit(job, ended)
        except BaseException:
            let_go()
            raise
