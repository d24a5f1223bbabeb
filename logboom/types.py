"""The vocabulary: ids, indices, levels and the receipts that users get back.

Names are the specification's. Indices start at 1; 0 means "nothing yet".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import IntEnum, StrEnum
from typing import Any, Final, NewType, TypeVar

import msgspec

T = TypeVar("T")
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

CURSORS_TOKEN = b"logboom:cursors\0"
"""The partition that was created with this keeps named cursors, and is none of the users' own."""
CURSORS = "cursors"
"""What nodes call the partition that keeps cursors."""

KV_TXN: Final = "kv_txn"
"""The feature that commands over several keys need: nodes say that they know it, and once all do the log says so."""
MIXED: Final = "mixed"
"""The feature of batches that several producers share: agreed on as above, as soon as it closes no way back."""
PARTITION_SETTINGS: Final = "partition_settings"
"""The feature of settings of one partition that are in the log: agreed on when somebody first sets some."""

NUMBER_MAX: Final = 1 << 62
"""No index, sequence or term is above that, on the wire or on a disk."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class Level(StrEnum):
    """How far a command must have come before a submit or a barrier answers.

    ``ordered``: has its place in the parent log (committed). ``durable``: synced on the
    answering node as well. ``applied``: its effects are visible. ``snapshotted`` (barriers
    only): in a complete snapshot set. A submit's ``committed`` is the same level as a
    barrier's ``ordered``.
    """

    COMMITTED = "committed"
    ORDERED = "ordered"
    DURABLE = "durable"
    APPLIED = "applied"
    SNAPSHOTTED = "snapshotted"


class Ack(StrEnum):
    """What a write's answer means, if the request itself does not say: see Level."""

    COMMITTED = "committed"
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
    """What one command did. One byte on the wire, equal on every node.

    State machines of users have others: ``Status(77)`` is named ``OTHER_77``. From 64 on they stay theirs.
    """

    OK = 0
    NOT_FOUND = 1
    """Delete of a key that is not there."""
    MISMATCH = 2
    """Cas whose expectation did not hold, alone or in a Txn: that has no effect then."""
    WRONG_TYPE = 3
    """Add on a key that holds bytes, or numbers of another kind or count."""
    OVERFLOW = 4
    """Add that leaves the 64-bit range."""
    INVALID = 5
    """A payload that this state machine cannot read."""
    UNKNOWN_RESULT = 6
    """Applied before, in an attempt whose result is no longer remembered."""
    OTHERWISE = 7
    """Txn that did its `otherwise`: one of its comparisons did not hold."""
    MORE = 8
    """DeleteRange or DeletePrefix that removed as many keys as it may: there may be more, send another."""

    @classmethod
    def _missing_(cls, value: object) -> Status | None:
        if type(value) is not int or not 0 <= value <= 255:
            return None
        other = int.__new__(cls, value)
        other._name_, other._value_ = f"OTHER_{value}", value
        return cls._value2member_map_.setdefault(value, other)  # type: ignore[return-value]

    def __reduce_ex__(self, _: object) -> tuple[type[Status], tuple[int]]:
        return Status, (self._value_,)  # by name, as Python 3.11 does it, others are not found


REFUSALS: Final = {
    Status.NOT_FOUND: "delete of a key that is not there",
    Status.MISMATCH: "cas, or a comparison, that found another value",
    Status.WRONG_TYPE: "add on a key that holds bytes, or another kind or count of numbers",
    Status.OVERFLOW: "add that leaves the 64-bit range",
    Status.INVALID: "what this state machine cannot read",
}
"""For people: what commands with such a status were. Those of users' state machines only they know."""


def refusal(name: str, count: int) -> str:
    """``count`` commands with the status of this ``name``, in either case, for people."""
    means = REFUSALS.get(Status.__members__.get(name.upper(), Status.OK), "")
    return f"{count} {name}" + (f": {means}" if means else "")


