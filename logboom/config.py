"""Configuration: defaults, then a TOML file, then LOGBOOM_<SECTION>__<KEY>, then flags. Checked once, frozen.

Unknown keys are errors that name the nearest known one. What each setting means and its
default: ``logboom.settings`` and docs/configuration.md, which is generated from it.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from logboom.errors import ConfigError
from logboom.settings import Member, Settings
from logboom.types import ID_LENGTH_MAX, KIB, MIB, is_address
from logboom.wire import REPLY_BYTES_MAX

PREFIX: Final = "LOGBOOM_"
NOT_SETTINGS: Final = frozenset(("ENDPOINTS", "TLS_DIR", "FAULTS", "TOKEN", "IMAGE", "DEMO_IMAGE"))
OF_SERVICES: Final = re.compile(
    r"([A-Z0-9]+_)*(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9]+)*|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Kubernetes tells every container of every service: of one that is called ``logboom``, say."""
PARTITIONS_MAX: Final = 100_000
CLUSTER_ID_BYTES_MAX: Final = 255
"""Nodes say it before they know each other."""
SNAPSHOTS_MIN: Final = 2
FRAME_ROOM: Final = 64 * KIB
"""What a frame has beside the batch or the piece that it carries."""
PEER_FRAME_BYTES_MIN: Final = 1 * MIB + FRAME_ROOM
CLIENT_FRAME_BYTES_MIN: Final = 16 * KIB
HELLO_BYTES_MIN: Final = 4 * KIB
BATCH_BYTES_MIN: Final = 8 * KIB
ENTRIES_ROOM: Final = 256 * KIB
"""What a message with entries has beside them: whoever writes to thousands of partitions at once makes a larger entry
than usual."""
LOG_LEVELS: Final = ("debug", "info", "warning", "error", "warn", "critical")
LOG_FORMATS: Final = ("auto", "json", "console")
PERCENTAGES: Final = ("throttle_percent", "node_percent", "fair_share_percent")
HTTP: Final = ("http_address", "probe_address")
SECTIONS: Final = (
    "node", "raft", "log", "net", "apply", "reads", "snapshot", "scrub", "admission", "lag", "barrier", "http", "trace",
    "tls",
)  # fmt: skip
"""Sections whose numbers are above zero, or may be zero."""
SCANS_MAX: Final = 256
"""A state's file has room for twice as many who look at it."""
FITS: Final = "the system takes no more"
LEAST: Final = {
    "raft.heartbeat_ms": (5, "nobody is as fast as that every time, and nobody would lead for long"),
    "apply.kv_map_bytes": (1 * MIB, "an empty state takes some"),
    "net.client_frame_bytes": (CLIENT_FRAME_BYTES_MIN, "a request takes 4 KiB beside its commands"),
    "net.unauthenticated_frame_bytes": (HELLO_BYTES_MIN, "so much nodes say of themselves when they meet"),
    "net.handshake_ms": (200, "nobody is as fast as that every time, and nodes would not meet"),
    "net.frame_ms": (1_000, "nobody is as fast as that every time, and nodes would lose each other"),
    "net.peer_connections_max": (64, "each member has one, and one more while it comes back"),
    "snapshot.bytes_per_s": (64 * KIB, "no snapshot would ever be complete"),
    "reads.hold_ms": (1, "a scan that waits for its client for a moment would end"),
}
"""The least that a setting may be, whatever else is set, and why."""
MOST: Final = {
    "net.client_frame_bytes": (1024 * MIB, FITS),
    "net.peer_frame_bytes": (1024 * MIB, FITS),
    "net.client_send_buffer_bytes": (1024 * MIB, FITS),
    "net.peer_send_buffer_bytes": (1024 * MIB, FITS),
    "http.connections_max": (65_536, FITS),
    "raft.journal_segment_bytes": (1024 * MIB, "each file takes all of it from the disk when it is begun"),
    "apply.linger_ms": (60_000, "so long a partition may show nothing after a start"),
}
"""The most that a setting may be, whatever else is set, and why."""
MAY_BE_ZERO: Final = frozenset(
    (
        "hold_ms",
        "dump_stall_ms",
        "load_stall_ms",
        "stall_ms",
        "warn_days",
        "slow_ms",
        "stalled_ms",
        "chronic_ms",
        "inline_sync_bytes_max",
        "redo_bytes_max",
        "mixed_bytes_max",
        "segment_ms",
        "connections_per_address",
        "agree_after_s",
        "commit_linger_ms",
        "spare_linger_ms",
        "recent_bytes",
        "page_cache_bytes",
        "inline_bytes",
        "log_bytes",
        "entries",
        "age_ms",
        "retain_bytes",
        "retain_log_bytes",
        "retain_log_ms",
        "rows_min",
        "pause_ms",
        "partition_series_max",
        "partition_age_ms",
        "node_age_ms",
        "principal_ops_per_s",
        "principal_bytes_per_s",
        "partition_ops_per_s",
        "partition_bytes_per_s",
        "light_commit_ms",
        "queue_chunk_bytes",
        "refusals_max",
        "disk_free_bytes_min",
        "apply_lag_records_max",
        "apply_lag_global_max",
        "memory_bytes_max",
    )
)


