"""HTTP/1.1 requests out of bytes, sans-io: GET and HEAD without a body, strictly, and nothing else.

Anything that two readers could understand differently is refused, and the connection ends with it.
"""

from __future__ import annotations

import re
from typing import Final

from ports.http import HttpLimits, HttpRequest

METHODS: Final = frozenset(("GET", "HEAD"))
TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
TARGET: Final = re.compile(rb"/[!-~]*")
VALUE: Final = re.compile(rb"[\t -~\x80-\xff]*")
END: Final = b"\r\n\r\n"
REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}


class HttpRefused(Exception):
    """Answer with this, and close."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class RequestDecoder:
    """Cuts a byte stream into requests, one at a time; holds ``request_bytes`` and one read at most."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._seen = 0
        """So much has been looked through for the end of a head."""

    @property
    def mid_request(self) -> bool:
        """A request has begun and is not whole."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take bytes as they come."""
        self._buffer += data

    def next_request(self) -> HttpRequest | None:
        """The next whole one; None: more bytes are needed. Raises HttpRefused, and is of no use afterwards."""
        buffer, limit = self._buffer, self._limits.request_bytes
        while buffer.startswith(b"\r\n"):  # some clients send one too many behind a request
            del buffer[:2]
            self._seen = 0
        end = buffer.find(END, max(0, self._seen - len(END)))
        if end < 0 or end + len(END) > limit:
            self._refuse_early()
            self._seen = len(buffer)
            return None
        head = bytes(buffer[:end])
        del buffer[: end + len(END)]
        self._seen = 0
        return self._parse(head)

    def _refuse_early(self) -> None:
        """Do not wait for the end of what is wrong already."""
        buffer, limit = self._buffer, self._limits.request_bytes
        line_end = buffer.find(b"\n")
        if line_end >= 0 and buffer[max(0, line_end - 1) : line_end] != b"\r":
            raise HttpRefused(400, "lines end with CRLF")
        if len(buffer) >= limit:
            if 0 <= line_end < limit:
                raise HttpRefused(431, f"a request has at most {limit} bytes")
            raise HttpRefused(414, f"a request line has at most {limit} bytes")

    def _parse(self, head: bytes) -> HttpRequest:
        first, *lines = head.split(b"\r\n")
        method, target, version = _request_line(first)
        if len(lines) > self._limits.headers_max:
            raise HttpRefused(431, f"a request has at most {self._limits.headers_max} headers")
        headers: dict[str, str] = {}
        for line in lines:
            name, value = _header(line)
            if name in headers and name in ("host", "content-length"):
                raise HttpRefused(400, f"{name} appears twice")
            headers[name] = value
        if version == b"HTTP/1.1" and "host" not in headers:
            raise HttpRefused(400, "host is missing")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise HttpRefused(400, "content-length is not a number")
        if "transfer-encoding" in headers or length.strip("0"):
            raise HttpRefused(413, "requests have no body here")
        if method not in METHODS:
            raise HttpRefused(405, "GET and HEAD are all there is")
        wishes = {wish.strip().lower() for wish in headers.get("connection", "").split(",")}
        keep_alive = "close" not in wishes and (version == b"HTTP/1.1" or "keep-alive" in wishes)
        return HttpRequest(method, target.partition("?")[0], headers, keep_alive)


def _request_line(line: bytes) -> tuple[str, str, bytes]:
    parts = line.split(b" ")
    if len(parts) != 3 or not TOKEN.fullmatch(parts[0]):
        raise HttpRefused(400, "not a request line")
    method, target, version = parts
    if version not in (b"HTTP/1.0", b"HTTP/1.1"):
        if re.fullmatch(rb"HTTP/[0-9]\.[0-9]", version):
            raise HttpRefused(505, "HTTP/1.1 is spoken here")
        raise HttpRefused(400, "not an HTTP version")
    if not TARGET.fullmatch(target):
        raise HttpRefused(400, "the target must begin with /")
    return method.decode("ascii"), target.decode("ascii"), version


def _header(line: bytes) -> tuple[str, str]:
    name, colon, value = line.partition(b":")
    # A name with a space behind it, and a line that goes on with the one before, hide headers from other readers.
    if not colon or not TOKEN.fullmatch(name) or not VALUE.fullmatch(value):
        raise HttpRefused(400, "not a header")
    return name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")
