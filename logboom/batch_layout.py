"""The first 128 bytes of a batch: on disk, between nodes, in BATCHES to clients. See ``partitions/log/batch.py``."""

from __future__ import annotations

import struct
from typing import Final

MAGIC: Final = b"LBB1"
VERSION: Final = 1
HEAD: Final = struct.Struct("<4sHHIIQQQ16sIIQQII")
"""Magic, version, flags, partition, records, first index, term, timestamp, producer, epoch, codec, first sequence,
floor, metadata length, data length."""
DIGESTS: Final = struct.Struct("<16s16s")
CRC: Final = struct.Struct("<I4x")
FLAG_WIDE: Final = 2
"""Commands over several keys count in it (docs/decisions/0036-txn.md)."""
FLAG_MIXED: Final = 4
"""Records of several producers: see ``logboom/origins.py``."""
HEADER_BYTES: Final = HEAD.size + DIGESTS.size + CRC.size
