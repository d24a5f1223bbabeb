"""What a submit is made of: sequence numbers, parts, the client's budget, receipts."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logboom.commands import Command, to_record
from logboom.errors import DeadlineExceeded, InvalidRequest, LogboomError, RecordTooLarge
from logboom.records import KEY_BYTES_MAX, RecordBlock
from logboom.types import (
    NO_PRODUCER,
    NUMBER_MAX,
    PRODUCER_ID_BYTES,
    GlobalLogIndex,
    PartitionId,
    PartitionLogIndex,
    Receipt,
    Record,
    Status,
)

CLOSED: Final = "this client is closed"
RECORD_OVERHEAD: Final = 16
PARTITION_ID_MAX: Final = (1 << 32) - 1


class Sequences:
    """Numbers of one producer for one partition, and which of them are still open."""

    def __init__(self, begin: int = 0) -> None:
        self._next = begin
        self._open: list[int] = []
        self._settled: set[int] = set()

    def take(self, count: int) -> int:
        """The first of ``count`` new numbers."""
        first = self._next
        self._next += count
        heapq.heappush(self._open, first)
        return first

    def settle(self, first: int) -> None:
        """What was taken as ``first`` has its outcome; it will not be sent again."""
        self._settled.add(first)
        while self._open and self._open[0] in self._settled:
            self._settled.discard(heapq.heappop(self._open))

    @property
    def idle(self) -> bool:
        """None is open."""
        return not self._open

    @property
    def floor(self) -> int:
        """Nothing below this will ever be sent again."""
        return self._open[0] if self._open else self._next


@dataclass(slots=True)
class Part:
    """One partition's share of a frame."""

    partition_id: int
    first_sequence: int
    records: RecordBlock
    floor: int = 0
    """Of somebody's own numbers: nothing below will be sent again. This client's have theirs in ``Sequences``."""


