"""Barriers over watermarks that a test moves, and what each waiter was told."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Sequence

from dispatcher.barriers.barriers import Barriers
from dispatcher.barriers.goals import Reached, Waiter, Want
from dispatcher.barriers.watermarks import Watermarks
from logboom.errors import LogboomError
from logboom.settings import BarrierSettings
from logboom.types import GlobalLogIndex, Level, PartitionId, PartitionLogIndex, Scope, Watermark

A, B, C = PARTITIONS = tuple(PartitionId(p) for p in range(3))
WAITING_LEVELS = (Level.ORDERED, Level.COMMITTED, Level.DURABLE, Level.APPLIED)

Answer = list[Watermark] | LogboomError


class Desk:
    """Barriers over watermarks that the test moves; what each waiter was told."""

    def __init__(self, **limits: int) -> None:
        self.watermarks = Watermarks(PARTITIONS)
        self.barriers = Barriers(BarrierSettings(**{"waiters_reserved": 0, **limits}), self.watermarks)
        self.applied_at = dict.fromkeys(PARTITIONS, 0)

    def wait(
        self,
        target: int,
        partitions: Sequence[PartitionId] = (A,),
        level: Level = Level.APPLIED,
        *,
        client: Hashable = "client",
        deadline: float = 100.0,
        wait_blocked: bool = False,
        now: float = 0.0,
        then: Callable[[], None] = lambda: None,
        reach: Scope = Scope.NODE,
        need: int = -1,
        principal: Hashable = None,
        leading: bool = False,
        own: bool = False,
        reading: bool = False,
    ) -> tuple[Waiter | None, list[Answer]]:
        answers: list[Answer] = []

        def done(answer: Reached | LogboomError) -> None:
            answers.append(answer.marks if isinstance(answer, Reached) else answer)
            then()

        waiter = self.barriers.add(
            Want(tuple((p, GlobalLogIndex(target)) for p in partitions), level, reach, need),
            client=client,
            principal=principal,
            leading=leading,
            own=own,
            reading=reading,
            deadline=deadline,
            wait_blocked=wait_blocked,
            now=now,
            done=done,
        )
        return waiter, answers

    def commit(self, index: int) -> None:
        self.watermarks.committed(index)
        self.barriers.committed(index)

    def apply(
        self,
        partition: PartitionId,
        at: int,
        *,
        state: str = "running",
        idle: bool = False,
        log_goes_on: bool = False,
    ) -> None:
        at = self.applied_at[partition] = max(at, self.applied_at[partition])
        self.watermarks.update(
            partition,
            log_index=PartitionLogIndex(at),
            durable_index=PartitionLogIndex(at),
            applied_index=PartitionLogIndex(at),
            applied_global_index=GlobalLogIndex(at),
            state=state,
            idle=idle,
            log_goes_on=log_goes_on,
        )

    def state(self, partition: PartitionId, state: str) -> None:
        self.apply(partition, 0, state=state)


def reached(answers: list[Answer]) -> bool:
    return len(answers) == 1 and isinstance(answers[0], list)


def waiters_alive() -> int:
    gc.collect()
    return sum(isinstance(each, Waiter) for each in gc.get_objects())
