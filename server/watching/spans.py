"""Spans on their way out: gathered on the loop, handed on by a thread, dropped rather than waited for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from dispatcher.requests.tracing import Span, Value
from ports.offload import Offload

log = structlog.get_logger(__name__)

FLUSH_S: Final = 1.0
BATCH: Final = 512
POST_S: Final = 3.0
"""Seconds for a connection to be made; and for all of a batch to be sent and answered over it."""
CLOSE_S: Final = 5.0
"""For what is under way and what is left, when the node stops. A collector may take for ever, byte by byte."""
KIND_INTERNAL, KIND_SERVER = 1, 2
STATUS_ERROR: Final = 2
ENTRIES: Final = frozenset(("submit", "barrier", "forwarded", "replica"))
"""Spans that begin with a client's request, or another node's."""

Export = Callable[[bytes], None]


class SpanQueue:
    """``emit`` is cheap and never waits; ``exports`` get OTLP JSON, on a thread."""

    def __init__(
        self, *, resource: Mapping[str, Value], exports: Sequence[Export], spans_max: int, offload: Offload
    ) -> None:
        self._resource = resource
        self._exports = exports
        self._spans_max = spans_max
        self._offload = offload
        self._waiting: deque[Span] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._under_way = self._failing = self._closed = False
        self.exported = 0
        self.dropped = 0

    def emit(self, span: Span) -> None:
        """It leaves within a second or so, with others."""
        if len(self._waiting) >= self._spans_max or self._closed:
            self.dropped += 1
            return
        self._waiting.append(span)
        if self._timer is None and not self._under_way:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if not self._waiting or self._under_way:
            return
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        self._under_way = True
        self._offload.submit(lambda: self._send(batch), lambda _, error: self._sent(len(batch), error))

    def _send(self, batch: Sequence[Span]) -> None:
        raw = encode(batch, self._resource)
        failed: Exception | None = None
        for export in self._exports:
            try:
                export(raw)
            except Exception as error:  # noqa: BLE001 - a full disk is no reason to tell the collector nothing
                failed = error
        if failed is not None:
            raise failed

    def _sent(self, count: int, error: BaseException | None) -> None:
        self._under_way = False
        if error is None:
            self.exported += count
        else:
            self.dropped += count
            if not self._failing:  # once, not with every batch
                log.warning("spans_not_exported", error=repr(error))
        self._failing = error is not None
        if not self._closed:
            self._flush()

    async def close(self) -> None:
        """What waits is sent, in one try."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        rest = list(self._waiting)
        self._waiting.clear()
        try:
            async with asyncio.timeout(CLOSE_S) as limit:
                await self._offload.run(lambda: self._send(rest) if rest else None)
            self.exported += len(rest)
        except Exception as error:  # noqa: BLE001 - a node stops well whatever its collector is
            self.dropped += len(rest)
            log.warning("spans_not_exported", error=repr(error))
        if not limit.expired():  # else nobody waits for that thread
            await self._offload.close()


def encode(spans: Sequence[Span], resource: Mapping[str, Value]) -> bytes:
    """An OTLP ExportTraceServiceRequest, as JSON in one line."""
    rows = [_row(span) for span in spans]
    scope = {"scope": {"name": "logboom"}, "spans": rows}
    request = {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}
    return msgspec.json.encode(request)


def _row(span: Span) -> dict[str, Any]:
    row: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": f"logboom.{span.name}",
        "kind": KIND_SERVER if span.name in ENTRIES else KIND_INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes({f"logboom.{name}": value for name, value in span.attributes.items()}),
    }
    if span.parent_id:
        row["parentSpanId"] = span.parent_id
    if span.error is not None:
        row["status"] = {"code": STATUS_ERROR, "message": span.error}
    if span.linked:
        row["links"] = [{"traceId": span.trace_id, "spanId": span.parent_id}]
    return row


def _attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}  # 64 bits are a string in this JSON
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


class SpanFile:
    """Appends one line per batch; at its bound the file makes way for a new one, and the one before that goes."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max

    def __call__(self, raw: bytes) -> None:
        """Raises OSError."""
        with self._path.open("ab") as file:
            file.write(raw + b"\n")
            full = file.tell() >= self._bytes_max
        if full:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))


class SpanPost:
    """Sends each batch to a collector by OTLP over HTTP."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._opener: Any = None

    def __call__(self, raw: bytes) -> None:
        """Raises OSError."""
        import urllib.request  # a node without a collector starts sooner

        opener = self._opener = self._opener or _opener()
        request = urllib.request.Request(  # noqa: S310 - the configuration says http or https, nothing else
            self._endpoint, data=raw, headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with opener.open(request, timeout=POST_S) as answer:
                answer.read(1024)
        except HTTPException as error:
            raise OSError(f"{self._endpoint} does not speak HTTP: {error!r}") from error


def _opener() -> Any:
    """urllib's, with an end to each connection: its own bound is for each read, and a byte now and then goes on."""
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.request import HTTPHandler, HTTPSHandler, build_opener

    def ended(connection: HTTPConnection) -> None:
        end = threading.Timer(POST_S, _shut, (connection.sock,))
        end.daemon = True
        end.start()

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            ended(self)

    class Secure(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            ended(self)

    class PlainHandler(HTTPHandler):
        def http_open(self, req: Any) -> Any:
            return self.do_open(Plain, req)

    class SecureHandler(HTTPSHandler):
        def https_open(self, req: Any) -> Any:
            return self.do_open(Secure, req)

    return build_opener(PlainHandler, SecureHandler)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is over already
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS's own would be no end to a read that is under way
