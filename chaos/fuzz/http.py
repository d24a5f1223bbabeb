"""Target: requests to the operators' port, as a stream."""

from __future__ import annotations

import random

from chaos.fuzz.target import Target, holds
from ports.http import HttpLimits, HttpRequest
from server.world.http_requests import METHODS, REASONS, HttpRefused, RequestDecoder

LIMITS = HttpLimits(request_bytes=512, headers_max=8)
PRINTED = frozenset("".join(map(chr, range(0x21, 0x7F))))


def http(data: bytes) -> None:
    """First byte: how the rest is split. However it arrives, the same requests come out of it, then the same end."""
    seed, raw = data[:1], data[1:]
    cuts = sorted(random.Random(seed).randrange(len(raw) + 1) for _ in range(8))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    whole, end = _fed([raw])
    split, split_end = _fed(pieces)
    holds(whole == split, "a split stream gives other requests")
    holds((end is None) == (split_end is None), f"whole: {end}, split: {split_end}")
    for request in whole:
        _is_sound(request)


def _fed(pieces: list[bytes]) -> tuple[list[HttpRequest], int | None]:
    decoder, found = RequestDecoder(LIMITS), list[HttpRequest]()
    for piece in pieces:
        decoder.feed(piece)
        try:
            while (request := decoder.next_request()) is not None:
                found.append(request)
        except HttpRefused as error:
            holds(error.status in REASONS, f"status {error.status} has no name")
            return found, error.status
        holds(len(decoder._buffer) < LIMITS.request_bytes, "more is kept than a request may have")  # noqa: SLF001
    return found, None


def _is_sound(request: HttpRequest) -> None:
    holds(request.method in METHODS, request.method)
    holds(request.path.startswith("/") and "?" not in request.path, request.path)
    holds(PRINTED.issuperset(request.path), "a path with something that is not printed")
    holds(len(request.headers) <= LIMITS.headers_max, "too many headers")
    for name, value in request.headers.items():
        holds(name and PRINTED.issuperset(name) and name == name.lower(), f"header {name!r}")
        holds(not set(value) & {"\r", "\n", "\0"} and value == value.strip(" \t"), f"value {value!r}")
    holds("transfer-encoding" not in request.headers, "a body that nobody reads")
    holds(not request.headers.get("content-length", "").strip("0"), "a body that nobody reads")


def _http_seeds() -> list[bytes]:
    get = b"GET /metrics?name=x HTTP/1.1\r\nHost: a:1\r\nAccept: text/plain;q=0.5, */*\r\nConnection: close\r\n\r\n"
    each = [
        get,
        get + get.replace(b"GET", b"HEAD"),
        b"\r\nGET / HTTP/1.0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n",
    ]
    return [b"\x07" + raw for raw in each]


TARGETS = [Target("http", http, _http_seeds, "requests to the operators' port, fed in any splits")]
