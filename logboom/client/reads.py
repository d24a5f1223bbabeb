"""Reading: values, ranges, logs, barriers, status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

from logboom.client.attempts import BACKOFF_MIN_S, seconds
from logboom.client.cluster import Cluster
from logboom.client.connection import NodeConnection
from logboom.client.log_batches import LogBatch
from logboom.client.streams import LogStreams
from logboom.client.streams import close as close_now
from logboom.commands import Value, unpack_numbers
from logboom.errors import (
    CorruptData,
    DeadlineExceeded,
    IncompatibleVersion,
    InvalidRequest,
    NoSuchPartition,
    PartitionDestroyed,
    Unavailable,
)
from logboom.records import RecordBlock
from logboom.types import CURSORS, GlobalLogIndex, PartitionId, Token, Watermark, watermark_of
from logboom.wire import Frame, Kind

__all__ = ("AtLeast", "LogBatch", "Reader", "block_of", "close_now", "decode_value", "watermark_of")

T = TypeVar("T")

AtLeast = int | Token | Literal["session"] | None
"""How new a read has to be."""
KEYS_BYTES: Final = 128 * 1024
"""Keys of a GET that travel in its header."""
ONCE: Final = frozenset(("snapshot", "transfer"))
"""Asked for again they are done again. Else what only a leader does carries a token, or names what is to be so."""
HEARD_S: Final = 2.0
"""For a node to hear of what it is asked for, before another is asked."""
SMALL_SCAN: Final = 1_000
"""Scans of up to so many keys share the connection; larger ones get one of their own, which may be slowed down."""


class ViewEntry(NamedTuple):
    """A key and its value, of a state as of one moment in all partitions."""

    partition_id: PartitionId
    key: bytes
    value: Value
    global_index: GlobalLogIndex
    """The moment."""


def decode_value(raw: bytes) -> Value:
    """An encoded value of the wire protocol."""
    return raw[1:] if raw[:1] == b"b" else unpack_numbers(raw)


def block_of(frame: Frame, count: int) -> RecordBlock:
    """The record block in a frame's body."""
    middle = frame.header["metadata"]
    return RecordBlock.parse(count, frame.body[:middle], frame.body[middle : middle + frame.header["data"]])


