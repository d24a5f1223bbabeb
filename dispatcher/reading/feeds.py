"""What a TAIL or LOG_SCAN asks for, and what every stream of log records has in common: credit, memory, damage."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dispatcher.reading.read_budget import Grant
from dispatcher.reading.read_rates import Pace
from dispatcher.reading.surroundings import Surroundings
from dispatcher.requests.requests import field_of
from logboom.commands import touches
from logboom.errors import (
    CorruptData,
    IncompatibleVersion,
    IndexCompacted,
    InvalidRequest,
    LogboomError,
    Unavailable,
    Voided,
)
from logboom.records import KEY_BYTES_MAX, RecordBlock
from logboom.types import MIB, Level, PartitionId
from logboom.wire import Kind, shown
from partitions.log.holes import Hole
from partitions.log.reading import DamagedBatch

READ_BYTES: Final = 1 * MIB
RECORDS_MAX: Final = 1 << 30
HEADER_NAME_BYTES_MAX: Final = 1024
REPAIR_S: Final = 10.0
"""A stream waits so long for another node's copy of a damaged batch."""
LOOK_AGAIN_S: Final = 0.05
LACKS_S: Final = 0.1
"""Whoever reads what this node alone lacks asks another after so long."""
LEVELS: Final = frozenset((Level.DURABLE, Level.APPLIED))

