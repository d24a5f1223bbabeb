"""What one connection asks for that takes more than a moment: a task each, and its answer, chunk by chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Protocol

import structlog

from dispatcher.pipeline.backend import Backend
from dispatcher.reading import fetching, reads
from dispatcher.reading.read_rates import Pace
from dispatcher.reading.surroundings import Asker
from dispatcher.requests.requests import field_of
from dispatcher.sessions import admin
from dispatcher.sessions.principals import all_names
from dispatcher.sessions.submits import REQUESTS_MAX
from logboom.errors import DeadlineExceeded, LogboomError, NoSuchPartition, ProtocolError, QuotaExceeded, Unavailable
from logboom.settings import Settings
from logboom.types import PartitionId
from logboom.wire import FLAG_MORE, Buffer, Frame, Kind
from ports.net import Connection
from ports.seldom import Seldom

log = structlog.get_logger(__name__)


class Client(Protocol):
    """Who asks: the session."""

    @property
    def is_open(self) -> bool:
        """The connection is not over."""
        ...

    @property
    def connection(self) -> Connection:
        """Only once opened."""
        ...

    @property
    def remote(self) -> str:
        """Who is there, for logs."""
        ...

    def reply(
        self, request_id: int, kind: Kind, header: dict[str, Any], body: Sequence[Buffer] = (), *, flags: int = 0
    ) -> None:
        """One frame."""
        ...

    def fail(self, request_id: int, error: LogboomError) -> None:
        """An ERROR frame."""
        ...


class Service(Protocol):
    """What the sessions of a node share, as far as it is needed."""

    backend: Backend
    settings: Settings
    seldom: Seldom
    one_status: AbstractAsyncContextManager[None]

    async def status(self, *, digests: bool = False) -> dict[str, Any]:
        """What the node says of itself."""
        ...


class Answering:
    """The requests of one connection that are being answered, each by a task."""

    def __init__(
        self,
        client: Client,
        service: Service,
        *,
        partitions: Callable[[dict[str, Any]], Sequence[PartitionId]],
        pace: Callable[[], Pace],
    ) -> None:
        """``partitions`` finds those that a header names, all of which may be shown; ``pace``: how fast it may read."""
        self._client = client
        self._service = service
        self._backend = service.backend
        self._settings = service.settings
        self._partitions = partitions
        self._pace = pace
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._held_bytes = 0
        """Bytes of the frames that they answer, held as long as that takes: together as large as one may be."""
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._one_piece = asyncio.Lock()

    def answer(self, frame: Frame) -> None:
        """A request. Raises ProtocolError for what is none, QuotaExceeded."""
        if frame.kind is Kind.SCAN:
            self._run(frame, self._scan)
        elif frame.kind is Kind.VIEW_SCAN:
            self._run(frame, self._view)
        elif frame.kind is Kind.DATA_READ:
            self._run(frame, self._fetch)
        elif frame.kind is Kind.INDEX_AT:
            self._run(frame, self._index_at)
        elif frame.kind is Kind.STATUS:
            self._run(frame, self._status)
        elif frame.kind is Kind.ADMIN:
            self._run(frame, self._admin)
        elif frame.kind in (Kind.SNAPSHOT_READ, Kind.LOG_READ):
            self._run(frame, self._piece)
        else:
            raise ProtocolError(f"{frame.kind.name} is not a request")

    def get(self, frame: Frame, deadline: float) -> None:
        """A GET. Raises QuotaExceeded."""
        self._run(frame, lambda frame: self._get(frame, deadline))

    def cancel(self, request_id: int) -> None:
        """Nobody waits for it any more."""
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()

    def drained(self) -> None:
        """The connection takes more."""
        for room in self._waiting:
            if not room.done():
                room.set_result(None)

    def close(self) -> None:
        """The connection is over."""
        for task in list(self._tasks.values()):
            task.cancel()

    def _run(self, frame: Frame, work: Callable[[Frame], Coroutine[Any, Any, None]]) -> None:
        request_id, used = frame.request_id, len(self._tasks)
        if request_id in self._tasks or used >= REQUESTS_MAX:
            raise QuotaExceeded(f"{used} requests are under way here", limit=REQUESTS_MAX, used=used, retry_after=0.05)
        size, held, most = frame.size, self._held_bytes, self._settings.net.client_frame_bytes
        if held and held + size > most:
            raise QuotaExceeded(f"{held} bytes of requests are under way here", limit=most, used=held, retry_after=0.05)
        self._held_bytes += size
        task = self._tasks[request_id] = asyncio.get_running_loop().create_task(self._guarded(frame, work))
        # Not at its end: one that is cancelled in the turn in which it came never begins.
        task.add_done_callback(lambda _: self._over(request_id, size))

    def _over(self, request_id: int, size: int) -> None:
        self._tasks.pop(request_id, None)
        self._held_bytes -= size

    async def _guarded(self, frame: Frame, work: Callable[[Frame], Coroutine[Any, Any, None]]) -> None:
        request_id = frame.request_id
        try:
            await work(frame)  # begun here: whoever is cancelled before leaves no coroutine that nobody awaited
        except LogboomError as error:
            self._client.fail(request_id, error)
        except Exception as error:  # noqa: BLE001 - it is logged
            about = {"remote": self._client.remote, "request_id": request_id}
            self._service.seldom.say(log.error, "request_failed", **about, exc_info=error)
            self._client.fail(request_id, Unavailable(f"the node failed to answer: {type(error).__name__}"))

    def timeout(self, header: dict[str, Any]) -> float:
        """How long this request may take, in seconds."""
        return float(min(field_of(header, "timeout_ms", int, 30_000), self._settings.net.request_ms_max) / 1000)

    def _deadline(self, header: dict[str, Any]) -> float:
        return float(self._backend.clock.monotonic() + self.timeout(header))

    def _patience(self, header: dict[str, Any]) -> float:
        """How long a stream that holds a state waits for a client that takes nothing of it."""
        return max(self.timeout(header), self._settings.net.frame_ms / 1000)

    def _asker(self) -> Asker:
        """Who is there: the names in his certificate; without one, the connection."""
        return Asker(self, all_names(self._client.connection) or self)

    async def _get(self, frame: Frame, deadline: float) -> None:
        lone, pace = len(self._tasks) == 1, self._pace()
        await pace.turn(deadline - self._backend.clock.monotonic())
        keys, nbytes = _keys_of(frame), None
        expected = pace.expect(keys)
        try:
            header, body = await reads.get(self._backend, frame, deadline, lone=lone, asker=self._asker())
            nbytes = sum(map(len, body))
        finally:
            pace.was(expected, nbytes, keys)
        self._client.reply(frame.request_id, Kind.VALUES, header, body)
        if lone and self._client.is_open:
            self._client.connection.flush()

    async def _scan(self, frame: Frame) -> None:
        chunks = self._backend.scans.scan(frame.header, self._deadline(frame.header), asker=self._asker())
        await self._stream(frame, Kind.ENTRIES, chunks, patience=self._patience(frame.header))

    async def _view(self, frame: Frame) -> None:
        header, deadline = frame.header, self._deadline(frame.header)
        of_all = header.get("partitions") is None
        if of_all:
            await reads.hear_of_all(self._backend, header, deadline)
        try:
            partitions = self._partitions(header)
        except NoSuchPartition:
            await reads.hear_of_all(self._backend, header, deadline)
            partitions = self._partitions(header)
        anew = partial(self._partitions, header) if of_all else None
        chunks = self._backend.views.scan(partitions, header, deadline, anew=anew, asker=self._asker())
        await self._stream(frame, Kind.ENTRIES, chunks, patience=self._patience(frame.header))

    async def _fetch(self, frame: Frame) -> None:
        async with self._one_piece:
            await self._stream(frame, Kind.DATA, fetching.fetch(self._backend, frame.header))

    async def _stream(
        self,
        frame: Frame,
        kind: Kind,
        chunks: AsyncGenerator[tuple[dict[str, Any], list[Any]], None],
        *,
        patience: float | None = None,
    ) -> None:
        previous: tuple[dict[str, Any], list[Any]] | None = None
        waited, pace = 0.0, self._pace()
        try:
            await pace.turn(self.timeout(frame.header))
            async for chunk in chunks:
                pace.take(sum(map(len, chunk[1])))
                if previous is not None:
                    waited = await self._uncongested(patience, waited)
                    self._client.reply(frame.request_id, kind, *previous, flags=FLAG_MORE)
                    waited = await self._in_turn(pace, patience, waited)
                previous = chunk
        finally:
            if not getattr(chunks, "ag_running", False):  # else it is not this task that ends, but its loop
                await chunks.aclose()  # what they hold is let go now
        if previous is not None:
            await self._uncongested(patience, waited)  # the one before it may fill the connection
            self._client.reply(frame.request_id, kind, *previous)

    async def _uncongested(self, patience: float | None = None, waited: float = 0.0) -> float:
        """Wait until the connection takes more; for how long, with ``waited`` before.

        Raises DeadlineExceeded once it has taken nothing for so long, or too little in all that it was waited for.
        """
        most = self._settings.reads.hold_ms / 1000
        while self._client.is_open and self._client.connection.congested:
            loop = asyncio.get_running_loop()
            room, queued, began = loop.create_future(), self._client.connection.queued, loop.time()
            self._waiting[room] = None
            try:
                async with asyncio.timeout(None if patience is None else min(patience, most - waited)):
                    await room
            except TimeoutError:
                if self._client.connection.queued >= queued:
                    raise DeadlineExceeded(
                        f"nothing of it was taken for {loop.time() - began:.3g} s", outcome="not_applied"
                    ) from None
            finally:
                self._waiting.pop(room, None)
            waited += loop.time() - began
            if patience is not None and waited >= most:
                raise DeadlineExceeded(
                    f"its client has kept it waiting for {waited:.3g} s in all: ask for ranges", outcome="not_applied"
                )
        return waited

    async def _in_turn(self, pace: Pace, patience: float | None, waited: float) -> float:
        """Wait for its rate; what holds a state does so no longer than for a slow client."""
        clock = self._backend.clock
        began = clock.monotonic()
        await pace.turn(None if patience is None else self._settings.reads.hold_ms / 1000 - waited)
        return waited + clock.monotonic() - began

    async def _index_at(self, frame: Frame) -> None:
        deadline = self._deadline(frame.header)
        timestamp_ms, asker = field_of(frame.header, "timestamp_ms", int), self._asker()
        index = await self._backend.freshness.index_at(timestamp_ms, deadline, principal=asker.principal)
        found = {"global_index": index, "cluster": self._backend.cluster.id}
        self._client.reply(frame.request_id, Kind.INDEX_IS, found)

    async def _status(self, frame: Frame) -> None:
        if frame.header.get("digests"):  # which are made one at a time, and may take long
            self._client.reply(frame.request_id, Kind.STATUS_REPLY, await self._service.status(digests=True))
            return
        async with self._service.one_status:
            self._client.reply(frame.request_id, Kind.STATUS_REPLY, await self._service.status())

    async def _admin(self, frame: Frame) -> None:
        connection = self._client.connection
        by = all_names(connection) or connection.remote
        answer = await admin.act(self._backend, frame.header, self._deadline(frame.header), by)
        self._client.reply(frame.request_id, Kind.ADMIN_REPLY, answer)

    async def _piece(self, frame: Frame) -> None:
        async with self._one_piece:  # of a megabyte each, however many are asked for at once
            await self._uncongested()
            piece = await self._backend.snapshots.serving.read(frame)
            kind = Kind.SNAPSHOT_PIECE if frame.kind is Kind.SNAPSHOT_READ else Kind.LOG_PIECE
            self._client.reply(frame.request_id, kind, piece.header, piece.body)


def _keys_of(frame: Frame) -> int:
    """How many a GET asks for, about: whether it is one is seen later."""
    said = frame.header.get("lengths") or frame.header.get("keys")
    return max(1, len(said)) if isinstance(said, list) else 1
