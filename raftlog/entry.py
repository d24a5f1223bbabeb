"""What the parent log holds: routing entries, packed many to one Raft entry.

A Raft command is ``kind (u8) ‖ body``. Kind ``ROUTES``: routing entries back to back,
32 bytes each: ``partition_id u32, term_hint u32, partition_log_index u64, digest 16``.
Nothing here can execute anything when decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from logboom.errors import CorruptData
from logboom.types import PartitionId, PartitionLogIndex, Term

ROUTE: Final = struct.Struct("<IIQ16s")
ROUTE_BYTES: Final = ROUTE.size
KIND_ROUTES: Final = b"\x10"
"""First byte of our commands; below 0x10 are PySyncObj's own (1: no-op)."""
KIND_NOOP: Final = b"\x01"


class Route(NamedTuple):
    """``<partition_id, partition_log_index of the batch's last record, digest, term_hint>``."""

    partition_id: PartitionId
    term_hint: Term
    last_index: PartitionLogIndex
    digest: bytes


def pack_routes(routes: Sequence[Route]) -> bytes:
    """One Raft command."""
    return KIND_ROUTES + b"".join([ROUTE.pack(*route) for route in routes])


def unpack_routes(command: bytes) -> list[Route]:
    """The routing entries of a command; a no-op has none. Raises CorruptData for anything else."""
    if command[:1] == KIND_NOOP:
        return []
    if command[:1] != KIND_ROUTES or (len(command) - 1) % ROUTE_BYTES:
        raise CorruptData(f"a Raft command of kind {command[:1].hex() or 'none'} and {len(command)} bytes")
    return [Route(*row) for row in ROUTE.iter_unpack(memoryview(command)[1:])]


def pack_requests(
    requests: Sequence[tuple[Sequence[Route], int]], *, entry_bytes_max: int, payload_bytes_max: int
) -> list[list[Route]]:
    """Pack requests (their routes and payload bytes), in order, into as few Raft entries as the bounds allow.

    A request is never split: its routing entries commit as a whole or not at all.
    """
    packs: list[list[Route]] = []
    room = payload_room = -1
    for routes, payload_bytes in requests:
        size = len(routes) * ROUTE_BYTES
        if size > room or payload_bytes > payload_room:
            packs.append([])
            room, payload_room = entry_bytes_max, payload_bytes_max
        packs[-1].extend(routes)
        room -= size
        payload_room -= payload_bytes
    return packs
