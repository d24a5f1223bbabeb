"""The whole write flow of one node, in order.

admit → build batch → append (tentative) → payload to followers → propose → *commit* →
bind batch to its global index → apply → release budget, move watermarks, wake waiters.

Stages below return facts; only this module sees them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import structlog

from dispatcher.admission.admission import Admission
from dispatcher.admission.lanes import Waiting
from dispatcher.barriers.barriers import Barriers
from dispatcher.barriers.stability import Stability
from dispatcher.barriers.watermarks import Watermarks
from dispatcher.pipeline.agreement import Agreement
from dispatcher.pipeline.choosing import Choosing
from dispatcher.pipeline.forwarding import Forwarding
from dispatcher.pipeline.lagging import Lagging
from dispatcher.pipeline.needed import set_needed
from dispatcher.pipeline.partitioning import Partitioning
from dispatcher.pipeline.payloads import PartitionPayloads
from dispatcher.pipeline.pending import Done, Pending
from dispatcher.pipeline.presence import Presence
from dispatcher.pipeline.recovered import Recovered
from dispatcher.pipeline.rooms import Rooms
from dispatcher.pipeline.submitting import Submitting
from dispatcher.pipeline.subscriptions import Subscriptions
from dispatcher.pipeline.voiding import Voiding
from dispatcher.reading.lately import Lately
from dispatcher.requests.requests import SubmitRequest, acknowledged_at
from dispatcher.requests.tracing import Tracer
from dispatcher.upkeep.rebuilding import Rebuilding
from dispatcher.upkeep.snapshots import CUT, FETCHED, SERVED, Snapshots
from logboom.errors import CorruptData, LogboomError
from logboom.settings import Settings
from logboom.types import MIXED, DurabilityMode, GlobalLogIndex, Level, NodeId, PartitionId, Term
from logboom.wire import Frame, Kind
from partitions.apply.apply_core import Begun
from partitions.apply.worker import ApplyWorker
from partitions.log.log import PartitionLog
from ports.clock import Clock
from ports.offload import Offload
from raftlog.core import RaftLog
from raftlog.entries.agreed import AGREE
from raftlog.entries.chosen import SET
from raftlog.entries.configuration import MEMBERS, Configuration
from raftlog.entries.entry import Route
from raftlog.entries.lifecycle import CHANGES
from raftlog.entries.parent_state import ParentState, Tail
from raftlog.entries.voids import VOID

log = structlog.get_logger(__name__)

TICK_S = 0.05
SETTLE_LINGER_S = 0.004
"""What nobody waits for is settled this much later, in one go: several lone commands one after the other share it."""


class Pipeline(Presence):
    """One node's dispatcher: the client service's backend, the parent log's audience."""

    def __init__(
        self,
        *,
        settings: Settings,
        node_id: NodeId,
        rooms: Rooms,
        raft_of: Callable[[Pipeline], RaftLog],
        offload: Offload,
        clock: Clock,
        watermarks: Watermarks,
        barriers: Barriers,
        admission: Admission,
        parent: ParentState,
        snapshots_of: Callable[[Pipeline], Snapshots],
        rebuilding_of: Callable[[Pipeline], Rebuilding],
    ) -> None:
        """``parent`` is the parent log's state at its base; in ``rooms`` is open what begins there."""
        self.settings = settings
        self.cluster = settings.cluster
        self.node_id = node_id
        self.logs = rooms.logs
        self.machines = rooms.machines
        self._worker_of = rooms.worker
        self.offload = offload
        self.clock = clock
        self.watermarks = watermarks
        self.barriers = barriers
        self.admission = admission
        self.parent = parent
        self.partitioning = Partitioning(self, rooms)
        self.voiding = Voiding(self)
        self.agreement = Agreement(self)
        self.choosing = Choosing(self, missing=self.partitioning.missing)
        self.payloads = PartitionPayloads(
            self.logs,
            self.appended,
            gone=self.partitioning.is_gone,
            applied=self._secured,
            untouched=rooms.untouched,
            covered=self._covered,
            unneeded=self._unneeded,
            now=clock.monotonic,
            fatal=lambda error: self.raft.fatal(error),  # noqa: PLW0108 - there is none yet
        )
        self.lagging = Lagging(self)
        self.pending = Pending(held=self.lagging.held, level_of=self.level_of)
        self.submitting = Submitting(self, admission)
        behind = [p for p, store in self.logs.items() if store.mode is DurabilityMode.WRITE_BEHIND]
        self.stability = Stability(node_id=node_id, members=[], partitions=behind)
        self.raft = raft_of(self)
        self.forwarding = Forwarding(
            links=self.raft.links,
            submit=self.submit,
            clock=clock,
            bytes_max=settings.net.forward_bytes,
            longest_ms=settings.net.request_ms_max,
        )
        self.tracer: Tracer | None = None
        self.workers: dict[PartitionId, ApplyWorker] = {p: self.make_worker(p) for p in self.logs}
        self.snapshots = snapshots_of(self)
        self.rebuilding = rebuilding_of(self)
        self.repeated = 0  # requests that had been applied before
        self.tails: dict[PartitionId, Tail] = {}
        self.lately = Lately()
        self.recovery = Recovered(self.logs)
        self._touched: set[PartitionId] = set()
        self._unsynced: set[PartitionId] = set()
        """Partitions with committed batches that are not synced here yet: write-behind ones."""
        self._told_paused: set[PartitionId] = set()
        self._unshown: set[PartitionId] = set()
        """Partitions with committed batches that their watermarks do not show: they are about to be applied."""
        self._settle_due = False
        self._settle_later: asyncio.TimerHandle | None = None
        self._behind: dict[PartitionId, PartitionLog] = {}
        """Write-behind logs with something that is to be synced soon."""
        self.subscriptions = Subscriptions(watermarks)
        self._ticking: asyncio.TimerHandle | None = None
        self.members_changed(self.members)

    def make_worker(self, partition_id: PartitionId, begun: Begun | None = None) -> ApplyWorker:
        """For the partition's machine, as it is now. ``begun``: see Remade."""
        return self._worker_of(partition_id, self._progress_of(partition_id), begun)

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()  # a system call, each time

    # -- life

    async def start(self, peer_address: str) -> None:
        """Begin to talk to peers and to admit."""
        for partition_id in self.workers:
            self._publish(partition_id)
        newest = self.snapshots.store.newest
        if newest is not None:
            self.snapshot_shown(newest)
        self._touched.update(p for p, store in self.logs.items() if store.committed_index)  # below the journal's base
        self._settle()
        await self.raft.start(peer_address)
        self._tick()
        self.lagging.start()

    async def close(self) -> None:
        """Answer what is open, let applies under way finish, close the files."""
        for timer in (self._ticking, self._settle_later):
            if timer is not None:
                timer.cancel()
        self.lagging.close()
        self.submitting.close()
        self.pending.lost()
        self.choosing.lost_leadership()
        self.forwarding.close()
        await self.snapshots.close()
        await self.rebuilding.close()
        await self.partitioning.close()
        await self.raft.close()
        for worker in self.workers.values():
            await worker.close()

    def _tick(self) -> None:
        try:
            now = self.clock.monotonic()
            self.pending.expire(now)
            self.submitting.tick(now)
            self.forwarding.expire(now)
            self.snapshots.taking.tick()
            lost = self.raft.repair.lost()
            self.rebuilding.tick(now, set_needed(self.voiding.set_needed(), lost, self.workers, self.logs))
            if self.settings.log.mixed_bytes_max:
                self.agreement.consider(MIXED, now)
            self._tell_progress()  # a congested link was passed over
            self.partitioning.capacity.tell(now)
            if not self.recovery.over:
                self._settle()  # the first commit of a term may be an entry without routes
        finally:  # whatever goes wrong: the next deadline comes
            self._ticking = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    # -- submit

    def submit(self, request: SubmitRequest, done: Done, owner: Hashable = None) -> Waiting | None:
        """Admit and propose, or wait for admission, or answer at once with why not. ``done`` is called exactly once.

        What waits is returned: ``submitting`` can give it up, or everything of its ``owner``.
        """
        try:
            return self.submitting.submit(request, done, owner)
        except LogboomError as error:
            done(error)
            return None

    def level_of(self, asked: Level | None, partitions: Collection[PartitionId]) -> Level:
        """What a request with this ``wait`` has to wait for, as far as the parent log is handed up here."""
        return acknowledged_at(asked, partitions, self.cluster, self.parent.chosen)

    def lone_submit(self) -> None:
        """All that was read has been submitted: with nothing else under way, waiting gathers nothing."""
        if self.submitting.proposing.is_lone:
            self.raft.turn_now()

    def appended(self, store: PartitionLog) -> None:
        """To be synced."""
        self.raft.group.dirty(store)
        if store.mode is DurabilityMode.WRITE_BEHIND:
            if not self._behind:
                asyncio.get_running_loop().call_later(self.settings.log.linger_ms / 1000, self._sync_behind)
            self._behind[store.partition_id] = store

    def _sync_behind(self) -> None:
        behind, self._behind = self._behind, {}
        for partition_id, store in behind.items():
            # One that has been let go of meanwhile is written no more.
            if self.logs.get(partition_id) is store and store.request_sync():
                self.raft.group.dirty(store)
        self.raft.poke()

    # -- what there is

    @property
    def members(self) -> Configuration:
        """The configuration that counts here."""
        return self.raft.members.membership.current

    def address_of(self, node: NodeId) -> str | None:
        """Where clients reach a member."""
        seat = self.members.seat(node)
        return None if seat is None else seat.client_address

    def look(self) -> None:
        """Somebody is about to look at watermarks: bring them up to what is committed."""
        if self._settle_later is not None:
            self._settle()
        for partition_id in tuple(self._unshown):
            self._publish(partition_id)

    def _somebody_waits(self, routes: Sequence[Route]) -> bool:
        if len(self.barriers):
            return True
        pending, callbacks = self.pending, self.subscriptions.committed
        return any(pending.awaits_more(route.partition_id) or callbacks.get(route.partition_id) for route in routes)

    # -- the parent log's events

    def committed(self, raft_index: int, term: int, routes: Sequence[Route]) -> None:
        """See RaftEvents."""
        global_index = self.parent.apply(raft_index, routes)
        for route in routes:
            partition_id, store = route.partition_id, self.logs[route.partition_id]
            store.commit(last_index=route.last_index, digest=route.digest, global_index=global_index, term=Term(term))
            if store.is_lost(route.last_index, route.digest):
                self.voiding.hole_committed(route)
            self.lately.ordered(global_index, partition_id)
            self.pending.committed(partition_id, route.last_index, global_index)
            self._touched.add(partition_id)
            global_index = GlobalLogIndex(global_index + 1)
        self.submitting.committed()
        if self._somebody_waits(routes):
            self._settle_soon()
        elif self._settle_later is None:
            self._settle_later = self._loop.call_later(SETTLE_LINGER_S, self._settle)

    def control(self, raft_index: int, term: int, fields: Mapping[str, Any]) -> None:
        """See RaftEvents."""
        self.parent.control(raft_index, term, fields)
        if fields.get("do") == CUT["do"]:
            self.snapshots.taking.cut(raft_index=raft_index, term=term, parent=self.parent.copy())
        elif fields.get("do") in CHANGES:
            self.partitioning.handed_up(fields)
        elif fields.get("do") == SET:
            if not self.choosing.handed_up(fields):
                self.partitioning.check_begun()
        elif fields.get("do") == VOID:
            self.voiding.handed_up(raft_index, fields)
        elif fields.get("do") not in (MEMBERS, AGREE):
            raise CorruptData(f"the parent log says {fields.get('do')!r} at {raft_index}: this release cannot")

    def members_changed(self, members: Configuration) -> None:
        """See RaftEvents."""
        self._touched.update(self.stability.set_members(members.ids, voters=members.voters))
        self.partitioning.capacity.members_changed(members.ids)
        if self._touched and self._ticking is not None:
            self._settle_soon()

    def orders(self) -> None:
        """See RaftEvents."""
        self.submitting.proposing.flush()

    def leads(self, term: int) -> None:
        """See RaftEvents."""
        self.tails = self.parent.tails_after(self.raft.uncommitted_routes())
        self.pending.ahead.inherit({partition_id: tail.last_index for partition_id, tail in self.tails.items()})
        log.info("admitting", term=term, global_commit_index=self.parent.global_index)

    def lost_leadership(self) -> None:
        """See RaftEvents."""
        self.submitting.lost_leadership()
        self.agreement.lost_leadership()
        self.pending.lost()
        self.partitioning.lost_leadership()
        self.choosing.lost_leadership()
        self.voiding.lost_leadership()

    def traced(self, route: Route, traceparent: object) -> None:
        """See RaftEvents."""
        if self.tracer is not None:
            trace = self.tracer.begin("replica", traceparent, {"partition": route.partition_id})
            if trace is not None:
                self.raft.group.hold(lambda: trace.end(None))

    def synced(self) -> None:
        """See RaftEvents."""
        if self._unsynced:
            self._touched.update(self._unsynced)
            self._settle()

    def peer_frame(self, peer: NodeId, frame: Frame) -> None:
        """See RaftEvents."""
        if frame.kind is Kind.PROGRESS:
            self.lagging.heard(peer, frame.header)
            self.partitioning.capacity.heard(peer, frame.header)
            self._touched.update(self.stability.heard(peer, frame.header, is_gone=self.parent.lifecycle.is_gone))
            if self._touched:
                self._settle_soon()
        elif frame.kind in SERVED:
            self.snapshots.serving.on_frame(peer, frame)
        elif frame.kind in FETCHED:
            self.snapshots.installing.on_frame(peer, frame)
        else:
            self.forwarding.on_frame(peer, frame)

    def peer_needs_snapshot(self, peer: NodeId) -> None:
        """See RaftEvents."""
        self.snapshots.serving.offer(peer)

    def peer_up(self, peer: NodeId) -> None:
        """See RaftEvents."""
        self.stability.link_up(peer)
        self.partitioning.capacity.peer_up(peer)
        self._tell_progress()

    def peer_forgot(self, peer: NodeId) -> None:
        """See RaftEvents."""
        self.stability.forget(peer)

    def peer_drained(self, peer: NodeId) -> None:
        """See RaftEvents."""
        self.forwarding.peer_drained(peer)

    def peer_down(self, peer: NodeId) -> None:
        """See RaftEvents."""
        member = self.members.seat(peer) is not None
        self.stability.link_down(peer, member=member)
        self.partitioning.capacity.peer_down(peer, member=member)
        self.forwarding.peer_down(peer)
        self.submitting.gone(peer)
        self.snapshots.installing.peer_down(peer)

    # -- after commit

    def _settle_soon(self) -> None:
        if not self._settle_due:
            self._settle_due = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        """Once for many events: move workers and watermarks of all partitions that something happened to.

        Of those that are applied within this turn the watermarks wait for that, unless somebody looks, or waits.
        """
        self._settle_due = False
        if self._settle_later is not None:
            self._settle_later.cancel()
            self._settle_later = None
        touched, self._touched = self._touched, set()
        waited_for, followed = len(self.barriers) > 0, self.subscriptions.committed
        moved = touched & self.workers.keys()  # another may still be opened, and be read all the same
        self._unsynced |= touched & self.logs.keys()  # as far as is known, until each is looked at
        for partition_id in moved:
            store = self.logs[partition_id]
            self.pending.durable(partition_id, store.durable_index)
            self.stability.update(self.node_id, partition_id, store.durable_index)
            stable = self.stability.stable(partition_id)
            limit = store.durable_index if stable is None else min(store.durable_index, stable)
            urgent = self.pending.awaits_applied(partition_id) or self.barriers.awaits_applied(partition_id)
            worker = self.workers[partition_id]
            worker.notify(limit, urgent=urgent)
            if worker.is_about_to and not waited_for:
                self.watermarks.busy(partition_id)
                self._unshown.add(partition_id)
            else:
                self._publish(partition_id)
            whole = store.durable_index == store.committed_index
            if whole:
                self._unsynced.discard(partition_id)
            else:
                self._unsynced.add(partition_id)
            self.barriers.durable(partition_id, store.durable_global_index, whole=whole)
            if followed.get(partition_id):
                self.subscriptions.tell_committed(partition_id)
        unopened = (touched - moved) & self.logs.keys()
        for partition_id in unopened:  # what is synced here counts on nodes where it is open
            self.stability.update(self.node_id, partition_id, self.logs[partition_id].durable_index)
        self._unsynced -= {p for p in unopened if self.logs[p].undurable_from is None}
        self._tell_progress()
        self.watermarks.committed(self.parent.global_index)
        self.barriers.committed(self.parent.global_index)
        if self.subscriptions.ordered:
            self.subscriptions.tell_ordered()
        self.recovery.notice(self.raft.engine, self.parent.global_index, self.watermarks, touched)

    def _tell_progress(self) -> None:
        for peer, header in self.stability.news(self.clock.monotonic()):
            if self.raft.links.send(peer, Kind.PROGRESS, header):
                self.stability.told(peer, again="again" in header)
