"""The vocabulary: ids, indices, levels and the receipts that users get back.

Names are the specification's. Indices start at 1; 0 means "nothing yet".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NewType

import msgspec

NodeId = NewType("NodeId", str)
PartitionId = NewType("PartitionId", int)
PartitionLogIndex = NewType("PartitionLogIndex", int)
"""Position of a record in its partition's log; dense, from 1."""
GlobalLogIndex = NewType("GlobalLogIndex", int)
"""Dense counter over routing entries in commit order; equal on every node."""
RaftIndex = NewType("RaftIndex", int)
"""Position in the parent Raft journal; one Raft entry packs many routing entries."""
Term = NewType("Term", int)
ProducerId = NewType("ProducerId", bytes)
"""16 bytes naming who numbers a stream of commands; all zero: not deduplicated."""

DIGEST_BYTES = 16
PRODUCER_ID_BYTES = 16
NO_DIGEST = bytes(DIGEST_BYTES)
"""Previous digest of a partition's first batch."""
NO_PRODUCER = ProducerId(bytes(PRODUCER_ID_BYTES))

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class Level(StrEnum):
    """How far a command must have come before a submit or a barrier answers.

    ``ordered``: has its place in the parent log (committed). ``durable``: synced on the
    answering node as well. ``applied``: its effects are visible. A submit's ``committed``
    is the same level as a barrier's ``ordered``.
    """

    COMMITTED = "committed"
    ORDERED = "ordered"
    DURABLE = "durable"
    APPLIED = "applied"


class Scope(StrEnum):
    """Which nodes a barrier speaks for."""

    NODE = "node"
    LEADER = "leader"
    QUORUM = "quorum"
    ALL = "all"


class DurabilityMode(StrEnum):
    """When a batch is synced, relative to the acknowledgement of its routing entry."""

    WRITE_AHEAD = "write_ahead"
    WRITE_BEHIND = "write_behind"


class Status(IntEnum):
    """What one command did. One byte on the wire, equal on every node."""

    OK = 0
    NOT_FOUND = 1
    """Delete of a key that is not there."""
    MISMATCH = 2
    """Cas whose expectation did not hold."""
    WRONG_TYPE = 3
    """Add on a key that holds bytes, or numbers of another kind or count."""
    OVERFLOW = 4
    """Add that leaves the 64-bit range."""
    INVALID = 5
    """A payload that this state machine cannot read."""
    UNKNOWN_RESULT = 6
    """Applied before, in an attempt whose result is no longer remembered."""


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where one partition's share of a request landed.

    ``duplicate`` counts the leading records that an earlier attempt had already
    applied; they took no effect again. ``results`` is None below level ``applied``.
    """

    partition_id: PartitionId
    first_index: PartitionLogIndex
    last_index: PartitionLogIndex
    global_index: GlobalLogIndex
    duplicate: int = 0
    results: tuple[Status, ...] | None = None

    @property
    def count(self) -> int:
        """Records in this receipt."""
        return self.last_index - self.first_index + 1


@dataclass(frozen=True, slots=True)
class Receipts:
    """The receipts of one request over several partitions."""

    parts: tuple[Receipt, ...]

    @property
    def global_index(self) -> GlobalLogIndex:
        """The highest ``global_log_index`` among them: a barrier's target."""
        return max((r.global_index for r in self.parts), default=GlobalLogIndex(0))

    @property
    def count(self) -> int:
        """Records over all parts."""
        return sum(r.count for r in self.parts)


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far one partition is on one node. None is never in here: an index of 0 is "nothing yet"."""

    partition_id: PartitionId
    log_index: PartitionLogIndex
    """Highest committed ``partition_log_index``."""
    durable_index: PartitionLogIndex
    applied_index: PartitionLogIndex
    snapshot_index: PartitionLogIndex
    applied_global_index: GlobalLogIndex
    state: str
    """``running``, ``retrying``, ``paused``, ``frozen`` or ``damaged``."""


@dataclass(frozen=True, slots=True)
class BarrierResult:
    """A barrier that was reached: on which node, and where every partition stood then."""

    global_index: GlobalLogIndex
    node_id: NodeId
    watermarks: tuple[Watermark, ...]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One command as stored: optional key, headers, payload."""

    payload: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


def is_address(text: str) -> bool:
    """``host:port`` with a port from 1 to 65535."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
