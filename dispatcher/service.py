"""The client protocol's server side: who may connect, and what each request becomes.

One ``Session`` per connection. Nothing that a client sends can produce more than a typed
error and, at worst, the end of its own connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import structlog

from dispatcher import admin, reads
from dispatcher.backend import Backend
from dispatcher.barriers import Waiter
from dispatcher.requests import SubmitReply, encode_reply, field_of, parse_submit
from dispatcher.tail import Tail
from dispatcher.watermarks import to_row
from logboom.errors import (
    IncompatibleVersion,
    InvalidRequest,
    LogboomError,
    NotLeader,
    ProtocolError,
    QuotaExceeded,
    Unauthenticated,
    Unavailable,
)
from logboom.settings import Settings
from logboom.types import Level, PartitionId, Scope, Watermark
from logboom.wire import FLAG_MORE, PROTOCOL_VERSION, Buffer, Frame, Kind, encode, shown
from ports.net import Connection

log = structlog.get_logger(__name__)

REQUESTS_MAX: Final = 4096
"""Requests under way per connection."""
EXPIRE_S: Final = 0.02


class ClientService:
    """All client sessions of one node."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self.backend = backend
        self.settings = settings
        self.sessions: dict[Session, None] = {}
        """In the order in which they came: what is done to each is done in an order that can be repeated."""
        self.started = backend.clock.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        try:
            self.version = version("logboom")
        except PackageNotFoundError:
            self.version = "0"

    def accept(self) -> Session:
        """A handler for a new connection."""
        return Session(self)

    def start(self) -> None:
        """Begin to expire barriers."""
        self.backend.barriers.expire(self.backend.clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(EXPIRE_S, self.start)

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
        self._waiters: dict[int, Waiter] = {}
        self._tails: dict[int, Tail] = {}
        self._submits = 0
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._one_piece = asyncio.Lock()

    @property
    def connection(self) -> Connection:
        """Only once opened."""
        if self._connection is None:
            raise ProtocolError("session is not open")
        return self._connection

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
                self._credit(frame)
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
        if self._submits == 1:
            self._backend.lone_submit()

    def drained(self) -> None:
        for room in self._waiting:
            if not room.done():
                room.set_result(None)
        for tail in list(self._tails.values()):  # one that ends takes itself off
            tail.move()

    def closed(self, error: Exception | None) -> None:
        self._open = False
        self._service.sessions.pop(self, None)
        for task in list(self._tasks.values()):
            task.cancel()
        for tail in list(self._tails.values()):
            tail.close()
        self._backend.barriers.client_gone(self)
        self._waiters.clear()
        self._tails.clear()

    # -- answering

    def reply(
        self, request_id: int, kind: Kind, header: dict[str, Any], body: Sequence[Buffer] = (), *, flags: int = 0
    ) -> None:
        """One frame to the client; nothing once it is gone."""
        if self._open and (request_id or kind is Kind.ERROR):
            self.connection.send(encode(kind, header, body, request_id=request_id, flags=flags))

    def fail(self, request_id: int, error: LogboomError) -> None:
        """An ERROR frame."""
        self.reply(request_id, Kind.ERROR, error.to_wire())

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
                "node": backend.node_id,
                "leader": backend.leader_address(),
                "members": backend.client_addresses(),
                "members_at": [backend.members.term, backend.members.index],
                "partitions": backend.partition_rows(),
                "key_partitions": backend.key_partitions(),
                "frame_bytes": self._service.settings.net.client_frame_bytes,
            },
        )

    def _request(self, frame: Frame) -> None:
        if frame.kind is Kind.SUBMIT:
            self._submit(frame)
        elif frame.kind is Kind.PING:
            self.reply(frame.request_id, Kind.PONG, {})
        elif frame.kind is Kind.BARRIER:
            self._barrier(frame)
        elif frame.kind is Kind.GET:
            self._run(frame, self._get)
        elif frame.kind is Kind.SCAN:
            self._run(frame, self._scan)
        elif frame.kind is Kind.TAIL:
            self._tail(frame)
        elif frame.kind is Kind.WATERMARKS:
            self._watermarks(frame)
        elif frame.kind is Kind.STATUS:
            self._run(frame, self._status)
        elif frame.kind is Kind.ADMIN:
            self._run(frame, self._admin)
        elif frame.kind in (Kind.SNAPSHOT_READ, Kind.LOG_READ):
            self._run(frame, self._piece)
        else:
            raise ProtocolError(f"{frame.kind.name} is not a request")

    def _run(self, frame: Frame, work: Callable[[Frame], Coroutine[Any, Any, None]]) -> None:
        request_id = frame.request_id
        if request_id in self._tasks or len(self._tasks) >= REQUESTS_MAX:
            raise QuotaExceeded(
                f"{len(self._tasks)} requests are under way here",
                limit=REQUESTS_MAX,
                used=len(self._tasks),
                retry_after=0.05,
            )
        self._tasks[request_id] = asyncio.get_running_loop().create_task(self._guarded(frame, work))

    async def _guarded(self, frame: Frame, work: Callable[[Frame], Coroutine[Any, Any, None]]) -> None:
        request_id = frame.request_id
        try:
            await work(frame)  # begun here: whoever is cancelled before leaves no coroutine that nobody awaited
        except LogboomError as error:
            self.fail(request_id, error)
        except Exception as error:
            log.error("request_failed", exc_info=error)
            self.fail(request_id, Unavailable(f"the node failed to answer: {type(error).__name__}"))
        finally:
            self._tasks.pop(request_id, None)

    def _deadline(self, header: dict[str, Any]) -> float:
        timeout_ms = min(field_of(header, "timeout_ms", int, 30_000), self._service.settings.net.request_ms_max)
        return float(self._backend.clock.monotonic() + timeout_ms / 1000)

    def _submit(self, frame: Frame) -> None:
        request = parse_submit(frame, now=self._backend.clock.monotonic())
        if self._submits >= REQUESTS_MAX:
            raise QuotaExceeded(
                "too many submits are under way", limit=REQUESTS_MAX, used=self._submits, retry_after=0.05
            )
        self._submits += 1
        request_id = frame.request_id

        def done(answer: SubmitReply | LogboomError) -> None:
            self._submits -= 1
            if isinstance(answer, LogboomError):
                self.fail(request_id, answer)
            else:
                self.reply(request_id, Kind.SUBMITTED, encode_reply(answer))
            if not self._submits and self._open:
                self.connection.flush()  # there is nothing to gather it with

        self._backend.submit(request, done)

    async def _get(self, frame: Frame) -> None:
        header, body = await reads.get(self._backend, frame.header, self._deadline(frame.header))
        self.reply(frame.request_id, Kind.VALUES, header, body)

    async def _scan(self, frame: Frame) -> None:
        previous: tuple[dict[str, Any], list[Any]] | None = None
        async for chunk in reads.scan(self._backend, frame.header, self._deadline(frame.header)):
            if previous is not None:
                await self._uncongested()
                self.reply(frame.request_id, Kind.ENTRIES, *previous, flags=FLAG_MORE)
            previous = chunk
        if previous is not None:
            self.reply(frame.request_id, Kind.ENTRIES, *previous)

    async def _uncongested(self) -> None:
        while self._open and self.connection.congested:
            room = asyncio.get_running_loop().create_future()
            self._waiting[room] = None
            try:
                await room
            finally:
                self._waiting.pop(room, None)

    def _partitions(self, header: dict[str, Any]) -> list[PartitionId]:
        known = self._backend.partition_ids()
        wanted = header.get("partitions")
        if wanted is None:
            return list(known)
        if not isinstance(wanted, list) or not wanted or any(type(p) is not int for p in wanted):
            raise InvalidRequest("partitions must be a list of partition ids, or nil for all")
        for partition in wanted:
            if partition not in known:
                raise self._backend.missing(partition)
        return [PartitionId(p) for p in wanted]

    def _recovered(self, partitions: Sequence[PartitionId]) -> None:
        self._backend.look()
        if self._backend.recovered(partitions):
            return
        still = [mark for mark in self._backend.watermarks.all(partitions) if mark.state != "running"]
        why = f": partition {still[0].partition_id} is {still[0].state}" if still else ""
        raise Unavailable(f"this node is still recovering{why}; ask another or try again", retry_after=0.1)

    def _barrier(self, frame: Frame) -> None:
        header, backend = frame.header, self._backend
        scope, level = header.get("scope", "node"), header.get("level", "applied")
        if scope not in (Scope.NODE, Scope.LEADER):
            raise InvalidRequest(
                f"scope must be node or leader here, not {shown(scope)}; clients ask every node for the rest"
            )
        if not isinstance(level, str) or level not in {str(each) for each in Level}:
            raise InvalidRequest(f"level must be ordered, durable or applied, not {shown(level)}")
        partitions = self._partitions(header)
        self._recovered(partitions)
        if scope == Scope.LEADER and not backend.raft.admits:
            raise NotLeader("this node does not lead", leader=backend.leader_address())
        request_id = frame.request_id

        def done(answer: list[Watermark] | LogboomError) -> None:
            self._waiters.pop(request_id, None)
            if isinstance(answer, LogboomError):
                self.fail(request_id, answer)
                return
            rows = [to_row(mark) for mark in answer]
            self.reply(
                request_id,
                Kind.REACHED,
                {"global_index": backend.global_commit_index(), "node": backend.node_id, "watermarks": rows},
            )

        waiter = backend.barriers.add(
            client=self,
            target=field_of(header, "global_index", int),
            partitions=partitions,
            level=Level(level),
            deadline=self._deadline(header),
            wait_blocked=bool(header.get("wait_blocked", False)),
            now=backend.clock.monotonic(),
            done=done,
        )
        if waiter is not None:
            self._waiters[request_id] = waiter
            backend.hurry(waiter.behind)

    def _watermarks(self, frame: Frame) -> None:
        partitions = self._partitions(frame.header)
        self._recovered(partitions)
        marks = self._backend.watermarks.all(partitions)
        self.reply(
            frame.request_id,
            Kind.WATERMARKS_REPLY,
            {
                "commit_index": self._backend.global_commit_index(),
                "node": self._backend.node_id,
                "watermarks": [to_row(mark) for mark in marks],
            },
        )

    async def _status(self, frame: Frame) -> None:
        backend = self._backend
        backend.look()
        digests = None
        if frame.header.get("digests"):
            digests = []
            for partition in backend.partition_ids():
                found = await reads.digest(backend, partition)
                if found is None:
                    continue  # its row says that it is damaged
                digest, position = found
                reached = max(position.applied_global_index, backend.watermarks.of(partition).applied_global_index)
                digests.append([partition, reached, digest])
        admission = backend.admission
        # What has not recovered may have shown more before; what stands still must be seen all the same.
        marks = [m for m in backend.watermarks.all() if m.state != "running" or backend.recovered([m.partition_id])]
        self.reply(
            frame.request_id,
            Kind.STATUS_REPLY,
            {
                **backend.status(),
                "partitions": [to_row(mark) for mark in marks],
                "backlog": [[p, *admission.used(p)] for p in backend.partition_ids()],
                "node_backlog": list(admission.used()),
                "waiters": len(backend.barriers),
                "sessions": len(self._service.sessions),
                "digests": digests,
                "uptime_s": backend.clock.monotonic() - self._service.started,
                "version": self._service.version,
            },
        )

    async def _admin(self, frame: Frame) -> None:
        answer = await admin.act(self._backend, frame.header, self._deadline(frame.header))
        self.reply(frame.request_id, Kind.ADMIN_REPLY, answer)

    async def _piece(self, frame: Frame) -> None:
        async with self._one_piece:  # of a megabyte each, however many are asked for at once
            await self._uncongested()
            piece = await self._backend.snapshots.serving.read(frame)
            kind = Kind.SNAPSHOT_PIECE if frame.kind is Kind.SNAPSHOT_READ else Kind.LOG_PIECE
            self.reply(frame.request_id, kind, piece.header, piece.body)

    def _tail(self, frame: Frame) -> None:
        if frame.request_id in self._tails or len(self._tails) >= REQUESTS_MAX:
            raise QuotaExceeded("too many tails", limit=REQUESTS_MAX, used=len(self._tails), retry_after=1.0)
        partition = reads.partition_of_header(self._backend, frame.header)
        tail = Tail(
            self._backend,
            partition,
            start=max(0, field_of(frame.header, "start", int, 0)),
            follow=bool(frame.header.get("follow", False)),
            credit=field_of(frame.header, "credit", int),
            send=lambda kind, header, body, flags: self.reply(frame.request_id, kind, header, body, flags=flags),
            congested=lambda: self.connection.congested,
            ended=lambda error: self._tail_ended(frame.request_id, error),
        )
        self._tails[frame.request_id] = tail
        tail.move()

    def _tail_ended(self, request_id: int, error: LogboomError | None) -> None:
        self._tails.pop(request_id, None)
        if error is not None:
            self.fail(request_id, error)

    def _credit(self, frame: Frame) -> None:
        tail = self._tails.get(frame.request_id)
        if tail is not None:
            tail.add_credit(field_of(frame.header, "bytes", int))

    def _cancel(self, request_id: int) -> None:
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()
        waiter = self._waiters.pop(request_id, None)
        if waiter is not None:
            self._backend.barriers.cancel(waiter)
        tail = self._tails.pop(request_id, None)
        if tail is not None:
            tail.close()
