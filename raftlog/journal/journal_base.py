"""Where a journal begins: the file ``base``. No I/O.

Entries up to the base's Raft index are gone; what they did to the parent state machine is in the base's state.
The file (little-endian)::

    magic "LBBASE" 6, version u16, cluster hash 12, index u64, term u64, first sequence u64,
    hard term u64, floor u64, vote length u16, state length u32, voted-for node id (utf-8, empty: nobody),
    state, crc32c u32 (of everything before)

The first sequence is where the journal files begin that are still needed; hard term, vote and floor are what the
records before it had said.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import google_crc32c

from logboom.errors import CorruptData
from logboom.types import NUMBER_MAX
from ports.formats import refuse_format
from ports.invariant import invariant
from raftlog.journal.journal_codec import AnotherClusters

VERSION: Final = 1
MAGIC: Final = b"LBBASE"
HEADER: Final = struct.Struct("<6sH12sQQQQQHI")
CRC: Final = struct.Struct("<I")
STATE_BYTES_MAX: Final = 1 << 30


class Base(NamedTuple):
    """The entry at Raft index ``index``, of ``term``, and all before it are committed and in ``state``."""

    index: int  # type: ignore[assignment]  # a tuple's method, which nobody wants here
    term: int
    state: bytes
    """The parent state machine there; opaque to the journal."""


class HardState(NamedTuple):
    """What records have said up to some point."""

    term: int = 0
    vote: str | None = None
    floor: int = 1


class BaseRecord(NamedTuple):
    """What the file holds."""

    base: Base
    first_sequence: int
    """Of the first journal file that is still needed."""
    hard: HardState
    """As of the record before that."""


BEGINNING: Final = BaseRecord(Base(1, 0, b""), 1, HardState())
"""Of a journal without the file: a placeholder that every node has."""


def encode(record: BaseRecord, *, cluster: bytes) -> bytes:
    """The whole file."""
    base, first, hard = record
    vote = (hard.vote or "").encode()
    invariant(len(base.state) <= STATE_BYTES_MAX, "a parent state of {} bytes", len(base.state))
    head = HEADER.pack(
        MAGIC, VERSION, cluster, base.index, base.term, first, hard.term, hard.floor, len(vote), len(base.state)
    )
    raw = b"".join((head, vote, base.state))
    return raw + CRC.pack(google_crc32c.value(raw))


def decode(raw: bytes, *, cluster: bytes, path: str) -> BaseRecord:
    """Raises IncompatibleVersion or CorruptData, naming ``path``."""
    if len(raw) < HEADER.size + CRC.size or raw[: len(MAGIC)] != MAGIC:
        raise CorruptData(f"{path}: not a journal's base", path=path, offset=0)
    fields = HEADER.unpack_from(raw)
    _, version, found, index, term, first, hard_term, floor, vote_bytes, state_bytes = fields
    (crc,) = CRC.unpack_from(raw, len(raw) - CRC.size)
    if version != VERSION:
        refuse_format(raw, known=(VERSION,), what="journal base", path=path)
    if google_crc32c.value(raw[: -CRC.size]) != crc:
        raise CorruptData(f"{path}: damaged", path=path, offset=0)
    if found != cluster:
        raise AnotherClusters(f"{path}: of a journal of another cluster", path=path, offset=0)
    end = HEADER.size + vote_bytes
    sized = len(raw) == end + state_bytes + CRC.size and state_bytes <= STATE_BYTES_MAX
    in_range = max(term, hard_term, floor) < NUMBER_MAX and 1 <= index < NUMBER_MAX and floor >= 1
    if not sized or not in_range or not 1 <= first <= NUMBER_MAX:
        raise CorruptData(f"{path}: nonsense: index {index}, term {term}, first record {first}", path=path, offset=0)
    try:
        vote = raw[HEADER.size : end].decode() or None
    except UnicodeDecodeError as error:
        raise CorruptData(f"{path}: a vote for nobody: {error}", path=path, offset=HEADER.size) from error
    return BaseRecord(Base(index, term, raw[end : end + state_bytes]), first, HardState(hard_term, vote, floor))
