"""``logboom backup`` and ``logboom restore``: real nodes, real files (docs/operating.md)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from logboom import Add, Put, Record, SyncClient
from logboom.errors import LogboomError
from logboom.records import RecordBlock
from logboom.testing import LocalCluster
from logboom.types import PartitionId
from server.offline.backup_dir import LogArchive
from server.world.disk_os import OsDisk
from tests.integration.cluster.backup_world import done, run
from tests.integration.cluster.snapshots_world import KV, LOG, SMALL, compact, equal_states, fill
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process

PRODUCER = b"p" * 16


class Taken(NamedTuple):
    """What the cluster was when a backup was made."""

    global_index: int
    digests: list[Any]
    history: list[bytes]
    batches: int


class World(NamedTuple):
    directory: Path
    first: Taken
    second: Taken
    endpoints: str
    """Of the cluster, which runs on."""


def once(boom: SyncClient, sequence: int) -> bool:
    """Submit a record of its own; True if it was a repetition."""
    block = RecordBlock.from_records([Record(b"once %d" % sequence)])
    return bool(boom.submit_block(LOG, block, producer_id=PRODUCER, sequence=sequence).duplicate)


def history(boom: SyncClient, node: str | None = None) -> list[bytes]:
    return [bytes(payload) for batch in boom.tail(LOG, node=node) for payload in batch.records.payloads()]


def taken(cluster: LocalCluster, boom: SyncClient, directory: Path, *options: str) -> Taken:
    wait_for(lambda: equal_states(cluster, boom))
    found = done("backup", directory, "--endpoints", cluster.endpoints, *options)
    digests = [row[2] for row in boom.status(digests=True)["digests"]]
    return Taken(found["global_index"], digests, history(boom), found["batches"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A backup directory with two sets, the second one of more, after compaction."""
    base = tmp_path_factory.mktemp("backup")
    directory = base / "kept"
    with (
        LocalCluster(nodes=3, partitions=2, settings=SMALL, directory=base / "cluster") as cluster,
        cluster.client(timeout=20) as boom,
    ):
        fill(boom, batches=12)
        assert not once(boom, 0)
        first = taken(cluster, boom, directory)
        compact(cluster, boom)
        fill(boom, batches=2)
        assert not once(boom, 1)
        second = taken(cluster, boom, directory, "--node", "n2")
        assert done("backup", directory, "--endpoints", cluster.endpoints)["batches"] == 0  # nothing is new
        yield World(directory, first, second, cluster.endpoints)


def restored(cluster: LocalCluster, directory: Path, *options: object) -> None:
    for node in cluster.nodes:
        done("restore", directory, "--config", cluster.config(node), *options)


def states(cluster: LocalCluster, boom: SyncClient, node: str) -> list[Any] | None:
    try:
        status = boom.status(node=cluster.addresses[node], digests=True)
    except LogboomError:
        return None
    return [row[2] for row in status["digests"]] if status["recovered"] else None


def unstarted(directory: Path, nodes: int, **settings: Any) -> LocalCluster:
    return LocalCluster(nodes=nodes, partitions=2, settings={**SMALL, **settings}, directory=directory)


def test_a_second_backup_copies_what_is_new(world: World) -> None:
    assert world.first.batches == 13
    assert world.second.batches == len(world.second.history) - len(world.first.history)
    listed = json.loads((world.directory / "backup.json").read_text())
    assert [each["global_index"] for each in listed["sets"]][:2] == [
        world.first.global_index,
        world.second.global_index,
    ]
    found = json.loads(run("verify", world.directory, "-o", "json").stdout)
    assert (found["kind"], found["findings"]) == ("backup", [])


@pytest.mark.parametrize(
    ("kind", "pattern"), [("backup", "backup.json"), ("batches", "logs/*/*"), ("snapshot", "*.set")]
)
def test_what_is_in_a_backup_can_be_looked_at(world: World, kind: str, pattern: str) -> None:
    path = min(world.directory.glob(pattern))
    assert done("inspect", kind, path)["rows"]


