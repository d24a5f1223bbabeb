"""Reading all numbers of a node, on its loop, a few partitions at a time: a scrape never holds the loop for long."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from dispatcher.admission.ladder import Do
from dispatcher.pipeline.backend import Backend
from dispatcher.sessions.service import ClientService
from logboom.access import Right
from logboom.errors import BarrierBlocked, BarrierTimeout
from logboom.settings import Settings
from logboom.types import GlobalLogIndex, NodeId, PartitionId
from partitions.apply.apply_counts import ApplyCounts
from ports.clock import Clock
from ports.counts import Counted
from ports.net import Traffic
from server.metrics.catalogue import METRICS, Metric

SLICE: Final = 32
"""Partitions that are looked at before others have their turn."""
ROLES: Final = ("leader", "candidate", "follower", "joining", "learner", "waiting", "rejoining", "removed")
FEEDS: Final = ("live", "catching_up", "halted")

Value = float | Counted
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watched:
    """The parts of a node that are looked at; whoever makes them knows no metrics."""

    settings: Settings
    node_id: NodeId
    clock: Clock
    backend: Backend
    service: ClientService
    applied: ApplyCounts
    client_traffic: Traffic
    peer_traffic: Traffic
    fsyncs: Callable[[], dict[str, Counted]]
    """How long syncs took, by kind of file; of a world that counts them."""
    certificates: Callable[[], dict[str, float]]
    """When the certificates of each file end."""
    log_lines_lost: Callable[[], int]
    """Lines of its log that this process has lost."""
    upkeep_still_s: Callable[[], float]
    """How long the thread of snapshots has been in one place."""
    spans: Callable[[], tuple[int, int]]
    """Spans exported, and dropped."""
    installs: int
    """Times that this process has made the node anew."""


@dataclass(slots=True)
class Sample:
    """All values of one moment, as plain data: another thread makes text of it."""

    values: dict[Metric, list[tuple[Labels, Value]]] = field(default_factory=dict)
    rows: list[tuple[float, ...]] = field(default_factory=list)
    """Per partition: its id, then the metrics of ``catalogue.PER_PARTITION`` in order."""

    def put(self, name: str, value: float | Counted, *labels: str) -> None:
        """One value. KeyError for a name that nobody has described."""
        self.values.setdefault(METRICS[name], []).append((labels, value))

    def put_all(self, values: Iterable[tuple[str, float | Counted]]) -> None:
        """Several without labels."""
        for name, value in values:
            self.put(name, value)


async def take(watched: Watched, *, spent: Callable[[float], None] = lambda _: None) -> Sample:
    """On the loop. ``spent`` hears how long that took of it, without what others did in between."""
    clock, backend = watched.clock, watched.backend
    began, used = clock.monotonic(), 0.0
    backend.look()
    sample = Sample()
    _node(watched, sample)
    _raft(backend, sample)
    _sync(watched, sample)
    _admission(watched, sample)
    _snapshots(watched, sample)
    _damage(backend, sample)
    _traffic(watched, sample)
    states: Counter[str] = Counter()
    sums = _Sums()
    ids = backend.partition_ids()
    series_max = watched.settings.http.partition_series_max
    for start in range(0, len(ids), SLICE):
        used += clock.monotonic() - began
        await asyncio.sleep(0)
        began = clock.monotonic()
        for place, partition_id in enumerate(ids[start : start + SLICE], start):
            row = _partition(backend, partition_id, states, sums)
            if row is not None and place < series_max:
                sample.rows.append(row)
    _applying(watched, sample, states, sums)
    spent(used + clock.monotonic() - began)
    return sample


@dataclass(slots=True)
class _Sums:
    operations: int = 0
    nbytes: int = 0
    age_s: float = 0.0
    unsaved: int = 0
    applied_global: GlobalLogIndex | None = None


def _partition(
    backend: Backend, partition_id: PartitionId, states: Counter[str], sums: _Sums
) -> tuple[float, ...] | None:
    worker = backend.workers.get(partition_id)
    if worker is None:
        return None  # destroyed while others had their turn
    mark = backend.watermarks.of(partition_id)
    states[mark.state] += 1
    sums.unsaved += worker.machine.unsaved_bytes
    if mark.state == "running" and not backend.recovered([partition_id]):
        # It may have shown more before the start (I7).
        sums.applied_global = GlobalLogIndex(0)
        return None
    idle = worker.idle
    operations = 0 if idle else max(0, worker.log.committed_index - worker.applied_index)
    nbytes = 0 if idle else worker.log.committed_bytes_after(worker.applied_index)
    age_s = worker.backlog_age
    sums.operations += operations
    sums.nbytes += nbytes
    sums.age_s = max(sums.age_s, age_s)
    lowest = sums.applied_global
    sums.applied_global = mark.applied_global_index if lowest is None else min(lowest, mark.applied_global_index)
    admitted = backend.admission.used(partition_id)
    return (
        partition_id,
        mark.log_index,
        mark.durable_index,
        mark.applied_index,
        mark.snapshot_index,
        mark.applied_global_index,
        operations,
        nbytes,
        age_s * 1000,
        admitted[0],
        admitted[1],
        mark.state == "running",
    )


def _node(watched: Watched, sample: Sample) -> None:
    backend, service = watched.backend, watched.service
    sample.put("build_info", 1, service.version, watched.node_id, backend.cluster.id)
    for file, ends in watched.certificates().items():
        sample.put("certificate_ends_seconds", ends, file)
    sample.put_all(
        (
            ("uptime_seconds", watched.clock.monotonic() - service.started),
            ("recovered", backend.recovery.over),
            ("installs_total", watched.installs),
            ("log_lines_lost_total", watched.log_lines_lost()),
            ("upkeep_still_seconds", watched.upkeep_still_s()),
        )
    )


def _raft(backend: Backend, sample: Sample) -> None:
    raft, engine = backend.raft, backend.raft.engine
    role = backend.role()
    for each in dict.fromkeys((*ROLES, role)):
        sample.put("raft_role", each == role, each)
    sample.put_all(
        (
            ("global_commit_index", backend.parent.global_index),
            ("global_durable_index", backend.parent.global_index),
            ("raft_term", engine.term),
            ("raft_leader_known", engine.leader is not None),
            ("raft_leader_changes_total", backend.leadership.changes),
            ("raft_admits", raft.admits),
            ("raft_may_lead", engine.may_lead),
            ("raft_elections_total", engine.elections),
            ("raft_elections_won_total", engine.won),
            ("raft_pre_votes_total", engine.pre_votes_asked),
            ("raft_last_index", raft.journal.last_index),
            ("raft_durable_index", raft.journal.durable_index),
            ("raft_commit_index", engine.commit_index),
            ("raft_handed_up_index", engine.applied_index),
            ("raft_base_index", raft.journal.base_index),
            ("raft_voters", len(backend.members.voters)),
            ("raft_uncommitted_requests", backend.pending.uncommitted),
        )
    )
    for peer in list(engine.peers):
        sample.put("link_up", raft.links.connected(peer), peer)
        sample.put("link_queued_bytes", raft.links.queued(peer), peer)
        sample.put("link_connects_total", raft.links.ups[peer], peer)
        if engine.is_leader:
            behind = raft.journal.last_index - engine.acknowledged_by(peer)
            sample.put("follower_lag_entries", max(0, behind), peer)
            feed = raft.feeds.state(peer)
            for each in FEEDS:
                sample.put("follower_feed", each == feed, peer, each)


def _sync(watched: Watched, sample: Sample) -> None:
    group = watched.backend.raft.group
    sample.put_all(
        (
            ("sync_group_seconds", group.seconds.snapshot()),
            ("sync_group_bytes", group.sizes.snapshot()),
            ("sync_group_records", group.records.snapshot()),
            ("sync_files_total", group.files),
            ("sync_under_way_seconds", group.under_way_s),
            ("journal_written_bytes_total", group.journal_bytes),
            ("aof_written_bytes_total", group.bytes - group.journal_bytes),
        )
    )
    for kind, counted in watched.fsyncs().items():
        sample.put("fsync_seconds", counted, kind)
    free = watched.backend.signals.disk_free_bytes
    if free is not None:
        sample.put("disk_free_bytes", free)


def _admission(watched: Watched, sample: Sample) -> None:
    admission, limits = watched.backend.admission, watched.settings.admission
    operations, nbytes = admission.used()
    sample.put_all(
        (
            ("admission_admitted_total", admission.admitted),
            ("admission_reservations_total", admission.reserved),
            ("admission_retries_total", watched.backend.repeated),
            ("admission_used_ops", operations),
            ("admission_used_bytes", nbytes),
            ("admission_limit_ops", limits.node_ops),
            ("admission_limit_bytes", limits.node_bytes),
        )
    )
    for step in Do:
        sample.put("lag_steps_total", watched.backend.lagging.ladder.steps[step], step)
    for gate in {"partition_ops", "partition_bytes", "node_ops", "node_bytes", *watched.service.counts.refused}:
        sample.put("admission_refused_total", watched.service.counts.refused[gate], gate)
    if (pace := admission.pace.bytes_per_s) is not None:
        sample.put("admission_pace_bytes_per_second", pace)
    withheld = admission.withheld
    if withheld is not None:
        sample.put("admission_withheld", min(1.0, withheld.pressure), withheld.signal)


def _applying(watched: Watched, sample: Sample, states: Counter[str], sums: _Sums) -> None:
    for state in {"running", "retrying", "paused", "frozen", "withdrawn", "lost", "damaged", *states}:
        sample.put("partitions", states[state], state)
    applied, commit = watched.applied, watched.backend.parent.global_index
    lowest = commit if sums.applied_global is None else sums.applied_global
    sample.put_all(
        (
            ("global_applied_index", lowest),
            ("enqueued_ops", sums.operations),
            ("enqueued_bytes", sums.nbytes),
            ("apply_lag_entries", max(0, commit - lowest)),
            ("apply_lag_seconds", sums.age_s),
            ("apply_batches_total", applied.batches),
            ("apply_records_total", applied.records),
            ("apply_bytes_total", applied.bytes),
            ("apply_duplicates_total", applied.duplicates),
            ("apply_refused_total", applied.refused),
            ("apply_failures_total", applied.failures),
            ("apply_retries_total", applied.retries),
            ("apply_group_seconds", applied.seconds.snapshot()),
            ("checkpoints_total", applied.checkpoints),
            ("checkpoint_failures_total", applied.checkpoint_failures),
            ("checkpoint_seconds", applied.checkpoint_seconds.snapshot()),
            ("apply_pause_seconds", applied.pauses.snapshot()),
            ("unsaved_bytes", sums.unsaved),
        )
    )


def _snapshots(watched: Watched, sample: Sample) -> None:
    snapshots = watched.backend.snapshots
    taking, fetched, compaction = snapshots.taking, snapshots.installing.progress, snapshots.compaction
    newest = snapshots.store.newest
    if newest is not None:
        sample.put("snapshot_age_seconds", max(0, watched.clock.wall_ms() - newest.created_ms) / 1000)
    sample.put_all(
        (
            ("snapshot_global_index", 0 if newest is None else newest.global_index),
            ("snapshot_bytes", 0 if newest is None else newest.states_bytes),
            ("snapshot_sets", len(snapshots.store.sets())),
            ("states_differing", len(watched.backend.comparing.differences)),
            ("snapshot_under_way", taking.progress() is not None),
            ("snapshots_taken_total", taking.taken),
            ("snapshots_failed_total", taking.failed),
            ("snapshot_dumps_stuck", len(taking.stuck)),
            ("snapshot_seconds", taking.seconds.snapshot()),
            ("snapshot_fetches_total", snapshots.installing.begun),
            ("snapshot_fetches_failed_total", snapshots.installing.failed),
            ("snapshot_fetch_bytes", 0 if fetched is None else fetched.bytes),
            ("snapshot_fetch_size_bytes", 0 if fetched is None else fetched.total),
            ("compactions_total", compaction.runs),
            ("compactions_failed_total", compaction.failed),
            ("snapshot_sets_removed_total", compaction.sets_removed),
        )
    )


def _damage(backend: Backend, sample: Sample) -> None:
    scrub, repair = backend.scrubbing.progress.row(), backend.raft.repair
    sample.put_all(
        (
            ("scrub_pass", scrub["pass"]),
            ("scrub_read_bytes", scrub["bytes"]),
            ("scrub_size_bytes", scrub["of"]),
            ("scrub_last_pass_seconds", scrub["last_pass_s"] or 0.0),
            ("scrub_damaged_total", scrub["damaged"]),
            ("scrub_open", scrub["damaged"] - scrub["repaired"]),
            ("scrub_stuck", len(scrub["stuck"])),
            ("repair_missing_batches", repair.missing_count),
            ("repair_lost_batches", len(repair.hopeless)),
            ("voids_total", backend.parent.voids.count),
            ("repair_put_back_batches", backend.raft.put_back),
        )
    )


def _traffic(watched: Watched, sample: Sample) -> None:
    counts, links = watched.service.counts, watched.backend.raft.links
    for port, traffic, opened in (
        ("client", watched.client_traffic, len(watched.service.sessions)),
        ("peer", watched.peer_traffic, len(links.links)),
    ):
        sample.put("connections", opened, port)
        sample.put("connections_opened_total", traffic.opened, port)
        sample.put("connections_refused_total", traffic.refused, port)
        sample.put("connections_cut_total", traffic.cut, port)
        sample.put("received_frames_total", traffic.frames_in, port)
        sample.put("received_bytes_total", traffic.bytes_in, port)
        sample.put("sent_frames_total", traffic.frames_out, port)
        sample.put("sent_bytes_total", traffic.bytes_out, port)
    for kind, count in counts.requests.items():
        sample.put("requests_total", count, kind.name.lower())
    for code, count in counts.errors.items():
        sample.put("request_errors_total", count, code)
    rules = watched.service.rules
    sample.put("access_rules", 0 if rules is None else rules.count)
    sample.put("access_rules_unused", int(bool(watched.service.rules_trouble)))
    for right in Right:
        sample.put("access_denied_total", counts.denied[right], right)
    barriers, tracer = watched.backend.barriers, watched.service.tracer
    read_rates = watched.service.read_rates
    exported, dropped = watched.spans()
    sample.put_all(
        (
            ("reads_waiting", read_rates.waiting),
            ("reads_waited_total", read_rates.waited),
            ("barriers_waiting", len(barriers)),
            ("barriers_limit", watched.settings.barrier.waiters_max),
            ("barriers_reached_total", counts.barriers_reached),
            ("barriers_timed_out_total", counts.errors[BarrierTimeout.code]),
            ("barriers_blocked_total", counts.errors[BarrierBlocked.code]),
            ("trace_requests_total", 0 if tracer is None else tracer.started),
            ("trace_spans_total", exported),
            ("trace_spans_dropped_total", dropped),
        )
    )
