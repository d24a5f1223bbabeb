"""What a seed decides before anything runs: the cluster, its settings, the world, the load, the faults (swarm testing).

Each seed switches whole kinds of faults off, so that some runs are all about one thing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from chaos.sim.network import NetworkProfile
from logboom.settings import (
    AdmissionSettings,
    ApplySettings,
    ClusterSettings,
    LogSettings,
    Member,
    NodeSettings,
    PartitionSettings,
    RaftSettings,
    ScrubSettings,
    Settings,
    SnapshotSettings,
)
from logboom.types import KIB, DurabilityMode

LEADER: Final = -1
FOLLOWER: Final = -2

KINDS: Final[dict[str, float]] = {
    "kill": 3,
    "kill_all": 0.5,
    "power": 3,
    "power_all": 0.7,
    "die_at_call": 2,
    "stop": 2,
    "cut_pair": 1.5,
    "isolate": 2,
    "one_way": 1.5,
    "ring": 1,
    "slow_link": 1,
    "lossy_link": 1,
    "reset": 2,
    "slow_disk": 1,
    "stall_disk": 1,
    "eio": 1,
    "disk_full": 0.7,
    "rot": 1,
    "misdirect": 0.5,
    "clock_jump": 1,
    "client_dies": 0.7,
    "pause_partition": 0.7,
    "left_behind": 1.5,
    "rot_journal": 0.2,
    "half_back": 1.5,
}
"""Faults and how often each comes where it is switched on."""

PARTITIONS_CHANGE: Final = 0.35
"""Share of the seeds in which partitions come and go."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the schedule. ``node``: an index, LEADER or FOLLOWER as of then; ``dice`` decides the rest."""

    at: float
    kind: str
    node: int
    duration: float
    dice: int


@dataclass(frozen=True, slots=True)
class Parameters:
    """All of it, a function of the seed alone."""

    seed: int
    nodes: int
    seconds: float
    """Of faults; the liveness phase comes after."""
    settings: Settings
    """Without the node's own section."""
    network: NetworkProfile
    slowest_s: float
    """A disk job on a quiet day, at most."""
    clients: int
    think_s: float
    """A client's mean pause between two operations."""
    batch_max: int
    faults: tuple[Fault, ...]
    victims: frozenset[int]
    """The minority whose data may be damaged: of everything a good copy is left elsewhere."""
    kinds: tuple[str, ...]
    partitions_change: bool = False
    """Clients create and destroy some."""

    @property
    def write_behind(self) -> bool:
        """Some partition is."""
        cluster = self.settings.cluster
        return any(cluster.partition(p).mode is DurabilityMode.WRITE_BEHIND for p in range(cluster.partitions))

    @property
    def kv_partitions(self) -> list[int]:
        """Partitions with keys."""
        cluster = self.settings.cluster
        return [p for p in range(cluster.partitions) if cluster.partition(p).state_machine == "kv"]

    @property
    def log_partitions(self) -> list[int]:
        """Partitions without."""
        cluster = self.settings.cluster
        return [p for p in range(cluster.partitions) if cluster.partition(p).state_machine == "log"]

    def of_node(self, index: int) -> Settings:
        """The settings of one node."""
        member = self.settings.cluster.members[index]
        return msgspec.structs.replace(self.settings, node=NodeSettings(id=member.id, data_dir=f"/{member.id}"))


def draw(seed: int, *, seconds: float = 60.0) -> Parameters:
    """Everything that the seed decides."""
    rng = random.Random(seed)
    nodes = 3 if rng.random() < 0.8 else 5
    cluster = _cluster(rng, nodes)
    behind = any(cluster.partition(p).mode is DurabilityMode.WRITE_BEHIND for p in range(cluster.partitions))
    victims = frozenset(rng.sample(range(nodes), (nodes - 1) // 2))
    kinds = tuple(sorted(kind for kind in KINDS if rng.random() < 0.6)) or ("kill",)
    if behind:
        kinds = tuple(k for k in kinds if k != "power_all")
    drawn = Parameters(
        seed=seed,
        nodes=nodes,
        seconds=seconds,
        settings=_settings(rng, cluster),
        network=NetworkProfile(
            delay_max_s=rng.choice([0.0005, 0.002, 0.01]),
            loss=rng.choice([0.0, 0.0, 0.005]),
            split=rng.choice([0.0, 0.02, 0.2]),
        ),
        slowest_s=rng.choice([0.001, 0.005, 0.03]),
        clients=rng.randint(2, 4),
        think_s=rng.choice([0.5, 0.7, 1.0]) * nodes / 3,  # more nodes, more work for each operation
        batch_max=rng.choice([1, 5, 12]),
        faults=_schedule(rng, kinds, nodes, seconds),
        victims=victims,
        kinds=kinds,
    )
    drawn = _contested(drawn) if rng.random() < 0.4 else drawn
    drawn = replace(drawn, settings=msgspec.structs.replace(drawn.settings, snapshot=_snapshots(rng)))
    drawn = _scrubbed(drawn, rng)
    return replace(drawn, partitions_change=rng.random() < PARTITIONS_CHANGE)


def _scrubbed(drawn: Parameters, rng: random.Random) -> Parameters:
    """Half of them read again what is at rest; drawn last, so that all else is as it was."""
    pause_ms = rng.choice([0, 0, 200, 2_000])
    scrub = ScrubSettings(pause_ms=pause_ms, bytes_per_s=rng.choice([64 * KIB, 16384 * KIB]))
    return replace(drawn, settings=msgspec.structs.replace(drawn.settings, scrub=scrub))


def _contested(drawn: Parameters) -> Parameters:
    """Everybody loses patience at nearly the same time: several stand in one term."""
    raft = drawn.settings.raft
    raft = msgspec.structs.replace(raft, election_max_ms=raft.election_min_ms * 5 // 4)
    return replace(drawn, settings=msgspec.structs.replace(drawn.settings, raft=raft))


def _cluster(rng: random.Random, nodes: int) -> ClusterSettings:
    partitions = rng.choice([1, 2, 3, 4, 6])
    members = tuple(
        Member(id=f"n{k}", peer_address=f"n{k}:7000", client_address=f"n{k}:7001") for k in range(1, nodes + 1)
    )
    mode = DurabilityMode.WRITE_AHEAD if rng.random() < 0.75 else DurabilityMode.WRITE_BEHIND
    overrides = {
        str(p): PartitionSettings(state_machine="log", mode=mode) for p in range(1, partitions) if rng.random() < 0.4
    }
    return ClusterSettings(id="sim", members=members, partitions=partitions, mode=mode, overrides=overrides)


def _settings(rng: random.Random, cluster: ClusterSettings) -> Settings:
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
        admission=AdmissionSettings(partition_ops=rng.choice([50, 1_000_000])),
    )


def _snapshots(rng: random.Random) -> SnapshotSettings:
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


def _schedule(rng: random.Random, kinds: tuple[str, ...], nodes: int, seconds: float) -> tuple[Fault, ...]:
    pause = rng.choice([1.0, 2.0, 3.0])
    weights = [KINDS[kind] for kind in kinds]
    at, faults = rng.uniform(1.0, 3.0), list[Fault]()
    while at < seconds - 1.0:
        target = rng.choices([LEADER, FOLLOWER, rng.randrange(nodes)], [4, 2, 4])[0]
        duration = rng.choice([0.05, 0.3, 1.0, 3.0]) * rng.uniform(0.5, 1.5)
        faults.append(Fault(at, rng.choices(kinds, weights)[0], target, duration, rng.getrandbits(32)))
        at += rng.expovariate(1 / pause)
    return tuple(faults)
