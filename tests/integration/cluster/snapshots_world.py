"""Clusters whose snapshots are taken when asked for, with files so small that some can go."""

from __future__ import annotations

import os
import time

from logboom import Add, Put, Record, SyncClient
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from logboom.types import KIB

KV, LOG = 0, 1
SMALL = {
    "cluster.overrides": {str(LOG): {"state_machine": "log"}},
    "log.segment_bytes": 512 * KIB,
    "log.batch_bytes_max": 256 * KIB,
    "raft.journal_segment_bytes": 64 * KIB,
    "snapshot.log_bytes": 0,
    "snapshot.entries": 0,
    "snapshot.age_ms": 0,
    "snapshot.retain_bytes": 0,
}


def fill(boom: SyncClient, *, batches: int = 8, size: int = 100_000) -> int:
    last = 0
    for number in range(batches):
        boom.submit(KV, [Put(b"k%d" % number, os.urandom(size)), Add(b"n", 1)], wait="committed")
        last = boom.submit(LOG, Record(os.urandom(size)), wait="committed").global_index
    return last


def equal_states(cluster: LocalCluster, boom: SyncClient) -> bool:
    try:
        states = [boom.status(node=cluster.addresses[n], digests=True) for n in cluster.nodes]
    except LogboomError:
        return False
    return len({(str(s["digests"]), s["commit_index"]) for s in states}) == 1 and all(s["recovered"] for s in states)


def base(cluster: LocalCluster, boom: SyncClient, node: str) -> int:
    try:
        return int(boom.snapshots(node=cluster.addresses[node])["base"])
    except LogboomError:
        return 0


def segments(cluster: LocalCluster, node: str, partition: int) -> list[str]:
    return sorted(path.name for path in (cluster.data_dirs[node] / "partitions" / str(partition)).glob("*.log"))


def compact(cluster: LocalCluster, boom: SyncClient) -> None:
    """Snapshots with something in between, until every running node has compacted to the first."""
    first = boom.create_snapshot()
    running = [n for n in cluster.nodes if cluster.alive(n)]
    while not all(base(cluster, boom, n) >= first["raft_index"] for n in running):
        fill(boom, batches=1)
        boom.create_snapshot()  # a node that is still busy with the one before passes it over
        time.sleep(0.2)


def has_set(client: SyncClient, node: str, global_index: int) -> bool:
    return any(row["global_index"] == global_index for row in client.snapshots(node=node)["sets"])
