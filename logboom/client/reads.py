"""Reading: values, ranges, logs, barriers, status."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from logboom.client.cluster import Cluster
from logboom.client.connection import NodeConnection
from logboom.commands import Value, unpack_numbers
from logboom.errors import BarrierTimeout, DeadlineExceeded, InvalidRequest, LogboomError
from logboom.records import RecordBlock
from logboom.types import (
    BarrierResult,
    GlobalLogIndex,
    Level,
    NodeId,
    PartitionId,
    PartitionLogIndex,
    Scope,
    Term,
    Watermark,
)
from logboom.wire import Frame, Kind

TAIL_CREDIT: Final = 4 * 1024 * 1024
MERGE_CREDIT: Final = 32 * 1024 * 1024
"""Over all partitions of one merged scan; each has MERGE_CREDIT_MIN at least."""
MERGE_CREDIT_MIN: Final = 64 * 1024
TAIL_FAILURES_MAX: Final = 20
SMALL_SCAN: Final = 1_000
"""Scans of up to so many keys share the connection; larger ones get one of their own, which may be slowed down."""
BARRIER_GRACE_S: Final = 1.0
"""A node answers at the deadline, with where it stands: the answer needs time to arrive."""


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Committed records of one partition, as the log has them."""

    partition_id: PartitionId
    first_index: PartitionLogIndex
    global_index: GlobalLogIndex
    term: Term
    timestamp_ms: int
    producer_id: bytes
    epoch: int
    sequence: int
    records: RecordBlock

    @property
    def last_index(self) -> PartitionLogIndex:
        """Index of the last record."""
        return PartitionLogIndex(self.first_index + self.records.count - 1)


def decode_value(raw: bytes) -> Value:
    """An encoded value of the wire protocol."""
    return raw[1:] if raw[:1] == b"b" else unpack_numbers(raw)


def block_of(frame: Frame, count: int) -> RecordBlock:
    """The record block in a frame's body."""
    middle = frame.header["metadata"]
    return RecordBlock.parse(count, frame.body[:middle], frame.body[middle : middle + frame.header["data"]])


def watermark_of(row: Sequence[Any]) -> Watermark:
    """A watermark row of the wire protocol."""
    partition, log, durable, applied, snapshot, applied_global, state = row
    return Watermark(
        PartitionId(partition),
        PartitionLogIndex(log),
        PartitionLogIndex(durable),
        PartitionLogIndex(applied),
        PartitionLogIndex(snapshot),
        GlobalLogIndex(applied_global),
        state,
    )


