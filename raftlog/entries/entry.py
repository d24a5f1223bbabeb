"""What the parent log holds: routing entries, packed many to one Raft entry, and control entries.

A Raft command is ``kind (u8) ‖ body``. Kind ``ROUTES``: routing entries back to back,
32 bytes each: ``partition_id u32, term_hint u32, partition_log_index u64, digest 16``.
Kind ``CONTROL``: one msgpack map, for whoever uses the parent log; it routes nothing.
Nothing here can execute anything when decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from logboom.errors import CorruptData
from logboom.types import KIB, PartitionId, PartitionLogIndex, Term
from ports.invariant import invariant

ROUTE: Final = struct.Struct("<IIQ16s")
ROUTE_BYTES: Final = ROUTE.size
TERM_HINT_MAX: Final = (1 << 32) - 1
"""What a routing entry has of a term: its low bits."""
KIND_ROUTES: Final = b"\x10"
"""First byte of our commands; below 0x10 are PySyncObj's own (1: no-op)."""
KIND_CONTROL: Final = b"\x11"
KIND_NOOP: Final = b"\x01"
CONTROL_BYTES_MAX: Final = 64 * KIB


class Route(NamedTuple):
    """``<partition_id, partition_log_index of the batch's last record, digest, term_hint>``."""

    partition_id: PartitionId
    term_hint: Term
    last_index: PartitionLogIndex
    digest: bytes


def pack_routes(routes: Sequence[Route]) -> bytes:
    """One Raft command."""
    rows = [ROUTE.pack(partition, term & TERM_HINT_MAX, index, digest) for partition, term, index, digest in routes]
    return KIND_ROUTES + b"".join(rows)


def unpack_routes(command: bytes) -> list[Route]:
    """The routing entries of a command; no-ops and control entries have none. CorruptData for anything else."""
    kind = command[:1]
    if kind == KIND_NOOP or (kind == KIND_CONTROL and unpack_control(command) is not None):
        return []
    if kind != KIND_ROUTES or (len(command) - 1) % ROUTE_BYTES:
        raise CorruptData(f"a Raft command of kind {command[:1].hex() or 'none'} and {len(command)} bytes")
    return [Route(*row) for row in ROUTE.iter_unpack(memoryview(command)[1:])]


def pack_control(fields: Mapping[str, Any]) -> bytes:
    """One Raft command that carries ``fields``: what msgpack can say, in at most ``CONTROL_BYTES_MAX``."""
    command = KIND_CONTROL + bytes(msgpack.packb(dict(fields), use_bin_type=True))
    invariant(len(command) <= CONTROL_BYTES_MAX, "a control entry of {} bytes", len(command))
    return command


def control_bytes(fields: Mapping[str, Any]) -> int:
    """How large that command would be."""
    return len(KIND_CONTROL) + len(msgpack.packb(dict(fields), use_bin_type=True))


def unpack_control(command: bytes) -> dict[str, Any] | None:
    """The fields of a control entry; None for any other command. Raises CorruptData for what is malformed."""
    if command[:1] != KIND_CONTROL:
        return None
    if len(command) > CONTROL_BYTES_MAX:
        raise CorruptData(f"a control entry of {len(command)} bytes")
    try:
        fields: Any = msgpack.unpackb(memoryview(command)[1:], raw=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise CorruptData(f"a control entry that is not msgpack: {error}") from error
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise CorruptData("a control entry that is no map of names")
    return fields


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
