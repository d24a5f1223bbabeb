"""Disks that are put back to what they were, while the others run on (docs/decisions/0034)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logboom import Add, Put, SyncClient
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from raftlog.journal.journal import Journal
from server.directory.data_dir import MANIFEST
from server.directory.manifest import decode
from server.world.disk_os import OsDisk
from tests.integration.recovery.losing_world import SMALL, equal, it_is_kept, rejoined, said, stop, votes
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=2, settings=SMALL, directory=tmp_path) as running:
        running.wait_serving()
        yield running


def copied(cluster: LocalCluster, *nodes: str) -> dict[str, Path]:
    """Stopped, copied, and started again, if they ran."""
    copies = {}
    for node in nodes:
        directory = stop(cluster, node)
        copies[node] = directory.parent / f"copy of {node}"
        shutil.copytree(directory, copies[node])
    for node in nodes:
        cluster.start_node(node)
    return copies


def put_back(cluster: LocalCluster, node: str, copy: Path) -> None:
    directory = stop(cluster, node)
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)


def write(boom: SyncClient, times: int = 20) -> None:
    for number in range(times):
        boom.submit(number % 2, [Add(b"n", 1), Put(b"key", b"before")])
    boom.barrier(boom.last_seen, scope="all")


def heard(cluster: LocalCluster, by: str, of: str) -> int:
    """How far the journal was, as the disk says."""
    path = cluster.data_dirs[by] / "heard.json"
    rows = json.loads(path.read_text())["heard"] if path.exists() else {}
    return int(rows[of][2]) if of in rows else 0


def journal_of(cluster: LocalCluster, node: str) -> Journal:
    """By a copy of it."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(shutil.copytree(cluster.data_dirs[node] / "journal", Path(place) / "journal"))
        identity = decode((cluster.data_dirs[node] / MANIFEST).read_bytes(), path=MANIFEST).cluster
        found = Journal.open(disk=OsDisk(), directory=copy, cluster_id=identity, random_bytes=os.urandom)
        found.close()
        return found


def reached(cluster: LocalCluster, node: str) -> int:
    """How far its journal is."""
    return journal_of(cluster, node).found_sequence


def began_anew(cluster: LocalCluster, node: str) -> int:
    return sum("put back to an earlier one" in row["reason"] for row in said(cluster, node, "starting_anew"))


def test_what_two_have_acknowledged_is_not_lost_with_one_of_them_put_back(cluster: LocalCluster) -> None:
    """n2 has forgotten it, n3 has never had it: together they are no majority. The last write n3 has never heard of."""
    with cluster.client(timeout=30) as boom:
        boom.submit(0, [Put(b"key", b"first")])
        copy = copied(cluster, "n2")["n2"]
        wait_for(lambda: votes(boom, cluster, "n2"))
        begun = heard(cluster, "n3", "n2")
        write(boom)
        wait_for(lambda: heard(cluster, "n3", "n2") > begun)
        stop(cluster, "n3")
        boom.submit(0, [Put(b"key", b"acknowledged")])
    stop(cluster, "n1")
    put_back(cluster, "n2", copy)
    it_is_kept(cluster)
    assert began_anew(cluster, "n2") == 1


@pytest.mark.parametrize("leads", [False, True])
def test_one_that_is_put_back_while_the_others_run_is_fed_and_votes_again(cluster: LocalCluster, leads: bool) -> None:
    """Its leader has counted what it had: it would wait for more of it for ever."""
    with cluster.client(timeout=30) as boom:
        leader = cluster.leader()
        node = next(each for each in cluster.nodes if (each == leader) is leads)
        copy = copied(cluster, node)[node]
        wait_for(lambda: votes(boom, cluster, node))
        write(boom)
        times = rejoined(cluster, node)
        put_back(cluster, node, copy)
        boom.submit(0, [Add(b"n", 1)])
        cluster.start_node(node)
        wait_for(lambda: rejoined(cluster, node) > times and votes(boom, cluster, node))
        assert boom.get(0, b"n") == (11,)
        wait_for(lambda: equal(boom, cluster))
        assert [each["role"] for each in boom.member_list()["members"]] == ["voter"] * 3
        assert began_anew(cluster, node) == 1


