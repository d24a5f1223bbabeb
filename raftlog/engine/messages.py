"""Raft messages between nodes: a msgpack map, checked field by field before the engine sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypedDict, cast

import msgspec

from logboom.errors import ProtocolError
from logboom.types import NUMBER_MAX
from raftlog.entries.configuration import REJOIN_TOKEN_BYTES

Message = dict[str, Any]

Index = Annotated[int, msgspec.Meta(ge=0, lt=NUMBER_MAX)]
"""An index, a term, a round or a sequence."""
Token = Annotated[bytes, msgspec.Meta(min_length=REJOIN_TOKEN_BYTES, max_length=REJOIN_TOKEN_BYTES)]
"""Of a node that has forgotten what it promised."""
Type = Literal[
    "append_entries",
    "next_node_idx",
    "request_vote",
    "response_vote",
    "pre_vote",
    "pre_vote_ok",
    "pre_vote_no",
    "timeout_now",
]
"""Everything else that PySyncObj would act on (forwarded commands, admin, snapshots) is refused."""


class Fields(TypedDict, total=False):
    """All that the engine may see, and of which type. What else comes is left out."""

    type: Type
    term: Index
    seq: Index
    journal: Index
    # append_entries
    commit_index: Index
    prevLogIdx: Index
    prevLogTerm: Index
    entries: list[tuple[bytes, Index, Index]]
    # next_node_idx
    next_node_idx: Index
    reset: bool
    success: bool
    rejoining: Token
    term_before: Index
    # votes
    last_log_index: Index
    last_log_term: Index
    force: bool


FIELDS: Final[Mapping[Type, frozenset[str]]] = {
    "append_entries": frozenset({"term", "commit_index", "seq"}),
    "next_node_idx": frozenset({"term", "next_node_idx", "reset", "success", "seq"}),
    "request_vote": frozenset({"term", "last_log_index", "last_log_term"}),
    "response_vote": frozenset({"term"}),
    "pre_vote": frozenset({"term", "last_log_index", "last_log_term"}),
    "pre_vote_ok": frozenset({"term"}),
    "pre_vote_no": frozenset({"term"}),
    "timeout_now": frozenset({"term"}),
}
"""What each must have."""
OF_ENTRIES: Final = frozenset({"prevLogIdx", "prevLogTerm", "entries"})
"""Of append_entries: all of these, or none."""
OF_REPLIES: Final = frozenset({"rejoining", "term_before"})

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = cast(Callable[[memoryview], Message], msgspec.msgpack.Decoder(Fields).decode)


def encode(message: Message) -> bytes:
    """One message."""
    return _pack(message)


def index_in(header: Mapping[str, Any], name: str) -> int:
    """A frame's own index or term. Raises ProtocolError."""
    value = header.get(name)
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise ProtocolError(f"bad field {name}")
    return value


def decode(raw: memoryview) -> Message:
    """Raises ProtocolError, naming what is off."""
    try:
        message = _unpack(raw)  # types and ranges are checked on the way
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"not a Raft message: {error}") from error
    kind, names = message.get("type"), message.keys()
    if kind is None:
        raise ProtocolError("a Raft message without a type")
    if not names >= FIELDS[kind]:
        raise ProtocolError(f"Raft message {kind}: fields are missing: {', '.join(sorted(FIELDS[kind] - names))}")
    if kind != "next_node_idx" and not names.isdisjoint(OF_REPLIES):
        raise ProtocolError(f"Raft message {kind}: {', '.join(sorted(names & OF_REPLIES))} goes with next_node_idx")
    if not names.isdisjoint(OF_ENTRIES):
        _check_entries(message)
    return message


def _check_entries(message: Message) -> None:
    if not message.keys() >= OF_ENTRIES:
        raise ProtocolError("append_entries: entries come with prevLogIdx and prevLogTerm")
    following = message["prevLogIdx"]
    for _, index, _ in message["entries"]:
        following += 1
        if index != following:
            raise ProtocolError("append_entries: entries are not dense")
