"""What clients may have: of writes, of reads, of waiting; and what is done about who lags."""

from __future__ import annotations

from logboom.settings.section import Section
from logboom.types import KIB, MIB


class ReadSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients read: streams of log records (`tail` and `scan_log`), scans, and how fast."""

    memory_bytes: int = 64 * MIB
    """What all of a node's streams have read and not yet handed to their connections; and, apart from that, what views
    of many partitions have read of those whose turn has not come."""
    segments_max: int = 512
    """Segments that are read at the same time, by all of them."""
    streams_max: int = 32_768
    """Streams that may be open at the same time: each is looked at whenever something is committed that it may be
    waiting for. Together they may read 16 times as many logs, those of each counted; one alone any number."""
    window_bytes: int = 4 * MIB
    """Bytes that a scan over many partitions reads at a time; one batch may be larger."""
    window_segments_max: int = 256
    """Segments that a scan over many partitions reads at a time."""
    views_max: int = 16
    """Scans over the state of several partitions at one index that may be open at the same time."""
    scans_max: int = 128
    """Scans over the state of one partition that may be open at the same time. Each, like a view, holds on to the state
    as it was when it began, until it ends or its client has taken nothing of it for as long as the request may take
    (`net.frame_ms` at least)."""
    hold_ms: int = 3_600_000
    """A scan or a view ends once it has waited so long, in all, for its client or its rate: what takes more has to be
    asked for in ranges."""
    principal_bytes_per_s: int = 0
    """Bytes a second that one principal (a certificate, or without any a connection) may read from this node, by
    streams, scans, fetches and gets; `admission.rate_burst_ms` ahead of it. Who reads faster waits. 0: any number."""


class AdmissionSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    """A node of which the oldest admitted record is not applied after this time takes no more: one partition that
    stands still holds up all of it. 0: off."""
    fair_share_percent: int = 80
    """Most of a budget that one principal, or one partition of the node's, gets alone; with others less. 100: all."""
    principal_ops_per_s: int = 0
    """Records a second that one principal (a certificate, or without any a connection) may write, 0: any number."""
    principal_bytes_per_s: int = 0
    """Bytes a second that one principal may write, 0: any number."""
    partition_ops_per_s: int = 0
    """Records a second that a partition takes; principals share them as they share budgets. 0: any number."""
    partition_bytes_per_s: int = 0
    """Bytes a second that a partition takes, 0: any number."""
    rate_burst_ms: int = 1_000
    """How far ahead of those four rates one may be, and by one request more, however large; the next one waits for
    it."""
    light_commit_ms: int = 0
    """Longest time that a small request (16 KiB) of a light client, which writes a quarter or less of what the one does
    that writes most, may take from its admission to its commit; one in a hundred may take longer. Else those that write
    more are slowed down, as far as it takes. 0: off."""
    pace_bytes_per_s_min: int = MIB
    """Bytes a second that those who are slowed down for `light_commit_ms` write together at least."""
    retry_after_ms: int = 50
    """Least time that a refused client is told to wait; longer when what it lacks takes longer to drain."""
    retry_after_max_ms: int = 2_000
    """Longest time that a refused client is told to wait (but for jitter)."""
    queue_requests: int = 4_096
    """Requests that wait for admission (`admission_wait`)."""
    queue_bytes: int = 32 * MIB
    """Bytes of requests that wait for admission."""
    queue_bypass_ms: int = 1_000
    """A request that has waited so long for admission is passed by none that waits for the same; `queue_chunk_bytes`
    says what becomes of a larger one."""
    queue_chunk_bytes: int = 64 * KIB
    """A request larger than this that has waited for `queue_bypass_ms` gets its budget in chunks, half of all that is
    given back; small ones have the other half. 0: however large, it is passed no more."""
    refusals_max: int = 64
    """A connection that was refused so often within `retry_after_ms` is not read for as long, 0: always read."""
    signals: tuple[str, ...] = ("disk_free", "apply_lag", "memory")
    """`disk_free`, `apply_lag`, `memory`, or registered under the entry point group `logboom.admission_signals`."""
    signal_ms: int = 250
    """Time between two looks at the signals."""
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
    `reads.memory_bytes`, and for what commands of `kv` that are being applied have looked at, a quarter for
    `node_bytes`, and an eighth, or twice `net.client_send_buffer_bytes`, for what all clients together were sent and
    have not read: then who has most of it is cut. 0: three quarters of the limit of its control group (a container, a
    unit of systemd), off where there is none."""


class LagSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done when a partition, or a node, applies more slowly than is committed. Each node looks after itself."""

    look_ms: int = 500
    """Time between two looks at how far partitions lag."""
    slow_ms: int = 5_000
    """A partition whose oldest command waits so long to be applied is throttled until half of that, 0: never."""
    throttle_percent: int = 25
    """Share of its admission budgets that a throttled partition may use."""
    stalled_ms: int = 15_000
    """A partition that applies nothing for so long while something waits is frozen until it has caught up, 0: never."""
    chronic_ms: int = 60_000
    """After so long a replica that is slow where others are not stops serving the partition, and leading, 0: never."""
    node_percent: int = 50
    """With this share of its partitions slow, the node counts as slow."""
    move_again_ms: int = 300_000
    """A node that is slow hands leadership over at most so often; where nobody takes it, it is offered again after 30
    s."""


class BarrierSettings(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Waiting.

    Where so many barriers may wait, they may have 16 times as many targets in all, a partition at an index each: equal
    barriers' count once, and those of one that tells its progress for itself. A barrier alone may have any number.

    Reads that wait until what is committed is applied have as many places of their own.
    """

    waiters_max: int = 65_536
    """Barriers waiting at a node."""
    waiters_per_client: int = 4_096
    """Barriers waiting over one connection."""
    waiters_per_principal: int = 16_384
    """Barriers waiting over all connections that came with the same certificate."""
    waiters_reserved: int = 1_024
    """Places of `waiters_max` that are kept for other nodes that wait, and for views that are being taken."""
    wait_ms_max: int = 600_000
    """Longest time that a barrier may wait; one whose timeout, cut to `net.request_ms_max`, is longer is refused."""
    ahead_max: int = 1_000_000
    """A target further than this above the commit index is refused."""