def test_one_that_was_killed_or_is_started_from_its_last_copy_has_forgotten_nothing(cluster: LocalCluster) -> None:
    with cluster.client(timeout=30) as boom:
        for node in cluster.nodes:
            write(boom)
            copy = copied(cluster, node)[node]
            wait_for(lambda node=node: votes(boom, cluster, node))  # type: ignore[misc]
            stop(cluster, node)
            cluster.start_node(node)
            wait_for(lambda node=node: votes(boom, cluster, node))  # type: ignore[misc]
            shutil.rmtree(copy)
        wait_for(lambda: equal(boom, cluster))
    assert not any(began_anew(cluster, node) or rejoined(cluster, node) for node in cluster.nodes)


def test_all_that_are_put_back_at_once_go_on_from_there(cluster: LocalCluster) -> None:
    """Of one moment: nobody has heard more than there is."""
    with cluster.client(timeout=30) as boom:
        write(boom)
        copies = copied(cluster, *cluster.nodes)
        cluster.wait_serving()
        write(boom)
    for node, copy in copies.items():
        put_back(cluster, node, copy)
    for node in copies:
        cluster.start_node(node)
    with cluster.client(timeout=30) as boom:
        assert boom.get(0, b"n", timeout=30) == (10,)
        boom.submit(0, [Add(b"n", 1)])
        wait_for(lambda: equal(boom, cluster))
    assert not any(began_anew(cluster, node) for node in cluster.nodes)


def test_two_that_are_put_back_are_no_majority(cluster: LocalCluster) -> None:
    """The third one may be the only one that knows what was acknowledged: nobody leads against it."""
    with cluster.client(timeout=30) as boom:
        write(boom)
        copies = copied(cluster, "n2", "n3")
        wait_for(lambda: votes(boom, cluster, "n2") and votes(boom, cluster, "n3"))
        begun = {node: heard(cluster, "n1", node) for node in copies}
        write(boom)
        wait_for(lambda: all(heard(cluster, "n1", node) > begun[node] for node in copies))
    for node, copy in copies.items():
        put_back(cluster, node, copy)
    for node in copies:
        cluster.start_node(node)
        wait_for(lambda node=node: began_anew(cluster, node) == 1)  # type: ignore[misc]
    with cluster.client(timeout=5) as boom:
        with pytest.raises(LogboomError):
            boom.submit(0, [Put(b"key", b"of the past")], timeout=2.0)
        assert {boom.status(node=cluster.addresses[node])["role"] for node in copies} == {"rejoining"}


@pytest.mark.parametrize("leads", [False, True])
def test_of_two_voters_the_other_has_everything_and_feeds_it(tmp_path: Path, leads: bool) -> None:
    with LocalCluster(nodes=2, partitions=1, settings=SMALL, directory=tmp_path) as cluster:
        with cluster.client(timeout=30) as boom:
            boom.submit(0, [Add(b"n", 1)])
            leader = cluster.leader()
            node = next(each for each in cluster.nodes if (each == leader) is leads)
            copy = copied(cluster, node)[node]
            for _ in range(20):
                boom.submit(0, [Add(b"n", 1)], timeout=30)
            put_back(cluster, node, copy)
            cluster.start_node(node)
            assert boom.submit(0, [Add(b"n", 1)], timeout=30).global_index > 0
            assert boom.get(0, b"n") == (22,)
            wait_for(lambda: equal(boom, cluster))
        assert not began_anew(cluster, node)


@contextmanager
def one_voter_and_a_learner(directory: Path) -> Iterator[tuple[LocalCluster, SyncClient, str]]:
    """And the learner's id."""
    with (
        LocalCluster(nodes=1, partitions=2, settings=SMALL, directory=directory) as cluster,
        cluster.client(timeout=30) as boom,
    ):
        boom.submit(0, [Add(b"n", 1)])
        node = cluster.add_node()
        cluster.take_in(node, boom, learner=True)
        yield cluster, boom, node


def test_a_learner_is_fed_again(tmp_path: Path) -> None:
    with one_voter_and_a_learner(tmp_path) as (cluster, boom, node):
        wait_for(lambda: equal(boom, cluster))
        copy = copied(cluster, node)[node]
        write(boom)
        put_back(cluster, node, copy)
        cluster.start_node(node)
        write(boom)
        wait_for(lambda: rejoined(cluster, node) == 1 and equal(boom, cluster))


def test_the_only_voter_is_refused_by_who_has_what_it_lacks(tmp_path: Path) -> None:
    """What follows would be something else than what a learner has already applied."""
    with one_voter_and_a_learner(tmp_path) as (cluster, boom, node):
        copy = copied(cluster, "n1")["n1"]
        write(boom)
        put_back(cluster, "n1", copy)
        cluster.start_node("n1")
        for each in ("n1", node):
            wait_for(
                lambda each=each: any("alone votes" in r["error"] for r in said(cluster, each, "peer_refused"))  # type: ignore[misc]
            )
        assert boom.get(0, b"n", timeout=30) == (1,)


