"""Answering HTTP, for operators: one request in, one answer out. Who parses and sends is behind ``HttpServers``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from logboom.certs import Tls
from ports.net import Listener

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of a server and of each connection."""

    connections_max: int = 64
    request_s: float = 5.0
    """A request must be whole, an answer taken, and the next request begun within this."""
    request_bytes: int = 16 * 1024
    headers_max: int = 64


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A whole request; it never has a body."""

    method: str
    """``GET`` or ``HEAD``; to be answered alike, whoever sends leaves the body of a HEAD out."""
    path: str
    """Without the query."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case; of several of one name the last."""
    keep_alive: bool = True
    """The client would like to ask more."""
    names: frozenset[str] = frozenset()
    """In the client's certificate; empty without TLS."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def text(cls, status: int, line: str) -> HttpResponse:
        """One line for people."""
        return cls(status, f"{line}\n".encode())


Respond = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpServers(Protocol):
    """Makes servers."""

    async def listen(self, address: str, respond: Respond, *, limits: HttpLimits, tls: Tls | None) -> Listener:
        """Bind ``host:port``. Raises ConfigError. ``respond`` may raise; that is answered with 500."""
        ...
