"""Nodes whose settings decide otherwise what is applied, on real nodes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from logboom import Add, SyncClient
from logboom.errors import DeadlineExceeded, LogboomError, QuotaExceeded
from logboom.testing import LocalCluster
from server.directory.remembered import REMEMBERED
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process
PRODUCER = bytes(range(16))


def remembers(cluster: LocalCluster, node: str, ranges: int) -> None:
    """From its next start on."""
    path = cluster.config(node)
    text = path.read_text()
    before = next(line for line in text.splitlines() if line.startswith("producer_ranges_max"))
    path.write_text(text.replace(before, f"producer_ranges_max = {ranges}"))


def scattered(client: SyncClient, first: int, count: int) -> None:
    """Records of one producer, with gaps: each a range of its own."""
    for number in range(first, first + count):
        with suppress(QuotaExceeded, DeadlineExceeded):  # it is tried again, and the last try may be on its way
            client.submit(0, Add(b"n", 1), wait="applied", producer_id=PRODUCER, sequence=2 * number, timeout=2)


def test_a_node_that_would_refuse_what_others_apply_does_not_take_part(tmp_path: Path) -> None:
    """Found by review: with other limits its state was another one, after six writes, and no node said so."""
    cluster = LocalCluster(partitions=1, directory=tmp_path, settings={"apply.producer_ranges_max": 100})
    odd = "n3"
    remembers(cluster, odd, 3)
    try:
        for node in ("n1", "n2"):
            cluster.start_node(node)
        cluster.wait_serving()
        cluster.start_node(odd)
        takes_no_part(cluster, odd)
    finally:
        cluster.stop()


def takes_no_part(cluster: LocalCluster, odd: str) -> None:
    with cluster.client(timeout=20) as client:
        wait_for(lambda: "remembers other numbers of producers" in cluster.log(odd).read_text())
        scattered(client, 0, 6)
        for node in ("n1", "n2"):
            assert client.get(0, b"n", node=node, at_least="session") == (6,)
        assert not next(row for row in client.status(node="n1")["members"] if row[0] == odd)[2]
        cluster.kill(odd)
        remembers(cluster, odd, 100)
        cluster.start_node(odd)
        wait_for(lambda: holds(client, odd))


def test_a_limit_that_is_changed_under_data_that_is_there_is_refused(tmp_path: Path) -> None:
    """Found by review: what one node had refused before a restart others applied after it."""
    with (
        LocalCluster(partitions=1, directory=tmp_path, settings={"apply.producer_ranges_max": 3}) as cluster,
        cluster.client(timeout=20) as client,
    ):
        scattered(client, 0, 6)
        away = next(node for node in cluster.nodes if node != cluster.leader())
        cluster.kill(away)
        remembers(cluster, away, 100)
        cluster.start_node(away)
        assert cluster.wait_ended(away) == 2
        assert "apply.producer_ranges_max: 100, and " in cluster.log(away).read_text()
        remembers(cluster, away, 3)
        cluster.start_node(away)
        scattered(client, 6, 1)
        wait_for(lambda: holds(client, away, 4))


def test_one_that_had_other_limits_before_they_were_compared_is_told_what_helps(tmp_path: Path) -> None:
    """Found by reading: set right it was told to set them back, and set back that they must agree."""
    helps = "`logboom members remove`", "another id and an empty directory"
    with (
        LocalCluster(partitions=1, directory=tmp_path, settings={"apply.producer_ranges_max": 100}) as cluster,
        cluster.client(timeout=20) as client,
    ):
        scattered(client, 0, 6)
        odd = next(node for node in cluster.nodes if node != cluster.leader())
        cluster.kill(odd)
        (cluster.data_dirs[odd] / REMEMBERED).unlink()  # a release before this one wrote none
        remembers(cluster, odd, 3)
        cluster.start_node(odd)
        wait_for(lambda: said(cluster, odd, "remembers other numbers of producers", *helps))
        cluster.kill(odd)
        remembers(cluster, odd, 100)
        cluster.start_node(odd)
        assert cluster.wait_ended(odd) == 2
        assert said(cluster, odd, "apply.producer_ranges_max: 100, and ", *helps)
        client.remove_member(odd)
        cluster.forget(odd)
        added = cluster.add_node()
        cluster.take_in(added, client)
        wait_for(lambda: holds(client, added))


def said(cluster: LocalCluster, node: str, *words: str) -> bool:
    """In one line of its log."""
    return any(all(word in line for word in words) for line in cluster.log(node).read_text().splitlines())


def holds(client: SyncClient, node: str, count: int = 6) -> bool:
    try:
        return client.get(0, b"n", node=node, at_least="session") == (count,)
    except LogboomError:
        return False
