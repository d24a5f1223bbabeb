"""Submitting: sequence numbers, coalescing, pipelining, retries.

Single commands for one partition that are made in the same turn of the loop travel as one
part of one frame, and while frames are in flight the next ones collect: load makes frames
larger, never a lone command slower. A retry carries the same sequences, so it takes effect
once. Whoever wants several partitions at once gets a frame of his own: one atomic request.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logboom.client.cluster import Cluster
from logboom.client.connection import NodeConnection
from logboom.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LogboomError,
    Outcome,
    RecordTooLarge,
    Unavailable,
    UnknownOutcome,
)
from logboom.records import KEY_BYTES_MAX, RecordBlock
from logboom.types import (
    GlobalLogIndex,
    Level,
    PartitionId,
    PartitionLogIndex,
    Receipt,
    Receipts,
    Record,
    Status,
)
from logboom.wire import Kind

IN_FLIGHT_MAX: Final = 4
PART_RECORDS_MAX: Final = 8192
PART_OVERHEAD: Final = 4096
RECORD_OVERHEAD: Final = 16
EXPIRY_GRACE_S: Final = 0.05
"""The frame that carries a command ends at the same deadline and knows better why."""
PART_BYTES_MAX: Final = 1024 * 1024
"""A coalesced part grows up to this; a single larger command goes alone."""


class Sequences:
    """Numbers of one producer for one partition, and which of them are still open."""

    def __init__(self) -> None:
        self._next = 0
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
    def floor(self) -> int:
        """Nothing below this will ever be sent again."""
        return self._open[0] if self._open else self._next


@dataclass(slots=True)
class Part:
    """One partition's share of a frame."""

    partition_id: int
    first_sequence: int
    records: RecordBlock


@dataclass(slots=True)
class _Single:
    record: Record
    deadline: float
    answer: asyncio.Future[Receipt]
    size: int
    sent: bool = False


class Budget:
    """Bytes given to this client and not yet answered for. First come, first served."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, size: int) -> bool:
        """Take at once if there is room; a request larger than the whole budget goes when it is alone."""
        if self._waiting or (self.used and self.used + size > self.limit):
            return False
        self.used += size
        return True

    async def take(self, size: int, *, deadline: float) -> None:
        """Take, waiting for room. Raises DeadlineExceeded, outcome ``not_applied``."""
        if self.try_take(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.give(size)  # it was granted in the same turn
            else:
                turn.cancel()
                self._grant()
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(
                    f"{self.limit} bytes are in flight and none were answered in time (max_in_flight_bytes)",
                    outcome="not_applied",
                ) from None
            raise

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


class Submitter:
    """All submits of one client."""

    def __init__(self, cluster: Cluster, producer_id: bytes, *, in_flight_bytes_max: int) -> None:
        self._cluster = cluster
        self._producer_id = producer_id
        self._sequences: dict[int, Sequences] = {}
        self._lanes: dict[tuple[int, Level], _Lane] = {}
        self.budget = Budget(in_flight_bytes_max)
        self.tasks: dict[asyncio.Task[None], None] = {}
        self.closed = False

    async def single(self, partition_id: int, record: Record, *, wait: Level, deadline: float) -> Receipt:
        """One command; travels with others of the same turn. Raises before it is sent if it is too large."""
        size = record_bytes(record)
        if size > PART_BYTES_MAX:
            self._check_size(size)
        if not self.budget.try_take(size):
            await self.budget.take(size, deadline=deadline)
        if self.closed:
            self.budget.give(size)
            raise InvalidRequest("this client is closed")
        lane = self._lanes.get((partition_id, wait))
        if lane is None:
            lane = self._lanes[partition_id, wait] = _Lane(self, partition_id, wait)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Receipt] = loop.create_future()
        single = _Single(record, deadline, answer, size)
        lane.put(single)
        expiry = loop.call_at(deadline + EXPIRY_GRACE_S, _expire, single)
        try:
            return await answer
        finally:
            expiry.cancel()

    async def blocks(self, blocks: dict[int, RecordBlock], *, wait: Level, deadline: float) -> Receipts:
        """One atomic request under this client's own sequence numbers."""
        size = sum(block.nbytes for block in blocks.values())
        self._check_size(size)
        await self.budget.take(size, deadline=deadline)
        taken = [(p, self.sequences(p).take(block.count), block) for p, block in blocks.items()]
        try:
            parts = [Part(p, first, block) for p, first, block in taken]
            return await self.deliver(parts, wait=wait, deadline=deadline)
        finally:
            self.budget.give(size)
            for p, first, _ in taken:
                self.sequences(p).settle(first)

    async def numbered(
        self, part: Part, *, wait: Level, deadline: float, producer_id: bytes, epoch: int, dense: bool
    ) -> Receipt:
        """One request under the caller's own producer id and sequence."""
        size = part.records.nbytes
        self._check_size(size)
        await self.budget.take(size, deadline=deadline)
        try:
            receipts = await self.deliver(
                [part], wait=wait, deadline=deadline, producer_id=producer_id, epoch=epoch, dense=dense
            )
        finally:
            self.budget.give(size)
        return receipts.parts[0]

    def sequences(self, partition_id: int) -> Sequences:
        """Numbers for one partition."""
        found = self._sequences.get(partition_id)
        if found is None:
            found = self._sequences[partition_id] = Sequences()
        return found

    def _check_size(self, size: int) -> None:
        limit = self._cluster.frame_bytes - PART_OVERHEAD
        if size > limit:
            raise RecordTooLarge(
                f"{size} bytes in one request; this cluster takes {limit}: split it", size=size, limit=limit
            )

    @property
    def part_bytes(self) -> int:
        """How large a coalesced part may become."""
        return min(self._cluster.frame_bytes - PART_OVERHEAD, PART_BYTES_MAX)

    async def deliver(
        self,
        parts: Sequence[Part],
        *,
        wait: Level,
        deadline: float,
        producer_id: bytes | None = None,
        epoch: int = 0,
        dense: bool = False,
    ) -> Receipts:
        """Send one request until it is answered, with the same sequences every time."""
        own = producer_id is None
        body = [section for part in parts for section in (part.records.metadata, part.records.data)]

        async def send(connection: NodeConnection) -> Receipts:
            await connection.writable()
            header = {
                "producer": self._producer_id if own else producer_id,
                "epoch": epoch,
                "dense": dense,
                "wait": wait.value,
                "timeout_ms": max(1, int((deadline - self._cluster.now) * 1000)),
                "forward": self._cluster.must_forward(connection),
                "parts": [
                    [
                        part.partition_id,
                        part.first_sequence,
                        self.sequences(part.partition_id).floor if own else 0,
                        part.records.count,
                        len(part.records.metadata),
                        len(part.records.data),
                    ]
                    for part in parts
                ],
            }
            reply = await connection.request(Kind.SUBMIT, header, body)
            return Receipts(tuple(_receipt(row) for row in reply.header["parts"]))

        return await self._cluster.at_leader(send, deadline=deadline)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that belongs to this client."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks[task] = None
        task.add_done_callback(self.tasks.pop)

    async def close(self) -> None:
        """Give up on everything that is open: whoever waits gets UnknownOutcome if it was sent."""
        self.closed = True
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for lane in self._lanes.values():
            lane.close()


