"""Ordered, framed connections. The frame layout is ``logboom.wire``'s; this is only who calls whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from logboom.certs import Tls
from logboom.wire import HEADER_BYTES_MAX, Frame

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class Traffic:
    """What has passed through some connections, counted by them."""

    opened: int = 0
    frames_in: int = 0
    bytes_in: int = 0
    frames_out: int = 0
    bytes_out: int = 0
    refused: int = 0
    """Connections, as there were too many: turned away, or cut before they had introduced themselves."""
    cut: int = 0
    """Connections, for being slow or breaking the protocol."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection; sizes in bytes, times in seconds."""

    unauthenticated_frame_bytes: int = 4 * 1024
    frame_bytes: int = 1024 * 1024
    header_bytes: int = HEADER_BYTES_MAX
    """Of a frame's header, once the other side is introduced; before that ``HEADER_BYTES_MAX`` at most."""
    handshake_s: float = 5.0
    connect_s: float | None = None
    """Where a machine says nothing at all it is given up after so long; None: as one that does not introduce itself."""
    frame_s: float = 10.0
    """A frame that has begun must end within this."""
    send_buffer_bytes: int = 8 * 1024 * 1024
    """Above this ``Connection.congested`` is true; at twice this the connection is cut."""
    unread_bytes_max: int = 0
    """What waits to be sent on all connections of one listener together: above half of it each that has something
    waiting is congested, and above it who has most is cut. 0: any number."""
    connections_max: int = 4096
    """Open connections of one listener. For one more the one goes that has not introduced itself for the longest."""
    connections_per_address: int = 0
    """Open connections of one listener from one address, or one network of 64 bits; 0: any number."""
    traffic: Traffic = field(default_factory=Traffic, compare=False)
    """Where the connections with these limits count."""


class Connection(Protocol):
    """One open connection, both ends' view."""

    @property
    def remote(self) -> str:
        """Address of the other end, for logs."""
        ...

    @property
    def peer_identities(self) -> frozenset[str]:
        """Names in the other end's verified certificate; empty without TLS."""
        ...

    def authenticated(self) -> None:
        """The handshake is done: raise the limits of frames and drop the handshake deadline."""
        ...

    def send(self, buffers: Sequence[Buffer], *, frames: int = 1) -> None:
        """Queue whole frames, so many. Buffers must not change afterwards. Silently nothing once closed."""
        ...

    def flush(self) -> None:
        """Send now what is queued; otherwise it leaves at the end of this turn, together."""
        ...

    def hold_back(self, seconds: float) -> None:
        """What is queued need not leave with this turn: it may wait this long, or until something else is sent.

        Called again before it has left, it does not wait longer for that.
        """
        ...

    @property
    def queued(self) -> int:
        """Bytes that wait to be sent."""
        ...

    @property
    def left_bytes(self) -> int:
        """So many have been sent since it was opened; what waits is not."""
        ...

    @property
    def arriving(self) -> Frame | None:
        """What has begun to come and not ended, without its body, once its header is here."""
        ...

    @property
    def congested(self) -> bool:
        """True while more than ``send_buffer_bytes`` wait to be sent, or anything while all together have too much."""
        ...

    def pause_reading(self) -> None:
        """Stop taking frames in (backpressure)."""
        ...

    def resume_reading(self) -> None:
        """Take frames in again."""
        ...

    def close(self) -> None:
        """Flush what is queued, then close. Idempotent."""
        ...

    def abort(self) -> None:
        """Close at once and drop what is queued. Idempotent."""
        ...


class ConnectionHandler(Protocol):
    """What a connection calls, on the loop."""

    def opened(self, connection: Connection) -> None:
        """Connected (and, with TLS, verified)."""
        ...

    def frame(self, frame: Frame) -> None:
        """One whole frame, in order."""
        ...

    def read_done(self) -> None:
        """All frames of one read have been handed over."""
        ...

    def drained(self) -> None:
        """No longer congested."""
        ...

    def closed(self, error: Exception | None) -> None:
        """Called once, at the end."""
        ...


class Listener(Protocol):
    """A bound port."""

    @property
    def address(self) -> str:
        """``host:port`` as bound."""
        ...

    async def close(self) -> None:
        """Stop accepting, cut what is open."""
        ...


class Network(Protocol):
    """Makes connections."""

    async def listen(
        self,
        address: str,
        handler: Callable[[], ConnectionHandler],
        *,
        limits: ConnectionLimits,
        tls: Tls | None,
    ) -> Listener:
        """Bind ``host:port``; one handler per accepted connection."""
        ...

    async def dial(
        self,
        address: str,
        handler: ConnectionHandler,
        *,
        limits: ConnectionLimits,
        tls: Tls | None,
    ) -> Connection:
        """Connect, or raise OSError."""
        ...
