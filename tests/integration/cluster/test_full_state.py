"""A `kv` partition whose state has no room any more: it stands still, and nothing else does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from logboom import Put, SyncClient
from logboom.testing import LocalCluster
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process

NO_ROOM = {"apply.kv_map_bytes": 1 << 20, "apply.unsaved_bytes": 1 << 16}


def fill(client: SyncClient, partition: int) -> None:
    for number in range(60):
        keys = [f"{number}-{key}".encode() for key in range(10)]
        client.submit(partition, [Put(key, b"v" * 4_000) for key in keys], wait="committed")


def failed_to_save(cluster: LocalCluster, node: str) -> bool:
    return "checkpoint_failed" in cluster.log(node).read_text()


def test_it_may_be_destroyed_and_nodes_that_have_one_may_be_stopped(tmp_path: Path) -> None:
    """Each node ended when it was destroyed: closing it saved what nobody needed any more."""
    with (
        LocalCluster(partitions=2, directory=tmp_path, settings=NO_ROOM) as cluster,
        cluster.client(timeout=20) as client,
    ):
        full = client.create_partition()
        for partition in (full, 0):
            fill(client, partition)
        wait_for(lambda: all(failed_to_save(cluster, node) for node in cluster.nodes))
        client.destroy_partition(full)
        client.submit(1, Put(b"k", b"v"), wait="applied")
        wait_for(lambda: all(full not in ids(client, address) for address in cluster.addresses.values()))
        assert all(cluster.alive(node) for node in cluster.nodes)
        for node in cluster.nodes:
            cluster.kill(node, signal.SIGTERM)
            assert cluster.wait_ended(node) == 0


def ids(client: SyncClient, node: str) -> list[int]:
    return [mark.partition_id for mark in client.watermarks(node=node)]
