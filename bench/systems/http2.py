"""The least of HTTP/2 that carries gRPC's unary calls quickly: one connection, one method.

etcd speaks gRPC. Python's gRPC spends more on a call than etcd does, and would measure itself; here
the request is bytes prepared in advance, the header block four table references, and only the nine
bytes of a frame's head are looked at in the answer. A call that failed ends without a message.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Final, cast

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
INITIAL_WINDOW_SIZE: Final = 4
FRAME_MAX: Final = 16_384
OWN_WINDOW: Final = (1 << 31) - 1 - 65_535
# :method POST, :scheme http, then :authority, :path, content-type, te from the dynamic table.
REPEATED: Final = bytes((0x83, 0x86, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62))


class CallFailed(ConnectionError):
    """The server refused a call, or the connection ended under it."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def first_headers(path: bytes) -> bytes:
    """The header block of the first request; it also fills the table that ``REPEATED`` refers to."""

    def text(raw: bytes) -> bytes:
        if len(raw) > 126:
            raise ValueError(f"a header of {len(raw)} bytes")
        return bytes((len(raw),)) + raw

    return (
        b"\x83\x86"
        + (b"\x41" + text(b"etcd"))
        + (b"\x44" + text(path))
        + (b"\x5f" + text(b"application/grpc"))
        + (b"\x40" + text(b"te") + text(b"trailers"))
    )


def message(body: bytes) -> bytes:
    """A gRPC message: uncompressed, with its length."""
    return b"\0" + struct.pack(">I", len(body)) + body


class Method(asyncio.Protocol):
    """Calls of one gRPC method on one connection."""

    def __init__(self, path: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._block = first_headers(path.encode())
        self._transport: asyncio.WriteTransport | None = None
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._answers: dict[int, bytes] = {}
        self._next = 1
        self._window = 65_535
        self._stream_window = 65_535
        self._received = 0
        self._waiting: deque[tuple[int, bytes]] = deque()
        self.closed = False

    @classmethod
    async def open(cls, address: str, path: str) -> Method:
        """Connect. Raises OSError."""
        host, port = address.rsplit(":", 1)
        _, method = await asyncio.get_running_loop().create_connection(lambda: cls(path), host, int(port))
        return method

    def call(self, body: bytes) -> asyncio.Future[bytes]:
        """Send one message; the answer's message, without its prefix. Raises CallFailed."""
        answer: asyncio.Future[bytes] = self._loop.create_future()
        if self.closed:
            answer.set_exception(CallFailed("the connection is closed"))
            return answer
        stream, self._next = self._next, self._next + 2
        self._calls[stream] = answer
        if self._waiting or not self._may_send(len(body) + 5):
            self._waiting.append((stream, body))
        else:
            self._send(stream, body)
        return answer

    def close(self) -> None:
        """End the connection; open calls fail."""
        if self._transport is not None:
            self._transport.close()

    # -- sending

    def _may_send(self, size: int) -> bool:
        if size > self._stream_window:
            raise ValueError(f"{size} bytes in one call; the server takes {self._stream_window} at once")
        return size <= self._window

    def _send(self, stream: int, body: bytes) -> None:
        raw = message(body)
        self._window -= len(raw)
        self._write(frame(HEADERS, END_HEADERS, stream, self._block))
        self._block = REPEATED
        for start in range(0, len(raw), FRAME_MAX):
            piece = raw[start : start + FRAME_MAX]
            self._write(frame(DATA, END_STREAM if start + FRAME_MAX >= len(raw) else 0, stream, piece))

    def _write(self, raw: bytes) -> None:
        # One write for everything that one turn of the loop has to say.
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(raw)

    def _flush(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods and not its base class.
        self._transport = cast("asyncio.WriteTransport", transport)
        window = struct.pack(">HI", INITIAL_WINDOW_SIZE, OWN_WINDOW)
        self._write(PREFACE + frame(SETTINGS, 0, 0, window))
        self._write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", OWN_WINDOW)))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        buffer, at, end = self._buffer, 0, len(self._buffer)
        while at + 9 <= end:
            size = buffer[at] << 16 | buffer[at + 1] << 8 | buffer[at + 2]
            if at + 9 + size > end:
                break
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            self._frame(buffer[at + 3], buffer[at + 4], stream, bytes(buffer[at + 9 : at + 9 + size]))
            at += 9 + size
        del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(CallFailed("the connection ended"))
        self._calls.clear()

    # -- receiving

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._answers[stream] = self._answers.get(stream, b"") + payload
            self._received += len(payload)
            if self._received > OWN_WINDOW // 2:
                self._write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received)))
                self._received = 0
        if kind in (DATA, HEADERS):
            if flags & END_STREAM:
                self._end(stream, self._answers.pop(stream, b""))
        elif kind == RST_STREAM:
            self._end(stream, b"")
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == INITIAL_WINDOW_SIZE:
                    self._stream_window = value
            self._write(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
            while self._waiting and self._may_send(len(self._waiting[0][1]) + 5):
                self._send(*self._waiting.popleft())
        elif kind == GOAWAY:
            self.close()

    def _end(self, stream: int, answer: bytes) -> None:
        call = self._calls.pop(stream, None)
        if call is None or call.done():
            return
        if len(answer) < 5:
            call.set_exception(CallFailed("etcd refused the call"))
        else:
            call.set_result(answer[5:])
