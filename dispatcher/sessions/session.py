"""One connection of a client: which frame becomes which call, and what it is answered.

Nothing that a client sends can produce more than a typed error and, at worst, the end of its own connection.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from dispatcher.reading.read_rates import Pace
from dispatcher.reading.streams import Streams
from dispatcher.requests.relevant import relevant
from dispatcher.requests.tracing import begin
from dispatcher.sessions import permits
from dispatcher.sessions.answering import Answering
from dispatcher.sessions.named import Named
from dispatcher.sessions.principals import all_names, first_name
from dispatcher.sessions.submits import Submits
from dispatcher.sessions.waits import Waits
from logboom.access import Grants, Rules
from logboom.errors import (
    DeadlineExceeded,
    IncompatibleVersion,
    InvalidRequest,
    LogboomError,
    PermissionDenied,
    ProtocolError,
    RecordTooLarge,
    Unauthenticated,
)
from logboom.settings import Settings
from logboom.types import KV_TXN, PARTITION_SETTINGS
from logboom.wire import PROTOCOL_VERSION, REPLY_BYTES_MAX, Buffer, Frame, Kind, encode, shown
from ports.net import Connection
from ports.telling import tellable

if TYPE_CHECKING:
    from dispatcher.sessions.service import ClientService

log = structlog.get_logger(__name__)

FEATURES: Final = ("ack", "log_scan", "keys_in_body", KV_TXN, PARTITION_SETTINGS, "partitions_at")
"""What clients may ask for beyond the first release: a submit that does not say what to wait for; LOG_SCAN; a GET of
more keys than its header has room for; which partitions there are as of an index."""
EFFECTIVE: Final = (Kind.SUBMITTED, Kind.ADMIN_REPLY)
"""Answers to what has been done already."""


def part_of(settings: Settings) -> dict[str, int]:
    """Of WELCOME: what one partition's share of a request may have."""
    admission = settings.admission
    return {
        "part_bytes": min(settings.log.batch_bytes_max, admission.partition_bytes),
        "part_records": min(admission.partition_ops, admission.node_ops),
    }


