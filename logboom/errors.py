"""Every error that logboom raises on purpose.

::

    LogboomError
    ├── InvalidRequest            the request itself is wrong; retrying will not help
    │   ├── NoSuchPartition
    │   │   └── PartitionDestroyed   there was such a partition
    │   ├── RecordTooLarge
    │   ├── BarrierFuture         a target absurdly far ahead, or a time beyond the deadline
    │   ├── LineageMismatch       a token of another cluster
    │   └── ConfigError           a configuration value, named by its path
    ├── Overloaded                admission refused it; nothing was written
    ├── QuotaExceeded
    ├── PartitionFrozen
    ├── PartitionPaused           it applies nothing, until an operator resumes it
    ├── PartitionLost             a committed batch is lost everywhere: an operator declares it void
    ├── Voided                    it was declared void: it had no effect, and readers go on behind it
    ├── NotLeader                 ask ``leader``
    ├── Unavailable               no leader, starting, or unreachable
    ├── UnknownOutcome            sent, and nobody can say: retry with the same sequence
    ├── DeadlineExceeded
    ├── BarrierTimeout            carries the watermarks reached
    │   └── BarrierBlocked        a partition is paused, damaged or lost: answered at once
    ├── OutOfSequence             a dense producer left a gap
    ├── ProducerFenced            a newer epoch of this producer exists
    ├── NonDeterministicReplay    a write that was repeated with other rows
    ├── CommandsRejected          commands that the state machine refused
    ├── IndexCompacted
    ├── Unauthenticated
    ├── PermissionDenied          no rule allows it
    ├── CorruptData
    ├── IncompatibleVersion
    ├── WrongNode                 a data directory or certificate of another node or cluster
    └── ProtocolError             the peer broke the wire protocol

Each has ``code`` (stable, on the wire), ``retryable``, and ``outcome``: ``not_applied``
(no effect, ever), ``unknown`` (may have taken effect; a retry with the same producer and
sequence takes effect once) or ``applied``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from logboom.types import GlobalLogIndex, PartitionId, Watermark, watermark_of

Outcome = Literal["not_applied", "unknown", "applied"]


class LogboomError(Exception):
    """Base of all. ``fields`` holds the typed extras that also travel on the wire."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    outcome: Outcome = "not_applied"

    def __init__(self, message: str, *, outcome: Outcome | None = None, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Any] = fields
        if outcome is not None:
            self.outcome = outcome

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are not set: the typed extras.
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark workers), with their fields.
        return (from_wire, (self.to_wire(),))

    def again(self, message: str | None = None, *, outcome: Outcome | None = None) -> Self:
        """Another one that says the same, but for this: each task that is told raises one of its own."""
        told = type(self)(self.message if message is None else message, outcome=outcome or self.outcome)
        told.fields.update(self.fields)  # whatever a node calls them
        return told

    def to_wire(self) -> dict[str, Any]:
        """As the header of an ERROR frame."""
        fields = {name: _text(said) if isinstance(said, str) else said for name, said in self.fields.items()}
        return {"code": self.code, "message": _text(self.message), "outcome": self.outcome, "fields": fields}


def _text(said: str) -> str:
    """In UTF-8 there is no way to write down the name of a file that has none."""
    return said if said.isascii() else said.encode("utf-8", "backslashreplace").decode()


class InvalidRequest(LogboomError):
    """The request is malformed; the message names what was wrong."""

    code = "invalid_request"


class NoSuchPartition(InvalidRequest):
    """``partition_id`` does not exist; ``partitions`` tells how many there are."""

    code = "no_such_partition"


class PartitionDestroyed(NoSuchPartition):
    """``partition_id`` was destroyed, for good. With outcome ``applied``: the write had been ordered before."""

    code = "partition_destroyed"


class RecordTooLarge(InvalidRequest):
    """A record, or a request, over ``limit`` bytes; ``size`` is what it was."""

    code = "record_too_large"


class BarrierFuture(InvalidRequest):
    """A target too far ahead to wait for: ``target``, ``commit_index``, ``limit``; or ``timestamp_ms``, ``now_ms``."""

    code = "barrier_future"


class LineageMismatch(InvalidRequest):
    """An index of ``cluster`` says nothing about ``expected``."""

    code = "lineage_mismatch"


