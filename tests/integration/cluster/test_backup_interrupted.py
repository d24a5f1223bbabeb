"""Backups that are cut off, and nodes that die while they are copied from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from logboom import SyncClient
from logboom.testing import LocalCluster
from logboom.types import MIB
from server.offline import backup as module
from server.offline.backup import backup
from server.offline.verify import verify
from tests.integration.cluster.test_snapshots import SMALL, fill, wait_for

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("backup")]


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
