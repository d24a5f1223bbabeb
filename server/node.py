"""One node: every part made and put together, started and stopped in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from dispatcher.admission.admission import Admission
from dispatcher.admission.signals import Signals
from dispatcher.admission.signals import make as make_signals
from dispatcher.barriers.barriers import Barriers
from dispatcher.barriers.watermarks import Watermarks
from dispatcher.pipeline.backend import Backend
from dispatcher.pipeline.pipeline import Pipeline
from dispatcher.pipeline.viewing import view
from dispatcher.sessions.members import hand_over
from dispatcher.sessions.service import ClientService
from dispatcher.upkeep.compaction import Compaction
from dispatcher.upkeep.due import SHORT_OF_ROOM, Due
from dispatcher.upkeep.installing import Installing
from dispatcher.upkeep.rebuilding import Rebuilding
from dispatcher.upkeep.scrubbing import Scrubbing
from dispatcher.upkeep.serving import SnapshotServing
from dispatcher.upkeep.set_writing import SetWriting
from dispatcher.upkeep.snapshots import Snapshots
from dispatcher.upkeep.snapshotting import Snapshotting
from logboom import access, certs
from logboom.errors import LogboomError
from logboom.settings import Settings
from logboom.types import KIB, NodeId
from ports.net import ConnectionLimits, Listener
from ports.offload import Offload
from ports.timers import wait
from raftlog.core import RaftLog
from raftlog.entries.voids import Voids
from raftlog.journal.outbox import GroupLimits, GroupSync
from raftlog.links.hello import Identity
from raftlog.links.links import Links
from server.directory.agreement import member_of, settings_digest
from server.directory.directories import NO_ROOM, open_directories
from server.directory.faults import drop_hook
from server.directory.install import Intent
from server.directory.remembered import remembered
from server.directory.shares import unread_share, within
from server.opening import Opened
from server.watching.watching import Watching, not_renewed, rules_not_renewed
from server.world.world import SCRUBBING, SETS, STATES, World, real_world

log = structlog.get_logger(__name__)

HAND_OVER_AGAIN_S = 0.05
PEER_BYTES_PER_S = 32 * KIB
"""A line between nodes may be as slow as that: what is cut in the midst of a frame would be sent again, for ever."""


class Node:
    """A running node. ``fatal`` is called, on the loop, with whatever must stop the process."""

    def __init__(
        self, settings: Settings, *, fatal: Callable[[BaseException], None], world: World | None = None
    ) -> None:
        """Open and recover everything on disk (blocking). Raises typed errors; the process has to end then."""
        self.world = (
            world if world is not None else real_world(page_cache_bytes=settings.log.page_cache_bytes, fatal=fatal)
        )
        settings = self.settings = within(settings, self.world.memory_limit_bytes())
        self.fatal = fatal
        self.member = member_of(settings)
        self.node_id = NodeId(self.member.id)
        self.clock = self.world.clock
        self.rng = self.world.rng
        self.disk = self.world.disk
        self.network = self.world.network
        self.sync_offload = self.world.sync_offload
        self.apply_offload = self.world.apply_offload
        self.save_offload = self.world.save_offload
        self.slow_offload = self.world.slow_offload
        tls = settings.tls.directory
        self.tls = certs.renewed_node(tls, self.node_id, not_renewed, apart=bool(settings.access.file)) if tls else None
        self.rules = access.of_node(settings, rules_not_renewed)
        self.watching = Watching(settings, self.node_id, self.world, self.tls[0] if self.tls else None)
        opened = Opened(settings, self.node_id, self.world, fatal=fatal)
        self.data_dir, self.journal, self.sets = opened.data_dir, opened.journal, opened.sets
        self.parent, self.membership, self.rooms = opened.parent, opened.membership, opened.rooms
        self.logs, self.machines = self.rooms.logs, self.rooms.machines
        self.watermarks = Watermarks(list(self.logs))
        self.barriers = Barriers(settings.barrier, self.watermarks)
        self.admission = Admission(settings.admission, list(self.logs))
        self.pipeline = Backend(
            settings=settings,
            node_id=self.node_id,
            rooms=self.rooms,
            raft_of=self._raft,
            offload=self.apply_offload,
            clock=self.clock,
            watermarks=self.watermarks,
            barriers=self.barriers,
            admission=self.admission,
            parent=self.parent,
            snapshots_of=self._snapshots,
            rebuilding_of=self._rebuilding,
        )
        for partition_id, why in self.rooms.lacking.items():
            self.pipeline.rebuilding.lacking(partition_id, why)
        self.pipeline.scrubbing = self._scrubbing(self.pipeline)
        self.pipeline.signals = self._signals(self.pipeline)
        self.pipeline.voiding.declared = self._note_voids
        self.pipeline.voiding.declaring.renew = self.rooms.renew
        self.pipeline.raft.recover()
        tracer = self.pipeline.tracer = self.pipeline.forwarding.tracer = self.watching.tracer()
        self.service = ClientService(self.pipeline, settings, tracer, self.rules, self._usage)
        self._listener: Listener | None = None

    async def start(self) -> str:
        """Bind both ports and take part; returns the client address as bound."""
        await self.watching.start(self.pipeline, self.service, self.rooms.counts)
        net = self.settings.net
        self._listener = await self.network.listen(
            self.settings.node.client_address or self.member.client_address,
            self.service.accept,
            limits=ConnectionLimits(
                unauthenticated_frame_bytes=net.unauthenticated_frame_bytes,
                frame_bytes=net.client_frame_bytes,
                handshake_s=net.handshake_ms / 1000,
                frame_s=net.frame_ms / 1000,
                send_buffer_bytes=net.client_send_buffer_bytes,
                unread_bytes_max=unread_share(self.settings),
                connections_max=net.connections_max,
                connections_per_address=net.connections_per_address,
                traffic=self.watching.clients,
            ),
            tls=self.tls[0] if self.tls else None,
        )
        await self.pipeline.start(self.settings.node.peer_address or self.member.peer_address)
        self.service.start()
        log.info("serving", node=self.node_id, clients=self._listener.address, peers=self.member.peer_address)
        return self._listener.address

    async def hand_over(self) -> None:
        """Before this node stops: if it leads, and another can, have that one lead. ``raft.transfer_ms`` at most."""
        self.watching.stopping()
        until = self.clock.monotonic() + self.settings.raft.transfer_ms / 1000
        while self.pipeline.raft.engine.is_leader and self.clock.monotonic() < until:
            try:
                await hand_over(self.pipeline, None, until)
            except LogboomError as error:
                log.info("not_handed_over", error=error.message)
                if not set(self.membership.current.voters) & set(self.pipeline.raft.engine.connected_peers):
                    return
                await wait(HAND_OVER_AGAIN_S)

    async def close(self) -> None:
        """Stop taking requests, answer what is open, sync and close every file."""
        if self._listener is not None:
            await self._listener.close()
        await self.service.close()
        await self.pipeline.close()
        self.pipeline.raft.group.close()
        await self.watching.close()
        offloads = (self.sync_offload, self.apply_offload, self.save_offload, self.slow_offload)
        lasting = self.world.lasting.values()
        await asyncio.gather(*(offload.close() for offload in (*offloads, *lasting, *self.rooms.offloads())))
        self.rooms.close()
        self.journal.close()
        self.data_dir.close()

    def _usage(self) -> dict[str, int | None]:
        """See STATUS_REPLY in docs/protocol.md."""
        applied = self.rooms.counts
        return {
            "applied_records": applied.records,
            "applied_bytes": applied.bytes,
            "memory": self.world.resident_bytes(),
            "disk_free": self.pipeline.signals.disk_free_bytes,
        }

    def _note_voids(self, voids: Voids) -> None:
        """In the manifest, for people. While the log is replayed it says so already."""

        def written(_: None, error: BaseException | None) -> None:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                log.warning("voids_not_noted", error=str(error))  # with the next one, or after the next start
            elif error is not None:
                self.fatal(error)

        self.slow_offload.submit(partial(self.data_dir.note_voids, voids.kept), written)

    # -- parts

    def _lasting(self, name: str) -> Offload:
        """For what calls machines of users: one that does not return keeps its own kind of work from going on."""
        return self.world.lasting.get(name, self.slow_offload)

    def _snapshots(self, pipeline: Pipeline) -> Snapshots:
        settings, raft, cluster = self.settings.snapshot, pipeline.raft, self.settings.cluster
        spare_bytes = self.settings.admission.disk_free_bytes_min // 2
        serving = SnapshotServing(
            store=self.sets,
            logs=self.logs,
            links=raft.links,
            clock=self.clock,
            offload=self.apply_offload,
            damaged=pipeline.damaged,
            handed_up=lambda: raft.engine.applied_index,
            hold_s=settings.hold_ms / 1000,
            acknowledged=lambda peer: (
                raft.engine.acknowledged_by(peer) if raft.engine.is_leader and peer in raft.engine.peers else None
            ),
            short_of_room=lambda: self.data_dir.free_bytes() < SHORT_OF_ROOM * spare_bytes,
            doubted=lambda index: self.pipeline.scrubbing.doubt(index),  # noqa: PLW0108 - made later
        )
        compaction = Compaction(
            settings=settings,
            cluster=cluster,
            store=self.sets,
            logs=self.logs,
            workers=pipeline.workers,
            raft=raft,
            clock=self.clock,
            offloads=(self.save_offload, self.slow_offload),
            held_back=serving.held_back,
            forget=pipeline.partitioning.forget,
            fatal=self.fatal,
        )
        due = Due(
            settings=settings,
            store=self.sets,
            counts=self.rooms.counts,
            clock=self.clock,
            logs=self.logs,
            workers=pipeline.workers,
            recovered=lambda: pipeline.recovery.complete,
            global_index=lambda: pipeline.parent.global_index,
            needed_behind=lambda index: pipeline.parent.needed_behind(index, cluster.partitions),
            free_bytes=self.data_dir.free_bytes,
            spare_bytes=spare_bytes,
        )
        writing = SetWriting(
            settings=settings,
            cluster=cluster,
            lineage=self.data_dir.lineage,
            store=self.sets,
            clock=self.clock,
            sleep=self.world.sleep,
            spare_bytes=spare_bytes,
        )
        taking = Snapshotting(
            settings=settings,
            cluster=cluster,
            store=self.sets,
            writing=writing,
            compaction=compaction,
            workers=pipeline.workers,
            raft=raft,
            clock=self.clock,
            offload=self._lasting(SETS),
            due=due,
            completed=pipeline.snapshot_completed,
            kept=pipeline.snapshot_kept,
            fatal=self.fatal,
            hole_of=pipeline.hole_of,
            give_up=partial(self.world.give_up, SETS),
            want=lambda: installing.keep(),  # noqa: PLW0108 - made below, of this
        )
        installing = Installing(
            settings=settings,
            cluster=cluster,
            lineage=self.data_dir.lineage,
            peers=lambda: raft.engine.peers,
            store=self.sets,
            log_of=pipeline.partitioning.opening.log_of,
            payloads=pipeline.payloads,
            links=raft.links,
            clock=self.clock,
            offload=self.slow_offload,
            poke=raft.poke,
            raft_index=lambda: raft.engine.applied_index,
            base_index=lambda: raft.journal.base.index,
            stop_compaction=compaction.close,
            resume_compaction=compaction.go_on,
            ready=Intent(self.disk, self.data_dir.path).write,
            fatal=self.fatal,
            kept=taking.fetched,
            spare_bytes=spare_bytes,
        )
        return Snapshots(self.sets, taking, compaction, serving, installing)

    def _scrubbing(self, backend: Backend) -> Scrubbing:
        return Scrubbing(
            settings=self.settings.scrub,
            logs=self.logs,
            machines=self.machines,
            using=backend.partitioning.using,
            store=self.sets,
            journal=self.journal,
            clock=self.clock,
            offload=self._lasting(SCRUBBING),
            store_offload=self.slow_offload,
            give_up=partial(self.world.give_up, SCRUBBING),
            damaged_batch=backend.damaged,
            damaged_state=backend.rebuilding.damaged,
            fatal=self.fatal,
        )

    def _signals(self, backend: Backend) -> Signals:
        settings = self.settings.admission
        return Signals(
            make_signals(
                settings,
                free_bytes=self.data_dir.free_bytes,
                resident_bytes=self.world.resident_bytes,
            ),
            settings,
            admission=self.admission,
            view=partial(view, backend),
            partitions=backend.partition_ids,
            offload=self.apply_offload,
            eased=backend.submitting.eased,
            told=backend.pressure.said,
        )

    def _rebuilding(self, pipeline: Pipeline) -> Rebuilding:
        return Rebuilding(
            machines=self.machines,
            workers=pipeline.workers,
            worker_of=pipeline.make_worker,
            rebuild=lambda p, damaged, applied: self.rooms.rebuild(p, damaged, applied, pipeline.parent.voids),
            unused=pipeline.partitioning.unused,
            retire=self.rooms.retire,
            clock=self.clock,
            offload=self._lasting(STATES),
            want=pipeline.snapshots.installing.want,
            changed=pipeline.look_again,
            fatal=self.fatal,
            give_up=partial(self.world.give_up, STATES),
            moves=lambda: self.rooms.moves,
            stall_s=self.settings.snapshot.load_stall_ms / 1000,
        )

    def _raft(self, pipeline: Pipeline) -> RaftLog:
        settings = self.settings
        net = settings.net
        return RaftLog(
            membership=self.membership,
            journal=self.journal,
            payloads=pipeline.payloads,
            links_of=lambda events: Links(
                identity=Identity(
                    self.node_id,
                    settings.cluster.id,
                    settings_digest(settings.cluster),
                    self.data_dir.manifest.lineage,
                    remembered(settings.apply),
                ),
                members={},
                network=self.network,
                clock=self.clock,
                rng=self.rng,
                limits=ConnectionLimits(
                    unauthenticated_frame_bytes=net.unauthenticated_frame_bytes,
                    frame_bytes=net.peer_frame_bytes,
                    header_bytes=net.peer_frame_bytes,
                    handshake_s=net.handshake_ms / 1000,
                    frame_s=max(net.frame_ms / 1000, net.peer_frame_bytes / PEER_BYTES_PER_S),
                    send_buffer_bytes=net.peer_send_buffer_bytes,
                    connections_max=net.peer_connections_max,
                    traffic=self.watching.peers,
                ),
                tls=self.tls[1] if self.tls else None,
                events=events,
                drop=drop_hook(),
                adopt=partial(self.data_dir.take_lineage, fatal=self.fatal),
                directories=open_directories(
                    self.disk, self.data_dir.path, self.membership, self.rng, self.save_offload, fatal=self.fatal
                ),
            ),
            group=lambda synced: GroupSync(
                journal=self.journal,
                offload=self.sync_offload,
                clock=self.clock,
                synced=synced,
                failed=self.fatal,
                limits=GroupLimits(
                    inline=settings.raft.inline_sync_bytes_max,
                    redo=settings.raft.redo_bytes_max,
                    unsettled=settings.raft.redo_unsettled_bytes,
                ),
            ),
            settings=settings.raft,
            clock=self.clock,
            rng=self.rng,
            offload=self.apply_offload,
            events=pipeline,
            fatal=self.fatal,
        )
