"""Scrubbing: everything at rest is read again, slowly, pass after pass: damage is found while others have it whole.

Batches of partition logs, snapshot sets, saved states, the journal's sealed files. What is found goes where damage
that a reader meets goes; here is counted what came of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from logboom.errors import CorruptData, LogboomError, Unavailable
from logboom.settings import ScrubSettings
from logboom.state_machine import Machine
from logboom.types import GlobalLogIndex, PartitionId
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch
from ports.clock import Clock
from ports.invariant import InvariantViolated
from ports.offload import Offload
from ports.scrub import AGAIN_S, Piece, Pieces
from ports.timers import wait
from raftlog.journal.journal import Journal
from snapshots.store import SnapshotStore

log = structlog.get_logger(__name__)
T = TypeVar("T")

FIRST_MS_MAX: Final = 60_000
SHOWN_MAX: Final = 8
MADE_UP_S: Final = 1.0
"""So much of what it is late is read faster."""

Repaired = Callable[[], bool]


class Target(NamedTuple):
    """Something that is read from its beginning to its end."""

    name: str
    """What people are shown. Damage to the journal that was found before is known by it."""
    pieces: Callable[[], Pieces]
    found: Callable[[CorruptData], Repaired]
    """On the loop: see to it. What it returns says later whether the damage is gone."""
    holding: Callable[[], AbstractContextManager[object]] = nullcontext
    """While it is read: what must not be closed. Raises a LogboomError if there is nothing to read any more."""
    there: Callable[[], bool] = lambda: True
    """It still is: what was destroyed meanwhile is not damaged."""
    state: bool = False
    """It is a saved state."""


@dataclass(slots=True)
class Progress:
    """What an operator sees. ``of``: bytes to read in this pass, roughly."""

    number: int = 0
    """Which pass is under way, or was the last one."""
    bytes: int = 0
    of: int = 0
    damaged: int = 0
    """Found since the start."""
    last_pass_s: float | None = None
    open: dict[str, Repaired] = field(default_factory=dict)
    """What is still damaged."""
    stuck: dict[str, Pieces] = field(default_factory=dict)
    """What gave nothing for too long: a thread is still in there."""

    def found(self, story: str, repaired: Repaired) -> bool:
        """Count it; False: it is known."""
        if story in self.open:
            return False
        self.damaged += 1
        self.open[story] = repaired
        return True

    def row(self) -> dict[str, Any]:
        """For STATUS."""
        self.open = {story: repaired for story, repaired in self.open.items() if not repaired()}
        return {
            "pass": self.number,
            "bytes": self.bytes,
            "of": self.of,
            "damaged": self.damaged,
            "repaired": self.damaged - len(self.open),
            "last_pass_s": self.last_pass_s,
            "open": list(self.open)[:SHOWN_MAX],
            "stuck": list(self.stuck)[:SHOWN_MAX],
        }


class Scrubbing:
    """Reads again what one node has, and counts what came of it."""

    def __init__(
        self,
        *,
        settings: ScrubSettings,
        logs: Mapping[PartitionId, PartitionLog],
        machines: Mapping[PartitionId, Machine],
        using: Callable[[PartitionId], AbstractContextManager[Machine]],
        store: SnapshotStore,
        journal: Journal,
        clock: Clock,
        offload: Offload,
        store_offload: Offload | None = None,
        give_up: Callable[[], None] = lambda: None,
        damaged_batch: Callable[[PartitionId, DamagedBatch], None],
        damaged_state: Callable[[PartitionId, CorruptData], Repaired],
        fatal: Callable[[BaseException], None],
    ) -> None:
        """``offload`` takes jobs that may wait, also for users' machines; the callbacks see to what is found.

        ``store_offload`` (None: the same one) removes damaged sets. ``give_up``: ``offload`` waits no longer for the
        job that it has; raises OSError if it has to.

        ``using`` a partition's machine keeps it from being closed.
        """
        self._settings = settings
        self._logs = logs
        self._machines = machines
        self._using = using
        self._store = store
        self._journal = journal
        self._clock = clock
        self._offload = offload
        self._store_offload = store_offload or offload
        self._give_up = give_up
        self._damaged_batch = damaged_batch
        self._damaged_state = damaged_state
        self._fatal = fatal
        self.progress = Progress()
        self._states_bytes = 0
        """Bytes of saved states, as the last pass has found."""
        self._doubted: dict[GlobalLogIndex, None] = {}
        self._doubts = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin the first pass after a while, if the settings want any."""
        if self._settings.pause_ms:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def doubt(self, global_index: GlobalLogIndex) -> None:
        """This set of the node's may be damaged: it is read next. Nothing is, where no pass is wanted."""
        self._doubted[global_index] = None
        self._doubts.set()

    async def close(self) -> None:
        """Read nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def status(self) -> dict[str, Any]:
        """For STATUS: pass, bytes, of, damaged, repaired, last_pass_s, open."""
        return self.progress.row()

    # -- a pass

    async def _run(self) -> None:
        pause_ms = min(self._settings.pause_ms, FIRST_MS_MAX)
        while True:
            try:
                await self._rest(pause_ms / 1000)
                await self._pass()
            except InvariantViolated as error:
                self._fatal(error)
                return
            except Exception as error:  # nobody waits for this task: it must not end unseen
                log.exception("scrub_failed", error=repr(error))
            pause_ms = self._settings.pause_ms

    async def _rest(self, seconds: float) -> None:
        """Until the next pass: meanwhile what is doubted is read."""
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._doubts.wait()
            await self._read_doubted()

    async def _read_doubted(self) -> None:
        self._doubts.clear()
        while self._doubted:
            global_index = next(iter(self._doubted))
            del self._doubted[global_index]
            log.warning("snapshot_doubted", global_index=global_index)
            await self._look_at(self._set(global_index))

    async def _pass(self) -> None:
        progress, began = self.progress, self._clock.monotonic()
        progress.number, progress.bytes = progress.number + 1, 0
        progress.of = await self._offload.run(self._total)
        states_bytes = 0
        for target in self._targets():
            await self._read_doubted()
            if target.name not in progress.stuck:
                nbytes = await self._look_at(target)
                states_bytes += nbytes if target.state else 0
        self._states_bytes = states_bytes
        progress.last_pass_s = round(self._clock.monotonic() - began, 3)
        log.info("scrubbed", number=progress.number, bytes=progress.bytes, damaged=progress.damaged)

    async def _look_at(self, target: Target) -> int:
        """Read all of it; returns how much that was, 0 if it came to nothing."""
        try:
            with ExitStack() as held:
                held.enter_context(target.holding())
                return await self._read(target, held)
        except InvariantViolated:
            raise
        except LogboomError as error:
            log.debug("scrub_passed_over", target=target.name, error=error.message)
        except Exception as error:  # reading failed, which is no damage: the next pass tries again
            log.exception("scrub_failed", target=target.name, error=repr(error))
        return 0

    async def _read(self, target: Target, held: ExitStack) -> int:
        pieces = target.pieces()
        try:
            return await self._read_all(target, pieces, held)
        finally:
            if target.name not in self.progress.stuck:
                await self._step(partial(_close, pieces))  # who is cancelled leaves no file open, nor a state

    async def _step(self, job: Callable[[], T]) -> T:
        """Off the loop. Whoever is cancelled meanwhile waits for its end: one step at a time."""
        step = asyncio.ensure_future(self._offload.run(job))
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            step.exception()  # which nobody waits for any more
            raise

    async def _piece(self, target: Target, pieces: Pieces, held: ExitStack) -> Piece | None:
        """The next one; None: that was all. Raises Unavailable if a user's machine gives none for too long."""
        stall_s = self._settings.stall_ms / 1000
        if not target.state or not stall_s:
            return await self._step(lambda: _next(pieces))
        step = asyncio.ensure_future(self._offload.run(lambda: _next(pieces)))
        try:
            await asyncio.wait([step], timeout=stall_s)
            while not step.done():
                try:
                    self._give_up()
                except OSError as error:  # no more threads: it keeps this one
                    log.warning("scrub_not_given_up", target=target.name, error=str(error))
                    await asyncio.wait([step], timeout=stall_s)
                else:
                    break
        except asyncio.CancelledError:
            await asyncio.wait([step])
            step.exception()
            raise
        if step.done():
            return step.result()
        self.progress.stuck[target.name] = pieces
        step.add_done_callback(partial(self._returned, target, pieces, held.pop_all()))
        story = f"{target.name} has given nothing to be scrubbed for {stall_s:g} s"
        log.error("scrub_given_up", target=target.name, reason=story)
        raise Unavailable(story)

    def _returned(self, target: Target, pieces: Pieces, held: ExitStack, step: asyncio.Future[Piece | None]) -> None:
        """What was given up has come to its end."""

        def closed(_: None, error: BaseException | None) -> None:
            held.close()
            del self.progress.stuck[target.name]
            log.info("scrub_returned", target=target.name, error=None if error is None else repr(error))

        if not step.cancelled():
            step.exception()
            self._offload.submit(partial(_close, pieces), closed)

    async def _read_all(self, target: Target, pieces: Pieces, held: ExitStack) -> int:
        began, nbytes = self._clock.monotonic(), 0
        while (piece := await self._piece(target, pieces, held)) is not None:
            self.progress.bytes += piece.nbytes
            nbytes += piece.nbytes
            if piece.damage is not None:
                self._found(target, piece.damage)
            if piece.again:
                log.warning("scrub_could_not_read", target=target.name, again_in_s=AGAIN_S)
                await wait(AGAIN_S)
            ahead = nbytes / self._settings.bytes_per_s - (self._clock.monotonic() - began)
            if ahead > 0:
                await wait(ahead)
            elif ahead < -MADE_UP_S:
                began -= ahead + MADE_UP_S  # it was held up: that is not made up for
        return nbytes

    def _found(self, target: Target, damage: CorruptData) -> None:
        story = f"{target.name}: {damage}"
        if story in self.progress.open or not target.there():
            return
        log.error("scrub_found_damage", target=target.name, error=str(damage))
        self.progress.found(story, target.found(damage))

    def _total(self) -> int:
        logs = sum(store.committed_bytes for store in list(self._logs.values()))
        sets = sum(meta.states_bytes for meta in self._store.sets())
        return logs + sets + self._states_bytes + self._journal.sealed_bytes

    # -- what there is

    def _targets(self) -> Iterator[Target]:
        """As of when they are reached."""
        yield Target("journal", self._journal.scrub, self._journal.outlives)
        for partition_id, store in list(self._logs.items()):  # more may come, and some may go
            yield Target(
                f"log of partition {partition_id}",
                store.scrub,
                self._batch_of(partition_id, store),
                there=partial(self._is_there, partition_id, store),
            )
            machine = self._machines.get(partition_id)
            scrub = getattr(machine, "scrub", None)
            if machine is not None and scrub is not None:
                found = self._state_of(partition_id, machine)
                using = partial(self._using, partition_id)
                yield Target(f"state of partition {partition_id}", scrub, found, using, state=True)
        for meta in self._store.sets():
            yield self._set(meta.global_index)

    def _is_there(self, partition_id: PartitionId, store: PartitionLog) -> bool:
        return self._logs.get(partition_id) is store

    def _batch_of(self, partition_id: PartitionId, store: PartitionLog) -> Callable[[CorruptData], Repaired]:
        def found(damage: CorruptData) -> Repaired:
            if not isinstance(damage, DamagedBatch):
                return _never
            last_index, digest = damage.last_index, damage.digest
            self._damaged_batch(partition_id, damage)
            return lambda: (
                self._logs.get(partition_id) is not store  # it was destroyed
                or last_index < store.first_available_index
                or store.find(last_index, digest) is not None
            )

        return found

    def _state_of(self, partition_id: PartitionId, machine: Machine) -> Callable[[CorruptData], Repaired]:
        def found(damage: CorruptData) -> Repaired:
            if self._machines.get(partition_id) is not machine:
                return lambda: True  # another has taken its place since
            return self._damaged_state(partition_id, damage)

        return found

    def _set(self, global_index: GlobalLogIndex) -> Target:
        def removed(_: None, error: BaseException | None) -> None:
            if error is not None:
                self._fatal(error)

        def found(_: CorruptData) -> Repaired:
            self._store_offload.submit(partial(self._store.drop, global_index), removed)
            return lambda: any(meta.global_index > global_index for meta in self._store.sets())

        return Target(f"snapshot {global_index}", lambda: self._store.scrub(global_index), found)


def _next(pieces: Pieces) -> Piece | None:
    """The next piece. Damage that ends the reading is one, too."""
    try:
        return next(pieces, None)
    except CorruptData as error:
        return Piece(0, error)


def _close(pieces: Pieces) -> None:
    """What it reads, wherever it is."""
    close = getattr(pieces, "close", None)
    if close is not None:
        close()


def _never() -> bool:
    return False
