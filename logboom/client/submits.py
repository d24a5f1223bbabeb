"""Submitting: one atomic request at a time, or single commands in lanes; pipelining, retries.

A retry carries the same sequences, so it takes effect once. Whoever wants several partitions
at once gets a frame of his own: one atomic request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Final

from logboom.client import tracing
from logboom.client.cluster import Cluster
from logboom.client.connection import Answered, NodeConnection
from logboom.client.dense import Lines, Turn
from logboom.client.known import PART_BYTES_MAX
from logboom.client.lanes import Lane
from logboom.client.pacing import KEPT_MAX, PATIENCE, Pace, Room
from logboom.client.parts import CLOSED, Budget, Part, Sequences, check_partition, receipts_of, record_bytes
from logboom.errors import (
    DeadlineExceeded,
    IncompatibleVersion,
    InvalidRequest,
    LogboomError,
    Overloaded,
    QuotaExceeded,
    RecordTooLarge,
)
from logboom.records import RecordBlock
from logboom.types import KV_TXN, Level, Receipt, Receipts, Record
from logboom.wire import Kind

PART_OVERHEAD: Final = 4096


class Submitter:
    """All submits of one client."""

    def __init__(
        self, cluster: Cluster, producer_id: bytes, *, in_flight_bytes_max: int, seen: Callable[[int], None]
    ) -> None:
        """``seen`` gets the global index of whatever single commands are answered."""
        self._cluster = cluster
        self.seen = seen
        self._producer_id = producer_id
        self._sequences: dict[int, Sequences] = {}
        self._begin = 0
        """First number for a partition of which nothing is remembered."""
        self._look_at = KEPT_MAX
        self._lanes: dict[tuple[int, Level | None], Lane] = {}
        self.budget = Budget(in_flight_bytes_max)
        self._pace = Pace(in_flight_bytes_max)
        self._lines = Lines()
        self.tasks: dict[asyncio.Task[None], None] = {}
        self.closed = False

    def try_single(
        self, partition_id: int, record: Record, wait: Level | None, deadline: float, admission_wait: float
    ) -> asyncio.Future[Receipt] | None:
        """One command for a checked partition; travels with others of the same turn.

        None: there is no room for it just now, see ``single_in_turn``. Raises InvalidRequest, RecordTooLarge (a key).
        """
        if self.closed:
            raise InvalidRequest(CLOSED)
        size = record_bytes(record)
        if size > PART_BYTES_MAX or not self.budget.try_take(size):
            return None
        return self.lane(partition_id, wait).put(record, size, deadline, admission_wait)

    async def single_in_turn(
        self, partition_id: int, record: Record, *, wait: Level | None, deadline: float, admission_wait: float = 0.0
    ) -> asyncio.Future[Receipt]:
        """What ``try_single`` does, once there is room. Raises RecordTooLarge for what this cluster does not take."""
        size = record_bytes(record)
        await self._check_size(size, deadline)
        await self.budget.take(size, deadline=deadline)
        if self.closed:
            self.budget.give(size)
            raise InvalidRequest(CLOSED)
        return self.lane(partition_id, wait).put(record, size, deadline, admission_wait)

    def lane(self, partition_id: int, wait: Level | None) -> Lane:
        """The lane for single commands to this partition, with this level."""
        kind = partition_id, wait
        found = self._lanes.get(kind)
        if found is None:
            found = self._lanes[kind] = Lane(self, partition_id, wait)
        return found

    async def blocks(
        self,
        blocks: dict[int, RecordBlock],
        *,
        wait: Level | None,
        deadline: float,
        admission_wait: float = 0.0,
        traceparent: str | None = None,
    ) -> Receipts:
        """One atomic request under this client's own sequence numbers."""
        for partition_id in blocks:
            check_partition(partition_id)
        size = sum(block.nbytes for block in blocks.values())
        await self._check_size(size, deadline)
        async with self._room(blocks, size, deadline):
            parts = [Part(p, self.sequences(p).take(block.count), block) for p, block in blocks.items()]
            try:
                return await self.deliver(
                    parts, wait=wait, deadline=deadline, admission_wait=admission_wait, traceparent=traceparent
                )
            finally:
                for part in parts:
                    self.sequences(part.partition_id).settle(part.first_sequence)

    async def numbered(
        self,
        part: Part,
        *,
        wait: Level | None,
        deadline: float,
        producer_id: bytes,
        epoch: int,
        dense: bool,
        line: Hashable = None,
        admission_wait: float = 0.0,
        traceparent: str | None = None,
    ) -> Receipt:
        """One request under the caller's own producer id and sequence."""
        size = part.records.nbytes
        await self._check_size(size, deadline)
        stream = (producer_id, part.partition_id, line)
        with self._lines.turn(stream, part.first_sequence) if dense else nullcontext() as turn:
            async with self._room([part.partition_id], size, deadline, turn):
                receipts = await self.deliver(
                    [part],
                    wait=wait,
                    deadline=deadline,
                    producer_id=producer_id,
                    epoch=epoch,
                    turn=turn,
                    admission_wait=admission_wait,
                    traceparent=traceparent,
                )
        return receipts.parts[0]

    @asynccontextmanager
    async def _room(
        self, partitions: Iterable[int], size: int, deadline: float, turn: Turn | None = None
    ) -> AsyncIterator[None]:
        """Room for a request that has a frame of its own."""
        cluster = self._cluster
        now = cluster.now
        room = Room(self._pace, self.budget, lambda: cluster.now, partitions=partitions, size=size)
        until = now + (deadline - now) * PATIENCE
        try:
            await (room.take(until=until) if turn is None else turn.enter(room, until=until, deadline=deadline))
            yield
        except DeadlineExceeded:
            room.answered(deadline=deadline)
            raise
        except BaseException:
            room.give()
            raise
        else:
            room.answered(deadline=deadline)

    def sequences(self, partition_id: int) -> Sequences:
        """Numbers for one partition."""
        found = self._sequences.get(partition_id)
        if found is None:
            if len(self._sequences) >= self._look_at:
                self._forget_idle()
            found = self._sequences[partition_id] = Sequences(self._begin)
        return found

    def _forget_idle(self) -> None:
        """Partitions come and go. One that is written to again goes on above all numbers that were ever given."""
        busy = {partition for (partition, _), lane in self._lanes.items() if not lane.idle}
        gone = {p for p, numbers in self._sequences.items() if numbers.idle and p not in busy}
        for partition in gone:
            self._begin = max(self._begin, self._sequences.pop(partition).floor)
        for key in [key for key in self._lanes if key[0] in gone]:
            self._lanes.pop(key).close()
        self._look_at = max(KEPT_MAX, 2 * len(self._sequences))

    async def _check_size(self, size: int, deadline: float) -> None:
        """Raises RecordTooLarge for what this cluster does not take; that is asked for if nobody has said it yet."""
        if size > self._cluster.frame_bytes - PART_OVERHEAD:
            await self._cluster.meet(deadline=deadline)
        limit = self._cluster.frame_bytes - PART_OVERHEAD
        if size > limit:
            raise RecordTooLarge(
                f"{size} bytes in one request; this cluster takes {limit}: split it", size=size, limit=limit
            )

    @property
    def part_bytes(self) -> int:
        """How large a coalesced part may become."""
        return min(self._cluster.frame_bytes - PART_OVERHEAD, self._cluster.part_bytes)

    @property
    def part_records(self) -> int:
        """How many records a coalesced part may have."""
        return self._cluster.part_records

    async def deliver(
        self,
        parts: Sequence[Part],
        *,
        wait: Level | None,
        deadline: float,
        producer_id: bytes | None = None,
        epoch: int = 0,
        turn: Turn | None = None,
        admission_wait: float = 0.0,
        failed: LogboomError | None = None,
        leaves: Callable[[], None] = lambda: None,
        wanted: Callable[[], bool] = lambda: True,
        traceparent: str | None = None,
    ) -> Receipts:
        """Send one request until it is answered, with the same sequences every time.

        ``turn``: of a dense producer. ``failed``: what became of an attempt that was made before. ``leaves`` is called
        right before it is sent to the leader, ``wanted`` before it is sent to anybody: if it is not, that is an error;
        unless a node may have it, then it is sent until somebody knows what became of it.
        """
        doubt = failed is not None and failed.outcome != "not_applied"
        body = [section for part in parts for section in (part.records.metadata, part.records.data)]

        async def send(connection: NodeConnection) -> Receipts:
            nonlocal doubt
            if turn is not None:
                await turn.come()
            await connection.writable()
            if not doubt and not wanted():
                raise InvalidRequest("nobody waits for it any more")
            header = {
                **self._header(connection, parts, wait, deadline, admission_wait, own=producer_id is None),
                "forward": self._cluster.must_forward(connection),
                **tracing.header(traceparent),
            }
            if producer_id is not None:
                header |= {"producer": producer_id, "epoch": epoch, "dense": turn is not None}
            if turn is not None:
                turn.sent()
            if self._cluster.leads(connection):
                leaves()
            try:
                reply = await connection.request(Kind.SUBMIT, header, body)
            except LogboomError as error:
                doubt = doubt or error.outcome != "not_applied"
                if isinstance(error, (Overloaded, QuotaExceeded)):
                    self._pace.refused(error, self._cluster.now)
                if turn is not None:
                    turn.failed()
                raise
            if not header["forward"]:
                self._cluster.admitted(connection)
            return Receipts(receipts_of(reply.header))

        return await self._cluster.at_leader(send, deadline=deadline, failed=failed)

    def post(
        self, part: Part, *, wait: Level | None, deadline: float, admission_wait: float, answered: Answered
    ) -> Callable[[], None] | None:
        """See lanes.Carrier: without waiting for anything, or not at all."""
        connection = self._cluster.leader_now()
        if connection is None:
            return None
        header = self._header(connection, [part], wait, deadline, admission_wait, own=True)
        body = (part.records.metadata, part.records.data)
        return partial(connection.forget, connection.post(Kind.SUBMIT, header, body, answered))

    def _header(
        self,
        at: NodeConnection,
        parts: Sequence[Part],
        wait: Level | None,
        deadline: float,
        admission_wait: float,
        *,
        own: bool,
    ) -> dict[str, Any]:
        """The header of a SUBMIT frame to the leader, with this client's ``own`` numbers, or with somebody else's."""
        if wait is None and "ack" not in at.welcome.get("features", ()):
            wait = Level.APPLIED  # a node of an earlier release, whose partitions have no say
        wide = [part.partition_id for part in parts if part.records.wide]
        if wide and KV_TXN not in at.welcome.get("features", ()):
            raise IncompatibleVersion(
                "a node of an earlier release knows no commands over several keys (Txn, DeleteRange): upgrade it",
                found=None,
                supported=KV_TXN,
            )
        return {
            **({"wide": wide} if wide else {}),
            "producer": self._producer_id,
            "epoch": 0,
            "dense": False,
            "wait": None if wait is None else wait.value,
            "timeout_ms": max(1, int((deadline - self._cluster.now) * 1000)),
            "admission_wait_ms": int(admission_wait * 1000),
            "forward": False,
            "parts": [
                [
                    part.partition_id,
                    part.first_sequence,
                    self.sequences(part.partition_id).floor if own else part.floor,
                    part.records.count,
                    len(part.records.metadata),
                    len(part.records.data),
                ]
                for part in parts
            ],
        }

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine that belongs to this client."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks[task] = None
        task.add_done_callback(self.tasks.pop)
        return task

    async def close(self) -> None:
        """Give up on everything that is open: whoever waits gets UnknownOutcome if it was sent."""
        self.closed = True
        self.budget.close()
        for lane in self._lanes.values():
            lane.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
