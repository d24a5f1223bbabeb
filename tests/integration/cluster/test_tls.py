"""A cluster and a client whose certificates are replaced while they run."""

from __future__ import annotations

import shutil
import time

import pytest

from logboom import Put, SyncClient, certs
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("cluster")]

PATIENCE_S = 30.0


def _answers(cluster: LocalCluster) -> bool:
    """Every node lets a client in that has the files of now."""
    assert cluster.tls_directory is not None
    for address in cluster.addresses.values():
        try:
            with SyncClient(address, tls=cluster.tls_directory, timeout=2) as client:
                client.status(node=address)
        except LogboomError:
            return False
    return True


def test_links_clients_and_nodes_go_on_with_other_certificates() -> None:
    with LocalCluster(nodes=3, partitions=1, tls=True) as cluster:
        assert cluster.tls_directory is not None
        with SyncClient(cluster.endpoints, tls=cluster.tls_directory, timeout=PATIENCE_S) as client:
            client.submit(0, Put(b"k", b"before"))
            shutil.rmtree(cluster.tls_directory)
            certs.make_test_authority(cluster.tls_directory, cluster.nodes)  # another authority altogether
            deadline = time.monotonic() + PATIENCE_S
            while not _answers(cluster):
                assert time.monotonic() < deadline
            for node in cluster.nodes:  # every link is made anew, and so is the client's connection
                cluster.restart(node)
                cluster.wait_serving()
            client.submit(0, Put(b"k", b"after"))
            assert client.get(0, b"k") == b"after"
