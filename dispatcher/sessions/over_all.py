"""Barriers over all partitions: that all which there are by then were waited for is looked at when one is reached.

A partition may be created after somebody asked, and in front of the index that he waits for: what is ordered of it up
to there he waits for, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from dispatcher.barriers.goals import Done, Reached, Waiter, Want
from dispatcher.pipeline.backend import Backend
from logboom.errors import LogboomError, Unavailable
from logboom.types import Level

CREATED_S: Final = 0.02
"""Until whoever is told of one more partition asks again: it is there."""


class Ask(Protocol):
    """Wait, as the first time, for something else. Raises what a barrier raises."""

    def __call__(self, want: Want, *, done: Done) -> Waiter | None:
        """See Barriers.add."""
        ...


class Request(NamedTuple):
    """A barrier over all partitions."""

    want: Want
    ask: Ask


class OverAll:
    """Barriers of one connection over all partitions.

    ``goes_on``: this waiter is a request's from now on; ``done``: what a request comes to.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        goes_on: Callable[[int, Waiter], None],
        done: Callable[[int, Reached | LogboomError], None],
    ) -> None:
        self._backend = backend
        self._goes_on = goes_on
        self._done = done
        self._requests: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def begin(self, request_id: int, want: Want, ask: Ask) -> None:
        """It is about all, and is about to wait for this."""
        self._requests[request_id] = Request(want, ask)

    def ended(self, request_id: int) -> None:
        """It is answered, or nobody waits for it."""
        self._requests.pop(request_id, None)

    def close(self) -> None:
        """Nobody waits for anything."""
        self._requests.clear()

    def answered(self, request_ids: list[int], where: Reached) -> list[int]:
        """Those for whom that is the answer. Of the others each waits on, or is told why it has to be asked again."""
        if self._requests.keys().isdisjoint(request_ids):
            return request_ids
        found, more = list[int](), self._more(where)
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is None:
                found.append(request_id)
            elif request.want.target > self._backend.global_commit_index():
                self._wait_until_ordered(request_id, request, where)
            elif more is not None:
                self._done(request_id, more)
            else:
                found.append(request_id)
        return found

    def _more(self, where: Reached) -> LogboomError | None:
        """Why there are others than those that were waited for; None: there are none, as of what is committed here."""
        try:
            self._backend.partitioning.check_all()
        except LogboomError as error:
            return error
        named = {mark.partition_id for mark in where.marks}
        more = next((p for p in self._backend.partition_ids() if p not in named), None)
        why = f"partition {more} was created since this was asked for; try again"
        return None if more is None else Unavailable(why, retry_after=CREATED_S)

    def _wait_until_ordered(self, request_id: int, request: Request, where: Reached) -> None:
        """Others are there, and this node has yet to hear of what was ordered up to there: partitions, too."""

        def done(answer: Reached | LogboomError) -> None:
            self._done(request_id, answer if isinstance(answer, LogboomError) else where)

        try:
            waiter = request.ask(Want(request.want.targets[:1], Level.ORDERED), done=done)
        except LogboomError as error:
            self._done(request_id, error)
            return
        if waiter is not None:
            self._goes_on(request_id, waiter)
