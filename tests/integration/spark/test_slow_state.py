"""A task that takes its time over each row of a state, on a real node; without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from logboom import Put, SyncClient
from logboom.errors import DeadlineExceeded
from logboom.spark import connection
from logboom.spark.columns import STATE
from logboom.spark.options import read_options
from logboom.spark.read import read_state
from logboom.spark.shares import Share
from logboom.testing import LocalCluster

pytestmark = pytest.mark.process

KEYS, VALUE = 10_000, bytes(5000)
"""More than a task, its client, the node and both kernels keep for a connection."""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    settings = {"net.frame_ms": 1_000, "reads.scans_max": 1}
    with LocalCluster(nodes=1, partitions=1, settings=settings) as running:
        yield running


@pytest.mark.parametrize("spilled", [True, False])
def test_a_state_is_read_whole_however_slowly(cluster: LocalCluster, spilled: bool) -> None:
    """It failed in each attempt: the node gives a view up of which nothing is taken."""
    given = {"endpoints": cluster.endpoints, "view": "state", "requestTimeoutMs": "1000"}
    options = read_options(given if spilled else {**given, "maxSpillBytes": "0"})
    found = connection.Session(options.target)
    with SyncClient(cluster.endpoints, timeout=30.0) as boom:
        for start in range(0, KEYS, 100):
            boom.submit(0, [Put(b"%05d" % key, VALUE) for key in range(start, start + 100)])
        reading = read_state(options, Share(0), STATE.names, found)
        keys = next(reading)["key"].to_pylist()
        boom.submit(0, Put(b"00000-later", b"v"))
        assert next(boom.scan(0, limit=1)), "once there is a place: the node is rid of the view, whole or not"
        if spilled:
            keys += [key for rows in reading for key in rows["key"].to_pylist()]
            assert keys == [b"%05d" % key for key in range(KEYS)], "one view, from before what came later"
        else:
            with pytest.raises(DeadlineExceeded, match=r"nothing of it was taken.*raise maxSpillBytes"):
                list(reading)
    found.rest()
