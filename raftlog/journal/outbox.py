"""Group sync and the outbox: persist before send (I3).

Everything that changed since the last group is written and synced together, off the loop;
messages that depend on it wait in the outbox until the group is done. While one group is
on its way to the disk, the next one collects: load makes groups larger, not slower.

Partition logs first, side by side, the journal after the last of them: an entry that is found in the journal
had its batch on the disk. If the batch is not there, it is damaged, never just late
(docs/decisions/0010).

Small shares of partition logs ride in the journal: one sync for all of them. From time to
time those logs are synced, one with each group, and the journal forgets what it carried.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import structlog

from logboom.types import KIB, MIB
from ports.clock import Clock
from ports.counts import BYTES, RECORDS, SECONDS, Buckets
from ports.invariant import InvariantViolated, invariant
from ports.offload import Offload
from ports.sync import SyncJob, SyncTarget
from raftlog.journal.journal import Journal
from raftlog.journal.journal_base import Base

log = structlog.get_logger(__name__)

Send = Callable[[], None]
INLINE_FILES_MAX = 2
PROVE_AFTER_S = 1.0
"""Of quiet: see ``rest``."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Bounds, all in bytes; the defaults of the settings."""

    inline: int = 16 * KIB
    """Groups of at most two files and so much are synced on the loop itself, 0: never.

    That is for a lone command: two hops between threads cost it more than the sync does. Under
    load groups are larger and go to threads."""
    redo: int = 48 * KIB
    """A log's share of a group up to this travels in the journal, 0: never."""
    redo_group: int = 512 * KIB
    """All shares of a group that do."""
    unsettled: int = 8 * MIB
    """Carried by the journal before those logs are synced."""


