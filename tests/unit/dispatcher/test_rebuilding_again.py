"""A state that is made anew: what becomes of it until it is where the damaged one was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from dispatcher.upkeep.rebuilding import REBUILDS_MAX, Lacks, Rebuilding, Rebuilt
from logboom.errors import CorruptData
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex

P = PartitionId(3)


class Worker:
    """An ApplyWorker, as far as it is needed."""

    def __init__(self, applied: int) -> None:
        self.applied = Position(PartitionLogIndex(applied), GlobalLogIndex(applied))
        self.state = "running"
        self.useless = self.closed = False

    @property
    def applied_index(self) -> int:
        return self.applied.applied_index

    async def close(self) -> None:
        self.closed = True

    def hand_over(self, other: Worker) -> None:
        assert self.closed

    def drop_cut(self) -> None:
        pass

    def pause(self) -> None:
        self.state = "paused"


class World:
    """One partition, at 10 when its state turns out to be damaged; what is made anew begins at 4."""

    def __init__(self) -> None:
        self.workers: dict[PartitionId, Any] = {P: Worker(10)}
        self.machines: dict[PartitionId, Any] = {P: object()}
        self.made: list[object] = []
        self.lacks: Lacks | None = None
        self.wanted: list[str] = []
        self.fatal: list[BaseException] = []
        self.rebuilding = Rebuilding(
            machines=self.machines,
            workers=self.workers,
            worker_of=lambda _: cast("Any", Worker(4)),
            rebuild=self._rebuild,
            offload=cast("Any", self),
            want=lambda story, _: self.wanted.append(story),
            changed=lambda _: None,
            fatal=self.fatal.append,
        )

    async def run(self, job: Callable[[], Any]) -> Any:
        return job()

    def _rebuild(self, partition: PartitionId, damaged: Any) -> Rebuilt:
        self.made.append(damaged)
        return Rebuilt(cast("Any", object()), self.lacks)

    async def damage(self, story: str) -> Callable[[], bool]:
        repaired = self.rebuilding.damaged(P, CorruptData(story))
        for _ in range(5):
            await asyncio.sleep(0)
        return repaired


async def test_one_that_is_damaged_on_its_way_is_made_anew_again() -> None:
    world = World()
    await world.damage("first")
    on_its_way = world.machines[P]
    repaired = await world.damage("second")
    assert world.made[-1] is on_its_way
    assert len(world.made) == 2
    assert world.rebuilding.shown(P) == (Position(PartitionLogIndex(10), GlobalLogIndex(10)), "damaged")  # I7
    world.workers[P].applied = Position(PartitionLogIndex(10), GlobalLogIndex(10))
    assert world.rebuilding.shown(P)[1] == "running"
    assert repaired()


async def test_damage_that_is_told_of_twice_is_mended_once() -> None:
    world = World()
    world.rebuilding.damaged(P, CorruptData("first"))
    await world.damage("first, once more")
    assert len(world.made) == 1


async def test_one_that_is_damaged_again_and_again_is_given_up() -> None:
    world = World()
    for number in range(REBUILDS_MAX + 2):
        await world.damage(str(number))
    assert len(world.made) == REBUILDS_MAX
    assert world.workers[P].useless
    assert world.workers[P].state == "paused"


async def test_what_nothing_here_helps_against_is_asked_for() -> None:
    world = World()
    world.lacks = Lacks("no set")
    await world.damage("first")
    await world.damage("what is there is of no use")
    assert len(world.made) == 1
    for now in (100.0, 100.5, 101.5):
        world.rebuilding.tick(now, None)
    assert world.wanted == ["no set", "no set"]
