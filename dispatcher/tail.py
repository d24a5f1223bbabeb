"""Tail: a client follows one partition's log. Committed and durable batches only, in order, within its credit.

A damaged batch holds it up until another node's copy is here. What it has not read yet is not removed, as long as
it takes something now and then (``log.reader_lease_ms``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from logboom.errors import CorruptData, IndexCompacted, LogboomError, Unavailable
from logboom.types import MIB, PartitionId
from logboom.wire import FLAG_MORE, Kind
from partitions.reading import CommittedBatch, DamagedBatch

READ_BYTES: Final = 1 * MIB
BATCHES_MAX: Final = 1 << 30
REPAIR_S: Final = 10.0
"""A stream waits so long for another node's copy of a damaged batch."""
LOOK_AGAIN_S: Final = 0.05
Send = Callable[[Kind, dict[str, Any], list[Any], int], None]


class Tail:
    """One stream. Reads at most one chunk ahead, off the loop; woken when the log grows.

    ``start`` 0: from the first index that is still there. Any other that was removed ends it with IndexCompacted.
    """

    def __init__(
        self,
        backend: Any,
        partition_id: PartitionId,
        *,
        start: int,
        follow: bool,
        credit: int,
        send: Send,
        congested: Callable[[], bool],
        ended: Callable[[LogboomError | None], None],
    ) -> None:
        self._backend = backend
        self._log = backend.log(partition_id)
        self._anywhere = start == 0
        """Nothing was sent yet, and it may begin where the log does."""
        self._next = max(1, start)
        if self._anywhere:
            self._next = self._log.first_available_index
        self._follow = follow
        self._credit = credit
        self._send = send
        self._congested = congested
        self._ended = ended
        self._reading = False
        self._closed = False
        self._damage: DamagedBatch | None = None
        """What stands in the way, or did so a batch ago."""
        self._damaged_since = 0.0
        self._alone = False
        """The last read was of one batch."""
        self._later: asyncio.TimerHandle | None = None
        self._lease = self._log.lease(self._next, now=backend.clock.monotonic())
        self._unsubscribe = backend.subscribe_commits(partition_id, self.move)

    def add_credit(self, nbytes: int) -> None:
        """The client has room for more."""
        self._credit += nbytes
        self.move()

    def close(self) -> None:
        """Idempotent."""
        if not self._closed:
            self._closed = True
            if self._later is not None:
                self._later.cancel()
            self._unsubscribe()
            self._lease.release()

    def move(self, error: LogboomError | None = None) -> None:
        """Read and send if there is anything, the client has room, and the connection is not full.

        ``error``: the partition is gone.
        """
        if error is not None and not self._closed:
            self.close()
            self._ended(error)
        if self._closed or self._reading or self._later or self._credit <= 0 or self._congested():
            return
        end = self._log.durable_index
        if self._next > end:
            if not self._follow:
                self._send(Kind.END, {"next_index": self._next}, [], 0)
                self.close()
                self._ended(None)
            return
        self._reading = True
        after, most = self._next - 1, min(READ_BYTES, self._credit)
        self._alone = self._damage is not None
        batches = 1 if self._alone else BATCHES_MAX

        def read() -> Sequence[CommittedBatch]:
            found: Sequence[CommittedBatch] = self._log.read_committed(
                after_index=after, through_index=end, max_bytes=most, max_batches=batches
            )
            return found

        self._backend.offload.submit(read, self._read)

    def _read(self, batches: Sequence[CommittedBatch] | None, error: BaseException | None) -> None:
        self._reading = False
        if self._closed:
            return
        if isinstance(error, IndexCompacted) and self._anywhere:
            self._next = self._log.first_available_index
            self._lease.move(self._next, now=self._backend.clock.monotonic())
            self.move()
            return
        if isinstance(error, DamagedBatch) and self._wait_for_repair(error):
            return
        if batches is None:
            self.close()
            known = error if isinstance(error, (CorruptData, IndexCompacted)) else None
            self._ended(known or Unavailable(f"the log could not be read: {error}"))
            return
        for batch in batches:
            self._send_batch(batch)
        if batches:
            if self._damage is not None and self._next > self._damage.last_index:
                self._damage = None
            self._anywhere = False
            self._lease.move(self._next, now=self._backend.clock.monotonic())
        self.move()

    def _wait_for_repair(self, damage: DamagedBatch) -> bool:
        """Another node's copy will do. False: nobody has one, or it takes too long."""
        backend, now = self._backend, self._backend.clock.monotonic()
        if self._damage is None or self._damage.digest != damage.digest:
            self._damage, self._damaged_since = damage, now
        backend.damaged(self._log.partition_id, damage)
        if self._alone and (backend.is_lost(damage.digest) or now - self._damaged_since >= REPAIR_S):
            return False
        # What is whole in front of it is read, one by one, at once.
        wait = LOOK_AGAIN_S if self._alone else 0
        self._later = asyncio.get_running_loop().call_later(wait, self._look_again)
        return True

    def _look_again(self) -> None:
        self._later = None
        self.move()

    def _send_batch(self, batch: CommittedBatch) -> None:
        header, records = batch.header, batch.records
        if records is None:
            return
        first = header.first_index
        if self._next > first:  # begins within this batch
            records = records.take(self._next - first, header.record_count)
        reply = {
            "partition": header.partition_id,
            "first_index": max(first, self._next),
            "count": records.count,
            "global_index": batch.global_index,
            "term": header.term,
            "timestamp_ms": header.timestamp_ms,
            "producer": header.producer,
            "epoch": header.epoch,
            "sequence": header.sequence + max(first, self._next) - first,
            "metadata": len(records.metadata),
            "data": len(records.data),
        }
        self._next = header.last_index + 1
        self._credit -= records.nbytes
        self._send(Kind.RECORDS, reply, [records.metadata, records.data], FLAG_MORE)
