"""Following the log: one partition, or many in global order; data by descriptor."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from logboom.client.cluster import Cluster
from logboom.client.connection import NodeConnection
from logboom.client.log_batches import Descriptor, LogBatch, LogMetadata, batches_of, metadata_of, voids_of
from logboom.errors import (
    CorruptData,
    IncompatibleVersion,
    IndexCompacted,
    InvalidRequest,
    LogboomError,
    NoSuchPartition,
    ProtocolError,
    Voided,
)
from logboom.types import MIB
from logboom.wire import Frame, Kind

TAIL_CREDIT: Final = 4 * MIB
SCAN_CREDIT: Final = 16 * MIB
PAUSE_MIN_S: Final = 0.02
PAUSE_MAX_S: Final = 1.0
"""Longest pause before a stream is begun again, about; longer where a node asks for it."""
DOUBLINGS_MAX: Final = 10
STOOD_S: Final = 10.0
"""A stream that has stood for so long was answered, though nothing came: a silent node is given up sooner."""
FETCH_ROWS: Final = 1_000
"""Records that are asked for in one request."""
FETCH_RANGES: Final = 8_192
"""Parts of records that are asked for in one request: they are all in its header."""
FETCH_BYTES: Final = 8 * MIB
"""Bytes of payload that are asked for in one request, about."""
RANGES_MAX: Final = 64
"""Parts of one record."""

OnCompacted = Literal["error", "first"]
OnVoid = Callable[[Voided], None]
OnNode = Callable[[str], None]
Select = Callable[[Descriptor], Sequence[tuple[int, int]]]
"""Which (offset, length) of a record's payload are wanted."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where in a log to begin: at most one of these is given."""

    index: int = 0
    global_index: int = 0
    time_ms: int = 0

    @classmethod
    def of(cls, index: int, global_index: int, time: int | datetime | None) -> Start:
        """Raises InvalidRequest."""
        if isinstance(time, datetime) and time.tzinfo is not None:
            time_ms = int(time.timestamp() * 1000)
        elif time is None or type(time) is int:
            time_ms = time or 0
        else:
            raise InvalidRequest(f"start_time is milliseconds since 1970, or a datetime with a time zone, not {time!r}")
        if sum(map(bool, (index, global_index, time_ms))) > 1:
            raise InvalidRequest("give one of start, start_global and start_time")
        return cls(index, global_index, time_ms)

    def fields(self) -> dict[str, int]:
        """The fields of a request that say it."""
        named = {"start": self.index, "start_global": self.global_index, "start_time_ms": self.time_ms}
        return {name: value for name, value in named.items() if value or name == "start"}


class _Failures:
    """In a row, of one stream, and since when: it is begun again until ``patience`` seconds have passed without any."""

    def __init__(self, cluster: Cluster, patience: float) -> None:
        self._cluster, self._patience = cluster, patience
        self._count = 0
        self._since = cluster.begin()
        self._begun = math.inf

    def begun(self) -> None:
        """A stream was asked for."""
        self._begun = self._cluster.now

    def none(self) -> None:
        """Something came."""
        self._count = 0

    async def another(self, error: LogboomError) -> None:
        """Wait a little; or raise it."""
        if self._cluster.now - self._begun >= STOOD_S:
            self._count = 0
        self._begun = math.inf
        if isinstance(error, NoSuchPartition):
            until = self._cluster.now + self._patience
            error, _ = await self._cluster.check_missing(error, there=None, deadline=until)
        if not self._count:
            self._since = self._cluster.now
        self._count += 1
        pause = min(PAUSE_MIN_S * 2 ** min(self._count, DOUBLINGS_MAX), PAUSE_MAX_S)
        pause = max(pause, float(error.fields.get("retry_after") or 0.0)) * (0.5 + self._cluster.chance())
        late = self._cluster.now + pause > self._since + self._patience
        if not error.retryable or late:
            raise error
        await asyncio.sleep(pause)


