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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from logboom.client.cluster import Cluster
from logboom.client.connection import NodeConnection
from logboom.errors import LogboomError, RecordTooLarge
from logboom.records import RecordBlock
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


class Submitter:
    """All submits of one client."""

    def __init__(self, cluster: Cluster, producer_id: bytes) -> None:
        self._cluster = cluster
        self._producer_id = producer_id
        self._sequences: dict[int, Sequences] = {}
        self._lanes: dict[tuple[int, Level], _Lane] = {}
        self.tasks: set[asyncio.Task[Any]] = set()

    def single(
        self, partition_id: int, record: Record, *, wait: Level, deadline: float
    ) -> asyncio.Future[Receipt]:
        """One command; travels with others of the same turn."""
        size = len(record.payload) + len(record.key or b"") + RECORD_OVERHEAD
        self._check_size(size)
        lane = self._lanes.get((partition_id, wait))
        if lane is None:
            lane = self._lanes[partition_id, wait] = _Lane(self, partition_id, wait)
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        lane.put(_Single(record, deadline, answer, size))
        return answer

    async def blocks(
        self, blocks: dict[int, RecordBlock], *, wait: Level, deadline: float
    ) -> Receipts:
        """One atomic request under this client's own sequence numbers."""
        self._check_size(sum(block.nbytes for block in blocks.values()))
        taken = [(p, self.sequences(p).take(block.count), block) for p, block in blocks.items()]
        try:
            parts = [Part(p, first, block) for p, first, block in taken]
            return await self.deliver(parts, wait=wait, deadline=deadline)
        finally:
            for p, first, _ in taken:
                self.sequences(p).settle(first)

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
        return min(self._cluster.frame_bytes - PART_OVERHEAD, 1024 * 1024)

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
                "forward": self._cluster.forward,
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

    def start(self, work: Any) -> None:
        """Run a coroutine that belongs to this client."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        """Give up on everything that is open."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


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
        while self._queue and self._in_flight < IN_FLIGHT_MAX:
            batch, room = [], self._submitter.part_bytes
            while self._queue and len(batch) < PART_RECORDS_MAX and (not batch or self._queue[0].size <= room):
                single = self._queue.popleft()
                if not single.answer.done():
                    room -= single.size
                    batch.append(single)
            if batch:
                self._in_flight += 1
                self._submitter.start(self._send(batch))

    async def _send(self, batch: list[_Single]) -> None:
        sequences = self._submitter.sequences(self._partition_id)
        first = sequences.take(len(batch))
        deadline = max(single.deadline for single in batch)
        try:
            block = RecordBlock.from_records([single.record for single in batch])
            part = Part(self._partition_id, first, block)
            receipts = await self._submitter.deliver([part], wait=self._wait, deadline=deadline)
            _share(batch, receipts.parts[0])
        except LogboomError as error:
            for single in batch:
                if not single.answer.done():
                    single.answer.set_exception(error if len(batch) == 1 else _copy(error))
        except asyncio.CancelledError:
            for single in batch:
                single.answer.cancel()
            raise
        finally:
            sequences.settle(first)
            self._in_flight -= 1
            self._flush()


def _share(batch: list[_Single], whole: Receipt) -> None:
    for position, single in enumerate(batch):
        if single.answer.done():
            continue
        index = PartitionLogIndex(whole.first_index + position)
        results = None if whole.results is None else (whole.results[position],)
        single.answer.set_result(
            Receipt(whole.partition_id, index, index, whole.global_index, int(position < whole.duplicate), results)
        )


def _copy(error: LogboomError) -> LogboomError:
    return type(error)(error.message, outcome=error.outcome, **error.fields)


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