class GroupSync:
    """One per node. ``synced`` is called after every group, ``failed`` once: the disk must not be trusted again."""

    def __init__(
        self,
        *,
        journal: Journal,
        offload: Offload,
        clock: Clock,
        synced: Callable[[], None],
        failed: Callable[[BaseException], None],
        limits: GroupLimits,
        parallel: int = 4,
    ) -> None:
        """The journal is looked at for every group: what is held may depend on it before anyone calls ``dirty``."""
        self._journal = journal
        self._offload = offload
        self._clock = clock
        self._synced = synced
        self._failed = failed
        self._parallel = parallel
        self._limits = limits
        self._dirty: dict[int, SyncTarget] = {}
        self._held: list[Send] = []
        self._releasing: list[Send] = []
        self._jobs: list[SyncJob] = []
        self._running = 0
        self._started: float | None = None
        self._counted = (0, 0)
        """Bytes and records of the group under way: put into buckets when it is done, as somebody waits before."""
        self._ended: float = clock.monotonic()
        """When the last group ended, by the clock; see ``rest``."""
        self._broken = False
        self._behind: dict[int, SyncTarget] = {}
        """Logs with batches that only the journal has synced."""
        self._settling: _Settling | None = None
        self._settle_soon = False
        """Settle with the next kick, however little is carried.

        The journal was compacted, and each file from the oldest carried batch on would be kept for that alone."""
        self._chores: deque[_Chore] = deque()
        """Of the journal, one at a time, side by side with groups; the first is under way."""
        self.groups = 0
        self.bytes = 0
        self.journal_bytes = 0
        """Of them, the journal's."""
        self.files = 0
        """Synced, in all groups; what is carried by the journal is not."""
        self.seconds = Buckets(SECONDS)
        """From the beginning of a group to the end of its last sync."""
        self.sizes = Buckets(BYTES)
        self.records = Buckets(RECORDS)

    def dirty(self, target: SyncTarget) -> None:
        """``target`` has queued writes: part of the next group."""
        self._dirty[id(target)] = target

    def forget(self, target: SyncTarget) -> None:
        """``target`` will be closed: nobody needs what it has queued, or what only the journal has synced of it.

        A job of it that is under way goes on to its end.
        """
        self._dirty.pop(id(target), None)
        self._behind.pop(id(target), None)
        if self._settling is not None and target in self._settling.left:
            self._settling.left.remove(target)

    def hold(self, send: Send) -> None:
        """Call ``send`` once everything queued so far is on stable storage. Bounded by what peers and clients ask."""
        self._held.append(send)

    def stalled(self, limit_s: float) -> bool:
        """The group under way has taken longer than ``limit_s``: the disk hangs."""
        return self._started is not None and self._clock.monotonic() - self._started > limit_s

    @property
    def under_way_s(self) -> float:
        """So long the group under way has taken; 0: there is none."""
        return 0.0 if self._started is None else self._clock.monotonic() - self._started

    @property
    def idle(self) -> bool:
        """Nothing queued, nothing under way."""
        return not self._dirty and not self._running

    @property
    def waits(self) -> bool:
        """A ``kick`` would have something to do."""
        return bool(self._held or self._dirty or self._settling or self._settle_soon) or self._journal.dirty

    @property
    def doing_chores(self) -> bool:
        """Files of the journal are written anew, or go, off the loop; no more once something has failed."""
        return bool(self._chores) and not self._broken

    def kick(self) -> None:
        """Start a group if something is dirty and none is under way; with nothing dirty, release the outbox."""
        if self._running or self._broken:
            return
        much = self._behind and self._journal.redo_bytes > self._limits.unsettled
        if much or self._settle_soon or self._settling is not None:
            self._settle_next()
        if not self._dirty and not self._journal.dirty:
            if self._held:
                held, self._held = self._held, []
                _release(held)
            return
        held, self._held = self._held, []
        alone, carried = self._take()
        jobs = [*carried, *alone]
        if not jobs:
            _release(held)
            return
        self._jobs, self._releasing = jobs, held
        self._started = self._clock.monotonic()
        size = sum([job.pending_bytes for job in jobs])
        self.groups += 1
        self.bytes += size
        self.files += len(alone) + bool(carried)
        self._counted = size, sum([job.records for job in jobs])
        if self._limits.inline and len(alone) < INLINE_FILES_MAX and size <= self._limits.inline:
            self._running = 1
            self._run_inline([*alone, *carried[:1]], carried[1:])
            return
        shares = [alone[k :: self._parallel] for k in range(min(self._parallel, len(alone)))]
        group = _Shares(len(shares), carried)
        self._running = max(1, len(shares))
        for share in shares or [[]]:
            self._offload.submit(partial(group.run, share), self._share_done)

    def _take(self) -> tuple[list[SyncJob], list[SyncJob]]:
        """Jobs that sync for themselves; the journal's and those that need nothing more than its sync."""
        targets, self._dirty = self._dirty, {}
        alone: list[SyncJob] = []
        carried: list[SyncJob] = []
        room = self._limits.redo_group
        for key, target in targets.items():
            job = target.take()
            if job is None:
                continue
            fits = job.pending_bytes <= min(room, self._limits.redo)
            batches = job.redo() if fits else ()
            if not batches:
                alone.append(job)
                continue
            room -= job.pending_bytes
            for batch in batches:
                self._journal.redo(batch)
            self._behind[key] = target
            carried.append(job)
        own = self._journal.take()
        self.journal_bytes += own.pending_bytes if own is not None else 0
        return alone, [own, *carried] if own is not None else carried

    def flush(self) -> None:
        """Write and sync everything that is queued, blocking: before the loop does anything else."""
        invariant(not self._running, "a flush during a group")
        jobs = [job for target in self._dirty.values() if (job := target.take()) is not None]
        self._dirty.clear()
        own = self._journal.take()
        for job in [*jobs, own] if own is not None else jobs:  # the journal last, as ever
            job.run()
            job.done()

    def rest(self) -> None:
        """To be called now and then. After a while of quiet the journal says that its last group was synced.

        Else damage to that group, found by the next start, would look like a torn write: what it holds would be
        forgotten, and nobody told.
        """
        quiet = self.idle and not self._held and self._clock.monotonic() - self._ended >= PROVE_AFTER_S
        if quiet and not self._broken and self._journal.prove():
            self.kick()

    def close(self) -> None:
        """Note that the last group was synced (see ``rest``), blocking, and start no other.

        What is under way ends; what depends on it never leaves.
        """
        last = self.idle and not self._broken and self._journal.prove()
        self._broken = True
        if last:
            try:
                self._journal.flush()
            except OSError as error:
                self._failed(error)

    # -- settling what the journal carries

    def _settle_next(self) -> None:
        if self._behind and self._settling is None and not self._chores:
            self._settle_soon = False
            self._settling = _Settling(self._journal.taken_sequence, list(self._behind.values()))
            self._behind = {}
            self._journal.redo_bytes = 0
        while self._settling is not None and self._settling.left:
            target = self._settling.left.pop()
            if target.request_sync():
                self._dirty[id(target)] = target
                return

    def _settled(self) -> None:
        if self._settling is None or self._settling.left:
            return
        through, self._settling = self._settling.through, None
        self._journal.settled(through)
        self._do(_Chore(lambda: self._journal.strip(through)))

    # -- the journal's chores

    def compact(self, base: Base, done: Callable[[], None]) -> None:
        """Let the journal begin at ``base``, an entry that is committed and synced here; ``done`` once it does.

        One at a time. A failure is final, and then ``done`` is never called.
        """
        job = self._journal.compaction(base)

        def finished() -> None:
            job.done()
            self._settle_soon = True
            done()

        self._do(_Chore(job.run, finished))

    def _do(self, chore: _Chore) -> None:
        if self._broken:
            return
        self._chores.append(chore)
        if len(self._chores) == 1:
            self._offload.submit(chore.run, self._chore_done)

    def _chore_done(self, _: object, error: BaseException | None) -> None:
        if self._broken:
            return
        if error is not None:
            self._broken = True
            self._failed(error)
            return
        self._chores[0].done()
        self._chores.popleft()
        if self._chores:
            self._offload.submit(self._chores[0].run, self._chore_done)

    # -- groups

    def _run_inline(self, jobs: Sequence[SyncJob], carried: Sequence[SyncJob]) -> None:
        try:
            _run(jobs)
            for job in jobs:
                job.done()
            # Everything is on stable storage, what is carried too: nobody waits for its own file.
            released, self._jobs, self._releasing = self._releasing, [*carried], []
            _release(released)
            _run(carried)
        except Exception as error:  # noqa: BLE001 - whatever it is: as what a thread says of its share
            self._share_done(None, error)
        else:
            self._share_done(None, None)

    def _share_done(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            # The kernel may have dropped what we wrote: nothing that depends on it may ever leave.
            self._broken = True
            self._held.clear()
            self._releasing.clear()
            self._failed(error)
            return
        invariant(self._running > 0, "a group sync ended twice")
        self._running -= 1
        if self._running or self._broken:
            return
        for job in self._jobs:
            job.done()
        if self._started is not None:
            self._ended = self._clock.monotonic()
            self._count(self._ended - self._started)
        released, self._jobs, self._releasing, self._started = self._releasing, [], [], None
        _release(released)
        self._settled()
        self._synced()
        self.kick()

    def _count(self, took_s: float) -> None:
        size, records = self._counted
        self.sizes.observe(size)
        self.records.observe(records)
        self.seconds.observe(took_s)


class _Shares:
    """One group, shared out over threads.

    The one that ends last also syncs the rest: the journal, then the logs whose batches it carries. Another hop between
    threads would cost more than that.
    """

    def __init__(self, count: int, rest: Sequence[SyncJob]) -> None:
        """``count``: of shares that have to be synced before the rest."""
        self._left = count
        self._rest = rest
        self._lock = threading.Lock()

    def run(self, share: Sequence[SyncJob]) -> None:
        """Off the loop. A share that fails never counts as done: then nobody does the rest."""
        for job in share[1:]:  # the disk has them then, while the first, written and synced in one, waits
            job.begin()
        _run(share)
        with self._lock:
            self._left -= bool(share)
            last = not self._left
        if last:
            _run(self._rest)


class _Chore(NamedTuple):
    """``run`` happens off the loop, then ``done`` on it."""

    run: Callable[[], None]
    done: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _Settling:
    """The journal carries nothing needed up to ``through`` once the logs that are left are synced."""

    through: int
    left: list[SyncTarget]


def _run(jobs: Sequence[SyncJob]) -> None:
    for job in jobs:
        job.run()


def _release(sends: Sequence[Send]) -> None:
    for send in sends:
        try:
            send()
        except InvariantViolated:
            raise
        except Exception as error:  # the others have nothing to do with it, and the group has to end
            log.exception("held_send_failed", error=repr(error))
