"""Compaction: what a complete snapshot set makes superfluous is removed, step by step, each safe to be the last.

1. Every machine's state is saved beyond the cut so that a power loss cannot undo it.
2. Every partition log saves where its committed batches up to the cut lie (``places``).
3. The journal begins at the cut (its ``base``); what was below is removed.
4. Segments wholly below, less what is retained for readers, are removed.
5. The directories of partitions that were destroyed before the cut are removed.
6. All sets are removed but that one, the last, the last that this node's own log has come to, and those that a node
   fetches.

A crash between two steps leaves files that nobody needs and nothing else: the next compaction, or the next
start, removes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import structlog

from logboom.errors import CorruptData, Unavailable
from logboom.settings import ClusterSettings, SnapshotSettings
from logboom.types import GlobalLogIndex, PartitionId
from partitions.apply.worker import ApplyWorker
from partitions.log.log import PartitionLog
from ports.clock import Clock
from ports.invariant import InvariantViolated
from ports.offload import Offload
from ports.scrub import unreadable_is_damage
from ports.timers import wait
from raftlog.core import RaftLog
from raftlog.entries.lifecycle import Lifecycle, kind_of
from raftlog.entries.parent_state import ParentState
from raftlog.journal.journal_base import Base
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore

log = structlog.get_logger(__name__)

TOLD_S: Final = 60.0
COMPACTED_TO: Final = 2
"""The last set but one: whoever is given the last finds all that came after it."""
POLL_S: Final = 0.005


def removes(settings: SnapshotSettings, state_machine: str) -> bool:
    """What a snapshot has need not stay in such a partition's log. Records of ``log`` ones are kept nowhere else."""
    return state_machine != "log" or bool(settings.retain_log_bytes or settings.retain_log_ms)


