"""Origins: whose records a *mixed* batch holds, in the order of its records (docs/decisions/0038-mixed-batches.md).

Single commands of many clients that come at once share a batch. Its header has the flag *mixed*, no producer, and in
place of the epoch how many origins there are; its metadata section begins with a row for each, little-endian::

    producer id 16, epoch u32, record count u32, first sequence u64, floor u64
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from logboom.errors import InvalidRequest
from logboom.types import NUMBER_MAX, PartitionLogIndex, ProducerId

ORIGIN: Final = struct.Struct("<16sIIQQ")
ORIGINS_MAX: Final = 4096
"""Origins in one batch, at most."""


class Origin(NamedTuple):
    """Records ``first_index`` to ``last_index`` of a batch are one producer's, from ``sequence`` on."""

    producer: ProducerId
    """All zero: nobody's; they are not deduplicated."""
    epoch: int
    first_index: PartitionLogIndex
    record_count: int
    sequence: int
    floor: int
    """The producer will repeat nothing below."""

    @property
    def last_index(self) -> PartitionLogIndex:
        """``partition_log_index`` of the last of these records."""
        return PartitionLogIndex(self.first_index + self.record_count - 1)

    @property
    def dense(self) -> bool:
        """Producers whose numbers have no gaps share no batch."""
        return False


def pack_origins(origins: Iterable[Origin]) -> bytes:
    """Their rows."""
    pack = ORIGIN.pack
    return b"".join([pack(o.producer, o.epoch, o.record_count, o.sequence, o.floor) for o in origins])


def origins_in(raw: bytes | memoryview, first_index: int, record_count: int) -> tuple[Origin, ...]:
    """Of a batch of so many records from ``first_index`` on. Raises InvalidRequest, naming what is off."""
    found, index = list[Origin](), first_index
    if len(raw) % ORIGIN.size:
        raise InvalidRequest(f"origins of {len(raw)} bytes; each has {ORIGIN.size}")
    for producer, epoch, count, sequence, floor in ORIGIN.iter_unpack(raw):
        if not count or max(sequence, floor) > NUMBER_MAX:
            raise InvalidRequest(f"an origin of {count} records, sequence {sequence}, floor {floor}")
        found.append(Origin(ProducerId(producer), epoch, PartitionLogIndex(index), count, sequence, floor))
        index += count
    if index != first_index + record_count:
        raise InvalidRequest(f"origins of {index - first_index} records in a batch of {record_count}")
    return tuple(found)
