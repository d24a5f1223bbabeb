"""Tail: a client follows one partition's log. Committed and durable batches only, in order, within its credit.

A damaged batch holds it up until another node's copy is here. What it has not read yet is not removed, as long as
it takes something now and then (``log.reader_lease_ms``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dispatcher.reading.feeds import Ended, Feed, FeedRequest, Send
from dispatcher.reading.read_rates import Pace
from dispatcher.reading.surroundings import Surroundings
from logboom.errors import IndexCompacted, LogboomError, Unavailable
from logboom.origins import pack_origins
from logboom.types import Level, PartitionId
from logboom.wire import FLAG_MORE, Kind
from partitions.log.batch import Batch
from partitions.log.chunks import Chunk
from partitions.log.compaction import Taken
from partitions.log.holes import Hole
from partitions.log.log import PartitionLog
from partitions.log.reading import DamagedBatch


class Tail(Feed):
    """One stream; woken when the log grows.

    ``start`` 0: from the first index that is still there. Any other that was removed ends it with IndexCompacted.
    """

    def __init__(
        self,
        backend: Surroundings,
        partition_id: PartitionId,
        wanted: FeedRequest,
        *,
        send: Send,
        congested: Callable[[], bool],
        ended: Ended,
        pace: Pace,
    ) -> None:
        super().__init__(backend, wanted, send=send, congested=congested, ended=ended, pace=pace)
        self._partition_id = partition_id
        self._log: PartitionLog = backend.log(partition_id)
        self._anywhere = not (wanted.start or wanted.start_global or wanted.start_time_ms)
        """Nothing was sent yet, and it may begin where the log does."""
        self._next = self._log.first_available_index if self._anywhere else max(1, wanted.start)
        self._by_global = wanted.start_global
        """By global index, while its first index is still to be found; 0: it is known."""
        self._by_time = wanted.start_time_ms
        """By time, while its first index is still to be found; 0: it is known."""
        self._older, self._looked_through = 0, -1
        """By time: from which position on, and through which index there is nothing as new yet."""
        self._moving = False
        self._chunk: Piece | None = None
        """Read, and not sent yet."""
        self._lease = self._log.lease(self._first_of_all(), by=Taken(backend.clock.monotonic()))
        subscribe = backend.subscribe_applied if wanted.level is Level.APPLIED else backend.subscribe_commits
        self._unsubscribe = subscribe(partition_id, self.move)

    def _first_of_all(self) -> int:
        found = self._by_global or self._by_time
        return self._log.first_available_index if found else self._next

    def _let_go(self) -> None:
        self._unsubscribe()
        self._lease.release()
        self._chunk = None

    @property
    def _end_index(self) -> int:
        durable = self._log.durable_index
        if self._wanted.level is Level.APPLIED:
            return min(durable, int(self._backend.applied_index(self._partition_id)))
        return durable

    def move(self, error: LogboomError | None = None) -> None:
        """See Feed."""
        if error is not None and not self._closed:
            self._end(error)
        if self._closed or self._moving:
            return
        self._moving = True
        try:
            self._move()
        finally:
            self._moving = False

    def _move(self) -> None:
        if self._chunk is not None and self._open:
            self._push(self._chunk)
        if self._closed or self._reading or self._chunk is not None or self._later is not None:
            return
        if self._grant is not None or not self._is_placed():
            return
        if self._anywhere and self._next < self._log.first_available_index:
            self._begin_at(self._log.first_available_index)  # removed since it came: nobody promised that
        end = self._end_index
        if self._next > end:
            hole = self._hole()
            if hole is not None and end < hole.first_index <= self._next:
                self._end_in_front_of(self._partition_id, hole)
                return
            if not self._wanted.follow and self._open:
                if not self._has_come_back():  # what it lacks is not the end of anything
                    self._end(Unavailable("this node is still recovering; ask another or try again", retry_after=0.1))
                    return
                self._send(Kind.END, {"next_index": self._next}, [], 0)
                self._end(None)
            return
        if self._may_read:
            self._read_next(end)

    def _hole(self) -> Hole | None:
        """What will not come, as far as it is known. The log may go on behind what nobody has, and the state not."""
        return self._backend.hole_of(self._partition_id) if self._wanted.level is Level.APPLIED else self._log.hole

    def _failed(self, error: BaseException | None) -> None:
        hole = None
        if isinstance(error, DamagedBatch) and self._backend.is_lost(error.digest):
            hole = self._log.place_of(error.last_index, error.digest)
        if hole is None:
            super()._failed(error)
        else:
            self._end_in_front_of(self._partition_id, hole)

    def _has_come_back(self) -> bool:
        """This node has as much as before it was started. A state that stands still keeps nothing of a log back."""
        if self._wanted.level is Level.APPLIED:
            return self._backend.recovered([self._partition_id])
        return self._backend.has_log(self._partition_id)

    def _is_placed(self) -> bool:
        """It is known where it begins."""
        if self._by_global:
            try:
                position = self._log.position_at_global(self._by_global)
            except IndexCompacted as error:
                self._end(error)
                return False
            if position >= self._log.end_position and self._wanted.follow:
                hole = self._hole()
                if hole is not None:  # in front of it: nothing comes before that is void
                    self._end_in_front_of(self._partition_id, hole)
                return False  # of what comes, some may be in front of it
            self._by_global = 0
            self._begin_at(self._log.first_index_at(position))
        if self._by_time:
            self._find_time(self._log.durable_index)
            return False
        return True

    def _find_time(self, through: int) -> None:
        if through <= self._looked_through:
            if self._log.hole is not None:  # else what comes is waited for
                self._end_in_front_of(self._partition_id, self._log.hole)
            return
        self._reading = True
        search, time_ms, start = self._log.chunks.first_at_time, self._by_time, self._older
        self._backend.offload.submit(
            lambda: search(time_ms, through_index=through, start=start), partial(self._timed, through)
        )

    def _keep(self, now: float) -> None:
        self._lease.move(self._lease.index, now=now)

    def _begin_at(self, index: int) -> None:
        self._next = index
        self._lease.move(index, now=self._backend.clock.monotonic())

    def _timed(self, through: int, position: int | None, error: BaseException | None) -> None:
        self._reading = False
        if self._closed:
            return
        if isinstance(error, DamagedBatch) and self._wait_for_repair(self._partition_id, error):
            return
        if position is None:
            self._failed(error)
            return
        try:
            self._begin_at(self._log.first_index_at(position))
        except IndexCompacted as gone:  # in this moment
            self._end(gone)
            return
        if self._next > through and self._wanted.follow:
            self._older, self._looked_through = position, through
        else:
            self._by_time = 0
        self.move()

    # -- reading

    def _read_next(self, end: int) -> None:
        wanted, after = self._wanted, self._next - 1
        credit = self._credit if self._credit > 0 else wanted.credit
        most = min(wanted.bytes_max, max(1, credit), self._pace.chunk_bytes)
        try:
            place = self._log.chunks.place(self._log.position_after(after))
        except IndexCompacted as error:
            self._compacted(error)
            return
        if place is None:
            return
        log, records, partition_id = self._log, wanted.records_max, self._partition_id

        def read() -> Piece | None:
            if self._closed:
                return None
            chunk = log.chunks.after(after, through_index=end, max_bytes=most, max_records=records, cold=wanted.cold)
            return None if chunk is None else pack(chunk, after + 1, wanted, partition_id)

        def admitted() -> None:
            self._reading = True
            self._backend.offload.submit(read, self._read)

        self._ask(nbytes=max(most, place.length), segments=1, order=place.global_index, admitted=admitted)

    def _read(self, chunk: Piece | None, error: BaseException | None) -> None:
        self._reading = False
        if self._closed:
            self._give_back()
            return
        if error is not None or chunk is None:
            self._give_back()
            if isinstance(error, IndexCompacted):
                self._compacted(error)
            elif not (isinstance(error, DamagedBatch) and self._wait_for_repair(self._partition_id, error)):
                self._failed(error)
            return
        self._chunk = chunk
        self._pace.take(chunk.nbytes)
        if self._grant is not None:
            self._grant.read(chunk.nbytes)
        self.move()
        self._park()

    def _park(self) -> None:
        if self._chunk is not None and self._grant is not None:
            self._grant.park(self._drop)

    def _drop(self) -> None:
        """Another reader needs the room: what the client does not take now is read again."""
        self._chunk = None
        self._give_back()

    def _compacted(self, error: IndexCompacted) -> None:
        if not self._anywhere:
            self._end(error)
            return
        self._begin_at(self._log.first_available_index)
        self.move()

    # -- sending

    def _push(self, piece: Piece) -> None:
        self._chunk = None
        for frame in piece.frames:
            self._send(frame.kind, frame.header, frame.body, FLAG_MORE)
        self._credit -= piece.cost
        self._next = piece.next_index
        self._give_back()
        self._anywhere = False
        self._damage = None
        self._lease.move(self._next, now=self._backend.clock.monotonic())


class Ready(NamedTuple):
    """A frame that may be sent."""

    kind: Kind
    header: dict[str, Any]
    body: list[Any]


class Piece(NamedTuple):
    """What one read became."""

    frames: list[Ready]
    next_index: int
    cost: int
    """Credit that it takes."""
    nbytes: int
    """Memory that it holds."""


def pack(chunk: Chunk, first_index: int, wanted: FeedRequest, partition_id: PartitionId) -> Piece:
    """As frames, from ``first_index`` on; off the loop."""
    frames, next_index = list[Ready](), chunk.last_index + 1
    if wanted.whole and wanted.filter is None and not wanted.metadata_only and (wanted.mixed or not chunk.has_mixed):
        header = {
            "partition": partition_id,
            "first_index": first_index,
            "global_indexes": chunk.global_indexes.tobytes(),
        }
        frames.append(Ready(Kind.BATCHES, header, [chunk.raw]))
    else:
        for batch, global_index in zip(chunk.batches(), chunk.global_indexes, strict=True):
            found = _frame(batch, global_index, max(first_index, batch.header.first_index), wanted)
            frames += [] if found is None else [found]
        if not frames or frames[-1].header["next_index"] != next_index:
            frames.append(Ready(Kind.SKIPPED, {"next_index": next_index}, []))
    return Piece(frames, next_index, sum(len(part) for frame in frames for part in frame.body), len(chunk.raw))


def _frame(batch: Batch, global_index: int, first: int, wanted: FeedRequest) -> Ready | None:
    """One batch, from index ``first`` on; None: nothing in it is wanted."""
    header, records = batch.header, batch.records()
    if first > header.first_index:
        records = records.take(first - header.first_index, header.record_count)
    reply: dict[str, Any] = {
        "partition": header.partition_id,
        "first_index": first,
        "global_index": global_index,
        "term": header.term,
        "timestamp_ms": header.timestamp_ms,
        "producer": header.producer,
        "epoch": header.epoch,
        "sequence": header.sequence + first - header.first_index,
        "next_index": batch.last_index + 1,
    }
    if header.mixed:
        reply["sequence"] = 0
        reply["origins"] = pack_origins(batch.origins)
        reply["origins_index"] = header.first_index
    if wanted.filter is not None:
        found = wanted.filter.wanted(records)
        if not found.any():
            return None
        if not found.all():
            reply["offsets"] = np.flatnonzero(found).astype("<u4").tobytes()
            records = records.where(found)
    reply |= {"count": records.count, "metadata": len(records.metadata), "data": len(records.data)}
    if records.wide:
        reply["wide"] = True
    if wanted.metadata_only:
        return Ready(Kind.METADATA, reply, [records.metadata])
    return Ready(Kind.RECORDS, reply, [records.metadata, records.data])
