"""Nodes that let nobody wait as long as a client has time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from logboom import Add, Put
from logboom.errors import LogboomError
from logboom.testing import LocalCluster

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory: Path = tmp_path_factory.mktemp("c") / "c"
    with LocalCluster(partitions=1, settings={"net.request_ms_max": 500}, directory=directory) as found:
        yield found


def test_a_write_waits_as_long_as_it_was_told_and_takes_effect_once(cluster: LocalCluster) -> None:
    """It ended with an unknown outcome when the node's time was over."""
    leader = cluster.leader()
    others = [node for node in cluster.nodes if node != leader]
    with cluster.client(timeout=20) as client, cluster.client(timeout=1.4) as hasty:
        for each in (client, hasty):
            each.submit(0, Put(b"k", b"v"))
        for node in others:
            cluster.kill(node, signal.SIGSTOP)
        answer = client.sender(0).send(Add(b"n", 1))
        with pytest.raises(LogboomError):  # so the other one's time is over, too, as far as nodes go
            hasty.submit(0, Put(b"k", b"w"))
        for node in others:
            cluster.kill(node, signal.SIGCONT)
        answer.result(timeout=20)
        assert client.get(0, b"n") == (1,)


def test_a_time_to_come_is_waited_for(cluster: LocalCluster) -> None:
    """It was refused at once where nodes wait no longer than half a second."""
    with cluster.client(timeout=20) as client:
        index = client.submit(0, Put(b"k", b"v")).global_index
        assert client.index_at(datetime.now(UTC) + timedelta(seconds=2)) >= index
        assert client.barrier(datetime.now(UTC) + timedelta(seconds=1)).global_index >= index