class _Nodes:
    """Which node is asked. Each removes records for itself: what one has removed, another may have."""

    def __init__(self, cluster: Cluster, connect: Callable[[], Awaitable[NodeConnection]], *, named: bool) -> None:
        self._cluster, self._connect, self._named = cluster, connect, named
        self._refusals: dict[str, IndexCompacted] = {}
        self._chosen: NodeConnection | None = None

    async def connection(self) -> NodeConnection:
        """The one to ask now."""
        chosen, self._chosen = self._chosen, None
        return await self._connect() if chosen is None or chosen.closed else chosen

    def answered(self) -> None:
        """Something came."""
        self._refusals.clear()

    def ended(self) -> None:
        """A log ends where it was to begin. Raises IndexCompacted: it has nothing of what another has removed."""
        for error in self._refusals.values():
            raise error

    async def refused(self, address: str, error: IndexCompacted) -> IndexCompacted | None:
        """None: another node is to be asked. Else what all that can be reached have removed."""
        if self._named:
            return error
        self._refusals[address] = error
        for other in self._cluster.addresses():
            if other not in self._refusals:
                try:
                    self._chosen = await self._cluster.connection(other)
                except LogboomError:  # it cannot be reached, refuses us, or is of another history
                    if self._cluster.closed:
                        raise
                    continue
                return None
        refusals, self._refusals = self._refusals, {}
        holder, least = min(refusals.items(), key=lambda each: each[1].first)
        with suppress(LogboomError):  # else any other will do
            self._chosen = await self._cluster.connection(holder)
        return least


class _Gaps:
    """What a scan has stepped over: ``on_void`` is told of each in its place among the batches."""

    def __init__(self, on_void: OnVoid | None) -> None:
        self._on_void = on_void
        self._next: list[Voided] = []
        self.raised: BaseException | None = None
        """By ``on_void``."""

    def announced(self, frame: Frame) -> None:
        """A frame has announced gaps in front of its last batch."""
        self._next = voids_of(frame) if self._on_void is not None else []

    def tell(self, before_global: int | None = None) -> None:
        """Tell of the gaps in front of a global index; None: of all. Raises what ``on_void`` raises."""
        while self._on_void is not None and self._next:
            if before_global is not None and self._next[0].global_index > before_global:
                return
            try:
                self._on_void(self._next.pop(0))
            except BaseException as error:
                self.raised = error
                raise


