"""Coordinated snapshots (specification, "Snapshotting & Compaction"): every node's own set at one ``global_log_index``.

The leader puts a *cut* into the parent log when a snapshot is due. On every node each worker stops where its
partition's log ended there until its state is captured, and goes on; a thread writes all of them
into one set. When it is complete, the node compacts to the set before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

import structlog

from dispatcher.upkeep.compaction import Compaction
from dispatcher.upkeep.due import FAILED_S, Due
from dispatcher.upkeep.gathering import Asked, Gathering, HoleOf, Progress, Stuck, lost_of
from dispatcher.upkeep.set_writing import SetWriting
from logboom.errors import LogboomError, NotLeader, Unavailable
from logboom.settings import ClusterSettings, SnapshotSettings
from logboom.state_machine import StateDump
from logboom.types import GlobalLogIndex, PartitionId
from partitions.apply.worker import ApplyWorker
from ports.clock import Clock
from ports.counts import MINUTES, Buckets
from ports.invariant import InvariantViolated
from ports.offload import Offload
from raftlog.core import RaftLog
from raftlog.entries.parent_state import EMPTY, ParentState
from snapshots.meta import SetMeta
from snapshots.store import SnapshotStore

log = structlog.get_logger(__name__)

CUT: Final = {"do": "cut"}
CAPTURES_MAX: Final = 64
"""Partitions that are asked for their state at the same time; who has something to apply comes by himself."""
DUMP_LOOK_S: Final = 1.0
HOLE_LOOK_S: Final = 1.0
ASK_AGAIN_S: Final = 5.0
WANT_AGAIN_S: Final = 5.0
WAITERS_MAX: Final = 256

Done = Callable[[SetMeta | LogboomError], None]


def _nobody(_: SetMeta | LogboomError) -> None:
    """Whoever asked waits no longer; the snapshot is to be taken all the same."""


class Snapshotting:
    """Takes the snapshot sets of one node: one cut at a time."""

    def __init__(
        self,
        *,
        settings: SnapshotSettings,
        cluster: ClusterSettings,
        store: SnapshotStore,
        writing: SetWriting,
        compaction: Compaction,
        workers: Mapping[PartitionId, ApplyWorker],
        raft: RaftLog,
        clock: Clock,
        offload: Offload,
        due: Due,
        completed: Callable[[SetMeta], None],
        kept: Callable[[SetMeta], None],
        fatal: Callable[[BaseException], None],
        hole_of: HoleOf,
        give_up: Callable[[], None],
        want: Callable[[], None],
    ) -> None:
        """``offload`` takes jobs that last, ``writing`` among them.

        ``completed`` hears of every set of this node's own, ``kept`` of those that others have taken; on the loop.

        ``give_up``: ``offload`` waits no longer for the job that it has; raises OSError if it has to. ``want`` asks for
        another node's set, of which ``fetched`` is to be told. ``hole_of`` a partition: what holds it up.
        """
        self._settings = settings
        self._cluster = cluster
        self._store = store
        self._writing = writing
        self._compaction = compaction
        self._workers = workers
        self._raft = raft
        self._clock = clock
        self._offload = offload
        self._completed, self._kept = completed, kept
        self._fatal = fatal
        self._give_up, self._want, self._hole_of = give_up, want, hole_of
        self._gathering: Gathering | None = None
        self._asked_first: tuple[Asked, float] | None = None
        """The dump that the gathering was seen to wait for, and since when it is the same."""
        self._stuck = Stuck()
        self._closing = Counter[PartitionId]()
        self._look_at_dumps_at = self._look_at_holes_at = self._want_at = 0.0
        self._asked_at: float | None = None
        """When this leader last asked for a cut that has not come yet."""
        self._waiting: list[Done] = []
        """Who waits for a cut that is still to be asked for."""
        self._awaiting: list[Done] = []
        """Who waits for the cut that is asked for, or under way."""
        self._due = due
        self._in_vain = GlobalLogIndex(0)
        """Global index of the last cut that a user's machine made fail here: others' sets of there are fetched."""
        self._unopened: dict[PartitionId, float] = {}
        """Partitions that kept cuts from being taken since they were not open, and since when."""
        self._closed = False
        self.taken = 0
        self.failed = 0
        self.seconds = Buckets(MINUTES)
        """How long sets took, from the cut to the complete set."""

    # -- when

    def tick(self) -> None:
        """Now and then: is a snapshot due? And does the one under way get on?"""
        self._look_at_dumps()
        self._look_at_states()
        self._look_for_others()
        if self._gathering is None:
            self._due.look_back()
        if not self._raft.admits:
            self._fail(NotLeader("this node no longer leads", leader=None))
            return
        now = self._clock.monotonic()
        asked = self._asked_at is not None and now - self._asked_at < ASK_AGAIN_S
        if self._gathering is not None or asked:
            return
        due = self._due
        if not (self._waiting or due.is_due() or due.is_lacking(self._raft.journal.base.index) or due.is_needed()):
            return
        self._asked_at = now
        self._awaiting += self._waiting
        self._waiting = []
        self._raft.propose_control(dict(CUT))

    def create(self, done: Done) -> Callable[[], None]:
        """Leader only: take one now, of everything committed before; ``done`` is called when it is complete here.

        Returns the way to wait no longer: what was asked for goes on without.
        """
        if not self._raft.admits:
            raise NotLeader("this node does not lead", leader=None)
        if len(self._waiting) + len(self._awaiting) >= WAITERS_MAX:
            raise Unavailable("many wait for a snapshot already; try again", retry_after=1.0)
        self._waiting.append(done)
        self.tick()
        return partial(self._leave, done)

    def _leave(self, done: Done) -> None:
        if done in self._awaiting:
            self._awaiting.remove(done)
        elif done in self._waiting:
            self._waiting.remove(done)
            self._waiting = self._waiting or [_nobody]

    def progress(self) -> Progress | None:
        """How far the one under way is; None: there is none."""
        return None if self._gathering is None else self._gathering.progress()

    # -- gathering

    def cut(self, *, raft_index: int, term: int, parent: ParentState) -> None:
        """The parent log has reached a cut; ``parent`` is its state there, ours to keep."""
        self._due.cut(parent.global_index)
        self._asked_at = None
        newest = self._store.newest
        if self._gathering is not None or (newest is not None and newest.global_index >= parent.global_index):
            log.debug("cut_passed_over", global_index=parent.global_index)
            self._answer_if_known(parent.global_index)
            return
        alive = parent.lifecycle.ids(self._cluster.partitions)
        workers = {p: self._workers[p] for p in alive if p in self._workers}
        now = self._clock.monotonic()
        self._unopened = {p: self._unopened.get(p, now) for p in alive if p not in workers}
        if self._unopened:
            log.info("cut_passed_over", global_index=parent.global_index, reason="a partition is being opened")
            self._due.failed()
            self._fail(Unavailable("a partition is being opened; try again", retry_after=0.1))
            return
        tails = {p: parent.tails.get(p, EMPTY).last_index for p in workers}
        if any(worker.applied_index > tails[p] for p, worker in workers.items()):
            log.debug("cut_is_past", global_index=parent.global_index)  # replayed after a start
            return
        stuck = self._stuck.keys() & workers.keys()
        if stuck:
            self.failed += 1
            self._due.failed()
            self._in_vain = parent.global_index
            story = f"a dump of partition {min(stuck)} that was begun earlier has not returned"
            log.warning("cut_passed_over", global_index=parent.global_index, reason=story)
            self._fail(Unavailable(f"{story}; try again later", retry_after=FAILED_S))
            return
        lost = gone = lost_of(parent, workers.items(), self._hole_of)
        if any(worker.useless for worker in workers.values()):
            lost, gone = None, "the state of a partition is damaged here"
        if gone is not None:
            log.warning("cut_needs_a_state_that_is_gone", global_index=parent.global_index, reason=gone)
            self._due.failed(counts=lost is None)
            self._answer(Unavailable(gone, retry_after=FAILED_S))
            return
        gathering = Gathering(
            parent=parent,
            raft_term=term,
            partitions=len(workers),
            missing=dict.fromkeys(workers),
            idle=[],
            began=now,
            offloads={p: worker.offload for p, worker in workers.items()},
            closing=self._closing,
            reclaimable=self._due.reclaimable,
        )
        self._gathering = gathering
        for partition_id, worker in workers.items():
            worker.cut(tails[partition_id], partial(self._captured, gathering, partition_id))
            if worker.applied_index == tails[partition_id]:
                gathering.idle.append(partition_id)
        gathering.idle.reverse()
        for _ in range(CAPTURES_MAX):
            self._ask_next(gathering)
        log.info("snapshot_begins", global_index=parent.global_index, raft_index=raft_index)

    def _ask_next(self, gathering: Gathering) -> None:
        if gathering.idle and not gathering.over:
            self._workers[gathering.idle.pop()].hurry()

    def _captured(self, gathering: Gathering, partition_id: PartitionId, dump: StateDump | None) -> None:
        if gathering.over:
            if dump is not None:
                gathering.let_go(partition_id, dump)
            later = self._stuck.get(partition_id)
            if later is not None:  # this one, or one whose own dump would have been asked for behind this
                self._stuck.returned(later)
            return
        if dump is None:
            self._abandon(gathering, f"the state of partition {partition_id} could not be captured", by_machine=True)
            return
        here, there = dump.position.applied_index, gathering.parent.tails.get(partition_id, EMPTY).last_index
        if here != there:  # a user's: a set with it could be loaded nowhere, or would apply twice what follows
            gathering.let_go(partition_id, dump)
            story = f"the dump of partition {partition_id} says that it is of {here}, and is of {there}"
            self._abandon(gathering, story, by_machine=True)
            return
        gathering.dumps[partition_id] = dump
        gathering.missing.pop(partition_id, None)
        if gathering.missing:
            self._ask_next(gathering)
        else:
            self._offload.submit(lambda: self._writing.write(gathering), partial(self._written, gathering))

    # -- looking after it

    def _look_at_dumps(self) -> None:
        """Abandon the snapshot when the dump that it waits for has given nothing for ``dump_stall_ms``.

        A call of a user's machine may never return.
        """
        gathering, now, limit_ms = self._gathering, self._clock.monotonic(), self._settings.dump_stall_ms
        if gathering is None or now < self._look_at_dumps_at or self._closed:
            return
        self._look_at_dumps_at = now + DUMP_LOOK_S
        asked, before = gathering.waits_for(self._workers), self._asked_first
        if asked is None or before is None or asked != before[0]:
            self._asked_first = None if asked is None else (asked, now)
        elif 0 < limit_ms <= (now - before[1]) * 1000:
            self._asked_first = None
            try:
                if not gathering.missing:
                    self._give_up()
            except OSError as error:  # no more threads: it is looked at again
                log.warning("dump_not_given_up", partition=asked.partition_id, error=str(error))
                return
            self._stuck[asked.partition_id] = gathering
            story = f"the dump of partition {asked.partition_id} has given nothing for {limit_ms / 1000:g} s"
            self._abandon(gathering, story, Unavailable(story), by_machine=True)

    def _look_at_states(self) -> None:
        """One that is damaged for good, or lacks a batch, while its worker is on its way to the cut never comes."""
        gathering, now = self._gathering, self._clock.monotonic()
        if gathering is None or self._closed:
            return
        useless = gathering.useless(self._workers)
        if useless is not None:
            story = f"the state of partition {useless} is damaged here"
            self._abandon(gathering, story, Unavailable(story))
        elif now >= self._look_at_holes_at:
            self._look_at_holes_at = now + HOLE_LOOK_S
            lost = gathering.lacks = gathering.lost(self._workers, self._hole_of)
            if lost is not None:
                self._abandon(gathering, lost, Unavailable(lost))

    def _look_for_others(self) -> None:
        """Where a machine gives no dump, or does not open, ask for another node's set of that cut.

        Its states are the same, and logs can be compacted to it.
        """
        now, newest = self._clock.monotonic(), self._store.newest
        self._unopened = {p: since for p, since in self._unopened.items() if p not in self._workers}
        if 0 < self._settings.dump_stall_ms <= (now - min(self._unopened.values(), default=now)) * 1000:
            self._in_vain = self._due.last_cut
        lacking = self._in_vain > (0 if newest is None else newest.global_index)
        if not lacking or self._gathering is not None or now < self._want_at or self._closed:
            return
        self._want_at = now + WANT_AGAIN_S
        begun = {gathering.global_index for gathering in self._stuck.values()}  # that thread may still write those
        if self._in_vain not in begun:
            self._want()

    def fetched(self, meta: SetMeta) -> None:
        """Another node's set is here."""
        self._due.complete(meta.global_index, self._due.reclaimable)
        self._kept(meta)
        self._compaction.start()

    @property
    def stuck(self) -> Collection[PartitionId]:
        """Partitions whose dump has not returned: this node takes no set of its own."""
        return self._stuck.keys()

    def ended(self, partition_id: PartitionId, worker: ApplyWorker | None = None) -> None:
        """The partition is gone: a set that still lacks its state will not be, and none lacks it from now on.

        ``worker``: it had one, which is closed.
        """
        self._due.ended(partition_id, worker)
        self._unopened.pop(partition_id, None)
        if self._gathering is not None and partition_id in self._gathering.missing:
            self._abandon(self._gathering, f"partition {partition_id} was destroyed", destroyed=True)

    def holds(self, partition_id: PartitionId) -> bool:
        """What was captured of its state is still needed: its machine must not be closed."""
        gathering = self._gathering
        held = gathering is not None and gathering.holds(partition_id)
        return held or partition_id in self._stuck or partition_id in self._closing

    def _abandon(
        self,
        gathering: Gathering,
        why: str,
        error: BaseException | None = None,
        *,
        by_machine: bool = False,
        destroyed: bool = False,
    ) -> None:
        """``by_machine``: for the sake of a user's. ``destroyed``: one of its partitions is, and nothing is wrong."""
        for partition_id in gathering.missing:
            if partition_id in self._workers:
                self._workers[partition_id].drop_cut()
        gathering.end()
        self._gathering = None
        if self._closed:
            return
        self.failed += not destroyed
        self._due.failed(counts=gathering.lacks is None, destroyed=destroyed)
        if by_machine:
            self._in_vain = self._due.last_cut  # or of one that was passed over, as this one was under way
        where = None if isinstance(error, LogboomError | OSError) else error
        say = log.info if destroyed else log.error
        say("snapshot_failed", global_index=gathering.global_index, error=why, exc_info=where)
        later = 1.0 if error is None else FAILED_S
        story = error.message if isinstance(error, LogboomError) else why
        self._answer(Unavailable(f"the snapshot failed: {story}", retry_after=later))

    def _written(self, gathering: Gathering, meta: SetMeta | None, error: BaseException | None) -> None:
        if isinstance(error, InvariantViolated):
            self._fatal(error)
            return
        if gathering.over:
            self._stuck.returned(gathering)
            return
        if meta is None:
            # A full disk, too: what was written is no set and never will be, and the logs may have room to go on.
            by_machine = gathering.refused or not isinstance(error, LogboomError | OSError)
            self._abandon(gathering, repr(error), error, by_machine=by_machine)
            return
        gathering.end()
        self._gathering = None
        self.taken += 1
        self._due.complete(meta.global_index, gathering.reclaimable)
        self.seconds.observe(self._clock.monotonic() - gathering.began)
        log.info("snapshot_complete", global_index=meta.global_index, bytes=meta.states_bytes)
        (self._kept if gathering.came else self._completed)(meta)
        self._answer(meta)
        self._compaction.start()

    # -- answering

    def _answer_if_known(self, global_index: GlobalLogIndex) -> None:
        """A cut right behind another: there is nothing new to take."""
        newest = self._store.newest
        if self._gathering is None and newest is not None and newest.global_index == global_index:
            self._answer(newest)

    def _fail(self, error: LogboomError) -> None:
        self._awaiting += self._waiting
        self._waiting = []
        self._answer(error)

    def _answer(self, found: SetMeta | LogboomError) -> None:
        """Answer those who wait for the cut that was asked for; whoever asked since then waits for the next one."""
        done, self._awaiting = self._awaiting, []
        for each in done:
            each(found)

    # -- the end

    async def close(self) -> None:
        """Nothing more is begun, what is being written is given up; what is captured is let go."""
        self._closed = self._writing.closed = True
        self._fail(Unavailable("the node is shutting down"))
        if self._gathering is not None and self._gathering.missing:
            self._gathering.end()
        await self._compaction.close()
