"""Snapshots, compaction and installs on real nodes (docs/architecture.md, "Snapshots and compaction")."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logboom import Put, Record, SyncClient
from logboom.errors import IndexCompacted
from logboom.testing import LocalCluster
from logboom.types import KIB
from server.directory.install import INTENT, Intent
from server.world.disk_os import OsDisk
from tests.integration.cluster.snapshots_world import KV, LOG, SMALL, base, compact, equal_states, fill, segments
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=2, settings=SMALL, directory=tmp_path) as running:
        yield running


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


def test_whoever_asks_for_one_is_told_where_there_is_none_to_take(cluster: LocalCluster) -> None:
    with cluster.client(timeout=20) as boom:
        fill(boom)
        assert boom.create_snapshot()["new"]
        boom.destroy_partition(boom.create_partition())
        assert not boom.create_snapshot()["new"]
        boom.submit(KV, Put(b"k", b"v"), wait="applied")
        assert boom.create_snapshot()["new"]


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
    """While it fetches states, twice; while it fetches logs; and as it begins to make a node of them."""
    slow = {**SMALL, "snapshot.bytes_per_s": 1_000_000}
    with (
        LocalCluster(nodes=3, partitions=2, settings=slow, directory=tmp_path) as cluster,
        cluster.client(timeout=20) as boom,
    ):
        away = next(n for n in cluster.nodes if n != cluster.leader())
        cluster.kill(away)
        fill(boom, batches=20)
        compact(cluster, boom)
        sets, intent = cluster.data_dirs[away] / "snapshots", cluster.data_dirs[away] / INTENT

        def fetched() -> int:
            """Of states that are not whole."""
            return sum(path.stat().st_size for path in sets.glob("*.states.fetch"))

        def installs() -> int:
            return cluster.log(away).read_text().count('"installing"')

        before = 0
        stages: list[Callable[[], bool]] = [
            lambda: fetched() > before,
            lambda: fetched() > before,
            lambda: any(sets.glob("*.set")),
        ]
        for is_there in stages:
            cluster.start_node(away)
            wait_for(is_there)
            cluster.kill(away)
            before = fetched()
            assert (installs(), intent.exists()) == (0, False)
        cluster.start_node(away)
        wait_for(lambda: installs() == 1)
        cluster.kill(away)
        cluster.start_node(away)
        wait_for(lambda: equal_states(cluster, boom), 60)
        assert base(cluster, boom, away) > 1
        assert not intent.exists()


def test_who_reads_a_set_again_and_again_does_not_keep_it_for_ever(tmp_path: Path) -> None:
    """Found by review: nor the logs behind it, on a disk that filled."""
    settings = {**SMALL, "snapshot.hold_ms": 1_000}
    with (
        LocalCluster(nodes=1, partitions=2, settings=settings, directory=tmp_path) as cluster,
        cluster.client() as boom,
    ):
        fill(boom, batches=2)
        first = int(boom.create_snapshot()["global_index"])
        gone, asked = False, 0

        def there() -> bool:
            try:
                return bool(boom.read_snapshot(first, "meta", 0, node="n1")[0])
            except IndexCompacted:
                return False

        end = time.monotonic() + 60
        while not gone and time.monotonic() < end:
            fill(boom, batches=1)
            boom.create_snapshot()
            asked, gone = asked + 1, not there()
        assert gone
        assert asked > 2, "it is kept for a while"
        wait_for(lambda: base(cluster, boom, "n1") > 1)
        assert "snapshot_held_too_long" in cluster.log("n1").read_text()


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


def test_what_was_written_before_a_start_makes_one_due(tmp_path: Path) -> None:
    """Found by reading: with all of it in the states nothing was replayed, and each start counted from nothing."""
    settings = {"snapshot.log_bytes": 512 * KIB, "snapshot.entries": 0, "snapshot.age_ms": 0}
    for begun in (False, True):
        with LocalCluster(nodes=1, partitions=2, settings=settings, directory=tmp_path) as one, one.client() as boom:
            assert not boom.snapshots()["sets"]
            for partition in (0, 1):
                boom.submit(partition, Put(b"k", bytes(200 * KIB)), wait="applied")
            if begun:
                wait_for(lambda: boom.snapshots()["sets"])


def test_an_install_that_the_journal_is_past_is_given_up(tmp_path: Path) -> None:
    """Found by review: a node whose log had caught up while it fetched a set ended at each start after that."""
    with (
        LocalCluster(nodes=1, partitions=2, settings={**SMALL, "snapshot.keep": 20}, directory=tmp_path) as cluster,
        cluster.client() as boom,
    ):
        fill(boom, batches=2)
        first = boom.create_snapshot()
        while base(cluster, boom, "n1") <= first["raft_index"]:
            last = fill(boom, batches=1)
            boom.create_snapshot()
        assert first["global_index"] in {each["global_index"] for each in boom.snapshots()["sets"]}
        cluster.kill("n1")
        Intent(OsDisk(), cluster.data_dirs["n1"]).write(first["global_index"])
        cluster.start_node("n1")
        cluster.wait_serving()
        assert boom.status()["commit_index"] >= last
        assert "installing_given_up" in cluster.log("n1").read_text()
        assert not (cluster.data_dirs["n1"] / "install.json").exists()