class Reader(LogStreams):
    """All reads of one client. ``last_seen`` is its session token: reads and receipts only raise it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.last_seen = GlobalLogIndex(0)

    def seen(self, global_index: int) -> None:
        """Remember what has been seen."""
        self._cluster.settled = True
        if global_index > self.last_seen:
            self.last_seen = GlobalLogIndex(global_index)

    async def _mode(
        self, *, at_least: AtLeast, stale: bool, max_staleness: float | None, deadline: float
    ) -> dict[str, Any]:
        if stale:
            if at_least is not None or max_staleness is not None:
                raise InvalidRequest("a read is stale, or as new as an index or a time, not both")
            return {"read": "stale", "at_least": 0}
        index = await self._index(at_least, deadline)
        if max_staleness is not None:
            staleness_ms = int(seconds(max_staleness, "max_staleness") * 1000)
            return {"read": "bounded", "at_least": index, "max_staleness_ms": staleness_ms}
        return {"read": "linearizable" if at_least is None else "at_least", "at_least": index}

    async def _index(self, at_least: AtLeast, deadline: float) -> GlobalLogIndex:
        if isinstance(at_least, Token):
            await self._cluster.check_token(at_least, deadline=deadline)
            at_least = at_least.global_index
        return self.last_seen if at_least == "session" else GlobalLogIndex(at_least or 0)

    async def get_many(
        self,
        partition_id: int,
        keys: Sequence[bytes],
        *,
        at_least: AtLeast,
        stale: bool,
        max_staleness: float | None,
        node: str | None,
        deadline: float,
    ) -> list[Value | None]:
        """Values in the order of ``keys``; None where there is none. Raises RecordTooLarge: a node would take fewer."""
        mode = await self._mode(at_least=at_least, stale=stale, max_staleness=max_staleness, deadline=deadline)

        given: Any = keys
        if not isinstance(given, Iterable):
            raise InvalidRequest(f"keys are a list, not {given!r}")
        keys = list(given)
        if not keys:
            return []
        if not all(isinstance(key, bytes) for key in keys):
            raise InvalidRequest("keys are bytes")
        large = sum(map(len, keys)) + 3 * len(keys) > KEYS_BYTES

        async def ask(connection: NodeConnection) -> Frame:
            header = {"partition": partition_id, "timeout_ms": self._left_ms(deadline), **mode}
            if large and "keys_in_body" in connection.welcome.get("features", ()):
                lengths = list(map(len, keys))
                return await connection.request(Kind.GET, {**header, "lengths": lengths}, [b"".join(keys)])
            return await connection.request(Kind.GET, {**header, "keys": keys})

        frame = await self._read(mode, node, ask, deadline=deadline)
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
        at_least: AtLeast,
        stale: bool,
        max_staleness: float | None,
        node: str | None,
        deadline: float,
    ) -> AsyncGenerator[tuple[bytes, Value], None]:
        """Keys and values, ascending, from one consistent view. A break in the middle is raised, not hidden."""
        blocks = self.scan_blocks(
            partition_id,
            prefix=prefix,
            start=start,
            end=end,
            limit=limit,
            at_least=at_least,
            stale=stale,
            max_staleness=max_staleness,
            node=node,
            deadline=deadline,
        )
        try:
            async for _, block in blocks:
                for key, raw in zip(block.keys(), block.payloads(), strict=True):
                    yield key, decode_value(raw)
        finally:
            await close_now(blocks)

    async def scan_blocks(
        self,
        partition_id: int,
        *,
        prefix: bytes | None,
        start: bytes | None,
        end: bytes | None,
        limit: int,
        at_least: AtLeast,
        stale: bool,
        max_staleness: float | None,
        node: str | None,
        deadline: float,
    ) -> AsyncGenerator[tuple[GlobalLogIndex, RecordBlock], None]:
        """What ``scan`` gives, in columns: the global index of the view, and keys with encoded values."""
        mode = await self._mode(at_least=at_least, stale=stale, max_staleness=max_staleness, deadline=deadline)
        header = {
            "partition": partition_id,
            "prefix": prefix,
            "start": start,
            "end": end,
            "limit": limit,
            **mode,
        }

        own: list[NodeConnection] = []
        streams: list[AsyncIterator[Frame]] = []

        async def begin(shared: NodeConnection) -> tuple[Frame | None, AsyncIterator[Frame]]:
            connection = shared
            if not 0 < limit <= SMALL_SCAN:
                _close(own)  # of an attempt before
                connection = await self._cluster.dedicated(shared.address)
                own.append(connection)
            stream = connection.stream(Kind.SCAN, {**header, "timeout_ms": self._left_ms(deadline)})
            return await anext(stream, None), stream

        patience = deadline - self._cluster.now
        try:
            frame, rest = await self._read(mode, node, begin, deadline=deadline)
            streams.append(rest)
            while frame is not None:
                self.seen(frame.header["global_index"])
                if frame.header["count"]:
                    yield GlobalLogIndex(frame.header["global_index"]), block_of(frame, frame.header["count"])
                frame = await self._next(rest, patience)
        finally:
            _close(own)
            for each in streams:
                await close_now(each)

    async def scan_view(
        self,
        partitions: Sequence[int] | None,
        *,
        prefix: bytes | None,
        start: bytes | None,
        end: bytes | None,
        at_least: AtLeast,
        node: str | None,
        deadline: float,
    ) -> AsyncGenerator[ViewEntry, None]:
        """See Client.scan_view."""
        mode = await self._mode(at_least=at_least, stale=False, max_staleness=None, deadline=deadline)
        header = {"prefix": prefix, "start": start, "end": end, "limit": 0, **mode}
        if partitions is None:
            header["of_all"] = True
        own: list[NodeConnection] = []
        streams: list[AsyncIterator[Frame]] = []

        async def begin(shared: NodeConnection) -> tuple[Frame | None, AsyncIterator[Frame]]:
            _close(own)
            named = list(partitions) if partitions is not None else await self._with_keys(shared, mode, deadline)
            if not named:
                return None, _nothing()
            own.append(await self._cluster.dedicated(shared.address))
            asked = {**header, "partitions": named, "timeout_ms": self._left_ms(deadline)}
            stream = own[-1].stream(Kind.VIEW_SCAN, asked)
            try:
                return await anext(stream, None), stream
            except PartitionDestroyed as error:
                if partitions is not None:
                    raise
                raise Unavailable(f"{error.message}: since it was said to be there") from error

        patience = deadline - self._cluster.now
        try:
            frame, rest = await self._read(mode, node, begin, deadline=deadline)
            streams.append(rest)
            while frame is not None:
                said = frame.header
                self.seen(said["global_index"])
                if said["count"]:
                    block, where, at = block_of(frame, said["count"]), said["partition"], said["global_index"]
                    for key, raw in zip(block.keys(), block.payloads(), strict=True):
                        yield ViewEntry(where, key, decode_value(raw), at)
                frame = await self._next(rest, patience)
        finally:
            _close(own)
            for each in streams:
                await close_now(each)

    async def _with_keys(self, node: NodeConnection, mode: dict[str, Any], deadline: float) -> list[int]:
        """All partitions that have keys, as of what the read has to be of, as this node knows them."""
        await self._cluster.refresh_partitions(
            node,
            linearizable=mode["read"] == "linearizable",
            at_least=mode["at_least"],
            timeout=min(HEARD_S, deadline - self._cluster.now),
        )
        return [row[0] for row in self._cluster.partitions if row[1] != "log" and CURSORS not in row[3:]]

    async def _next(self, frames: AsyncIterator[Frame], patience: float) -> Frame | None:
        try:
            async with asyncio.timeout(patience):
                return await anext(frames, None)
        except TimeoutError:
            raise DeadlineExceeded(f"no more came within {patience:.3g} s", outcome="not_applied") from None

    async def watermarks(self, *, deadline: float) -> tuple[dict[int, Watermark], GlobalLogIndex]:
        """Watermarks of all partitions, at whoever leads, and its commit index."""

        async def ask(node: NodeConnection) -> Frame:
            return await node.request(Kind.WATERMARKS, {"partitions": None})

        frame = await self._cluster.retry(self._cluster.leader, ask, deadline=deadline)
        return _marks(frame), GlobalLogIndex(frame.header["commit_index"])

    async def watermarks_now(self, partitions: Sequence[int] | None, *, deadline: float) -> dict[int, Watermark]:
        """Of the partitions (None: all), at whoever proves that it leads. Raises NoSuchPartition.

        They are asked for by name: one that is being opened there is waited for, not left out, and one that cannot be
        shown now keeps nobody from the others.
        """

        async def ask(node: NodeConnection) -> dict[int, Watermark]:
            await self._cluster.refresh_partitions(node, linearizable=True)
            known = {row[0] for row in self._cluster.partitions}
            wanted = sorted(known) if partitions is None else list(partitions)
            for missing in (p for p in wanted if p not in known):
                why = f"partition {missing} does not exist"
                raise NoSuchPartition(why, partition_id=missing, partitions=len(known))
            try:
                return _marks(await node.request(Kind.WATERMARKS, {"partitions": wanted})) if wanted else {}
            except PartitionDestroyed:
                if partitions is not None:
                    raise
            return await ask(node)  # since it was said to be there

        return await self._cluster.retry(self._cluster.leader, ask, deadline=deadline)

    async def refresh_partitions(self, at_least: AtLeast, node: str | None, *, deadline: float) -> None:
        """Learn which there are: all that were before this call, or at an index, or as ``node`` knows it."""
        refresh = self._cluster.refresh_partitions
        now = partial(self._cluster.retry, self._cluster.leader, partial(refresh, linearizable=True))
        if at_least is None and node is None:
            await now(deadline=deadline)
            return
        index = await self._index(at_least, deadline)
        earlier = set[str]()
        """Nodes that overlook the index: before they are asked once more, one is that does not."""

        async def where() -> NodeConnection:
            return (await self._cluster.another(earlier) if earlier and node is None else None) or await self.at(node)()

        async def ask(connection: NodeConnection) -> None:
            # Another may know of it, or be there: no node has all of the time.
            left = min(HEARD_S, deadline - self._cluster.now)
            if not index or "partitions_at" in connection.welcome.get("features", ()):
                earlier.clear()
                await refresh(connection, at_least=index, named=node is not None, timeout=left)
                return
            earlier.add(connection.address)
            try:
                await now(deadline=self._cluster.now + left)
            except DeadlineExceeded as why:
                story = f"{connection.address} overlooks the index (an earlier release); whoever leads: {why.message}"
                raise Unavailable(story, retry_after=BACKOFF_MIN_S) from why

        await self._cluster.retry(where, ask, deadline=deadline)

    async def admin_at_leader(self, header: dict[str, Any], *, deadline: float, needs: str = "") -> dict[str, Any]:
        """An ADMIN request that only a leader answers. ``needs``: a feature without which it would be misunderstood.

        Raises IncompatibleVersion where whoever leads does not have that.
        """

        async def ask(node: NodeConnection) -> Frame:
            if needs and needs not in node.welcome.get("features", ()):
                await node.request(Kind.ADMIN, {"action": "members", "leader": True})  # another leads, and may have it
                leader = node.welcome["node"]
                raise IncompatibleVersion(
                    f"{leader}, which leads, is of an earlier release, which does not know {needs}: upgrade it",
                    found=None,
                    supported=needs,
                )
            return await node.request(Kind.ADMIN, {**header, "timeout_ms": self._left_ms(deadline)})

        same = header["action"] not in ONCE
        return (await self._cluster.at_leader(ask, deadline=deadline, same=same)).header

    async def ask_node(self, kind: Kind, header: dict[str, Any], *, node: str | None, deadline: float) -> Frame:
        """A plain request at one node, or any."""

        async def ask(connection: NodeConnection) -> Frame:
            return await connection.request(kind, header)

        return await self._cluster.retry(self.at(node), ask, deadline=deadline)

    def at(self, node: str | None) -> Callable[[], Awaitable[NodeConnection]]:
        """A node by id or address; None: any."""
        return self._cluster.any if node is None else lambda: self._cluster.at(node)

    async def _read(
        self,
        mode: dict[str, Any],
        node: str | None,
        call: Callable[[NodeConnection], Awaitable[T]],
        *,
        deadline: float,
    ) -> T:
        """``call`` where it may be answered. What is damaged at one node others have whole: they are asked then."""
        where, cluster = self._where(mode, node), self._cluster
        if node is not None or mode["read"] == "linearizable":
            return await cluster.retry(where, call, deadline=deadline)
        damaged: list[str] = []

        async def sound() -> NodeConnection:
            return (await cluster.another(damaged) if damaged else None) or await where()

        async def ask(connection: NodeConnection) -> T:
            try:
                return await call(connection)
            except CorruptData as error:
                if connection.address in damaged:  # there is no other
                    raise
                damaged.append(connection.address)
                raise Unavailable(f"{connection.address}: {error.message}") from error

        return await cluster.retry(sound, ask, deadline=deadline)

    def _where(self, mode: dict[str, Any], node: str | None) -> Callable[[], Awaitable[NodeConnection]]:
        if node is not None:
            return self.at(node)
        return self._cluster.leader if mode["read"] == "linearizable" else self._cluster.any

    def _left_ms(self, deadline: float) -> int:
        return max(1, int((deadline - self._cluster.now) * 1000))


async def _nothing() -> AsyncIterator[Frame]:
    return
    yield


def _marks(frame: Frame) -> dict[int, Watermark]:
    return {mark.partition_id: mark for mark in map(watermark_of, frame.header["watermarks"])}


def _close(connections: list[NodeConnection]) -> None:
    while connections:
        connections.pop().close()
