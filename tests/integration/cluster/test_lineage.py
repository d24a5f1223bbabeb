"""What was before a restore and what came after it never mix (docs/decisions/0030-lineage.md): real nodes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from logboom import Put, SyncClient, Token
from logboom.errors import LineageMismatch, LogboomError
from logboom.testing import LocalCluster
from server.directory.manifest import decode
from tests.integration.cluster.backup_world import done, run
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


class Before(NamedTuple):
    """A stopped cluster of three, which has written a lot since the set at ``global_index``."""

    path: Path
    kept: Path
    global_index: int
    token: Token


def lineage_of(directory: Path) -> str | None:
    path = directory / "manifest.json"
    return decode(path.read_bytes(), path=str(path)).lineage


def logged(cluster: LocalCluster, node: str, event: str) -> list[dict[str, Any]]:
    lines = cluster.log(node).read_text().splitlines() if cluster.log(node).exists() else []
    return [row for row in map(json.loads, lines) if row.get("event") == event]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Before:
    base = tmp_path_factory.mktemp("lineage")
    with (
        LocalCluster(nodes=3, partitions=1, directory=base / "old") as cluster,
        cluster.client(timeout=20) as boom,
    ):
        boom.submit(0, Put(b"k", b"kept"))
        first = done("backup", base / "kept", "--endpoints", cluster.endpoints)
        for number in range(20):
            boom.submit(0, Put(b"k", b"given up %d" % number))
        boom.barrier(boom.last_seen, scope="all")
        token = boom.token()
    return Before(base / "old", base / "kept", first["global_index"], token)


def again(before: Before, path: Path, *restored: str) -> LocalCluster:
    """Three nodes, those of ``restored`` from the set, the others as they were before."""
    cluster = LocalCluster(nodes=3, partitions=1, directory=path)
    for node in cluster.nodes:
        if node in restored:
            done("restore", before.kept, "--config", cluster.config(node), "-g", before.global_index)
        else:
            old = before.path / cluster.data_dirs[node].relative_to(path)
            shutil.copytree(old, cluster.data_dirs[node], dirs_exist_ok=True)
    return cluster


def status(cluster: LocalCluster, node: str) -> dict[str, Any]:
    with SyncClient(cluster.addresses[node], timeout=5) as boom:
        return dict(boom.status(node=cluster.addresses[node]))


def connected(cluster: LocalCluster, node: str) -> set[str]:
    return {row[0] for row in status(cluster, node)["members"] if row[2]}


def test_a_node_from_before_is_refused_by_a_restored_cluster(before: Before, tmp_path: Path) -> None:
    cluster = again(before, tmp_path / "new", "n1", "n2")
    assert lineage_of(cluster.data_dirs["n1"]) == lineage_of(cluster.data_dirs["n2"]) != ""
    with cluster.client(timeout=20) as boom:
        for node in ("n3", "n1", "n2"):  # the old one first: it is there when the others elect
            cluster.start_node(node)
        try:
            wait_for(lambda: connected(cluster, "n1") == {"n1", "n2"})
            boom.submit(0, Put(b"k", b"new"))
            for _ in range(30):
                boom.submit(0, Put(b"n", b"more than it had"))
            assert boom.get(0, b"k") == b"new"
            wait_for(lambda: logged(cluster, "n3", "peer_refused") and logged(cluster, "n1", "peer_refused"))
            cluster.restart("n1")  # another election, with the old one up
            cluster.restart("n2")
            wait_for(lambda: status(cluster, "n1")["recovered"] and status(cluster, "n2")["recovered"])
            old = status(cluster, "n3")
            assert (old["recovered"], old["leader"], old["lineage"]) == (False, None, "")
            assert connected(cluster, "n1") == {"n1", "n2"}
            with cluster.client(timeout=20) as fresh:
                wait_for(lambda: _get(fresh, b"k") == b"new")
        finally:
            cluster.stop()
    for node in ("n1", "n2"):
        said = {row["error"] for row in logged(cluster, node, "peer_refused")}
        assert {row["code"] for row in logged(cluster, node, "peer_refused")} == {"lineage_mismatch"}, said
        assert all("n3 is of another history" in each for each in said)
        assert not logged(cluster, node, "link_cut")


def _get(boom: SyncClient, key: bytes) -> Any:
    try:
        return boom.get(0, key)
    except LogboomError:
        return None


def _until_it_fails(call: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        call()


def test_the_majority_of_before_cannot_take_in_a_restored_node(before: Before, tmp_path: Path) -> None:
    cluster = again(before, tmp_path / "mixed", "n3")
    with cluster.client(timeout=20) as boom:
        for node in ("n3", "n1", "n2"):
            cluster.start_node(node)
        try:
            wait_for(lambda: connected(cluster, "n1") == {"n1", "n2"} and status(cluster, "n1")["recovered"])
            boom.submit(0, Put(b"k", b"old"))
            wait_for(lambda: logged(cluster, "n3", "peer_refused"))
            restored = status(cluster, "n3")
            assert (restored["recovered"], restored["leader"]) == (False, None)
            assert restored["lineage"] == lineage_of(cluster.data_dirs["n3"])
        finally:
            cluster.stop()


def test_an_empty_node_is_not_taken_for_a_restored_one(before: Before, tmp_path: Path) -> None:
    """Two of them and one that was restored would be a majority that has nothing."""
    cluster = again(before, tmp_path / "empty", "n1")
    for node in ("n2", "n3"):
        shutil.rmtree(cluster.data_dirs[node])
        cluster.start_node(node)
    cluster.start_node("n1")
    try:
        wait_for(lambda: logged(cluster, "n1", "peer_refused"))
        assert connected(cluster, "n1") == {"n1"}
    finally:
        cluster.stop()


def test_a_node_that_joins_takes_the_clusters(before: Before, tmp_path: Path) -> None:
    cluster = again(before, tmp_path / "joined", "n1", "n2", "n3")
    with cluster, cluster.client(timeout=20) as boom:
        wanted = lineage_of(cluster.data_dirs["n1"])
        node = cluster.add_node()
        wait_for((cluster.data_dirs[node] / "manifest.json").exists)
        assert lineage_of(cluster.data_dirs[node]) is None
        cluster.take_in(node, boom)
        wait_for(lambda: lineage_of(cluster.data_dirs[node]) == wanted)
        wait_for(lambda: status(cluster, node)["role"] == "follower")
        cluster.restart(node)
        assert status(cluster, node)["lineage"] == wanted
        made = boom.create_snapshot()["global_index"]
        wait_for(lambda: list(cluster.data_dirs[node].glob(f"snapshots/{made:020d}.set")))
        found = done("inspect", "snapshot", cluster.data_dirs[node] / "snapshots" / f"{made:020d}.set")
        assert found["lineage"] == wanted
    assert not json.loads(run("verify", cluster.data_dirs[node], "-o", "json").stdout)["findings"]


def test_a_restored_node_whose_disk_is_lost_takes_the_clusters_again(before: Before, tmp_path: Path) -> None:
    """What it begins by itself is of the first history."""
    cluster = again(before, tmp_path / "lost", "n1", "n2", "n3")
    with cluster, cluster.client(timeout=20) as boom:
        boom.submit(0, Put(b"k", b"new"))
        wanted = lineage_of(cluster.data_dirs["n1"])
        cluster.kill("n2")
        wait_for(lambda: not cluster.alive("n2"))
        shutil.rmtree(cluster.data_dirs["n2"])
        cluster.start_node("n2")
        wait_for(lambda: bool(logged(cluster, "n2", "rejoined")))
        wait_for(lambda: {row["role"] for row in boom.member_list()["members"]} == {"voter"})
        assert lineage_of(cluster.data_dirs["n2"]) == wanted != ""


def test_tokens_and_clients_of_before_are_told_so(before: Before, tmp_path: Path) -> None:
    cluster = again(before, tmp_path / "clients", "n1", "n2", "n3")
    with cluster, cluster.client(timeout=20) as boom:
        for call in (
            lambda: boom.get(0, b"k", at_least=before.token),
            lambda: boom.barrier(before.token, partitions=[0], timeout=5),
        ):
            with pytest.raises(LineageMismatch, match="history"):
                call()
        boom.submit(0, Put(b"k", b"new"))
        assert boom.get(0, b"k", at_least=boom.token()) == b"new"
        boom.barrier(boom.token(), partitions=[0], timeout=20)


def test_a_client_that_has_seen_the_history_of_before_is_told_so(before: Before, tmp_path: Path) -> None:
    """At the same addresses, as an application meets it that runs on."""
    cluster = again(before, tmp_path / "same")
    with cluster, cluster.client(timeout=20) as boom:
        boom.submit(0, Put(b"k", b"old"))
        for node in cluster.nodes:
            cluster.kill(node)
            shutil.rmtree(cluster.data_dirs[node])
            done("restore", before.kept, "--config", cluster.config(node), "-g", before.global_index)
        cluster.start()
        with pytest.raises(LineageMismatch, match="new client"):
            _until_it_fails(lambda: boom.get(0, b"k", at_least="session"))
        with cluster.client(timeout=20) as fresh:
            assert fresh.get(0, b"k") == b"kept"


def test_a_backup_of_another_history_is_refused_though_it_has_come_further(before: Before, tmp_path: Path) -> None:
    cluster = again(before, tmp_path / "further", "n1", "n2", "n3")
    kept = Path(shutil.copytree(before.kept, tmp_path / "kept"))
    with cluster, cluster.client(timeout=20) as boom:
        for number in range(40):
            boom.submit(0, Put(b"k", b"%d" % number))
        refused = run("backup", kept, "--endpoints", cluster.endpoints)
        assert "of another history" in str(refused.exception)
        done("backup", tmp_path / "fresh", "--endpoints", cluster.endpoints)
        done("backup", tmp_path / "fresh", "--endpoints", cluster.endpoints)
    listed = json.loads((tmp_path / "fresh" / "backup.json").read_text())
    assert listed["lineage"] == lineage_of(cluster.data_dirs["n1"])
    for path in (tmp_path / "fresh", kept, cluster.data_dirs["n1"]):
        assert not json.loads(run("verify", path, "-o", "json").stdout)["findings"]


def test_a_set_that_is_restored_twice_has_two_histories_if_it_is_said(before: Before, tmp_path: Path) -> None:
    found = []
    for number, options in enumerate(([], [], ["--lineage", "second"], ["--lineage", "second"])):
        cluster = LocalCluster(nodes=1, partitions=1, directory=tmp_path / str(number))
        about = done("restore", before.kept, "--config", cluster.config("n1"), "-g", before.global_index, *options)
        found.append(about["lineage"])
        assert lineage_of(cluster.data_dirs["n1"]) == about["lineage"]
    assert found[0] == found[1] != found[2] == found[3]
    other = tmp_path / "2" / cluster.data_dirs["n1"].relative_to(tmp_path / "3") / "manifest.json"
    shutil.copy(tmp_path / "0" / other.relative_to(tmp_path / "2"), other)
    assert "another history" in run("verify", other.parent, "-o", "json").stdout
