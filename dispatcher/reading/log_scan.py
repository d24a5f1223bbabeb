"""Records of many partitions in ``global_log_index`` order, up to the safe horizon, in bounded memory.

The *safe horizon* is the highest global index that nothing can come in front of any more: in every partition all up
to there is committed and durable here (or applied). What is read, window by window, is admitted by the node's
``ReadBudget``, bytes and segments in one step, and given back when it has been sent.

What was expected is known beforehand (``merging``). What arrives is compared with it, batch by batch and at the end;
a difference ends the scan with ``corrupt_data``, rather than with fewer records.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import NamedTuple

import structlog

from dispatcher.reading.feeds import Ended, Feed, FeedRequest, Send
from dispatcher.reading.merging import Lost, Merge, Run, Window
from dispatcher.reading.read_rates import Pace
from dispatcher.reading.surroundings import Horizon, Surroundings
from logboom.errors import CorruptData, IncompatibleVersion, IndexCompacted, InvalidRequest, LogboomError, Voided
from logboom.types import GlobalLogIndex, Level, PartitionId, PartitionLogIndex
from logboom.wire import FLAG_MORE, Kind
from partitions.log.batch import is_mixed
from partitions.log.compaction import Taken
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch, SegmentRemoved

log = structlog.get_logger(__name__)


class Arrived(NamedTuple):
    """What came of reading a window."""

    views: list[memoryview]
    """In the window's order; up to the first one that could not be read."""
    partition_id: PartitionId
    """Of the first one that could not be read."""
    error: BaseException | None


class Timed(NamedTuple):
    """What came of looking for a time."""

    through: dict[PartitionId, PartitionLogIndex]
    positions: dict[PartitionId, int]
    damage: tuple[PartitionId, DamagedBatch] | None