def _grown(kind: type[T]) -> type[T]:
    """What an earlier release has pickled, with fewer fields, is read: those that came since are as by default."""

    def restore(self: Any, state: Sequence[Any]) -> None:
        rows: Any = fields(self)
        for each in rows[len(state) :]:
            default = each.default if each.default_factory is MISSING else each.default_factory()
            object.__setattr__(self, each.name, default)
        for each, value in zip(rows, state, strict=False):
            object.__setattr__(self, each.name, value)

    kind.__setstate__ = restore  # type: ignore[attr-defined]
    return kind


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where one partition's share of a request landed.

    ``duplicate`` counts the records that an earlier attempt had already
    applied; they took no effect again. ``results`` is None below level ``applied``.
    """

    partition_id: PartitionId
    first_index: PartitionLogIndex
    last_index: PartitionLogIndex
    global_index: GlobalLogIndex
    duplicate: int = 0
    results: tuple[Status, ...] | None = None
    held: str = ""
    """``throttled`` or ``frozen`` when this was answered: the partition applies too slowly, later writes may wait."""

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
    """``running``, ``retrying``, ``paused``, ``frozen``, ``withdrawn``, ``lost`` or ``damaged``."""


def watermark_of(row: Sequence[Any]) -> Watermark:
    """A watermark row of the wire protocol."""
    partition, log, durable, applied, snapshot, applied_global, state = row
    return Watermark(
        PartitionId(partition),
        PartitionLogIndex(log),
        PartitionLogIndex(durable),
        PartitionLogIndex(applied),
        PartitionLogIndex(snapshot),
        GlobalLogIndex(applied_global),
        state,
    )


@_grown
@dataclass(frozen=True, slots=True)
class BarrierResult:
    """A barrier that was reached: which node said so, and where every partition stood there then."""

    global_index: GlobalLogIndex
    """The highest target; of several of which not all had to be reached, what must have been reached in any case."""
    node_id: NodeId
    watermarks: tuple[Watermark, ...]
    frontiers: dict[PartitionId, GlobalLogIndex] = field(default_factory=dict)
    """How far each partition was at the level and in the scope asked for."""


@dataclass(frozen=True, slots=True)
class BarrierProgress:
    """A barrier that is waited for, or (``done``) reached. Of what moved meanwhile only the last is told."""

    node_id: NodeId
    """Who says so: another after a node was lost."""
    frontiers: dict[PartitionId, GlobalLogIndex]
    reached: int
    """Partitions that are there."""
    needed: int
    """Partitions that have to be."""
    done: BarrierResult | None = None


@dataclass(frozen=True, slots=True)
class WatermarkUpdate:
    """Where partitions are on a node, all of them; ``minimum``: each has applied up to there."""

    node_id: NodeId
    commit_index: GlobalLogIndex
    minimum: GlobalLogIndex
    watermarks: tuple[Watermark, ...]


@_grown
@dataclass(frozen=True, slots=True)
class Token:
    """An index, the cluster whose it is, and which of its histories: proves nothing elsewhere."""

    cluster: str
    global_index: GlobalLogIndex
    lineage: str = ""
    """Empty: a cluster's first history. Each restore begins another."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One command as stored: optional key, headers, payload."""

    payload: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class WideRecord(Record, frozen=True, gc=False):
    """A command over several keys of a ``kv`` partition. As a plain Record it is none: `Status.INVALID`."""


WIDE_OPERATIONS: Final = (b"\5", b"\6")
"""How payloads of commands over several keys begin (logboom.commands)."""
TXNS: Final = WIDE_OPERATIONS[0]
"""Payloads of commands that name all their keys."""
OVER_RANGES: Final = WIDE_OPERATIONS[1]
"""Payloads of commands that name no keys but ends of a range."""


LINEAGE_BYTES: Final = 16


def is_lineage(text: object) -> bool:
    """Nothing (a cluster's first history), or 32 hexadecimal digits (one that a restore began)."""
    return text == "" or (isinstance(text, str) and re.fullmatch(r"(?!0+$)[0-9a-f]{32}", text) is not None)


def lineage_shown(lineage: str | None) -> str:
    """For people."""
    return lineage or ("none yet" if lineage is None else "first history")


ID_LENGTH_MAX: Final = 64
"""Characters of a node's id."""


def is_address(text: str) -> bool:
    """``host:port`` with a port from 1 to 65535."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
