"""Until this node has heard or applied as much as somebody wants, or it is seen that it will not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from dispatcher.barriers.goals import Reached, Want
from logboom.errors import LogboomError, NoSuchPartition, Unavailable
from logboom.types import GlobalLogIndex, PartitionId

if TYPE_CHECKING:
    from dispatcher.pipeline.backend import Backend
    from dispatcher.reading.surroundings import Asker

HEARD_S: Final = 2.0
"""Nobody who asks for what this node has not heard of is kept for longer."""
FAR_S: Final = 1.0
NAMED_MAX: Final = 8
"""Of those that an error is about."""


async def until_ordered(backend: Backend, global_index: GlobalLogIndex, deadline: float) -> None:
    """All that is ordered up to there is known here: partitions that were created in front of it, too.

    Raises Unavailable at the deadline, and after ``HEARD_S`` (others may have heard of it), at once of what is further
    ahead than a barrier may be, where nobody has led for a while, or as long as this node does not know again what it
    knew before it was started.
    """
    if not backend.recovery.complete:
        raise Unavailable("this node is still recovering; ask another or try again", retry_after=0.1)
    if backend.global_commit_index() >= global_index:
        return
    backend.leaderless.check()
    now, why = backend.clock.monotonic(), f"this node has not heard of what was ordered up to {global_index}"
    if global_index > backend.global_commit_index() + backend.settings.barrier.ahead_max:
        raise Unavailable(f"{why}, by far", retry_after=FAR_S)
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[None] = loop.create_future()

    def moved() -> None:
        if not heard.done() and backend.global_commit_index() >= global_index:
            heard.set_result(None)

    def too_late() -> None:
        if not heard.done():
            heard.set_exception(Unavailable(why))

    timer = loop.call_later(min(HEARD_S, max(0.0, deadline - now)), too_late)
    leave = backend.subscribe_ordered(moved)
    try:
        with backend.leaderless.ends(heard):
            await heard
    finally:
        timer.cancel()
        leave()


async def until_applied(
    backend: Backend,
    targets: Sequence[tuple[PartitionId, GlobalLogIndex]],
    deadline: float,
    *,
    asker: Asker | None = None,
) -> None:
    """Each of them up to its own index. ``asker``: whose places it takes, and not the node's own.

    Raises Unavailable at the deadline, as soon as one stands still in front of its index, and where that is not
    committed here as ``until_ordered`` does; NoSuchPartition for one that is gone; QuotaExceeded.
    """
    if asker is not None:
        deadline = min(deadline, backend.clock.monotonic() + backend.settings.barrier.wait_ms_max / 1000)
    while True:
        backend.look()
        for partition_id, _ in targets:
            if partition_id not in backend.workers:
                raise backend.missing(partition_id)
            backend.lagging.check(partition_id)
        marks = backend.watermarks
        behind = tuple((p, target) for p, target in targets if marks.of(p).applied_global_index < target)
        if not behind:
            return
        target = max(at for _, at in behind)
        committed = backend.global_commit_index() >= target
        if not committed:
            _check_unheard(backend, target)
        try:
            await _reached(backend, behind, deadline, asker, committed=committed)
        except Unavailable:
            if committed or backend.global_commit_index() < target:
                raise
        else:
            return
        # It has been heard of since: the rest of the time is for applying it.


def _check_unheard(backend: Backend, target: GlobalLogIndex) -> None:
    """It may be heard of before long. Raises Unavailable."""
    backend.leaderless.check()
    if target > backend.global_commit_index() + backend.settings.barrier.ahead_max:
        raise Unavailable(f"this node has not heard of what was ordered up to {target}, by far", retry_after=FAR_S)


async def _reached(
    backend: Backend,
    behind: tuple[tuple[PartitionId, GlobalLogIndex], ...],
    deadline: float,
    asker: Asker | None,
    *,
    committed: bool,
) -> None:
    """All of these are. ``committed``: it is seen to be so, and they are waited for to the end."""
    now, marks = backend.clock.monotonic(), backend.watermarks
    reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def still_behind() -> str:
        there = ((p, target) for p, target in behind if marks.has(p))
        left = [(p, target) for p, target in there if marks.of(p).applied_global_index < target]
        return ", ".join(f"partition {p} is not applied up to {target} here" for p, target in left[:NAMED_MAX])

    def done(answer: Reached | LogboomError) -> None:
        if reached.done():
            return
        if isinstance(answer, LogboomError):
            gone = isinstance(answer, NoSuchPartition)
            reached.set_exception(answer if gone else Unavailable(f"{still_behind()}: {answer}"))
        else:
            reached.set_result(None)

    waiter = backend.barriers.add(
        Want(behind),
        client=backend if asker is None else asker.client,
        principal=None if asker is None else asker.principal,
        deadline=deadline if committed else min(deadline, now + HEARD_S),
        now=now,
        done=done,
        own=asker is None,
        reading=asker is not None and committed,
    )
    backend.hurry([partition_id for partition_id, _ in behind])
    try:
        with nullcontext() if committed else backend.leaderless.ends(reached):
            await reached
    finally:
        if waiter is not None:
            backend.barriers.cancel(waiter)
