"""Partitions that come and go while the node runs (docs/decisions/0017-partition-lifecycle.md).

The leader proposes; every node does what is handed up, in the parent log's order. A created partition is opened
off the loop: its first batch cannot be handed up before its log is, since none is taken for held until then. A
destroyed one ends at once for everybody who waits; its log stays, for followers that have not come so far, until
the journal begins behind the destruction.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import structlog

from dispatcher.pipeline.capacity import Capacity
from dispatcher.pipeline.opening import OPEN_AGAIN_S, Opening
from dispatcher.pipeline.rooms import Opened, Rooms
from dispatcher.pipeline.surroundings import Surroundings
from dispatcher.pipeline.trials import Trials
from logboom.errors import (
    InvalidRequest,
    LogboomError,
    NoSuchPartition,
    NotLeader,
    PartitionDestroyed,
    PartitionFrozen,
    Unavailable,
    UnknownOutcome,
)
from logboom.state_machine import Machine
from logboom.types import PARTITION_SETTINGS, PartitionId
from partitions.apply.worker import ApplyWorker
from partitions.log.log import PartitionLog
from partitions.machines import discard
from ports.invariant import InvariantViolated
from ports.timers import wait
from raftlog.entries.chosen import NOTHING, Chosen
from raftlog.entries.entry import unpack_control
from raftlog.entries.lifecycle import CREATE, Change, Lifecycle, PartitionKind, kind_of, wrong_begin

log = structlog.get_logger(__name__)

WAITERS_MAX: Final = 1024
POLL_S: Final = 0.01

Done = Callable[[PartitionId | LogboomError], None]


class Partitioning:
    """Creates and destroys the partitions of one node, and says which there are."""

    def __init__(self, pipeline: Surroundings, rooms: Rooms) -> None:
        self._pipeline = pipeline
        self._rooms = rooms
        self._begun = pipeline.cluster.partitions
        self.opening = Opening(pipeline, rooms, opened=self._opened)
        """What is created and not open here yet."""
        self.capacity = Capacity(
            links=lambda: pipeline.raft.links,
            room=rooms.room,
            living=lambda: len(pipeline.workers) + len(self.opening),
        )
        """How many the others can hold."""
        self._proposed: dict[PartitionId, Change] = {}
        """By this leader, and not handed up yet: what is created, and what is destroyed."""
        self._ahead: Lifecycle | None = None
        """What there will be once all of ``_proposed`` are carried out; None: to be worked out."""
        self._waiting: dict[PartitionId, list[Done]] = {}
        """Until it is open, or gone."""
        self._trials = Trials()
        self._uses: Counter[int] = Counter()
        """Who uses a machine now, counted, by the object's id."""
        self._closing: dict[PartitionId, asyncio.Task[None]] = {}

    # -- what there is

    @property
    def lifecycle(self) -> Lifecycle:
        """As far as it is handed up here."""
        return self._pipeline.parent.lifecycle

    def is_gone(self, partition_id: PartitionId) -> bool:
        """It was there, and is destroyed."""
        return self.lifecycle.is_gone(partition_id)

    def kind(self, partition_id: PartitionId) -> PartitionKind:
        """Of a partition that lives."""
        return kind_of(self._pipeline.cluster, self.lifecycle, partition_id)

    def missing(self, partition_id: int) -> LogboomError:
        """Why this node does not serve it."""
        if self.lifecycle.is_gone(partition_id):
            return destroyed(partition_id)
        if self.lifecycle.lives(PartitionId(partition_id), self._begun):
            why = self.opening.why(PartitionId(partition_id))
            if why is not None:
                return Unavailable(f"partition {partition_id} is not open here yet: {why}", retry_after=OPEN_AGAIN_S)
            return Unavailable(f"partition {partition_id} is being opened; try again", retry_after=0.02)
        if not self._pipeline.recovery.complete:  # it may have been created in what has not come yet
            return Unavailable("this node is still recovering; ask another or try again", retry_after=0.1)
        count = len(self._pipeline.workers)
        return NoSuchPartition(
            f"partition {partition_id} does not exist; there are {count}",
            partition_id=PartitionId(partition_id),
            partitions=count,
        )

    def check_all(self) -> None:
        """Raises what ``missing`` says where something is committed of a partition that cannot be shown yet."""
        passed_over = self.opening.passed_over()
        if passed_over is not None:
            raise self.missing(passed_over)

    def check_writable(self, partition_id: PartitionId) -> None:
        """Leader only. Raises what ``missing`` says, or PartitionFrozen for one that is about to be destroyed."""
        if partition_id not in self._pipeline.workers:
            raise self.missing(partition_id)
        if partition_id in self._proposed:
            raise PartitionFrozen(f"partition {partition_id} is being destroyed", partition_id=partition_id)

    @contextmanager
    def using(self, partition_id: PartitionId) -> Iterator[Machine]:
        """Its machine, which is not closed before the block ends. Raises what ``missing`` says."""
        machine = self._rooms.machines.get(partition_id)
        if machine is None:
            raise self.missing(partition_id)
        let_go = self.hold(machine)
        try:
            yield machine
        finally:
            let_go()

    def hold(self, machine: Machine) -> Callable[[], None]:
        """It is not closed before what this returns is called, once."""
        self._uses[id(machine)] += 1

        def let_go() -> None:
            self._uses[id(machine)] -= 1

        return let_go

    async def unused(self, partition_id: PartitionId, machine: Machine) -> None:
        """Until nobody reads from this machine, which nobody new gets, nor from what was captured of it."""
        while self._uses[id(machine)] or self._pipeline.snapshots.taking.holds(partition_id):
            await wait(POLL_S)
        del self._uses[id(machine)]

    # -- asking (leader only)

    def create(self, kind: PartitionKind, token: bytes, done: Done, chosen: Chosen = NOTHING) -> Callable[[], None]:
        """``done`` gets the id once it can be written to. With a token that was used: the id of then.

        Returns the way to wait no longer: what was proposed goes on without.

        Raises NotLeader, InvalidRequest, Unavailable, or IncompatibleVersion for what a member does not know.
        """
        self._check_leads()
        self._rooms.check(kind.state_machine)
        asked = [p for p, change in self._proposed.items() if change.token == token]
        known = self.lifecycle.with_token(token) if not asked else asked[0]
        if known is None:
            created = [p for p, change in self._proposed.items() if change.kind is not None]
            more = 1 + len(created) + len(self.opening)
            self._rooms.check_room(more)
            self.capacity.check(self._pipeline.members.ids, len(self._pipeline.workers) + more)
            known = PartitionId(max([self.lifecycle.next_id, self._begun, *(p + 1 for p in created)]))
            trial = self._rooms.trial(kind.state_machine)
            if trial is not None:
                threads = self._rooms.offload(kind.state_machine)
                tried = partial(self._tried, kind, token, done, chosen)
                self._trials.attend(kind.state_machine, partial(trial, known), threads, who=done, tried=tried)
                return partial(self._leave, done)
            self._propose(Change(known, self._begun, kind, token, chosen))
        elif known in self._pipeline.workers:
            done(known)
            return lambda: None
        return self._wait(known, done)

    def _tried(
        self, kind: PartitionKind, token: bytes, done: Done, chosen: Chosen, error: BaseException | None
    ) -> None:
        if error is not None:
            done(error if isinstance(error, LogboomError) else InvalidRequest(f"it cannot be opened: {error!r}"))
            return
        try:
            self.create(kind, token, done, chosen)
        except LogboomError as refused:
            done(refused)

    def destroy(self, partition_id: PartitionId, done: Done) -> Callable[[], None]:
        """``done`` gets the id once it is gone. One that is gone already is no error. Returns as ``create`` does.

        Raises NotLeader, NoSuchPartition, InvalidRequest (the last one) or Unavailable.
        """
        self._check_leads()
        if self.lifecycle.is_gone(partition_id):
            done(partition_id)
            return lambda: None
        proposed = self._proposed.get(partition_id)
        if proposed is None or proposed.kind is not None:  # what is only about to be created is not there yet
            opens = partition_id in self.opening and self.lifecycle.lives(partition_id, self._begun)
            if partition_id not in self._pipeline.workers and not opens:
                raise self.missing(partition_id)
            left = [p for p in self.lifecycle.ids(self._begun) if p not in self._proposed]
            if left == [partition_id]:
                raise InvalidRequest(f"partition {partition_id} is the last one")
            self._propose(Change(partition_id, self._begun))
            self._pipeline.submitting.proposed_end(partition_id)
        return self._wait(partition_id, done)

    def _wait(self, partition_id: PartitionId, done: Done) -> Callable[[], None]:
        self._waiting.setdefault(partition_id, []).append(done)
        return partial(self._leave, done)

    def _leave(self, done: Done) -> None:
        self._trials.leave(done)
        for partition_id in [p for p, waiting in self._waiting.items() if done in waiting]:
            self._waiting[partition_id].remove(done)
            if not self._waiting[partition_id]:
                del self._waiting[partition_id]

    def _check_leads(self) -> None:
        if not self._pipeline.raft.admits:
            raise NotLeader("this node does not lead", leader=None)
        if len(self._trials) + sum(map(len, self._waiting.values())) >= WAITERS_MAX:
            raise Unavailable("many wait for partitions already; try again", retry_after=1.0)

    def _propose(self, change: Change) -> None:
        lifecycle = self._ahead
        if lifecycle is None:
            lifecycle = self.lifecycle
            for earlier in self._proposed.values():
                lifecycle = lifecycle.after(earlier)
        refused = lifecycle.refuses(change)
        if refused:
            raise InvalidRequest(refused)
        if change.chosen != NOTHING:  # last of all: there is no way back from what is agreed on
            self._pipeline.agreement.check(PARTITION_SETTINGS)
        self._pipeline.raft.propose_control(change.fields())
        self._proposed[change.partition_id] = change
        self._ahead = lifecycle.after(change)

    def lost_leadership(self) -> None:
        """What was proposed may be handed up, or not."""
        self._proposed.clear()
        self._ahead = None
        for partition_id in list(self._waiting):
            self._answer(partition_id, UnknownOutcome("leadership was lost before it was committed; ask again"))

    def _answer(self, partition_id: PartitionId, answer: PartitionId | LogboomError) -> None:
        for done in self._waiting.pop(partition_id, ()):
            done(answer)

    # -- handed up (every node)

    def handed_up(self, fields: Mapping[str, Any]) -> None:
        """A control entry of ``raftlog.entries.lifecycle``. Raises CorruptData."""
        change = Change.parse(fields)
        partition_id = change.partition_id
        proposed = self._proposed.pop(partition_id, None)
        refused = self._pipeline.parent.change(change)
        if refused or proposed != change:
            self._ahead = None
        if refused:
            log.warning("partition_change_refused", partition=partition_id, reason=refused)
            self._answer(partition_id, InvalidRequest(refused))
            return
        if not self.check_begun():
            return
        if change.kind is not None:
            self._pipeline.recovery.add(partition_id)  # now: it may take longer to open than the rest to recover
        if change.kind is None:
            self._end(partition_id)
        elif partition_id in self._pipeline.workers:
            self._answer(partition_id, partition_id)  # opened at the start, since the journal has batches of it
        else:
            log.info("partition_created", partition=partition_id, **change.kind._asdict())
            self.opening.open(partition_id, change.kind)

    def check_begun(self) -> bool:
        """The log says what the cluster began with: it must be what the settings say, or this node ends."""
        same = self.lifecycle.begun == self._begun
        if not same:
            self._pipeline.raft.fatal(wrong_begin(self.lifecycle.begun, self._begun))
        return same

    def foretold(self, partitions: Iterable[PartitionId], through: int) -> None:
        """The journal, as the leader's up to ``through``, goes on with batches of these.

        So their creation, if it is in there, is committed, although nobody may be able to say so before this node
        has taken the batches: a new leader commits nothing until its own entry, behind them, is on a majority.
        """
        raft = self._pipeline.raft
        for partition_id in partitions:
            if partition_id in self._rooms.logs or partition_id in self.opening or self.is_gone(partition_id):
                continue
            for command, index, _ in raft.journal.after(raft.engine.applied_index):
                fields = unpack_control(command) if index <= through else None
                change = Change.parse(fields) if fields is not None and fields.get("do") == CREATE else None
                if change is not None and change.kind is not None and change.partition_id == partition_id:
                    self.opening.open(partition_id, change.kind)

    def _opened(self, partition_id: PartitionId, opened: Opened) -> None:
        self._pipeline.opened(partition_id)
        if opened.lacks is not None:
            self._pipeline.rebuilding.lacking(partition_id, opened.lacks)
        self._pipeline.look_again(partition_id)
        if self.lifecycle.is_gone(partition_id):
            self._end(partition_id)
        else:
            self._answer(partition_id, partition_id)

    def _end(self, partition_id: PartitionId) -> None:
        log.info("partition_destroyed", partition=partition_id)
        self._rooms.destroyed.add(partition_id)
        self._pipeline.recovery.remove(partition_id)  # it may never have been open
        worker = self._pipeline.workers.get(partition_id)
        self.opening.ended(partition_id)
        if worker is None:
            self._pipeline.forgotten(partition_id)
        else:
            self._pipeline.ended(partition_id)
            self._rooms.ending[partition_id] = self._rooms.machines.pop(partition_id)
            self._closing[partition_id] = asyncio.get_running_loop().create_task(self._close(partition_id, worker))
        self._answer(partition_id, partition_id)

    async def _close(self, partition_id: PartitionId, worker: ApplyWorker) -> None:
        machine = self._rooms.ending[partition_id]
        await worker.close()
        await self.unused(partition_id, machine)
        worker.forget()
        del self._closing[partition_id]
        try:
            await worker.offload.run(partial(discard, machine))
        except InvariantViolated as error:
            self._pipeline.raft.fatal(error)
            return
        except Exception as error:  # a user's machine, of whose state nobody needs anything: it would end all nodes
            log.exception("not_closed", partition=partition_id, error=repr(error))
        del self._rooms.ending[partition_id]

    # -- the end

    async def forget(self, base: Lifecycle) -> None:
        """The journal begins there: what was destroyed by then nobody asks for any more. An OSError is final."""
        for partition_id in [p for p in self._rooms.logs if base.is_gone(p)]:
            used = partition_id in self._rooms.ending or self._pipeline.rebuilding.works_on(partition_id)
            if used or partition_id in self.opening:
                continue  # the next compaction, or the next start, removes it
            store = self._rooms.logs.pop(partition_id)
            try:
                await self._written(store)
                await self._pipeline.offload.run(store.close)
            except asyncio.CancelledError:
                self._rooms.logs[partition_id] = store  # who stops it closes what is in there, who goes on comes to it
                raise
            await self._pipeline.offload.run(partial(self._rooms.remove, partition_id))
            log.info("partition_removed", partition=partition_id)
        destroyed = self._rooms.destroyed
        destroyed -= {p for p in destroyed if p not in self._rooms.logs and base.is_gone(p)}

    async def _written(self, store: PartitionLog) -> None:
        """Nothing will be written to it any more, nor is."""
        raft, ended = self._pipeline.raft, asyncio.get_running_loop().create_future()
        raft.group.forget(store)
        raft.group.hold(lambda: None if ended.done() else ended.set_result(None))  # behind the group under way
        raft.poke()
        await ended

    async def close(self) -> None:
        """What is open stays open, for whoever closes the files."""
        self.opening.close()
        self.lost_leadership()
        tasks = list(self._closing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def destroyed(partition_id: int, *, outcome: str = "not_applied") -> PartitionDestroyed:
    """The error."""
    text = f"partition {partition_id} was destroyed"
    if outcome == "applied":
        return PartitionDestroyed(f"{text} after this was ordered", partition_id=partition_id, outcome="applied")
    return PartitionDestroyed(text, partition_id=partition_id)
