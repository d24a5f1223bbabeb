"""Waiting: barriers, their progress, watermarks as they move. ``logboom.Client`` has all of it."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from logboom.client import tracing
from logboom.client.attempts import Attempts, is_final, is_sent_away, seconds
from logboom.client.cluster import Cluster
from logboom.client.connection import NodeConnection
from logboom.client.parts import check_partition, partition_ids
from logboom.client.reads import Reader, close_now, watermark_of
from logboom.client.sharing import BARRIER_GRACE_S, Asked, Sharing
from logboom.errors import BarrierFuture, DeadlineExceeded, InvalidRequest, LogboomError
from logboom.types import (
    NUMBER_MAX,
    BarrierProgress,
    BarrierResult,
    GlobalLogIndex,
    Level,
    NodeId,
    PartitionId,
    Receipt,
    Receipts,
    Scope,
    Token,
    Watermark,
    WatermarkUpdate,
)
from logboom.wire import Frame, Kind, encode

LASTING: Final = frozenset((Level.ORDERED, Level.COMMITTED, Level.DURABLE, Level.APPLIED))
"""What a node has shown of these it never takes back."""

LOOK_S: Final = 2.0
"""For a time to come that nodes do not wait for: between two questions whether they would by now."""

Target = int | Token | Receipt | Receipts | Sequence[Receipt] | Mapping[int, int] | datetime
"""What a barrier may wait for."""


class Waits:
    """See the module."""

    _cluster: Cluster
    _reader: Reader
    timeout: float

    @abstractmethod
    def _deadline(self, timeout: float | None) -> float: ...

    async def barrier(
        self,
        target: Target,
        *,
        partitions: Sequence[int] | None = None,
        scope: str = "node",
        level: str = "applied",
        mode: str | int = "all",
        timeout: float | None = None,
        wait_blocked: bool = False,
        node: str | None = None,
    ) -> BarrierResult:
        """Wait until the partitions (None: all) have reached the target.

        ``target``: a global index or ``token``; receipts, each partition's own index (with ``partitions``: the
        highest, for all of these); ``{partition: index}``; or a time with its zone: all that is committed before the
        leader's clock shows it. ``scope``: ``node`` (whichever answers, or ``node=``), ``leader``, ``quorum`` (a
        majority of voters), ``all`` members. ``level``: ``ordered``, ``durable``, ``applied``, ``snapshotted``.
        ``mode``: ``all`` partitions, ``any``, or how many.

        Raises BarrierTimeout with the watermarks reached; BarrierBlocked at once when too few partitions can get
        there while some are paused, damaged or lost, unless ``wait_blocked``; PartitionDestroyed; BarrierFuture for a
        target absurdly far ahead; LineageMismatch for another cluster's; QuotaExceeded.

        Calls that wait for the same share a request (logboom.client.sharing); each keeps its own timeout.
        """
        asked = await self._asked(target, partitions, scope, level, mode, timeout, wait_blocked=wait_blocked, node=node)
        return await self._sharing.reached(asked)

    async def barrier_watch(
        self,
        target: Target,
        *,
        partitions: Sequence[int] | None = None,
        scope: str = "node",
        level: str = "applied",
        mode: str | int = "all",
        timeout: float | None = None,
        wait_blocked: bool = False,
        node: str | None = None,
        every: float = 0.1,
    ) -> AsyncGenerator[BarrierProgress, None]:
        """Wait as ``barrier`` does, and tell where the partitions are, ``every`` so many seconds as far as any moves.

        The last one is ``done``. Who leaves the loop waits no longer.
        """
        asked = await self._asked(target, partitions, scope, level, mode, timeout, wait_blocked=wait_blocked, node=node)
        asked.header["progress_ms"] = max(1, int(seconds(every, "every") * 1000))
        frontiers: dict[PartitionId, GlobalLogIndex] = {}
        frames = self._frames(
            Kind.BARRIER, lambda: self._header(asked), asked.where, deadline=asked.deadline, grace=BARRIER_GRACE_S
        )
        reached, needed = 0, 0
        try:
            async for frame in frames:
                frontiers.update(_frontiers(frame))
                result = None
                if frame.kind is Kind.REACHED:
                    result = self._results.read(asked, frame)
                    reached = needed = max(needed, 1)
                else:
                    reached, needed = frame.header["reached"], frame.header["needed"]
                yield BarrierProgress(NodeId(frame.header["node"]), dict(frontiers), reached, needed, result)
        finally:
            await close_now(frames)

    async def watermarks_stream(
        self,
        partitions: Sequence[int] | None = None,
        *,
        node: str | None = None,
        every: float = 0.1,
        timeout: float | None = None,
    ) -> AsyncGenerator[WatermarkUpdate, None]:
        """Watermarks of the partitions (None: all) on a node, for ever: the newest, ``every`` so many seconds at most.

        Goes on at another node (or the same, if named) when one is lost; that one may be behind. ``timeout``: how long
        it may take to find one.
        """
        wanted = partition_ids(partitions) if partitions is not None else None
        header = {"partitions": wanted, "every_ms": max(1, int(seconds(every, "every") * 1000))}
        marks: dict[int, Watermark] = {}
        said_by = ""
        patience = seconds(self.timeout if timeout is None else timeout)
        frames = self._frames(Kind.WATCH, lambda: header, self._reader.at(node), patience=patience, roams=node is None)
        try:
            async for frame in frames:
                if frame.header["first"]:
                    said_by, marks = frame.header["node"], {}
                for gone in frame.header["gone"]:
                    marks.pop(gone, None)
                marks.update((row[0], watermark_of(row)) for row in frame.header["watermarks"])
                if frame.header["whole"]:
                    yield WatermarkUpdate(
                        NodeId(said_by),
                        GlobalLogIndex(frame.header["commit_index"]),
                        GlobalLogIndex(frame.header["minimum"]),
                        tuple(marks[p] for p in sorted(marks)),
                    )
        finally:
            await close_now(frames)

    async def index_at(self, when: datetime, *, timeout: float | None = None) -> GlobalLogIndex:
        """All that was committed before the leader's clock showed ``when`` is at or below this index.

        Waits until it does. Raises BarrierFuture at once if that is beyond the deadline, by the leader's clock.
        """
        return await self._index_at(when, self._deadline(timeout))

    # -- inside

    @cached_property
    def _results(self) -> _Results:
        return _Results(self._reader)

    @cached_property
    def _sharing(self) -> Sharing:
        return Sharing(self._cluster, self._results.read)

    async def _index_at(self, when: Any, deadline: float) -> GlobalLogIndex:
        if not isinstance(when, datetime) or when.tzinfo is None:
            raise InvalidRequest(f"a time is a datetime with a time zone, not {when!r}")
        timestamp_ms = max(0, int(when.timestamp() * 1000) + 1)

        async def ask(connection: NodeConnection) -> Frame:
            header = {"timestamp_ms": timestamp_ms, "timeout_ms": self._left_ms(deadline)}
            return await connection.request(Kind.INDEX_AT, header)

        while True:
            try:
                frame = await self._cluster.retry(self._cluster.leader, ask, deadline=deadline)
            except BarrierFuture as error:  # beyond what a node lets anybody wait for, perhaps
                ahead = _ahead_s(error)
                if not 0 < ahead < deadline - self._cluster.now:
                    raise
                await asyncio.sleep(min(ahead, LOOK_S))
            else:
                return GlobalLogIndex(frame.header["global_index"])

    async def _asked(
        self,
        target: Target,
        partitions: Sequence[int] | None,
        scope: str,
        level: str,
        mode: str | int,
        timeout: float | None,
        *,
        wait_blocked: bool,
        node: str | None,
    ) -> Asked:
        _choice("scope", scope, Scope)
        _choice("level", level, Level)
        if mode not in ("all", "any") and (type(mode) is not int or mode < 1):
            raise InvalidRequest(f"mode must be all, any or a number of partitions, not {mode!r}")
        if node is not None and scope == Scope.LEADER:
            raise InvalidRequest("node= does not go with scope leader")
        if node is not None and not isinstance(node, str):
            raise InvalidRequest(f"a node is named by its id or address, not by {node!r}")
        deadline = self._deadline(timeout)
        header: dict[str, Any] = {"scope": scope, "level": level, "mode": mode, "wait_blocked": wait_blocked}
        if isinstance(target, datetime):
            target = await self._index_at(target, deadline)
        elif isinstance(target, Token):
            await self._cluster.check_token(target, deadline=deadline)  # a node may be of a release that does not
            header |= {"cluster": target.cluster, "lineage": target.lineage}
            target = target.global_index
        vector = _vector(target)
        highest = target if isinstance(target, int) else max(vector.values(), default=0)
        if isinstance(target, int) or partitions is not None:
            named = None if partitions is None else partition_ids(partitions)
            header |= {"global_index": highest, "partitions": named}
        else:
            header["targets"] = [[p, index] for p, index in sorted(vector.items())]
        header |= tracing.header(tracing.parent(None))
        where = self._cluster.leader if scope == Scope.LEADER else self._reader.at(node)
        lasting = ("targets" in header or partitions is not None) and scope == Scope.NODE and level in LASTING
        proven = _proven(vector.values(), mode) if "targets" in header else highest
        return Asked(header, proven, where, (scope == Scope.LEADER, node), deadline, _key(header), lasting)

    def _header(self, asked: Asked) -> dict[str, Any]:
        return {**asked.header, "timeout_ms": self._left_ms(asked.deadline)}

    async def _frames(
        self,
        kind: Kind,
        header: Callable[[], dict[str, Any]],
        where: Callable[[], Awaitable[NodeConnection]],
        *,
        deadline: float | None = None,
        patience: float = 0.0,
        grace: float = 0.0,
        roams: bool = False,
    ) -> AsyncGenerator[Frame, None]:
        """Frames of a streamed reply, of another node when one is lost. Without ``deadline`` each has ``patience``."""
        failed: LogboomError | None = None
        at: NodeConnection | None = None
        attempts: Attempts | None = None
        self._cluster.begin()
        while True:

            async def begin(connection: NodeConnection) -> tuple[Frame | None, AsyncIterator[Frame]]:
                nonlocal at
                at = connection
                stream = connection.stream(kind, header(), roams=roams)
                return await anext(stream, None), stream

            until = self._cluster.now + patience if deadline is None else deadline
            if failed is None or not is_sent_away(failed):  # else it begins no sooner for having begun
                attempts = Attempts(self._cluster, deadline=until, writes=False)
            frame, rest = await self._cluster.retry(
                where, begin, deadline=until, grace=grace, failed=failed, at=at, attempts=attempts
            )
            try:
                while frame is not None:
                    yield frame
                    frame = await self._next(rest, None if deadline is None else deadline + grace)
                return
            except LogboomError as error:
                if not error.retryable or is_final(error, until - self._cluster.now):
                    raise
                failed = error
            finally:
                await close_now(rest)

    async def _next(self, frames: AsyncIterator[Frame], until: float | None) -> Frame | None:
        try:
            async with asyncio.timeout_at(until):
                return await anext(frames, None)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before an answer came", outcome="not_applied") from None

    def _left_ms(self, deadline: float) -> int:
        return max(1, int((deadline - self._cluster.now) * 1000))


class _Results:
    """What answers say. Those of one move say the same, so what was read last is kept."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._rows: list[Any] = []
        self._marks: tuple[Watermark, ...] = ()

    def read(self, asked: Asked, frame: Frame) -> BarrierResult:
        """What a REACHED says."""
        self._reader.seen(asked.target)
        rows = frame.header["watermarks"]
        if rows != self._rows:
            self._rows, self._marks = rows, tuple(watermark_of(row) for row in rows)
        return BarrierResult(GlobalLogIndex(asked.target), NodeId(frame.header["node"]), self._marks, _frontiers(frame))


