"""The states file of a snapshot set: every partition's state, one section after the other. Blocking.

Little-endian (docs/disk-format.md)::

    header   magic "LBSTAT", version u16, global index u64, crc32c u32 of these
    section  frames: length u32 (of the body), crc32c u32 (of the body), body; then a frame of length 0 and CRC 0
    body     entries: space u8, key length u32, value length u32, key, value

A frame is closed before it would exceed 256 KiB; an entry that is larger has one to itself. So equal
states are equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import google_crc32c
from blake3 import blake3

from logboom.errors import CorruptData, RecordTooLarge
from logboom.state_machine import ENTRY_BYTES_MAX, ENTRY_KEY_BYTES_MAX, SPACES, Entry, StateDump, in_order
from logboom.types import DIGEST_BYTES, GlobalLogIndex, PartitionId
from ports.disk import File
from ports.formats import refuse_format
from ports.invariant import invariant
from ports.scrub import Piece, Pieces, read_twice, unreadable_is_damage
from snapshots.meta import STATES_HEADER_BYTES, PartitionMeta, SetMeta

MAGIC: Final = b"LBSTAT"
VERSION: Final = 1
HEADER: Final = struct.Struct("<6sHQI")
FRAME: Final = struct.Struct("<II")
ENTRY: Final = struct.Struct("<BII")
END: Final = FRAME.pack(0, 0)
FRAME_BYTES: Final = 256 * 1024
FRAME_BYTES_MAX: Final = ENTRY.size + ENTRY_BYTES_MAX
PIECE_BYTES: Final = 1 << 20
"""Of a write, and of a read that only checks."""
SYNC_BYTES: Final = 8 << 20
"""Written between two syncs: one of all of it would hold up those that commits wait for."""


class Written(NamedTuple):
    """A states file that is whole and synced; the fields of SetMeta that tell of it."""

    global_index: GlobalLogIndex
    partitions: tuple[PartitionMeta, ...]
    states_bytes: int
    states_digest: bytes


class StatesWriter:
    """Writes one states file, partitions in ascending order. One thread at a time.

    ``pace`` is told the bytes of each write, after it; it may wait. After an exception only ``close``: the file is
    worth nothing.
    """

    def __init__(self, file: File, global_index: GlobalLogIndex, pace: Callable[[int], None] | None = None) -> None:
        """``file``: empty; closed by ``close``."""
        self.global_index = global_index
        self._file = file
        self._pace = pace
        self._pending = [header(global_index)]
        self._pending_bytes = STATES_HEADER_BYTES
        self._offset = 0
        self._synced = 0
        self._whole = blake3()
        self._partitions: list[PartitionMeta] = []
        self._failed = False
        self._written: Written | None = None

    def add(self, partition_id: PartitionId, state_machine: str, dump: StateDump) -> None:
        """Write one partition's section; the dump stays open.

        Raises CorruptData if the dump does, or is not in order; RecordTooLarge for an entry over ENTRY_BYTES_MAX or
        a key over ENTRY_KEY_BYTES_MAX; OSError.
        """
        last = self._partitions[-1].partition_id if self._partitions else -1
        invariant(self._written is None and not self._failed, "a states file goes on after its end")
        invariant(partition_id > last, "the state of partition {} after that of {}", partition_id, last)
        self._failed = True
        offset, section = self._offset + self._pending_bytes, blake3()
        for frame in _frames(dump.entries(), partition_id):
            section.update(frame)
            self._put(frame)
        length = self._offset + self._pending_bytes - offset
        digest = section.digest(DIGEST_BYTES)
        self._partitions.append(PartitionMeta(partition_id, state_machine, *dump.position, offset, length, digest))
        self._failed = False

    def finish(self) -> Written:
        """Write the rest, sync. On return the content is durable, its name is not. May be called again."""
        if self._written is None:
            invariant(not self._failed, "a states file is finished after a failure")
            self._failed = True
            if self._pending:
                self._flush()
            self._file.sync()
            self._failed = False
            digest = self._whole.digest(DIGEST_BYTES)
            self._written = Written(self.global_index, tuple(self._partitions), self._offset, digest)
        return self._written

    def close(self) -> None:
        """Idempotent. Finishes nothing."""
        self._file.close()

    def _put(self, raw: bytes) -> None:
        self._pending.append(raw)
        self._pending_bytes += len(raw)
        if self._pending_bytes >= PIECE_BYTES:
            self._flush()

    def _flush(self) -> None:
        pending, size = self._pending, self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        for raw in pending:
            self._whole.update(raw)
        self._offset += self._file.write(pending, offset=self._offset)
        if self._offset - self._synced >= SYNC_BYTES:
            self._file.sync()
            self._synced = self._offset
        if self._pace is not None:
            self._pace(size)


def header(global_index: GlobalLogIndex) -> bytes:
    """The first bytes of a states file."""
    raw = HEADER.pack(MAGIC, VERSION, global_index, 0)[:-4]
    return raw + struct.pack("<I", google_crc32c.value(raw))


def check_header(file: File, global_index: GlobalLogIndex) -> None:
    """Raises IncompatibleVersion or CorruptData, naming the file."""
    raw, path = file.read(offset=0, length=STATES_HEADER_BYTES), str(file.path)
    if len(raw) < STATES_HEADER_BYTES or raw[: len(MAGIC)] != MAGIC:
        raise CorruptData(f"{path}: not the states of a snapshot set", path=path, offset=0)
    if HEADER.unpack(raw)[1] != VERSION:
        refuse_format(raw, known=(VERSION,), what="states", path=path)
    if raw != header(global_index):
        raise CorruptData(f"{path}: the states of another snapshot set, or damaged", path=path, offset=0)


def _frames(entries: Iterator[Entry], partition_id: PartitionId) -> Iterator[bytes]:
    """With the end."""
    body: list[bytes] = []
    size = 0
    for space, key, value in in_order(entries):
        length = len(key) + len(value)
        if len(key) > ENTRY_KEY_BYTES_MAX or length > ENTRY_BYTES_MAX:
            raise RecordTooLarge(
                f"partition {partition_id}: an entry of its state has {length} bytes, {len(key)} of them the key; "
                f"a snapshot takes {ENTRY_BYTES_MAX}, and {ENTRY_KEY_BYTES_MAX} of a key",
                limit=ENTRY_BYTES_MAX,
                size=length,
            )
        if body and size + ENTRY.size + length > FRAME_BYTES:
            yield _frame(body)
            body, size = [], 0
        body += (ENTRY.pack(space, len(key), len(value)), key, value)
        size += ENTRY.size + length
    if body:
        yield _frame(body)
    yield END


def _frame(body: list[bytes]) -> bytes:
    raw = b"".join(body)
    return FRAME.pack(len(raw), google_crc32c.value(raw)) + raw


def read_section(file: File, meta: PartitionMeta, *, patient: bool = False) -> Iterator[Entry]:
    """One partition's entries. Holds one frame at a time, and reads none that claims more than FRAME_BYTES_MAX.

    Entries come out of frames whose checksum holds; the digest of the section is compared after the last one. So who
    uses entries before the end must be able to give them up. Raises CorruptData with ``path`` and ``offset``.
    ``patient``: see ``read_twice``.
    """

    def read(offset: int, length: int) -> bytes:
        if patient:
            return read_twice(lambda: file.read(offset=offset, length=length))
        return file.read(offset=offset, length=length)

    path, offset, end = str(file.path), meta.offset, meta.offset + meta.length
    section = blake3()
    while True:
        head = read(offset, FRAME.size)
        if end - offset < FRAME.size or len(head) < FRAME.size:
            raise _damaged(path, offset, "ends in the middle of a section")
        length, crc = FRAME.unpack(head)
        section.update(head)
        if length == 0:
            break
        if length > min(FRAME_BYTES_MAX, end - offset - FRAME.size):
            raise _damaged(path, offset, f"a frame of {length} bytes")
        body = read(offset + FRAME.size, length)
        if len(body) < length or google_crc32c.value(body) != crc:
            raise _damaged(path, offset, "a frame whose checksum does not hold")
        section.update(body)
        yield from _entries(body, path, offset + FRAME.size)
        offset += FRAME.size + length
    if head != END or offset + FRAME.size != end:
        raise _damaged(path, offset, "a section that ends elsewhere")
    if section.digest(DIGEST_BYTES) != meta.digest:
        raise _damaged(path, meta.offset, f"the state of partition {meta.partition_id} has another digest")


def whole_bytes(file: File, global_index: GlobalLogIndex) -> int:
    """How far a file that is being received is certainly right: its header and the frames whose checksums hold.

    Zeros may be taken for empty sections: whoever uses the file compares its digest at the end. What cannot be read is
    not right.
    """
    offset = 0
    with suppress(CorruptData), unreadable_is_damage():
        for offset in _whole_frames(file, global_index):  # noqa: B007 - the last one counts
            pass
    return offset


def _whole_frames(file: File, global_index: GlobalLogIndex) -> Iterator[int]:
    """Where each ends, as does the header, as far as they are whole."""
    if file.read(offset=0, length=STATES_HEADER_BYTES) != header(global_index):
        return
    offset = STATES_HEADER_BYTES
    yield offset
    while len(head := file.read(offset=offset, length=FRAME.size)) == FRAME.size:
        length, crc = FRAME.unpack(head)
        if length > FRAME_BYTES_MAX:
            break
        body = file.read(offset=offset + FRAME.size, length=length)
        if len(body) < length or google_crc32c.value(body) != crc:
            break
        offset += FRAME.size + length
        yield offset


def _entries(body: bytes, path: str, offset: int) -> Iterator[Entry]:
    at = 0
    while at < len(body):
        start = at + ENTRY.size
        if start > len(body):
            raise _damaged(path, offset + at, "an entry that does not end")
        space, key_bytes, value_bytes = ENTRY.unpack_from(body, at)
        middle, end = start + key_bytes, start + key_bytes + value_bytes
        if space >= len(SPACES) or end > len(body):
            raise _damaged(path, offset + at, "not an entry of a state")
        yield SPACES[space], body[start:middle], body[middle:end]
        at = end


def verify_states(file: File, meta: SetMeta, *, anew: bool = False) -> None:
    """Read it all: size, header, digest. Raises CorruptData, with the first offset that is wrong if frames tell it.

    ``anew``: of the disk rather than of memory.
    """
    path, size = str(file.path), file.size()
    read = file.read_anew if anew else file.read
    if size != meta.states_bytes:
        raise _damaged(path, min(size, meta.states_bytes), f"{size} bytes, {meta.states_bytes} expected")
    check_header(file, meta.global_index)
    whole = blake3()
    for offset in range(0, size, PIECE_BYTES):
        whole.update(read(offset=offset, length=PIECE_BYTES))
    if whole.digest(DIGEST_BYTES) == meta.states_digest:
        return
    for partition in meta.partitions:
        for _ in read_section(file, partition):
            pass
    raise _damaged(path, 0, "another digest than its set says")


def scrub_states(file: File, meta: SetMeta) -> Pieces:
    """``verify_states``, piece by piece and of the disk. Raises CorruptData."""
    path, size = str(file.path), file.size()
    if size != meta.states_bytes:
        raise _damaged(path, min(size, meta.states_bytes), f"{size} bytes, {meta.states_bytes} expected")
    whole = blake3()
    for offset in range(0, size, PIECE_BYTES):
        raw = file.read_anew(offset=offset, length=PIECE_BYTES)
        whole.update(raw)
        yield Piece(len(raw))
    if whole.digest(DIGEST_BYTES) != meta.states_digest:
        raise _damaged(path, 0, "another digest than its set says")


def _damaged(path: str, offset: int, story: str) -> CorruptData:
    return CorruptData(f"{path}, offset {offset}: {story}", path=path, offset=offset)
