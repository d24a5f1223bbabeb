"""Barriers: who waits until which partitions have come how far. Sans-io.

A waiter sits in one heap per partition that is not there yet, sorted by target, so a moving
watermark touches only those it wakes. Answers go out through ``done``, each exactly once;
whoever cancels or disconnects leaves nothing behind.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from dispatcher.watermarks import Watermarks, to_row
from logboom.errors import (
    BarrierBlocked,
    BarrierTimeout,
    InvalidRequest,
    LogboomError,
    NoSuchPartition,
    QuotaExceeded,
)
from logboom.settings import BarrierSettings
from logboom.types import GlobalLogIndex, Level, PartitionId, Watermark

Done = Callable[[list[Watermark] | LogboomError], None]
BLOCKED_STATES = frozenset(("paused", "damaged"))


@dataclass(slots=True, eq=False)
class Waiter:
    """One barrier that is not reached yet."""

    client: Hashable
    target: GlobalLogIndex
    level: Level
    partitions: tuple[PartitionId, ...]
    deadline: float
    wait_blocked: bool
    done: Done | None
    behind: set[PartitionId] = field(default_factory=set)


class Barriers:
    """All waiters of one node. ``frontier`` tells how far a partition is at a level."""

    def __init__(self, settings: BarrierSettings, watermarks: Watermarks) -> None:
        self._settings = settings
        self._watermarks = watermarks
        self._heaps: dict[tuple[PartitionId, Level], list[tuple[int, int, Waiter]]] = {}
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._waiters: dict[Waiter, None] = {}
        self._per_client: dict[Hashable, int] = {}
        self._tie = itertools.count()
        self._dead = 0
        self._commit = GlobalLogIndex(0)
        self._durable: dict[PartitionId, GlobalLogIndex] = {}
        self._whole: set[PartitionId] = set()
        """Partitions of which everything committed is durable."""
        watermarks.listen(self._on_watermark)

    def __len__(self) -> int:
        return len(self._waiters)

    # -- asking

    def add(
        self,
        *,
        client: Hashable,
        target: int,
        partitions: Sequence[PartitionId],
        level: Level,
        deadline: float,
        wait_blocked: bool,
        now: float,
        done: Done,
    ) -> Waiter | None:
        """Answers at once (None) or waits. Raises InvalidRequest, NoSuchPartition or QuotaExceeded."""
        self._check(client, target, partitions, deadline, now)
        waiter = Waiter(client, GlobalLogIndex(target), level, tuple(partitions), deadline, wait_blocked, done)
        waiter.behind = {p for p in partitions if self.frontier(p, level) < target}
        if not waiter.behind:
            self._answer(waiter, self._marks(waiter))
            return None
        if not wait_blocked and self._blocked(waiter):
            self._answer(waiter, self._blocked_error(waiter))
            return None
        self._waiters[waiter] = None
        self._per_client[client] = self._per_client.get(client, 0) + 1
        for partition_id in waiter.behind:
            heap = self._heaps.setdefault((partition_id, level), [])
            heapq.heappush(heap, (target, next(self._tie), waiter))
        heapq.heappush(self._deadlines, (deadline, next(self._tie), waiter))
        return waiter

    def _check(
        self, client: Hashable, target: int, partitions: Sequence[PartitionId], deadline: float, now: float
    ) -> None:
        limits = self._settings
        for partition_id in partitions:
            try:
                self._watermarks.of(partition_id)
            except KeyError:
                raise NoSuchPartition(f"partition {partition_id} does not exist", partition_id=partition_id) from None
        if len(set(partitions)) != len(partitions):
            raise InvalidRequest("a partition appears twice in one barrier")
        if target > self._commit + limits.ahead_max:
            raise InvalidRequest(
                f"barrier at {target}: the commit index is {self._commit}, at most {limits.ahead_max} ahead is allowed"
            )
        if deadline - now > limits.wait_ms_max / 1000 + 1:
            raise InvalidRequest(f"a barrier waits at most {limits.wait_ms_max} ms")
        mine = self._per_client.get(client, 0)
        if mine >= limits.waiters_per_client:
            raise QuotaExceeded(
                "too many barriers of this client are waiting",
                limit=limits.waiters_per_client,
                used=mine,
                retry_after=0.1,
            )
        if len(self._waiters) >= limits.waiters_max:
            raise QuotaExceeded(
                "too many barriers are waiting on this node",
                limit=limits.waiters_max,
                used=len(self._waiters),
                retry_after=0.1,
            )

    def frontier(self, partition_id: PartitionId, level: Level) -> int:
        """Every routing entry of the partition up to here has reached the level on this node."""
        if level in (Level.ORDERED, Level.COMMITTED):
            return self._commit
        applied = self._watermarks.of(partition_id).applied_global_index
        if level is Level.DURABLE:
            whole = self._commit if partition_id in self._whole else 0
            return max(self._durable.get(partition_id, 0), applied, whole)
        return applied

    def awaits_applied(self, partition_id: PartitionId) -> bool:
        """Somebody waits here until this partition is applied further."""
        heap = self._heaps.get((partition_id, Level.APPLIED), [])
        while heap and heap[0][2].done is None:
            heapq.heappop(heap)
        return bool(heap)

    # -- moving

    def committed(self, global_commit_index: int) -> None:
        """The commit index moved, and the watermarks know."""
        if global_commit_index > self._commit:
            self._commit = GlobalLogIndex(global_commit_index)
            for partition_id, level in list(self._heaps):
                self._wake(partition_id, level)

    def durable(self, partition_id: PartitionId, global_index: int, *, whole: bool = False) -> None:
        """Routing entries of the partition up to ``global_index`` are durable here; ``whole``: all there are."""
        (self._whole.add if whole else self._whole.discard)(partition_id)
        self._durable[partition_id] = GlobalLogIndex(max(global_index, self._durable.get(partition_id, 0)))
        self._wake(partition_id, Level.DURABLE)

    def _on_watermark(self, mark: Watermark) -> None:
        self._wake(mark.partition_id, Level.APPLIED)
        self._wake(mark.partition_id, Level.DURABLE)
        if mark.state in BLOCKED_STATES:
            for level in (Level.APPLIED, Level.DURABLE):
                for _, _, waiter in list(self._heaps.get((mark.partition_id, level), ())):
                    if waiter.done is not None and not waiter.wait_blocked and mark.partition_id in waiter.behind:
                        self._answer(waiter, self._blocked_error(waiter))

    def _wake(self, partition_id: PartitionId, level: Level) -> None:
        heap = self._heaps.get((partition_id, level))
        if not heap:
            return
        reached = self.frontier(partition_id, level)
        while heap and (heap[0][0] <= reached or heap[0][2].done is None):
            waiter = heapq.heappop(heap)[2]
            waiter.behind.discard(partition_id)
            if not waiter.behind and waiter.done is not None:
                self._answer(waiter, self._marks(waiter))
        if not heap and self._heaps.get((partition_id, level)) is heap:  # an answer may have begun another
            del self._heaps[partition_id, level]

    def expire(self, now: float) -> None:
        """Answer those whose time is up."""
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].done is None):
            waiter = heapq.heappop(self._deadlines)[2]
            if waiter.done is not None:
                self._answer(waiter, self._timeout(waiter))

    def cancel(self, waiter: Waiter) -> None:
        """Nobody waits for it any more."""
        waiter.done = None
        self._forget(waiter)

    def client_gone(self, client: Hashable) -> None:
        """Cancel all of a client's."""
        for waiter in [w for w in self._waiters if w.client == client]:
            self.cancel(waiter)

    def ended(self, partition_id: PartitionId, error: Callable[[], LogboomError]) -> None:
        """The partition is gone: whoever waits for it, among others or alone, is told so."""
        for waiter in [w for w in self._waiters if partition_id in w.partitions]:
            self._answer(waiter, error())
        for level in Level:
            self._heaps.pop((partition_id, level), None)
        self._durable.pop(partition_id, None)
        self._whole.discard(partition_id)

    # -- answering

    def _answer(self, waiter: Waiter, answer: list[Watermark] | LogboomError) -> None:
        done, waiter.done = waiter.done, None
        self._forget(waiter)
        if done is not None:
            done(answer)

    def _forget(self, waiter: Waiter) -> None:
        if waiter not in self._waiters:
            return
        del self._waiters[waiter]
        left = self._per_client[waiter.client] - 1
        if left:
            self._per_client[waiter.client] = left
        else:
            del self._per_client[waiter.client]
        self._dead += 1
        if self._dead > 64 and self._dead > len(self._waiters):
            self._sweep()

    def _sweep(self) -> None:
        """Answered and cancelled waiters stay in the heaps until popped; never more of them than live ones."""
        self._dead = 0
        self._deadlines = [entry for entry in self._deadlines if entry[2].done is not None]
        heapq.heapify(self._deadlines)
        for key, heap in list(self._heaps.items()):
            # In place: a wake-up may be walking this very heap.
            heap[:] = [entry for entry in heap if entry[2].done is not None]
            heapq.heapify(heap)
            if not heap:
                del self._heaps[key]

    def _marks(self, waiter: Waiter) -> list[Watermark]:
        return self._watermarks.all(waiter.partitions)

    def _blocked(self, waiter: Waiter) -> list[PartitionId]:
        if waiter.level in (Level.ORDERED, Level.COMMITTED):
            return []
        return [p for p in sorted(waiter.behind) if self._watermarks.of(p).state in BLOCKED_STATES]

    def _blocked_error(self, waiter: Waiter) -> BarrierBlocked:
        blocked = {p: self._watermarks.of(p).state for p in self._blocked(waiter)}
        states = ", ".join(f"partition {p} is {state}" for p, state in blocked.items())
        return BarrierBlocked(
            f"{states}: the barrier at {waiter.target} cannot be reached",
            blocked=[[p, state] for p, state in blocked.items()],
            target=waiter.target,
            watermarks=[to_row(m) for m in self._marks(waiter)],
        )

    def _timeout(self, waiter: Waiter) -> BarrierTimeout:
        behind = sorted(p for p in waiter.behind if self.frontier(p, waiter.level) < waiter.target)
        return BarrierTimeout(
            f"the barrier at {waiter.target} was not reached in time; partitions behind: {behind}",
            target=waiter.target,
            behind=behind,
            watermarks=[to_row(m) for m in self._marks(waiter)],
        )
