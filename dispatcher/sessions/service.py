"""The client protocol's server side: who may connect, and what each request becomes.

One ``Session`` per connection. Nothing that a client sends can produce more than a typed
error and, at worst, the end of its own connection.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Sequence
from functools import cached_property
from typing import Any, Final

import structlog

from dispatcher.pipeline.backend import Backend
from dispatcher.pipeline.freshness import index_at
from dispatcher.reading import fetching, reads
from dispatcher.reading.streams import Streams
from dispatcher.requests.requests import field_of
from dispatcher.requests.tracing import Tracer, begin
from dispatcher.sessions import admin
from dispatcher.sessions.session_counts import SessionCounts
from dispatcher.sessions.status import status
from dispatcher.sessions.submits import REQUESTS_MAX, Submits, Turns
from dispatcher.sessions.waits import Waits
from logboom.errors import (
    DeadlineExceeded,
    IncompatibleVersion,
    InvalidRequest,
    LogboomError,
    ProtocolError,
    QuotaExceeded,
    RecordTooLarge,
    Unauthenticated,
    Unavailable,
)
from logboom.settings import Settings
from logboom.types import PartitionId
from logboom.wire import FLAG_MORE, PROTOCOL_VERSION, REPLY_BYTES_MAX, Buffer, Frame, Kind, encode, shown
from ports.net import Connection
from ports.seldom import Seldom

log = structlog.get_logger(__name__)

FEATURES: Final = ("ack", "log_scan", "keys_in_body")
"""What clients may ask for beyond the first release: a submit that does not say what to wait for; LOG_SCAN; a GET of
more keys than its header has room for."""
EFFECTIVE: Final = (Kind.SUBMITTED, Kind.ADMIN_REPLY)
"""Answers to what has been done already."""
EXPIRE_S: Final = 0.02


class ClientService:
    """All client sessions of one node."""

    def __init__(self, backend: Backend, settings: Settings, tracer: Tracer | None = None) -> None:
        self.backend = backend
        self.settings = settings
        self.tracer = tracer
        self.counts = SessionCounts()
        self.seldom = Seldom(backend.clock.monotonic)
        self.sessions: dict[Session, None] = {}
        """In the order in which they came: what is done to each is done in an order that can be repeated."""
        self.started = backend.clock.monotonic()
        self.turns = Turns(backend.clock)
        self.strangers = itertools.count(1)
        """Numbers for those without a name."""
        self._timer: asyncio.TimerHandle | None = None

    @cached_property
    def version(self) -> str:
        """The installed package's; "0" if it is not installed. Looked up when asked for: a node starts sooner."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("logboom")
        except PackageNotFoundError:
            return "0"

    def accept(self) -> Session:
        """A handler for a new connection."""
        return Session(self)

    def start(self) -> None:
        """Begin to expire barriers."""
        self.backend.barriers.expire(self.backend.clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(EXPIRE_S, self.start)

    async def status(self, *, digests: bool = False) -> dict[str, Any]:
        """See dispatcher.sessions.status; with what is known here."""
        return {
            **await status(self.backend, digests=digests),
            "sessions": len(self.sessions),
            "uptime_s": self.backend.clock.monotonic() - self.started,
            "version": self.version,
        }

    async def close(self) -> None:
        """End all sessions."""
        if self._timer is not None:
            self._timer.cancel()
        for session in list(self.sessions):
            session.connection.close()


class Session:
    """One client connection (a ports.net.ConnectionHandler)."""

    def __init__(self, service: ClientService) -> None:
        self._service = service
        self._backend = service.backend
        self._connection: Connection | None = None
        self._introduced = False
        self._open = True
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waits = Waits(self._backend, self)
        self._streams = Streams(
            service.backend,
            reply=self.reply,
            fail=self.fail,
            congested=lambda: self.connection.congested,
            partitions=self._settled_partitions,
        )
        self.submits = Submits(self, service)
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._one_piece = asyncio.Lock()
        self._reply_bytes_max = min(REPLY_BYTES_MAX, 2 * service.settings.net.client_send_buffer_bytes)
        """What is above the second is cut as if it had not been read."""

    @property
    def is_open(self) -> bool:
        """The connection is not over."""
        return self._open

    @property
    def connection(self) -> Connection:
        """Only once opened."""
        if self._connection is None:
            raise ProtocolError("session is not open")
        return self._connection

    @property
    def remote(self) -> str:
        """Who is there, for logs."""
        return "?" if self._connection is None else self._connection.remote

    # -- the connection's events

    def opened(self, connection: Connection) -> None:
        self._connection = connection
        self._service.sessions[self] = None

    def frame(self, frame: Frame) -> None:
        try:
            if not self._introduced:
                self._hello(frame)
            elif frame.kind is Kind.CANCEL:
                self._cancel(frame.request_id)
            elif frame.kind is Kind.CREDIT:
                self._streams.credit(frame)
            else:
                self._request(frame)
        except ProtocolError:
            raise
        except LogboomError as error:
            self.fail(frame.request_id, error)
            if not self._introduced:
                self.connection.close()

    def refuse(self, error: LogboomError) -> None:
        """The connection is about to be cut for this."""
        self.fail(0, error)

    def read_done(self) -> None:
        if len(self.submits) == 1:
            self._backend.lone_submit()

    def drained(self) -> None:
        for room in self._waiting:
            if not room.done():
                room.set_result(None)
        self._streams.drained()

    def closed(self, error: Exception | None) -> None:
        self._open = False
        self._service.sessions.pop(self, None)
        for task in list(self._tasks.values()):
            task.cancel()
        self._streams.close()
        self._waits.close()
        self.submits.close()

    # -- answering

    def reply(
        self, request_id: int, kind: Kind, header: dict[str, Any], body: Sequence[Buffer] = (), *, flags: int = 0
    ) -> None:
        """One frame to the client, or an error that says that it is too large; nothing once it is gone."""
        if not self._open or not request_id:
            return
        try:
            frame = encode(
                kind, header, body, request_id=request_id, flags=flags, frame_bytes_max=self._reply_bytes_max
            )
        except RecordTooLarge as error:
            if kind in EFFECTIVE:
                error.outcome = "unknown"
            self.fail(request_id, error)
        else:
            self.connection.send(frame)

    def fail(self, request_id: int, error: LogboomError) -> None:
        """An ERROR frame."""
        self._service.counts.failed(error)
        log.debug("request_refused", remote=self.remote, request_id=request_id, code=error.code, error=error.message)
        if self._open:
            self.connection.send(encode(Kind.ERROR, error.to_wire(), request_id=request_id))

    def has_room(self) -> bool:
        """The client reads what it is sent."""
        return self._open and not self.connection.congested

    def _principal(self) -> Hashable:
        """Who its waiters are counted for: the names in its certificate; without one, the connection."""
        return ", ".join(sorted(self.connection.peer_identities)) or self._waits

    # -- requests

    def _hello(self, frame: Frame) -> None:
        backend, header = self._backend, frame.header
        if frame.kind is not Kind.HELLO:
            raise Unauthenticated(f"a connection begins with HELLO, not {frame.kind.name}")
        version = header.get("version")
        if version != PROTOCOL_VERSION:
            raise IncompatibleVersion(
                f"client speaks version {shown(version)}, this node {PROTOCOL_VERSION}",
                found=version if isinstance(version, int) else None,
                supported=PROTOCOL_VERSION,
            )
        if header.get("cluster") not in (None, backend.cluster.id):
            raise InvalidRequest(f"this is cluster {backend.cluster.id!r}, not {shown(header['cluster'])}")
        self._introduced = True
        self.connection.authenticated()
        cluster = backend.cluster
        self.reply(
            frame.request_id,
            Kind.WELCOME,
            {
                "version": PROTOCOL_VERSION,
                "cluster": cluster.id,
                "lineage": backend.lineage,
                "node": backend.node_id,
                "leader": backend.leader_address(),
                "members": backend.client_addresses(),
                "members_at": [backend.members.term, backend.members.index],
                "partitions": backend.partition_rows(),
                "key_partitions": backend.key_partitions(),
                "frame_bytes": self._service.settings.net.client_frame_bytes,
                "features": list(FEATURES),
            },
        )

    def _request(self, frame: Frame) -> None:
        self._service.counts.requests[frame.kind] += 1
        if frame.kind is Kind.SUBMIT:
            self.submits.submit(frame)
        elif frame.kind is Kind.PING:
            self.reply(frame.request_id, Kind.PONG, {})
        elif frame.kind in (Kind.BARRIER, Kind.GET):
            if not self.submits.held_back(frame):
                self.begin(frame, self._backend.clock.monotonic())
        elif frame.kind is Kind.SCAN:
            self._run(frame, self._scan)
        elif frame.kind is Kind.VIEW_SCAN:
            self._run(frame, self._view)
        elif frame.kind is Kind.DATA_READ:
            self._run(frame, self._fetch)
        elif frame.kind in (Kind.TAIL, Kind.LOG_SCAN):
            self._streams.open(frame)
        elif frame.kind is Kind.WATERMARKS:
            self._waits.watermarks(frame)
        elif frame.kind is Kind.WATCH:
            self._waits.watch(frame)
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

    def begin(self, frame: Frame, came: float) -> None:
        """A BARRIER or GET whose turn it is. Raises DeadlineExceeded for a GET that nobody waits for any more."""
        deadline = came + self._timeout(frame.header)
        if frame.kind is Kind.BARRIER:
            self._barrier(frame, deadline)
        elif deadline < self._backend.clock.monotonic():
            raise DeadlineExceeded("the deadline passed before the request was looked at", outcome="not_applied")
        else:
            self._run(frame, lambda frame: self._get(frame, deadline))

    def _run(self, frame: Frame, work: Callable[[Frame], Coroutine[Any, Any, None]]) -> None:
        request_id, used = frame.request_id, len(self._tasks)
        if request_id in self._tasks or used >= REQUESTS_MAX:
            raise QuotaExceeded(f"{used} requests are under way here", limit=REQUESTS_MAX, used=used, retry_after=0.05)
        task = self._tasks[request_id] = asyncio.get_running_loop().create_task(self._guarded(frame, work))
        # Not at its end: one that is cancelled in the turn in which it came never begins.
        task.add_done_callback(lambda _: self._tasks.pop(request_id, None))

    async def _guarded(self, frame: Frame, work: Callable[[Frame], Coroutine[Any, Any, None]]) -> None:
        request_id = frame.request_id
        try:
            await work(frame)  # begun here: whoever is cancelled before leaves no coroutine that nobody awaited
        except LogboomError as error:
            self.fail(request_id, error)
        except Exception as error:  # noqa: BLE001 - it is logged
            about = {"remote": self.remote, "request_id": request_id}
            self._service.seldom.say(log.error, "request_failed", **about, exc_info=error)
            self.fail(request_id, Unavailable(f"the node failed to answer: {type(error).__name__}"))

    def _timeout(self, header: dict[str, Any]) -> float:
        return float(min(field_of(header, "timeout_ms", int, 30_000), self._service.settings.net.request_ms_max) / 1000)

    def _deadline(self, header: dict[str, Any]) -> float:
        return float(self._backend.clock.monotonic() + self._timeout(header))

    def _patience(self, header: dict[str, Any]) -> float:
        """How long a stream that holds a state waits for a client that takes nothing of it."""
        return max(self._timeout(header), self._service.settings.net.frame_ms / 1000)

    async def _get(self, frame: Frame, deadline: float) -> None:
        lone = len(self._tasks) == 1
        header, body = await reads.get(self._backend, frame, deadline, lone=lone)
        self.reply(frame.request_id, Kind.VALUES, header, body)
        if lone and self._open:
            self.connection.flush()

    async def _scan(self, frame: Frame) -> None:
        chunks = self._backend.scans.scan(frame.header, self._deadline(frame.header))
        await self._stream(frame, Kind.ENTRIES, chunks, patience=self._patience(frame.header))

    async def _view(self, frame: Frame) -> None:
        partitions = self._settled_partitions(frame.header)
        chunks = self._backend.views.scan(partitions, frame.header, self._deadline(frame.header))
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
        waited = 0.0
        try:
            async for chunk in chunks:
                if previous is not None:
                    waited = await self._uncongested(patience, waited)
                    self.reply(frame.request_id, kind, *previous, flags=FLAG_MORE)
                previous = chunk
        finally:
            if not getattr(chunks, "ag_running", False):  # else it is not this task that ends, but its loop
                await chunks.aclose()  # what they hold is let go now
        if previous is not None:
            self.reply(frame.request_id, kind, *previous)

    async def _uncongested(self, patience: float | None = None, waited: float = 0.0) -> float:
        """Wait until the connection takes more; for how long, with ``waited`` before.

        Raises DeadlineExceeded once it has taken nothing for so long, or too little in all that it was waited for.
        """
        most = self._service.settings.reads.hold_ms / 1000
        while self._open and self.connection.congested:
            loop = asyncio.get_running_loop()
            room, queued, began = loop.create_future(), self.connection.queued, loop.time()
            self._waiting[room] = None
            try:
                async with asyncio.timeout(None if patience is None else min(patience, most - waited)):
                    await room
            except TimeoutError:
                if self.connection.queued >= queued:
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

    def _settled_partitions(self, header: dict[str, Any]) -> Sequence[PartitionId]:
        partitions = self._waits.partitions(header)
        self._waits.recovered(partitions)
        return partitions

    def _barrier(self, frame: Frame, deadline: float) -> None:
        tracer = self._service.tracer
        trace = None if tracer is None else begin(tracer, "barrier", frame, self.remote)
        try:
            self._waits.barrier(frame, deadline, self._principal(), trace)
        except LogboomError as error:
            if trace is not None:
                trace.end(error)
            raise

    def reached(self) -> None:
        """A barrier of this client's has been."""
        self._service.counts.barriers_reached += 1

    async def _index_at(self, frame: Frame) -> None:
        deadline = self._deadline(frame.header)
        index = await index_at(self._backend, field_of(frame.header, "timestamp_ms", int), deadline)
        self.reply(frame.request_id, Kind.INDEX_IS, {"global_index": index, "cluster": self._backend.cluster.id})

    async def _status(self, frame: Frame) -> None:
        found = await self._service.status(digests=bool(frame.header.get("digests")))
        self.reply(frame.request_id, Kind.STATUS_REPLY, found)

    async def _admin(self, frame: Frame) -> None:
        answer = await admin.act(self._backend, frame.header, self._deadline(frame.header))
        self.reply(frame.request_id, Kind.ADMIN_REPLY, answer)

    async def _piece(self, frame: Frame) -> None:
        async with self._one_piece:  # of a megabyte each, however many are asked for at once
            await self._uncongested()
            piece = await self._backend.snapshots.serving.read(frame)
            kind = Kind.SNAPSHOT_PIECE if frame.kind is Kind.SNAPSHOT_READ else Kind.LOG_PIECE
            self.reply(frame.request_id, kind, piece.header, piece.body)

    def _cancel(self, request_id: int) -> None:
        self.submits.cancel(request_id)
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()
        self._waits.cancel(request_id)
        self._streams.cancel(request_id)