def _key(header: Mapping[str, Any]) -> bytes | None:
    """Equal for those who would send the same, byte for byte; None for what cannot be sent, which is told elsewhere."""
    try:
        return bytes(encode(Kind.BARRIER, header)[0])
    except (TypeError, ValueError, OverflowError, LogboomError):
        return None


def _ahead_s(error: BarrierFuture) -> float:
    """How far the leader's clock has to go; 0: it does not say so."""
    then, now = error.fields.get("timestamp_ms"), error.fields.get("now_ms")
    return (then - now) / 1000 if type(then) is int and type(now) is int else 0.0


def _frontiers(frame: Frame) -> dict[PartitionId, GlobalLogIndex]:
    return {PartitionId(p): GlobalLogIndex(index) for p, index in frame.header.get("frontiers", ())}


def _vector(target: Any) -> dict[int, int]:
    """Partition to index."""
    if isinstance(target, bool) or not isinstance(target, int | Mapping | Receipt | Receipts | Iterable):
        raise InvalidRequest(f"a barrier waits for an index, a token, receipts, or a time, not for {target!r}")
    if isinstance(target, int):
        return {}
    if isinstance(target, Mapping):
        for partition, index in target.items():
            check_partition(partition)
            if type(index) is not int or not 0 <= index <= NUMBER_MAX:
                raise InvalidRequest(f"a global index is an int from 0 on, not {index!r}")
        return dict(target)
    receipts = [target] if isinstance(target, Receipt) else target.parts if isinstance(target, Receipts) else target
    found: dict[int, int] = {}
    for receipt in receipts:
        if not isinstance(receipt, Receipt):
            raise InvalidRequest(
                f"{receipt!r} is no receipt, nor what else a barrier waits for: an index, a token, a time"
            )
        found[receipt.partition_id] = max(receipt.global_index, found.get(receipt.partition_id, 0))
    if not found:
        raise InvalidRequest("no receipts given")
    return found


def _proven(targets: Iterable[int], mode: str | int) -> int:
    """The highest of those that so many partitions cannot all be below, whichever were reached."""
    ascending = sorted(targets)
    needed = len(ascending) if mode == "all" else 1 if mode == "any" else min(int(mode), len(ascending))
    return ascending[needed - 1] if ascending else 0


def _choice(name: str, value: object, kind: Any) -> None:
    if not isinstance(value, str) or value not in {str(each) for each in kind}:
        raise InvalidRequest(f"{name} must be {', '.join(map(str, kind))}, not {value!r}")
