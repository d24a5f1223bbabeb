"""Whoever only connects, to any port of any node, keeps neither clients nor nodes out."""

from __future__ import annotations

import contextlib
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from logboom import Add
from logboom.config import load
from logboom.testing import LocalCluster
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process

MANY = 64
DESCRIPTORS = 256
SLOW = {"net.handshake_ms": 600_000, "http.partition_series_max": 0}
FEW = {**SLOW, "net.connections_max": MANY, "net.peer_connections_max": MANY}


@contextlib.contextmanager
def connected(addresses: list[str], count: int) -> Iterator[None]:
    """To each of these as often as there is room for, and some more."""
    with contextlib.ExitStack() as held:
        for address in addresses:
            host, port = address.rsplit(":", 1)
            for _ in range(count + 16):
                held.enter_context(socket.create_connection((host, int(port))))
        yield


def refused(cluster: LocalCluster, node: str, port: str) -> int:
    with urlopen(cluster.url(node, "/metrics"), timeout=5) as answer:
        text = answer.read().decode()
    (found,) = re.findall(rf'logboom_connections_refused_total{{port="{port}"}} (\d+)', text)
    return int(found)


@pytest.mark.parametrize("lacking", ["places", "descriptors"])
def test_clients_and_nodes_come_in_all_the_same(tmp_path: Path, lacking: str) -> None:
    settings = FEW if lacking == "places" else SLOW
    with LocalCluster(nodes=3, partitions=1, settings=settings, directory=tmp_path, http=True) as cluster:
        away = next(n for n in cluster.nodes if n != cluster.leader())
        here = [n for n in cluster.nodes if n != away]
        cluster.kill(away)
        members = {each.id: each for each in load(cluster.config(away)).cluster.members}
        peers = [members[n].peer_address for n in here]
        if lacking == "descriptors":
            for node in here:
                resource.prlimit(cluster.pid(node), resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        with connected([*(cluster.addresses[n] for n in here), *peers], MANY if lacking == "places" else DESCRIPTORS):
            for port in ("peer", "client"):
                wait_for(lambda port=port: all(refused(cluster, n, port) >= 16 for n in here))
            with cluster.client() as boom:
                boom.submit(0, Add(b"n", 1))
            cluster.start_node(away)
            cluster.wait_serving()
            cluster.kill(here[0])  # now it takes the one that came back
            with cluster.client(timeout=20) as boom:
                boom.submit(0, Add(b"n", 1))
                assert boom.get(0, b"n") == (2,)
