"""Clients that wait in every way there is, and whether what they were told was true."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chaos.sim.host import Host
from logboom import Client
from logboom.errors import BarrierBlocked, BarrierTimeout, LogboomError
from logboom.types import BarrierResult, Level, PartitionId, Scope

if TYPE_CHECKING:
    from server.node import Node

LEVELS: Final = ("ordered", "durable", "applied", "applied", "snapshotted")
SCOPES: Final = ("node", "leader", "quorum", "quorum", "all")
STALENESS_S: Final = (0.0, 0.05, 0.5)
OF_ALL: Final = 1 / 2
"""Of the barriers that wait for all of some partitions: for all that there are."""
KEPT: Final = 50
WAIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Waited:
    """A barrier that was reached."""

    node: str
    targets: Mapping[int, int]
    level: str = "applied"
    scope: str = "node"
    needed: int = 1


@dataclass
class Told:
    """What anybody was told, for those who wait."""

    adds: list[tuple[float, int, str, int]] = field(default_factory=list)
    """When the receipt came, partition, key, global index."""

    def add(self, at: float, partition: int, key: str, global_index: int) -> None:
        """A key that is there from now on."""
        self.adds.append((at, partition, key, global_index))
        del self.adds[:-KEPT]


class Waiting:
    """One client's."""

    def __init__(
        self,
        client: Client,
        *,
        told: Told,
        addresses: Mapping[str, str],
        rng: random.Random,
        partitions: Callable[[], list[int]],
        doomed: Callable[[int], bool],
        reached: Callable[[Waited], None],
        problem: Callable[[str, str], None],
        refused: Callable[[LogboomError], None],
        dice: random.Random,
        all_of: Callable[[str, int, Collection[int]], None],
    ) -> None:
        """``all_of`` is told of an answer to one who waited for all partitions (``Seen.all_of``)."""
        self._client = client
        self._told = told
        self._addresses = addresses
        self._rng = rng
        self._partitions = partitions
        self._doomed = doomed
        self._reached = reached
        self._problem = problem
        self._refused = refused
        self._dice = dice
        self._all_of = all_of

    async def step(self) -> None:
        """One wait, or one read."""
        try:
            choice = self._rng.random()
            if choice < 0.6:
                await self._barrier()
            elif choice < 0.75:
                await self._watch()
            else:
                await self._bounded()
        except LogboomError as error:
            self._refused(error)
            await asyncio.sleep(0.1)

    async def _barrier(self) -> None:
        known = self._partitions()
        if not known:
            return
        partitions = sorted(self._rng.sample(known, self._rng.randint(1, len(known))))
        newest = max((add[3] for add in self._told.adds), default=0)
        targets = {p: max(0, newest + self._rng.choice([-20, -3, 0, 0, 1, 5])) for p in partitions}
        level, scope = self._rng.choice(LEVELS), self._rng.choice(SCOPES)
        mode = self._rng.choice(["all", "all", "any", self._rng.randint(1, len(partitions))])
        how: dict[str, Any] = {"level": level, "scope": scope, "mode": mode, "timeout": WAIT_S}
        if scope == "node":
            how["node"] = self._rng.choice(list(self._addresses))
        needed = {"all": len(targets), "any": 1}.get(str(mode)) or int(str(mode))
        if self._dice.random() < OF_ALL and mode == "all":
            await self._barrier_over_all(newest, how)
            return
        try:
            if self._rng.random() < 0.3:
                result = await self._watched(targets, how)
            else:
                result = await self._client.barrier(targets, **how)
        except BarrierTimeout as error:
            wrong = in_vain(error, targets, needed)
            if wrong:
                self._problem("BarrierLive", f"{how} for {targets}: {wrong}: {error}")
            raise
        there = sum(result.frontiers.get(PartitionId(p), -1) >= target for p, target in targets.items())
        if there < needed:
            self._problem("BarrierSound", f"{how} for {targets} was reached with {result.frontiers}")
        self._reached(Waited(result.node_id, targets, level, scope, needed))

    async def _barrier_over_all(self, target: int, how: dict[str, Any]) -> None:
        result = await self._client.barrier(target, **how)
        self._all_of(f"{how} for {target}, answered by {result.node_id}", target, result.frontiers)
        targets = dict.fromkeys(map(int, result.frontiers), target)
        self._reached(Waited(result.node_id, targets, how["level"], how["scope"], len(targets)))

    async def _watched(self, targets: dict[int, int], how: dict[str, Any]) -> BarrierResult:
        before: dict[tuple[str, int], int] = {}
        own = how["scope"] in ("node", "leader")  # of others a node knows anew after a start, or with other members
        async for step in self._client.barrier_watch(targets, every=0.05, **how):
            for partition, frontier in step.frontiers.items():
                if own and frontier < before.get((step.node_id, partition), 0):
                    self._problem("I7", f"{step.node_id} says {frontier} of partition {partition}, it had said more")
                before[step.node_id, partition] = frontier
            if step.done is not None:
                return step.done
        raise LogboomError("a barrier ended without an answer")

    async def _watch(self) -> None:
        """A few updates of one node: they never go back, and the minimum is theirs."""
        updates = self._client.watermarks_stream(node=self._rng.choice(list(self._addresses)), every=0.05, timeout=0.5)
        last: dict[PartitionId, int] = {}
        try:
            async with asyncio.timeout(WAIT_S):
                for _ in range(self._rng.randint(1, 5)):
                    update = await anext(updates)
                    marks = {mark.partition_id: mark.applied_global_index for mark in update.watermarks}
                    least = min(marks.values(), default=update.minimum)
                    if update.minimum > least:  # of one that is not shown yet it may be less; see Followers
                        self._problem("I7", f"the minimum of {marks} is not {update.minimum}")
                    if any(marks[p] < last.get(p, 0) for p in marks):
                        self._problem("I7", f"watermarks of {update.node_id} went back: {last} to {marks}")
                    last.update(marks)
        except TimeoutError:
            pass  # nothing has moved
        finally:
            await updates.aclose()

    async def _bounded(self) -> None:
        """Whatever was acknowledged so long before the question has to be in the answer, whoever is asked."""
        staleness = self._rng.choice(STALENESS_S)
        now = asyncio.get_running_loop().time()
        old = [add for add in self._told.adds if add[0] <= now - staleness and not self._doomed(add[1])]
        if not old:
            return
        _, partition, key, global_index = self._rng.choice(old[-5:])
        address = self._rng.choice(list(self._addresses))
        found = await self._client.get(partition, key.encode(), max_staleness=staleness, node=address, timeout=WAIT_S)
        if found != (1,):
            where = f"{address}, partition {partition}, index {global_index}"
            self._problem("BoundedStaleness", f"{key} was acknowledged {staleness} s ago; {where} says {found!r}")


