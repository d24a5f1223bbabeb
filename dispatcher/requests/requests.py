"""A submit request and its reply: as objects, and as wire headers and sections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from dispatcher.requests.tracing import Trace
from logboom.errors import InvalidRequest, ProtocolError, RecordTooLarge
from logboom.records import RecordBlock
from logboom.settings import ClusterSettings, NetSettings
from logboom.types import (
    NUMBER_MAX,
    PRODUCER_ID_BYTES,
    GlobalLogIndex,
    Level,
    PartitionId,
    PartitionLogIndex,
    ProducerId,
)
from logboom.wire import Buffer, Frame, shown
from raftlog.entries.chosen import AllChosen, acknowledgement, is_linearizable

PARTS_MAX: Final = 4096
STRENGTH: Final = (Level.COMMITTED, Level.DURABLE, Level.APPLIED)
WAITS: Final = {level.value: level for level in STRENGTH}
LONGEST_MS: Final = NetSettings().request_ms_max
NONE: Final = frozenset[int]()
PART: Final = [int] * 6
"""What a part is in a header."""

ReplyPart = tuple[PartitionId, PartitionLogIndex, PartitionLogIndex, GlobalLogIndex, int, bytes | None]
"""Partition, first index, last index, global index, duplicates, statuses."""


class SubmitPart(NamedTuple):
    """What a request writes to one partition."""

    partition_id: PartitionId
    first_sequence: int
    floor: int
    records: RecordBlock


class SubmitRequest(NamedTuple):
    """One atomic request. ``deadline`` in seconds of the node's monotonic clock."""

    producer: ProducerId
    epoch: int
    dense: bool
    wait: Level | None
    """None: what its partitions say."""
    deadline: float
    parts: tuple[SubmitPart, ...]
    nbytes: int
    forward: bool = False
    forwarded: bool = False
    trace: Trace | None = None
    """Set if this request is sampled."""
    admit_by: float = 0.0
    """Until then it may wait for admission."""
    principal: str = ""
    """Whose share of what is scarce it counts for; '': nobody's."""
    wide: bool = False
    """It may have commands over several keys: all nodes have to know of them."""


def check_parts(request: SubmitRequest, *, writable: Callable[[PartitionId], None], bytes_max: int) -> None:
    """Raises RecordTooLarge, or what ``writable`` raises, for a part that this node can take nothing of."""
    for part in request.parts:
        writable(part.partition_id)
        if part.records.nbytes > bytes_max:
            raise RecordTooLarge(
                f"{part.records.nbytes} bytes for one partition; at most {bytes_max} per request: send it in several",
                size=part.records.nbytes,
                limit=bytes_max,
            )


def copied(request: SubmitRequest) -> SubmitRequest:
    """With records of its own, for one that is kept: it holds no larger buffer that it came in."""
    parts = (
        part._replace(
            records=replace(part.records, metadata=bytes(part.records.metadata), data=bytes(part.records.data))
        )
        for part in request.parts
    )
    return request._replace(parts=tuple(parts))


class SubmitReply(NamedTuple):
    """Where in its partitions a request landed."""

    parts: tuple[ReplyPart, ...]
    commit_index: GlobalLogIndex
    held: tuple[tuple[PartitionId, str], ...] = ()
    """Partitions of these that are throttled or frozen now."""


