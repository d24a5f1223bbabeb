"""Which file of a journal is the newest: the file ``newest``. No I/O.

A last file that is gone, empty or zeros looks like one that a crash has kept from being made. This one says that it
had been made: it is replaced when a new file is on the disk, and before the first record goes there.
The file (little-endian)::

    magic "LBNEWE" 6, version u16, cluster hash 12, first sequence of the newest file u64, crc32c u32

A journal of an older release has none.
"""

from __future__ import annotations

import struct
from typing import Final

import google_crc32c

from logboom.errors import CorruptData
from logboom.types import NUMBER_MAX
from ports.formats import refuse_format
from raftlog.journal.journal_codec import AnotherClusters

VERSION: Final = 1
MAGIC: Final = b"LBNEWE"
BODY: Final = struct.Struct("<6sH12sQ")
CRC: Final = struct.Struct("<I")
CLUSTER: Final = slice(8, 20)
"""Where its cluster stands."""


def encode(sequence: int, *, cluster: bytes) -> bytes:
    """The whole file."""
    raw = BODY.pack(MAGIC, VERSION, cluster, sequence)
    return raw + CRC.pack(google_crc32c.value(raw))


def decode(raw: bytes, *, cluster: bytes, path: str) -> int:
    """The sequence. Raises IncompatibleVersion or CorruptData, naming ``path``."""
    if len(raw) < BODY.size + CRC.size or raw[: len(MAGIC)] != MAGIC:
        raise CorruptData(f"{path}: does not name a journal's newest file", path=path, offset=0)
    _, version, found, sequence = BODY.unpack_from(raw)
    (crc,) = CRC.unpack_from(raw, BODY.size)
    if version != VERSION:
        refuse_format(raw[: BODY.size + CRC.size], known=(VERSION,), what="name of the newest file", path=path)
    if len(raw) != BODY.size + CRC.size or google_crc32c.value(raw[: BODY.size]) != crc:
        raise CorruptData(f"{path}: damaged", path=path, offset=0)
    if found != cluster:
        raise AnotherClusters(f"{path}: of a journal of another cluster", path=path, offset=0)
    if not _is_sequence(sequence):
        raise CorruptData(f"{path}: nonsense: record {sequence}", path=path, offset=0)
    return int(sequence)


def _is_sequence(number: int) -> bool:
    return 1 <= number <= NUMBER_MAX
