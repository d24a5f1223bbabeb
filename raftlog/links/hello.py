"""What nodes say of themselves when they meet: who they are, of which history, and whom they take for members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from logboom.errors import LineageMismatch, ProtocolError, WrongNode
from logboom.types import NUMBER_MAX, NodeId, is_lineage, lineage_shown
from logboom.wire import shown


@dataclass(frozen=True, slots=True)
class Identity:
    """What both ends must agree on, and who we are."""

    node_id: NodeId
    cluster_id: str
    settings_digest: bytes
    lineage: str | None = ""
    """Which history of the cluster; None: this node joins, and takes that of whoever has it for a member."""
    remembers: tuple[int, ...] | None = None
    """How much of producers: it decides what is applied. None: nobody asks."""


class Claim(NamedTuple):
    """Whom a node believes to be the members, and since which entry of the parent log."""

    term: int
    index: int  # type: ignore[assignment]  # a tuple's method, which nobody wants here
    ids: tuple[NodeId, ...]

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Claim | None:
        """As PEER_HELLO says it, if it does. Raises ProtocolError."""
        said = header.get("members")
        if said is None:
            return None
        if isinstance(said, list) and len(said) == 3:
            term, index, ids = said
            numbers = all(type(each) is int and 0 <= each < NUMBER_MAX for each in (term, index))
            if numbers and isinstance(ids, list) and all(isinstance(each, str) for each in ids):
                return cls(term, index, tuple(map(NodeId, ids)))
        raise ProtocolError("PEER_HELLO: bad field members")


def is_alike(mine: Identity, header: Mapping[str, Any]) -> bool:
    """It has the settings that all nodes of a cluster have alike."""
    return header.get("settings") == mine.settings_digest and _remembers_alike(mine, header)


def check_remembers(mine: Identity, peer: NodeId, header: Mapping[str, Any]) -> None:
    """Raises WrongNode. A node of an earlier release does not say."""
    if not _remembers_alike(mine, header):
        theirs = shown(header.get("remembers"))
        raise WrongNode(
            f"{peer} remembers other numbers of producers, their ranges and receipts: {theirs}, and this node "
            f"{list(mine.remembers or ())}; apply.producers_max, producer_ranges_max and producer_receipts must agree. "
            "Set them right where they differ from most; a node that does not start with that was begun with others: "
            "`logboom members remove` takes it out, and its machine is added with another id and an empty directory"
        )


def _remembers_alike(mine: Identity, header: Mapping[str, Any]) -> bool:
    theirs = header.get("remembers")
    return None in (theirs, mine.remembers) or theirs == list(mine.remembers or ())


def check_lineage(mine: Identity, peer: NodeId, header: Mapping[str, Any]) -> None:
    """What was ordered, acknowledged or voted for in one history of a cluster counts for nothing in another.

    Raises LineageMismatch, or ProtocolError for what is no lineage.
    """
    theirs, ours = header.get("lineage", ""), mine.lineage  # none from an older release: the first
    if theirs is not None and not is_lineage(theirs):
        raise ProtocolError("PEER_HELLO: bad field lineage")
    if theirs is None and ours is None:
        raise WrongNode(f"{peer} waits to be taken into a cluster, as this node does")
    if None not in (theirs, ours) and theirs != ours:  # whoever has none takes the other's, if it is to be a member
        raise LineageMismatch(
            f"{peer} is of another history of cluster {mine.cluster_id!r} ({lineage_shown(theirs)}) than this node "
            f"({lineage_shown(ours)}): one of them is from before a restore, was not restored, or from another set. "
            "Stop it and remove its data: started empty, it is given everything; or restore all nodes from one set",
            cluster=theirs,
            expected=ours,
        )