def in_vain(error: BarrierTimeout, targets: Mapping[int, int], needed: int) -> str:
    """Why nobody should have been told that a barrier is not reached, or cannot be; empty: it is right."""
    frontiers = dict(error.fields.get("frontiers", ()))
    there = sum(frontiers.get(partition, -1) >= target for partition, target in targets.items())
    if there >= needed:
        return f"{there} partitions are there"
    living = [p for p in targets if p in frontiers or "frontiers" not in error.fields]  # the others are destroyed
    able = len(living) - len(error.fields.get("blocked", ()))
    if isinstance(error, BarrierBlocked) and able >= needed:
        return f"{able} partitions may get there"
    return ""


class Waits:
    """Whether a barrier that was reached is true, on the nodes themselves."""

    def __init__(
        self, hosts: Sequence[Host], ends: Mapping[int, list[tuple[int, int]]], damaged: Collection[str]
    ) -> None:
        """``ends``: global and last index of each partition's batches; ``damaged``: who may have another disk."""
        self._hosts = hosts
        self._ends = ends
        self._damaged = damaged

    def check(self, waited: Waited) -> str:
        """What is wrong with it; empty: nothing. Who is down or recovers is believed: watermarks tell of him."""
        answering = self._node(waited.node)
        scope = Scope(waited.scope)
        if scope in (Scope.NODE, Scope.LEADER):
            nodes: Sequence[str] = [waited.node]
        elif answering is None:
            return ""
        else:
            members = answering.pipeline.members
            nodes = members.voters if scope is Scope.QUORUM else members.ids
        enough = len(nodes) // 2 + 1 if scope is Scope.QUORUM else len(nodes)
        there, lacking = 0, []
        for partition, target in waited.targets.items():
            behind = [name for name in nodes if not self._there(name, partition, target, Level(waited.level))]
            if len(nodes) - len(behind) >= enough:
                there += 1
            else:
                lacking.append(f"{partition} on {', '.join(behind)}")
        if there >= waited.needed:
            return ""
        return f"{waited}: {there} partitions are there, not {'; '.join(lacking)}"

    def _node(self, name: str) -> Node | None:
        node = next((h.node for h in self._hosts if h.name == name), None)
        return node if node is not None and node.pipeline.recovered() else None

    def _there(self, name: str, partition: int, target: int, level: Level) -> bool:
        node = self._node(name)
        if node is None or partition not in node.pipeline.workers:
            return True
        backend, partition_id = node.pipeline, PartitionId(partition)
        if level is Level.SNAPSHOTTED:
            newest = backend.snapshots.store.newest
            return name in self._damaged or (0 if newest is None else newest.global_index) >= target
        if backend.parent.global_index < target:
            return False
        if level is Level.ORDERED or backend.rebuilding.fenced(partition_id):
            return True  # a state that is being made anew shows nothing, and had come that far
        ends = self._ends.get(partition, [])
        before = bisect_right(ends, (target, 1 << 62))
        due = ends[before - 1][1] if before else 0
        if level is Level.DURABLE:
            return backend.logs[partition_id].durable_index >= due
        return int(node.machines[partition_id].position().applied_index) >= due
