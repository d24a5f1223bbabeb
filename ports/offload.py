"""Blocking work off the event loop. The simulator runs jobs in virtual time instead."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Place(NamedTuple):
    """Where a job is. Of one that goes on ``mark`` is another one later."""

    mark: Hashable
    shown: str
    """The place, for people."""


class Offload(Protocol):
    """Runs blocking jobs elsewhere and tells the loop when they are done."""

    def submit(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run ``job`` off the loop; then call ``done(result, None)`` or ``done(None, error)`` on the loop.

        Jobs may run in parallel and finish in any order.
        """
        ...

    async def run(self, job: Callable[[], T]) -> T:
        """The same, awaited. Cancelling the wait does not stop the job."""
        ...

    async def close(self) -> None:
        """Wait for the jobs under way; nothing may be submitted any more."""
        ...