class Session:
    """One client connection (a ports.net.ConnectionHandler)."""

    def __init__(self, service: ClientService) -> None:
        self._service = service
        self._backend = service.backend
        self._connection: Connection | None = None
        self._introduced = False
        self._grants: Grants | None = None
        """What this client may do; None: everything."""
        self._open = True
        self._named = Named(self._backend)
        self._waits = Waits(self._backend, self, self._named, later=partial(service.looks.later, whose=self._principal))
        self._streams = Streams(
            service.backend,
            reply=self.reply,
            fail=self.fail,
            congested=lambda: self.connection.congested,
            partitions=self._named.shown,
            pace=self._reads,
        )
        self.submits = Submits(self, service)
        self.answering = Answering(self, service, partitions=self._named.shown, pace=self._reads)
        self._pace: Pace | None = None
        self._reply_bytes_max = min(REPLY_BYTES_MAX, 2 * service.settings.net.client_send_buffer_bytes)
        """The second: a connection whose send buffer has more than twice its bound is cut as a slow reader."""

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
                if not self.submits.held_behind(frame):
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
        self.answering.drained()
        self._streams.drained()

    def closed(self, error: Exception | None) -> None:
        self._open = False
        self._service.sessions.pop(self, None)
        self.answering.close()
        self._streams.close()
        self._waits.close()
        self.submits.close()
        if self._pace is not None:
            self._service.read_rates.leave(self._pace)

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
        said: object = error.message
        message = said if isinstance(said, str) else tellable(error)
        log.debug("request_refused", remote=self.remote, request_id=request_id, code=error.code, error=message)
        if not self._open:
            return
        try:
            frame = encode(Kind.ERROR, error.to_wire(), request_id=request_id, frame_bytes_max=self._reply_bytes_max)
        except Exception:  # noqa: BLE001 - one of a user's machine may hold anything
            short_message = f"{message:.500}".encode(errors="replace").decode()
            short = {"code": error.code, "message": short_message, "outcome": error.outcome, "fields": {}}
            frame = encode(Kind.ERROR, short, request_id=request_id)
        self.connection.send(frame)

    def has_room(self) -> bool:
        """The client reads what it is sent."""
        return self._open and not self.connection.congested

    def _principal(self) -> Hashable:
        """Who its waiters are counted for: the names in its certificate; without one, the connection."""
        return all_names(self.connection) or self._waits

    def _reads(self) -> Pace:
        """How fast the client may."""
        if self._pace is None:
            self._pace = self._service.read_rates.enter(first_name(self.connection) or "")
        return self._pace

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
        if self._service.rules is not None:
            self._grants = self._service.rules.of(self.connection.peer_identities)
        self._check(frame)
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
                **part_of(self._service.settings),
                "features": list(FEATURES),
            },
        )

    def may_have_changed(self, rules: Rules) -> bool:
        """By these its client may do something else than by those it was let in by."""
        return self._grants is not None and rules.of(self.connection.peer_identities) != self._grants

    def _check(self, frame: Frame) -> None:
        """It may be asked by this client. Raises PermissionDenied, and InvalidRequest where nobody can tell."""
        if self._grants is not None:
            try:
                permits.check(frame, self._grants, self._backend)
            except PermissionDenied as error:
                self._service.denied(error, self.remote)
                raise

    def _request(self, frame: Frame) -> None:
        self._service.counts.requests[frame.kind] += 1
        self._check(frame)
        if frame.kind is Kind.SUBMIT:
            self.submits.submit(frame)
        elif frame.kind is Kind.PING:
            members = self._backend.members
            said = {"leaderless_ms": self._backend.leaderless.ms, "members_at": [members.term, members.index]}
            self.reply(frame.request_id, Kind.PONG, said)
        else:
            self._begin_in_turn(relevant(frame))

    def _begin_in_turn(self, frame: Frame) -> None:
        if not self.submits.held_back(frame):
            self.begin(frame, self._service.turns.now)

    def begin(self, frame: Frame, came: float) -> None:
        """A request whose turn it is. Raises DeadlineExceeded for a GET that nobody waits for any more."""
        if frame.kind is Kind.WATERMARKS:
            self._waits.watermarks(frame)
        elif frame.kind is Kind.WATCH:
            self._waits.watch(frame, self._principal())
        elif frame.kind in (Kind.TAIL, Kind.LOG_SCAN):
            self._streams.open(frame)
        elif frame.kind is Kind.CREDIT:
            self._streams.credit(frame)
        elif frame.kind not in (Kind.BARRIER, Kind.GET):
            self.answering.answer(frame)
        else:
            self._begin_timed(frame, came + self.answering.timeout(frame.header))

    def _begin_timed(self, frame: Frame, deadline: float) -> None:
        if frame.kind is Kind.BARRIER:
            self._barrier(frame, deadline)
        elif deadline < self._backend.clock.monotonic():
            raise DeadlineExceeded("the deadline passed before the request was looked at", outcome="not_applied")
        else:
            self.answering.get(frame, deadline)

    def _barrier(self, frame: Frame, deadline: float) -> None:
        tracer = self._service.tracer
        trace = None if tracer is None else begin(tracer, "barrier", frame, self.remote)
        try:
            self._waits.barrier(frame, deadline, self._principal(), trace)
        except LogboomError as error:
            if trace is not None:
                trace.end(error)
            raise

    def send_away(self, most: int) -> int:
        """See Waits."""
        return self._waits.send_away(most)

    def reached(self) -> None:
        """A barrier of this client's has been."""
        self._service.counts.barriers_reached += 1

    def _cancel(self, request_id: int) -> None:
        self.submits.cancel(request_id)
        self.answering.cancel(request_id)
        self._waits.cancel(request_id)
        self._streams.cancel(request_id)
