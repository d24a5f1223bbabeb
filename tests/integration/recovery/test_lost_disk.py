"""Nodes whose data directory is gone are started again, as if nothing had happened (docs/decisions/0031)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from logboom import Add, Put, SyncClient
from logboom.cli import cli
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from server.directory.refill import REFILL
from server.directory.refill import encode as encode_refill
from tests.integration.cluster.backup_world import done
from tests.integration.recovery.losing_world import (
    SMALL,
    Load,
    equal,
    it_is_kept,
    ready,
    rejoined,
    said,
    stop,
    votes,
)
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=2, settings=SMALL, directory=tmp_path) as running:
        running.wait_serving()
        yield running


def test_every_node_in_turn_loses_its_disk_and_votes_again(cluster: LocalCluster) -> None:
    """Under load, the leader among them; some are given a snapshot. In the end all that was said is there."""
    with Load(cluster) as load, cluster.client(timeout=30) as boom:
        for turn, node in enumerate([*cluster.nodes, cluster.leader()]):
            if turn > 1:
                wait_for(lambda node=node: ready(cluster, node))  # type: ignore[misc]
            shutil.rmtree(stop(cluster, node))
            before, times = sum(load.acknowledged), rejoined(cluster, node)
            cluster.start_node(node)
            wait_for(lambda node=node, times=times: rejoined(cluster, node) > times)  # type: ignore[misc]
            wait_for(lambda node=node: votes(boom, cluster, node))  # type: ignore[misc]
            wait_for(lambda before=before: sum(load.acknowledged) > before + 20)  # type: ignore[misc]
    with cluster.client(timeout=30) as boom:
        wait_for(lambda: equal(boom, cluster))
        load.check(boom)
        assert [each["role"] for each in boom.member_list()["members"]] == ["voter"] * 3


def only_n2_runs_once_two_have_acknowledged(cluster: LocalCluster) -> None:
    """n1 and n2 have it, n3 has not."""
    with cluster.client(timeout=30) as boom:
        boom.submit(0, [Put(b"key", b"before")])
        boom.barrier(boom.last_seen, scope="all")
        stop(cluster, "n3")
        boom.submit(0, [Put(b"key", b"acknowledged")])
    stop(cluster, "n1")


def test_what_two_have_acknowledged_is_not_lost_with_one_of_their_disks(cluster: LocalCluster) -> None:
    only_n2_runs_once_two_have_acknowledged(cluster)
    shutil.rmtree(stop(cluster, "n2"))
    it_is_kept(cluster)


@pytest.mark.parametrize("how", ["gone", "cut to nothing", "zeros"])
def test_what_two_have_acknowledged_is_not_lost_with_one_of_their_journals(cluster: LocalCluster, how: str) -> None:
    """One that reads as if it had just been begun is damaged, too, in a directory that has met others."""
    only_n2_runs_once_two_have_acknowledged(cluster)
    journal = stop(cluster, "n2") / "journal"
    files = [file for file in journal.iterdir() if file.suffix == ".journal"]
    sizes = {file: file.stat().st_size for file in files}
    if how == "gone":
        shutil.rmtree(journal)
    else:
        for file in files:
            file.write_bytes(bytes(sizes[file] if how == "zeros" else 0))
    it_is_kept(cluster)


def test_an_earlier_journal_that_comes_back_has_forgotten_what_the_one_since_promised(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """As one does on a file system of its own that was not mounted at one of the starts."""
    journal, former = cluster.data_dirs["n2"] / "journal", tmp_path / "former"
    with cluster.client(timeout=30) as boom:
        for number in range(30):  # further than the next one will be
            boom.submit(0, [Put(b"key", b"%d" % number)])
        stop(cluster, "n2")
        journal.rename(former)
        journal.mkdir()
        cluster.start_node("n2")
        wait_for(lambda: rejoined(cluster, "n2") == 1 and votes(boom, cluster, "n2"))
    only_n2_runs_once_two_have_acknowledged(cluster)
    stop(cluster, "n2")
    shutil.rmtree(journal)
    former.rename(journal)
    it_is_kept(cluster)


def test_two_empty_disks_are_no_majority(cluster: LocalCluster) -> None:
    """The third one may be the only one that knows what was acknowledged: nobody leads without it, nor against it."""
    with cluster.client(timeout=30) as boom:
        boom.submit(0, [Put(b"key", b"kept")])
        boom.barrier(boom.last_seen, scope="all")
    directories = {node: stop(cluster, node) for node in cluster.nodes}
    cluster.start_node("n1")
    for node in ("n2", "n3"):
        shutil.rmtree(directories[node])
        cluster.start_node(node)
        wait_for(lambda node=node: bool(said(cluster, node, "disk_lost")))  # type: ignore[misc]
    with cluster.client(timeout=5) as boom:
        with pytest.raises(LogboomError):
            boom.submit(0, [Put(b"key", b"of an empty cluster")], timeout=2.0)
        roles = {node: boom.status(node=cluster.addresses[node])["role"] for node in ("n2", "n3")}
        assert roles == {"n2": "rejoining", "n3": "rejoining"}
        assert boom.status(node=cluster.addresses["n1"])["role"] in ("follower", "candidate")


def test_a_disk_that_comes_back_after_it_was_made_up_for_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    with cluster.client(timeout=30) as boom:
        boom.submit(0, [Add(b"n", 1)])
        directory, former = stop(cluster, "n2"), tmp_path / "former"
        directory.rename(former)
        cluster.start_node("n2")
        wait_for(lambda: rejoined(cluster, "n2") == 1 and votes(boom, cluster, "n2"))
        shutil.rmtree(stop(cluster, "n2"))
        former.rename(directory)
        cluster.start_node("n2")
        for node in ("n1", "n3"):
            wait_for(
                lambda node=node: any(
                    "another data directory" in r["error"] for r in said(cluster, node, "peer_refused")
                )  # type: ignore[misc]
            )
        boom.submit(0, [Add(b"n", 1)])
        assert boom.get(0, b"n") == (2,)
        assert not votes(boom, cluster, "n2") or boom.status(node=cluster.addresses["n2"])["leader"] is None
        shutil.rmtree(stop(cluster, "n2"))  # as the message says
        cluster.start_node("n2")
        wait_for(lambda: rejoined(cluster, "n2") == 2 and votes(boom, cluster, "n2"))
        wait_for(lambda: equal(boom, cluster))
        assert [each["role"] for each in boom.member_list()["members"]] == ["voter"] * 3


@pytest.mark.parametrize(("leads", "restored"), [(False, False), (True, False), (False, True), (True, True)])
def test_two_voters_are_both_needed_and_one_that_is_empty_is_fed(tmp_path: Path, leads: bool, restored: bool) -> None:
    """By a leader that may never have noticed that it was away; also in another history than the first."""
    with LocalCluster(nodes=2, partitions=1, settings=SMALL, directory=tmp_path) as cluster:
        if restored:
            with cluster.client(timeout=30) as boom:
                boom.submit(0, [Put(b"key", b"of before")])
            restore_all(cluster, tmp_path / "kept")
        with cluster.client(timeout=30) as boom:
            boom.submit(0, [Add(b"n", 1)])
            boom.barrier(boom.last_seen, scope="all")
            leader = cluster.leader()
            lost = next(node for node in cluster.nodes if (node == leader) is leads)
            shutil.rmtree(stop(cluster, lost))
            cluster.start_node(lost)
            assert boom.submit(0, [Add(b"n", 1)], timeout=30).global_index > 0
            assert boom.get(0, b"n") == (2,)
            wait_for(lambda: equal(boom, cluster))
        assert not said(cluster, lost, "disk_lost")


def restore_all(cluster: LocalCluster, kept: Path) -> None:
    """From a backup: in another history."""
    done("backup", kept, "--endpoints", cluster.addresses["n1"])
    for node in cluster.nodes:
        shutil.rmtree(stop(cluster, node))
        done("restore", kept, "--config", cluster.config(node))
    for node in cluster.nodes:
        cluster.start_node(node)


@contextmanager
def begun_by_one(directory: Path, added: int, *, restored: bool = False) -> Iterator[tuple[LocalCluster, SyncClient]]:
    """To which others were added: its own configuration still names nobody else.

    ``restored``: in another history than the one that anybody begins by himself.
    """
    settings = {**SMALL, "node.log_level": "debug"}  # it tells of calls that nobody answers
    with LocalCluster(nodes=1, partitions=1, settings=settings, directory=directory) as cluster, ExitStack() as ends:
        with cluster.client(timeout=30) as first:
            first.submit(0, [Add(b"n", 1)])
        if restored:
            restore_all(cluster, directory / "kept")
        boom = ends.enter_context(cluster.client(timeout=30))
        for _ in range(added):
            cluster.take_in(cluster.add_node(), boom)
        wait_for(lambda: [each["role"] for each in boom.member_list()["members"]] == ["voter"] * (1 + added))
        boom.submit(0, [Add(b"n", 1)])
        boom.barrier(boom.last_seen, scope="all")
        yield cluster, boom


def in_vain(cluster: LocalCluster, node: str) -> int:
    """So often it has called the one that began the cluster, and nobody answered."""
    return sum(row["peer"] == "n1" for row in said(cluster, node, "dial_failed"))


def test_the_one_that_began_the_cluster_begins_no_second_one_without_its_disk(tmp_path: Path) -> None:
    with begun_by_one(tmp_path, 2) as (cluster, boom):
        shutil.rmtree(stop(cluster, "n1"))
        cluster.start_node("n1")
        with SyncClient(cluster.addresses["n1"], timeout=30) as of_n1:
            of_n1.submit(0, [Add(b"n", 1)])
        wait_for(lambda: rejoined(cluster, "n1") == 1 and votes(boom, cluster, "n1") and equal(boom, cluster))
        assert boom.get(0, b"n") == (3,)
        assert [each["role"] for each in boom.member_list()["members"]] == ["voter"] * 3


def test_nor_does_it_where_one_was_added_which_feeds_it(tmp_path: Path) -> None:
    """Of two it is needed, and promised nothing that the other one does not know; it does not lead on the way."""
    with begun_by_one(tmp_path, 1) as (cluster, boom):
        shutil.rmtree(stop(cluster, "n1"))
        cluster.start_node("n1")
        with SyncClient(cluster.addresses["n1"], timeout=30) as of_n1:
            of_n1.submit(0, [Add(b"n", 1)])
        wait_for(lambda: votes(boom, cluster, "n1") and equal(boom, cluster))
        assert boom.get(0, b"n") == (3,)
        assert said(cluster, "n1", "waits_for_members")
        assert not said(cluster, "n1", "disk_lost")


@pytest.mark.parametrize(("added", "restored"), [(1, False), (1, True), (2, False), (2, True)])
def test_where_it_has_begun_a_second_one_before_it_was_called_it_ends_for_good(
    tmp_path: Path, added: int, restored: bool
) -> None:
    """Not before others lead: one of several that follows nobody may be what is left of a cluster that was given up."""
    with begun_by_one(tmp_path, added, restored=restored) as (cluster, boom):
        others = [node for node in cluster.nodes if node != "n1"]
        for node in others:
            stop(cluster, node)
        shutil.rmtree(stop(cluster, "n1"))
        cluster.start_node("n1")
        with SyncClient(cluster.addresses["n1"], timeout=30) as of_n1:
            of_n1.submit(0, [Add(b"n", 5)])
            cluster.start_node(others[0])
            if added > 1:
                for node in ("n1", others[0]):
                    wait_for(lambda node=node: bool(said(cluster, node, "peer_refused")))  # type: ignore[misc]
                of_n1.submit(0, [Add(b"n", 5)])
        for node in others[1:]:
            cluster.start_node(node)
        wait_for(lambda: not cluster.alive("n1"))
        assert "Move its data directory away" in said(cluster, "n1", "stopping")[0]["error"]
        cluster.start_node("n1")
        wait_for(lambda: not cluster.alive("n1"))
        assert "led alone" in cluster.log("n1").read_text()
        calls = {node: in_vain(cluster, node) for node in others}
        # By then they know that whoever was refused is gone, and call whoever comes next as soon as he is there.
        wait_for(lambda: all(in_vain(cluster, node) > before + 1 for node, before in calls.items()))
        shutil.rmtree(cluster.data_dirs["n1"])
        cluster.log("n1").unlink()  # what a start says that is refused is no row
        cluster.start_node("n1")
        wait_for(lambda: votes(boom, cluster, "n1") and equal(boom, cluster))
        assert boom.get(0, b"n") == (2,)
        assert bool(said(cluster, "n1", "disk_lost")) is (added > 1)


def test_a_node_that_joins_remembers_the_disks_of_all_that_it_meets(cluster: LocalCluster) -> None:
    """It meets them before it knows that they are members."""
    with cluster.client(timeout=30) as boom:
        node = cluster.add_node()
        cluster.take_in(node, boom)
        wait_for(lambda: votes(boom, cluster, node))
        path = cluster.data_dirs[node] / "directories.json"
        wait_for(lambda: set(json.loads(path.read_text())["met"]) == set(cluster.nodes) - {node})


def test_of_two_one_that_is_empty_is_given_what_it_had_when_it_alone_voted_and_leads_nobody_with_that(
    tmp_path: Path,
) -> None:
    """The other one has what was acknowledged since: it could never lead, or would have cut that off."""
    with LocalCluster(nodes=3, partitions=1, settings=SMALL, directory=tmp_path) as cluster:
        with cluster.client(timeout=30) as boom:
            for node in ("n2", "n3"):
                boom.remove_member(node)
                cluster.forget(node)
            for _ in range(2):
                boom.submit(0, [Add(b"n", 1)])
                boom.create_snapshot()
            cluster.take_in(cluster.add_node(), boom)
            wait_for(lambda: [each["role"] for each in boom.member_list()["members"]] == ["voter"] * 2)
            boom.submit(0, [Add(b"n", 1)])
            boom.barrier(boom.last_seen, scope="all")
            shutil.rmtree(stop(cluster, "n1"))
            cluster.start_node("n1")
            boom.submit(0, [Add(b"n", 1)], timeout=30)
            assert boom.get(0, b"n") == (4,)
            wait_for(lambda: equal(boom, cluster))
        assert said(cluster, "n1", "starting_anew"), "it was given a set"
        wait_for(lambda: not (cluster.data_dirs["n1"] / REFILL).exists())  # that is over


def test_one_that_may_not_lead_says_so(tmp_path: Path) -> None:
    """Found by review: neither its log nor its status told why nobody led, and `logboom verify` to wait, for good."""
    with (
        LocalCluster(nodes=1, partitions=1, settings=SMALL, directory=tmp_path) as cluster,
        cluster.client(timeout=30) as boom,
    ):
        boom.submit(0, [Add(b"n", 1)])
        address = cluster.addresses["n1"]
        assert boom.status(node=address)["waits_for"] is None
        path = stop(cluster, "n1") / REFILL
        path.write_bytes(encode_refill(1 << 40, 4711, ""))
        told = CliRunner().invoke(cli, ["verify", str(path.parent)]).output
        assert "4711" in told
        assert "restore a backup" in told
        cluster.start_node("n1")
        wait_for(lambda: boom.status(node=address)["waits_for"] == [1 << 40, 4711])
        (row,) = said(cluster, "n1", "waits_for_members")
        assert "restore a backup" in row["advice"]
        stop(cluster, "n1")
        path.unlink()
        cluster.start_node("n1")
        assert boom.get(0, b"n") == (1,)
