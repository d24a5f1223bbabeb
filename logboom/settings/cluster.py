"""What the cluster is, which must agree on all nodes, and what this node is."""

from __future__ import annotations

import msgspec

from logboom.settings.section import Section
from logboom.types import MIB, Ack, DurabilityMode


class Member(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node of the cluster, as everybody knows it."""

    id: str
    """Name of the node; also in its certificate."""
    peer_address: str
    """``host:port`` where other nodes connect."""
    client_address: str
    """``host:port`` where clients connect, as they can reach it."""


class PartitionSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one partition is."""

    state_machine: str = "kv"
    """`kv`, `log`, or one registered under the entry point group `logboom.state_machines`."""
    mode: DurabilityMode = DurabilityMode.WRITE_AHEAD
    """`write_ahead` (synced before it is acknowledged) or `write_behind` (synced within `log.linger_ms`)."""
    ack: Ack = Ack.APPLIED
    """What a write's answer waits for, if the request does not say: `committed`, `durable` or `applied`."""
    linearizable: bool = False
    """Writes are answered after they are applied, whatever the request says."""


class ClusterSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Must be equal on all nodes."""

    id: str = "logboom"
    """Name of the cluster; nodes and clients of another one are refused. Where two have the same, no client can tell
    them apart: a name of its own for each."""
    members: tuple[Member, ...] = ()
    """All nodes that the cluster begins with; see below. Later changes (`logboom members`) are in the log and win."""
    partitions: int = 8
    """How many partitions the cluster begins with, numbered from 0; keys are routed over these.

    `logboom partitions create` and `destroy` change which there are; after that this stays as it is.
    """
    state_machine: str = "kv"
    """`kv`, `log`, or one registered under the entry point group `logboom.state_machines`."""
    mode: DurabilityMode = DurabilityMode.WRITE_AHEAD
    """`write_ahead` (synced before it is acknowledged) or `write_behind` (synced within `log.linger_ms`)."""
    ack: Ack = Ack.APPLIED
    """What a write's answer waits for, if the request does not say: `committed`, `durable` or `applied`.

    Partitions that are created later have these two as well. `logboom partitions set` says otherwise for one, and wins.
    """
    linearizable: bool = False
    """Writes are answered after they are applied, whatever the request says."""
    overrides: dict[str, PartitionSettings] = msgspec.field(default_factory=dict)
    """Partition id (as text) to its own settings."""

    def partition(self, partition_id: int) -> PartitionSettings:
        """The settings of one partition."""
        own = self.overrides.get(str(partition_id))
        return own or PartitionSettings(
            state_machine=self.state_machine, mode=self.mode, ack=self.ack, linearizable=self.linearizable
        )

    def is_linearizable(self, partition_id: int) -> bool:
        """Of ``partition``: asked with every request."""
        own = self.overrides.get(str(partition_id)) if self.overrides else None
        return self.linearizable if own is None else own.linearizable


class NodeSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """This process."""

    id: str = ""
    """Which of `cluster.members` this is."""
    data_dir: str = ""
    """Where everything is kept; made if missing."""
    join: bool = False
    """Without data, wait until a cluster that is there takes this node in (`logboom members add`): never begin one."""
    client_address: str = ""
    """``host:port`` to bind; empty: the member's own."""
    peer_address: str = ""
    """`host:port` to bind for other nodes; empty: the member's own."""
    http_address: str = ""
    """`host:port` to bind for operators (metrics, health, status page; see `[http]`), empty: none."""
    probe_address: str = ""
    """`host:port` to bind for `/healthz` and `/readyz` alone, without TLS whatever `[tls]` says: what restarts
    containers has no certificate. Empty: none."""
    stop_ms: int = 15_000
    """A node that is stopped and has not closed everything by then (a state machine hangs, say) ends all the same,
    with status 5; that is as safe as a crash. One that closes to start anew from a snapshot gets ten times as long."""
    log_level: str = "info"
    """`debug`, `info`, `warning` or `error`."""
    log_format: str = "auto"
    """``json``, ``console`` or ``auto`` (console on a terminal)."""
    log_queue_bytes: int = 4 * MIB
    """Log lines that wait for whoever reads stderr; more are lost, and counted: nobody waits for a log."""
    log_drain_ms: int = 1_000
    """At its end a node waits so long, at most, until they are read."""
