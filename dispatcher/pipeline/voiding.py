"""Committed batches that nobody has: what holds up a partition, and what an operator makes of it.

A hole pauses its partition on every node that has not applied the batch; the others go on. When the leader has
asked all members anew, and none has the batch, an operator may have it declared *void* (``declaring``): a control
entry, carried out by every node at its place in the parent log (docs/decisions/0018-void.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from dispatcher.barriers.goals import Want
from dispatcher.pipeline.declaring import Declaring, shown
from dispatcher.pipeline.surroundings import Surroundings
from dispatcher.upkeep.rebuilding import SetNeeded
from logboom.errors import BarrierBlocked, InvalidRequest, LogboomError, Outcome, PartitionLost, Voided
from logboom.types import GlobalLogIndex, Level, PartitionId
from partitions.apply.apply_core import WorkerState
from partitions.log.holes import Hole
from partitions.log.log import PartitionLog
from raftlog.entries.entry import Route
from raftlog.entries.voids import Void, Voids
from raftlog.links.lacks import Lack

log = structlog.get_logger(__name__)


class Voiding:
    """Holes in the logs of one node: what they hold up, and what was declared void."""

    def __init__(self, pipeline: Surroundings) -> None:
        self._pipeline = pipeline
        self._awaiting: dict[PartitionId, dict[bytes, Void]] = {}
        """By digest what others have applied and this node has not: it needs a snapshot.

        No more than there are voids in the journal, each of which somebody had to ask for.
        """
        self.declared: Callable[[Voids], None] = lambda _: None
        """Told of every void, on the loop. Set by whoever made this."""
        self.declaring = Declaring(pipeline, self._awaited)
        self.count = 0
        """Batches that were declared void since this node was started, as it has heard."""

    # -- what there is

    def hole_of(self, partition_id: PartitionId) -> Hole | None:
        """What holds the partition up here, if that is a batch that nobody has."""
        pipeline = self._pipeline
        store, worker = pipeline.logs[partition_id], pipeline.workers.get(partition_id)
        if store.hole is not None:
            return store.hole
        damage = worker.damage if worker is not None else None
        if damage is not None and damage.digest in pipeline.raft.repair.holes:
            return store.place_of(damage.last_index, damage.digest)
        return self.awaited_hole_of(partition_id)

    def awaited_hole_of(self, partition_id: PartitionId) -> Hole | None:
        """The first that is void and not in the state here, though others have what it did: only a set helps."""
        awaiting = self._awaiting.get(partition_id)
        if awaiting is None:
            return None  # at once: each write asks
        store, worker = self._pipeline.logs[partition_id], self._pipeline.workers.get(partition_id)
        applied = worker.applied_index if worker is not None else 0
        lacking = (v for v in awaiting.values() if v.last_index > applied and not store.holds(v.last_index, v.digest))
        first = min(lacking, key=lambda void: void.last_index, default=None)
        return None if first is None else store.place_of(first.last_index, first.digest)

    def lacks(self, partition_id: PartitionId, digest: bytes) -> bool:
        """It is void, and this node needs a snapshot that has what it did."""
        return digest in self._awaiting.get(partition_id, {})

    def _awaited(self, partition_id: PartitionId) -> list[Void]:
        return list(self._awaiting.get(partition_id, {}).values())

    def check(self, partition_id: PartitionId) -> None:
        """Raises PartitionLost if there is a hole that holds it up."""
        hole = self.hole_of(partition_id)
        if hole is not None:
            raise self._lost(partition_id, hole)

    def _lost(self, partition_id: PartitionId, hole: Hole) -> PartitionLost:
        return PartitionLost(
            f"no member has the batch from {hole.first_index} to {hole.last_index} of partition {partition_id}: bring "
            f"back a node that does, or see `logboom partitions void {partition_id} --index {hole.last_index}`",
            partition_id=partition_id,
            first_index=hole.first_index,
            last_index=hole.last_index,
            retry_after=1.0,
        )

    def check_blocked(self, want: Want) -> Want:
        """Of a barrier on a node that may not show where it is yet, what it may come to show.

        Raises BarrierBlocked where that will never be enough.
        """
        if want.level is Level.ORDERED:
            return want
        logs = self._pipeline.logs
        # Where the state alone lacks it what comes behind is synced as ever.
        hole_of = self.hole_of if want.level is not Level.DURABLE else lambda p: logs[p].hole if p in logs else None
        lost = [p for p in want.partitions if not self._pipeline.recovery.of([p]) and hole_of(p) is not None]
        if not lost:
            return want
        left = tuple(row for row in want.targets if row[0] not in lost)
        if len(left) >= want.needed:
            return want._replace(targets=left, need=want.needed)
        names = ", ".join(f"partition {p} is lost" for p in lost)
        raise BarrierBlocked(
            f"{names}: the barrier at {want.target} cannot be reached",
            blocked=[[p, "lost"] for p in lost],
            target=want.target,
            watermarks=[],
            frontiers=[],
        )

    def rows(self, most: int) -> list[list[object]]:
        """For STATUS: partition, last index, why the others do not give it, first index, global index, digest."""
        rows: list[list[object]] = []
        for (partition_id, _, last_index, digest), lack in self._pipeline.raft.repair.lost()[:most]:
            store = self._pipeline.logs.get(partition_id)
            place = store.place_of(last_index, digest) if store is not None else None
            first, assigned = (place.first_index, place.global_index) if place is not None else (None, None)
            rows.append([partition_id, last_index, str(lack or Lack.UNKNOWN), first, assigned, digest])
        return rows

    def set_needed(self) -> SetNeeded | None:
        """Why this node needs a snapshot: others have applied what is void, and it has not. Of several the first."""
        lifecycle = self._pipeline.parent.lifecycle
        living = (p for p in self._awaiting if not lifecycle.is_gone(p))  # destroyed before it was ever open
        awaited = (void for partition_id in living for void in self._awaited(partition_id))
        lacking = (void for void in awaited if self._may_lack(void))  # it may have turned up, and been applied
        void = min(lacking, key=lambda each: each.global_index, default=None)
        if void is None:
            return None
        story = f"others had applied the batch that ends at {void.last_index}, which is void"
        return SetNeeded(f"partition {void.partition_id}: {story}", GlobalLogIndex(void.global_index - 1))

    # -- while the log goes on

    def hole_committed(self, route: Route) -> None:
        """An entry was handed up without its payload."""
        pipeline, partition_id = self._pipeline, route.partition_id
        worker = pipeline.workers.get(partition_id)
        # What is not open yet has it still to apply, as far as anybody knows; of what is gone nobody does.
        if worker is None:
            excused = pipeline.parent.lifecycle.is_gone(partition_id)
        else:
            excused = worker.applied_index >= route.last_index
        if excused:
            pipeline.logs[partition_id].excuse(route.last_index)
        pipeline.raft.mending.hole_committed(route)

    # -- declared

    async def void(self, partition_id: PartitionId, index: int, *, yes: bool, deadline: float) -> dict[str, Any]:
        """See Declaring."""
        return await self.declaring.void(partition_id, index, yes=yes, deadline=deadline)

    def lost_leadership(self) -> None:
        """See Declaring."""
        self.declaring.lost_leadership()

    def handed_up(self, raft_index: int, fields: Mapping[str, Any]) -> None:
        """A control entry of ``raftlog.entries.voids``. Raises CorruptData."""
        void, parent = Void.parse(fields, raft_index=raft_index), self._pipeline.parent
        before = parent.voids
        refused = parent.void(void)
        if refused:
            log.warning("void_refused", **shown(void), reason=refused)
            self.declaring.answer(void.digest, InvalidRequest(refused))
            return
        if parent.voids is not before:
            self.count += 1
            log.warning("void", **shown(void))
            self._carry_out(void)
            self.declared(parent.voids)
        self.declaring.answer(void.digest, None)

    def _carry_out(self, void: Void) -> None:
        pipeline, partition_id = self._pipeline, void.partition_id
        store, worker = pipeline.logs.get(partition_id), pipeline.workers.get(partition_id)
        self._awaited_no_more(void)
        if store is None:
            return
        place = partition_id, void.first_index, void.last_index, void.global_index

        def told(outcome: Outcome) -> LogboomError:
            return Voided.of(*place, outcome="applied" if void.applied else outcome)

        pipeline.pending.voided(partition_id, void.last_index, told)
        if void.applied and self._may_lack(void):
            # What it did is in the states of others, and would be missing from this one.
            self._awaiting.setdefault(partition_id, {})[void.digest] = void
            pipeline.raft.repair.seals.put(void.digest, on=False)
            if worker is not None:
                self._go_on_behind(void, store)
        else:
            self._step_over(void, store)
        if worker is not None:
            pipeline.moved(partition_id)
        if void.applied and pipeline.raft.admits:
            try:
                pipeline.snapshots.taking.create(lambda _: None)  # for whoever needs one
            except LogboomError as error:
                log.info("no_snapshot_after_void", error=error.message)

    def _may_lack(self, void: Void) -> bool:
        """What it did: there is no state yet, or it has not come so far, or it is being made anew."""
        worker = self._pipeline.workers.get(void.partition_id)
        if worker is None or worker.applied_index < void.last_index:
            return True
        return self._pipeline.rebuilding.is_remaking(void.partition_id)

    def _step_over(self, void: Void, store: PartitionLog) -> None:
        worker = self._pipeline.workers.get(void.partition_id)
        store.void(void.last_index, void.digest)
        if worker is not None and worker.damage is not None and worker.damage.digest == void.digest:
            worker.damage = None
            if worker.state == WorkerState.DAMAGED:  # or somebody has paused it meanwhile
                worker.resume()
        self._pipeline.raft.mending.voided(void.digest)

    def look_again(self, partition_id: PartitionId) -> None:
        """There is a state, or another one, which may have what there was taken to be lacking."""
        pipeline = self._pipeline
        if not pipeline.rebuilding.is_remaking(partition_id):
            pipeline.logs[partition_id].excuse_through(pipeline.workers[partition_id].applied_index)
        for void in self._awaited(partition_id):
            if not self._may_lack(void):
                self._awaited_no_more(void)
                self._step_over(void, pipeline.logs[partition_id])
            else:
                self._go_on_behind(void, pipeline.logs[partition_id])

    def _go_on_behind(self, void: Void, store: PartitionLog) -> None:
        """What is behind it is durable though the state lacks it.

        Others apply what is so on a majority, and cannot give this node the set that it needs before. Its own worker
        stops there, since nothing can be read.
        """
        store.excuse(void.last_index)

    def _awaited_no_more(self, void: Void) -> None:
        """Others of its partition may be."""
        awaited = self._awaiting.get(void.partition_id, {})
        awaited.pop(void.digest, None)
        if not awaited:
            self._awaiting.pop(void.partition_id, None)

    def ended(self, partition_id: PartitionId) -> None:
        """The partition is destroyed."""
        self._awaiting.pop(partition_id, None)
