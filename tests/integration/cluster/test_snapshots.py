"""Snapshots, compaction and installs on real nodes (docs/architecture.md, "Snapshots and compaction")."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logboom import Add, Put, Record, SyncClient
from logboom.errors import IndexCompacted, LogboomError
from logboom.testing import LocalCluster
from logboom.types import KIB

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("snapshots")]

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
"""Snapshots are taken when asked for; small files, so that some can go."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=2, settings=SMALL, directory=tmp_path) as running:
        yield running


def wait_for(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


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


def test_every_node_has_the_same_set(cluster: LocalCluster) -> None:
    with cluster.client() as boom:
        last = fill(boom)
        taken = boom.create_snapshot()
        assert taken["global_index"] >= last
        wait_for(lambda: all(boom.snapshots(node=cluster.addresses[n])["sets"] for n in cluster.nodes))
        files = [cluster.data_dirs[n] / "snapshots" / f"{taken['global_index']:020d}.states" for n in cluster.nodes]
        assert len({path.read_bytes() for path in files}) == 1
        marks = boom.watermarks()
        assert [mark.snapshot_index for mark in marks] == [mark.applied_index for mark in marks]


def test_compacted_logs_start_again_and_say_what_is_gone(cluster: LocalCluster) -> None:
    with cluster.client(timeout=20) as boom:
        fill(boom)
        before = {n: segments(cluster, n, KV) for n in cluster.nodes}
        compact(cluster, boom)
        wait_for(lambda: all(before[n][0] not in segments(cluster, n, KV) for n in cluster.nodes))
        count = boom.get(KV, b"n")
        assert all(segments(cluster, n, LOG)[0].startswith("0" * 19 + "1-") for n in cluster.nodes)
        with pytest.raises(IndexCompacted) as gone:
            list(boom.tail(KV, start=1))
        assert gone.value.fields["first"] > 1
        fill(boom, batches=2)
        wait_for(lambda: equal_states(cluster, boom))
        history = [r for batch in boom.tail(LOG) for r in batch.records.payloads()]
        for node in cluster.nodes:
            cluster.kill(node)
        for node in cluster.nodes:
            cluster.start_node(node)
        wait_for(lambda: equal_states(cluster, boom))
        assert [r for batch in boom.tail(LOG) for r in batch.records.payloads()] == history
        assert count is not None
        assert boom.get(KV, b"n") == (count[0] + 2,)
        fill(boom, batches=1)
        assert boom.get(KV, b"n") == (count[0] + 3,)


def test_a_follower_that_is_too_far_behind_is_given_a_snapshot(cluster: LocalCluster) -> None:
    with cluster.client(timeout=20) as boom:
        fill(boom, batches=2)
        away = next(n for n in cluster.nodes if n != cluster.leader())
        cluster.kill(away)
        fill(boom)
        compact(cluster, boom)
        fill(boom, batches=2)
        cluster.start_node(away)
        wait_for(lambda: equal_states(cluster, boom))
        assert base(cluster, boom, away) > 1
        others = next(n for n in cluster.nodes if n != away)
        histories = [
            [r for batch in boom.tail(LOG, node=cluster.addresses[n]) for r in batch.records.payloads()]
            for n in (away, others)
        ]
        assert histories[0] == histories[1]
        assert "starting_anew" in cluster.log(away).read_text()


def test_an_install_that_is_interrupted_goes_on(tmp_path: Path) -> None:
    slow = {**SMALL, "snapshot.bytes_per_s": 2_000_000}
    chance = random.Random(7)
    with (
        LocalCluster(nodes=3, partitions=2, settings=slow, directory=tmp_path) as cluster,
        cluster.client(timeout=20) as boom,
    ):
        away = next(n for n in cluster.nodes if n != cluster.leader())
        cluster.kill(away)
        fill(boom, batches=20)
        compact(cluster, boom)
        for _ in range(6):
            cluster.start_node(away)
            time.sleep(chance.uniform(0.3, 1.2))  # anywhere in it
            cluster.kill(away, signal.SIGKILL)
        cluster.start_node(away)
        wait_for(lambda: equal_states(cluster, boom), 60)


def test_what_is_kept_for_ever_hardly_makes_a_snapshot_due(tmp_path: Path) -> None:
    """A bulk load into ``log`` partitions would have all states written again and again, for nothing."""
    settings = {
        "cluster.overrides": {"1": {"state_machine": "log"}},
        "snapshot.log_bytes": 256 * KIB,
        "snapshot.entries": 0,
        "snapshot.age_ms": 0,
    }
    with (
        LocalCluster(nodes=1, partitions=2, settings=settings, directory=tmp_path) as one,
        SyncClient(one.endpoints) as boom,
    ):
        for number in range(8):
            boom.submit(0, Put(b"%d" % number, bytes(64 * KIB)))

        def newest() -> int:
            return max(each["global_index"] for each in boom.snapshots()["sets"])

        taken = boom.create_snapshot()["global_index"]
        receipts = [boom.submit(1, Record(bytes(64 * KIB))) for _ in range(24)]
        boom.barrier(receipts[-1].global_index)
        assert newest() == taken
        for number in range(16):
            boom.submit(0, Put(b"%d" % number, bytes(64 * KIB)))
        wait_for(lambda: newest() > receipts[-1].global_index)