class LogScan(Feed):
    """One scan. ``through``: where it ends, if that is not to be as far as is safe when it begins."""

    def __init__(
        self,
        backend: Surroundings,
        partitions: Sequence[PartitionId],
        wanted: FeedRequest,
        *,
        through: int,
        send: Send,
        congested: Callable[[], bool],
        ended: Ended,
        pace: Pace,
    ) -> None:
        super().__init__(backend, wanted, send=send, congested=congested, ended=ended, pace=pace)
        if wanted.start or wanted.filter is not None or wanted.metadata_only:
            raise InvalidRequest("a scan of the log takes start_global or start_time_ms, and no filter")
        self._logs: dict[PartitionId, PartitionLog] = {p: backend.log(p) for p in dict.fromkeys(partitions)}
        self.width = len(self._logs)
        self._through = 0 if wanted.follow else through
        self._merge: Merge | None = None
        """None: where it begins is still to be found."""
        self._begun: dict[PartitionId, int] = {}
        """Positions to begin at; while a time is waited for, everything in front of them is older than it."""
        self._looked_through: dict[PartitionId, PartitionLogIndex] | None = None
        self._window: Window | None = None
        """Comes next; planned once."""
        self._arrived: list[memoryview] | None = None
        self._count = 0
        self._sent_global = 0
        self._looked_global: int | None = None
        """What has come behind it is still to be looked at; None: all there is."""
        self._due = False
        if not wanted.start_time_ms and not self._is_early:
            self._begin(self._positions(wanted.start_global))
        now = backend.clock.monotonic()
        self._taken = Taken(now)
        self._leases = {p: each.lease(each.first_index_at(self._begun.get(p, 0)) if self._begun else 1, by=self._taken)
                        for p, each in self._logs.items()}  # fmt: skip
        subscribe = backend.subscribe_applied if wanted.level is Level.APPLIED else backend.subscribe_commits
        self._unsubscribe = [subscribe(p, self.woken) for p in self._logs]
        if self._through > backend.safe_horizon(self._logs, wanted.level).through:  # others may take it there, silently
            self._unsubscribe.append(backend.subscribe_ordered(self.woken))

    @property
    def _is_early(self) -> bool:
        """Of what still comes to this node, some is in front of where it begins."""
        before = self._wanted.start_global - 1
        last = before if self._wanted.follow else min(before, self._through)
        return last > int(self._backend.global_commit_index())

    def _positions(self, start_global: int) -> dict[PartitionId, int]:
        found, first = dict[PartitionId, int](), 0
        for partition, each in self._logs.items():
            try:
                found[partition] = each.position_at_global(start_global)
            except IndexCompacted:
                first = max(first, each.first_global_index)
        if first:
            raise IndexCompacted(f"some of what comes before global index {first} has been removed", first=first)
        return found

    def _begin(self, positions: dict[PartitionId, int]) -> None:
        self._begun, self._looked_global = positions, None
        self._merge = Merge({p: each.chunks for p, each in self._logs.items()}, positions)

    def _let_go(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        for lease in self._leases.values():
            lease.release()
        self._arrived = None

    def woken(self, error: LogboomError | None = None) -> None:
        """A partition has grown, or is gone. Many do in one turn: it is looked at once."""
        if error is not None:
            self.move(error)
        elif not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._woken)

    def _woken(self) -> None:
        self._due = False
        self.move()

    def move(self, error: LogboomError | None = None) -> None:
        """See Feed."""
        if error is not None and not self._closed:
            self._end(error)
        if self._closed or self._reading:
            return
        if self._window is not None and self._arrived is not None and self._open:
            self._push(self._window, self._arrived)
        if self._arrived is None and self._grant is None and self._later is None:
            self._next()

    def _next(self) -> None:
        if self._closed:
            return
        if self._merge is None and self._wanted.start_time_ms:
            self._find_time()
        elif self._merge is None:
            self._find_start()
        elif self._may_read:
            self._go_on(self._merge)

    def _find_start(self) -> None:
        """By global index: once this node knows all that is in front of it."""
        if self._is_early:
            return
        try:
            self._begin(self._positions(self._wanted.start_global))
            firsts = {p: self._logs[p].first_index_at(position) for p, position in self._begun.items()}
        except IndexCompacted as gone:
            self._end(gone)
            return
        for partition, first in firsts.items():
            self._leases[partition].index = PartitionLogIndex(first)
        self._move_leases()
        self.move()

    def _find_time(self) -> None:
        logs, time_ms, older = self._logs, self._wanted.start_time_ms, self._begun
        through = {p: each.durable_index for p, each in logs.items()}
        if through == self._looked_through:
            self._look_for_hole(self._backend.safe_horizon(logs, self._wanted.level))
            return  # else what comes is waited for
        self._reading = True

        def search() -> Timed:
            found = dict[PartitionId, int]()
            for p, each in logs.items():
                try:
                    found[p] = each.chunks.first_at_time(time_ms, through_index=through[p], start=older.get(p, 0))
                except DamagedBatch as damage:
                    return Timed(through, found, (p, damage))
            return Timed(through, found, None)

        self._backend.offload.submit(search, self._timed)

    def _timed(self, timed: Timed | None, error: BaseException | None) -> None:
        self._reading = False
        if self._closed:
            return
        if timed is None:
            self._failed(error)
            return
        if timed.damage is not None:
            if not self._wait_for_repair(*timed.damage):
                self._failed(timed.damage[1])
            return
        try:
            firsts = {p: self._logs[p].first_index_at(position) for p, position in timed.positions.items()}
        except IndexCompacted as gone:  # in this moment
            self._end(gone)
            return
        for partition, first in firsts.items():
            self._leases[partition].index = PartitionLogIndex(first)
        if self._wanted.follow and all(first > timed.through[p] for p, first in firsts.items()):
            # As soon as one has come so far, so have those who lead: what comes to the others is as new.
            self._begun, self._looked_through = timed.positions, timed.through
        else:
            self._begin(timed.positions)
        self._move_leases()
        self.move()

    def _go_on(self, merge: Merge) -> None:
        settings = self._backend.settings.reads
        if self._window is None:
            safe = self._backend.safe_horizon(self._logs, self._wanted.level)
            horizon = safe.through
            if not self._wanted.follow:
                self._through = self._through or horizon
            limit = min(horizon, self._through) if self._through else horizon
            credit = self._credit if self._credit > 0 else self._wanted.credit
            most = min(settings.window_bytes, credit, self._pace.chunk_bytes)
            try:
                self._window = merge.plan(
                    horizon=limit,
                    bytes_max=most,
                    segments_max=settings.window_segments_max,
                    grown=self._grown(),
                )
            except Lost as lost:
                if not self._wait_for_repair(lost.partition_id, lost.damage):
                    self._failed(lost.damage)
                return
            except LogboomError as error:
                self._diverged(error)
                return
            if self._window is None:
                if not self._wanted.follow and horizon >= self._through and self._open:
                    self._finish()
                else:
                    self._look_for_hole(safe)
                return
        window = self._window
        order = window.picked[0].place.global_index
        self._ask(nbytes=window.nbytes, segments=window.segments, order=order, admitted=self._admitted)

    def _look_for_hole(self, safe: Horizon) -> None:
        """All that is safe is sent. If nobody has what holds the rest up, nothing comes before that is void."""
        partition_id = safe.held_by
        if partition_id is None:
            return
        is_applied = self._wanted.level is Level.APPLIED
        hole = self._backend.hole_of(partition_id) if is_applied else self._logs[partition_id].hole
        if hole is None or not (self._wanted.follow or hole.global_index <= self._through):
            return
        if hole.global_index == safe.through + 1:
            self._end_in_front_of(partition_id, hole)

    def _grown(self) -> AbstractSet[PartitionId] | None:
        """Partitions with more than when this was asked last; None: nobody knows."""
        lately, before = self._backend.lately, self._looked_global
        self._looked_global = lately.through
        return None if before is None else lately.since(before, most=len(self._logs))

    def _admitted(self) -> None:
        window = self._window
        if window is not None:
            self._reading = True
            runs, count = window.runs(), len(window.picked)
            self._backend.offload.submit(lambda: self._read(runs, count), self._have_read)

    # -- reading (off the loop)

    def _read(self, runs: Sequence[Run], count: int) -> Arrived | None:
        if self._closed:
            return None
        views: list[memoryview | None] = [None] * count
        first, why = count, None
        culprit = runs[0].partition_id
        for run in runs:
            try:
                got = self._read_run(run, views)
            except (LogboomError, OSError, SegmentRemoved) as error:
                got, caught = self._whole(run, views), error
                if run.slots[got] < first:
                    first, why, culprit = run.slots[got], caught, run.partition_id
        return Arrived([view for view in views[:first] if view is not None], culprit, why)

    @staticmethod
    def _whole(run: Run, views: Sequence[memoryview | None]) -> int:
        return next(number for number, slot in enumerate(run.slots) if views[slot] is None)

    def _read_run(self, run: Run, views: list[memoryview | None]) -> int:
        """Raises what stands in the way; what lies in front of it is in ``views``."""
        done, chunks = 0, self._logs[run.partition_id].chunks
        while done < len(run.slots):
            # Raises DamagedBatch where the one before ended early.
            chunk = chunks.at(run.position + done, len(run.slots) - done, cold=self._wanted.cold)
            at = 0
            for length, slot in zip(chunk.lengths, run.slots[done:], strict=False):
                view = chunk.raw[at : at + length]
                if not self._wanted.mixed and is_mixed(view):
                    raise IncompatibleVersion(
                        f"partition {run.partition_id} has batches that several producers share: this client cannot "
                        "read them; upgrade it, or tail the partition",
                        found="mixed",
                        supported=None,
                    )
                views[slot] = view
                at += length
            done += len(chunk.lengths)
        return done

    def _have_read(self, arrived: Arrived | None, error: BaseException | None) -> None:
        self._reading = False
        if self._closed:
            self._give_back()
            return
        if self._window is None:
            return
        if arrived is None:
            self._give_back()
            self._failed(error)
            return
        if arrived.views:
            self._arrived, nbytes = arrived.views, sum(map(len, arrived.views))
            self._pace.take(nbytes)
            if self._grant is not None:
                self._grant.read(nbytes)
            if arrived.error is None:
                self._damage = None
        else:
            self._give_back()
            if not self._may_come(arrived):
                self._failed(arrived.error)
            return
        self.move()
        self._park()

    def _park(self) -> None:
        if self._arrived is not None and self._grant is not None:
            self._grant.park(self._drop)

    def _may_come(self, arrived: Arrived) -> bool:
        """The first of the window could not be read; it is tried again."""
        if isinstance(arrived.error, Voided) and self._window is not None and self._merge is not None:
            # Since it was planned: it counts as nothing.
            self._merge.step_over(self._window.picked[0])
            self._window = self._window.behind(1) if len(self._window.picked) > 1 else None
            self.move()
            return True
        return isinstance(arrived.error, DamagedBatch) and self._wait_for_repair(arrived.partition_id, arrived.error)

    def _drop(self) -> None:
        """Another reader needs the room: what the client does not take now is read again."""
        self._arrived = None
        self._give_back()

    # -- sending

    def _push(self, window: Window, views: list[memoryview]) -> None:
        self._arrived = None
        sent = window.picked[: len(views)]
        if [each.place.length for each in sent] != [len(view) for view in views] or not sent:
            self._diverged(CorruptData(f"expected {len(window.picked)} batches, {len(views)} others arrived"))
            return
        globals_ = array("Q", (each.place.global_index for each in sent))
        if globals_[0] <= self._sent_global:
            self._diverged(CorruptData(f"global index {globals_[0]} after {self._sent_global}"))
            return
        self._count += len(sent)
        header = {
            "partition": None,
            "global_indexes": globals_.tobytes(),
            "after": self._sent_global,
            "batches": self._count,
            "through": self._through,
            **self._voids_before(globals_[-1]),
        }
        self._sent_global = globals_[-1]
        self._credit -= sum(map(len, views))
        self._window = window.behind(len(views)) if len(views) < len(window.picked) else None
        self._send(Kind.BATCHES, header, list(views), FLAG_MORE)
        self._give_back()
        for each in sent:
            self._leases[each.partition_id].index = each.place.last_index + 1  # type: ignore[assignment]
        self._move_leases()

    def _move_leases(self) -> None:
        """Who takes something takes part in all of them."""
        self._keep(self._backend.clock.monotonic())

    def _keep(self, now: float) -> None:
        self._taken.at = now

    def _finish(self) -> None:
        """All has been sent, if what is there now is what was there."""
        expected = 0
        for partition, begun in self._begun.items():
            try:
                expected += max(0, self._logs[partition].position_at_global(self._through + 1) - begun)
            except IndexCompacted as error:
                self._diverged(error)
                return
        expected -= 0 if self._merge is None else self._merge.voids
        if expected != self._count:
            self._diverged(
                CorruptData(f"expected {expected} batches up to global index {self._through}, {self._count} were sent")
            )
            return
        said = {"next_global": self._through + 1, "batches": self._count, **self._voids_before(self._through + 1)}
        self._send(Kind.END, said, [], 0)
        self._end(None)

    def _voids_before(self, before_global: int) -> dict[str, list[list[int]]]:
        """What the reader will find missing in front of a global index."""
        rows = []
        for void in () if self._merge is None else self._merge.to_tell(before_global):
            with suppress(IndexCompacted):  # then it is gone as well
                first = int(self._logs[void.partition_id].first_index_at(void.position))
                rows.append([int(void.partition_id), first, void.place.last_index, void.place.global_index])
        return {"voids": rows} if rows else {}

    def _end(self, error: LogboomError | None) -> None:
        """A log says from which of its own indices on it has something: the client goes on by the global one."""
        if isinstance(error, IndexCompacted):
            first = GlobalLogIndex(max(each.first_global_index for each in self._logs.values()))
            error = IndexCompacted(f"some of what comes before global index {first} has been removed", first=first)
        super()._end(error)

    def _diverged(self, error: LogboomError) -> None:
        if not isinstance(error, IndexCompacted):
            log.error("scan_diverged", after=self._sent_global, batches=self._count, error=error.message)
        self._end(error)