class Budget:
    """Bytes given to this client and not yet answered for. First come, first served."""

    def __init__(self, limit: float, in_vain: Callable[[], LogboomError] | None = None) -> None:
        """``in_vain``: the error of whoever has waited for room to the end; without it, DeadlineExceeded."""
        self.limit = limit
        self.used = 0
        self._in_vain = in_vain or self.too_late
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._closed = False

    def try_take(self, size: int) -> bool:
        """Take at once if there is room; a request larger than the whole budget goes when it is alone."""
        if self._waiting or (self.used and self.used + size > self.limit):
            return False
        self.used += size
        return True

    async def take(self, size: int, *, deadline: float) -> None:
        """Take, waiting for room. Raises InvalidRequest (closed), DeadlineExceeded or what ``in_vain`` makes."""
        if self._closed:
            raise InvalidRequest(CLOSED)
        if self.try_take(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give(size)  # it was granted in the same turn
            else:
                turn.cancel()
                self._grant()
            if isinstance(error, TimeoutError):
                raise self._in_vain() from None
            raise

    def too_late(self) -> LogboomError:
        """Nothing was given back in time."""
        story = f"{self.limit} bytes are in flight and none were answered in time (max_in_flight_bytes)"
        return DeadlineExceeded(story, outcome="not_applied")

    @property
    def idle(self) -> bool:
        """Nothing is taken, and nobody waits."""
        return not self.used and not self._waiting

    def close(self) -> None:
        """Whoever waits is told so: what is queued behind has no end of its own."""
        self._closed = True
        for _, turn in self._waiting:
            if not turn.done():
                turn.set_exception(InvalidRequest(CLOSED))

    def give(self, size: int) -> None:
        """Give back."""
        self.used -= size
        if self._waiting:
            self._grant()

    def _grant(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                if self.used and self.used + size > self.limit:
                    return
                self.used += size
                turn.set_result(None)
            self._waiting.popleft()


def check_partition(partition_id: Any) -> None:
    """Raises InvalidRequest for what cannot be a partition's id; which there are the nodes know."""
    if type(partition_id) is not int or not 0 <= partition_id <= PARTITION_ID_MAX:
        raise InvalidRequest(f"a partition's id is an int from 0 to {PARTITION_ID_MAX}, not {partition_id!r}")


def partition_ids(given: Any) -> list[int]:
    """Ids of partitions as a list. Raises InvalidRequest for what is none of them."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidRequest(f"partitions are a list of ids, not {given!r}")
    found = list(given)
    for each in found:
        check_partition(each)
    return found


def checked_producer(given: Any) -> bytes:
    """Raises InvalidRequest for what is no producer's id."""
    if not isinstance(given, bytes) or len(given) != PRODUCER_ID_BYTES:
        raise InvalidRequest(f"producer_id must be {PRODUCER_ID_BYTES} bytes, not {given!r}")
    if given == NO_PRODUCER:
        raise InvalidRequest("a producer_id of zeros is nobody's: what is sent twice would take effect twice")
    return given


def check_sequence(given: Any) -> None:
    """Raises InvalidRequest for what is no number of a record."""
    if type(given) is not int or not 0 <= given <= NUMBER_MAX:
        raise InvalidRequest(f"a sequence is an int from 0 on, the number of the first command, not {given!r}")


def check_floor(given: Any, sequence: int) -> None:
    """Raises InvalidRequest for what does not say where numbers are settled, or settles what comes with it."""
    if type(given) is not int or given < 0:
        raise InvalidRequest(f"a floor is an int from 0 on, below which nothing will be sent again, not {given!r}")
    if given > sequence:
        raise InvalidRequest(f"the floor {given} is above the sequence {sequence}: that would take no effect")


def checked(command: Command | Record) -> Record:
    """A command as a record that a block can hold. Raises InvalidRequest and RecordTooLarge."""
    record = to_record(command)
    record_bytes(record)
    return record


def record_bytes(record: Record) -> int:
    """An upper bound of what a record takes in a block. Raises InvalidRequest and RecordTooLarge (its key)."""
    payload: Any = record.payload
    key: Any = record.key or b""
    headers: Any = record.headers
    if type(payload) is not bytes or type(key) is not bytes:
        raise InvalidRequest("a record's payload and key are bytes")
    if len(key) > KEY_BYTES_MAX:
        raise RecordTooLarge(f"a key of {len(key)} bytes; at most {KEY_BYTES_MAX}", size=len(key), limit=KEY_BYTES_MAX)
    size = len(payload) + len(key) + RECORD_OVERHEAD
    return size + _headers_bytes(headers) if headers else size


def _headers_bytes(headers: Any) -> int:
    if not isinstance(headers, tuple | list | Collection):  # an iterator is used up by whoever looks at it
        raise InvalidRequest(f"a record's headers are pairs of text and bytes, in a list or tuple, not {headers!r:.80}")
    try:
        if all(isinstance(name, str) and isinstance(value, bytes) for name, value in headers):
            return sum(len(name.encode()) + len(value) + RECORD_OVERHEAD for name, value in headers)
    except (TypeError, ValueError):  # no pairs; or text that is none
        pass
    raise InvalidRequest("a record's headers are pairs of text and bytes")


def receipts_of(header: Mapping[str, Any]) -> tuple[Receipt, ...]:
    """Receipts of a reply's parts."""
    held = dict(header.get("held", ()))
    return tuple(receipt_of(row, held.get(row[0], "")) for row in header["parts"])


def receipt_of(row: Sequence[Any], held: str = "") -> Receipt:
    """The receipt of one part's row in a reply."""
    partition, first, last, global_index, duplicate, raw = row
    results = None
    if raw is not None:
        count = last - first + 1
        results = tuple(map(Status, raw)) if len(raw) != 1 else (Status(raw[0]),) * count
    return Receipt(
        PartitionId(partition),
        PartitionLogIndex(first),
        PartitionLogIndex(last),
        GlobalLogIndex(global_index),
        duplicate,
        results,
        held,
    )
