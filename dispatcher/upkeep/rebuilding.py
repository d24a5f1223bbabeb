"""Damaged states: fenced, made anew from a snapshot and the log while everything else goes on, and let in again.

A fenced partition answers no reads, and its watermarks stay where they were (I7) until the new state has come as far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import structlog

from logboom.errors import CorruptData
from logboom.state_machine import NOWHERE, Machine, Position
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex
from partitions.apply.apply_core import Begun
from partitions.apply.worker import ApplyWorker
from ports.clock import Clock
from ports.offload import Offload

log = structlog.get_logger(__name__)
T = TypeVar("T")

STALL_LOOKS: Final = 4
REBUILDS_MAX: Final = 3
"""Of a partition within ``WITHIN_S``: whatever damages it again and again is not the disk."""
WITHIN_S: Final = 86_400.0
WANT_AGAIN_S: Final = 1.0


class SetNeeded(NamedTuple):
    """Why a state here is of no use, as nothing here says how to fill it, and which set may help."""

    story: str
    behind: GlobalLogIndex = GlobalLogIndex(0)
    """Only a set of behind this one may help: this one could not be loaded."""
    to_be_fetched: bool = True
    """Another node's snapshot may help. Else only a start of this node does, after something was mended."""


class Rebuilt(NamedTuple):
    """A machine that is whole. ``lacks``: it is of no use all the same."""

    machine: Machine
    lacks: SetNeeded | None


class Remade(NamedTuple):
    """And what its worker begins with."""

    rebuilt: Rebuilt
    begun: Begun


@dataclass(slots=True)
class _Fence:
    floor: Position
    """What was applied when it was found."""
    story: str
    rebuilt: bool = False
    """Another worker is on its way."""
    lacks: SetNeeded | None = None
    """Nothing here helps: a snapshot of another node does."""


