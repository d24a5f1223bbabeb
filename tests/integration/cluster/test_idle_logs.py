"""A ``log`` partition that nobody writes to loses its last records, too, once they are older than is kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from logboom import Add, Record, SyncClient
from logboom.errors import IndexCompacted, LogboomError
from logboom.testing import LocalCluster
from partitions.log.segment import SEGMENT_HEADER_BYTES
from tests.integration.cluster.backup_world import done
from tests.integration.cluster.snapshots_world import KV, LOG, SMALL, base, equal_states, fill, segments
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process

BRIEFLY = {**SMALL, "snapshot.retain_log_ms": 1}


def compact(cluster: LocalCluster, boom: SyncClient) -> None:
    """As in ``snapshots_world``; but nobody writes to the log meanwhile."""
    boom.submit(KV, Add(b"n", 1))
    first = boom.create_snapshot()
    running = [n for n in cluster.nodes if cluster.alive(n)]
    while not all(base(cluster, boom, n) >= first["raft_index"] for n in running):
        boom.submit(KV, Add(b"n", 1))
        boom.create_snapshot()
        time.sleep(0.2)


def is_empty(cluster: LocalCluster, node: str) -> bool:
    """All that the node's disk has of the log is the header of one segment."""
    directory = cluster.data_dirs[node] / "partitions" / str(LOG)
    files = [directory / name for name in segments(cluster, node, LOG)]
    return [path.stat().st_size for path in files if path.exists()] == [SEGMENT_HEADER_BYTES]


def payloads(boom: SyncClient, node: str | None = None) -> list[bytes]:
    return [
        bytes(each) for batch in boom.tail(LOG, node=node, on_compacted="first") for each in batch.records.payloads()
    ]


def begins(boom: SyncClient, node: str) -> int:
    try:
        list(boom.tail(LOG, start=1, node=node))
    except IndexCompacted as error:
        return int(error.first)
    return 1


def verified(path: Path) -> list[object]:
    return list(done("verify", path)["findings"])


def test_it_goes_on_with_nothing_on_every_node_and_from_a_backup(tmp_path: Path) -> None:
    """Found by review: the newest segment was never given up, which may have 64 MiB of records."""
    with (
        LocalCluster(nodes=3, partitions=2, settings=BRIEFLY, directory=tmp_path / "cluster") as cluster,
        cluster.client(timeout=20) as boom,
    ):
        fill(boom, batches=2)
        away = next(n for n in cluster.nodes if n != cluster.leader())
        here = [n for n in cluster.nodes if n != away]
        cluster.kill(away)  # it has two thirds of what will be gone
        last = boom.submit(LOG, Record(b"last"), wait="committed").last_index
        compact(cluster, boom)
        wait_for(lambda: all(is_empty(cluster, node) for node in here))
        assert [begins(boom, cluster.addresses[node]) for node in here] == [last + 1] * 2
        assert payloads(boom) == []

        cluster.start_node(away)  # by a snapshot, and a log of which nobody has anything
        wait_for(lambda: equal_states(cluster, boom))
        assert begins(boom, cluster.addresses[away]) == last + 1

        for node in cluster.nodes:
            cluster.kill(node)
        assert [verified(cluster.data_dirs[node]) for node in cluster.nodes] == [[]] * 3
        for node in cluster.nodes:
            cluster.start_node(node)
        cluster.wait_serving()
        wait_for(lambda: equal_states(cluster, boom))
        assert payloads(boom) == []

        kept = tmp_path / "kept"
        done("backup", kept, "--endpoints", cluster.endpoints)
        assert verified(kept) == []

        assert boom.submit(LOG, Record(b"next"), wait="committed").first_index == last + 1
        for node in cluster.nodes:
            address = cluster.addresses[node]
            wait_for(lambda address=address: held(boom, address) == [b"next"])
            assert [b.first_index for b in boom.scan_log([LOG], node=address, on_compacted="first")] == [last + 1]
        cluster.kill(here[0])
        cluster.start_node(here[0])
        wait_for(lambda: equal_states(cluster, boom))
        assert payloads(boom, cluster.addresses[here[0]]) == [b"next"]
        done("backup", kept, "--endpoints", cluster.endpoints)

    anew = LocalCluster(nodes=1, partitions=2, settings=BRIEFLY, directory=tmp_path / "anew")
    done("restore", kept, "--config", anew.config("n1"))
    with anew, anew.client(timeout=20) as boom:
        assert payloads(boom) == [b"next"]
        assert boom.submit(LOG, Record(b"on"), wait="committed").first_index == last + 2


def test_a_backup_of_nothing_is_restored_with_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with (
        LocalCluster(nodes=1, partitions=2, settings=BRIEFLY, directory=tmp_path / "cluster") as cluster,
        cluster.client(timeout=20) as boom,
    ):
        last = boom.submit(LOG, Record(b"last"), wait="committed").last_index
        compact(cluster, boom)
        wait_for(lambda: is_empty(cluster, "n1"))
        done("backup", kept, "--endpoints", cluster.endpoints)
    anew = LocalCluster(nodes=1, partitions=2, settings=BRIEFLY, directory=tmp_path / "anew")
    done("restore", kept, "--config", anew.config("n1"))
    assert verified(anew.data_dirs["n1"]) == []
    with anew, anew.client(timeout=20) as boom:
        assert payloads(boom) == []
        assert boom.submit(LOG, Record(b"on"), wait="committed").first_index == last + 1
        assert payloads(boom) == [b"on"]


def held(boom: SyncClient, address: str) -> list[bytes]:
    try:
        return payloads(boom, address)
    except LogboomError:
        return []
