"""How others reach a node, who may, and what it tells of itself."""

from __future__ import annotations

from logboom.settings.section import Section
from logboom.types import KIB, MIB


class NetSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Connections."""

    client_frame_bytes: int = 8 * MIB
    """Largest frame from a client; clients learn it when they connect."""
    peer_frame_bytes: int = 8 * MIB
    """Largest frame between nodes."""
    unauthenticated_frame_bytes: int = 4 * KIB
    """Largest frame before HELLO is answered."""
    handshake_ms: int = 5_000
    """A connection that has not introduced itself by then is cut."""
    frame_ms: int = 10_000
    """A frame that has begun must be whole by then; between nodes it may also take as long as it does at 32 KiB/s."""
    client_send_buffer_bytes: int = 8 * MIB
    """Replies that a client has not read; beyond it streams wait, at twice as much the client is cut."""
    peer_send_buffer_bytes: int = 16 * MIB
    """Frames that another node has not read; beyond it what can wait does, at twice as much the link is cut."""
    connections_max: int = 4_096
    """Client connections, also those that have only connected: where there is no room for one more, one of them is
    cut. One in eight of the process's descriptors (`ulimit -n`), 64 at least, is kept for files: beyond that each
    one on any port takes the place of one that has only connected, or is not taken."""
    connections_per_address: int = 0
    """Client connections from one address (IPv6: from one network of 64 bits), 0: any number. Who comes through one
    proxy shares an address."""
    peer_connections_max: int = 1_024
    """Connections to the port for other nodes. Each member has one, and the others are cut where there is no room."""
    request_ms_max: int = 600_000
    """Longest deadline of a request; longer ones are cut to it."""
    forward_bytes: int = 16 * MIB
    """Forwarded requests that wait for the leader's answer, per node."""


class HttpSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operators' port (`node.http_address`). It only reads, and bounds whatever it is asked."""

    partition_series_max: int = 1_024
    """Partitions with series of their own in `/metrics`, lowest ids first; sums are over all. 0: none."""
    connections_max: int = 64
    """Connections. For one more the oldest that asks for nothing is closed; if all do, it is answered with 503."""
    request_ms: int = 5_000
    """A request must be whole, and its answer taken, by then; so long a connection may also stay idle. On
    `node.probe_address` 2,000 at most."""
    request_bytes: int = 16 * KIB
    """Largest request: its line and its headers."""
    headers_max: int = 64
    """Header lines of a request."""
    debug: bool = False
    """Serve `/debug/stacks`: what every thread and task is doing."""


class TraceSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spans of sampled requests: admit, append, replicate, commit, apply, barrier. Needs `file` or `endpoint`."""

    sample: float = 0.0
    """Share of requests that are traced, 0 to 1; whoever sends a `traceparent` has decided itself. 0: none at all."""
    file: str = ""
    """Append spans here, one OTLP JSON object per line, empty: no file."""
    file_bytes: int = 64 * MIB
    """The file is renamed to `<file>.1` at this size, and begun anew."""
    endpoint: str = ""
    """Send spans to this OTLP/HTTP address (`http://host:4318/v1/traces`), as JSON. Empty: do not."""
    spans_max: int = 4_096
    """Spans that wait to be exported; more are dropped, and counted."""


class TlsSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Empty directory: no TLS. Else ``ca.pem``, ``client-ca.pem`` (optional), ``<node id>.pem``, ``<node id>.key``."""

    directory: str = ""
    """Where the files are. They may be replaced while the node runs: new connections use the new ones."""
    warn_days: int = 30
    """So many days before one of its certificates ends a node begins to say so, once a day. 0: never."""


class AccessSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may do what. Empty: with TLS whoever has a certificate may do everything, without TLS whoever connects."""

    file: str = ""
    """Rules by the names in certificates; what none allows is refused. May be replaced while the node runs."""
