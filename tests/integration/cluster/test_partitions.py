"""Partitions created and destroyed while real nodes run (docs/decisions/0017-partition-lifecycle.md)."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from logboom import Add, Put, Record, SyncClient
from logboom.errors import InvalidRequest, LogboomError, NoSuchPartition, PartitionDestroyed, Unavailable
from logboom.testing import LocalCluster
from tests.integration.cluster.snapshots_world import KV, SMALL, base, compact, equal_states, fill
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=2, settings=SMALL, directory=tmp_path) as running:
        yield running


def restart(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        cluster.kill(node)
    for node in cluster.nodes:
        cluster.start_node(node)


def directories(cluster: LocalCluster, partition: int) -> list[str]:
    return [n for n in cluster.nodes if (cluster.data_dirs[n] / "partitions" / str(partition)).exists()]


def test_created_under_load_written_restarted_destroyed_compacted(cluster: LocalCluster) -> None:
    with cluster.client(timeout=20) as boom, cluster.client(timeout=20) as other:
        other.submit(KV, Add(b"known", 1))
        over = threading.Event()
        adds = 0

        def load() -> None:
            nonlocal adds
            while not over.is_set():
                boom.submit(KV, Add(b"under-load", 1), wait="committed")
                adds += 1

        loading = threading.Thread(target=load)
        loading.start()
        kv = other.create_partition()
        logs = other.create_partition(state_machine="log", mode="write_behind")
        over.set()
        loading.join()
        assert (kv, logs) == (2, 3)
        assert other.partitions() == [0, 1, 2, 3]
        assert other.key_partitions() == 2
        last = boom.submit_many({kv: [Put(b"a", b"1")], logs: [Record(b"r")], KV: [Put(b"a", b"2")]}).global_index
        for node in cluster.nodes:
            boom.barrier(last, partitions=[kv, logs], node=cluster.addresses[node])
        restart(cluster)
        wait_for(lambda: equal_states(cluster, boom))
        assert boom.get(kv, b"a") == b"1"
        assert boom.get(KV, b"under-load") == (adds,)
        assert [r for b in boom.tail(logs) for r in b.records.payloads()] == [b"r"]
        boom.submit(logs, Record(b"s"))

        boom.destroy_partition(kv)
        boom.destroy_partition(kv)  # nothing more to do
        with pytest.raises(PartitionDestroyed):
            boom.submit(kv, Put(b"b", b"1"))
        with pytest.raises(PartitionDestroyed):
            boom.get(kv, b"a")
        assert boom.create_partition() == 4  # ids are not used again
        wait_for(lambda: equal_states(cluster, boom))
        assert len(directories(cluster, kv)) == 3  # whoever lags may still be fed from it
        fill(boom, batches=2)
        compact(cluster, boom)
        wait_for(lambda: not directories(cluster, kv))
        restart(cluster)
        wait_for(lambda: equal_states(cluster, boom))
        assert boom.partitions() == [0, 1, logs, 4]
        assert [r for b in boom.tail(logs) for r in b.records.payloads()] == [b"r", b"s"]
        with pytest.raises(PartitionDestroyed):
            boom.get(kv, b"a")
        with pytest.raises(NoSuchPartition):
            boom.get(5, b"a")


def test_whoever_waits_for_a_partition_hears_that_it_is_destroyed(cluster: LocalCluster) -> None:
    with cluster.client(timeout=20) as boom:
        doomed = boom.create_partition()
        index = boom.submit(doomed, Add(b"n", 1)).global_index
        told: list[LogboomError] = []

        def hear(wait: object) -> None:
            with cluster.client(timeout=20) as waiter:
                try:
                    wait(waiter)  # type: ignore[operator]
                except LogboomError as error:
                    told.append(error)

        waits = [
            lambda c: c.barrier(index + 1000, partitions=[KV, doomed]),
            lambda c: list(c.tail(doomed, follow=True)),
        ]
        threads = [threading.Thread(target=hear, args=(wait,)) for wait in waits]
        for thread in threads:
            thread.start()
        wait_for(lambda: sum(s["waiters"] for s in boom.status_all().values() if isinstance(s, dict)) > 0)
        boom.destroy_partition(doomed)
        for thread in threads:
            thread.join(20)
        assert [type(error) for error in told] == [PartitionDestroyed] * 2


def test_a_follower_that_is_given_a_snapshot_has_what_the_others_have(cluster: LocalCluster) -> None:
    with cluster.client(timeout=20) as boom:
        early = boom.create_partition()
        boom.submit(early, Put(b"a", b"1"))
        wait_for(lambda: equal_states(cluster, boom))
        away = next(n for n in cluster.nodes if n != cluster.leader())
        cluster.kill(away)
        boom.destroy_partition(early)
        kv, logs = boom.create_partition(), boom.create_partition(state_machine="log")
        boom.submit_many({kv: [Put(b"b", b"2")], logs: [Record(b"r")]})
        fill(boom)
        compact(cluster, boom)
        boom.submit_many({kv: [Put(b"b", b"3")], logs: [Record(b"s")]})
        cluster.start_node(away)
        wait_for(lambda: equal_states(cluster, boom))
        assert base(cluster, boom, away) > 1
        wait_for(lambda: not directories(cluster, early))
        at = cluster.addresses[away]
        assert boom.get(kv, b"b", stale=True, node=at) == b"3"
        assert [r for b in boom.tail(logs, node=at) for r in b.records.payloads()] == [b"r", b"s"]


def test_settings_that_name_more_partitions_afterwards_are_refused(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, partitions=2, directory=tmp_path) as small, small.client() as boom:
        created = boom.create_partition()
        boom.submit(created, Put(b"a", b"1"))
    with (
        pytest.raises(Unavailable, match="the cluster began with 2"),
        LocalCluster(nodes=1, partitions=3, directory=tmp_path),
    ):
        pass
    with LocalCluster(nodes=1, partitions=2, directory=tmp_path) as small, small.client() as boom:
        assert boom.get(created, b"a") == b"1"


def test_the_last_partition_stays(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, partitions=1, directory=tmp_path) as small, small.client() as boom:
        with pytest.raises(InvalidRequest, match="last"):
            boom.destroy_partition(0)
        created = boom.create_partition()
        boom.destroy_partition(0)
        assert boom.partitions() == [created]
        with pytest.raises(PartitionDestroyed):
            boom.submit_by_key([Put(b"a", b"1")])


def test_partitions_without_end_are_refused_before_descriptors_run_out(tmp_path: Path) -> None:
    """Found by review: all nodes ended where one of them had none left, and at each start again."""
    cluster = LocalCluster(partitions=1, directory=tmp_path)
    try:
        for node in cluster.nodes:
            cluster.start_node(node)
            resource.prlimit(cluster.pid(node), resource.RLIMIT_NOFILE, (256, 256))  # long before it looks
        cluster.wait_serving()
        with cluster.client(timeout=20) as client:
            with pytest.raises(InvalidRequest, match="of 256 file descriptors are taken"):
                create(client, 200)
            assert all(cluster.alive(node) for node in cluster.nodes)
            client.submit(0, Put(b"k", b"v"), wait="applied")
    finally:
        cluster.stop()


@pytest.mark.parametrize(("machine", "limit"), [("kv", 320), ("log", 200)])
def test_whatever_may_be_created_may_be_written_to(machine: str, limit: int, tmp_path: Path) -> None:
    """Found by reading: a log opens its segment with its first batch. All nodes ended then, and at each start again."""
    cluster = LocalCluster(partitions=1, directory=tmp_path)
    try:
        start_limited(cluster, limit)
        command = Put(b"k", b"v") if machine == "kv" else Record(b"v")
        with cluster.client(timeout=20) as client:
            client.transfer("n1")
            # Another node may say so until it is heard that the last ones took less than they might have.
            wait_for(lambda: f"of {limit} file descriptors are taken" in refusal(client, machine, most=limit))
            created = client.partitions()[1:]
            assert len(created) > 20
            for partition in created:
                client.submit(partition, command, wait="applied")
            # Whichever node gives it may not have all of it yet.
            wait_for(lambda: len(list(client.scan_log(partitions=created))) == len(created))
            assert all(cluster.alive(node) for node in cluster.nodes)
        for node in cluster.nodes:
            cluster.kill(node)
        start_limited(cluster, limit)
        with cluster.client(timeout=20) as client:
            client.submit_many({partition: [command] for partition in created}, wait="applied")
            assert all(cluster.alive(node) for node in cluster.nodes)
    finally:
        cluster.stop()


def test_what_was_created_and_destroyed_leaves_files_enough_to_start_with(tmp_path: Path) -> None:
    """Found by reading: a start opens again what was destroyed lately. No node started any more."""
    limit = 320
    cluster = LocalCluster(partitions=1, directory=tmp_path)
    try:
        start_limited(cluster, limit)
        with cluster.client(timeout=20) as client:
            client.transfer("n1")
            why = refusal_of_turnover(client, most=limit)
            assert "destroyed: two snapshots give them back" in why or "no room for another partition on" in why
            assert all(cluster.alive(node) for node in cluster.nodes)
        for node in cluster.nodes:
            cluster.kill(node)
        start_limited(cluster, limit)
        with cluster.client(timeout=20) as client:
            client.submit(0, Put(b"k", b"v"), wait="applied")
            assert all(cluster.alive(node) for node in cluster.nodes)
            wait_for(lambda: created_behind_a_snapshot(client))  # a node that is busy with one passes over the next
    finally:
        cluster.stop()


def refusal_of_turnover(client: SyncClient, *, most: int) -> str:
    """Partitions are created, written to and destroyed until none is created any more: why."""
    for _ in range(most):
        try:
            partition = client.create_partition()
        except InvalidRequest as error:
            return str(error)
        client.submit(partition, Put(b"k", b"v"), wait="applied")
        client.destroy_partition(partition)
    pytest.fail(f"{most} partitions came and went, and none was refused")


def created_behind_a_snapshot(client: SyncClient) -> bool:
    client.submit(0, Put(b"k", b"v"), wait="applied")
    client.create_snapshot()
    try:
        client.create_partition()
    except InvalidRequest:
        return False
    return True


def start_limited(cluster: LocalCluster, limit: int) -> None:
    """The first node has fewest."""
    for more, node in enumerate(cluster.nodes):
        cluster.start_node(node)
        resource.prlimit(cluster.pid(node), resource.RLIMIT_NOFILE, (limit + 16 * more, limit + 16 * more))
    cluster.wait_serving()


def refusal(client: SyncClient, machine: str, *, most: int) -> str:
    """Partitions are created until one is refused: why."""
    while len(client.partitions()) < most:
        try:
            client.create_partition(state_machine=machine)
        except InvalidRequest as error:
            return str(error)
    pytest.fail(f"{most} partitions, and none was refused")


def test_a_partition_that_another_node_has_no_files_for_is_refused(tmp_path: Path) -> None:
    """Found by review: only the leader looked. Where `ulimit -n` was lower, the node ended, and at each start again."""
    cluster = LocalCluster(partitions=1, directory=tmp_path)
    try:
        for node in cluster.nodes:
            cluster.start_node(node)
        resource.prlimit(cluster.pid("n2"), resource.RLIMIT_NOFILE, (256, 256))
        cluster.wait_serving()
        with cluster.client(timeout=20) as client:
            client.transfer("n1")
            with pytest.raises(InvalidRequest, match=r"no room for another partition on n2: .* `ulimit -n` there"):
                create(client, 200)
            created = len(client.partitions()) - 1
            cluster.kill("n2")
            with pytest.raises(InvalidRequest, match="on n2"):  # it would come back to it
                create(client, 10)
            assert created > 10
            assert len(client.partitions()) == created + 1
            assert all(cluster.alive(node) for node in ("n1", "n3"))
            client.submit(0, Put(b"k", b"v"), wait="applied")
    finally:
        cluster.stop()


def test_a_node_without_files_for_what_was_created_while_it_was_away_waits_for_some(tmp_path: Path) -> None:
    """Found by review: it ended, and at each start again."""
    cluster = LocalCluster(partitions=1, directory=tmp_path)
    try:
        cluster.start()
        with cluster.client(timeout=20) as client:
            taken = len(os.listdir(f"/proc/{cluster.pid('n3')}/fd"))  # noqa: PTH208 - names of descriptors
            cluster.kill("n3")
            create(client, 60)
            last = max(client.partitions())
            client.submit(last, Put(b"k", b"v"))
            cluster.start_node("n3")
            limit = taken + 64
            resource.prlimit(cluster.pid("n3"), resource.RLIMIT_NOFILE, (limit, limit))
            wait_for(lambda: "partition_waits_for_files" in cluster.log("n3").read_text())
            client.submit(last, Put(b"k", b"w"))
            assert cluster.alive("n3")
            assert cluster.log("n3").read_text().count("partition_waits_for_files") <= 60, "each once"
            cluster.kill("n3")
            cluster.start_node("n3")  # with as many as anybody
            wait_for(lambda: read(client, last, cluster.addresses["n3"]) == b"w")
    finally:
        cluster.stop()


def read(client: SyncClient, partition: int, node: str) -> object:
    try:
        return client.get(partition, b"k", stale=True, node=node, timeout=2.0)
    except LogboomError as error:
        return error.code


def create(client: SyncClient, count: int) -> None:
    for _ in range(count):
        client.create_partition()
