"""Which partition a key belongs to: CRC-32C of the key, modulo the number of partitions.

Part of the protocol: every client in every language must agree (docs/protocol.md, "Keys").
"""

from __future__ import annotations

from collections.abc import Iterable

import google_crc32c
import numpy as np
import numpy.typing as npt


def partition_of(key: bytes, partitions: int) -> int:
    """0 to ``partitions`` - 1."""
    return int(google_crc32c.value(key)) % partitions


def partitions_of(keys: Iterable[bytes], partitions: int) -> npt.NDArray[np.int64]:
    """The same for many keys; each distinct key is hashed once."""
    rows = keys if isinstance(keys, list) else list(keys)
    crc = google_crc32c.value
    known = {key: crc(key) % partitions for key in dict.fromkeys(rows)}
    return np.fromiter(map(known.__getitem__, rows), np.int64, len(rows))
