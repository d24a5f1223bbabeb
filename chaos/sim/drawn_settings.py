"""The settings that a seed decides: of everything little, or much, or what is usual. Who draws more draws it last."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from logboom.settings import (
    AdmissionSettings,
    ApplySettings,
    BarrierSettings,
    ClusterSettings,
    LagSettings,
    LogSettings,
    Member,
    PartitionSettings,
    RaftSettings,
    ReadSettings,
    ScrubSettings,
    Settings,
    SnapshotSettings,
)
from logboom.types import KIB, Ack, DurabilityMode

FEW_PRODUCERS: Final = 32
FEW_OF_CROWDS: Final = 80
"""The same where crowds write, each with half a dozen."""
FEW_RANGES: Final = 8
SMALL_BUDGET: Final = 24
"""Of operations, on a node."""
MANY_CUTS: Final = 40
"""Entries between two of them, at most."""


def member_of(number: int) -> Member:
    """The node of this number, from 1."""
    return Member(id=f"n{number}", peer_address=f"n{number}:7000", client_address=f"n{number}:7001")


def cluster(rng: random.Random, nodes: int) -> ClusterSettings:
    """What all nodes agree on."""
    partitions = rng.choice([1, 2, 3, 4, 6])
    members = tuple(map(member_of, range(1, nodes + 1)))
    mode = DurabilityMode.WRITE_AHEAD if rng.random() < 0.75 else DurabilityMode.WRITE_BEHIND
    overrides = {
        str(p): PartitionSettings(state_machine="log", mode=mode) for p in range(1, partitions) if rng.random() < 0.4
    }
    return ClusterSettings(id="sim", members=members, partitions=partitions, mode=mode, overrides=overrides)


def settings(rng: random.Random, cluster: ClusterSettings) -> Settings:
    """All but snapshots, and what is drawn after those."""
    heartbeat = rng.choice([30, 100, 100, 150])
    election = heartbeat * rng.randint(4, 8)
    apply = ApplySettings(
        batch_bytes=rng.choice([1, 2 * KIB, 4096 * KIB]),
        batches_max=rng.choice([1, 3, 1024]),
        linger_ms=rng.choice([1, 20, 100]),
        inline_bytes=rng.choice([0, 1 * KIB, 16 * KIB]),
        unsaved_bytes=rng.choice([1 * KIB, 64 * KIB, 16384 * KIB]),
        unsaved_ms=rng.choice([100, 1_000, 5_000]),
        replay_bytes=rng.choice([1 * KIB, 32 * KIB, 32768 * KIB]),
        producer_receipts=rng.choice([2, 16]),
    )
    return Settings(
        cluster=cluster,
        raft=RaftSettings(
            heartbeat_ms=heartbeat,
            election_min_ms=election,
            election_max_ms=2 * election,
            election_patience_ms=4 * election,
            fallback_ms=3 * election,
            commit_linger_ms=rng.choice([1, 2, 100]),
            spare_linger_ms=rng.choice([0, 5, 50]),
            entry_bytes_max=rng.choice([256, 64 * KIB]),
            message_bytes_max=rng.choice([1 * KIB, 1024 * KIB]),
            journal_segment_bytes=rng.choice([16 * KIB, 64 * KIB, 1024 * KIB]),
            redo_bytes_max=rng.choice([0, 512, 32 * KIB]),
            redo_unsettled_bytes=rng.choice([2 * KIB, 64 * KIB, 8192 * KIB]),
            inline_sync_bytes_max=rng.choice([0, 256, 16 * KIB]),
        ),
        log=LogSettings(
            segment_bytes=rng.choice([80 * KIB, 256 * KIB, 1024 * KIB]),
            segment_records=rng.choice([50, 16 * 1024 * 1024]),
            linger_ms=rng.choice([5, 20, 200]),
            batch_bytes_max=8 * KIB,
            open_files_max=rng.choice([1, 64]),
            recent_bytes=rng.choice([0, 2 * KIB, 4096 * KIB]),
        ),
        apply=apply,
        admission=AdmissionSettings(partition_ops=rng.choice([50, 1_000_000]), signals=()),
    )


def snapshots(rng: random.Random) -> SnapshotSettings:
    """Drawn last: who adds to it leaves the rest of a seed as it was."""
    if rng.random() < 0.3:
        return SnapshotSettings()
    return SnapshotSettings(
        entries=rng.choice([10, 40, 200]),
        log_bytes=rng.choice([0, 16 * KIB]),
        age_ms=rng.choice([0, 3_000]),
        keep=rng.choice([2, 2, 3]),
        retain_bytes=rng.choice([0, 4 * KIB]),
        retain_log_bytes=rng.choice([0, 0, 8 * KIB]),
    )


def reads(rng: random.Random) -> ReadSettings:
    """Room for hardly anything, or for all."""
    return ReadSettings(
        memory_bytes=rng.choice([1 * KIB, 64 * KIB, 16384 * KIB]),
        segments_max=rng.choice([1, 4, 512]),
        window_bytes=rng.choice([1, 2 * KIB, 4096 * KIB]),
        window_segments_max=rng.choice([1, 256]),
    )


def in_rows(rng: random.Random, settings: Settings) -> Settings:
    """In most, whatever puts and nothing else is kept in arrays, however little it is."""
    apply = msgspec.structs.replace(settings.apply, rows_min=rng.choice([1, 1, 3, settings.apply.rows_min]))
    return msgspec.structs.replace(settings, apply=apply)


def scrub(rng: random.Random) -> ScrubSettings:
    """Half of them look at nothing."""
    pause_ms = rng.choice([0, 0, 1_000, 4_000])
    return ScrubSettings(pause_ms=pause_ms, bytes_per_s=rng.choice([64 * KIB, 16384 * KIB]))


def scarce(rng: random.Random, admission: AdmissionSettings, *, most: int) -> AdmissionSettings:
    """Hardly any budget: for ``most`` operations, or a few times as many."""
    return msgspec.structs.replace(
        admission,
        node_ops=rng.choice([most, 3 * most, 4_000_000]),
        partition_ops=min(admission.partition_ops, rng.choice([most, 2 * most, 1_000_000])),
        partition_batches=rng.choice([1, 3, 100_000]),
        partition_age_ms=rng.choice([0, 0, 300]),
        node_age_ms=rng.choice([0, 0, 0, 1_000]),
        fair_share_percent=rng.choice([50, 80, 100]),
        retry_after_ms=rng.choice([5, 50]),
        queue_requests=rng.choice([2, 8, 4_096]),
        queue_bypass_ms=rng.choice([1, 100, 1_000]),
        queue_chunk_bytes=rng.choice([0, 1, 64 * KIB]),
        refusals_max=rng.choice([0, 2, 64]),
        signals=rng.choice([(), ("disk_free", "apply_lag")]),
        signal_ms=rng.choice([50, 250]),
        disk_free_bytes_min=rng.choice([0, 64 * KIB]),
        apply_lag_records_max=rng.choice([20, 200]),
    )


def has_rates(admission: AdmissionSettings) -> bool:
    """Any."""
    of_principals = admission.principal_ops_per_s, admission.principal_bytes_per_s
    return any((*of_principals, admission.partition_ops_per_s, admission.partition_bytes_per_s))


def has_chunks(admission: AdmissionSettings) -> bool:
    """Budgets are small, and everything counts as large."""
    return admission.queue_chunk_bytes == 1 and min(admission.node_ops, admission.partition_ops) <= SMALL_BUDGET


def rates(rng: random.Random, admission: AdmissionSettings) -> AdmissionSettings:
    """So low that clients without patience are refused now and then."""
    return msgspec.structs.replace(
        admission,
        principal_ops_per_s=rng.choice([0, 10, 100]),
        principal_bytes_per_s=rng.choice([0, 2 * KIB]),
        partition_ops_per_s=rng.choice([0, 20, 200]),
        partition_bytes_per_s=rng.choice([0, 0, 4 * KIB]),
        rate_burst_ms=rng.choice([10, 200, 2_000]),
    )


def pace(rng: random.Random, admission: AdmissionSettings) -> AdmissionSettings:
    """A target that is missed now and then, or always."""
    return msgspec.structs.replace(
        admission, light_commit_ms=rng.choice([1, 5, 20]), pace_bytes_per_s_min=rng.choice([2 * KIB, 64 * KIB])
    )


def read_rates(rng: random.Random, reads: ReadSettings) -> ReadSettings:
    """So low that whoever reads much waits now and then."""
    return msgspec.structs.replace(reads, principal_bytes_per_s=rng.choice([4 * KIB, 64 * KIB]))


def lag(rng: random.Random) -> LagSettings:
    """A ladder with short rungs."""
    slow_ms = rng.choice([0, 150, 500])
    return LagSettings(
        look_ms=rng.choice([50, 200]),
        slow_ms=slow_ms,
        throttle_percent=rng.choice([1, 25, 100]),
        stalled_ms=rng.choice([300, 1_000]) if not slow_ms else rng.choice([0, 300, 1_000]),
        chronic_ms=rng.choice([0, 400, 1_500]),
        node_percent=rng.choice([1, 50, 100]),
        move_again_ms=rng.choice([500, 5_000]),
    )


def forgetful(rng: random.Random, apply: ApplySettings, *, keeps: bool, few: int) -> ApplySettings:
    """Few ranges of each producer, and few producers: not so few that who is sent again is forgotten meanwhile."""
    ranges, producers = rng.choice([2, FEW_RANGES, 1_024]), rng.choice([few, 65_536])
    return msgspec.structs.replace(
        apply, producer_ranges_max=ranges, producers_max=apply.producers_max if keeps else producers
    )


def acknowledged(rng: random.Random, cluster: ClusterSettings) -> ClusterSettings:
    """What answers wait for: partition by partition, and for those that are created."""
    overrides = {
        str(p): msgspec.structs.replace(
            cluster.partition(p), ack=Ack(rng.choice(list(Ack))), linearizable=rng.random() < 0.3
        )
        for p in range(cluster.partitions)
        if str(p) in cluster.overrides or rng.random() < 0.5
    }
    return msgspec.structs.replace(
        cluster, ack=Ack(rng.choice(list(Ack))), linearizable=rng.random() < 0.3, overrides=overrides
    )


def narrow(rng: random.Random, settings: Settings) -> Settings:
    """What is on its way between nodes and to clients, and who may wait: little."""
    few = rng.random() < 0.5
    changed = {
        "net": msgspec.structs.replace(
            settings.net,
            peer_send_buffer_bytes=rng.choice([2 * KIB, 32 * KIB, 16_384 * KIB]),
            client_send_buffer_bytes=rng.choice([16 * KIB, 8_192 * KIB]),
            forward_bytes=rng.choice([512, 16_384 * KIB]),
        ),
        "raft": msgspec.structs.replace(settings.raft, proposals_max=rng.choice([2, 16_384])),
        "log": msgspec.structs.replace(settings.log, reader_lease_ms=rng.choice([200, 60_000])),
        "snapshot": msgspec.structs.replace(settings.snapshot, bytes_per_s=rng.choice([64 * KIB, 65_536 * KIB])),
        "barrier": BarrierSettings(waiters_max=24, waiters_reserved=8) if few else BarrierSettings(),
    }
    return msgspec.structs.replace(settings, **changed)


def sharing(rng: random.Random, settings: Settings) -> Settings:
    """Batches that several producers share: from the first moment, or later; of little; or none."""
    log = msgspec.structs.replace(settings.log, mixed_bytes_max=rng.choice([0, 200, 16 * KIB, 16 * KIB]))
    raft = msgspec.structs.replace(settings.raft, agree_after_s=rng.choice([0, 5, 86_400]))
    return msgspec.structs.replace(settings, log=log, raft=raft)