class _Lane:
    """Single commands for one partition and level."""

    def __init__(self, submitter: Submitter, partition_id: int, wait: Level) -> None:
        self._submitter = submitter
        self._partition_id = partition_id
        self._wait = wait
        self._queue: deque[_Single] = deque()
        self._in_flight = 0
        self._scheduled = False

    def put(self, single: _Single) -> None:
        self._queue.append(single)
        if not self._scheduled and self._in_flight < IN_FLIGHT_MAX:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        while not self._submitter.closed and self._queue and self._in_flight < IN_FLIGHT_MAX:
            batch = self._batch()
            if batch:
                self._in_flight += 1
                self._submitter.start(self._send(batch))

    def _batch(self) -> list[_Single]:
        """The next part: whoever has not given up while waiting."""
        batch: list[_Single] = []
        queue, room = self._queue, self._submitter.part_bytes
        while queue and len(batch) < PART_RECORDS_MAX and (not batch or queue[0].size <= room):
            single = queue.popleft()
            if single.answer.done():
                self._submitter.budget.give(single.size)
            else:
                room -= single.size
                single.sent = True
                batch.append(single)
        return batch

    async def _send(self, batch: list[_Single]) -> None:
        submitter = self._submitter
        sequences = submitter.sequences(self._partition_id)
        first = sequences.take(len(batch))
        try:
            block = RecordBlock.from_records([single.record for single in batch])
            part = Part(self._partition_id, first, block)
            deadline = max(single.deadline for single in batch)
            receipts = await submitter.deliver([part], wait=self._wait, deadline=deadline)
            _share(batch, receipts.parts[0])
        except LogboomError as error:
            _fail(batch, error)
        except asyncio.CancelledError:
            _fail(batch, UnknownOutcome("the client was closed before an answer came"))
            raise
        except Exception as error:
            _fail(batch, UnknownOutcome(f"the client failed: {error!r}"))
            raise  # nobody expected this one: let the loop report it
        finally:
            sequences.settle(first)
            submitter.budget.give(sum(single.size for single in batch))
            self._in_flight -= 1
            self._flush()

    def close(self) -> None:
        """What was never sent has not happened."""
        _fail(list(self._queue), Unavailable("the client was closed"))
        self._queue.clear()


def _fail(batch: Sequence[_Single], error: LogboomError) -> None:
    """To each an error of its own: one object raised in many tasks would gather all their tracebacks."""
    for single in batch:
        if not single.answer.done():
            single.answer.set_exception(type(error)(error.message, outcome=error.outcome, **error.fields))


def _expire(single: _Single) -> None:
    if not single.answer.done():
        outcome: Outcome = "unknown" if single.sent else "not_applied"
        single.answer.set_exception(DeadlineExceeded("no answer came before the deadline", outcome=outcome))


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
    if headers:
        if not all(isinstance(name, str) and isinstance(value, bytes) for name, value in headers):
            raise InvalidRequest("a record's headers are pairs of text and bytes")
        size += sum(len(name.encode()) + len(value) + RECORD_OVERHEAD for name, value in headers)
    return size


def _share(batch: list[_Single], whole: Receipt) -> None:
    for position, single in enumerate(batch):
        if single.answer.done():
            continue
        index = PartitionLogIndex(whole.first_index + position)
        results = None if whole.results is None else (whole.results[position],)
        single.answer.set_result(
            Receipt(whole.partition_id, index, index, whole.global_index, int(position < whole.duplicate), results)
        )


def _receipt(row: Sequence[Any]) -> Receipt:
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
    )
