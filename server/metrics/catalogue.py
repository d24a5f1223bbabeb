"""Every metric, once: name, type, labels, meaning. ``sample`` fills them in, docs/metrics.md is made from them.

The names that the specification gives are kept as they are, with the prefix ``logboom_``; that is why an age is in
milliseconds there, and in seconds everywhere else.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

PREFIX: Final = "logboom_"

Type = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """One metric. ``name`` is without the prefix; a counter's ends with ``_total``."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()


class Chapter(NamedTuple):
    """Metrics about the same thing."""

    title: str
    metrics: tuple[Metric, ...]


PER_PARTITION: Final = Chapter(
    "Per partition",
    (
        Metric("partition_log_index", "gauge", "Last committed record of the partition's log", ("partition",)),
        Metric("partition_durable_index", "gauge", "Last committed record that is synced here", ("partition",)),
        Metric("partition_applied_index", "gauge", "Last record that is applied here", ("partition",)),
        Metric("partition_snapshot_index", "gauge", "Last record in the newest complete snapshot", ("partition",)),
        Metric("partition_applied_global", "gauge", "applied_global_index: what barriers wait for", ("partition",)),
        Metric("partition_enqueued_ops", "gauge", "Records committed and not applied here", ("partition",)),
        Metric(
            "partition_enqueued_bytes",
            "gauge",
            "Bytes of them; beyond 4096 batches extrapolated from those",
            ("partition",),
        ),
        Metric(
            "partition_backlog_age_ms",
            "gauge",
            "Milliseconds that the oldest of them has been committed, as far as this node knows",
            ("partition",),
        ),
        Metric("partition_admitted_ops", "gauge", "Records admitted here and not applied", ("partition",)),
        Metric("partition_admitted_bytes", "gauge", "Bytes admitted here and not applied", ("partition",)),
        Metric(
            "partition_running",
            "gauge",
            "1: takes and applies writes; 0: retrying, paused, frozen, withdrawn, lost or damaged",
            ("partition",),
        ),
    ),
)