def load(
    file: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Read, merge and check. ``flags`` are dotted paths (``node.id``). Raises ConfigError, naming the path."""
    tree: dict[str, Any] = {}
    if file is not None:
        tree = _read(Path(file))
    for path, value in _from_environment(os.environ if environment is None else environment).items():
        _put(tree, path, value)
    for dotted, flag in (flags or {}).items():
        if flag is not None:
            _put(tree, tuple(dotted.split(".")), flag)
    _check_names(tree)
    members = tree.get("cluster", {}).get("members")
    if isinstance(members, str):
        tree["cluster"]["members"] = [_member(row) for row in members.split(",") if row.strip()]
    signals = tree.get("admission", {}).get("signals")
    if isinstance(signals, str):
        tree["admission"]["signals"] = [name.strip() for name in signals.split(",") if name.strip()]
    try:
        settings = msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error).replace("$.", ""), path=str(error).rpartition("$.")[2].rstrip("`")) from None
    check(settings)
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))  # TOML is, whatever the locale says
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", path=str(path)) from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, numbers or nesting without end
        raise ConfigError(f"{path}: {error}", path=str(path)) from None


def _from_environment(environment: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    found = {}
    for name, value in environment.items():
        rest = name.removeprefix(PREFIX)
        if rest != name and rest not in NOT_SETTINGS and not OF_SERVICES.fullmatch(rest):
            path = tuple(rest.lower().split("__"))
            if (name + value).encode(errors="replace").decode() != name + value:
                raise ConfigError(f"environment variable {name!r} is not UTF-8", path=name)
            if len(path) < 2 or not all(path):
                raise ConfigError(
                    f"environment variable {name}: expected {PREFIX}<SECTION>__<KEY>, e.g. LOGBOOM_NODE__ID", path=name
                )
            found[path] = value
    return found


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{'.'.join(path)}: {part} is a value, not a section", path=".".join(path))
    tree[path[-1]] = value


def _check_names(tree: Mapping[str, Any]) -> None:
    sections = {f.name: f.type for f in msgspec.structs.fields(Settings)}
    for section, values in tree.items():
        if section not in sections:
            _unknown(section, sections)
        if not isinstance(values, dict):
            raise ConfigError(f"{section} must be a section ([{section}])", path=section)
        keys = [f.name for f in msgspec.structs.fields(sections[section])]
        for key in values:
            if key not in keys:
                _unknown(key, keys, f"{section}.")


def _unknown(name: str, known: Any, section: str = "") -> None:
    near = difflib.get_close_matches(name, list(known), 1)
    hint = f"did you mean {section}{near[0]}?" if near else "docs/configuration.md has all that there are"
    raise ConfigError(f"unknown setting {section}{name}; {hint}", path=f"{section}{name}")


def _member(row: str) -> dict[str, str]:
    """``id=peer_host:port@client_host:port``."""
    name, equals, rest = row.strip().partition("=")
    peer, at, client = rest.partition("@")
    if not (name and equals and peer and at and client):
        raise ConfigError(
            f"cluster.members: {row.strip()!r} is not id=peer_host:port@client_host:port", path="cluster.members"
        )
    return {"id": name, "peer_address": peer, "client_address": client}


def check(settings: Settings) -> None:
    """Everything that no single value can get wrong alone. Raises ConfigError, naming the path."""
    raft, cluster = settings.raft, settings.cluster
    if not 1 <= cluster.partitions <= PARTITIONS_MAX:
        _wrong("cluster.partitions", f"must be 1 to {PARTITIONS_MAX}, not {cluster.partitions}")
    if not 1 <= len(cluster.id.encode()) <= CLUSTER_ID_BYTES_MAX:
        _wrong("cluster.id", f"must have 1 to {CLUSTER_ID_BYTES_MAX} bytes, not {len(cluster.id.encode())}")
    if raft.election_min_ms <= 3 * raft.heartbeat_ms:
        _wrong(
            "raft.election_min_ms", f"must be over 3 x heartbeat_ms ({raft.heartbeat_ms}), not {raft.election_min_ms}"
        )
    if raft.election_max_ms <= raft.election_min_ms:
        _wrong("raft.election_max_ms", f"must be over election_min_ms ({raft.election_min_ms})")
    if raft.fallback_ms <= raft.heartbeat_ms:
        _wrong("raft.fallback_ms", f"must be over heartbeat_ms ({raft.heartbeat_ms})")
    _check_frames(settings)
    if settings.snapshot.keep < SNAPSHOTS_MIN:
        _wrong("snapshot.keep", f"must be {SNAPSHOTS_MIN} or more, not {settings.snapshot.keep}")
    if settings.barrier.waiters_reserved >= settings.barrier.waiters_max:
        _wrong("barrier.waiters_reserved", f"must be below barrier.waiters_max ({settings.barrier.waiters_max})")
    if settings.reads.scans_max + settings.reads.views_max > SCANS_MAX:
        _wrong("reads.scans_max", f"must be {SCANS_MAX} at most, together with reads.views_max")
    for name in SECTIONS:
        section = getattr(settings, name)
        for field in msgspec.structs.fields(section):
            value = getattr(section, field.name)
            if field.name in PERCENTAGES and not 1 <= value <= 100:
                _wrong(f"{name}.{field.name}", f"must be 1 to 100, not {value}")
            least = 0 if field.name in MAY_BE_ZERO else 1
            if isinstance(value, int) and not isinstance(value, bool) and value < least:
                what = "must be positive" if least else "must not be negative"
                _wrong(f"{name}.{field.name}", what)
    for path, (least, why) in LEAST.items():
        if (value := _value(settings, path)) < least:
            _wrong(path, f"must be {least} or more, not {value}: {why}")
    for path, (most, why) in MOST.items():
        if (value := _value(settings, path)) > most:
            _wrong(path, f"must be {most} or less, not {value}: {why}")
    for path in ("lag.slow_ms", "lag.stalled_ms"):
        if 0 < (value := _value(settings, path)) <= settings.apply.linger_ms:
            _wrong("apply.linger_ms", f"must be below {path} ({value}): who lingers is no partition that stands still")
    _check_operators(settings)
    if settings.access.file and not settings.tls.directory:
        _wrong("access.file", "needs tls.directory: its rules go by certificates, and without TLS nobody has a name")
    _check_members(cluster.members)
    known = set(map(str, range(cluster.partitions))) if cluster.overrides else set()
    for key in cluster.overrides:
        if key not in known:
            _wrong(f"cluster.overrides.{key}", f"is not a partition id below {cluster.partitions}")


def _value(settings: Settings, path: str) -> int:
    section, _, key = path.partition(".")
    return int(getattr(getattr(settings, section), key))


def _check_frames(settings: Settings) -> None:
    """What one side sends has to be taken by the other: else it is cut, and sent again, for ever."""
    raft, log, net = settings.raft, settings.log, settings.net
    if log.batch_bytes_max < BATCH_BYTES_MIN:
        _wrong("log.batch_bytes_max", f"must be {BATCH_BYTES_MIN} or more, not {log.batch_bytes_max}")
    batch = log.batch_bytes_max + FRAME_ROOM
    if batch > min(net.peer_frame_bytes, log.segment_bytes):
        _wrong("log.batch_bytes_max", "must leave 64 KiB below net.peer_frame_bytes and log.segment_bytes")
    if batch > REPLY_BYTES_MAX:
        _wrong("log.batch_bytes_max", f"must leave 64 KiB below {REPLY_BYTES_MAX}: no client takes a larger frame")
    if net.peer_frame_bytes < PEER_FRAME_BYTES_MIN:
        _wrong("net.peer_frame_bytes", f"must be {PEER_FRAME_BYTES_MIN} or more: snapshots go in pieces of a mebibyte")
    if raft.message_bytes_max // 2 + raft.entry_bytes_max + ENTRIES_ROOM > net.peer_frame_bytes:
        _wrong(
            "raft.message_bytes_max",
            "half of it and raft.entry_bytes_max must leave 256 KiB below net.peer_frame_bytes "
            f"({net.peer_frame_bytes})",
        )
    if net.peer_send_buffer_bytes < net.peer_frame_bytes:
        _wrong("net.peer_send_buffer_bytes", f"must hold one frame (net.peer_frame_bytes, {net.peer_frame_bytes})")
    answer = max(batch, settings.reads.window_bytes + FRAME_ROOM, PEER_FRAME_BYTES_MIN)
    if net.client_send_buffer_bytes < answer:
        _wrong(
            "net.client_send_buffer_bytes",
            f"must be {answer} or more: one batch (log.batch_bytes_max), a window of a scan (reads.window_bytes) or a "
            "piece of a mebibyte, and 64 KiB",
        )
    if net.client_frame_bytes > settings.admission.node_bytes:
        _wrong("admission.node_bytes", "must hold at least one request (net.client_frame_bytes)")


def _check_operators(settings: Settings) -> None:
    node, trace = settings.node, settings.trace
    for name in ("client_address", "peer_address", *HTTP):
        address = getattr(node, name)
        # Any free port will do for the first two, if others learn of it.
        if address and not is_address(address if name in HTTP else re.sub(":0$", ":1", address)):
            _wrong(f"node.{name}", f"{address!r} is not host:port")
    for name, known in (("log_level", LOG_LEVELS), ("log_format", LOG_FORMATS)):
        if getattr(node, name).lower() not in known:
            _wrong(f"node.{name}", f"is one of {', '.join(known)}, not {getattr(node, name)!r}")
    if not 0 <= trace.sample <= 1:
        _wrong("trace.sample", f"must be 0 to 1, not {trace.sample}")
    if trace.sample and not (trace.file or trace.endpoint):
        _wrong("trace.sample", "needs trace.file or trace.endpoint: where should spans go?")
    if trace.endpoint and not _is_http(trace.endpoint):
        _wrong("trace.endpoint", f"{trace.endpoint!r} is not an http address")


def _is_http(text: str) -> bool:
    from urllib.parse import urlsplit  # a node without a collector starts sooner

    try:
        parts = urlsplit(text)
        _ = parts.port  # raises if it is none
        return parts.scheme in ("http", "https") and bool((parts.hostname or "").encode("idna"))
    except ValueError:  # also a host that there cannot be
        return False


def _check_members(members: tuple[Member, ...]) -> None:
    ids = [m.id for m in members]
    for position, member in enumerate(members):
        if not member.id or ids.count(member.id) > 1:
            _wrong(f"cluster.members[{position}].id", f"{member.id!r} is empty or appears twice")
        if len(member.id) > ID_LENGTH_MAX:
            _wrong(f"cluster.members[{position}].id", f"{member.id!r} has over {ID_LENGTH_MAX} characters")
        for name in ("peer_address", "client_address"):
            if not is_address(getattr(member, name)):
                _wrong(f"cluster.members[{position}].{name}", f"{getattr(member, name)!r} is not host:port")


def check_node(settings: Settings) -> None:
    """What a node needs beyond ``check``."""
    if not settings.cluster.members:
        _wrong(
            "cluster.members",
            "is empty: who is in this node's cluster? Give --config FILE (one is in docs/configuration.md); "
            "to try logboom, run `logboom local`",
        )
    if not settings.node.data_dir:
        _wrong("node.data_dir", "is not set: where should this node keep its data?")
    if settings.node.id not in [m.id for m in settings.cluster.members]:
        known = ", ".join(m.id for m in settings.cluster.members) or "none"
        _wrong("node.id", f"{settings.node.id!r} is not among cluster.members ({known})")


def _wrong(path: str, why: str) -> None:
    raise ConfigError(f"{path} {why}", path=path)


def to_toml(settings: Settings) -> str:
    """A file that ``load`` reads back to the same settings (non-default values only)."""
    lines: list[str] = []
    for section in msgspec.structs.fields(Settings):
        value, default = getattr(settings, section.name), section.default
        changed = {
            f.name: getattr(value, f.name)
            for f in msgspec.structs.fields(type(value))
            if getattr(value, f.name) != getattr(default, f.name)
        }
        if not changed:
            continue
        lines.append(f"[{section.name}]")
        lines += [f"{key} = {_toml(item)}" for key, item in changed.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return msgspec.json.encode(str(value)).decode().replace("\x7f", "\\u007f")  # JSON takes it as it is
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    return "{" + ", ".join(f'"{k}" = {_toml(v)}' for k, v in value.items()) + "}"
