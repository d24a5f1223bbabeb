"""What a target is, and how it says that a decoder broke its word."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec.msgpack
import structlog

from logboom.errors import ProtocolError
from logboom.wire import PREFIX, PROTOCOL_VERSION, Frame, FrameDecoder, Kind

INPUT_BYTES_MAX: Final = 1 << 14
FRAME_BYTES_MAX: Final = 1 << 16


class Broken(AssertionError):
    """A decoder returned something that it must not."""


def holds(condition: object, story: str) -> None:
    """Stop with ``story`` unless ``condition``."""
    if not condition:
        raise Broken(story)


@dataclass(frozen=True)
class Target:
    """``one_input`` returns, or raises what no decoder may raise: anything but its own typed errors, or Broken."""

    name: str
    one_input: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    about: str


class Cursor:
    """Reads an input piece by piece; what is missing is zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        """Up to ``size`` bytes."""
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken

    def number(self, size: int) -> int:
        """Little-endian."""
        return int.from_bytes(self.take(size), "little")

    def rest(self) -> bytes:
        return self.take(self.left)


def quiet() -> None:
    """No log lines: what is refused is refused a million times."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def framed(kind: Kind, header: bytes, body: bytes, *, request_id: int = 1) -> Frame | None:
    """A frame as the decoder gives it; None if it refuses the header."""
    size = PREFIX.size - 4 + len(header) + len(body)
    raw = PREFIX.pack(size, kind, 0, PROTOCOL_VERSION, len(header), request_id) + header + body
    try:
        frames = FrameDecoder(frame_bytes_max=1 << 20).feed(raw)
    except ProtocolError:
        return None
    holds(len(frames) == 1, "one whole frame went in")
    return frames[0]


def packed(value: Any) -> bytes:
    """As msgpack."""
    return msgspec.msgpack.encode(value)


def packed_or_none(value: Any) -> bytes | None:
    """None for what msgpack reads and does not write: it reads deeper nesting than it writes."""
    try:
        return packed(value)
    except (ValueError, RecursionError):
        return None


def counted(*pieces: bytes) -> bytes:
    """Each with its length before it (u16), but for the last."""
    return b"".join(struct.pack("<H", len(piece)) + piece for piece in pieces[:-1]) + pieces[-1]