def test_a_log_that_begins_later_than_the_backup_is_said(world: World, tmp_path: Path) -> None:
    """Its records before a file that was lost were left out without a word."""
    copy = Path(shutil.copytree(world.directory, tmp_path / "copy"))
    archive = LogArchive(OsDisk(), copy / "logs" / str(LOG), PartitionId(LOG))
    first, begins = (span.first_index for span in archive.spans())
    rows = archive.read(first).batches
    archive.paths()[0].unlink()
    cluster = unstarted(tmp_path, 1)
    archive.add(rows[:4], "local")  # what was in a second file is lost
    told = run("restore", copy, "--config", cluster.config("n1"), "-o", "json")
    assert told.exit_code == 0
    assert f"partition {LOG} begins at {begins}: the backup has records from {first} on" in told.stderr
    assert "left_out" not in json.loads(told.stdout)
    whole = unstarted(tmp_path / "whole", 1)
    assert not run("restore", world.directory, "--config", whole.config("n1")).stderr.count("begins at")


def test_a_set_that_was_removed_is_listed_no_more_by_the_next(world: World, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(world.directory, tmp_path / "copy"))
    for path in copy.glob(f"{world.first.global_index:020d}.*"):
        path.unlink()
    assert run("verify", copy).exit_code == 5
    done("backup", copy, "--endpoints", world.endpoints)
    assert [each["global_index"] for each in json.loads((copy / "backup.json").read_text())["sets"]] == [
        world.second.global_index
    ]
    assert run("verify", copy).exit_code == 0


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_restored_cluster_is_what_it_was_and_goes_on(world: World, tmp_path: Path, nodes: int) -> None:
    cluster = unstarted(tmp_path, nodes)
    restored(cluster, world.directory, "-g", world.second.global_index)
    assert not json.loads(run("verify", cluster.data_dirs["n1"], "-o", "json").stdout)["findings"]
    with cluster, cluster.client(timeout=20) as boom:
        for node in cluster.nodes:
            wait_for(lambda node=node: states(cluster, boom, node) == world.second.digests)
            assert history(boom, cluster.addresses[node]) == world.second.history
        assert [once(boom, sequence) for sequence in (0, 1, 2)] == [True, True, False]
        before = boom.get(KV, b"n")
        boom.submit(KV, [Put(b"new", b"value"), Add(b"n", 1)])
        assert boom.get(KV, b"n") == (before[0] + 1,)
        assert history(boom) == [*world.second.history, b"once 2"]
        fill(boom, batches=2)
        compact(cluster, boom)
        for node in cluster.nodes:
            cluster.restart(node)
        wait_for(lambda: equal_states(cluster, boom))
        assert history(boom)[: len(world.second.history)] == world.second.history


def test_an_older_set_can_be_restored_under_another_name(world: World, tmp_path: Path) -> None:
    cluster = unstarted(tmp_path, 1, **{"cluster.id": "other"})
    refused = run("restore", world.directory, "--config", cluster.config("n1"))
    assert "--as-cluster" in str(refused.exception)
    restored(cluster, world.directory, "--as-cluster", "-g", world.first.global_index)
    with cluster, cluster.client(timeout=20) as boom:
        wait_for(lambda: states(cluster, boom, "n1") == world.first.digests)
        assert history(boom) == world.first.history
        assert [once(boom, sequence) for sequence in (0, 1)] == [True, False]
        fill(boom, batches=1)
        # What it has now is another history than the directory's.
        copy = Path(shutil.copytree(world.directory, tmp_path / "copy"))
        assert "of cluster" in str(run("backup", copy, "--endpoints", cluster.endpoints).exception)


def test_a_cluster_that_went_back_needs_a_new_directory(world: World, tmp_path: Path) -> None:
    cluster = unstarted(tmp_path, 1)
    restored(cluster, world.directory, "-g", world.first.global_index)
    copy = Path(shutil.copytree(world.directory, tmp_path / "copy"))
    with cluster, cluster.client(timeout=20) as boom:
        fill(boom, batches=1)
        assert "history" in str(run("backup", copy, "--endpoints", cluster.endpoints).exception)
        fill(boom, batches=12)
        assert "history" in str(run("backup", copy, "--endpoints", cluster.endpoints).exception)
        done("backup", tmp_path / "new", "--endpoints", cluster.endpoints)
    assert json.loads(run("verify", copy, "-o", "json").stdout)["findings"] == []


def test_what_an_interrupted_backup_has_copied_counts(world: World, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(world.directory, tmp_path / "copy"))
    listed = json.loads((world.directory / "backup.json").read_text())["sets"]
    logs = sorted((copy / "logs" / str(LOG)).glob("*.batches"))
    for each in (*logs[1:], *copy.glob(f"{listed[-1]['global_index']:020d}.*")):
        each.unlink()
    found = done("backup", copy, "--endpoints", world.endpoints)
    assert found["batches"] == len(world.second.history) - len(world.first.history)
    assert json.loads(run("verify", copy, "-o", "json").stdout)["findings"] == []