OTHERS: Final = (
    Chapter(
        "The node",
        (
            Metric("build_info", "gauge", "Always 1", ("version", "node", "cluster")),
            Metric("uptime_seconds", "gauge", "Since the node began to serve"),
            Metric("ready", "gauge", "1: /readyz answers 200"),
            Metric("recovered", "gauge", "1: watermarks of all partitions may be shown after the last start"),
            Metric("event_loop_lag_seconds", "histogram", "How late timers of the event loop fire, four a second"),
            Metric("installs_total", "counter", "Times that this process made the node anew from a snapshot"),
            Metric(
                "certificate_ends_seconds", "gauge", "Seconds since 1970 at which the file's first one ends", ("file",)
            ),
            Metric("log_lines_lost_total", "counter", "Log lines that nobody has read in time, or that no disk took"),
            Metric(
                "upkeep_still_seconds",
                "gauge",
                "How long a thread of snapshots, scrubbing or states made anew has been at one place; 0: none is",
            ),
        ),
    ),
    Chapter(
        "Order: the parent log",
        (
            Metric("global_commit_index", "gauge", "Highest global_log_index known to be committed"),
            Metric("global_durable_index", "gauge", "The same: what is committed is durable on a majority"),
            Metric("global_applied_index", "gauge", "Every partition here has applied up to this global_log_index"),
            Metric("raft_role", "gauge", "1 for the node's role, 0 for the others", ("role",)),
            Metric("raft_term", "gauge", "Current term"),
            Metric("raft_leader_known", "gauge", "1: this node knows who leads"),
            Metric("raft_leader_changes_total", "counter", "Times that another leader, or term of one, was seen"),
            Metric("raft_admits", "gauge", "1: leads and takes writes"),
            Metric("raft_may_lead", "gauge", "0: payload is missing here, so it stands for no election"),
            Metric("raft_elections_total", "counter", "Times that this node stood for election"),
            Metric("raft_elections_won_total", "counter", "Of them, won"),
            Metric("raft_pre_votes_total", "counter", "Times that it asked whether it should"),
            Metric("raft_last_index", "gauge", "Last Raft entry in the journal"),
            Metric("raft_durable_index", "gauge", "Last Raft entry that is synced here"),
            Metric("raft_commit_index", "gauge", "Last Raft entry known to be committed"),
            Metric("raft_handed_up_index", "gauge", "Last Raft entry that partitions have heard of"),
            Metric("raft_base_index", "gauge", "Raft entry at which the journal begins"),
            Metric("raft_voters", "gauge", "Members that vote"),
            Metric("raft_uncommitted_requests", "gauge", "Requests proposed here and not committed"),
        ),
    ),
    Chapter(
        "Links and followers",
        (
            Metric("link_up", "gauge", "1: connected and introduced", ("peer",)),
            Metric("link_queued_bytes", "gauge", "Bytes that wait to be sent", ("peer",)),
            Metric("link_connects_total", "counter", "Times that it came up; all but one are reconnects", ("peer",)),
            Metric("follower_lag_entries", "gauge", "Leader: Raft entries not known to be held there", ("peer",)),
            Metric(
                "follower_feed",
                "gauge",
                "Leader: 1 for how payload goes there: live, catching_up (from disk) or halted (needs a snapshot)",
                ("peer", "feed"),
            ),
        ),
    ),
    Chapter(
        "Syncs and logs",
        (
            Metric("sync_group_seconds", "histogram", "A group sync, from its beginning to the end of its last file"),
            Metric("sync_group_bytes", "histogram", "Bytes of a group"),
            Metric("sync_group_records", "histogram", "Clients' records of a group"),
            Metric("sync_files_total", "counter", "Files that groups synced"),
            Metric("sync_under_way_seconds", "gauge", "Age of the group under way; a disk that hangs shows here"),
            Metric(
                "fsync_seconds",
                "histogram",
                "One fdatasync, or write that syncs itself; file is journal, aof or other",
                ("file",),
            ),
            Metric("journal_written_bytes_total", "counter", "Written to the parent journal"),
            Metric("aof_written_bytes_total", "counter", "Written to partition logs"),
            Metric("disk_free_bytes", "gauge", "Free where the data is; none where admission.disk_free_bytes_min is 0"),
        ),
    ),
    Chapter(
        "Admission",
        (
            Metric("admission_admitted_total", "counter", "Requests admitted"),
            Metric(
                "lag_steps_total",
                "counter",
                "Done about partitions and nodes that apply too slowly",
                ("step",),
            ),
            Metric("admission_refused_total", "counter", "Requests answered overloaded, by the budget", ("gate",)),
            Metric("admission_reservations_total", "counter", "Budgets that large requests got in chunks"),
            Metric("admission_retries_total", "counter", "Requests that had been applied before, answered from memory"),
            Metric("admission_used_ops", "gauge", "Records admitted and not applied"),
            Metric("admission_used_bytes", "gauge", "Bytes of them"),
            Metric("admission_limit_ops", "gauge", "admission.node_ops"),
            Metric("admission_limit_bytes", "gauge", "admission.node_bytes"),
            Metric(
                "admission_pace_bytes_per_second",
                "gauge",
                "What those who ask for much may write, so that light ones do not notice; none while they do not",
            ),
            Metric(
                "admission_withheld",
                "gauge",
                "Share of the node's budgets that a signal withholds, 1: all; none while nothing is",
                ("signal",),
            ),
        ),
    ),
    Chapter(
        "Applying",
        (
            Metric("partitions", "gauge", "Partitions served here, by state", ("state",)),
            Metric("enqueued_ops", "gauge", "Records committed and not applied here, of all partitions"),
            Metric("enqueued_bytes", "gauge", "Bytes of them"),
            Metric("apply_lag_entries", "gauge", "global_commit_index less global_applied_index"),
            Metric("apply_lag_seconds", "gauge", "The greatest backlog age of all partitions"),
            Metric("apply_batches_total", "counter", "Batches applied"),
            Metric("apply_records_total", "counter", "Records applied, duplicates included"),
            Metric("apply_bytes_total", "counter", "Bytes of them"),
            Metric("apply_duplicates_total", "counter", "Records that had been applied before: without effect"),
            Metric("apply_refused_total", "counter", "Batches refused by their producer's epoch or sequence"),
            Metric("apply_failures_total", "counter", "Groups that failed"),
            Metric("apply_retries_total", "counter", "Groups begun again after a failure"),
            Metric("apply_group_seconds", "histogram", "One group of one partition"),
            Metric("checkpoints_total", "counter", "States saved"),
            Metric("checkpoint_failures_total", "counter", "States that could not be saved"),
            Metric("checkpoint_seconds", "histogram", "Saving one state"),
            Metric("apply_pause_seconds", "histogram", "A partition stands still while a snapshot captures its state"),
            Metric("unsaved_bytes", "gauge", "Effects in memory that are not saved"),
        ),
    ),
    Chapter(
        "Barriers",
        (
            Metric("barriers_waiting", "gauge", "Waiting here"),
            Metric("barriers_limit", "gauge", "barrier.waiters_max"),
            Metric("barriers_reached_total", "counter", "Answered: reached"),
            Metric("barriers_timed_out_total", "counter", "Answered: time was up, or nobody leads: ask elsewhere"),
            Metric("barriers_blocked_total", "counter", "Answered at once: a partition is paused, damaged or lost"),
        ),
    ),
    Chapter(
        "Snapshots and compaction",
        (
            Metric("snapshot_global_index", "gauge", "Where the newest complete set was cut"),
            Metric(
                "snapshot_age_seconds", "gauge", "Since it was complete, by the wall clock; none while there is no set"
            ),
            Metric("snapshot_bytes", "gauge", "Its states"),
            Metric("snapshot_sets", "gauge", "Sets on the disk"),
            Metric(
                "states_differing",
                "gauge",
                "Partitions, of each other node, whose state was not the same there in the last set that both have",
            ),
            Metric("snapshot_under_way", "gauge", "1: one is being taken"),
            Metric("snapshots_taken_total", "counter", "Complete sets that this node has made"),
            Metric("snapshots_failed_total", "counter", "Sets that came to nothing"),
            Metric(
                "snapshot_dumps_stuck",
                "gauge",
                "Partitions whose dump has not returned: while there is one, the node keeps the sets of others",
            ),
            Metric("snapshot_seconds", "histogram", "From the cut to the complete set"),
            Metric(
                "snapshot_fetches_total",
                "counter",
                "Times that it began to fetch a set, lacking what is gone, or as it takes none of its own",
            ),
            Metric("snapshot_fetches_failed_total", "counter", "Of them, failed; the next offer goes on"),
            Metric("snapshot_fetch_bytes", "gauge", "Of the fetch under way, on the disk"),
            Metric("snapshot_fetch_size_bytes", "gauge", "Of the fetch under way, in all"),
            Metric("compactions_total", "counter", "Times that logs were compacted"),
            Metric("compactions_failed_total", "counter", "Of them, failed; the next set brings the next try"),
            Metric("snapshot_sets_removed_total", "counter", "Old sets removed"),
        ),
    ),
    Chapter(
        "Damage",
        (
            Metric("scrub_pass", "gauge", "Number of the pass under way, or of the last"),
            Metric("scrub_read_bytes", "gauge", "Read in it"),
            Metric("scrub_size_bytes", "gauge", "To read in it, roughly"),
            Metric("scrub_last_pass_seconds", "gauge", "How long the last whole pass took"),
            Metric("scrub_damaged_total", "counter", "Damage found at rest"),
            Metric("scrub_open", "gauge", "Of it, not repaired"),
            Metric("scrub_stuck", "gauge", "States that are passed over, since a call has not returned (8 at most)"),
            Metric("repair_missing_batches", "gauge", "Batches that are being fetched from others"),
            Metric("repair_lost_batches", "gauge", "Committed batches that nobody has"),
            Metric("voids_total", "counter", "Batches that were declared void"),
            Metric("repair_put_back_batches", "gauge", "Batches that the last start found in the journal alone"),
        ),
    ),
    Chapter(
        "Connections and requests",
        (
            Metric("connections", "gauge", "Open", ("port",)),
            Metric("connections_opened_total", "counter", "Made, either way; port is client or peer", ("port",)),
            Metric(
                "connections_refused_total",
                "counter",
                "Turned away, or cut as strangers, as there were too many",
                ("port",),
            ),
            Metric("connections_cut_total", "counter", "Cut, for being slow or breaking the protocol", ("port",)),
            Metric("received_frames_total", "counter", "Frames received", ("port",)),
            Metric("received_bytes_total", "counter", "Bytes received", ("port",)),
            Metric("sent_frames_total", "counter", "Frames sent", ("port",)),
            Metric("sent_bytes_total", "counter", "Bytes sent", ("port",)),
            Metric("requests_total", "counter", "Requests of clients", ("kind",)),
            Metric("request_errors_total", "counter", "Answered with an error", ("code",)),
            Metric("reads_waiting", "gauge", "Streams, scans and gets that wait for reads.principal_bytes_per_s"),
            Metric("reads_waited_total", "counter", "Times that one did"),
            Metric("access_rules", "gauge", "Rules of access.file; 0: whoever is let in may do everything"),
            Metric("access_rules_unused", "gauge", "1: access.file is wrong, and not gone by; a start would refuse it"),
            Metric(
                "access_denied_total", "counter", "Requests that no rule allows, by the right they need", ("right",)
            ),
            Metric("http_requests_total", "counter", "On this port", ("path", "status")),
            Metric("scrape_loop_seconds", "gauge", "Time that the last scrape took of the event loop, in slices"),
            Metric("trace_requests_total", "counter", "Requests that were sampled"),
            Metric("trace_spans_total", "counter", "Spans exported"),
            Metric("trace_spans_dropped_total", "counter", "Spans dropped: too many, or whoever takes them failed"),
        ),
    ),
)

CHAPTERS: Final = (PER_PARTITION, *OTHERS)
METRICS: Final = {metric.name: metric for chapter in CHAPTERS for metric in chapter.metrics}
