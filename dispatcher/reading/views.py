"""The state of several partitions as of one ``global_log_index``: a consistent scan over all of them.

In one turn of the loop, at commit index G, every partition's worker is told to stop where its log ends then: none can
have applied more. Each stops only until a view of its state is open, a read transaction, and goes on; so what is held
up is one group, and what comes out is the state at G everywhere, however long the client takes to read it. One that is
paused or damaged in front of G ends it at once; paused with nothing left to apply it is as good as any.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dispatcher.reading import reads
from dispatcher.reading.scans import PIECE_BYTES, SCAN_CHUNK, Rows, View, let_go, rows_of
from dispatcher.reading.surroundings import Asker, Surroundings
from dispatcher.requests.requests import field_of
from logboom.errors import (
    CorruptData,
    InvalidRequest,
    LogboomError,
    PartitionDestroyed,
    QuotaExceeded,
    RecordTooLarge,
    Unavailable,
)
from logboom.state_machine import Machine
from logboom.types import CURSORS, MIB, PartitionId
from partitions.apply.stops import Stop
from ports.offload import Offload

PARTITIONS_MAX: Final = 1024
FEW: Final = 16
"""Views of more partitions read few keys of each at first."""
FIRST_KEYS: Final = 16
"""Of each partition, in a view of more than ``FEW``: held until it is its turn."""
FIRST_KEYS_ALL: Final = 1024
"""Of all partitions of such a view, and one of each at least."""
BYTES_LEAST: Final = 8 * MIB
"""So much may be held of all."""


@dataclass(slots=True)
class Held:
    """What has been read to open views, and not handed out yet."""

    bytes_max: int
    nbytes: int = 0


class Views:
    """The views of one node: those that are open, and what is held for them."""

    def __init__(self, backend: Surroundings, *, views_max: int, bytes_max: int = 64 * MIB) -> None:
        """``bytes_max``: of what has been read to open those of many partitions, and not handed out yet."""
        self._backend = backend
        self._views_max = views_max
        self._many = Held(max(bytes_max, BYTES_LEAST))
        self._few = Held(views_max * FEW * PIECE_BYTES)
        """However much those of many hold, and as much as so many may be of, unless their entries are large."""
        self.open = 0

    @property
    def held_bytes(self) -> int:
        """So much has been read to open them, and not handed out yet."""
        return self._many.nbytes + self._few.nbytes

    async def scan(
        self,
        partitions: Sequence[PartitionId],
        header: Mapping[str, Any],
        deadline: float,
        *,
        anew: Callable[[], Sequence[PartitionId]] | None = None,
        asker: Asker | None = None,
    ) -> AsyncGenerator[tuple[dict[str, Any], list[Any]], None]:
        """Headers and bodies of ENTRIES, one partition after the other, each ascending.

        ``anew``: they are all that there are, and which these are is asked again in the turn that the view is of.
        With ``of_all`` in the header all are named, of those that have keys.

        Raises QuotaExceeded, InvalidRequest (a partition has no keys; RecordTooLarge: their first entries are too large
        to be held), and what any read raises.
        """
        self._check(partitions)
        start, end = reads.scan_range(header)
        limit, of_all = field_of(header, "limit", int, 0), bool(header.get("of_all"))
        fresh = False
        while not fresh:
            try:
                await reads.make_fresh(self._backend, header, partitions[0], deadline, asker=asker)
                fresh = True
            except PartitionDestroyed:
                if anew is None:
                    raise
            if anew is not None:
                partitions = anew()
                self._check(partitions)
        if of_all:
            self._check_all(partitions)
        self._check(partitions)
        self.open += 1
        views: dict[PartitionId, View] = {}
        many = len(partitions) > FEW
        held = self._many if many else self._few
        try:
            with ExitStack() as uses:
                for partition in partitions:
                    uses.enter_context(self._backend.using(partition))
                chunk = max(1, min(FIRST_KEYS, FIRST_KEYS_ALL // len(partitions))) if many else SCAN_CHUNK
                scan = partial(_first, start=start, end=end, limit=limit, chunk=chunk)
                global_index = await self._gather(partitions, scan, views, held, deadline)
                for partition in dict.fromkeys(partitions):
                    async for rows in self._rows(partition, views[partition], held):
                        reply, body = reads.entries(*rows)
                        yield {**reply, "partition": partition, "global_index": global_index}, body
        finally:
            self.open -= 1
            for view in views.values():
                _first_of(view, held)
            for partition, view in views.items():
                let_go(partition, view)

    def _check(self, partitions: Sequence[PartitionId]) -> None:
        """One more view, of these, may be open."""
        if self.open >= self._views_max:
            raise QuotaExceeded("too many views are open", limit=self._views_max, used=self.open, retry_after=0.1)
        if not 1 <= len(partitions) <= PARTITIONS_MAX:
            raise InvalidRequest(f"{len(partitions)} partitions in one view; 1 to {PARTITIONS_MAX}")
        for partition in partitions:
            if partition in self._backend.workers and self._backend.partitioning.kind(partition).state_machine == "log":
                raise InvalidRequest(f"partition {partition} is a log: it has no keys to scan")

    def _check_all(self, named: Collection[PartitionId]) -> None:
        """Of a request over an old partition and a new one half would show, should the new one not be among these."""
        there = set(named)
        for partition, machine, _, *others in self._backend.partition_rows():
            if machine != "log" and CURSORS not in others and partition not in there:
                raise Unavailable(
                    f"partition {partition} was created since: ask for all that there are", retry_after=0.02
                )

    def _too_much(self, views: Mapping[PartitionId, View], held: Held) -> LogboomError | None:
        """Why what has been read to open ``views`` may not be held."""
        used, limit = held.nbytes, held.bytes_max
        if used <= limit:
            return None
        own = sum(view.first_bytes for view in views.values())
        if own > limit and held is self._many:
            return RecordTooLarge(
                f"of so many partitions {own} bytes of large values would have to be held at once: name fewer",
                size=own,
                limit=limit,
            )
        if own == used:
            return None
        why = f"views hold {used} bytes of large values: ask again, or name fewer partitions"
        return QuotaExceeded(why, limit=limit, used=used, retry_after=0.1)

    async def _rows(self, partition: PartitionId, view: View, held: Held) -> AsyncIterator[Rows]:
        try:
            rows = _first_of(view, held)
            if rows is None:
                rows = await view.threads.run(view.more)
            while rows is not None:
                yield rows
                if partition not in self._backend.workers:
                    raise self._backend.missing(partition)
                rows = await view.threads.run(view.more)
        except OSError as error:
            raise Unavailable(f"the state of partition {partition} could not be read: {error}") from error
        except CorruptData as error:
            reads.state_damaged(self._backend, partition, view.machine, error)
            raise

    async def _gather(
        self,
        partitions: Sequence[PartitionId],
        scan: Any,
        views: dict[PartitionId, View],
        held: Held,
        deadline: float,
    ) -> int:
        """Fills ``views``; returns the index that they are of."""
        backend, loop = self._backend, asyncio.get_running_loop()
        whole: asyncio.Future[None] = loop.create_future()
        stops: dict[PartitionId, Stop] = {}
        late: dict[PartitionId, Callable[[], None]] = {}
        """Machines that have not given theirs yet, which nobody waits for: how to let them be closed."""
        global_index = int(backend.parent.global_index)

        def taken(partition: PartitionId, through: int, offload: Offload, view: View | None) -> None:
            stops.pop(partition, None)
            if view is not None:
                view.threads = backend.threads_for(view.machine, offload)
            if whole.done():  # nobody waits any more
                if view is not None:
                    let_go(partition, view)
                if partition in late:
                    late.pop(partition)()
                return
            if view is None:
                whole.set_exception(Unavailable(f"the state of partition {partition} could not be read"))
                return
            views[partition] = view
            held.nbytes += view.first_bytes
            applied = view.first[1].applied_index if view.first is not None else through
            if applied != through:
                whole.set_exception(CorruptData(f"partition {partition}: a view of {applied}, not of {through}"))
            elif (error := self._too_much(views, held)) is not None:
                whole.set_exception(error)
            elif len(views) == len(set(partitions)):
                whole.set_result(None)

        def stands_still(waiting: asyncio.Future[None]) -> None:
            error = None if waiting.cancelled() else waiting.exception()
            if error is not None and not whole.done():
                whole.set_exception(error)

        def moved(error: LogboomError | None = None) -> None:
            if error is not None and not whole.done():
                whole.set_exception(error)

        for partition in partitions:
            if partition not in backend.workers:
                raise backend.missing(partition)
        told = [backend.subscribe_commits(partition, moved) for partition in dict.fromkeys(partitions)]
        for partition in dict.fromkeys(partitions):  # in one turn: all of the same moment
            worker, through = backend.workers[partition], backend.logs[partition].committed_index
            stops[partition] = worker.stop_at(through, scan, partial(taken, partition, through, worker.offload))
        timer = loop.call_later(max(0.0, deadline - backend.clock.monotonic()), _too_late, whole, stops)
        behind = [p for p, stop in stops.items() if backend.workers[p].applied_index < stop.through_index]
        targets = [(p, backend.logs[p].committed_global_index) for p in behind]
        waiting = loop.create_task(backend.wait_all_applied(targets, deadline))
        waiting.add_done_callback(stands_still)
        backend.hurry(list(stops))
        try:
            await whole
        finally:
            timer.cancel()
            for leave in told:
                leave()
            for partition, stop in list(stops.items()):
                owner = stop.owner  # another one, where the state was made anew; and it may be destroyed
                if owner.go_on(stop):  # of a user's, perhaps, which may never return
                    late[partition] = backend.threads_for(owner.machine, owner.offload).hold()
            waiting.cancel()
            await asyncio.wait([waiting])
        return global_index


def _first_of(view: View, held: Held) -> Rows | None:
    """What was read to open it, which is not held any more."""
    rows, view.first = view.first, None
    held.nbytes -= view.first_bytes
    view.first_bytes = 0
    return rows


def _first(machine: Machine, *, start: bytes, end: bytes | None, limit: int, chunk: int = SCAN_CHUNK) -> View:
    """Off the loop, while nothing is applied."""
    rest = rows_of(machine, start=start, end=end, limit=limit, chunk=chunk)
    try:
        return View(machine, next(rest, None), rest)
    except LogboomError as error:  # for whoever reads it, who knows what to do about it
        return View(machine, None, _raising(error))


def _raising(error: LogboomError) -> Iterator[Rows]:
    yield from ()
    raise error


def _too_late(whole: asyncio.Future[None], stops: Mapping[PartitionId, object]) -> None:
    if not whole.done():
        waiting = ", ".join(map(str, list(stops)[:8]))
        whole.set_exception(Unavailable(f"partitions {waiting} have not applied everything in time"))
