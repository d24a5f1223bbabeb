"""Being given a snapshot: the side of a node that lacks what the others have compacted.

It goes on as a follower while it fetches the set's files, and what its logs lack of partitions whose records
are kept nowhere else, from any node that has them: piece by piece, checked, going on where it stopped. When
all of it is on the disk it writes down its intent and starts anew; ``server.directory.install`` does the rest before
the node takes part again. So it serves nothing stale, and a power loss at any moment leaves either the old
node, which fetches on, or the intent, which is carried out.

A node that cannot take sets of its own, since a dump does not return, keeps those of others, and is made of none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import structlog

from dispatcher.upkeep.log_fetching import LogFetch
from dispatcher.upkeep.sources import Sources, batches_in, number
from logboom.errors import CorruptData, LogboomError, ProtocolError
from logboom.settings import ClusterSettings, SnapshotSettings
from logboom.types import MIB, NO_DIGEST, GlobalLogIndex, NodeId, PartitionId, PartitionLogIndex
from logboom.wire import Frame, Kind
from partitions.log.log import PartitionLog
from ports.clock import Clock
from ports.invariant import InvariantViolated
from ports.offload import Offload
from ports.seldom import Seldom
from ports.timers import wait
from raftlog.entries.lifecycle import PartitionKind, kind_of
from raftlog.entries.parent_state import ParentState
from raftlog.links.links import Links
from raftlog.links.payloads import Payloads
from snapshots.meta import SetMeta, decode
from snapshots.store import SnapshotStore

log = structlog.get_logger(__name__)

SYNC_BYTES: Final = 8 * MIB
META_BYTES_MAX: Final = 64 * MIB
DURABLE_POLL_S: Final = 0.005
WANTED_S: Final = 10.0
"""One is wanted for so long; as long as it is, that is said again once a second."""
NEWER_S: Final = 5.0
"""Where a newer set overtook one that was fetched, no older one is begun for so long."""


class InstallDue(LogboomError):
    """Not an error: a snapshot is on the disk, and the node has to start anew to be made from it."""

    code = "install_due"
    retryable = True


class Overtaken(LogboomError):
    """Not an error: this node has come as far as the set with its log, which may even begin behind it by now."""

    code = "overtaken"
    retryable = True


class Check(Protocol):
    """Raises once what it was given for is of no use any more."""

    def __call__(self, *, stands: bool = False) -> None:
        """``stands``: whoever asks waits for what may never come."""
        ...


class Fetched(NamedTuple):
    """How far a fetch is, for people."""

    global_index: GlobalLogIndex
    bytes: int
    total: int
    partition: PartitionId | None
    """Whose log is being fetched, after the files."""


class Installing:
    """Fetches snapshot sets for one node, one at a time."""

    def __init__(
        self,
        *,
        settings: SnapshotSettings,
        cluster: ClusterSettings,
        lineage: Callable[[], str],
        peers: Callable[[], Iterable[NodeId]],
        store: SnapshotStore,
        log_of: Callable[[PartitionId, PartitionKind, Check], Awaitable[PartitionLog]],
        payloads: Payloads,
        links: Links,
        clock: Clock,
        offload: Offload,
        poke: Callable[[], None],
        raft_index: Callable[[], int],
        base_index: Callable[[], int],
        stop_compaction: Callable[[], Awaitable[None]],
        resume_compaction: Callable[[], None],
        ready: Callable[[GlobalLogIndex], None],
        fatal: Callable[[BaseException], None],
        kept: Callable[[SetMeta], None],
        spare_bytes: int = 0,
    ) -> None:
        """``log_of`` a partition of the set, opened if it is not known here yet. ``poke``: something was appended.

        ``log_of`` may have to wait for files: see Check.
        ``raft_index``: what is handed up here; ``base_index``: the journal's base. ``ready`` is called, off the loop,
        when all is on the disk: it writes the intent. Then ``fatal(InstallDue)``. ``kept`` hears of a set that is here
        in the place of one of this node's own. ``spare_bytes``: of the disk are left to the logs.
        """
        self._settings = settings
        self._cluster = cluster
        self._lineage = lineage
        self._sources = Sources(peers, links)
        self._store = store
        self._log_of = log_of
        self._payloads = payloads
        self._clock = clock
        self._seldom = Seldom(clock.monotonic)
        self._offload = offload
        self._poke = poke
        self._raft_index = raft_index
        self._base_index = base_index
        self._stop_compaction = stop_compaction
        self._resume_compaction = resume_compaction
        self._ready = ready
        self._fatal = fatal
        self._kept = kept
        self._spare_bytes = spare_bytes
        self._keeps = False
        """A set is asked for that is only to be kept."""
        self._only_keeps = False
        """The set that is being fetched is only to be kept."""
        self._wanted_until = 0.0
        """Until then a set is needed even if it is older than what is handed up here: a state is gone."""
        self._was_wanted = False
        """The set that is being fetched was wanted when that was begun."""
        self._why = ""
        """The reason that was logged last."""
        self.least = GlobalLogIndex(0)
        """Global index that a wanted set has to reach."""
        self._task: asyncio.Task[None] | None = None
        self._newest_offered = GlobalLogIndex(0)
        """Global index of the newest set that was offered and is of use here, since the last fetch was begun."""
        self._newer_until = 0.0
        """Until then no older one is begun: the last fetch could not go on with one."""
        self._over = False
        """The node is about to end, or to start anew: what is on the disk stays as it is."""
        self._filled: list[PartitionLog] = []
        """Logs that batches are fetched for."""
        self.begun = 0
        self.failed = 0
        self.progress: Fetched | None = None
        """How far the fetch under way is; None: there is none."""

    # -- from outside

    def on_frame(self, peer: NodeId, frame: Frame) -> None:
        """SNAPSHOT_OFFER, SNAPSHOT_CHUNK, LOG_CHUNK. Raises ProtocolError."""
        if frame.kind is Kind.SNAPSHOT_OFFER:
            self._offered(
                peer, GlobalLogIndex(number(frame.header, "global_index")), number(frame.header, "raft_index")
            )
            return
        self._sources.on_frame(peer, frame)

    def peer_down(self, peer: NodeId) -> None:
        """Do not wait for its answers."""
        self._sources.peer_down(peer)

    def want(self, why: str, behind: GlobalLogIndex = GlobalLogIndex(0)) -> None:
        """This node cannot go on with what it has: ask for a set, and for one behind this index."""
        self.least = GlobalLogIndex(behind + 1)
        self._wanted_until = self._clock.monotonic() + WANTED_S
        if self._task is None:
            if why != self._why:
                log.warning("snapshot_wanted", reason=why)  # which may go on for long
            self._why = why
            self._sources.tell(Kind.SNAPSHOT_WANTED)

    @property
    def _wanted(self) -> bool:
        """Still: what was lacking may have come by another way."""
        return self._clock.monotonic() < self._wanted_until

    def keep(self) -> None:
        """This node has what it needs, and takes no sets of its own: ask for the newest one of the others."""
        if self._task is None:
            self._keeps = True
            self._sources.tell(Kind.SNAPSHOT_WANTED)

    async def close(self) -> None:
        """Stop; what was fetched stays for the next time."""
        self._over = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- fetching

    def _offered(self, peer: NodeId, global_index: GlobalLogIndex, raft_index: int) -> None:
        if self._over:
            return
        if self._keeps and not self._wanted and self._task is None:
            self._keeps = False
            newest = self._store.newest
            is_newer = newest is None or newest.global_index < global_index
            if not is_newer or raft_index > self._raft_index():  # it may only be a moment behind; it asks again
                return
            self._sources.begin(global_index, peer)
            self._task = asyncio.get_running_loop().create_task(self._run(global_index, keeps=True))
            return
        if not self._is_of_use(raft_index) or (self._wanted and global_index < self.least):
            return
        if self._task is not None:
            self._newest_offered = max(self._newest_offered, global_index)
            return
        if global_index < self._newest_offered and self._clock.monotonic() < self._newer_until:
            return
        self._newest_offered, self._was_wanted = global_index, self._wanted
        self._sources.begin(global_index, peer)
        self._task = asyncio.get_running_loop().create_task(self._run(global_index, raft_index))

    def _is_of_use(self, raft_index: int) -> bool:
        """A set of there: this node needs one, and its journal does not begin behind it."""
        wanted = self._wanted or (self._task is not None and self._was_wanted)
        return raft_index >= (self._base_index() if wanted else self._raft_index() + 1)

    def _check_use(self, meta: SetMeta) -> None:
        """It was when it was offered. Since then another leader may have had the entries. Raises Overtaken."""
        if not (self._only_keeps or self._is_of_use(meta.raft_index)):
            raise Overtaken(f"this node has come to {self._raft_index()} by itself, the set is of {meta.raft_index}")

    def _check_waiting(self, meta: SetMeta, *, stands: bool = False) -> None:
        """The same, of a log that is waited for. What this waits for a newer set may not need. Raises Overtaken."""
        self._check_use(meta)
        if stands and self._newest_offered > meta.global_index:
            self._newer_until = self._clock.monotonic() + NEWER_S
            raise Overtaken(f"a snapshot at {self._newest_offered} is offered")

    async def _run(self, global_index: GlobalLogIndex, raft_index: int = 0, *, keeps: bool = False) -> None:
        self.begun += 1
        self._only_keeps = keeps
        self._seldom.say(log.info, "snapshot_fetch_begins", global_index=global_index, source=self._sources.first)
        try:
            meta = await self._fetch_set(global_index, raft_index)
            if keeps:
                log.info("snapshot_kept", global_index=global_index, source=self._sources.first)
                self._kept(meta)
                return
            parent = await self._offload.run(lambda: ParentState.decode(meta.parent))  # of thousands of partitions
            self._sources.members = None if parent.members is None else parent.members.ids
            fetches: list[LogFetch] = []
            for partition in meta.partitions:
                if partition.state_machine == "log":
                    await wait(0)  # of most of them nothing may be lacking: each waits for nothing
                    fetches += await self._fetch_log(meta, parent, partition.partition_id)
            await self._stop_compaction()  # the journal begins nowhere else from here on
            self._check_use(meta)
            for fetch in fetches:
                await self._offload.run(fetch.save())
            await self._offload.run(lambda: self._ready(global_index))
            self._over = True  # another fetch that failed would set compaction going, below what the logs say now
        except (OSError, InvariantViolated) as error:
            self._fatal(error)
            return
        except Exception as error:  # noqa: BLE001 - nobody waits for this task: it must not end unseen
            self.failed += not isinstance(error, Overtaken)
            where = None if isinstance(error, LogboomError) else error
            self._seldom.say(
                log.warning, "snapshot_fetch_failed", global_index=global_index, error=str(error), exc_info=where
            )
            for store in self._filled:  # they go on as they were, with what they have
                store.follow(PartitionLogIndex(0), NO_DIGEST)
            self._filled.clear()
            self._resume_compaction()
            return
        finally:
            self._task = self.progress = None
        log.info("snapshot_fetched", global_index=global_index)
        self._fatal(InstallDue(f"this node starts anew from the snapshot at {global_index}"))

    async def _fetch_set(self, global_index: GlobalLogIndex, raft_index: int) -> SetMeta:
        here = next((meta for meta in self._store.sets() if meta.global_index == global_index), None)
        if here is not None and here.raft_index >= raft_index:
            return here  # ours, or fetched before
        raw = bytearray()
        while True:
            frame = await self._sources.piece(global_index, "meta", len(raw))
            raw += frame.body
            total = number(frame.header, "total")
            if total > META_BYTES_MAX or not frame.body:
                raise ProtocolError(f"{len(frame.body)} bytes of a snapshot's description of {total}")
            if len(raw) >= total:
                break
        meta = decode(bytes(raw), path=f"snapshot {global_index} of {self._sources.first}")
        theirs, ours = (meta.cluster, meta.lineage), (self._cluster.id, self._lineage())
        if theirs != ours or meta.global_index != global_index:
            raise ProtocolError(f"asked for the snapshot at {global_index} of {self._cluster.id}, got another")
        try:
            self._check_use(meta)
            if here is not None:  # of an earlier cut, with nothing but control entries in between
                await self._offload.run(lambda: self._store.drop(global_index))
            await self._fetch_states(meta)
            return await self._offload.run(lambda: self._adopt(bytes(raw), global_index))
        except CorruptData:
            await self._sources.spoilt(global_index, meta.states_bytes)
            raise
        except Overtaken:  # nobody will go on with it
            await self._offload.run(lambda: self._store.drop_fetch(global_index))
            raise

    def _adopt(self, raw: bytes, global_index: GlobalLogIndex) -> SetMeta:
        """Off the loop, where this node may have taken one of its own meanwhile: what is here then."""
        taken = next((meta for meta in self._store.sets() if meta.global_index == global_index), None)
        return self._store.adopt_fetched(raw, global_index) if taken is None else taken

    async def _fetch_states(self, meta: SetMeta) -> None:
        global_index = GlobalLogIndex(meta.global_index)
        file, offset = await self._offload.run(lambda: self._store.fetch(global_index))
        unsynced = 0
        try:
            await self._offload.run(lambda: self._store.check_room(self._spare_bytes, meta.states_bytes - offset))
            while offset < meta.states_bytes:
                self._check_use(meta)
                began = self._clock.monotonic()
                body = (await self._sources.piece(global_index, "states", offset)).body
                if not body or offset + len(body) > meta.states_bytes:
                    raise ProtocolError(f"{len(body)} bytes of a snapshot at {offset} of {meta.states_bytes}")
                at = offset
                unsynced += len(body)
                sync, unsynced = (unsynced >= SYNC_BYTES), unsynced % SYNC_BYTES
                await self._offload.run(lambda: _write(file, body, at, sync=sync))  # noqa: B023 - awaited at once
                offset += len(body)
                self.progress = Fetched(global_index, offset, meta.states_bytes, None)
                await self._keep_pace(len(body), began)
        finally:
            await asyncio.shield(self._offload.run(file.close))

    async def _fetch_log(self, meta: SetMeta, parent: ParentState, partition_id: PartitionId) -> list[LogFetch]:
        """What this node's log of a partition lacks up to the cut; returns what has places to save, once all is here.

        ``parent``: that of ``meta``.
        """
        kind = kind_of(self._cluster, parent.lifecycle, partition_id)
        store = await self._log_of(partition_id, kind, partial(self._check_waiting, meta))
        tail = parent.tails.get(partition_id)
        if tail is None:
            return []
        self._filled.append(store)
        global_index = GlobalLogIndex(meta.global_index)
        fetch = LogFetch(store, tail, parent.voids.of(partition_id))
        while not fetch.is_whole:
            self._check_use(meta)
            if fetch.step_over():
                continue
            began, after, through = self._clock.monotonic(), fetch.after, tail.last_index
            ask = {"global_index": global_index, "partition": partition_id, "after": after, "through": through}
            frame = await self._sources.ask_for_log(ask)
            pieces = batches_in(frame)
            if not pieces:
                if not fetch.goes_on(frame):
                    return []
                continue
            fetch.take(pieces, self._payloads.receive)
            self._poke()
            while not fetch.is_durable():
                await wait(DURABLE_POLL_S)
            self.progress = Fetched(global_index, fetch.after, tail.last_index, partition_id)
            await self._keep_pace(len(frame.body), began)
        fetch.check_end()
        while store.awaits_sync(tail.last_index):
            await wait(DURABLE_POLL_S)
        return [fetch]

    async def _keep_pace(self, nbytes: int, began: float) -> None:
        due = nbytes / self._settings.bytes_per_s - (self._clock.monotonic() - began)
        if due > 0:
            await wait(due)


def _write(file: Any, body: memoryview, offset: int, *, sync: bool) -> None:
    file.write([body], offset=offset)
    if sync:
        file.sync()
