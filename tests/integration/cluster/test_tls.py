"""A cluster and a client whose certificates are replaced while they run."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.request
from pathlib import Path

import pytest

from logboom import Put, SyncClient, certs
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

pytestmark = pytest.mark.process

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


def test_a_node_says_that_its_certificates_end_soon(tmp_path: Path) -> None:
    certs.make_test_authority(tmp_path / "tls", ["n1"], days=20)
    with LocalCluster(nodes=1, partitions=1, directory=tmp_path, tls=True, http=True) as cluster:
        url, tls = cluster.url("n1", "/metrics"), cluster.client_tls()
        text = urllib.request.urlopen(url, timeout=20, context=tls).read().decode()
    shown = re.findall(r'^logboom_certificate_ends_seconds{file="(.+)"} (\S+)$', text, re.MULTILINE)
    assert [file for file, _ in shown] == ["n1.pem", "ca.pem", "client-ca.pem"]
    assert all(19.9 < (float(ends) - time.time()) / 86_400 < 20 for _, ends in shown)
    rows = map(json.loads, cluster.log("n1").read_text().splitlines())
    assert [row["file"] for row in rows if row["event"] == "certificate_ends_soon"] == [file for file, _ in shown]
