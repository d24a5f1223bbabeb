"""What the client service may ask of a node, beside submitting: reads, waits, steering, status."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from dispatcher.admission.places import Places
from dispatcher.admission.pressure import Pressure
from dispatcher.admission.signals import Signals
from dispatcher.barriers.barriers import Barriers
from dispatcher.barriers.exchange import EXCHANGED, Exchange
from dispatcher.barriers.watermarks import Watermarks
from dispatcher.pipeline.freshness import INDICES, Freshness
from dispatcher.pipeline.leaderless import Leaderless
from dispatcher.pipeline.leadership import Leadership
from dispatcher.pipeline.pipeline import Pipeline
from dispatcher.pipeline.until_applied import until_applied
from dispatcher.reading.asking import Asking
from dispatcher.reading.at_hand import AtHand
from dispatcher.reading.read_budget import ReadBudget
from dispatcher.reading.scans import Scans
from dispatcher.reading.surroundings import Asker, Horizon, Moved
from dispatcher.reading.views import Views
from dispatcher.upkeep.comparing import Comparing
from dispatcher.upkeep.scrubbing import Scrubbing
from logboom.errors import LogboomError, NotLeader, Unavailable
from logboom.state_machine import Machine
from logboom.types import CURSORS, CURSORS_TOKEN, GlobalLogIndex, Level, NodeId, PartitionId
from logboom.wire import Frame, Kind
from partitions.log.log import PartitionLog
from ports.offload import Offload
from raftlog.entries.configuration import Configuration, Role
from snapshots.meta import SetMeta


class Backend(Pipeline):
    """A node's pipeline with the view that its clients have of it."""

    scrubbing: Scrubbing
    signals: Signals
    """Both set by whoever made it, before it is started."""

    def __init__(self, *, node_id: NodeId, barriers: Barriers, watermarks: Watermarks, **parts: Any) -> None:
        self.exchange = Exchange(
            node_id=node_id,
            barriers=barriers,
            watermarks=watermarks,
            links=lambda: self.raft.links,
            may_show=lambda partition_id: self.recovered([partition_id]),
            hurry=lambda partition_id: self.hurry([partition_id]),
        )
        self.pressure = Pressure(
            node_id=node_id,
            links=lambda: self.raft.links,
            admission=parts["admission"],
            eased=self._eased,
        )
        self.comparing = Comparing(links=lambda: self.raft.links, sets=lambda: list(self.snapshots.store.sets()))
        self.leaderless = Leaderless(parts["clock"], parts["settings"].raft)
        """For how long nobody has led, as far as this node knows, or it has come by nothing of what is committed."""
        self.freshness = Freshness(self, check=self.leaderless.check)
        self.streams_open = 0
        """Tails, and scans of logs, of all clients."""
        self.streams_logs = 0
        """Logs that those scans read, the logs of each counted."""
        self.watched = Places("partitions are followed")
        """Partitions that streams of watermarks are about, those of each counted."""
        self.leadership = Leadership()
        """Who leads, and how often that changed."""
        super().__init__(node_id=node_id, barriers=barriers, watermarks=watermarks, **parts)

    @cached_property
    def read_budget(self) -> ReadBudget:
        """What all streams of records share."""
        reads = self.settings.reads
        return ReadBudget(bytes_max=reads.memory_bytes, segments_max=reads.segments_max)

    @cached_property
    def at_hand(self) -> AtHand:
        """A few keys at a time."""
        return AtHand(self.clock, enabled=self.settings.apply.inline_bytes > 0)

    @cached_property
    def scans(self) -> Scans:
        """Scans over the state of one partition."""
        return Scans(self, scans_max=self.settings.reads.scans_max)

    @cached_property
    def views(self) -> Views:
        """Scans over the state of several partitions at one index."""
        reads = self.settings.reads
        return Views(self, views_max=reads.views_max, bytes_max=reads.memory_bytes)

    def _eased(self) -> None:
        self.submitting.eased()

    async def start(self, peer_address: str) -> None:
        """See Pipeline."""
        await super().start(peer_address)
        self.scrubbing.start()
        self.signals.start()

    async def close(self) -> None:
        """See Pipeline."""
        self.signals.close()
        await self.scrubbing.close()
        self.exchange.close()
        await self.freshness.close()
        await super().close()

    # -- what other nodes have to do with it

    def members_changed(self, members: Configuration) -> None:
        """See RaftEvents."""
        super().members_changed(members)
        self.exchange.members_changed(members)
        self.pressure.members_changed(members)
        self.comparing.members_changed(members.ids)

    def leads(self, term: int) -> None:
        """See RaftEvents."""
        super().leads(term)
        self.barriers.lead()
        self.pressure.leads()

    def lost_leadership(self) -> None:
        """See RaftEvents."""
        super().lost_leadership()
        self.barriers.lost_leadership(lambda: NotLeader("this node no longer leads", leader=self.leader_address()))
        self.pressure.lost_leadership()

    def peer_frame(self, peer: NodeId, frame: Frame) -> None:
        """See RaftEvents."""
        if frame.kind in EXCHANGED:
            self.exchange.on_frame(peer, frame)
        elif frame.kind in INDICES:
            self.freshness.on_frame(peer, frame)
        else:
            if frame.kind is Kind.PROGRESS:
                self.pressure.heard(peer, frame.header)
                self.comparing.heard(peer, frame.header)
            super().peer_frame(peer, frame)

    def peer_up(self, peer: NodeId) -> None:
        """See RaftEvents."""
        super().peer_up(peer)
        self.exchange.peer_up(peer)
        self.pressure.peer_up(peer)
        self.comparing.peer_up(peer)

    def peer_forgot(self, peer: NodeId) -> None:
        """See RaftEvents."""
        super().peer_forgot(peer)
        self.exchange.asking.forget(peer)
        self.barriers.members_changed()  # where partitions were by what it said they are no longer

    def peer_down(self, peer: NodeId) -> None:
        """See RaftEvents."""
        super().peer_down(peer)
        self.exchange.peer_down(peer)
        self.pressure.peer_down(peer)
        self.comparing.peer_down(peer)
        self.freshness.peer_down(peer)

    def _tick(self) -> None:
        super()._tick()
        self.exchange.tick()
        self.pressure.tell()
        self.comparing.tell()
        self._relieve()
        engine = self.raft.engine
        self.leadership.notice(engine)
        committed = max(engine.commit_index, engine.heard_commit or 0)
        self.leaderless.notice(engine.leader, committed=committed, applied=engine.applied_index)

    def snapshot_completed(self, meta: SetMeta) -> None:
        """See Presence."""
        super().snapshot_completed(meta)
        self.comparing.taken(meta.global_index)

    def snapshot_kept(self, meta: SetMeta) -> None:
        """See Presence."""
        super().snapshot_kept(meta)
        self.comparing.kept(meta.global_index)

    def _relieve(self) -> None:
        """What this node's own signals withhold it withholds from all as long as it leads."""
        better, own = self.pressure.better(), self.pressure.own
        if better and own is not None:
            self.lagging.relieve(better, f"{own.signal} withholds everything here, and not elsewhere")

    # -- what clients ask

    def admits(self) -> bool:
        """It leads, and takes writes."""
        return self.raft.admits

    def serves(self, partition_id: int) -> bool:
        """It is open here."""
        return partition_id in self.workers

    def partition_ids(self) -> Sequence[PartitionId]:
        """All that are served here, ascending."""
        return sorted(self.workers)

    def missing(self, partition_id: int) -> LogboomError:
        """Why there is no such partition here."""
        return self.partitioning.missing(partition_id)

    def key_partitions(self) -> int:
        """Keys are routed over those from 0 to this, exclusive: as many as the cluster began with."""
        return self.parent.lifecycle.begins_with(self.cluster.partitions)

    def cursors_partition(self) -> PartitionId | None:
        """The one that keeps the positions of named consumers; None: there is none."""
        return self.parent.lifecycle.with_token(CURSORS_TOKEN)

    def partition_rows(self) -> list[list[object]]:
        """Id, state machine and mode of each, for clients; and what it is for, if it is not for users."""
        kinds = {p: self.partitioning.kind(p) for p in self.parent.lifecycle.ids(self.cluster.partitions)}
        cursors = self.cursors_partition()
        return [
            [p, kind.state_machine, str(kind.mode), *([CURSORS] if p == cursors else [])] for p, kind in kinds.items()
        ]

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

    def has_log(self, partition_id: PartitionId) -> bool:
        """What was committed of it before this node started is durable here, though its state may be behind."""
        return self.recovery.logged(partition_id, undurable_from=self.logs[partition_id].undurable_from)

    def global_commit_index(self) -> GlobalLogIndex:
        """Highest ``global_log_index`` that this node knows to be committed."""
        return self.parent.global_index

    async def read_index(self, deadline: float, *, lone: bool = False) -> GlobalLogIndex:
        """A global index that covers everything committed before this call (a quorum has said so)."""
        loop = self._loop
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

        self.raft.read_index(done, lone=lone)
        timer = loop.call_later(
            max(0.0, deadline - self.clock.monotonic()),
            lambda: done(Unavailable("no quorum confirmed the leader in time")),
        )
        try:
            return await answer
        finally:
            timer.cancel()

    async def wait_applied(
        self, partition_id: PartitionId, global_index: GlobalLogIndex, deadline: float, *, asker: Asker | None = None
    ) -> None:
        """Until this node has applied ``partition_id`` up to ``global_index``. Raises as ``until_applied`` does."""
        await until_applied(self, ((partition_id, global_index),), deadline, asker=asker)

    async def wait_all_applied(self, targets: Sequence[tuple[PartitionId, GlobalLogIndex]], deadline: float) -> None:
        """The same of several, each up to an index of its own."""
        await until_applied(self, targets, deadline)

    def hurry(self, partitions: Iterable[PartitionId]) -> None:
        """Somebody waits for these to be applied."""
        for partition_id in partitions:
            if partition_id in self.workers:
                self.workers[partition_id].hurry()

    def using(self, partition_id: PartitionId) -> AbstractContextManager[Machine]:
        """A partition's machine, for reads off the loop within the block.

        Raises what ``missing`` says, and CorruptData if its state is damaged.
        """
        self.rebuilding.check(partition_id)
        self.lagging.check(partition_id)
        return self.partitioning.using(partition_id)

    def threads_of(self, partition_id: PartitionId, machine: Machine) -> Asking:
        """For what is asked of this machine, which it has or had."""
        worker = self.workers.get(partition_id)
        return self.threads_for(machine, self.offload if worker is None else worker.offload)

    def threads_for(self, machine: Machine, offload: Offload) -> Asking:
        """For what is asked of this machine, whose own threads these are, though its partition be destroyed."""
        return Asking(offload, lambda: self.partitioning.hold(machine))

    def digesting(self, partition_id: PartitionId) -> asyncio.Lock:
        """Held while a digest is made on the threads of this partition: it reads all of a state."""
        return self._digesting[self.partitioning.kind(partition_id).state_machine]

    @cached_property
    def _digesting(self) -> defaultdict[str, asyncio.Lock]:
        return defaultdict(asyncio.Lock)

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
        if self.workers[partition_id].useless:
            self.rebuilding.check(partition_id)
        return self._steer(partition_id, self.workers[partition_id].resume)

    def freeze(self, partition_id: PartitionId, reason: str = "") -> str:
        """Admit no writes here, and say why."""
        return self._steer(partition_id, lambda: self.admission.freeze(partition_id, reason))

    def thaw(self, partition_id: PartitionId) -> str:
        """Admit writes again."""
        return self._steer(partition_id, lambda: self.admission.thaw(partition_id))

    def _steer(self, partition_id: PartitionId, act: Callable[[], object]) -> str:
        act()
        self._publish(partition_id)
        return self.watermarks.of(partition_id).state

    def subscribe_commits(self, partition_id: PartitionId, callback: Moved) -> Callable[[], None]:
        """See Subscriptions.to_commits."""
        return self.subscriptions.to_commits(partition_id, callback)

    def subscribe_ordered(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See Subscriptions.to_ordered."""
        return self.subscriptions.to_ordered(callback)

    def subscribe_applied(self, partition_id: PartitionId, callback: Moved) -> Callable[[], None]:
        """See Subscriptions.to_applied."""
        return self.subscriptions.to_applied(partition_id, callback)

    def applied_index(self, partition_id: PartitionId) -> int:
        """Of the last record whose effects show here."""
        return self.watermarks.of(partition_id).applied_index

    def safe_horizon(self, partitions: Collection[PartitionId], level: Level) -> Horizon:
        """Up to where all that can come of these partitions is here, and durable.

        With level ``applied`` its effects show, too.
        """
        through, held_by = self.parent.global_index, None
        for partition_id in self._touched | self._unsynced:  # of all others what is committed is durable
            waits = self.logs[partition_id].undurable_from if partition_id in partitions else None
            if waits is not None and waits <= through:
                through, held_by = GlobalLogIndex(waits - 1), partition_id
        for partition_id in partitions if level is Level.APPLIED else ():
            mark = self.watermarks.of(partition_id)
            applied = mark.applied_global_index
            if applied < through:
                hole = self.hole_of(partition_id)
                if hole is not None and hole.first_index == mark.applied_index + 1:  # nothing of it is in between
                    applied = max(applied, GlobalLogIndex(hole.global_index - 1))
            if applied < through:
                through, held_by = applied, partition_id
        return Horizon(through, held_by)

    @property
    def lineage(self) -> str | None:
        """Which history of the cluster this node is of; None: it joins, and has met nobody yet."""
        return self.raft.links.identity.lineage

    def role(self) -> str:
        """``leader``, ``candidate``, ``follower``, or what this node is instead of a voter."""
        engine, standing = self.raft.engine, self.raft.members.roster.standing
        if engine.is_leader or engine.is_candidate:
            return "leader" if engine.is_leader else "candidate"
        return "follower" if standing == Role.VOTER else str(standing)
