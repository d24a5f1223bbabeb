"""Every setting, typed, frozen, with its default and unit. Loading and checking: ``logboom.config``.

ClusterSettings must agree on all nodes (checked when nodes connect); the rest is each node's own.
Defaults suit a laptop.
"""

from __future__ import annotations

import msgspec

from logboom.types import GIB, KIB, MIB, Ack, DurabilityMode


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Member(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node of the cluster, as everybody knows it."""

    id: str
    """Name of the node; also in its certificate."""
    peer_address: str
    """``host:port`` where other nodes connect."""
    client_address: str
    """``host:port`` where clients connect, as they can reach it."""


class PartitionSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one partition is."""

    state_machine: str = "kv"
    """`kv`, `log`, or one registered under the entry point group `logboom.state_machines`."""
    mode: DurabilityMode = DurabilityMode.WRITE_AHEAD
    """`write_ahead` (synced before it is acknowledged) or `write_behind` (synced within `log.linger_ms`)."""
    ack: Ack = Ack.APPLIED
    """What a write's answer waits for, if the request does not say: `committed`, `durable` or `applied`."""
    linearizable: bool = False
    """Writes are answered after they are applied, whatever the request says."""


class ClusterSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Must be equal on all nodes."""

    id: str = "logboom"
    """Name of the cluster; nodes and clients of another one are refused."""
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

    Partitions that are created later have these two as well.
    """
    linearizable: bool = False
    """Writes are answered after they are applied, whatever the request says."""
    overrides: dict[str, PartitionSettings] = {}
    """Partition id (as text) to its own settings."""

    def partition(self, partition_id: int) -> PartitionSettings:
        """The settings of one partition."""
        default = PartitionSettings(
            state_machine=self.state_machine, mode=self.mode, ack=self.ack, linearizable=self.linearizable
        )
        return self.overrides.get(str(partition_id), default)


class NodeSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class RaftSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parent log."""

    heartbeat_ms: int = 30
    """Between a leader's signs of life."""
    election_min_ms: int = 150
    """Shortest silence of a leader after which a follower stands for election."""
    election_max_ms: int = 300
    """Longest; each follower draws between the two."""
    election_patience_ms: int = 1_000
    """Where a leader's signs of life come irregularly, followers wait for up to twice the longest silence of late, and
    at most this long; up to `election_max_ms`: never longer than that."""
    fallback_ms: int = 500
    """A leader without a quorum's answers for this long steps down; one whose disk hangs for so long falls silent."""
    spare_linger_ms: int = 5
    """With one command under way, followers that its quorum does without get it so much later, with those after it."""
    commit_linger_ms: int = 2
    """Longest time after which followers hear of a new commit index; the next entries take it along."""
    entry_bytes_max: int = 64 * KIB
    """Routing entries are packed into Raft entries up to this."""
    message_bytes_max: int = 1 * MIB
    """Entries per append_entries message."""
    transfer_ms: int = 1_000
    """A leader that is stopped (SIGTERM) first hands leadership over, and gives that up after this time."""
    journal_segment_bytes: int = 16 * MIB
    """Size of one file of the parent journal."""
    inline_sync_bytes_max: int = 16 * KIB
    """A group sync of at most two files and so much runs on the event loop itself, 0: never."""
    redo_bytes_max: int = 48 * KIB
    """A partition's share of a group sync up to this is synced with the journal and not in its own file, 0: never."""
    redo_unsettled_bytes: int = 8 * MIB
    """Carried by the journal until the partitions' own files are synced."""
    proposals_max: int = 16_384
    """Requests proposed and not yet committed."""


class LogSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Partition logs (AOF)."""

    segment_bytes: int = 64 * MIB
    """A segment file is sealed at this size,"""
    segment_records: int = 16 * 1024 * 1024
    """or at this many records."""
    batch_bytes_max: int = 4 * MIB
    """Largest batch; a request's share for one partition is one batch."""
    linger_ms: int = 20
    """Write-behind: the longest time between a write and its sync."""
    recent_bytes: int = 4 * MIB
    """Batches of a partition kept in memory until they are committed, and as much until they are applied, 0: none."""
    recent_node_bytes: int = 64 * MIB
    """The same for a node: with many partitions each gets its share of this."""
    page_cache_bytes: int = 256 * MIB
    """Per node: so much of what was written last stays in the page cache, for readers that are close to the end. What
    is older is given back to the system, and read from the disk when somebody asks, 0: the kernel decides."""
    open_files_max: int = 64
    """Sealed segments kept open per partition, least recently used closed first;"""
    open_files_node_max: int = 1_024
    """in a node with many partitions each gets its share of this, one at least."""
    reader_lease_ms: int = 60_000
    """What somebody tails is not removed, unless the reader takes nothing for so long."""


class ReadSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients read: streams of log records (`tail` and `scan_log`), scans, and how fast."""

    memory_bytes: int = 64 * MIB
    """What all of a node's streams have read and not yet handed to their connections."""
    segments_max: int = 512
    """Segments that are read at the same time, by all of them."""
    streams_max: int = 32_768
    """So many are open: each is looked at whenever something is committed that it may be waiting for."""
    window_bytes: int = 4 * MIB
    """What a scan over many partitions reads at a time (one batch may be larger),"""
    window_segments_max: int = 256
    """of so many segments."""
    views_max: int = 16
    """Scans over the state of several partitions at one index, at the same time,"""
    scans_max: int = 128
    """and over that of one. Each holds on to the state as it was when it began, until it ends or its client has taken
    nothing of it for as long as the request may take (`net.frame_ms` at least);"""
    hold_ms: int = 3_600_000
    """and no longer than it has waited so long for its client, or its rate, in all: what takes more has to be asked for
    in ranges."""
    principal_bytes_per_s: int = 0
    """Bytes a second that one principal (a certificate, or without any a connection) may read from this node, by
    streams, scans, fetches and gets; `admission.rate_burst_ms` ahead of it. Who reads faster waits. 0: any number."""


class ApplySettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers."""

    batch_bytes: int = 4 * MIB
    """Applied in one transaction, at most (one batch more may go over)."""
    batches_max: int = 1024
    """Batches applied in one transaction, at most."""
    inline_bytes: int = 16 * KIB
    """A few commands in memory, together up to this, are applied by `kv` on the event loop itself, and a few keys read
    there; 0: never."""
    linger_ms: int = 100
    """Shortest time between two groups of a partition while nobody waits for its effects."""
    unsaved_bytes: int = 32 * MIB
    """Memory for effects of a partition that are not saved yet; twice that while they are being saved."""
    replay_bytes: int = 32 * MIB
    """A partition that has applied so much of its log since it last saved does so: a crash repeats it."""
    unsaved_ms: int = 5_000
    """Longest time until effects are saved: a crash repeats less than twice that, many times faster."""
    unsaved_node_bytes: int = 256 * MIB
    """Both for a node: with many partitions that have state each gets its share of this, at least 64 KiB."""
    retry_initial_ms: int = 50
    """First pause after a failed apply; doubles,"""
    retry_max_ms: int = 2_000
    """up to this."""
    retry_attempts_max: int = 8
    """Then the partition is paused."""
    kv_map_bytes: int = 64 * 1024 * MIB
    """Address space of one partition's LMDB, less with more than a thousand partitions; disk is used as needed."""
    producers_max: int = 65_536
    """Producers remembered per partition; the one that wrote longest ago is forgotten first. This and the next two must
    be equal on all nodes, and stay as the cluster began: they decide what is applied. A restore may change them."""
    producer_ranges_max: int = 1_024
    """Separate applied ranges above a producer's floor."""
    producer_receipts: int = 16
    """Latest receipts with results remembered per producer."""


class SnapshotSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Snapshots, and what is removed below them. The leader decides when; every node takes its own at that index."""

    log_bytes: int = 2 * GIB
    """A snapshot is due when so much was applied since the last, and as much as the last set is large (what is kept in
    `log` partitions for ever counts a sixteenth there), 0: not for that;"""
    entries: int = 1_000_000
    """or when so many routing entries were committed since, 0: not for that;"""
    age_ms: int = 3_600_000
    """or, if anything was, after this time, 0: not for that."""
    keep: int = 2
    """Sets kept, at least 2. Logs are compacted to the last but one: whoever is given the last can go on from there."""
    retain_bytes: int = 64 * MIB
    """Of a partition with state: payload kept below what is compacted, for readers (in whole segments)."""
    retain_log_bytes: int = 0
    """Of a `log` partition, whose records are kept nowhere else: payload kept, 0: whatever its size;"""
    retain_log_ms: int = 0
    """and for how long records are kept, 0: for ever. Whole segments go, when logs are compacted."""
    bytes_per_s: int = 64 * MIB
    """How fast a snapshot is written, and fetched from another node."""
    hold_ms: int = 21_600_000
    """A set that a node or a backup fetches is kept beyond its time, with all that follows it in the logs, but no
    longer than this: then whoever fetches it begins with a newer one. 0: as long as anybody asks for it."""


class ScrubSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is at rest is read again now and then, to find damage while other nodes have a good copy."""

    bytes_per_s: int = 16 * MIB
    """How fast it reads."""
    pause_ms: int = 21_600_000
    """Between two passes over everything; the first comes so long after a start, at most a minute. 0: never."""


class AdmissionSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Budgets of requests that are admitted and not yet applied, rates of what is admitted, and who waits for them."""

    partition_ops: int = 1_000_000
    """Records per partition."""
    partition_bytes: int = 64 * MIB
    """Bytes per partition."""
    partition_batches: int = 100_000
    """Batches per partition (a request's share for it is one): each takes up to 1.6 KB until it is applied."""
    node_ops: int = 4_000_000
    """Records over all partitions."""
    node_bytes: int = 192 * MIB
    """Bytes over all partitions."""
    node_batches: int = 250_000
    """Batches over all partitions."""
    partition_age_ms: int = 0
    """A partition whose oldest admitted record is not applied after this time takes no more, 0: off."""
    node_age_ms: int = 0
    """The same for the node: one partition that stands still holds up all of it. 0: off."""
    fair_share_percent: int = 80
    """Most of a budget that one principal, or one partition of the node's, gets alone; with others less. 100: all."""
    principal_ops_per_s: int = 0
    """Records a second that one principal (a certificate, or without any a connection) may write, 0: any number."""
    principal_bytes_per_s: int = 0
    """Bytes, 0: any number."""
    partition_ops_per_s: int = 0
    """Records a second that a partition takes; principals share them as they share budgets. 0: any number."""
    partition_bytes_per_s: int = 0
    """Bytes, 0: any number."""
    rate_burst_ms: int = 1_000
    """So far ahead of those rates one may be, and by one request more, however large; the next one waits for it."""
    retry_after_ms: int = 50
    """Least that a refused client is told to wait; longer when what it lacks takes longer to drain,"""
    retry_after_max_ms: int = 2_000
    """up to this (but for jitter)."""
    queue_requests: int = 4_096
    """Requests that wait for admission (`admission_wait`)."""
    queue_bytes: int = 32 * MIB
    """Bytes of them."""
    queue_bypass_ms: int = 1_000
    """What has waited so long is passed by nothing that waits for the same."""
    refusals_max: int = 64
    """A connection that was refused so often within `retry_after_ms` is not read for as long, 0: always read."""
    signals: tuple[str, ...] = ("disk_free", "apply_lag", "memory")
    """`disk_free`, `apply_lag`, `memory`, or registered under the entry point group `logboom.admission_signals`."""
    signal_ms: int = 250
    """Between two looks at the signals."""
    disk_free_bytes_min: int = 64 * MIB
    """`disk_free`: with less free where the data is, nothing is admitted; from twice as much on, less. Snapshots leave
    half of it. 0: off."""
    apply_lag_records_max: int = 0
    """`apply_lag`: a partition's committed records that are not applied here; less from half of it on, 0: off."""
    apply_lag_global_max: int = 0
    """`apply_lag`: the same in `global_log_index`, for a partition that has something to apply, 0: off."""
    memory_bytes_max: int = 0
    """`memory`: what the process takes, but for mapped files; with more nothing is admitted, from 3/4 on less. An
    eighth of it is the most for each of `apply.unsaved_node_bytes`, `log.recent_node_bytes`, `queue_bytes` and
    `reads.memory_bytes`, a quarter for `node_bytes`. 0: three quarters of the limit of its control group (a container,
    a unit of systemd), off where there is none."""


class LagSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done when a partition, or a node, applies more slowly than is committed. Each node looks after itself."""

    look_ms: int = 500
    """Between two looks."""
    slow_ms: int = 5_000
    """A partition whose oldest command waits so long to be applied is throttled until half of that, 0: never."""
    throttle_percent: int = 25
    """Of its admission budgets that a throttled partition may use."""
    stalled_ms: int = 15_000
    """A partition that applies nothing for so long while something waits is frozen until it has caught up, 0: never."""
    chronic_ms: int = 60_000
    """After so long a replica that is slow where others are not stops serving the partition, and leading, 0: never."""
    node_percent: int = 50
    """Of its partitions that are slow: then the node is."""
    move_again_ms: int = 300_000
    """Leadership is handed over for that at most so often."""


class BarrierSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Waiting."""

    waiters_max: int = 65_536
    """Barriers waiting at a node."""
    waiters_per_client: int = 4_096
    """Of them, per connection,"""
    waiters_per_principal: int = 16_384
    """and over all connections that came with the same certificate."""
    waiters_reserved: int = 1_024
    """Of them, kept for reads and other nodes that wait."""
    wait_ms_max: int = 600_000
    """Longest wait; a barrier with a longer timeout is refused."""
    ahead_max: int = 1_000_000
    """A target further than this above the commit index is refused."""


class NetSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    """A frame that has begun must be whole by then."""
    client_send_buffer_bytes: int = 8 * MIB
    """Replies that a client has not read; beyond it streams wait, at twice as much the client is cut."""
    peer_send_buffer_bytes: int = 16 * MIB
    """The same between nodes."""
    connections_max: int = 4_096
    """Client connections, also those that have only connected. One in eight of the process's descriptors (`ulimit -n`),
    64 at least, is kept for files: beyond that no connection is taken on any port."""
    request_ms_max: int = 600_000
    """Longest deadline of a request; longer ones are cut to it."""
    forward_bytes: int = 16 * MIB
    """Forwarded requests that wait for the leader's answer, per node."""


class HttpSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operators' port (`node.http_address`). It only reads, and bounds whatever it is asked."""

    partition_series_max: int = 1_024
    """Partitions with series of their own in `/metrics`, lowest ids first; sums are over all. 0: none."""
    connections_max: int = 64
    """Connections; more are answered with 503."""
    request_ms: int = 5_000
    """A request must be whole, and its answer taken, by then; so long a connection may also stay idle."""
    request_bytes: int = 16 * KIB
    """Largest request: its line and its headers."""
    headers_max: int = 64
    """Header lines of a request."""
    debug: bool = False
    """Serve `/debug/stacks`: what every thread and task is doing."""


class TraceSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class TlsSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Empty directory: no TLS. Else ``ca.pem``, ``client-ca.pem`` (optional), ``<node id>.pem``, ``<node id>.key``."""

    directory: str = ""
    """Where the files are. They may be replaced while the node runs: new connections use the new ones."""
    warn_days: int = 30
    """From so many days before one of its certificates ends a node says so once a day, 0: never."""


class AccessSettings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may do what. Empty: with TLS whoever has a certificate may do everything, without TLS whoever connects."""

    file: str = ""
    """Rules by the names in certificates; what none allows is refused. May be replaced while the node runs."""


class Settings(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it."""

    cluster: ClusterSettings = ClusterSettings()
    node: NodeSettings = NodeSettings()
    raft: RaftSettings = RaftSettings()
    log: LogSettings = LogSettings()
    reads: ReadSettings = ReadSettings()
    apply: ApplySettings = ApplySettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    scrub: ScrubSettings = ScrubSettings()
    admission: AdmissionSettings = AdmissionSettings()
    lag: LagSettings = LagSettings()
    barrier: BarrierSettings = BarrierSettings()
    net: NetSettings = NetSettings()
    http: HttpSettings = HttpSettings()
    trace: TraceSettings = TraceSettings()
    tls: TlsSettings = TlsSettings()
    access: AccessSettings = AccessSettings()
