"""Reading in global order where real nodes have removed records, each for itself; without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logboom import SyncClient
from logboom.errors import IndexCompacted
from logboom.spark import connection, read
from logboom.spark.beginnings import Choice, Held
from logboom.spark.columns import LOG as COLUMNS
from logboom.spark.options import read_options
from logboom.spark.read import read_merged
from logboom.spark.shares import merged_shares
from logboom.testing import LocalCluster
from tests.integration.cluster.snapshots_world import KV, LOG, SMALL, base, compact, equal_states, fill
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """All have removed what KV began with; the third more of it, as it was given a snapshot."""
    directory: Path = tmp_path_factory.mktemp("removed")
    with (
        LocalCluster(partitions=2, settings=SMALL, directory=directory) as running,
        SyncClient(running.endpoints, timeout=30) as boom,
    ):
        fill(boom)
        behind = "n3"
        running.kill(behind)
        fill(boom)
        compact(running, boom)
        running.restart(behind)
        wait_for(lambda: base(running, boom, behind) > 0)
        fill(boom)
        wait_for(lambda: equal_states(running, boom))
        yield running


def rows(cluster: LocalCluster, **options: str) -> list[tuple[int, int]]:
    """Partition and offset of each, in the order in which they are read."""
    asked = read_options({"endpoints": cluster.endpoints, "ordered": "global", "minPartitions": "3", **options})
    found = connection.session(asked.target)
    return [
        (row["partition"], row["offset"])
        for part in merged_shares(asked, found)
        for columns in read_merged(asked, part, COLUMNS, found)
        for row in columns.select(["partition", "offset"]).to_pylist()
    ]


def first_of(boom: SyncClient, partition: int, node: str | None = None) -> int:
    return int(next(iter(boom.tail(partition, node=node))).first_index)


def test_whatever_any_node_holds_is_read(cluster: LocalCluster) -> None:
    with SyncClient(cluster.endpoints) as boom:
        begins = {node: first_of(boom, KV, node) for node in cluster.nodes}
        last = {mark.partition_id: mark.log_index for mark in boom.watermarks(linearizable=True)}
    least = min(begins.values())
    assert least > 1
    expected = {(KV, offset) for offset in range(least, last[KV] + 1)}
    expected |= {(LOG, offset) for offset in range(1, last[LOG] + 1)}
    for _ in range(3):
        found = rows(cluster)
        assert max(Counter(found).values()) == 1
        assert set(found) == expected, begins
        for partition in (KV, LOG):
            assert [row for row in found if row[0] == partition] == sorted(row for row in found if row[0] == partition)


def test_the_same_of_each_log_from_whoever_has_it(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no node holds all that the others hold."""
    expected, choose, asked = rows(cluster), read.holder, []

    def scattered(*given: Any, **how: Any) -> Choice:
        asked.append(given)
        return replace(choose(*given, **how), held=Held(gone={KV: 1 << 60}))

    monkeypatch.setattr(read, "holder", scattered)
    assert rows(cluster) == expected
    assert asked


def test_what_none_holds_is_missed_also_where_a_range_ends_in_front_of_it(cluster: LocalCluster) -> None:
    named = {"startingOffsets": f'{{"{KV}": 1}}', "endingGlobalOffset": "6"}
    with pytest.raises(IndexCompacted, match=f"partition {KV}: offset 1 is gone"):
        rows(cluster, **named)
    found = rows(cluster, **named, failOnDataLoss="false")
    assert {partition for partition, _ in found} == {LOG}
    assert found == sorted(found)
    assert found[0] == (LOG, 1)
