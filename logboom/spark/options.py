"""The options of the ``logboom`` data source: parsed once on the driver, before any job runs.

Spark hands options over with lower-cased names; the table below gives their spelling in messages.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from logboom.client.attempts import TIMEOUT_S_MAX
from logboom.client.pool import parse_endpoints
from logboom.errors import InvalidRequest
from logboom.records import KEY_BYTES_MAX
from logboom.types import GIB, MIB, Level, Scope

Op = Literal["put", "delete", "add"]
View = Literal["state", "log"]
Order = Literal["partition", "global"]
RowOrder = Literal["input", "sorted"]
Wait = Literal["committed", "durable", "applied"]

EVERYWHERE: Final = ("endpoints", "partitions", "requestTimeoutMs", "token", "tlsDir")
WRITE: Final = (
    *EVERYWHERE,
    "writeId",
    "wait",
    "barrierTimeoutMs",
    "barrierScope",
    "barrierLevel",
    "maxInFlightBytes",
    "rowOrder",
    "maxSortBytes",
    "op",
    "addColumns",
    "nullKey",
    "failOnRejected",
    "reportFile",
)
SPARKS_OWN: Final = ("checkpointLocation", "queryName")
"""What Spark was told of a stream comes along."""
STREAM_WRITE: Final = (*(name for name in WRITE if name != "writeId"), *SPARKS_OWN)
LOG_ONLY: Final = (
    "startingOffsets",
    "startingTimestamp",
    "startingGlobalOffset",
    "failOnDataLoss",
    "minPartitions",
    "fetchBytes",
    "includeHeaders",
    "includeProducer",
)
BATCH_LOG_ONLY: Final = (*LOG_ONLY, "endingOffsets", "endingTimestamp", "endingGlobalOffset", "ordered")
STATE_ONLY: Final = ("atGlobalOffset", "maxSpillBytes")
READ: Final = (*EVERYWHERE, "view", "node", "numRetries", "pushdown", *STATE_ONLY, *BATCH_LOG_ONLY)
TRIGGER: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
STREAM_READ: Final = (*EVERYWHERE, "view", "node", "numRetries", *TRIGGER, *LOG_ONLY)
KNOWN: Final = {name.lower(): name for name in (*WRITE, *READ, *STREAM_WRITE, *STREAM_READ)}
NO_TABLE: Final = (
    "Spark hands no options of a table (CREATE TABLE) to a Python source: use CREATE TEMPORARY VIEW v USING logboom "
    "OPTIONS (...)"
)
NO_KAFKA: Final = (
    "logboom has no kafka.* options; option endpoints takes the addresses of the nodes, host:port,host:port"
)
RANGES_SHOWN: Final = 10
"""Of ids, in a message."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST: Final = -2
LATEST: Final = -1
ID_RANGE: Final = re.compile(r"^\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?$")
WHOLE: Final = re.compile(r"^\s*0*([0-9]{1,19})\s*$")
DURATION: Final = re.compile(r"^\s*([0-9]{1,12})\s*(ms|s|m|min|h|d)?\s*$")
UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Units of time as Spark writes them."""
WHOLE_MAX: Final = 2**63 - 1
TIMEOUT_MS_MAX: Final = TIMEOUT_S_MAX * 1000
PARTITIONS_MAX: Final = 1 << 20
TASKS_MAX: Final = 100_000
SORT_BYTES_MAX: Final = 2**31 - 1
"""Arrow's columns of bytes end there."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster, and how to reach it. Hashable: connections are shared per target and process."""

    endpoints: str
    token: str | None = field(default=None, repr=False)
    tls_dir: str | None = None
    """On every machine that connects: ``ca.pem``, ``client.pem``, ``client.key``."""
    request_timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of the sink. ``write_id`` None: one is made for this run."""

    target: Target
    partitions: tuple[int, ...] | None = None
    write_id: str | None = None
    wait: Wait = "applied"
    barrier_timeout_ms: int = 120_000
    barrier_scope: Scope = Scope.LEADER
    barrier_level: Level | None = None
    """None: as ``wait`` says."""
    in_flight_bytes_max: int = 8 * MIB
    op: Op | None = None
    """None: a column says it, or whether there are columns to add."""
    add_columns: tuple[str, ...] = ()
    null_key: bytes | None = None
    fail_on_rejected: bool = True
    """Commands that the state machine refused fail the write, at its end."""
    report_file: str | None = None
    """On the driver's machine: where ``commit`` leaves the report, as JSON."""
    row_order: RowOrder = "input"
    """``sorted``: a task numbers its rows in an order that comes from the rows alone."""
    sort_bytes_max: int = 256 * MIB


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Of the source. Offsets: one for all partitions or per partition; EARLIEST and LATEST stand for themselves."""

    target: Target
    view: View = "log"
    partitions: tuple[int, ...] | None = None
    node: str | None = None
    at_global: int | None = None
    start: int | Mapping[int, int] = EARLIEST
    end: int | Mapping[int, int] = LATEST
    start_time_ms: int | None = None
    """A time to begin at, in place of ``start``: since 1970."""
    end_time_ms: int | None = None
    """A time to end at, in place of ``end``."""
    start_global: int = 0
    end_global: int | None = None
    fail_on_data_loss: bool = True
    ordered: Order = "partition"
    tasks_min: int = 0
    """As many Spark tasks at least, where there are rows for them."""
    rows_per_trigger_max: int | None = None
    rows_per_trigger_min: int | None = None
    trigger_delay_max_ms: int = 15 * 60_000
    """How long fewer rows than those may wait for more."""
    fetch_bytes: int = 4 * MIB
    """What a task holds that it has not handed on."""
    spill_bytes_max: int = 16 * GIB
    """What a task may have on disk of a state that it has not handed on."""
    retries: int = 3
    pushdown: bool = False
    headers: bool = False
    producer: bool = False


def write_options(given: Mapping[str, str], *, stream: bool = False) -> WriteOptions:
    """Raises InvalidRequest, naming the option and what it takes."""
    rows = _checked(given, STREAM_WRITE if stream else WRITE, "writing a stream" if stream else "writing a batch")
    default = WriteOptions(_target(rows))
    add_columns = tuple(c.strip() for c in rows.get("addcolumns", "").split(",") if c.strip())
    write_id = rows.get("writeid")
    if write_id is not None and not write_id.strip():
        raise InvalidRequest("option writeId must not be empty")
    null_key = rows.get("nullkey")
    if null_key == "":
        raise InvalidRequest("option nullKey must not be empty")
    if null_key is not None and len(null_key.encode()) > KEY_BYTES_MAX:
        raise InvalidRequest(f"option nullKey has {len(null_key.encode())} bytes; a key has at most {KEY_BYTES_MAX}")
    return WriteOptions(
        target=default.target,
        partitions=_partitions(rows),
        write_id=write_id,
        wait=_choice(rows, "wait", ("committed", "durable", "applied"), default.wait),
        barrier_timeout_ms=_whole(rows, "barrierTimeoutMs", default.barrier_timeout_ms, low=1, high=TIMEOUT_MS_MAX),
        barrier_scope=Scope(_choice(rows, "barrierScope", tuple(map(str, Scope)), str(default.barrier_scope))),
        barrier_level=_level(rows),
        in_flight_bytes_max=_whole(rows, "maxInFlightBytes", default.in_flight_bytes_max, low=1),
        op=_choice(rows, "op", ("put", "delete", "add"), "put") if "op" in rows else None,
        add_columns=add_columns,
        null_key=null_key.encode() if null_key is not None else None,
        fail_on_rejected=_flag(rows, "failOnRejected", default=True),
        report_file=rows.get("reportfile") or None,
        # A stream cannot be sorted before it comes here, and after a shuffle its rows come in any order.
        row_order=_choice(rows, "rowOrder", ("input", "sorted"), "sorted" if stream else "input"),
        sort_bytes_max=_whole(rows, "maxSortBytes", default.sort_bytes_max, low=1, high=SORT_BYTES_MAX),
    )


def _level(rows: Mapping[str, str]) -> Level | None:
    if "barrierlevel" not in rows:
        return None
    return Level(_choice(rows, "barrierLevel", tuple(map(str, Level)), str(Level.APPLIED)))


def read_options(given: Mapping[str, str], *, stream: bool = False) -> ReadOptions:
    """Raises InvalidRequest, naming the option and what it takes."""
    rows = _checked(given, STREAM_READ if stream else READ, "reading a stream" if stream else "reading a batch")
    view: View = _choice(rows, "view", ("state", "log"), "log")
    if stream and view == "state":
        raise InvalidRequest("a stream reads view=log: the state of a partition has no order to follow")
    other: View = "log" if view == "state" else "state"
    for name in BATCH_LOG_ONLY if view == "state" else STATE_ONLY:
        if name.lower() in rows:
            raise InvalidRequest(f"option {name} belongs to view={other}, and this is view={view}")
    default = ReadOptions(_target(rows))
    ordered: Order = _choice(rows, "ordered", ("partition", "global"), default.ordered)
    most, least = (
        _whole(rows, name, 1, low=1) if name.lower() in rows else None
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger")
    )
    if most is not None and least is not None and least > most:
        raise InvalidRequest(f"option minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, {most}")
    if least is None and "maxtriggerdelay" in rows:
        raise InvalidRequest("option maxTriggerDelay goes with minOffsetsPerTrigger, which is not given")
    return ReadOptions(
        target=default.target,
        view=view,
        partitions=_partitions(rows),
        node=rows.get("node") or None,
        at_global=_whole(rows, "atGlobalOffset", 0, low=0) if "atglobaloffset" in rows else None,
        start=_offsets(rows, "startingOffsets", EARLIEST),
        end=_offsets(rows, "endingOffsets", LATEST),
        start_time_ms=_time(rows, "startingTimestamp", instead_of="startingOffsets"),
        end_time_ms=_time(rows, "endingTimestamp", instead_of="endingOffsets"),
        start_global=_whole(rows, "startingGlobalOffset", 0, low=0),
        end_global=_whole(rows, "endingGlobalOffset", 0, low=0) if "endingglobaloffset" in rows else None,
        fail_on_data_loss=_flag(rows, "failOnDataLoss", default=True),
        ordered=ordered,
        tasks_min=_whole(rows, "minPartitions", 0, low=1, high=TASKS_MAX),
        rows_per_trigger_max=most,
        rows_per_trigger_min=least,
        trigger_delay_max_ms=_duration(rows, "maxTriggerDelay", default.trigger_delay_max_ms),
        fetch_bytes=_whole(rows, "fetchBytes", default.fetch_bytes, low=1),
        spill_bytes_max=_whole(rows, "maxSpillBytes", default.spill_bytes_max, low=0),
        retries=_whole(rows, "numRetries", default.retries, low=0),
        pushdown=_flag(rows, "pushdown", default=False),
        headers=_flag(rows, "includeHeaders", default=False),
        producer=_flag(rows, "includeProducer", default=False),
    )


def columns_asked(given: Mapping[str, str]) -> tuple[View, bool, bool]:
    """The view, with headers, with producers: before it is known whether a query is a batch or a stream."""
    rows = _checked(given, (*READ, *TRIGGER), "reading")
    view: View = _choice(rows, "view", ("state", "log"), "log")
    return view, _flag(rows, "includeHeaders", default=False), _flag(rows, "includeProducer", default=False)


def ids_shown(ids: Iterable[int]) -> str:
    """As option ``partitions`` takes them, ``0-7,9``; of very many pieces the first ones, and the last."""
    found: list[list[int]] = []
    for each in sorted(ids):
        if found and found[-1][1] == each - 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    pieces = [str(first) if first == last else f"{first}-{last}" for first, last in found]
    if len(pieces) > RANGES_SHOWN:
        pieces[RANGES_SHOWN - 1 : -1] = ["..."]
    return ",".join(pieces) or "none"


def _checked(given: Mapping[str, str], allowed: tuple[str, ...], doing: str) -> dict[str, str]:
    rows = {str(k).lower(): str(v) for k, v in given.items()}
    if "provider" in rows:
        raise InvalidRequest(f"a table of a catalog: {NO_TABLE}")
    if "path" in rows:
        raise InvalidRequest("logboom has no paths: load() and save() without one, and say where with option endpoints")
    fine = {name.lower() for name in allowed}
    for name in rows:
        if name in fine:
            continue
        if name in KNOWN:
            raise InvalidRequest(
                f"option {KNOWN[name]} does not apply to {doing}; options here: {', '.join(sorted(allowed))}"
            )
        if name.startswith("kafka."):
            raise InvalidRequest(f"unknown option {name!r}: {NO_KAFKA}")
        near = difflib.get_close_matches(name, [a.lower() for a in allowed], n=1)
        hint = f"did you mean {KNOWN[near[0]]}?" if near else f"options here: {', '.join(sorted(allowed))}"
        raise InvalidRequest(f"unknown option {name!r}; {hint}")
    return rows


def _target(rows: Mapping[str, str]) -> Target:
    if not rows.get("endpoints", "").strip():
        raise InvalidRequest(f"option endpoints is needed: host:port of the nodes, comma-separated; {NO_TABLE}")
    return Target(
        endpoints=",".join(parse_endpoints(rows["endpoints"])),
        token=rows.get("token"),
        tls_dir=rows.get("tlsdir") or None,
        request_timeout_ms=_whole(rows, "requestTimeoutMs", 60_000, low=1, high=TIMEOUT_MS_MAX),
    )


def _partitions(rows: Mapping[str, str]) -> tuple[int, ...] | None:
    text = rows.get("partitions")
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        match = ID_RANGE.match(part)
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        if not match or last < first or last >= PARTITIONS_MAX:
            raise InvalidRequest(f'option partitions takes ids and ranges like "0,3,5-9", not {text!r}')
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _offsets(rows: Mapping[str, str], name: str, default: int) -> int | dict[int, int]:
    text = rows.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() in ("earliest", "latest"):
        return EARLIEST if text.strip().lower() == "earliest" else LATEST
    offsets: dict[int, Any] = {}
    try:
        parsed: Any = json.loads(text)
        offsets = {int(k): v for k, v in parsed.items()} if isinstance(parsed, dict) else {}
    except ValueError:
        offsets = {}  # answered below, with what would be right
    if not offsets or any(
        isinstance(v, bool) or not isinstance(v, int) or not EARLIEST <= v <= WHOLE_MAX for v in offsets.values()
    ):
        raise InvalidRequest(
            f'option {name} takes earliest, latest or JSON like {{"0": 120, "1": -2}}, below 2^63, not {text!r}'
        )
    return offsets


def _time(rows: Mapping[str, str], name: str, *, instead_of: str) -> int | None:
    """Milliseconds since 1970; a part of one counts, so that nothing before the time is meant."""
    text = rows.get(name.lower())
    if text is None:
        return None
    if instead_of.lower() in rows:
        raise InvalidRequest(f"give one of the options {instead_of} and {name}, not both")
    if WHOLE.match(text):
        return _whole(rows, name, 0, low=0)
    time: datetime | None = None
    with suppress(ValueError):
        time = datetime.fromisoformat(text.strip())
    if time is None or time.tzinfo is None or time < EPOCH:
        raise InvalidRequest(
            f"option {name} takes milliseconds since 1970, or a time with its zone like 2024-06-01T12:00:00Z or "
            f"2024-06-01T14:00:00+02:00, not {text!r}"
        )
    return -((EPOCH - time) // timedelta(milliseconds=1))


def _whole(rows: Mapping[str, str], name: str, default: int, *, low: int, high: int = WHOLE_MAX) -> int:
    text = rows.get(name.lower())
    if text is None:
        return default
    match = WHOLE.match(text)
    if match is None or not low <= int(match[1]) <= high:
        end = "on, below 2^63" if high == WHOLE_MAX else f"to {high}"
        raise InvalidRequest(f"option {name} takes a whole number from {low} {end}, not {text!r}")
    return int(match[1])


def _duration(rows: Mapping[str, str], name: str, default_ms: int) -> int:
    text = rows.get(name.lower())
    if text is None:
        return default_ms
    match = DURATION.match(text.lower())
    if match is None:
        raise InvalidRequest(f"option {name} takes a time like 500ms, 30s, 15m, 2h, not {text!r}")
    return int(match[1]) * UNITS_MS[match[2] or "ms"]


def _flag(rows: Mapping[str, str], name: str, *, default: bool) -> bool:
    found: str = _choice(rows, name, ("true", "false"), "true" if default else "false")
    return found == "true"


def _choice(rows: Mapping[str, str | None], name: str, choices: tuple[str, ...], default: str) -> Any:
    value = (rows.get(name.lower()) or default).strip().lower()
    if value not in choices:
        raise InvalidRequest(f"option {name} takes {', '.join(choices)}, not {value!r}")
    return value