Send = Callable[[Kind, dict[str, Any], list[Any], int], None]
Ended = Callable[[LogboomError | None], None]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records are wanted."""

    key_prefix: bytes = b""
    header: tuple[str, bytes | None] | None = None

    @classmethod
    def parse(cls, header: Mapping[str, Any]) -> Filter | None:
        """None: all. Raises InvalidRequest."""
        prefix, wanted = header.get("key_prefix"), header.get("header")
        if prefix is None and wanted is None:
            return None
        if prefix is not None and (not isinstance(prefix, bytes) or not 1 <= len(prefix) <= KEY_BYTES_MAX):
            raise InvalidRequest(f"key_prefix must have 1 to {KEY_BYTES_MAX} bytes")
        if wanted is None:
            return cls(prefix or b"")
        if not isinstance(wanted, list) or len(wanted) != 2:
            raise InvalidRequest("header must be a name and a value, or nil for any value")
        name, value = wanted
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= HEADER_NAME_BYTES_MAX:
            raise InvalidRequest(f"the name of a header is a text of 1 to {HEADER_NAME_BYTES_MAX} bytes")
        if value is not None and not isinstance(value, bytes):
            raise InvalidRequest("the value of a header is bytes, or nil for any")
        return cls(prefix or b"", (name, value))

    def wanted(self, records: RecordBlock) -> npt.NDArray[np.bool_]:
        """Record by record."""
        found = np.ones(records.count, np.bool_)
        if self.key_prefix:
            found &= records.keys_begin_with(self.key_prefix) if not records.wide else self._touched(records)
        if self.header is not None:
            found &= records.headers_have(*self.header)
        return found

    def _touched(self, records: RecordBlock) -> npt.NDArray[np.bool_]:
        """Commands over several keys are wanted if any of these begins so."""
        rows = zip(records.keys(), records.payloads(), strict=True)
        return np.fromiter((touches(*row, self.key_prefix) for row in rows), np.bool_, records.count)


@dataclass(frozen=True, slots=True)
class FeedRequest:
    """A TAIL or a LOG_SCAN, checked."""

    credit: int
    start: int = 0
    start_global: int = 0
    start_time_ms: int = 0
    follow: bool = False
    level: Level = Level.DURABLE
    bytes_max: int = READ_BYTES
    records_max: int = RECORDS_MAX
    """Of one frame; a batch is not cut for that."""
    whole: bool = False
    """Whole batches, as they are on the disk, are understood."""
    mixed: bool = False
    """So are batches that several producers share."""
    metadata_only: bool = False
    cold: bool = False
    filter: Filter | None = None

    @classmethod
    def parse(cls, header: Mapping[str, Any]) -> FeedRequest:
        """Raises InvalidRequest."""
        level = header.get("level", str(Level.DURABLE))
        if not isinstance(level, str) or level not in LEVELS:
            raise InvalidRequest(f"level must be durable or applied, not {shown(level)}")
        start = field_of(header, "start", int, 0)
        start_global, start_time = field_of(header, "start_global", int, 0), field_of(header, "start_time_ms", int, 0)
        if sum(map(bool, (start, start_global, start_time))) > 1:
            raise InvalidRequest("give one of start, start_global and start_time_ms")
        return cls(
            credit=field_of(header, "credit", int),
            start=start,
            start_global=start_global,
            start_time_ms=start_time,
            follow=bool(header.get("follow", False)),
            level=Level(level),
            bytes_max=min(field_of(header, "bytes_max", int, 0) or READ_BYTES, READ_BYTES),
            records_max=field_of(header, "records_max", int, 0) or RECORDS_MAX,
            whole=bool(header.get("whole", False)),
            mixed=bool(header.get("mixed", False)),
            metadata_only=bool(header.get("metadata_only", False)),
            cold=bool(header.get("cold", False)),
            filter=Filter.parse(header),
        )


class Feed(ABC):
    """A stream of records to one client.

    One chunk is read ahead of what the client has taken: while one is on the network, the next comes from the disk,
    and waits here for credit. What waits is given back when another reader of the node needs the memory.
    """

    width = 0
    """So many logs it reads, if it is a scan: a tail counts as a stream alone."""

    def __init__(
        self,
        backend: Surroundings,
        wanted: FeedRequest,
        *,
        send: Send,
        congested: Callable[[], bool],
        ended: Ended,
        pace: Pace,
    ) -> None:
        """``pace``: how fast its client may read."""
        self._backend = backend
        self._wanted = wanted
        self._credit = wanted.credit
        self._send = send
        self._congested = congested
        self._ended = ended
        self._pace = pace
        self._grant: Grant | None = None
        self._reading = False
        """A job is queued, or under way: it has what was granted until it is back, whatever becomes of the stream."""
        self._closed = False
        self._damage: DamagedBatch | None = None
        """What stands in the way, or did so last."""
        self._damaged_since = 0.0
        self._later: asyncio.TimerHandle | None = None

    @abstractmethod
    def move(self, error: LogboomError | None = None) -> None:
        """Read and send what can be; ``error``: a partition is gone."""

    def add_credit(self, nbytes: int) -> None:
        """The client has room for more."""
        self._credit += nbytes
        self.move()

    @property
    def _open(self) -> bool:
        """The client takes more, now."""
        return self._credit > 0 and not self._congested()

    @property
    def _may_read(self) -> bool:
        """On, and ahead. If it is only the rate that stands in the way, it is moved when its turn comes."""
        if not (self._open or self._backend.read_budget.is_idle):
            return False
        if self._pace.admits(self, self._in_turn):
            return True
        self._keep(math.inf)  # it is this node that lets it wait, for however long
        return False

    def _in_turn(self) -> None:
        self._keep(self._backend.clock.monotonic())
        self.move()

    @abstractmethod
    def _keep(self, now: float) -> None:
        """Renew its lease as of ``now``: what it reads next is not removed."""

    def close(self) -> None:
        """Idempotent."""
        if not self._closed:
            self._closed = True
            if self._later is not None:
                self._later.cancel()
            self._pace.leave(self)
            if not self._reading:
                self._give_back()
            self._let_go()

    @abstractmethod
    def _let_go(self) -> None:
        """Leases, and who would wake it."""

    def _end(self, error: LogboomError | None) -> None:
        self.close()
        self._ended(error)

    def _failed(self, error: BaseException | None) -> None:
        known = error if isinstance(error, (CorruptData, IncompatibleVersion, IndexCompacted, Voided)) else None
        self._end(known or Unavailable(f"the log could not be read: {error}"))

    def _end_in_front_of(self, partition_id: PartitionId, hole: Hole) -> None:
        """No node has what comes next. If it is void already, others go on behind it."""
        if self._lacks(partition_id, hole.digest, hole.last_index):
            return
        story = f"partition {partition_id}: no node has the batch from {hole.first_index} on"
        self._end(CorruptData(story, first_index=hole.first_index, last_index=hole.last_index))

    def _lacks(self, partition_id: PartitionId, digest: bytes, last_index: int) -> bool:
        """It is void, and only this node cannot go on without what it did: the stream ends, and another is asked."""
        if not self._backend.lacks_void(partition_id, digest):
            return False
        story = f"partition {partition_id}: this node waits for what the batch up to {last_index} did, which is void"
        self._end(Unavailable(f"{story}: ask another", retry_after=LACKS_S))
        return True

    # -- memory

    def _ask(self, *, nbytes: int, segments: int, order: int, admitted: Callable[[], None]) -> None:
        self._grant = None
        grant = self._backend.read_budget.ask(nbytes=nbytes, segments=segments, order=order, admitted=admitted)
        self._grant = grant

    def _give_back(self) -> None:
        grant, self._grant = self._grant, None
        if grant is not None:
            grant.release()

    # -- damage

    def _wait_for_repair(self, partition_id: PartitionId, damage: DamagedBatch) -> bool:
        """Another node's copy will do. False: nobody has one, or it takes too long."""
        if self._lacks(partition_id, damage.digest, damage.last_index):
            return True
        backend, now = self._backend, self._backend.clock.monotonic()
        again = self._damage is not None and self._damage.digest == damage.digest
        if not again:
            self._damage, self._damaged_since = damage, now
        backend.damaged(partition_id, damage)
        if again and (backend.is_lost(damage.digest) or now - self._damaged_since >= REPAIR_S):
            return False
        self._later = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_again)
        return True

    def _look_again(self) -> None:
        self._later = None
        self.move()
