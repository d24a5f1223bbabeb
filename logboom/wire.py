"""The wire protocol's frames, without any I/O: bytes in, frames out, and back.

A frame is a 20-byte prefix, a msgpack header and a raw body::

    u32 length        bytes after this field (16 + header + body)
    u8  kind          what it is, see Kind
    u8  flags         bit 0: more frames of this reply follow (streams)
    u16 version       of the prefix and header layout: 1
    u32 header_length bytes of msgpack
    u64 request_id    chosen by the asker, echoed in every reply; 0: no reply
    ... header        a msgpack map with short string keys, see docs/protocol.md
    ... body          raw sections back to back; their lengths are in the header

All integers little-endian. Payload bytes are never wrapped in msgpack.
"""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import google_crc32c
import msgspec.msgpack
import numpy as np

from logboom.errors import IncompatibleVersion, ProtocolError, RecordTooLarge

PROTOCOL_VERSION: Final = 1
PREFIX: Final = struct.Struct("<IBBHIQ")
PREFIX_BYTES: Final = PREFIX.size
LENGTH: Final = struct.Struct("<I")
FRAME_BYTES_MAX: Final = (1 << 32) + 3
"""What can be written at all."""
HEADER_BYTES_MAX: Final = 256 * 1024
"""Of what strangers may send, a node's clients among them: decoded, a header takes many times its size. Who trusts the
other side takes headers as large as frames."""
REPLY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest frame that a client takes from its node, all of it header if need be."""
FLAG_MORE: Final = 1
CHECKED: Final = "crc"
"""Last in a header, if the sender has put it there: CRC-32C of all of the frame but these 4 bytes."""
CRC: Final = struct.Struct("<I")
PLACE_BYTES: Final = 64 * 1024
READ_BYTES: Final = 64 * 1024
EARNED: Final = 16
"""Memory for a whole frame is taken when one byte in so many has come: who only announces it gets none."""
BEHIND_BYTES: Final = 1024
"""Most of what follows a large frame that is read along with it: behind a batch comes the message that orders it, and
who has both at once has one group to sync, not two after each other."""
ARRIVING_BYTES: Final = 256
"""Kind and header of a frame that has not ended are known if they are within so much."""

Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    """Frame kinds. Below 64: client protocol; from 64: between nodes."""

    HELLO = 1
    WELCOME = 2
    SUBMIT = 10
    SUBMITTED = 11
    GET = 12
    VALUES = 13
    SCAN = 14
    ENTRIES = 15
    TAIL = 16
    RECORDS = 17
    CREDIT = 18
    BARRIER = 20
    REACHED = 21
    STATUS = 22
    STATUS_REPLY = 23
    WATERMARKS = 24
    WATERMARKS_REPLY = 25
    ADMIN = 26
    ADMIN_REPLY = 27
    CANCEL = 30
    ERROR = 31
    END = 32
    PING = 33
    PONG = 34
    SNAPSHOT_READ = 40
    SNAPSHOT_PIECE = 41
    LOG_READ = 42
    LOG_PIECE = 43
    BARRIER_PROGRESS = 44
    WATCH = 45
    WATCHED = 46
    INDEX_AT = 47
    INDEX_IS = 48
    BATCHES = 52
    SKIPPED = 53
    METADATA = 54
    DATA_READ = 55
    DATA = 56
    LOG_SCAN = 57
    VIEW_SCAN = 58

    PEER_HELLO = 64
    PEER_WELCOME = 65
    PAYLOAD = 66
    RAFT = 67
    NEED = 68
    PROGRESS = 69
    FORWARD = 70
    FORWARDED = 71
    FETCH = 72
    FETCHED = 73
    SNAPSHOT_OFFER = 74
    SNAPSHOT_FETCH = 75
    SNAPSHOT_CHUNK = 76
    LOG_FETCH = 77
    LOG_CHUNK = 78
    SNAPSHOT_WANTED = 79
    FRONTIERS_WANTED = 80
    FRONTIERS = 81
    INDEX_ASK = 82
    INDEX_TOLD = 83


def _no_extension(code: int, _: memoryview) -> None:
    raise ValueError(f"extension type {code}")


KINDS: Final = {int(kind): kind for kind in Kind}

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_no_extension).decode
_NO_CHECKSUM: Final = bytes(CRC.size)
AGAIN_BYTES_MAX: Final = 65_536
"""Longer headers are not kept to see whether they come again."""


class _Again:
    """Headers of answers that thousands are given by the same move (REACHED): equal bytes are read once.

    Frames share what they say: whoever reads it changes nothing.
    """

    __slots__ = ("_header", "_raw")

    def __init__(self) -> None:
        self._raw = b""
        self._header: dict[str, Any] = {}

    def unpack(self, raw: memoryview) -> dict[str, Any]:
        """Raises what msgspec does."""
        if self._raw and raw == self._raw:
            return self._header
        header = _unpack(raw)
        if len(raw) <= AGAIN_BYTES_MAX and CHECKED not in header:  # which is taken out of it
            self._raw, self._header = bytes(raw), header
        return header


class Frame(NamedTuple):
    """One received frame. ``body`` is a view that stays valid as long as it is referenced."""

    kind: Kind
    request_id: int
    header: dict[str, Any]
    body: memoryview = memoryview(b"")
    flags: int = 0
    size: int = 0
    """Bytes that it came in."""

    @property
    def more(self) -> bool:
        """Further frames of the same reply follow."""
        return bool(self.flags & FLAG_MORE)


def encode(
    kind: Kind,
    header: Mapping[str, Any],
    body: Sequence[Buffer] = (),
    *,
    request_id: int = 0,
    flags: int = 0,
    header_bytes_max: int = FRAME_BYTES_MAX,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    checked: bool = False,
) -> list[Buffer]:
    """The buffers of one frame: one for prefix and header, then ``body`` as given (not copied).

    ``checked``: whoever reads it finds out whether it was changed on its way.

    Raises RecordTooLarge for what is above the bounds, those of whoever is to read it; TypeError, ValueError or
    OverflowError for a header that msgpack cannot hold.
    """
    try:
        packed = _pack({**header, CHECKED: _NO_CHECKSUM} if checked else header)
    except RecursionError as error:
        raise ValueError("the header is nested too deeply") from error
    size = PREFIX_BYTES - 4 + len(packed) + sum(map(len, body))
    if len(packed) > header_bytes_max:
        raise _too_large(kind, "header", len(packed), header_bytes_max)
    if size + 4 > frame_bytes_max:
        raise _too_large(kind, "frame", size + 4, frame_bytes_max)
    prefix = PREFIX.pack(size, kind, flags, PROTOCOL_VERSION, len(packed), request_id)
    if not checked:
        return [prefix + packed, *body]
    head = prefix + packed[: -CRC.size]
    return [head + CRC.pack(_checksum(head, body)), *body]


class Alike:
    """A frame without a body that answers many requests: encoded once, for each there is only another number in it."""

    __slots__ = ("_fields", "_packed")

    def __init__(self, kind: Kind, header: Mapping[str, Any]) -> None:
        self._packed = _pack(header)
        self._fields = (PREFIX_BYTES - 4 + len(self._packed), kind, 0, PROTOCOL_VERSION, len(self._packed))

    def to(self, request_ids: Iterable[int]) -> bytes:
        """To each of these, one after the other."""
        fields, packed = self._fields, self._packed
        return b"".join([part for number in request_ids for part in (PREFIX.pack(*fields, number), packed)])


def _checksum(head: bytes, body: Iterable[Buffer]) -> int:
    found: int = google_crc32c.value(head)
    for each in body:
        found = google_crc32c.extend(found, bytes(each))
    return found


def _too_large(kind: Kind, what: str, size: int, limit: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"{kind.name}: a {what} of {size} bytes; the other side takes {limit}: ask for less at a time",
        size=size,
        limit=limit,
    )


def shown(value: Any) -> str:
    """Something that the other side sent, for a message: short, however long it is and however deep it goes."""
    return reprlib.repr(value)


class FrameDecoder:
    """Cuts a byte stream into frames; refuses a length before it allocates for it.

    Bytes come by ``feed``, or by being read into ``room``, which for the rest of a large frame is where it stays.
    """

    def __init__(
        self,
        *,
        frame_bytes_max: int,
        header_bytes_max: int = HEADER_BYTES_MAX,
        shared: memoryview | None = None,
        place_bytes: int = PLACE_BYTES,
    ) -> None:
        """``shared``: what is read elsewhere than into its place; others may use it, between ``room`` and the next.

        Frames of ``place_bytes`` and more get a place of their own, once a part of them has come.
        """
        self.frame_bytes_max = frame_bytes_max
        self.header_bytes_max = header_bytes_max
        self._shared = shared
        self._place_bytes = place_bytes
        self._buffer = bytearray()
        self._again = _Again()
        self._target = 0  # whole size of the frame that is being collected, 0: not known yet
        self._place: memoryview | None = None
        self._whole = 0
        """Size of the frame in ``_place``, behind which there is room for ``BEHIND_BYTES`` of what follows."""
        self._filled = 0

    @property
    def mid_frame(self) -> bool:
        """A frame has begun and not ended: the sender owes bytes."""
        return bool(self._buffer) or self._place is not None

    @property
    def arriving(self) -> Frame | None:
        """A frame that has begun and not ended, without its body. None: there is none, or its header is to come."""
        size = self._filled if self._place is not None else len(self._buffer)
        if size < PREFIX_BYTES:
            return None
        begun = memoryview(bytes((self._buffer if self._place is None else self._place)[: min(size, ARRIVING_BYTES)]))
        end = PREFIX_BYTES + int(PREFIX.unpack_from(begun)[4])
        try:
            return _parse(begun[:end], ARRIVING_BYTES, self._again, whole=False) if end <= len(begun) else None
        except (ProtocolError, IncompatibleVersion):
            return None  # once it is whole it is refused

    def room(self) -> memoryview:
        """Where to read the next bytes into, and no more of them than fit. Then call ``received``.

        The rest of a large frame has its place here, with a little of what follows.
        """
        if self._place is not None:
            return self._place[self._filled :]
        if self._shared is None:
            self._shared = memoryview(bytearray(READ_BYTES))
        return self._shared

    def received(self, size: int, *, frames_max: int = 0) -> list[Frame]:
        """So many bytes were read into ``room``: as ``feed``."""
        if self._place is None:
            shared = self.room() if self._shared is None else self._shared
            return self.feed(shared[:size], frames_max=frames_max)
        end, whole = self._filled + size, self._whole
        if end <= whole:
            return self._fill(size)
        behind = self._place[whole:end]
        frames = self._fill(whole - self._filled)
        if len(frames) == frames_max:
            self._buffer = bytearray(behind)
            return frames
        return frames + self.feed(behind, frames_max=max(0, frames_max - len(frames)))

    def _fill(self, size: int) -> list[Frame]:
        place, self._filled = self._place, self._filled + size
        if place is None or self._filled < self._whole:
            return []
        self._place, self._filled = None, 0
        return [_parse(place[: self._whole], self.header_bytes_max, self._again)]

    def feed(self, data: Buffer, *, frames_max: int = 0) -> list[Frame]:
        """Take bytes as they come; returns the frames that are now whole, ``frames_max`` of them at most (0: all).

        Raises ProtocolError (too large, unknown kind, bad header) and IncompatibleVersion;
        the connection must then be closed.
        """
        frames: list[Frame] = []
        if self._place is not None:
            data, room = memoryview(data), self._place[self._filled : self._whole]
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data, frames = data[size:], self._fill(size)
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._target:
                self._make_room()
                return frames
            data = self._buffer
        if frames and len(frames) == frames_max:
            self._buffer = bytearray(data)
            return frames
        self._cut(memoryview(data), frames, frames_max=frames_max, owned=data is self._buffer)
        if self._target:
            self._make_room()
        return frames

    def _cut(self, data: memoryview, frames: list[Frame], *, frames_max: int, owned: bool) -> None:
        """Whole frames off the front; what is left is kept. ``owned``: nobody else has, or changes, these bytes."""
        offset, size, self._target = 0, len(data), 0
        while size - offset >= 4:
            (length,) = LENGTH.unpack_from(data, offset)
            whole = length + 4
            if whole > self.frame_bytes_max or whole < PREFIX_BYTES:
                raise ProtocolError(
                    f"frame of {whole} bytes; allowed are {PREFIX_BYTES} to {self.frame_bytes_max}",
                    size=whole,
                    limit=self.frame_bytes_max,
                )
            if size - offset < whole:
                self._target = whole
                break
            # A large one that came alone is handed over as it is; others would keep each other's bytes in memory.
            alone = owned and whole == size
            frame = data if alone else memoryview(bytes(data[offset : offset + whole]))
            frames.append(_parse(frame, self.header_bytes_max, self._again))
            offset += whole
            if len(frames) == frames_max:
                break
        if offset == size:
            self._buffer = bytearray()
        elif offset or not owned:
            self._buffer = bytearray(data[offset:])

    def _make_room(self) -> None:
        size = len(self._buffer)
        if self._target >= self._place_bytes and size * EARNED >= self._target > size:
            self._place = np.empty(self._target + BEHIND_BYTES, np.uint8).data  # not zeros first
            self._whole, self._filled = self._target, size
            self._place[:size] = self._buffer
            self._buffer, self._target = bytearray(), 0


def _parse(frame: memoryview, header_bytes_max: int, again: _Again, *, whole: bool = True) -> Frame:
    if not frame.readonly:
        frame = frame.toreadonly()  # as if read from a disk: nobody finds out only then that he has written to it
    _, number, flags, version, header_length, request_id = PREFIX.unpack_from(frame)
    if version != PROTOCOL_VERSION:
        raise IncompatibleVersion(
            f"frame of protocol version {version}; this side speaks {PROTOCOL_VERSION}",
            found=version,
            supported=PROTOCOL_VERSION,
        )
    kind = KINDS.get(number)
    if kind is None:
        raise ProtocolError(f"unknown frame kind {number}", kind=number)
    end = PREFIX_BYTES + header_length
    if header_length > header_bytes_max or end > len(frame):
        raise ProtocolError(f"frame header of {header_length} bytes does not fit", size=header_length)
    try:
        raw = frame[PREFIX_BYTES:end]
        header = again.unpack(raw) if kind is Kind.REACHED else _unpack(raw)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"frame header is not a msgpack map with strings for keys: {error}") from error
    if whole and CHECKED in header and not _is_as_sent(frame, end, header.pop(CHECKED)):
        raise ProtocolError(f"{kind.name}: the frame was changed on its way: it does not match its checksum")
    return Frame(kind, request_id, header, frame[end:], flags, len(frame) if whole else 0)


def _is_as_sent(frame: memoryview, end: int, said: Any) -> bool:
    """``end``: of its header, whose last bytes are the checksum."""
    at = end - CRC.size
    found = CRC.pack(_checksum(bytes(frame[:at]), (frame[end:],)))
    return bool(said == found == frame[at:end])
