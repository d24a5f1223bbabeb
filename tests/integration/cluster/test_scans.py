"""Scans that nobody reads, on a real node."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from logboom import Put, SyncClient
from logboom.testing import LocalCluster
from logboom.wire import FrameDecoder, Kind, encode

pytestmark = pytest.mark.process

KEYS, VALUE = 4000, bytes(5000)
"""More than a node and both kernels keep for a connection."""
HASTY_MS = 2_000


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=1, partitions=1, settings={"net.frame_ms": HASTY_MS}) as running:
        yield running


def test_three_hundred_scans_that_nobody_reads_stop_nobody(cluster: LocalCluster) -> None:
    """Found by reading: they took all places of readers of the file, and the partition was paused for good."""
    with SyncClient(cluster.endpoints, timeout=20.0) as boom, socket.socket() as idle:
        for start in range(0, KEYS, 100):
            boom.submit(0, [Put(b"%05d" % key, VALUE) for key in range(start, start + 100)])
        host, port = cluster.addresses["n1"].split(":")
        idle.connect((host, int(port)))
        said = encode(Kind.HELLO, {"version": 1}, request_id=1)
        for number in range(300):
            said += encode(Kind.SCAN, {"partition": 0, "read": "stale", "timeout_ms": 1}, request_id=10 + number)
        idle.sendall(b"".join(said))
        for number in range(20):
            boom.submit(0, Put(b"after", b"%d" % number), wait="applied")
        assert boom.get(0, b"after") == b"19"
        assert sum(1 for _ in boom.scan(0)) == KEYS + 1  # there is a place again, though they are all still unread
        answered: dict[int, str] = {}
        decoder = FrameDecoder(frame_bytes_max=1 << 24)
        idle.settimeout(20.0)
        while len(answered) < 300:
            for frame in decoder.feed(idle.recv(1 << 20)):
                if frame.request_id >= 10 and not frame.more:
                    answered[frame.request_id] = frame.header.get("code", "whole")
        assert {"quota_exceeded", "deadline_exceeded"} <= set(answered.values())
    assert "apply_failed" not in cluster.log("n1").read_text()