class Compaction:
    """One node's; one at a time."""

    def __init__(
        self,
        *,
        settings: SnapshotSettings,
        cluster: ClusterSettings,
        store: SnapshotStore,
        logs: Mapping[PartitionId, PartitionLog],
        workers: Mapping[PartitionId, ApplyWorker],
        raft: RaftLog,
        clock: Clock,
        offloads: tuple[Offload, Offload],
        held_back: Callable[[], Collection[GlobalLogIndex]],
        forget: Callable[[Lifecycle], Awaitable[None]],
        fatal: Callable[[BaseException], None],
    ) -> None:
        """``offloads``: for what is done to logs, and for changes to ``store``, which may have to wait for minutes.

        ``held_back``: the sets that nodes fetch: they are kept, and what those nodes will need next of all logs.

        ``forget`` removes what is destroyed as of where the journal begins.
        """
        self._settings = settings
        self._cluster = cluster
        self._store = store
        self._logs = logs
        self._workers = workers
        self._raft = raft
        self._clock = clock
        self._offload, self._store_offload = offloads
        self._held_back = held_back
        self._forget = forget
        self._fatal = fatal
        self._placed: dict[PartitionId, tuple[int, int]] = {}
        """Up to where places have been saved since the start, and how often batches had moved by then."""
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._closed = False
        self._moving = False
        """The journal is about to begin later."""
        self.runs = 0
        self.failed = 0
        self.sets_removed = 0

    def start(self) -> None:
        """A set is complete: compact to the one before it."""
        if self._closed:
            return
        if self._task is not None:
            self._again = True
            return
        self._task = asyncio.get_running_loop().create_task(self._run())

    def go_on(self) -> None:
        """After ``close``: what it was closed for has come to nothing."""
        self._closed = False
        self.start()

    async def _run(self) -> None:
        try:
            while True:
                self._again = False
                await self._compact()
                if not self._again:
                    return
        except asyncio.CancelledError:
            raise
        except (OSError, InvariantViolated) as error:
            self._fatal(error)
        except Exception as error:
            # Nothing is lost by not compacting; the next set brings the next try.
            self.failed += 1
            log.exception("compaction_failed", error=repr(error))
        finally:
            self._task = None

    async def _compact(self) -> None:
        sets = self._store.sets()
        if len(sets) < COMPACTED_TO:
            return
        held = self._held_back()
        target = next((meta for meta in sets[:-COMPACTED_TO] if meta.global_index in held), sets[-COMPACTED_TO])
        # Its own log may not have come so far, or not again since a start: to one that was fetched, in vain as of yet.
        failed: Exception | None = None
        try:
            if self._raft.journal.base.index < target.raft_index <= self._raft.engine.applied_index:
                await self._compact_to(target)
        except (OSError, InvariantViolated):
            raise
        except Exception as error:  # noqa: BLE001 - it is raised again: older sets are of no use all the same
            failed = error
        kept = self._kept(target)
        removed = await self._store_offload.run(lambda: self._store.prune(self._settings.keep, but=kept))
        self.sets_removed += len(removed)
        if failed is not None:
            raise failed
        self.runs += 1
        log.info("compacted", global_index=target.global_index, sets_removed=len(removed))

    def _kept(self, target: SetMeta) -> set[GlobalLogIndex]:
        """Of the sets of now: who goes on from the target needs the logs behind it, and none of those in between."""
        sets, base, applied = self._store.sets(), self._raft.journal.base.index, self._raft.engine.applied_index
        # Fetched ones that were not installed lie behind it: from them no damaged state could be made anew.
        ours = [meta for meta in sets if base <= meta.raft_index <= applied][-1:]
        last = [*ours, *sets[-self._settings.keep :]]
        return {target.global_index, *self._held_back(), *(meta.global_index for meta in last)}

    async def _compact_to(self, target: SetMeta) -> None:
        parent = ParentState.decode(target.parent)
        saved = {p for p, tail in parent.tails.items() if await self._secure(p, tail.last_index)}
        base = Base(target.raft_index, target.raft_term, target.parent)
        self._moving = True
        await _called(lambda done: self._raft.compact(base, lambda: done(None)))
        self._moving = False
        for partition_id, tail in parent.tails.items():
            if partition_id in saved and partition_id in self._workers:
                await self._remove(parent, partition_id, tail.last_index)
        await self._forget(parent.lifecycle)
        self._placed = {p: placed for p, placed in self._placed.items() if p in parent.tails}

    async def _secure(self, partition_id: PartitionId, through_index: int) -> bool:
        """State and places up to here are on the disk, to stay. False: there is no state, and the log stays whole."""
        worker, store = self._workers.get(partition_id), self._logs[partition_id]
        if worker is not None and worker.is_closing:  # what it had saved may be what is damaged
            raise Unavailable(f"the state of partition {partition_id} is being made anew, or closed")
        if worker is not None and worker.saved_index < through_index:  # else destroyed since, or not open yet
            await self._saved(worker, partition_id)
            if worker.saved_index < through_index:
                raise Unavailable(f"the state of partition {partition_id} is being made anew")
        # What was not synced yet, or nobody has; a state that came from a set may have it, and its log be mended now.
        if store.durable_index < through_index:
            raise Unavailable(f"partition {partition_id} is durable up to {store.durable_index}, not {through_index}")
        (placed, then), moved = self._placed.get(partition_id, (0, 0)), store.moved
        if placed < through_index or then < moved:
            await self._step(store.save_places(through_index))
            self._placed[partition_id] = through_index, moved
        return worker is not None

    async def _saved(self, worker: ApplyWorker, partition_id: PartitionId) -> None:
        """A checkpoint of a user's machine may never return: all logs grow meanwhile, so somebody is told."""
        saved, began = asyncio.ensure_future(_called(worker.save)), self._clock.monotonic()
        try:
            while not (await asyncio.wait([saved], timeout=TOLD_S))[0]:
                waited = round(self._clock.monotonic() - began)
                why = "a checkpoint has not returned: until it does nothing is removed from any log of this node"
                log.warning("compaction_waits", partition=partition_id, seconds=waited, reason=why)
        except asyncio.CancelledError:
            saved.cancel()
            raise
        await saved

    async def _remove(self, parent: ParentState, partition_id: PartitionId, through_index: int) -> None:
        store, outdated_to = self._logs[partition_id], 0
        state_machine = kind_of(self._cluster, parent.lifecycle, partition_id).state_machine
        if not removes(self._settings, state_machine):
            return
        retain: int | None = self._settings.retain_bytes
        if state_machine == "log":
            retain = self._settings.retain_log_bytes or None
            outdated_to = await self._outdated(store, through_index)

        def keep_from() -> int:
            now = self._clock.monotonic()
            return store.compaction_point(through_index, retain, outdated_to=outdated_to, now=now)

        sealing = store.sealing(keep_from()) if state_machine == "log" else None
        if sealing is not None:  # of one that nobody writes to the newest segment would stay for ever
            await self._step(sealing)
        shortening = store.shortening(keep_from())
        if shortening is not None:
            await self._step(shortening)  # somebody may have begun to read meanwhile
        await self._step(store.compact(keep_from(), ends=state_machine == "log"))

    async def _step(self, job: Callable[[], None]) -> None:
        """Off the loop. Whoever is cancelled meanwhile waits for its end: nobody else writes these files till then."""
        step = asyncio.ensure_future(self._offload.run(job))
        try:
            await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            error = step.exception()
            if error is not None:
                self._fatal(error)
            raise

    async def _outdated(self, store: PartitionLog, through_index: int) -> int:
        """Records up to here have been kept for long enough."""
        if not self._settings.retain_log_ms:
            return 0
        now_ms = self._clock.wall_ms()
        before_ms = now_ms - self._settings.retain_log_ms
        try:
            with unreadable_is_damage():
                return await self._offload.run(
                    lambda: store.last_before(before_ms, through_index=through_index, now_ms=now_ms)
                )
        except CorruptData as error:
            log.warning("age_unknown", partition=store.partition_id, error=error.message)  # until it is repaired
            return 0

    async def close(self) -> None:
        """What is under way goes on to the end of its step; nothing is begun any more."""
        self._closed = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._task = None  # one that had not begun does not say so itself
        while self._moving and self._raft.group.doing_chores:  # where the journal begins is still about to change
            await wait(POLL_S)
        self._moving = False


async def _called(begin: Callable[[Callable[[BaseException | None], None]], None]) -> None:
    """Wait for a callback. Raises what it was called with."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if ended.done():
            return
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    begin(done)
    await ended
