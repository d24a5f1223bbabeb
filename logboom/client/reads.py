"""Reading: values, ranges, logs, barriers, status."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from logboom.client.cluster import Cluster
from logboom.client.connection import NodeConnection
from logboom.commands import Value, unpack_numbers
from logboom.errors import InvalidRequest, LogboomError
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
        self.last_seen = GlobalLogIndex(max(self.last_seen, global_index))

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
            "timeout_ms": self._left_ms(deadline),
            **mode,
        }

        async def begin(connection: NodeConnection) -> tuple[Frame | None, AsyncIterator[Frame]]:
            stream = connection.stream(Kind.SCAN, header)
            return await anext(stream, None), stream

        frame, rest = await self._cluster.retry(self._where(mode, node), begin, deadline=deadline)
        while frame is not None:
            self.seen(frame.header["global_index"])
            if frame.header["count"]:
                yield GlobalLogIndex(frame.header["global_index"]), block_of(frame, frame.header["count"])
            frame = await anext(rest, None)

    async def tail(
        self, partition_id: int, *, start: int, follow: bool, node: str | None
    ) -> AsyncIterator[LogBatch]:
        """Batches from index ``start`` on; goes on at another node when one is lost."""
        position, failures = max(1, start), 0
        while True:
            try:
                where = self._cluster.connection(node) if node is not None else self._cluster.any()
                header = {"partition": partition_id, "start": position, "follow": follow, "credit": TAIL_CREDIT}
                async for frame in (await where).stream(Kind.TAIL, header, credit=TAIL_CREDIT):
                    if frame.kind is Kind.END:
                        return
                    batch = _log_batch(frame)
                    failures = 0
                    yield batch
                    position = batch.last_index + 1
                return
            except LogboomError as error:
                failures += 1
                if not error.retryable or failures > 20:
                    raise
                await asyncio.sleep(min(0.02 * 2**failures, 1.0))

    async def scan_log(
        self, partitions: Sequence[int], *, start_global: int, deadline: float
    ) -> AsyncIterator[LogBatch]:
        """Committed batches of many partitions in ``global_log_index`` order, up to what is committed now."""
        node = await self._cluster.any()
        marks = await node.request(Kind.WATERMARKS, {"partitions": list(partitions)})
        horizon: int = marks.header["commit_index"]
        streams = [self.tail(p, start=0, follow=False, node=node.address) for p in partitions]
        heads: list[tuple[int, int, LogBatch]] = []

        async def refill(position: int) -> None:
            async for batch in streams[position]:
                if batch.global_index >= start_global:
                    heapq.heappush(heads, (batch.global_index, position, batch))
                    return

        for position in range(len(streams)):
            await refill(position)
        while heads and heads[0][0] <= horizon:
            _, position, batch = heapq.heappop(heads)
            yield batch
            await refill(position)

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

        # The node answers at the deadline with where it stands: give that answer time to arrive.
        patience = deadline + 1.0
        if node is not None:
            return await ask(await self._cluster.connection(node))
        where = self._cluster.leader if scope is Scope.LEADER else self._cluster.any
        return await self._no_timeout_retry(where, ask, patience, deadline)

    async def _no_timeout_retry(self, where: Any, ask: Any, patience: float, deadline: float) -> BarrierResult:
        while True:
            try:
                async with asyncio.timeout_at(patience):
                    result: BarrierResult = await ask(await where())
                    return result
            except LogboomError as error:
                self._cluster.heard(error)
                if not error.retryable or error.code.startswith("barrier") or self._cluster.now >= deadline:
                    raise
                await asyncio.sleep(min(0.05, max(0.0, deadline - self._cluster.now)))
            except TimeoutError:
                raise LogboomError("the node did not answer the barrier in time", outcome="not_applied") from None

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
        await self._cluster.any()
        members = list(self._cluster.members.values())
        needed = len(members) if scope is Scope.ALL else len(members) // 2 + 1

        async def one(address: str) -> BarrierResult:
            return await self._no_timeout_retry(
                lambda: self._cluster.connection(address),
                lambda connection: self.barrier(
                    global_index,
                    partitions=partitions,
                    scope=Scope.NODE,
                    level=level,
                    wait_blocked=wait_blocked,
                    node=connection.address,
                    deadline=deadline,
                ),
                deadline + 1.0,
                deadline,
            )

        tasks = [asyncio.ensure_future(one(address)) for address in members]
        reached: list[BarrierResult] = []
        error: BaseException | None = None
        try:
            for task in asyncio.as_completed(tasks):
                try:
                    reached.append(await task)
                except LogboomError as caught:
                    error = caught
                if len(reached) >= needed:
                    return min(reached, key=lambda r: min((m.applied_global_index for m in r.watermarks), default=0))
        finally:
            for pending in tasks:
                pending.cancel()
        raise error or LogboomError("no node answered the barrier")

    async def ask_node(self, kind: Kind, header: dict[str, Any], *, node: str | None, deadline: float) -> Frame:
        """A plain request at one node, or any."""

        async def ask(connection: NodeConnection) -> Frame:
            return await connection.request(kind, header)

        return await self._cluster.retry(self._at(node), ask, deadline=deadline)

    def _at(self, node: str | None) -> Any:
        return self._cluster.any if node is None else lambda: self._cluster.connection(self._address(node))

    def _address(self, node: str) -> str:
        """Node id or address."""
        return self._cluster.members.get(node, node)

    def _where(self, mode: dict[str, Any], node: str | None) -> Any:
        if node is not None:
            return self._at(node)
        return self._cluster.leader if mode["read"] == "linearizable" else self._cluster.any

    def _left_ms(self, deadline: float) -> int:
        return max(1, int((deadline - self._cluster.now) * 1000))


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
