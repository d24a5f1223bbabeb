"""What nodes say of a batch that they cannot give, and what follows from all of their answers. Sans-io."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, Final

from logboom.errors import ProtocolError
from logboom.types import NodeId, PartitionId, PartitionLogIndex, Term
from raftlog.entry import ROUTE, ROUTE_BYTES, Route

LACKS_MAX: Final = 16


class Lack(StrEnum):
    """Why a node does not give a batch."""

    ABSENT = "absent"
    """It does not have it, and has not committed it."""
    DAMAGED = "damaged"
    """It had it, and looks for it itself."""
    COMPACTED = "compacted"
    """It had it, and has removed it: a snapshot stands for it."""


class Answers:
    """What peers have said of batches that are missing here, by digest."""

    def __init__(self) -> None:
        self._said: dict[bytes, dict[NodeId, Lack]] = {}

    def say(self, peer: NodeId, route: Route, lack: Lack) -> bool:
        """Its newest answer counts; True: it is its first."""
        said = self._said.setdefault(route.digest, {})
        first = peer not in said
        said[peer] = lack
        return first

    def forget(self, digest: bytes) -> None:
        """The batch is here, or nobody needs it."""
        self._said.pop(digest, None)

    def verdict(self, digest: bytes, peers: Collection[NodeId]) -> Lack | None:
        """None: somebody has not answered yet. COMPACTED: somebody has removed it, and nobody has it.

        Else ABSENT or DAMAGED: nobody has it, and no snapshot is known to stand for it.
        """
        said = self._said.get(digest, {})
        if not peers or any(peer not in said for peer in peers):
            return None
        found = {said[peer] for peer in peers}
        return next(lack for lack in (Lack.COMPACTED, Lack.DAMAGED, Lack.ABSENT) if lack in found)


def pack(lacking: Sequence[tuple[Route, Lack]]) -> dict[str, Any]:
    """Header of a FETCHED that gives nothing."""
    return {"lacks": [[ROUTE.pack(*route), lack.value] for route, lack in lacking]}


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
