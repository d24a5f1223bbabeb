"""How writes to one partition are answered, set while real nodes run (docs/decisions/0041-partition-settings.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from logboom import Add, Put, SyncClient
from logboom.cli import cli
from logboom.errors import (
    DeadlineExceeded,
    LogboomError,
    NoSuchPartition,
    NotLeader,
    PartitionDestroyed,
    PartitionPaused,
    Unavailable,
)
from logboom.testing import LocalCluster
from logboom.types import PARTITION_SETTINGS
from tests.integration.cluster.backup_world import done, run
from tests.integration.cluster.snapshots_world import KV, SMALL, base, compact, equal_states, fill
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process

OTHER = 2
SETTINGS = {
    **SMALL,
    "cluster.overrides": {**SMALL["cluster.overrides"], str(OTHER): {"ack": "committed"}},  # type: ignore[dict-item]
}
UNSAID: Any = None


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=3, settings=SETTINGS, directory=tmp_path) as running:
        yield running


def counts(boom: SyncClient, node: str) -> object:
    """Of those that have another acknowledgement than the others."""
    try:
        return boom.status(node=node)["acknowledgement"]["partitions"]
    except LogboomError as error:
        return error.code


def everywhere(cluster: LocalCluster, boom: SyncClient, *rows: list[Any]) -> bool:
    return all(counts(boom, at) == list(rows) for at in cluster.addresses.values())


def waits_for_apply(cluster: LocalCluster, boom: SyncClient, partition: int, wait: Any = UNSAID) -> bool:
    """Whether a write is answered while its partition is applied nowhere."""
    for node in cluster.nodes:
        boom.admin("pause", partition, node=node)
    try:
        boom.submit(partition, Add(b"n", 1), wait=wait, timeout=3.0)
    except (DeadlineExceeded, PartitionPaused):
        return True
    else:
        return False
    finally:
        for node in cluster.nodes:
            boom.admin("resume", partition, node=node)


def test_it_counts_at_once_for_whoever_asks_at_whichever_node(cluster: LocalCluster) -> None:
    with cluster.client(timeout=20) as boom:
        last = boom.submit(KV, Put(b"k", b"v")).global_index
        assert waits_for_apply(cluster, boom, KV)
        assert not waits_for_apply(cluster, boom, OTHER)
        assert boom.set_partition(KV, ack="committed") == {"partition": KV, "ack": "committed", "linearizable": False}
        assert boom.set_partition(OTHER, linearizable=True) == {
            "partition": OTHER,
            "ack": "committed",
            "linearizable": True,
        }
        assert not waits_for_apply(cluster, boom, KV)
        assert waits_for_apply(cluster, boom, KV, "applied")
        assert waits_for_apply(cluster, boom, OTHER, "committed")
        created = boom.create_partition(ack="durable", linearizable=False)
        assert not waits_for_apply(cluster, boom, created)
        boom.set_partition(created, ack="applied")
        assert waits_for_apply(cluster, boom, created)
        wait_for(
            lambda: everywhere(
                cluster, boom, [KV, "committed", False], [OTHER, "committed", True]
            )  # the created one is as all are
        )
        assert boom.get(KV, b"k", at_least=last) == b"v"
        for wrong, error in ((77, NoSuchPartition), (created, PartitionDestroyed)):
            if wrong == created:
                boom.destroy_partition(created)
            with pytest.raises(error):
                boom.set_partition(wrong, ack="applied")


def test_it_stays_over_leaders_restarts_and_a_snapshot_that_is_installed(cluster: LocalCluster) -> None:
    rows = [[KV, "committed", True], [OTHER, "durable", False]]
    with cluster.client(timeout=20) as boom:
        away = next(n for n in cluster.nodes if n != cluster.leader())
        boom.set_partition(OTHER, ack="durable")
        cluster.kill(away)  # it has said that it knows it
        boom.set_partition(KV, ack="committed")
        boom.set_partition(KV, linearizable=True)
        leader = cluster.leader()
        cluster.kill(leader)
        cluster.start_node(leader)
        cluster.start_node(away)
        wait_for(lambda: everywhere(cluster, boom, *rows))
        assert waits_for_apply(cluster, boom, KV, "committed")

        away = next(n for n in cluster.nodes if n != cluster.leader())
        cluster.kill(away)
        boom.set_partition(KV, linearizable=False)
        rows[0][2] = False
        fill(boom)
        compact(cluster, boom)
        cluster.start_node(away)
        wait_for(lambda: equal_states(cluster, boom))
        assert base(cluster, boom, away) > 1
        assert everywhere(cluster, boom, *rows)
        boom.transfer(away)
        assert not waits_for_apply(cluster, boom, KV)

        for node in cluster.nodes:
            cluster.kill(node)
        for node in cluster.nodes:
            cluster.start_node(node)
        wait_for(lambda: everywhere(cluster, boom, *rows))
        assert not waits_for_apply(cluster, boom, KV)
        assert PARTITION_SETTINGS in boom.status()["agreed"]
        assert boom.set_partition(KV, linearizable=True)["ack"] == "committed"


def refusal(boom: SyncClient) -> str:
    """Whoever does not lead says who does: that may be the last word, too."""
    with pytest.raises((NotLeader, Unavailable)) as refused:
        boom.set_partition(KV, ack="committed", timeout=1.0)
    assert refused.value.outcome == "not_applied"
    return str(refused.value)


def test_a_member_that_nobody_has_heard_is_waited_for(tmp_path: Path) -> None:
    """It may be of a release that would go by its configuration alone."""
    own = LocalCluster(nodes=3, partitions=2, directory=tmp_path)
    try:
        for node in own.nodes[:2]:
            own.start_node(node)
        with own.client(timeout=20) as boom:
            boom.submit(0, Put(b"k", b"v"))
            wait_for(lambda: f"has not heard since it started whether {own.nodes[2]} can" in refusal(boom))
            assert boom.status()["agreed"] == []
            made = boom.create_partition()
            own.start_node(own.nodes[2])
            assert boom.set_partition(made, ack="committed")["ack"] == "committed"
    finally:
        own.stop()


def test_a_backup_has_it_and_what_is_restored_goes_by_it(cluster: LocalCluster, tmp_path: Path) -> None:
    copy = tmp_path / "backup"
    with cluster.client(timeout=20) as boom:
        boom.submit(KV, Put(b"k", b"before"))
        boom.create_snapshot(timeout=20)
        boom.set_partition(KV, ack="committed", linearizable=True)
        refused = run("backup", copy, "--endpoints", cluster.endpoints)
        assert f"were set ({KV})" in str(refused.exception)
        created = boom.create_partition(ack="durable")
        boom.submit(KV, Put(b"k", b"v"))
        done("backup", copy, "--endpoints", cluster.endpoints)
    own = LocalCluster(nodes=3, partitions=3, settings=SETTINGS, directory=tmp_path / "restored")
    done("verify", copy)
    try:
        for node in own.nodes:
            done("restore", copy, "--config", own.config(node))
        own.start()
        with own.client(timeout=20) as boom:
            assert boom.get(KV, b"k") == b"v"
            wait_for(
                lambda: everywhere(
                    own, boom, [KV, "committed", True], [OTHER, "committed", False], [created, "durable", False]
                )
            )
            assert waits_for_apply(own, boom, KV, "committed")
            shown = CliRunner().invoke(cli, ["partitions", "list", "-o", "json", "--endpoints", own.endpoints])
            rows = [row for row in json.loads(shown.stdout) if row["partition"] == KV]
            assert [(row["ack"], row["linearizable"]) for row in rows] == [("committed", True)] * 3
    finally:
        own.stop()


@pytest.mark.parametrize("compacted", [False, True])
def test_a_configuration_of_other_partitions_is_refused_once_one_is_set(tmp_path: Path, compacted: bool) -> None:
    """What the log says of it is in the journal, or in the state that the journal begins with."""
    with LocalCluster(nodes=1, partitions=3, settings=SETTINGS, directory=tmp_path) as small, small.client() as boom:
        boom.set_partition(OTHER, ack="durable")
        if compacted:
            compact(small, boom)
    told = done("verify", small.data_dirs["n1"])
    assert not told["findings"]
    for count in (2, 4):
        with (
            pytest.raises(Unavailable, match="the cluster began with 3 and has created, destroyed or set"),
            LocalCluster(nodes=1, partitions=count, settings=SMALL, directory=tmp_path),
        ):
            pass
    own = {**SETTINGS, "cluster.overrides": {**SMALL["cluster.overrides"], str(OTHER): {"ack": "applied"}}}  # type: ignore[dict-item]
    with LocalCluster(nodes=1, partitions=3, settings=own, directory=tmp_path) as small, small.client() as boom:
        assert boom.status()["acknowledgement"]["partitions"] == [[OTHER, "durable", False]]  # as the log says