class ConfigError(InvalidRequest):
    """A configuration value; ``path`` names it."""

    code = "config"


class Overloaded(LogboomError):
    """Admission refused; nothing was written.

    ``partition_id`` (None: the node), ``limit`` (its name), ``maximum``, ``used``, ``retry_after`` in seconds.
    """

    code = "overloaded"
    retryable = True


class QuotaExceeded(LogboomError):
    """Too many waiters or bytes for this client, or its certificate: ``limit``, ``used``, ``retry_after``."""

    code = "quota_exceeded"
    retryable = True


class PartitionFrozen(LogboomError):
    """``partition_id`` takes no writes now."""

    code = "partition_frozen"
    retryable = True


class PartitionPaused(LogboomError):
    """``partition_id`` applies nothing where it is led: a write that waits until it is applied would wait in vain.

    With outcome ``unknown`` it may have been ordered before, and takes effect by when the partition is resumed. No
    client tries again by itself. ``retry_after`` in seconds. A barrier gets BarrierBlocked, a read Unavailable.
    """

    code = "partition_paused"
    retryable = True


class PartitionLost(LogboomError):
    """No member has the batch from ``first_index`` to ``last_index`` of ``partition_id``, which was committed.

    The partition goes on when it turns up, or when an operator has declared it void.
    """

    code = "partition_lost"
    retryable = True


class Voided(LogboomError):
    """The batch from ``first_index`` to ``last_index`` was lost on all nodes, and declared void: it has no effect.

    A write can be sent again, with the same sequence. A reader goes on at ``next``.
    """

    code = "voided"
    retryable = True

    @classmethod
    def of(
        cls,
        partition_id: int,
        first_index: int,
        last_index: int,
        global_index: int,
        *,
        outcome: Outcome = "not_applied",
    ) -> Self:
        """That batch. ``outcome``: of whoever wrote it."""
        return cls(
            f"partition {partition_id}: the batch from {first_index} to {last_index} was lost on all nodes and "
            f"declared void; what follows begins at {last_index + 1}",
            partition_id=partition_id,
            first_index=first_index,
            last_index=last_index,
            global_index=global_index,
            next=last_index + 1,
            outcome=outcome,
        )


class NotLeader(LogboomError):
    """This node does not lead. ``leader`` is the leader's client address, or None while there is none."""

    code = "not_leader"
    retryable = True


class Unavailable(LogboomError):
    """No leader, still recovering, or nobody could be reached; nothing was done."""

    code = "unavailable"
    retryable = True


class UnknownOutcome(LogboomError):
    """Leadership or the connection was lost before the answer."""

    code = "unknown_outcome"
    retryable = True
    outcome: Outcome = "unknown"


class DeadlineExceeded(LogboomError):
    """The caller's deadline passed; for a submit the outcome is unknown."""

    code = "deadline_exceeded"
    outcome: Outcome = "unknown"


class BarrierTimeout(LogboomError):
    """Time ran out: ``target``; ``behind``: partitions not there; ``watermarks``, ``frontiers``: where each stood.

    As in BarrierResult; in ``fields`` they are rows, as on the wire. Of a node that may not tell they are empty.
    """

    code = "barrier_timeout"
    retryable = True

    @property
    def behind(self) -> list[PartitionId]:
        """Partitions that were not there."""
        return [PartitionId(p) for p in self.fields.get("behind") or ()]

    @property
    def watermarks(self) -> tuple[Watermark, ...]:
        """Where every partition stood on the node that answered."""
        return tuple(watermark_of(row) for row in self.fields.get("watermarks") or ())

    @property
    def frontiers(self) -> dict[PartitionId, GlobalLogIndex]:
        """How far each partition was at the level and in the scope asked for."""
        return {PartitionId(p): GlobalLogIndex(index) for p, index in self.fields.get("frontiers") or ()}


class BarrierBlocked(BarrierTimeout):
    """``blocked``: partitions paused, damaged, lost or frozen, each with its state; the rest as above, ``target``, too.

    ``behind``: those of them.
    """

    code = "barrier_blocked"
    retryable = True

    @property
    def behind(self) -> list[PartitionId]:
        """Partitions that were not there, and cannot get there as they are."""
        return [PartitionId(p) for p, _ in self.fields.get("blocked") or ()]