class Rebuilding:
    """Fences the damaged states of one node, and has them made anew.

    ``machines`` and ``workers`` are everybody's: what is made anew takes its place there.
    """

    def __init__(
        self,
        *,
        machines: dict[PartitionId, Machine],
        workers: dict[PartitionId, ApplyWorker],
        worker_of: Callable[[PartitionId, Begun], ApplyWorker],
        rebuild: Callable[[PartitionId, Machine, PartitionLogIndex], Remade],
        unused: Callable[[PartitionId, Machine], Awaitable[None]],
        retire: Callable[[Machine, Machine], None],
        clock: Clock,
        offload: Offload,
        want: Callable[[str, GlobalLogIndex], None],
        changed: Callable[[PartitionId], None],
        fatal: Callable[[BaseException], None],
        give_up: Callable[[], None] = lambda: None,
        moves: Callable[[], int] = lambda: 0,
        stall_s: float = 0.0,
    ) -> None:
        """``rebuild`` runs on ``offload``, and is told how far it was; ``want`` asks for a snapshot behind an index.

        ``unused``: until nobody looks into a machine any more. ``retire`` closes the first one, and keeps the second in
        mind no longer; on ``offload``. ``changed``: look at it again.

        ``give_up``: ``offload`` waits no longer for the job that it has, where ``moves`` stays the same for ``stall_s``
        (0: never); raises OSError if it has to.
        """
        self._machines = machines
        self._workers = workers
        self._worker_of = worker_of
        self._rebuild = rebuild
        self._unused = unused
        self._retire = retire
        self._clock = clock
        self._offload = offload
        self._want = want
        self._changed = changed
        self._fatal = fatal
        self._give_up, self._moves, self._stall_s = give_up, moves, stall_s
        self._turn = asyncio.Lock()
        """One job at a time: what is submitted behind one that is given up would never begin."""
        self._fences: dict[PartitionId, _Fence] = {}
        self._lately: dict[PartitionId, list[float]] = {}
        """When states were found damaged, within ``WITHIN_S``."""
        self._tasks: dict[asyncio.Task[None], PartitionId] = {}
        self._wanted_at = -1e9

    # -- what the others ask

    def check(self, partition_id: PartitionId) -> None:
        """Raises CorruptData, naming the partition, if its state must not be read."""
        fence = self._fences.get(partition_id)
        if fence is not None:
            raise CorruptData(f"the state of partition {partition_id} is damaged here: {fence.story}; ask another node")

    def shown(self, partition_id: PartitionId) -> tuple[Position, str]:
        """What watermarks say of it: how far it is applied, and its state. Lets it in again when it is there."""
        worker, fence = self._workers[partition_id], self._fences.get(partition_id)
        if fence is None:
            return worker.applied, worker.state
        if fence.rebuilt and worker.applied_index >= fence.floor.applied_index:
            del self._fences[partition_id]
            log.info("state_repaired", partition=partition_id, applied=worker.applied_index)
            return worker.applied, worker.state
        return fence.floor, "damaged"

    def fenced(self, partition_id: PartitionId) -> bool:
        """Its state must not be read."""
        return partition_id in self._fences

    def is_remaking(self, partition_id: PartitionId) -> bool:
        """Nobody knows yet how far its state will be."""
        fence = self._fences.get(partition_id)
        return fence is not None and not fence.rebuilt

    def works_on(self, partition_id: PartitionId) -> bool:
        """Files of its state are read, or made, though it may be destroyed: they are not to be removed."""
        return partition_id in self._tasks.values()

    # -- what happens

    def lacking(self, partition_id: PartitionId, lacks: SetNeeded) -> None:
        """At start: its state is gone, and nothing here says how to make it."""
        self._workers[partition_id].useless = True
        self._fences[partition_id] = _Fence(NOWHERE, lacks.story, lacks=lacks)

    def damaged(self, partition_id: PartitionId, error: CorruptData) -> Callable[[], bool]:
        """The state cannot be read. What is returned says later whether it is whole again."""
        fence = self._fences.get(partition_id)
        if fence is None or fence.rebuilt:  # the second: the new one is damaged, too, on its way to where the first was
            log.error("state_damaged", partition=partition_id, error=str(error))
            worker = self._workers[partition_id]
            fence = self._fences[partition_id] = _Fence(worker.applied if fence is None else fence.floor, str(error))
            self._changed(partition_id)
            if self._times(partition_id) > REBUILDS_MAX:
                log.error("state_given_up", partition=partition_id)
                worker.useless = True
                worker.pause()
            else:
                task = asyncio.get_running_loop().create_task(self._make_anew(partition_id, worker, fence))
                self._tasks[task] = partition_id
                task.add_done_callback(self._tasks.pop)
        return lambda: partition_id not in self._fences

    def _times(self, partition_id: PartitionId) -> int:
        """That this happened of late, with this one."""
        now = self._clock.monotonic()
        lately = [at for at in self._lately.get(partition_id, ()) if now - at < WITHIN_S]
        self._lately[partition_id] = [*lately, now]
        return len(lately) + 1

    async def _make_anew(self, partition_id: PartitionId, worker: ApplyWorker, fence: _Fence) -> None:
        try:
            await self._remake(partition_id, worker, fence)
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it, and its partition never go on
            self._fatal(error)

    async def _remake(self, partition_id: PartitionId, worker: ApplyWorker, fence: _Fence) -> None:
        """An error is final, as with any other file: what is there now nobody knows."""
        await worker.close()
        damaged = self._machines.get(partition_id)
        if damaged is None:
            return  # destroyed
        found, begun = await self._run(partition_id, lambda: self._rebuild(partition_id, damaged, worker.applied_index))
        if partition_id not in self._workers:
            await self._run(partition_id, lambda: self._retire(found.machine, damaged))
            return  # destroyed meanwhile, with the damaged one
        self._machines[partition_id] = found.machine
        fresh = self._workers[partition_id] = self._worker_of(partition_id, begun)
        worker.hand_over(fresh)
        if found.lacks is None:
            fence.rebuilt = True
            log.info("state_rebuilt", partition=partition_id, applied=fresh.applied_index)
        else:
            fence.lacks, fence.story = found.lacks, found.lacks.story
            fresh.useless = True
            fresh.drop_cut()
        self._changed(partition_id)
        await self._unused(partition_id, damaged)
        await self._run(partition_id, lambda: self._retire(damaged, found.machine))

    async def _run(self, partition_id: PartitionId, job: Callable[[], T]) -> T:
        """Off the loop. Whoever comes next waits for its end, but not for ever: it may be a user's that hangs."""
        async with self._turn:
            running = asyncio.ensure_future(self._offload.run(job))
            try:
                await self._wait(partition_id, running)
            except asyncio.CancelledError:
                running.cancel()
                raise
        return await running

    async def _wait(self, partition_id: PartitionId, running: asyncio.Future[T]) -> None:
        """Until it has ended, or its thread is given up."""
        seen, since = self._moves(), self._clock.monotonic()
        while not running.done():
            await asyncio.wait([running], timeout=self._stall_s / STALL_LOOKS or None)
            now, moves = self._clock.monotonic(), self._moves()
            if moves != seen:
                seen, since = moves, now
            elif not running.done() and now - since >= self._stall_s:
                try:
                    self._give_up()
                except OSError as error:  # no more threads: it keeps this one
                    log.warning("rebuild_not_given_up", partition=partition_id, error=str(error))
                    continue
                story = f"its state machine has taken nothing for {self._stall_s:g} s, and has not returned"
                log.error("rebuild_given_up", partition=partition_id, reason=story)
                fence = self._fences.get(partition_id)
                if fence is not None and not fence.rebuilt and fence.lacks is None:  # else what hangs is to be closed
                    fence.story = story
                    self._workers[partition_id].useless = True  # no set waits for it; another takes its place, if ever
                return

    def ended(self, partition_id: PartitionId) -> None:
        """The partition is destroyed."""
        self._fences.pop(partition_id, None)
        self._lately.pop(partition_id, None)

    def tick(self, now: float, needed: SetNeeded | None) -> None:
        """Now and then: ask for what is still lacking. ``needed``: what else a snapshot is needed for."""
        lacking = [fence.lacks for fence in self._fences.values() if fence.lacks and fence.lacks.to_be_fetched]
        if not lacking and needed is not None:
            lacking = [needed]
        if lacking and now - self._wanted_at >= WANT_AGAIN_S:
            self._wanted_at = now
            self._want(lacking[0].story, max(each.behind for each in lacking))

    async def close(self) -> None:
        """Begin nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