def field_of(header: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """A header field of the right type. Raises InvalidRequest, naming it."""
    value: Any = header.get(name, default)
    if value is None and name not in header and default is None:
        raise InvalidRequest(f"field {name} is missing")
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise InvalidRequest(f"field {name} must be {kind.__name__}, not {type(value).__name__}")
    if isinstance(value, int) and not 0 <= value <= NUMBER_MAX:
        raise InvalidRequest(f"field {name} is out of range: {value}")
    return value


def acknowledged_at(
    asked: Level | None,
    partitions: Collection[PartitionId],
    cluster: ClusterSettings,
    chosen: AllChosen = MappingProxyType({}),
) -> Level:
    """What an answer has to wait for: what the request says, else the strongest of its partitions' own.

    A linearizable partition is never answered before it has applied: nobody hears of what cannot be read yet.
    ``chosen``: what the log has said of partitions; it counts before the settings.
    """
    if asked is not Level.APPLIED and any(is_linearizable(cluster, chosen, p) for p in partitions):
        return Level.APPLIED
    if asked is not None:
        return asked
    return max((WAITS[acknowledgement(cluster, chosen, p)[0].value] for p in partitions), key=STRENGTH.index)


def parse_submit(
    frame: Frame,
    *,
    now: float,
    forwarded: bool = False,
    principal: str = "",
    longest_ms: int = LONGEST_MS,
) -> SubmitRequest:
    """Decode and check; record sections are views into the frame. Raises InvalidRequest or RecordTooLarge.

    ``longest_ms``: a deadline that is further away is cut to that.
    """
    header = frame.header
    producer = field_of(header, "producer", bytes)
    if len(producer) != PRODUCER_ID_BYTES:
        raise InvalidRequest(f"producer must have {PRODUCER_ID_BYTES} bytes, not {len(producer)}")
    wait = header.get("wait")
    if wait is not None and (not isinstance(wait, str) or wait not in WAITS):
        raise InvalidRequest(f"wait must be committed, durable or applied, not {shown(wait)}")
    epoch = field_of(header, "epoch", int)
    if epoch > 0xFFFFFFFF:
        raise InvalidRequest(f"epoch {epoch} does not fit 32 bits")
    rows = field_of(header, "parts", list)
    if not 1 <= len(rows) <= PARTS_MAX:
        raise InvalidRequest(f"a request has 1 to {PARTS_MAX} parts, not {len(rows)}")
    wide = frozenset(map(_partition, field_of(header, "wide", list))) if "wide" in header else NONE
    parts, offset = [], 0
    for row in rows:
        part, offset = _part(row, frame.body, offset, wide)
        parts.append(part)
    if offset != len(frame.body):
        raise InvalidRequest(f"parts cover {offset} bytes of a body of {len(frame.body)}")
    partitions = {part.partition_id for part in parts}
    if len(partitions) != len(parts):
        raise InvalidRequest("a partition appears twice in one request")
    timeout_ms = min(field_of(header, "timeout_ms", int), longest_ms)
    wait_ms = min(field_of(header, "admission_wait_ms", int, 0), timeout_ms)
    if forwarded:
        principal = field_of(header, "principal", str, "")
    return SubmitRequest(
        ProducerId(producer),
        epoch,
        bool(header.get("dense", False)),
        None if wait is None else WAITS[wait],
        now + timeout_ms / 1000,
        tuple(parts),
        len(frame.body),
        forward=bool(header.get("forward", False)),
        forwarded=forwarded,
        admit_by=now + wait_ms / 1000 if wait_ms else 0.0,
        principal=principal,
        wide=bool(wide),
    )


def _partition(given: Any) -> int:
    if type(given) is not int:
        raise InvalidRequest(f"field wide has partitions, not {shown(given)}")
    return given


def _part(row: Any, body: memoryview, offset: int, wide: Collection[int]) -> tuple[SubmitPart, int]:
    if not isinstance(row, list) or [*map(type, row)] != PART or min(row) < 0 or max(row) > NUMBER_MAX:
        raise InvalidRequest("a part is six numbers: partition, first sequence, floor, count and two section lengths")
    partition, first, floor, count, metadata_length, data_length = row
    middle = offset + metadata_length
    end = middle + data_length
    if end > len(body):
        raise InvalidRequest(f"partition {partition}: its sections end at {end}, the body at {len(body)}")
    if partition > 0xFFFFFFFF:
        raise InvalidRequest(f"partition {partition} does not fit 32 bits")
    records = RecordBlock.parse(count, body[offset:middle], body[middle:end])
    return SubmitPart(PartitionId(partition), first, floor, records.as_wide(wide=partition in wide)), end


def encode_submit(request: SubmitRequest, *, now: float) -> tuple[dict[str, Any], list[Buffer]]:
    """Header and body, to send a request on to the leader."""
    header: dict[str, Any] = {
        "producer": request.producer,
        "epoch": request.epoch,
        "dense": request.dense,
        "wait": None if request.wait is None else request.wait.value,
        "timeout_ms": max(1, int((request.deadline - now) * 1000)),
        "admission_wait_ms": max(0, int((request.admit_by - now) * 1000)),
        "principal": request.principal,
        "parts": [
            [p.partition_id, p.first_sequence, p.floor, p.records.count, len(p.records.metadata), len(p.records.data)]
            for p in request.parts
        ],
    }
    if request.wide:
        header["wide"] = [p.partition_id for p in request.parts if p.records.wide]
    if request.trace is not None:
        header["traceparent"] = request.trace.traceparent
    return header, [section for p in request.parts for section in (p.records.metadata, p.records.data)]


def encode_reply(reply: SubmitReply) -> dict[str, Any]:
    """Header of SUBMITTED."""
    header: dict[str, Any] = {"parts": [list(part) for part in reply.parts], "commit_index": reply.commit_index}
    if reply.held:
        header["held"] = [list(row) for row in reply.held]
    return header


def parse_reply(header: Mapping[str, Any]) -> SubmitReply:
    """Inverse, between nodes. Raises ProtocolError."""
    rows, commit_index = header.get("parts"), header.get("commit_index")
    if type(commit_index) is not int or not isinstance(rows, list) or not all(map(_is_reply_part, rows)):
        raise ProtocolError("FORWARDED: not a reply to a submit")
    held = header.get("held", [])
    if not isinstance(held, list) or not all(map(_is_held, held)):
        raise ProtocolError("FORWARDED: bad field held")
    return SubmitReply(
        tuple(tuple(part) for part in rows), GlobalLogIndex(commit_index), tuple((p, state) for p, state in held)
    )


def _is_held(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 2 and type(row[0]) is int and isinstance(row[1], str)


def _is_reply_part(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 6:
        return False
    *numbers, results = row
    return all(type(n) is int for n in numbers) and (results is None or isinstance(results, bytes))