@pytest.mark.parametrize(("added", "restarted"), [(2, False), (1, False), (1, True)])
def test_the_one_that_began_the_cluster_does_not_go_on_from_when_it_was_alone(
    tmp_path: Path, added: int, restarted: bool
) -> None:
    """Nor does anybody follow it, who has just been started or not."""
    with (
        LocalCluster(nodes=1, partitions=1, settings=SMALL, directory=tmp_path) as cluster,
        cluster.client(timeout=30) as boom,
    ):
        boom.submit(0, [Add(b"n", 1)])
        copy, begun = copied(cluster, "n1")["n1"], reached(cluster, "n1")
        for _ in range(added):
            cluster.take_in(cluster.add_node(), boom)
        wait_for(lambda: [each["role"] for each in boom.member_list()["members"]] == ["voter"] * (1 + added))
        boom.submit(0, [Add(b"n", 1)])
        boom.barrier(boom.last_seen, scope="all")
        kept = journal_of(cluster, "n2").entries[1:]
        wait_for(lambda: heard(cluster, "n2", "n1") > begun)
        put_back(cluster, "n1", copy)
        if restarted:
            stop(cluster, "n2")
            cluster.start_node("n2")
            wait_for(lambda: "leader" in boom.status(node=cluster.addresses["n2"]))
        cluster.start_node("n1")
        wait_for(lambda: not cluster.alive("n1"))
        assert "Move its data directory away" in said(cluster, "n1", "stopping")[0]["error"]
        assert journal_of(cluster, "n2").entries[1 : 1 + len(kept)] == kept
        shutil.rmtree(cluster.data_dirs["n1"])
        cluster.start_node("n1")
        wait_for(lambda: votes(boom, cluster, "n1") and equal(boom, cluster))
        assert boom.get(0, b"n") == (2,)
        assert rejoined(cluster, "n1") == (added > 1), "of two it is fed"


def test_damage_to_the_last_group_of_a_journal_is_no_torn_write_where_others_have_heard_of_it(
    cluster: LocalCluster,
) -> None:
    """It reads as one that the power took before anybody relied on it."""
    with cluster.client(timeout=30) as boom:
        write(boom)
        node, *others = sorted(cluster.nodes, key=cluster.leader().__eq__)
        wait_for(lambda: min(heard(cluster, each, node) for each in others) >= reached(cluster, node))
        newest = max((stop(cluster, node) / "journal").glob("*.journal"))
        raw = newest.read_bytes()
        end = len(raw.rstrip(b"\0"))
        newest.write_bytes(raw[: end - 1] + bytes([raw[end - 1] ^ 1]) + raw[end:])
        cluster.start_node(node)
        wait_for(lambda: rejoined(cluster, node) == 1 and votes(boom, cluster, node))
        wait_for(lambda: equal(boom, cluster))
    assert began_anew(cluster, node) == 1


@pytest.mark.parametrize("how", ["put back", "empty"])
def test_of_two_voters_that_were_one_the_other_feeds_it_after_a_start_too(tmp_path: Path, how: str) -> None:
    """It does not know yet that what the log says of the members is committed: before it there were fewer."""
    with (
        LocalCluster(nodes=1, partitions=1, settings=SMALL, directory=tmp_path) as cluster,
        cluster.client(timeout=30) as boom,
    ):
        boom.submit(0, [Add(b"n", 1)])
        node = cluster.add_node()
        cluster.take_in(node, boom)
        wait_for(lambda: [each["role"] for each in boom.member_list()["members"]] == ["voter"] * 2)
        begun = heard(cluster, "n1", node)
        copy = copied(cluster, node)[node]
        for _ in range(20):
            boom.submit(0, [Add(b"n", 1)], timeout=30)
        wait_for(lambda: heard(cluster, "n1", node) > begun + 20)
        stop(cluster, "n1")
        put_back(cluster, node, copy)
        if how == "empty":
            shutil.rmtree(cluster.data_dirs[node])
        cluster.start_node("n1")
        cluster.start_node(node)
        assert boom.get(0, b"n", timeout=30) == (21,)
        assert boom.submit(0, [Add(b"n", 1)], timeout=30).global_index > 0
        wait_for(lambda: equal(boom, cluster))
