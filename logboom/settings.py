"""Every setting, typed, frozen, with its default and unit. Loading and checking: ``logboom.config``.

ClusterSettings must agree on all nodes (checked when nodes connect); the rest is each node's own.
Defaults suit a laptop.
"""

from __future__ import annotations

import msgspec

from logboom.types import KIB, MIB, DurabilityMode


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Member(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node of the cluster, as everybody knows it."""

    id: str
    peer_address: str
    """``host:port`` where other nodes connect."""
    client_address: str
    """``host:port`` where clients connect, as they can reach it."""


class PartitionSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one partition is."""

    state_machine: str = "kv"
    mode: DurabilityMode = DurabilityMode.WRITE_AHEAD


class ClusterSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Must be equal on all nodes."""

    id: str = "logboom"
    members: tuple[Member, ...] = ()
    partitions: int = 8
    state_machine: str = "kv"
    mode: DurabilityMode = DurabilityMode.WRITE_AHEAD
    overrides: dict[str, PartitionSettings] = {}
    """Partition id (as text) to its own settings."""

    def partition(self, partition_id: int) -> PartitionSettings:
        """The settings of one partition."""
        default = PartitionSettings(state_machine=self.state_machine, mode=self.mode)
        return self.overrides.get(str(partition_id), default)


class NodeSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """This process."""

    id: str = ""
    data_dir: str = ""
    client_address: str = ""
    """``host:port`` to bind; empty: the member's own."""
    peer_address: str = ""
    log_level: str = "info"
    log_format: str = "auto"
    """``json``, ``console`` or ``auto`` (console on a terminal)."""


class RaftSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parent log."""

    heartbeat_ms: int = 30
    election_min_ms: int = 150
    election_max_ms: int = 300
    fallback_ms: int = 500
    """A leader without a quorum's answers for this long steps down."""
    entry_bytes_max: int = 64 * KIB
    """Routing entries are packed into Raft entries up to this."""
    message_bytes_max: int = 1 * MIB
    """Entries per append_entries message."""
    journal_segment_bytes: int = 16 * MIB
    proposals_max: int = 16_384
    """Requests proposed and not yet committed."""


class LogSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Partition logs (AOF)."""

    segment_bytes: int = 64 * MIB
    segment_records: int = 16 * 1024 * 1024
    batch_bytes_max: int = 4 * MIB
    """Largest batch; a request's share for one partition is one batch."""
    linger_ms: int = 20
    """Write-behind: the longest time between a write and its sync."""
    open_files_max: int = 64


class ApplySettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers."""

    batch_bytes: int = 4 * MIB
    """Applied in one transaction, at most (one batch more may go over)."""
    batches_max: int = 1024
    retry_initial_ms: int = 50
    retry_max_ms: int = 2_000
    retry_attempts_max: int = 8
    """Then the partition is paused."""
    kv_map_bytes: int = 64 * 1024 * MIB
    """Address space of one partition's LMDB; disk is used as needed."""
    producers_max: int = 65_536
    """Producers remembered per partition; the one that wrote longest ago is forgotten first."""
    producer_ranges_max: int = 1_024
    """Separate applied ranges above a producer's floor."""
    producer_receipts: int = 16
    """Latest receipts with results remembered per producer."""


class AdmissionSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Budgets of requests that are admitted and not yet applied."""

    partition_ops: int = 1_000_000
    partition_bytes: int = 64 * MIB
    node_ops: int = 4_000_000
    node_bytes: int = 192 * MIB
    retry_after_ms: int = 50


class BarrierSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Waiting."""

    waiters_max: int = 65_536
    waiters_per_client: int = 4_096
    wait_ms_max: int = 600_000
    ahead_max: int = 1_000_000
    """A target further than this above the commit index is refused."""


class NetSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Connections."""

    client_frame_bytes: int = 8 * MIB
    peer_frame_bytes: int = 8 * MIB
    unauthenticated_frame_bytes: int = 4 * KIB
    handshake_ms: int = 5_000
    frame_ms: int = 10_000
    client_send_buffer_bytes: int = 8 * MIB
    peer_send_buffer_bytes: int = 16 * MIB
    connections_max: int = 4_096
    request_ms_max: int = 600_000
    forward_bytes: int = 16 * MIB
    """Forwarded requests that wait for the leader's answer, per node."""


class TlsSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Empty directory: no TLS. Else ``ca.pem``, ``client-ca.pem`` (optional), ``<node id>.pem``, ``<node id>.key``."""

    directory: str = ""


class Settings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it."""

    cluster: ClusterSettings = ClusterSettings()
    node: NodeSettings = NodeSettings()
    raft: RaftSettings = RaftSettings()
    log: LogSettings = LogSettings()
    apply: ApplySettings = ApplySettings()
    admission: AdmissionSettings = AdmissionSettings()
    barrier: BarrierSettings = BarrierSettings()
    net: NetSettings = NetSettings()
    tls: TlsSettings = TlsSettings()
