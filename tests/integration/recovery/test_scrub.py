"""Scrubbing on real nodes: what rots under a running node is found within a pass, and comes back from the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from logboom import Add, Put, SyncClient
from logboom.errors import CorruptData, LogboomError
from logboom.testing import LocalCluster
from logboom.types import KIB
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process

SETTINGS = {
    "log.segment_bytes": 1024 * KIB,
    "log.batch_bytes_max": 256 * KIB,
    "raft.journal_segment_bytes": 64 * KIB,
    "apply.unsaved_ms": 100,
    "scrub.pause_ms": 200,
    "scrub.bytes_per_s": 1 << 30,
    "snapshot.log_bytes": 0,
    "snapshot.entries": 0,
    "snapshot.age_ms": 0,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=1, settings=SETTINGS, directory=tmp_path) as running:
        yield running


@pytest.fixture
def boom(cluster: LocalCluster) -> Iterator[SyncClient]:
    with cluster.client(timeout=20) as client:
        for number in range(20):
            client.submit(0, [Put(b"k%02d" % number, os.urandom(100_000)), Add(b"n", 1)])
        wait_for(lambda: equal_states(cluster, client))
        yield client


def equal_states(cluster: LocalCluster, boom: SyncClient) -> bool:
    try:
        states = [boom.status(node=cluster.addresses[n], digests=True) for n in cluster.nodes]
    except LogboomError:
        return False
    return all(s["recovered"] and s["digests"] == states[0]["digests"] for s in states)


def scrub_of(cluster: LocalCluster, boom: SyncClient, node: str) -> dict[str, Any]:
    row: dict[str, Any] = boom.status(node=cluster.addresses[node])["scrub"]
    return row


def a_follower(cluster: LocalCluster) -> str:
    return next(each for each in cluster.nodes if each != cluster.leader())


def segments(cluster: LocalCluster, node: str) -> list[Path]:
    found = (cluster.data_dirs[node] / "partitions" / "0").glob("*.log")
    return sorted(found, key=lambda path: path.name[21:29])


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def payload_of_batch(segment: Path, batch: int) -> int:
    raw, at = segment.read_bytes(), -1
    for _ in range(batch + 1):
        at = raw.index(b"LBB1", at + 1)
    return at + 5000


@pytest.mark.parametrize("segment", [0, -1], ids=["sealed", "open"])
def test_a_batch_that_rots_comes_back_from_a_peer(cluster: LocalCluster, boom: SyncClient, segment: int) -> None:
    node = a_follower(cluster)
    path = segments(cluster, node)[segment]
    flip(path, payload_of_batch(path, 0))
    wait_for(lambda: scrub_of(cluster, boom, node)["damaged"] == 1)
    wait_for(lambda: scrub_of(cluster, boom, node)["repaired"] == 1)
    found = scrub_of(cluster, boom, node)["pass"]
    wait_for(lambda: scrub_of(cluster, boom, node)["pass"] > found + 1)
    assert scrub_of(cluster, boom, node)["damaged"] == 1  # the good copy is the one that is read
    records = [list(b.records.payloads()) for b in boom.tail(0, node=cluster.addresses[node])]
    assert records == [list(b.records.payloads()) for b in boom.tail(0, node=cluster.addresses[cluster.leader()])]


def test_a_leader_mends_many_batches_in_a_row(cluster: LocalCluster, boom: SyncClient) -> None:
    node = cluster.leader()
    for path in segments(cluster, node)[:1]:
        for batch in range(path.read_bytes().count(b"LBB1")):
            flip(path, payload_of_batch(path, batch))
    wait_for(lambda: scrub_of(cluster, boom, node)["damaged"] > 3)
    wait_for(lambda: scrub_of(cluster, boom, node)["open"] == [])
    boom.submit(0, Add(b"n", 1))
    assert boom.get(0, b"n") == (21,)


def test_a_snapshot_that_rots_is_removed_and_the_next_one_is_whole(cluster: LocalCluster, boom: SyncClient) -> None:
    node = cluster.leader()
    taken = boom.create_snapshot()["global_index"]
    directory = cluster.data_dirs[node] / "snapshots"
    flip(directory / f"{taken:020d}.states", 50_000)
    wait_for(lambda: not boom.snapshots(node=cluster.addresses[node])["sets"])
    assert scrub_of(cluster, boom, node)["damaged"] == 1
    wait_for(lambda: not list(directory.iterdir()))
    boom.submit(0, Add(b"n", 1))
    again = boom.create_snapshot()["global_index"]
    assert [row["global_index"] for row in boom.snapshots(node=cluster.addresses[node])["sets"]] == [again]
    assert scrub_of(cluster, boom, node)["repaired"] == 1


def test_a_journal_that_rots_is_told_of_and_the_node_goes_on(cluster: LocalCluster, boom: SyncClient) -> None:
    node = a_follower(cluster)
    journal = cluster.data_dirs[node] / "journal"
    while len(list(journal.glob("*.journal"))) < 3:
        for _ in range(50):
            boom.submit(0, Add(b"n", 1))
    flip(min(journal.glob("*.journal")), 1000)
    wait_for(lambda: scrub_of(cluster, boom, node)["damaged"] == 1)
    (story,) = scrub_of(cluster, boom, node)["open"]
    assert "journal" in story
    boom.submit(0, Add(b"n", 1))
    wait_for(lambda: equal_states(cluster, boom))


def compact(cluster: LocalCluster, boom: SyncClient) -> None:
    """Every node has two sets, and its journal begins at the older one."""
    for _ in range(2):
        taken = boom.create_snapshot()["global_index"]
        for node in cluster.nodes:
            address = cluster.addresses[node]
            wait_for(lambda: newest(boom, address) == taken)  # noqa: B023
        boom.submit(0, Add(b"n", 1))
    wait_for(lambda: all(boom.snapshots(node=cluster.addresses[n])["base"] > 1 for n in cluster.nodes))


def newest(boom: SyncClient, address: str) -> int:
    sets = boom.snapshots(node=address)["sets"]
    return int(sets[-1]["global_index"]) if sets else 0


def state_file(cluster: LocalCluster, node: str) -> Path:
    return cluster.data_dirs[node] / "partitions" / "0" / "state" / "data.mdb"


def rot_value(path: Path, value: bytes) -> None:
    """In each copy that the file has of it: which one counts only LMDB knows."""
    raw, at = path.read_bytes(), -1
    found = 0
    while (at := raw.find(value, at + 1)) >= 0:
        flip(path, at + 10)
        found += 1
    assert found, "not saved yet"


@pytest.mark.parametrize("read", [False, True], ids=["scrub finds it", "a reader may"])
def test_a_value_that_rots_is_never_read_and_the_state_is_made_anew(
    cluster: LocalCluster, boom: SyncClient, read: bool
) -> None:
    node = a_follower(cluster)
    value = os.urandom(3000)
    boom.submit(0, Put(b"rots", value))
    address = cluster.addresses[node]
    wait_for(lambda: value in state_file(cluster, node).read_bytes())
    before = boom.watermarks(node=address)[0]
    rot_value(state_file(cluster, node), value)
    seen: list[object] = []

    def repaired() -> bool:
        mark = boom.watermarks(node=address)[0]
        assert (mark.applied_index, mark.applied_global_index) >= (before.applied_index, before.applied_global_index)
        if read:
            with suppress(LogboomError):
                seen.append(boom.get(0, b"rots", stale=True, node=address))
        elif scrub_of(cluster, boom, node)["repaired"] != 1:
            return False
        return "state_repaired" in cluster.log(node).read_text() and mark.state == "running"

    wait_for(repaired)
    assert set(seen) <= {value}
    assert boom.get(0, b"rots", stale=True, node=address) == value
    boom.submit(0, Add(b"n", 1))
    wait_for(lambda: equal_states(cluster, boom))
    assert len(list(state_file(cluster, node).parent.parent.glob("state.damaged-*"))) == 1


@pytest.mark.parametrize("compacted", [False, True], ids=["log", "snapshot"])
def test_a_truncated_state_is_made_anew_at_start(cluster: LocalCluster, boom: SyncClient, compacted: bool) -> None:
    node = a_follower(cluster)
    if compacted:
        compact(cluster, boom)
    cluster.kill(node)
    os.truncate(state_file(cluster, node), 3 * 4096)
    cluster.start_node(node)
    wait_for(lambda: equal_states(cluster, boom))
    assert "state_set_aside" in cluster.log(node).read_text()


def test_a_state_that_nothing_here_restores_comes_from_a_peer(tmp_path: Path) -> None:
    settings = {**SETTINGS, "snapshot.retain_bytes": 0, "log.segment_bytes": 512 * KIB}
    with (
        LocalCluster(nodes=3, partitions=2, settings=settings, directory=tmp_path) as cluster,
        cluster.client(timeout=20) as boom,
    ):
        for partition in (0, 1):
            for number in range(20):
                boom.submit(partition, [Put(b"k%02d" % number, os.urandom(100_000)), Add(b"n", 1)])
        node = a_follower(cluster)
        compact(cluster, boom)
        wait_for(lambda: not segments(cluster, node)[0].name.startswith("0" * 19 + "1-"))
        cluster.kill(node)
        os.truncate(state_file(cluster, node), 3 * 4096)
        for path in (cluster.data_dirs[node] / "snapshots").glob("*.states"):
            flip(path, path.stat().st_size // 4)
        cluster.start_node(node)
        wait_for(lambda: equal_states(cluster, boom))
        assert "starting_anew" in cluster.log(node).read_text()


@pytest.fixture
def unscrubbed(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=1, settings={**SETTINGS, "scrub.pause_ms": 0}, directory=tmp_path) as running:
        yield running


def filled(cluster: LocalCluster, boom: SyncClient) -> None:
    for _ in range(20):
        boom.submit(0, Put(b"k", os.urandom(100_000)))
    wait_for(lambda: equal_states(cluster, boom))


def test_a_stream_goes_on_with_the_copy_of_another_node(unscrubbed: LocalCluster) -> None:
    node = a_follower(unscrubbed)
    with unscrubbed.client(timeout=20) as boom:
        filled(unscrubbed, boom)
        whole = [list(b.records.payloads()) for b in boom.tail(0, node=unscrubbed.addresses[unscrubbed.leader()])]
        for path in segments(unscrubbed, node):
            flip(path, payload_of_batch(path, 1))
        assert whole == [list(b.records.payloads()) for b in boom.tail(0, node=unscrubbed.addresses[node])]


def test_a_stream_of_what_nobody_has_ends_with_corrupt_data(unscrubbed: LocalCluster) -> None:
    with unscrubbed.client(timeout=20) as boom:
        filled(unscrubbed, boom)
        for node in unscrubbed.nodes:
            path = segments(unscrubbed, node)[0]
            flip(path, payload_of_batch(path, 3))
        stream = boom.tail(0, node=unscrubbed.addresses[a_follower(unscrubbed)])
        assert len(list(islice(stream, 3))) == 3
        with pytest.raises(CorruptData):
            next(iter(stream))

        def is_told() -> bool:
            lost = [boom.status(node=unscrubbed.addresses[n])["lost"] for n in unscrubbed.nodes]
            return any(rows and rows[0][2] in ("damaged", "applied") for rows in lost)

        wait_for(is_told)  # the stream has asked all nodes; they ask each other meanwhile