class OutOfSequence(LogboomError):
    """``got``: a sequence of a dense producer on ``partition_id``, whose predecessors must go first."""

    code = "out_of_sequence"
    retryable = True


class ProducerFenced(LogboomError):
    """A newer epoch of this producer has written to ``partition_id``; ``got``: the sequence that was refused."""

    code = "producer_fenced"


class NonDeterministicReplay(LogboomError):
    """A Spark write was run again under its ``write_id`` and gave other rows, or rows in another order."""

    code = "non_deterministic_replay"
    outcome: Outcome = "unknown"


class CommandsRejected(LogboomError):
    """The state machine refused ``statuses`` (name to count) of a write's commands; the others took effect."""

    code = "commands_rejected"
    outcome: Outcome = "applied"


class IndexCompacted(LogboomError):
    """``first`` is the oldest index still held."""

    code = "index_compacted"


class Unauthenticated(LogboomError):
    """No valid certificate, or no HELLO at first. A token is reserved: no node looks at it; use certificates."""

    code = "unauthenticated"


class PermissionDenied(LogboomError):
    """No rule of the node that was asked (``access.file``) allows it.

    ``principal``: the names in the certificate; ``right``: what is missing, `status`, `read`, `write` or `admin`;
    ``partition_id``: where, None for the cluster as a whole. Another attempt would be refused, too.
    """

    code = "permission_denied"


class CorruptData(LogboomError):
    """Stored bytes do not match their checksum. Its fields, where they are known: path, offset."""

    code = "corrupt_data"
    outcome: Outcome = "unknown"


class IncompatibleVersion(LogboomError):
    """A file or a peer speaks a format this release does not: ``found``, ``supported``."""

    code = "incompatible_version"


class WrongNode(LogboomError):
    """A data directory or a certificate that belongs to another node or cluster."""

    code = "wrong_node"


class ProtocolError(LogboomError):
    """The other side broke the wire protocol; the connection is closed."""

    code = "protocol"


def _tree(root: type[LogboomError]) -> dict[str, type[LogboomError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: dict[str, type[LogboomError]] = _tree(LogboomError)


def from_wire(header: Mapping[str, Any]) -> LogboomError:
    """Rebuild the typed error of an ERROR frame, whatever it says; unknown codes become the base class."""
    code, message, outcome, fields = (header.get(name) for name in ("code", "message", "outcome", "fields"))
    kind = BY_CODE.get(code, LogboomError) if isinstance(code, str) else LogboomError
    if outcome is not None and outcome not in ("not_applied", "unknown", "applied"):
        outcome = "unknown"
    error = kind(message if isinstance(message, str) else "unexplained error", outcome=outcome)
    if isinstance(fields, dict):
        error.fields.update((str(k), v) for k, v in fields.items())
    return (
        error if _is_sound(error) else ProtocolError(f"an error of kind {code} whose fields cannot be: {fields!r:.200}")
    )


def _is_sound(error: LogboomError) -> bool:
    """What is said in ``fields`` is what whoever handles it counts on."""
    retry_after, first = error.fields.get("retry_after"), error.fields.get("first")
    numbered = retry_after is None or (type(retry_after) in (int, float) and 0 <= retry_after < math.inf)
    if isinstance(error, BarrierTimeout):
        behind = error.fields.get("behind") or []
        numbered &= isinstance(behind, list) and all(type(p) is int for p in behind)
        return numbered and all(_are_rows(error.fields.get(name), *kinds) for name, kinds in _ROWS.items())
    return numbered and (not isinstance(error, IndexCompacted) or type(first) is int)


_ROWS: dict[str, tuple[type, ...]] = {
    "watermarks": (int, int, int, int, int, int, str),
    "frontiers": (int, int),
    "blocked": (int, str),
}
"""Fields of barriers that are lists of rows, and what is in each row."""


def _are_rows(given: Any, *kinds: type) -> bool:
    return given is None or (
        isinstance(given, list) and all(isinstance(row, list) and (*map(type, row),) == kinds for row in given)
    )


def traced(error: BaseException | None) -> BaseException | None:
    """For a log, of what no error of these says: in a machine of a user its author looks for the line."""
    return None if isinstance(error, LogboomError) else error