def test_a_restore_changes_nothing_in_the_backup(world: World, tmp_path: Path) -> None:
    """What the next backup may go on with was removed, and one that nobody may write to was of no use."""
    copy = Path(shutil.copytree(world.directory, tmp_path / "copy"))
    for kind in ("states.partial", "states.fetch", "set.new"):
        (copy / f"{world.first.global_index + 1:020d}.{kind}").write_bytes(b"of a backup that was interrupted")
    before = {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in (copy, *copy.rglob("*"))}
    cluster = unstarted(tmp_path, 1)
    restored(cluster, copy, "-g", world.second.global_index)
    assert {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in (copy, *copy.rglob("*"))} == before
    assert not json.loads(run("verify", cluster.data_dirs["n1"], "-o", "json").stdout)["findings"]


def test_a_directory_that_holds_something_is_refused(world: World, tmp_path: Path) -> None:
    cluster = unstarted(tmp_path, 1)
    cluster.data_dirs["n1"].mkdir(parents=True)
    (cluster.data_dirs["n1"] / "mine.txt").write_text("mine")
    assert "not empty" in str(run("restore", world.directory, "--config", cluster.config("n1")).exception)
    assert [path.name for path in cluster.data_dirs["n1"].iterdir()] == ["mine.txt"]
    assert "not a backup" in str(
        run("backup", cluster.data_dirs["n1"], "--endpoints", "127.0.0.1:1", "--timeout", "1s").exception
    )


@pytest.mark.parametrize("pattern", ["backup.json", "*.set", "*.states", f"logs/{LOG}/*.batches"])
def test_a_flipped_bit_in_a_backup_is_found_and_never_restored(world: World, tmp_path: Path, pattern: str) -> None:
    copy = Path(shutil.copytree(world.directory, tmp_path / "copy"))
    path = min(copy.glob(pattern))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    result = run("verify", copy, "-o", "json")
    assert result.exit_code == 5
    assert str(path) in {each["path"] for each in json.loads(result.stdout)["findings"]}
    cluster = unstarted(tmp_path, 1)
    refused = run("restore", copy, "--config", cluster.config("n1"), "-g", world.first.global_index)
    assert getattr(refused.exception, "code", None) == "corrupt_data", refused.output
    assert run("verify", world.directory).exit_code == 0


def test_a_cluster_of_keys_alone_that_went_back_needs_one_too(tmp_path: Path) -> None:
    """There is no log to compare: its backup was kept beside the old ones, and the newest of these was restored."""
    old = LocalCluster(nodes=1, partitions=1, directory=tmp_path / "old")
    kept = tmp_path / "kept"
    with old, old.client(timeout=20) as boom:
        first = done("backup", kept, "--endpoints", old.endpoints)["global_index"]
        for number in range(9):
            boom.submit(0, Put(b"k", b"%d" % number))
        done("backup", kept, "--endpoints", old.endpoints)
    new = LocalCluster(nodes=1, partitions=1, directory=tmp_path / "new")
    restored(new, kept, "-g", first)
    with new, new.client(timeout=20) as boom:
        boom.submit(0, Put(b"k", b"another"))
        refused = run("backup", kept, "--endpoints", new.endpoints)
        assert "of another history" in str(refused.exception)


def test_where_the_set_that_all_came_of_is_gone_another_is_taken_for_who_needs_one(
    world: World, tmp_path: Path
) -> None:
    """Found by review: before a write nothing was due, and a node with an empty disk was offered nothing."""
    cluster = unstarted(tmp_path, 3)
    restored(cluster, world.directory)
    with cluster, cluster.client(timeout=20) as boom:
        wait_for(lambda: equal_states(cluster, boom))
        for node in cluster.nodes:
            cluster.kill(node)
        for node in ("n1", "n2"):
            shutil.rmtree(cluster.data_dirs[node] / "snapshots")
        shutil.rmtree(cluster.data_dirs["n3"])
        for node in reversed(cluster.nodes):  # n3 may be met alone: by itself it is of no restored cluster
            cluster.start_node(node)
        wait_for(lambda: [each["role"] for each in boom.member_list()["members"]] == ["voter"] * 3)
        wait_for(lambda: equal_states(cluster, boom))
        assert states(cluster, boom, "n3") == world.second.digests
