"""Raft messages between nodes: a msgpack map, checked field by field before the engine sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

import msgpack

from logboom.errors import ProtocolError
from raftlog.entries.configuration import REJOIN_TOKEN_BYTES

Message = dict[str, Any]

FIELDS: Final[dict[str, dict[str, type]]] = {
    "append_entries": {"term": int, "commit_index": int, "seq": int},
    "next_node_idx": {"term": int, "next_node_idx": int, "reset": bool, "success": bool, "seq": int},
    "request_vote": {"term": int, "last_log_index": int, "last_log_term": int},
    "response_vote": {"term": int},
    "pre_vote": {"term": int, "last_log_index": int, "last_log_term": int},
    "pre_vote_ok": {"term": int},
    "pre_vote_no": {"term": int},
    "timeout_now": {"term": int},
}
"""Everything else that PySyncObj would act on (forwarded commands, admin, snapshots) is refused."""

INDEX_MAX: Final = 1 << 62


def encode(message: Message) -> bytes:
    """One message."""
    packed: bytes = msgpack.packb(message, use_bin_type=True)
    return packed


def index_in(header: Mapping[str, Any], name: str) -> int:
    """A frame's own index or term. Raises ProtocolError."""
    value = header.get(name)
    if type(value) is not int or not 0 <= value < INDEX_MAX:
        raise ProtocolError(f"bad field {name}")
    return value


def decode(raw: memoryview) -> Message:
    """Raises ProtocolError, naming what is off."""
    try:
        message: Any = msgpack.unpackb(raw, raw=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"a Raft message that is not msgpack: {error}") from error
    kind = message.get("type") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(kind, str) or kind not in FIELDS:
        raise ProtocolError("a Raft message of unknown type")
    for name, wanted in FIELDS[kind].items():
        value: Any = message.get(name)
        if type(value) is not wanted or not _in_range(value):
            raise ProtocolError(f"Raft message {kind}: bad field {name}")
    if type(message.get("force", False)) is not bool:
        raise ProtocolError(f"Raft message {kind}: bad field force")
    if "rejoining" in message and (kind != "next_node_idx" or not _is_token(message["rejoining"])):
        raise ProtocolError(f"Raft message {kind}: bad field rejoining")
    if "term_before" in message and (kind != "next_node_idx" or not _is_index(message["term_before"])):
        raise ProtocolError(f"Raft message {kind}: bad field term_before")
    if "entries" in message or "prevLogIdx" in message:
        _check_entries(message)
    return message


def _in_range(value: Any) -> bool:
    return not isinstance(value, int) or 0 <= value < INDEX_MAX


def _is_token(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == REJOIN_TOKEN_BYTES


def _is_index(value: Any) -> TypeGuard[int]:
    return type(value) is int and _in_range(value)


def _check_entries(message: Message) -> None:
    entries, previous = message.get("entries"), message.get("prevLogIdx")
    if not isinstance(entries, list) or not _is_index(previous) or not _is_index(message.get("prevLogTerm")):
        raise ProtocolError("append_entries: bad entries")
    rows: list[tuple[bytes, int, int]] = []
    for position, row in enumerate(entries):
        if not (isinstance(row, list) and len(row) == 3 and isinstance(row[0], bytes) and all(map(_is_index, row[1:]))):
            raise ProtocolError("append_entries: bad entry")
        if row[1] != previous + 1 + position:
            raise ProtocolError("append_entries: entries are not dense")
        rows.append((row[0], row[1], row[2]))
    message["entries"] = rows