class Reader:
    """All reads of one client. ``last_seen`` is its session token: reads and receipts only raise it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.last_seen = GlobalLogIndex(0)

    def seen(self, global_index: int) -> None:
        """Remember what has been seen."""
        if global_index > self.last_seen:
            self.last_seen = GlobalLogIndex(global_index)

    def _mode(self, *, at_least: int | Literal["session"] | None, stale: bool) -> dict[str, Any]:
        if stale:
            if at_least is not None:
                raise InvalidRequest("a read is stale or at least as new as an index, not both")
            return {"read": "stale", "at_least": 0}
        if at_least is None:
            return {"read": "linearizable", "at_least": 0}
        return {"read": "at_least", "at_least": self.last_seen if at_least == "session" else at_least}

    async def get_many(
        self,
        partition_id: int,
        keys: Sequence[bytes],
        *,
        at_least: int | Literal["session"] | None,
        stale: bool,
        node: str | None,
        deadline: float,
    ) -> list[Value | None]:
        """Values in the order of ``keys``; None where there is none."""
        mode = self._mode(at_least=at_least, stale=stale)

        async def ask(connection: NodeConnection) -> Frame:
            header = {
                "partition": partition_id,
                "keys": list(keys),
                "timeout_ms": self._left_ms(deadline),
                **mode,
            }
            return await connection.request(Kind.GET, header)

        if not keys:
            return []
        frame = await self._cluster.retry(self._where(mode, node), ask, deadline=deadline)
        self.seen(frame.header["global_index"])
        values = block_of(frame, len(keys)).payloads()
        return [decode_value(v) if f else None for f, v in zip(frame.header["found"], values, strict=True)]

    async def scan(
        self,
        partition_id: int,
        *,
        prefix: bytes | None,
        start: bytes | None,
        end: bytes | None,
        limit: int,
        at_least: int | Literal["session"] | None,
        stale: bool,
        node: str | None,
        deadline: float,
    ) -> AsyncIterator[tuple[bytes, Value]]:
        """Keys and values, ascending, from one consistent view. A break in the middle is raised, not hidden."""
        blocks = self.scan_blocks(
            partition_id,
            prefix=prefix,
            start=start,
            end=end,
            limit=limit,
            at_least=at_least,
            stale=stale,
            node=node,
            deadline=deadline,
        )
        async for _, block in blocks:
            for key, raw in zip(block.keys(), block.payloads(), strict=True):
                yield key, decode_value(raw)

    async def scan_blocks(
        self,
        partition_id: int,
        *,
        prefix: bytes | None,
        start: bytes | None,
        end: bytes | None,
        limit: int,
        at_least: int | Literal["session"] | None,
        stale: bool,
        node: str | None,
        deadline: float,
    ) -> AsyncIterator[tuple[GlobalLogIndex, RecordBlock]]:
        """The same in columns: the global index of the view, and keys with encoded values."""
        mode = self._mode(at_least=at_least, stale=stale)
        header = {
            "partition": partition_id,
            "prefix": prefix,
            "start": start,
            "end": end,
            "limit": limit,
            **mode,
        }

        own: list[NodeConnection] = []

        async def begin(shared: NodeConnection) -> tuple[Frame | None, AsyncIterator[Frame]]:
            connection = shared
            if not 0 < limit <= SMALL_SCAN:
                connection = await self._cluster.dedicated(shared.address)
                own.append(connection)
            stream = connection.stream(Kind.SCAN, {**header, "timeout_ms": self._left_ms(deadline)})
            return await anext(stream, None), stream

        patience = deadline - self._cluster.now
        try:
            frame, rest = await self._cluster.retry(self._where(mode, node), begin, deadline=deadline)
            while frame is not None:
                self.seen(frame.header["global_index"])
                if frame.header["count"]:
                    yield GlobalLogIndex(frame.header["global_index"]), block_of(frame, frame.header["count"])
                frame = await self._next(rest, patience)
        finally:
            for connection in own:
                connection.close()

    async def _next(self, frames: AsyncIterator[Frame], patience: float) -> Frame | None:
        try:
            async with asyncio.timeout(patience):
                return await anext(frames, None)
        except TimeoutError:
            raise DeadlineExceeded(f"no more came within {patience:.3g} s", outcome="not_applied") from None

    async def tail(
        self, partition_id: int, *, start: int, follow: bool, node: str | None, credit: int = TAIL_CREDIT
    ) -> AsyncIterator[LogBatch]:
        """Batches from index ``start`` on; goes on at another node (or the same, if named) when one is lost."""
        position, failures = start, 0
        while True:
            try:
                connection = await self._at(node)()
                header = {"partition": partition_id, "start": position, "follow": follow, "credit": credit}
                frames = connection.stream(Kind.TAIL, header, credit=credit)
                try:
                    async for frame in frames:
                        if frame.kind is Kind.END:
                            return
                        batch = _log_batch(frame)
                        failures = 0
                        self.seen(batch.global_index)
                        yield batch
                        position = batch.last_index + 1
                finally:
                    await _close(frames)
                return
            except LogboomError as error:
                failures += 1
                if not error.retryable or failures > TAIL_FAILURES_MAX:
                    raise
                await asyncio.sleep(min(0.02 * 2**failures, 1.0))

    async def scan_log(
        self, partitions: Sequence[int], *, start_global: int, deadline: float
    ) -> AsyncIterator[LogBatch]:
        """Committed batches of many partitions in ``global_log_index`` order.

        Up to the safe horizon: what the answering node had committed when the scan began, so that nothing
        that comes out could still be preceded by something unread. One node answers throughout; another
        might know less. Holds one batch per partition, and MERGE_CREDIT bytes on the way.
        """

        async def marks(connection: NodeConnection) -> tuple[str, int]:
            reply = await connection.request(Kind.WATERMARKS, {"partitions": list(partitions)})
            return connection.address, reply.header["commit_index"]

        node, horizon = await self._cluster.retry(self._cluster.any, marks, deadline=deadline)
        credit = max(MERGE_CREDIT_MIN, MERGE_CREDIT // max(1, len(partitions)))
        tails = [self.tail(p, start=0, follow=False, node=node, credit=credit) for p in partitions]
        heads: list[tuple[int, int, LogBatch]] = []

        async def refill(position: int) -> None:
            async for batch in tails[position]:
                if batch.global_index >= start_global:
                    heapq.heappush(heads, (batch.global_index, position, batch))
                    return

        try:
            for position in range(len(tails)):
                await refill(position)
            while heads and heads[0][0] <= horizon:
                _, position, batch = heapq.heappop(heads)
                yield batch
                await refill(position)
        finally:
            for each in tails:
                await _close(each)

    async def barrier(
        self,
        global_index: int,
        *,
        partitions: Sequence[int] | None,
        scope: Scope,
        level: Level,
        wait_blocked: bool,
        node: str | None,
        deadline: float,
    ) -> BarrierResult:
        """See Client.barrier."""
        if scope in (Scope.QUORUM, Scope.ALL):
            return await self._barrier_everywhere(
                global_index, partitions, scope, level, wait_blocked=wait_blocked, deadline=deadline
            )

        async def ask(connection: NodeConnection) -> BarrierResult:
            header = {
                "global_index": global_index,
                "partitions": list(partitions) if partitions is not None else None,
                "scope": scope.value,
                "level": level.value,
                "wait_blocked": wait_blocked,
                "timeout_ms": self._left_ms(deadline),
            }
            reply = await connection.request(Kind.BARRIER, header)
            self.seen(global_index)
            marks = tuple(watermark_of(row) for row in reply.header["watermarks"])
            return BarrierResult(GlobalLogIndex(global_index), NodeId(reply.header["node"]), marks)

        where = self._cluster.leader if scope is Scope.LEADER and node is None else self._at(node)
        return await self._cluster.retry(where, ask, deadline=deadline, grace=BARRIER_GRACE_S)

    async def _barrier_everywhere(
        self,
        global_index: int,
        partitions: Sequence[int] | None,
        scope: Scope,
        level: Level,
        *,
        wait_blocked: bool,
        deadline: float,
    ) -> BarrierResult:
        members = await self._cluster.retry(self._cluster.any, lambda _: self._cluster.everyone(), deadline=deadline)
        needed = len(members) if scope is Scope.ALL else len(members) // 2 + 1
        tasks = [
            asyncio.ensure_future(
                self.barrier(
                    global_index,
                    partitions=partitions,
                    scope=Scope.NODE,
                    level=level,
                    wait_blocked=wait_blocked,
                    node=address,
                    deadline=deadline,
                )
            )
            for address in members.values()
        ]
        reached: list[BarrierResult] = []
        failed: list[LogboomError] = []
        try:
            for task in asyncio.as_completed(tasks):
                try:
                    reached.append(await task)
                except LogboomError as error:
                    failed.append(error)
                if len(reached) >= needed:
                    # The one that is furthest behind speaks for all of them.
                    return min(reached, key=lambda r: min((m.applied_global_index for m in r.watermarks), default=0))
                if len(failed) > len(members) - needed:
                    break
        finally:
            for pending in tasks:
                pending.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise max(failed, key=lambda error: isinstance(error, BarrierTimeout))

    async def ask_node(self, kind: Kind, header: dict[str, Any], *, node: str | None, deadline: float) -> Frame:
        """A plain request at one node, or any."""

        async def ask(connection: NodeConnection) -> Frame:
            return await connection.request(kind, header)

        return await self._cluster.retry(self._at(node), ask, deadline=deadline)

    def _at(self, node: str | None) -> Callable[[], Awaitable[NodeConnection]]:
        """A node by id or address; None: any."""
        return self._cluster.any if node is None else lambda: self._cluster.at(node)

    def _where(self, mode: dict[str, Any], node: str | None) -> Callable[[], Awaitable[NodeConnection]]:
        if node is not None:
            return self._at(node)
        return self._cluster.leader if mode["read"] == "linearizable" else self._cluster.any

    def _left_ms(self, deadline: float) -> int:
        return max(1, int((deadline - self._cluster.now) * 1000))


async def _close(iterator: AsyncIterator[Any]) -> None:
    """End a generator now, not when it is collected: that frees its stream at the node."""
    closing = getattr(iterator, "aclose", None)
    if closing is not None:
        await closing()


def _log_batch(frame: Frame) -> LogBatch:
    header = frame.header
    return LogBatch(
        PartitionId(header["partition"]),
        PartitionLogIndex(header["first_index"]),
        GlobalLogIndex(header["global_index"]),
        Term(header["term"]),
        header["timestamp_ms"],
        header["producer"],
        header["epoch"],
        header["sequence"],
        block_of(frame, header["count"]),
    )
