"""Sets at the same index are the same bytes on every node: whoever has one tells the others its digests, and they look.

Where they differ a state machine did not do the same with the same records, or a state was changed by something else.
Nobody here can say which of two is right, so nothing is done about it but to say so; what counts is the newest set that
both have. What a node keeps of another says nothing of its own states, and whose a set of before its start is it does
not know: neither is told to others, nor a reason to say that states agree. Sans-io.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog

from logboom.errors import ProtocolError
from logboom.types import DIGEST_BYTES, GlobalLogIndex, NodeId, PartitionId
from logboom.wire import Kind
from raftlog.links.links import Links
from snapshots.meta import SetMeta

log = structlog.get_logger(__name__)

ROWS_MAX: Final = 4096
"""Partitions whose digests are told each for itself; of more that all of them together."""
SHOWN_MAX: Final = 16
FIELD: Final = "set"
"""Of a PROGRESS frame."""


class Told(NamedTuple):
    """What a node says of its newest set."""

    global_index: GlobalLogIndex
    digest: bytes
    """Digest of all states together."""
    states: Mapping[PartitionId, bytes]
    """Digest of each state; empty where there are too many."""


class Difference(NamedTuple):
    """Two nodes' states at one index."""

    partition_id: PartitionId | None
    """None: there are too many to say which."""
    node: NodeId
    """The other one."""
    global_index: GlobalLogIndex


class Comparing:
    """What one node tells of its sets, has heard of the others', and has found to differ."""

    def __init__(self, *, links: Callable[[], Links], sets: Callable[[], list[SetMeta]]) -> None:
        """``sets`` that are complete here, the newest last."""
        self._links = links
        self._sets = sets
        self._linked: set[NodeId] = set()
        self._untold: set[NodeId] = set()
        self._told: dict[NodeId, Told] = {}
        self._found: dict[NodeId, list[Difference]] = {}
        self._own: set[GlobalLogIndex] = set()
        """Sets that this node has taken since it was started."""
        self._others: set[GlobalLogIndex] = set()
        """Others' sets, which it keeps in the place of its own."""

    @property
    def differences(self) -> list[Difference]:
        """Between this node and others, in the last sets that were compared, by partition."""
        found = [each for rows in self._found.values() for each in rows]
        return sorted(found, key=lambda each: (each.partition_id or 0, each.node))

    # -- this node's

    def kept(self, global_index: GlobalLogIndex) -> None:
        """Another node's set is complete on this one."""
        self._others.add(global_index)
        self._others &= {meta.global_index for meta in self._sets()}

    def taken(self, global_index: GlobalLogIndex) -> None:
        """A set of its own states is complete on this node."""
        self._own.add(global_index)
        self._own &= {meta.global_index for meta in self._sets()}
        self._others -= self._own
        self._untold.update(self._linked)
        self.tell()
        for peer in self._told:
            self._compare(peer)

    def tell(self) -> None:
        """Those who have not heard of its own newest set; now and then again, should a link have been full."""
        sets = [meta for meta in self._sets() if meta.global_index in self._own] if self._untold else []
        if not sets:
            return
        meta = sets[-1]
        few = len(meta.partitions) <= ROWS_MAX
        rows = [[each.partition_id, each.digest] for each in meta.partitions] if few else []
        header = {"durable": [], FIELD: [meta.global_index, meta.states_digest, rows]}
        for peer in sorted(self._untold):
            if self._links().send(peer, Kind.PROGRESS, header):
                self._untold.discard(peer)

    # -- the others'

    def heard(self, peer: NodeId, header: Mapping[str, Any]) -> None:
        """A PROGRESS frame, which may tell of a set. Raises ProtocolError."""
        if FIELD in header:
            self._told[peer] = _parse(header[FIELD])
            self._compare(peer)

    def peer_up(self, peer: NodeId) -> None:
        """A new link."""
        self._linked.add(peer)
        self._untold.add(peer)
        self.tell()

    def peer_down(self, peer: NodeId) -> None:
        """The link is gone. What was found stays found."""
        self._linked.discard(peer)
        self._untold.discard(peer)

    def members_changed(self, members: Sequence[NodeId]) -> None:
        """Nobody needs to know of those that are none."""
        for known in (self._told, self._found):
            for gone in known.keys() - set(members):
                del known[gone]

    def _compare(self, peer: NodeId) -> None:
        told = self._told[peer]
        own = next((meta for meta in self._sets() if meta.global_index == told.global_index), None)
        if own is None or own.global_index in self._others:
            return  # not complete here yet, or removed, or never taken
        before = self._found.get(peer, [])
        found = list[Difference]()
        if own.states_digest != told.digest:
            mine = {PartitionId(each.partition_id): each.digest for each in own.partitions}
            differing: list[PartitionId | None] = [p for p, each in told.states.items() if mine.get(p, each) != each]
            # Cuts at one index may have other partitions: what is created or destroyed in between takes no index.
            same = not told.states or told.states.keys() == mine.keys()
            found = [Difference(p, peer, told.global_index) for p in differing or [None][:same]]
        if not found and own.global_index not in self._own:
            return  # of before this start
        self._found[peer] = found
        if found and found != before:
            partitions = [each.partition_id for each in found]
            log.error(
                "states_differ",
                peer=peer,
                global_index=told.global_index,
                partitions=partitions[:SHOWN_MAX],
                count=len(partitions),
                advice="see `States that differ` in docs/operating.md",
            )
        elif before and not found:
            log.info("states_agree_again", peer=peer, global_index=told.global_index)


def _parse(said: Any) -> Told:
    if isinstance(said, list) and len(said) == 3:
        global_index, digest, rows = said
        if type(global_index) is int and _is_digest(digest) and isinstance(rows, list) and all(map(_is_row, rows)):
            return Told(GlobalLogIndex(global_index), digest, {PartitionId(p): each for p, each in rows})
    raise ProtocolError(f"PROGRESS: bad field {FIELD}")


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 2 and type(row[0]) is int and _is_digest(row[1])


def _is_digest(found: Any) -> bool:
    return isinstance(found, bytes) and len(found) == DIGEST_BYTES
