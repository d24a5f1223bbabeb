"""Which partition a key belongs to. Part of the protocol: every client in every language must agree.

CRC-32C of the key, its bits mixed (MurmurHash3's 32-bit finalizer), modulo the number of partitions. The mixing
matters: a bare CRC is linear, and keys that differ in a digit would share a few partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import google_crc32c
import numpy as np
import numpy.typing as npt

from logboom.commands import keys_of
from logboom.errors import InvalidRequest
from logboom.types import Record, WideRecord


def partition_of(key: bytes, partitions: int) -> int:
    """0 to ``partitions`` - 1."""
    mixed = int(google_crc32c.value(key))
    mixed = ((mixed ^ mixed >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    mixed = ((mixed ^ mixed >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    return (mixed ^ mixed >> 16) % partitions


def partition_of_record(record: Record, partitions: int) -> int:
    """Where all keys are that it names. Raises InvalidRequest where there is no such partition."""
    if type(record) is not WideRecord:
        return partition_of(record.key or b"", partitions)
    where = {partition_of(key, partitions): key for key in keys_of(record)}
    if len(where) > 1:
        (one, first), (other, second), *_ = where.items()
        raise InvalidRequest(
            f"a Txn is over keys of one partition: {first!r} is in {one}, {second!r} in {other}. Keys that belong "
            "together can be in a partition that you name"
        )
    return next(iter(where))


def partitions_of(keys: Iterable[bytes], partitions: int) -> npt.NDArray[np.int64]:
    """The same for many keys, vectorised but for the CRC; each distinct key is hashed once."""
    rows = keys if isinstance(keys, list) else list(keys)
    distinct = dict.fromkeys(rows)
    picks = partitions_of_each(distinct, partitions)
    if len(distinct) == len(rows):
        return picks
    places = {key: place for place, key in enumerate(distinct)}
    return picks[np.fromiter(map(places.__getitem__, rows), np.int64, len(rows))]


def partitions_of_each(keys: Collection[bytes], partitions: int) -> npt.NDArray[np.int64]:
    """The same for keys that are known to be distinct."""
    mixed = np.fromiter(map(google_crc32c.value, keys), np.uint32, len(keys))
    # Multiplication of uint32 arrays wraps round, as it should.
    mixed = (mixed ^ mixed >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ mixed >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return ((mixed ^ mixed >> np.uint32(16)) % np.uint32(partitions)).astype(np.int64)
