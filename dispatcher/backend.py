"""What the client service may ask of a node, beside submitting: reads, waits, steering, status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from dispatcher.pipeline import Pipeline
from dispatcher.scrubbing import Scrubbing
from logboom.errors import LogboomError, NoSuchPartition, NotLeader, Unavailable
from logboom.state_machine import Machine
from logboom.types import GlobalLogIndex, Level, PartitionId, Watermark
from partitions.log import PartitionLog
from raftlog.configuration import Role

LOST_SHOWN_MAX: Final = 16


class Backend(Pipeline):
    """A node's pipeline with the view that its clients have of it."""

    scrubbing: Scrubbing
    """Set by whoever made it, before it is started."""

    async def start(self, peer_address: str) -> None:
        """See Pipeline."""
        await super().start(peer_address)
        self.scrubbing.start()

    async def close(self) -> None:
        """See Pipeline."""
        await self.scrubbing.close()
        await super().close()

    def partition_ids(self) -> Sequence[PartitionId]:
        """All that are served here, ascending."""
        return sorted(self.workers)

    def missing(self, partition_id: int) -> LogboomError:
        """Why there is no such partition here."""
        return self.partitioning.missing(partition_id)

    def key_partitions(self) -> int:
        """Keys are routed over those from 0 to this, exclusive: as many as the cluster began with."""
        return self.parent.lifecycle.begins_with(self.cluster.partitions)

    def partition_rows(self) -> list[list[object]]:
        """Id, state machine and mode of each, for clients."""
        kinds = {p: self.partitioning.kind(p) for p in self.parent.lifecycle.ids(self.cluster.partitions)}
        return [[p, kind.state_machine, str(kind.mode)] for p, kind in kinds.items()]

    def leader_address(self) -> str | None:
        """Where clients reach the leader, if there is one."""
        leader = self.raft.engine.leader
        return None if leader is None else self.address_of(leader)

    def client_addresses(self) -> dict[str, str]:
        """Of all members, for clients; of those in the settings while this node does not know of any."""
        known = {str(seat.node): seat.client_address for seat in self.members.seats}
        return known or {m.id: m.client_address for m in self.cluster.members}

    def recovered(self, partitions: Iterable[PartitionId] | None = None) -> bool:
        """Watermarks, barriers and reads of these partitions (None: all) may be answered."""
        return self.recovery.over if partitions is None else self.recovery.of(partitions)

    def global_commit_index(self) -> GlobalLogIndex:
        """Highest ``global_log_index`` that this node knows to be committed."""
        return self.parent.global_index

    async def read_index(self, deadline: float) -> GlobalLogIndex:
        """A global index that covers everything committed before this call (a quorum has said so)."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[GlobalLogIndex] = loop.create_future()

        def done(error: LogboomError | None) -> None:
            if answer.done():
                return
            if isinstance(error, NotLeader):
                error = NotLeader(error.message, leader=self.leader_address())
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(self.parent.global_index)

        self.raft.read_index(done)
        timer = loop.call_later(
            max(0.0, deadline - self.clock.monotonic()),
            lambda: done(Unavailable("no quorum confirmed the leader in time")),
        )
        try:
            return await answer
        finally:
            timer.cancel()

    async def wait_applied(self, partition_id: PartitionId, global_index: GlobalLogIndex, deadline: float) -> None:
        """Until this node has applied ``partition_id`` up to ``global_index``. Raises Unavailable at the deadline."""
        self.look()
        if partition_id not in self.workers:
            raise self.missing(partition_id)
        if self.watermarks.of(partition_id).applied_global_index >= global_index:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(answer: list[Watermark] | LogboomError) -> None:
            if reached.done():
                return
            if isinstance(answer, LogboomError):
                reached.set_exception(
                    answer
                    if isinstance(answer, NoSuchPartition)
                    else Unavailable(f"partition {partition_id} is not applied up to {global_index} here: {answer}")
                )
            else:
                reached.set_result(None)

        waiter = self.barriers.add(
            client=self,
            target=global_index,
            partitions=[partition_id],
            level=Level.APPLIED,
            deadline=deadline,
            wait_blocked=False,
            now=self.clock.monotonic(),
            done=done,
        )
        self.hurry([partition_id])
        try:
            await reached
        finally:
            if waiter is not None:
                self.barriers.cancel(waiter)

    def hurry(self, partitions: Iterable[PartitionId]) -> None:
        """Somebody waits for these to be applied."""
        for partition_id in partitions:
            self.workers[partition_id].hurry()

    def using(self, partition_id: PartitionId) -> AbstractContextManager[Machine]:
        """A partition's machine, for reads off the loop within the block.

        Raises what ``missing`` says, and CorruptData if its state is damaged.
        """
        self.rebuilding.check(partition_id)
        return self.partitioning.using(partition_id)

    def is_lost(self, digest: bytes) -> bool:
        """This committed batch is damaged here, and every other node has said that it does not have it."""
        return digest in self.raft.repair.hopeless

    def log(self, partition_id: PartitionId) -> PartitionLog:
        """For reads of records, off the loop."""
        return self.logs[partition_id]

    def pause(self, partition_id: PartitionId) -> str:
        """Stop applying here; returns the state."""
        return self._steer(partition_id, self.workers[partition_id].pause)

    def resume(self, partition_id: PartitionId) -> str:
        """Go on applying here. Raises CorruptData if there is no state to go on with."""
        self.rebuilding.check(partition_id)
        return self._steer(partition_id, self.workers[partition_id].resume)

    def freeze(self, partition_id: PartitionId) -> str:
        """Admit no writes here."""
        return self._steer(partition_id, lambda: self.admission.freeze(partition_id))

    def thaw(self, partition_id: PartitionId) -> str:
        """Admit writes again."""
        return self._steer(partition_id, lambda: self.admission.thaw(partition_id))

    def _steer(self, partition_id: PartitionId, act: Callable[[], object]) -> str:
        act()
        self._publish(partition_id)
        return self.watermarks.of(partition_id).state

    def subscribe_commits(self, partition_id: PartitionId, callback: Callable[..., None]) -> Callable[[], None]:
        """Call back whenever the partition's committed, durable prefix may have grown; with an error once it is gone.

        Returns the way to stop it.
        """
        callbacks = self._commit_callbacks.setdefault(partition_id, [])
        callbacks.append(callback)
        return lambda: callbacks.remove(callback) if callback in callbacks else None

    def status(self) -> dict[str, Any]:
        """Header fields of a STATUS_REPLY that this module knows."""
        engine = self.raft.engine
        role = "leader" if engine.is_leader else "candidate" if engine.is_candidate else "follower"
        standing = self.raft.members.roster.standing
        if role == "follower" and standing != Role.VOTER:
            role = standing
        leader = engine.leader
        return {
            "node": self.node_id,
            "cluster": self.cluster.id,
            "role": role,
            "term": engine.term,
            "leader": leader,
            "leader_address": self.leader_address(),
            "admits": self.raft.admits,
            "commit_index": self.parent.global_index,
            "raft_index": engine.commit_index,
            "recovered": self.recovery.over,
            "scrub": self.scrubbing.status(),
            "lost": [
                [route.partition_id, route.last_index, str(lack)]
                for route, lack in self.raft.repair.lost()[:LOST_SHOWN_MAX]
            ],
            "members": [
                [
                    seat.node,
                    seat.client_address,
                    seat.node == self.node_id or self.raft.links.connected(seat.node),
                    str(seat.role),
                ]
                for seat in self.members.seats
            ],
        }
