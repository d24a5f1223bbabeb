"""A state that is made anew: what becomes of it until it is where the damaged one was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.pipeline.needed import set_needed
from dispatcher.upkeep.rebuilding import REBUILDS_MAX, WITHIN_S, Rebuilding, Rebuilt, Remade, SetNeeded
from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import NOWHERE, Position
from logboom.types import GlobalLogIndex, PartitionId, PartitionLogIndex, Term
from partitions.apply.apply_core import Begun
from partitions.apply.dedupe import Dedupe
from raftlog.entries.entry import Route
from raftlog.links.lacks import Lack
from tests.unit.raftlog.world import VirtualLoop

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
        self.applied: list[int] = []
        """How far those were that it was made for."""
        self.lacks: SetNeeded | None = None
        self.wanted: list[str] = []
        self.behind: list[int] = []
        self.fatal: list[BaseException] = []
        self.now = 1000.0
        self.looked_into: set[object] = set()
        """Machines that somebody still reads from."""
        self.retired: list[tuple[object, object]] = []
        self.rebuilding = Rebuilding(
            machines=self.machines,
            workers=self.workers,
            worker_of=lambda *_: cast("Any", Worker(4)),
            rebuild=self._rebuild,
            unused=self._unused,
            retire=lambda gone, other: self.retired.append((gone, other)),
            clock=cast("Any", self),
            offload=cast("Any", self),
            want=self._want,
            changed=lambda _: None,
            fatal=self.fatal.append,
        )

    def _want(self, story: str, behind: GlobalLogIndex) -> None:
        self.wanted.append(story)
        self.behind.append(behind)

    async def run(self, job: Callable[[], Any]) -> Any:
        return job()

    def _rebuild(self, partition: PartitionId, damaged: Any, applied: int) -> Remade:
        self.made.append(damaged)
        self.applied.append(applied)
        return Remade(Rebuilt(cast("Any", object()), self.lacks), Begun(Dedupe(ApplySettings()), NOWHERE))

    async def _unused(self, partition: PartitionId, machine: Any) -> None:
        while machine in self.looked_into:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)

    def monotonic(self) -> float:
        return self.now

    async def damage(self, story: str) -> Callable[[], bool]:
        repaired = self.rebuilding.damaged(P, CorruptData(story))
        for _ in range(20):
            await asyncio.sleep(0)
        return repaired


async def test_one_that_is_damaged_on_its_way_is_made_anew_again() -> None:
    world = World()
    await world.damage("first")
    on_its_way = world.machines[P]
    repaired = await world.damage("second")
    assert world.made[-1] is on_its_way
    assert (len(world.made), world.applied) == (2, [10, 4])
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


async def test_one_that_is_damaged_now_and_then_for_years_is_made_anew_each_time() -> None:
    """The fourth time since the start it was given up: a disk that loses a sector a year is no reason."""
    world = World()
    for number in range(3 * REBUILDS_MAX):
        await world.damage(str(number))
        world.workers[P].applied = Position(PartitionLogIndex(10), GlobalLogIndex(10))
        assert world.rebuilding.shown(P)[1] == "running"
        world.now += WITHIN_S / (REBUILDS_MAX - 1)
    assert len(world.made) == 3 * REBUILDS_MAX
    assert len(world.rebuilding._lately[P]) <= REBUILDS_MAX


async def test_the_damaged_one_is_closed_as_soon_as_nobody_looks_into_it_any_more() -> None:
    """It stayed open until the node stopped, with what it held in memory, its files and the room that they take."""
    world = World()
    damaged = world.machines[P]
    world.looked_into.add(damaged)
    await world.damage("first")
    made = world.machines[P]
    assert made is not damaged
    assert world.retired == []
    world.looked_into.clear()
    for _ in range(5):
        await asyncio.sleep(0)
    assert world.retired == [(damaged, made)]
    assert not world.rebuilding._tasks


@pytest.mark.parametrize("where", ["_worker_of", "_changed", "_retire"])
async def test_whatever_goes_wrong_behind_that_somebody_hears_of(where: str) -> None:
    """A worker that could not be made left the closed one in its place, and nobody was told: the next view waited."""
    world = World()

    def fails(*_: object) -> Any:
        raise RuntimeError("no")

    rebuild = world._rebuild

    def then_fails(*about: Any) -> Remade:
        setattr(world.rebuilding, where, fails)
        return rebuild(*about)

    world.rebuilding._rebuild = then_fails
    await world.damage("first")
    assert list(map(repr, world.fatal)) == ["RuntimeError('no')"]


async def test_of_a_partition_that_is_destroyed_meanwhile_nothing_stays_open() -> None:
    world = World()
    damaged, made = world.machines[P], object()

    def destroy(*_: object) -> Remade:
        del world.workers[P]
        world.rebuilding.ended(P)
        assert world.rebuilding.works_on(P), "its files must stay"
        return Remade(Rebuilt(cast("Any", made), None), Begun(Dedupe(ApplySettings()), NOWHERE))

    world.rebuilding._rebuild = destroy
    await world.damage("first")
    assert world.retired == [(made, damaged)]
    assert not world.rebuilding.works_on(P)
    assert (world.rebuilding._lately, world.rebuilding._fences) == ({}, {})


async def test_what_nothing_here_helps_against_is_asked_for() -> None:
    world = World()
    world.lacks = SetNeeded("no set")
    await world.damage("first")
    await world.damage("what is there is of no use")
    assert len(world.made) == 1
    for now in (100.0, 100.5, 101.5):
        world.rebuilding.tick(now, None)
    assert world.wanted == ["no set", "no set"]


class Lacking:
    """A node that has applied what is in front of a batch which it has lost; what others say of that."""

    def __init__(self, lack: Lack | None, *, committed: bool = True) -> None:
        self.void: SetNeeded | None = None
        self.lost: list[tuple[Route, Lack | None]] = [(Route(P, Term(1), PartitionLogIndex(5), b"d"), lack)]
        self.places: dict[PartitionId, dict[bytes, int]] = {P: {b"d": 9} if committed else {}}
        """Global indices of lost batches, by digest."""
        self.applied = 4

    @property
    def needs(self) -> SetNeeded | None:
        workers: Any = {p: SimpleNamespace(applied_index=self.applied) for p in self.places}
        logs: Any = {p: SimpleNamespace(place_of=place_in(places)) for p, places in self.places.items()}
        return set_needed(self.void, self.lost, workers, logs)


def place_in(places: dict[bytes, int]) -> Callable[[int, bytes], Any]:
    return lambda _, digest: SimpleNamespace(global_index=places[digest]) if digest in places else None


@pytest.mark.parametrize("lack", [Lack.COMPACTED, Lack.APPLIED])
async def test_for_what_another_node_has_of_a_lost_batch_only_a_set_from_behind_it_is_asked_for(lack: Lack) -> None:
    """One from in front of it was taken, and the node was started again and again with the same hole.

    Where others had it in their states, as well as in sets, none was asked for: the partition was lost there for good.
    """
    world, node = World(), Lacking(lack)
    world.rebuilding.tick(100.0, node.needs)
    assert (len(world.wanted), world.behind) == (1, [8])
    node.applied = 5
    world.rebuilding.tick(200.0, node.needs)
    assert world.behind == [8], "its state has come past it"


@pytest.mark.parametrize("void_at", [None, 5, 7, 20])
@pytest.mark.parametrize("turned", [False, True])
async def test_of_several_that_are_lost_a_set_from_behind_the_first_is_asked_for(
    *, turned: bool, void_at: int | None
) -> None:
    """It was behind any of them: one in between is all that a node can give which lacks another one itself."""
    node = Lacking(Lack.APPLIED)
    other, unplaced = (Route(PartitionId(p), Term(1), PartitionLogIndex(5), bytes([p])) for p in (4, 5))
    node.lost = [(unplaced, Lack.COMPACTED), *node.lost, (other, Lack.COMPACTED)][:: -1 if turned else 1]
    node.places |= {other.partition_id: {other.digest: 7}, unplaced.partition_id: {}}
    node.void = None if void_at is None else SetNeeded("void", GlobalLogIndex(void_at - 1))
    needed = node.needs
    assert needed is not None
    assert (needed.behind, "void" in needed.story) == ((4, True) if void_at == 5 else (6, void_at == 7))
    for places in node.places.values():
        places.clear()
    node.void = None
    needed = node.needs
    assert needed is not None
    assert needed.behind == 0, "of what is not ordered here yet nobody knows where it will be"


@pytest.mark.parametrize("lack", [Lack.ABSENT, Lack.DAMAGED, Lack.APPLIED, None])
def test_what_nobody_has_in_a_state_or_is_not_committed_here_yet_no_set_is_asked_for(lack: Lack | None) -> None:
    assert Lacking(lack, committed=lack is not Lack.APPLIED).needs is None


async def test_one_that_is_destroyed_in_the_turn_in_which_it_is_found_is_let_go() -> None:
    """The task looked for its fence, which had gone with the partition, and ended with a KeyError that nobody saw."""
    world = World()
    world.rebuilding.damaged(P, CorruptData("first"))
    (task,) = world.rebuilding._tasks
    del world.workers[P], world.machines[P]
    world.rebuilding.ended(P)
    await task
    assert (world.made, world.fatal) == ([], [])


class Threads:
    """One thread, and another once that is given up. Virtual time."""

    def __init__(self, world: World) -> None:
        self.hangs, self.begun, self.given_up = asyncio.Event(), list[object](), 0
        self.moves = 0
        rebuilding = world.rebuilding
        rebuilding._offload, rebuilding._clock = cast("Any", self), cast("Any", self)
        rebuilding._stall_s, rebuilding._moves, rebuilding._give_up = 100.0, lambda: self.moves, self._gives_up

    def _gives_up(self) -> None:
        self.given_up += 1

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def run(self, job: Callable[[], Any]) -> Any:
        self.begun.append(job)
        if len(self.begun) == 1:
            await self.hangs.wait()
        return job()


def test_a_load_that_does_not_return_keeps_no_other_state_from_being_made_anew() -> None:
    """All of them waited behind it, for good, and their partitions were damaged on that node until the next start."""
    loop = VirtualLoop()

    async def story() -> None:
        world, other = World(), PartitionId(4)
        world.workers[other], world.machines[other] = Worker(10), object()
        threads = Threads(world)
        await world.damage("first")
        world.rebuilding.damaged(other, CorruptData("second"))
        for _ in range(3):
            await asyncio.sleep(60)
            threads.moves += 1
        assert (len(threads.begun), threads.given_up) == (1, 0), "a large state takes its time"
        await asyncio.sleep(300)
        assert threads.given_up == 1
        assert world.rebuilding._fences[other].rebuilt
        with pytest.raises(CorruptData, match="has taken nothing for 100 s"):
            world.rebuilding.check(P)
        threads.hangs.set()
        await asyncio.sleep(1)
        assert world.rebuilding._fences[P].rebuilt, "it has returned after all"
        assert not world.fatal

    loop.run_until_complete(story())
    loop.close()


async def test_one_that_is_made_anew_is_of_use_though_the_damaged_one_does_not_let_itself_close() -> None:
    """The new one was given up in its place, for good, where it was still on its way."""
    world = World()
    world.rebuilding._stall_s = 0.001
    given_up = asyncio.Event()
    world.rebuilding._give_up = given_up.set
    jobs = 0

    async def run(job: Callable[[], Any]) -> Any:
        nonlocal jobs
        jobs += 1
        if jobs > 1:
            await asyncio.get_running_loop().create_future()
        return job()

    world.run = run  # type: ignore[method-assign]
    await world.damage("first")
    while not given_up.is_set():
        world.now += 1.0
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not world.workers[P].useless
    world.workers[P].applied = Position(PartitionLogIndex(10), GlobalLogIndex(10))
    assert world.rebuilding.shown(P)[1] == "running"
    await world.rebuilding.close()
