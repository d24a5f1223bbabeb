"""A node that the others do not let in answers clients, too: they meet it as likely as any other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from logboom import Put, SyncClient
from logboom.routing import partition_of
from logboom.testing import LocalCluster
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


def test_one_that_began_anew_with_other_settings_does_not_say_where_keys_are(tmp_path: Path) -> None:
    """Whoever met it first wrote by key as it would, for good: where nobody else looked."""
    with LocalCluster(partitions=32, directory=tmp_path / "c") as cluster:
        outside = cluster.nodes[2]
        cluster.kill(outside)
        shutil.rmtree(cluster.data_dirs[outside])
        config = cluster.config(outside)
        given = config.read_text()
        config.write_text(given.replace("partitions = 32", "partitions = 2"))
        assert config.read_text() != given
        cluster.start_node(outside)
        wait_for(lambda: "other cluster settings" in cluster.log(outside).read_text())
        keys = [b"user/%d" % n for n in range(12)]
        with SyncClient(cluster.addresses[outside], timeout=20) as client:
            receipts = client.submit_by_key([Put(key, b"v") for key in keys])
            assert {part.partition_id for part in receipts.parts} == {partition_of(key, 32) for key in keys}
            assert (client.key_partitions(), len(client.partitions())) == (32, 32)
