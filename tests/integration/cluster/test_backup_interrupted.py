"""Backups that are cut off, and nodes that die while they are copied from."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import randbytes

import pytest

from logboom import Put, SyncClient
from logboom.config import load
from logboom.errors import IndexCompacted, InvalidRequest, WrongNode
from logboom.testing import LocalCluster
from logboom.types import MIB
from partitions.log.batch import parse_batch
from server.offline import backup_source as module
from server.offline.backup import backup
from server.offline.restore import restore
from server.offline.verify import verify
from tests.integration.cluster.snapshots_world import KV, LOG, SMALL, compact, equal_states, fill, segments
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


class Cut(Exception):
    pass


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=2, settings=SMALL, directory=tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def boom(cluster: LocalCluster) -> Iterator[SyncClient]:
    with cluster.client(timeout=20) as client:
        fill(client, batches=20)
        yield client


def cut_off(boom: SyncClient, directory: Path, *, at: str) -> None:
    def progress(what: str, done: int, total: int) -> None:
        if what.startswith(at):
            raise Cut

    with pytest.raises(Cut):
        backup(boom, directory, progress=progress)
    assert json.loads((directory / "backup.json").read_text())["sets"] == []


def test_states_are_gone_on_with(boom: SyncClient, tmp_path: Path) -> None:
    cut_off(boom, tmp_path / "kept", at="states")
    fill(boom, batches=1)  # a new snapshot would be another one
    done = backup(boom, tmp_path / "kept", resume=True)
    states = next((tmp_path / "kept").glob("*.states")).stat().st_size
    assert 0 < done.bytes < states
    assert done.bytes < states - MIB // 2
    assert not verify(tmp_path / "kept").findings


def test_without_being_told_to_go_on_it_begins_with_what_is_committed_now(boom: SyncClient, tmp_path: Path) -> None:
    cut_off(boom, tmp_path / "kept", at="states")
    last = fill(boom, batches=1)
    assert backup(boom, tmp_path / "kept").global_index >= last
    assert not verify(tmp_path / "kept").findings
    assert not list((tmp_path / "kept").glob("*.fetch"))


def test_a_set_whose_logs_are_missing_is_gone_on_with(boom: SyncClient, tmp_path: Path) -> None:
    cut_off(boom, tmp_path / "kept", at="log")
    done = backup(boom, tmp_path / "kept", resume=True)
    assert (done.bytes, done.batches) == (0, 20)
    assert not verify(tmp_path / "kept").findings


def test_what_a_node_does_not_have_is_refused(cluster: LocalCluster, boom: SyncClient) -> None:
    leader = cluster.addresses[cluster.leader()]
    taken = boom.create_snapshot()
    total, raw = boom.read_snapshot(taken["global_index"], "states", 100, node=leader)
    assert (total, len(raw)) == (taken["bytes"], min(MIB, taken["bytes"] - 100))
    assert boom.read_snapshot(taken["global_index"], "states", total, node=leader) == (total, b"")
    with pytest.raises(IndexCompacted):
        boom.read_snapshot(taken["global_index"] + 1, "meta", 0, node=leader)
    with pytest.raises(InvalidRequest):
        boom.read_snapshot(taken["global_index"], "../manifest.json", 0, node=leader)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        boom.read_log(taken["global_index"], 77, after=0, through=5, node=leader)
    piece = boom.read_log(taken["global_index"], LOG, after=3, through=5, node=leader)
    assert [parse_batch(raw).header.first_index for _, raw in piece.batches] == [4, 5]
    assert boom.read_log(taken["global_index"], LOG, after=1 << 40, through=1 << 41, node=leader).batches == []


@pytest.mark.parametrize("at", ["states", "log"])
def test_a_restore_that_was_interrupted_is_no_node(boom: SyncClient, tmp_path: Path, at: str) -> None:
    backup(boom, tmp_path / "kept")
    again = LocalCluster(nodes=1, partitions=2, settings=SMALL, directory=tmp_path / "again")
    settings = load(again.config("n1"), environment={})

    def progress(what: str, done: int, total: int) -> None:
        if what.startswith(at):
            raise Cut

    with pytest.raises(Cut):
        restore(tmp_path / "kept", settings, progress=progress)
    again.start_node("n1")
    assert again.wait_ended("n1") == 2
    assert "wrong_node" in again.log("n1").read_text()
    with pytest.raises(WrongNode):
        restore(tmp_path / "kept", settings)
    shutil.rmtree(again.data_dirs["n1"])
    restore(tmp_path / "kept", settings)
    with again, again.client(timeout=20) as client:
        assert client.get(KV, b"n") == (20,)


@pytest.mark.parametrize("pattern", ["*.set", "*.states"])
def test_a_restored_set_that_is_damaged_since_makes_no_empty_node(
    boom: SyncClient, tmp_path: Path, pattern: str
) -> None:
    """Found by review: it began with nothing, served that, and forgot what it was to be made from."""
    backup(boom, tmp_path / "kept")
    again = LocalCluster(nodes=1, partitions=2, settings=SMALL, directory=tmp_path / "again")
    restore(tmp_path / "kept", load(again.config("n1"), environment={}))
    path = next((again.data_dirs["n1"] / "snapshots").glob(pattern))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    for _ in range(2):
        again.start_node("n1")
        assert again.wait_ended("n1") == 4
    assert "restore it again" in again.log("n1").read_text()
    path.write_bytes(whole)
    with again, again.client(timeout=20) as client:
        assert client.get(KV, b"n") == (20,)


def test_history_that_was_removed_is_left_out(tmp_path: Path) -> None:
    short = {**SMALL, "snapshot.retain_log_bytes": 1}
    with (
        LocalCluster(nodes=1, partitions=2, settings=short, directory=tmp_path / "cluster") as cluster,
        cluster.client(timeout=20) as boom,
    ):
        fill(boom, batches=12)
        compact(cluster, boom)
        wait_for(lambda: not segments(cluster, "n1", LOG)[0].startswith("0" * 19 + "1-"))
        fill(boom, batches=2)
        backup(boom, tmp_path / "kept")
        kept = [(batch.first_index, batch.records.payloads()) for batch in boom.tail(LOG)]
        digests = boom.status(digests=True)["digests"]
    assert kept[0][0] > 1
    again = LocalCluster(nodes=1, partitions=2, settings=short, directory=tmp_path / "again")
    restore(tmp_path / "kept", load(again.config("n1"), environment={}))
    assert not verify(again.data_dirs["n1"]).findings
    with again, again.client(timeout=20) as boom:
        wait_for(lambda: boom.status()["recovered"])
        assert [(batch.first_index, batch.records.payloads()) for batch in boom.tail(LOG)] == kept
        assert [row[2] for row in boom.status(digests=True)["digests"]] == [row[2] for row in digests]
        fill(boom, batches=1)
        again.restart("n1")
        wait_for(lambda: equal_states(again, boom))
        assert len(list(boom.tail(LOG))) == len(kept) + 1


def test_another_node_is_asked_when_one_dies(
    cluster: LocalCluster, boom: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_S", 1.0)
    leader = cluster.leader()
    asked = min(node for node in cluster.nodes if node != leader)
    taken = boom.create_snapshot()["global_index"]
    wait_for(lambda: all(boom.snapshots(node=cluster.addresses[node])["sets"] for node in cluster.nodes))

    def progress(what: str, done: int, total: int) -> None:
        if cluster.alive(asked):
            cluster.kill(asked)

    done = backup(boom, tmp_path / "kept", progress=progress)
    assert done.global_index == taken  # nothing was committed since
    assert done.node != asked
    assert not verify(tmp_path / "kept").findings


def test_a_snapshot_may_take_longer_than_what_should_be_answered_soon(tmp_path: Path) -> None:
    """Two gigabytes of states take half a minute to write; with writes meanwhile the next try waits for another set."""
    slow = {"snapshot.bytes_per_s": 200_000}
    with LocalCluster(nodes=1, partitions=1, settings=slow) as cluster, cluster.client() as boom:
        for k in range(8):
            boom.submit(0, [Put(b"%d %d" % (k, at), randbytes(1000)) for at in range(100)])
        command = [sys.executable, "-m", "logboom", "backup", str(tmp_path / "kept"), "--endpoints", cluster.endpoints]
        done = subprocess.run([*command, "--timeout", "1s"], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        late = [*command, "--snapshot-timeout", "100ms"]
        boom.submit(0, Put(b"k", b"v"))
        done = subprocess.run(late, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 3
        assert "snapshot" in done.stderr or "deadline" in done.stderr