class LogStreams:
    """A part of ``Reader``."""

    _cluster: Cluster
    seen: Callable[[int], None]
    at: Callable[[str | None], Callable[[], Awaitable[NodeConnection]]]
    _left_ms: Callable[[float], int]

    async def tail(
        self,
        partition_id: int,
        *,
        start: Start,
        node: str | None,
        fields: dict[str, Any],
        on_compacted: OnCompacted,
        on_void: OnVoid | None = None,
        patience: float,
        credit: int = TAIL_CREDIT,
        on_node: OnNode | None = None,
    ) -> AsyncGenerator[LogBatch, None]:
        """Batches from ``start`` on; goes on at another node (or the same, if named) when one is lost.

        Also behind what was declared void: ``on_void`` is told of it, and ``on_node`` of each node that is asked.
        """
        records_max, bytes_max = fields.get("records_max", 0), fields.get("bytes_max", 0)
        feed = self._feed(
            partition_id,
            start,
            node=node,
            fields={"whole": True, "mixed": True, **fields},
            on_compacted=on_compacted,
            on_void=on_void,
            on_node=on_node,
            patience=patience,
            credit=credit,
            decode=batches_of,
        )
        try:
            async for batch in feed:
                self.seen(batch.global_index)
                if not records_max and not bytes_max:
                    yield batch
                    continue
                for piece in batch.pieces(records_max, bytes_max):
                    yield piece
        finally:
            await close(feed)

    async def tail_metadata(
        self,
        partition_id: int,
        *,
        start: Start,
        node: str | None,
        fields: dict[str, Any],
        on_compacted: OnCompacted,
        on_void: OnVoid | None = None,
        patience: float,
    ) -> AsyncGenerator[LogMetadata, None]:
        """What ``tail`` gives, without the data."""
        feed = self._feed(
            partition_id,
            start,
            node=node,
            fields={**fields, "metadata_only": True},
            on_compacted=on_compacted,
            on_void=on_void,
            patience=patience,
            credit=TAIL_CREDIT,
            decode=_metadata,
        )
        try:
            async for batch in feed:
                self.seen(batch.global_index)
                yield batch
        finally:
            await close(feed)

    async def _feed(
        self,
        partition_id: int,
        start: Start,
        *,
        node: str | None,
        fields: dict[str, Any],
        on_compacted: OnCompacted,
        on_void: OnVoid | None,
        on_node: OnNode | None = None,
        patience: float,
        credit: int,
        decode: Callable[[Frame], Any],
    ) -> AsyncGenerator[Any, None]:
        failures = _Failures(self._cluster, patience)
        nodes = _Nodes(self._cluster, self.at(node), named=node is not None)
        while True:
            try:
                connection = await nodes.connection()
                if on_node is not None:
                    on_node(connection.address)
                header = {"partition": partition_id, "credit": credit, **start.fields(), **fields}
                frames = connection.stream(Kind.TAIL, header, credit=credit, roams=node is None)
                failures.begun()
                try:
                    async for frame in frames:
                        failures.none()
                        if frame.kind is Kind.END:
                            nodes.ended()
                            return
                        nodes.answered()
                        if frame.kind is Kind.SKIPPED:
                            start = Start(frame.header["next_index"])
                            continue
                        for each in decode(frame):
                            yield each
                            start = Start(each.position)
                finally:
                    await close(frames)
                return
            except Voided as gap:
                start = Start(max(start.index + 1, gap.fields.get("next", 0)))
                failures.none()
                if on_void is not None:
                    on_void(gap)
            except IndexCompacted as error:
                gone = await nodes.refused(connection.address, error)
                if gone is None:
                    continue
                if on_compacted == "error" or start.index == gone.first:
                    raise gone from None
                start = Start(gone.first)
            except LogboomError as error:
                await failures.another(error)

    async def scan_log(
        self,
        partitions: Sequence[int],
        *,
        start: Start,
        node: str | None,
        fields: dict[str, Any],
        on_compacted: OnCompacted,
        on_void: OnVoid | None = None,
        patience: float,
        credit: int = SCAN_CREDIT,
    ) -> AsyncGenerator[LogBatch, None]:
        """Batches of many partitions in ``global_log_index`` order, up to the safe horizon.

        Goes on at another node when one is lost, to the same horizon. Raises CorruptData when other batches arrive
        than are announced. ``on_void`` is told of what was declared void, in its place; what it raises ends the scan.
        """
        header = {"partitions": list(partitions), "credit": credit, "mixed": True, **fields}
        through, failures, gaps = 0, _Failures(self._cluster, patience), _Gaps(on_void)
        nodes = _Nodes(self._cluster, self.at(node), named=node is not None)
        while True:
            try:
                connection = await nodes.connection()
                if "log_scan" not in connection.welcome.get("features", ()):
                    why = f"{connection.address} is of an older release and cannot scan the log"
                    raise IncompatibleVersion(why, found=None, supported="log_scan")
                asked = {**header, **start.fields(), "through_global": through}
                frames = connection.stream(Kind.LOG_SCAN, asked, credit=credit, roams=node is None)
                failures.begun()
                count, last = 0, 0
                try:
                    async for frame in frames:
                        failures.none()
                        nodes.answered()
                        gaps.announced(frame)
                        if frame.kind is Kind.END:
                            gaps.tell()
                            _expect(frame.header["batches"], count)
                            return
                        if frame.header["after"] != last:
                            raise CorruptData(f"what follows global index {frame.header['after']} came after {last}")
                        through = frame.header["through"]
                        for batch in batches_of(frame):
                            if batch.global_index <= last:
                                raise CorruptData(f"global index {batch.global_index} came after {last}")
                            gaps.tell(before_global=batch.global_index)
                            last, count = batch.global_index, count + 1
                            self.seen(last)
                            if last >= start.global_index:  # of an older release, which is behind, also what was given
                                yield batch
                                start = Start(global_index=last + 1)
                        _expect(frame.header["batches"], count)
                finally:
                    await close(frames)
                raise ProtocolError("LOG_SCAN ended without END")
            except IndexCompacted as error:
                gone = await nodes.refused(connection.address, error)
                if gone is None:
                    continue
                if on_compacted == "error" or start.global_index == gone.first:
                    raise gone from None
                start = Start(global_index=gone.first)
            except LogboomError as error:
                if error is gaps.raised:
                    raise
                await failures.another(error)

    async def fetch(
        self, descriptors: Sequence[Descriptor], select: Select | None, *, node: str | None, deadline: float
    ) -> list[bytes]:
        """See Client.fetch."""
        found: list[bytes] = []
        rows: list[list[Any]] = []
        size = parts = 0
        for each in descriptors:
            ranges = None if select is None else [list(part) for part in select(each)]
            if ranges is not None and len(ranges) > RANGES_MAX:
                raise InvalidRequest(f"{len(ranges)} ranges of one record; at most {RANGES_MAX}")
            nbytes = each.size if ranges is None else sum(length for _, length in ranges)
            full = len(rows) == FETCH_ROWS or parts + len(ranges or ()) > FETCH_RANGES
            if rows and (full or size + nbytes > FETCH_BYTES):
                found += await self._fetch(rows, node, deadline)
                rows, size, parts = [], 0, 0
            rows.append([each.partition_id, each.index, ranges])
            size += nbytes
            parts += len(ranges or ())
        return found + (await self._fetch(rows, node, deadline) if rows else [])

    async def _fetch(self, rows: list[list[Any]], node: str | None, deadline: float) -> list[bytes]:
        nodes, address = _Nodes(self._cluster, self.at(node), named=node is not None), ""

        async def ask(connection: NodeConnection) -> list[bytes]:
            nonlocal address
            address = connection.address
            found: list[bytes | None] = [None] * len(rows)
            frames = connection.stream(Kind.DATA_READ, {"rows": rows, "timeout_ms": self._left_ms(deadline)})
            try:
                async for frame in frames:
                    at = 0
                    for number, length in zip(frame.header["rows"], frame.header["lengths"], strict=True):
                        found[number] = bytes(frame.body[at : at + length])
                        at += length
            finally:
                await close(frames)
            whole = [each for each in found if each is not None]
            if len(whole) != len(rows):
                raise ProtocolError(f"DATA: {len(whole)} of {len(rows)} records")
            return whole

        while True:
            try:
                return await self._cluster.retry(nodes.connection, ask, deadline=deadline)
            except IndexCompacted as error:
                gone = await nodes.refused(address, error)
                if gone is not None:
                    raise gone from None


def _metadata(frame: Frame) -> tuple[LogMetadata]:
    return (metadata_of(frame),)


def _expect(announced: int, arrived: int) -> None:
    if announced != arrived:
        raise CorruptData(f"{announced} batches were announced, {arrived} arrived")


async def close(iterator: AsyncIterator[Any]) -> None:
    """End a generator now, not when it is collected: that frees its stream at the node."""
    closing = getattr(iterator, "aclose", None)
    # One that is running still belongs to a task that was killed, with its loop: nobody can end it any more.
    if closing is not None and not getattr(iterator, "ag_running", False):
        await closing()
