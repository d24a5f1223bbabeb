"""What nodes say of a batch that they cannot give, and what follows from all of their answers. Sans-io.

Only answers count: silence says nothing (docs/decisions/0018-void.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from logboom.errors import ProtocolError
from logboom.types import DIGEST_BYTES, NUMBER_MAX, NodeId, PartitionId, PartitionLogIndex, Term
from raftlog.entries.entry import ROUTE, ROUTE_BYTES, Route

LACKS_MAX: Final = 16


class Lack(StrEnum):
    """Why a node does not give a batch."""

    ABSENT = "absent"
    """It does not have it, and has not committed it."""
    DAMAGED = "damaged"
    """It had it, and looks for it itself."""
    APPLIED = "applied"
    """It had it, and looks for it itself; its state has what it did, saved to stay."""
    COMPACTED = "compacted"
    """It had it, and has removed it: a snapshot stands for it."""
    UNKNOWN = "unknown"
    """It cannot say now: ask again."""
    LOST = "lost"
    """The word of a leader: no member has it, and the log goes on behind a hole."""


NOBODY_HAS: Final = frozenset((Lack.ABSENT, Lack.DAMAGED, Lack.APPLIED))
"""Verdicts that say so, without a snapshot that stands for it."""


class Said(NamedTuple):
    """One answer."""

    lack: Lack
    term: int = 0
    """The answering node's."""
    asked: int = 0
    """Number of the question."""


class Answers:
    """What peers have said of batches that are missing here, by digest."""

    def __init__(self) -> None:
        self._said: dict[bytes, dict[NodeId, Said]] = {}

    def say(self, peer: NodeId, route: Route, lack: Lack, *, term: int = 0, asked: int = 0) -> bool:
        """Its newest answer counts; True: it is its first."""
        said = self._said.setdefault(route.digest, {})
        first = peer not in said
        said[peer] = Said(lack, term, asked)
        return first

    def forget(self, digest: bytes) -> None:
        """The batch is here, or nobody needs it."""
        self._said.pop(digest, None)

    def forget_peer(self, peer: NodeId) -> None:
        """Its link broke: what it has by now, it has to say anew."""
        for said in self._said.values():
            said.pop(peer, None)

    def clear(self) -> None:
        """Everybody has to say everything anew."""
        self._said.clear()

    def said(self, digest: bytes, *, term: int = 0, asked: int = 0) -> Mapping[NodeId, Lack]:
        """Answers given in that term, or a later one, to that question, or a later one."""
        found = self._said.get(digest, {})
        return {peer: each.lack for peer, each in found.items() if each.term >= term and each.asked >= asked}

    def verdict(self, digest: bytes, peers: Collection[NodeId], *, term: int = 0, asked: int = 0) -> Lack | None:
        """None: somebody has not answered yet, or cannot say. COMPACTED: somebody has removed it, and nobody has it.

        Else APPLIED, DAMAGED or ABSENT: nobody has it, and no snapshot is known to stand for it.
        """
        said = self.said(digest, term=term, asked=asked)
        if not peers or any(peer not in said for peer in peers):
            return None
        found = {Lack.DAMAGED if said[peer] is Lack.LOST else said[peer] for peer in peers}
        if Lack.UNKNOWN in found:
            return None
        return next(lack for lack in (Lack.COMPACTED, Lack.APPLIED, Lack.DAMAGED, Lack.ABSENT) if lack in found)


def pack(lacking: Sequence[tuple[Route, Lack]], *, term: int = 0, asked: int = 0) -> dict[str, Any]:
    """Header of a FETCHED that gives nothing: the sender's term, and the question that it answers (0: none)."""
    return {"lacks": [[ROUTE.pack(*route), lack.value] for route, lack in lacking], "term": term, "asked": asked}


def number(header: Mapping[str, Any], name: str) -> int:
    """An optional number of a FETCH or FETCHED. Raises ProtocolError."""
    value = header.get(name, 0)
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise ProtocolError(f"FETCH or FETCHED: bad field {name}")
    return value


def free_header(route: Route, *, term: int) -> dict[str, Any]:
    """Header of a FETCHED that gives a batch which the leader of that term is not about to declare void."""
    return {"term": term, "free": route.digest}


def more_header(route: Route, *, asked: int) -> dict[str, Any]:
    """Header of a FETCHED that gives the last batch for now: more of that question is held."""
    return {"more": route.digest, "asked": asked}


def digest_in(header: Mapping[str, Any], name: str) -> bytes | None:
    """``free`` or ``more``: the digest of such a batch. Raises ProtocolError."""
    digest = header.get(name)
    if digest is not None and (type(digest) is not bytes or len(digest) != DIGEST_BYTES):
        raise ProtocolError(f"FETCHED: bad field {name}")
    return digest


def unpack(header: dict[str, Any]) -> list[tuple[Route, Lack]]:
    """Raises ProtocolError."""
    rows = header["lacks"]
    if not isinstance(rows, list) or len(rows) > LACKS_MAX:
        raise ProtocolError("FETCHED: bad field lacks")
    found = []
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and type(row[0]) is bytes and len(row[0]) == ROUTE_BYTES):
            raise ProtocolError("FETCHED: bad row in lacks")
        if row[1] not in tuple(Lack):
            raise ProtocolError("FETCHED: not a reason")
        partition, term, last_index, digest = ROUTE.unpack(row[0])
        route = Route(PartitionId(partition), Term(term), PartitionLogIndex(last_index), digest)
        found.append((route, Lack(row[1])))
    return found
