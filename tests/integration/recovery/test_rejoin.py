"""Journals of real nodes, damaged in many places: each node comes back under its own id, and nothing is lost."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner

from logboom import Add, Put, SyncClient
from logboom.cli import cli
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from logboom.types import KIB
from raftlog.journal.journal_codec import RECORD_HEADER, SEGMENT_HEADER

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("recovery")]
SMALL = {
    "raft.journal_segment_bytes": 16 * KIB,
    "snapshot.entries": 150,
    "raft.redo_bytes_max": 512,
    "log.segment_bytes": 1024 * KIB,
    "log.batch_bytes_max": 256 * KIB,
}
KEYS = 16


class Load:
    """Adds one after the other, by several hands, for as long as it lasts; what was acknowledged is counted."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.acknowledged = [0] * KEYS
        self.unknown = 0
        self._over = threading.Event()
        self._cluster = cluster
        self._hands = [threading.Thread(target=self._write, args=(hand,)) for hand in range(4)]

    def __enter__(self) -> Self:
        for hand in self._hands:
            hand.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for hand in self._hands:
            hand.join()

    def _write(self, hand: int) -> None:
        with self._cluster.client(timeout=30) as boom:
            for number in itertools.count():
                if self._over.is_set():
                    return
                key = hand + 4 * (number % 4)
                try:
                    boom.submit(key % 2, [Add(b"key %d" % key, 1), Put(b"last %d" % key, b"x" * 300)])
                    self.acknowledged[key] += 1
                except LogboomError:
                    self.unknown += 1
                time.sleep(0.002)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=2, settings=SMALL, directory=tmp_path) as running:
        yield running


def wait_for(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 4
    path.write_bytes(raw)


def segments(journal: Path) -> list[Path]:
    return sorted(journal.glob("*.journal"))


def rot_record(journal: Path) -> None:
    flip(segments(journal)[0], SEGMENT_HEADER.size + RECORD_HEADER.size)


def rot_header(journal: Path) -> None:
    flip(segments(journal)[0], SEGMENT_HEADER.size - 2)


def rot_base(journal: Path) -> None:
    flip(journal / "base", 70)


def lose_segment(journal: Path) -> None:
    segments(journal)[0].unlink()


def votes(boom: SyncClient, cluster: LocalCluster, node: str) -> bool:
    """It says that it follows or leads; else its role is what it is instead of a voter."""
    try:
        return boom.status(node=cluster.addresses[node], timeout=1.0)["role"] in ("leader", "follower")
    except LogboomError:
        return False


def equal(boom: SyncClient, cluster: LocalCluster) -> bool:
    try:
        states = [boom.status(node=cluster.addresses[n], digests=True) for n in cluster.nodes]
    except LogboomError:
        return False
    return all(s["recovered"] and s["digests"] == states[0]["digests"] for s in states)


def rejoined(cluster: LocalCluster, node: str) -> int:
    """How often."""
    return cluster.log(node).read_text().count('"rejoined"')


def ready(cluster: LocalCluster, node: str) -> bool:
    """Its journal begins behind a base, in several files: so there is something to damage."""
    journal = cluster.data_dirs[node] / "journal"
    return (journal / "base").exists() and len(segments(journal)) > 1


def test_every_node_in_turn_loses_its_journal_and_votes_again(cluster: LocalCluster) -> None:
    """Under load; the leader among them, and each time in another place. In the end all that was said is there."""
    damages = [rot_record, rot_header, lose_segment, rot_base]
    with Load(cluster) as load, cluster.client(timeout=30) as boom:
        turns = [*cluster.nodes, cluster.leader()]
        for node, damage in zip(turns, damages, strict=True):
            wait_for(lambda node=node: ready(cluster, node))  # type: ignore[misc]
            cluster.kill(node)
            wait_for(lambda node=node: not cluster.alive(node))  # type: ignore[misc]
            directory = cluster.data_dirs[node]
            damage(directory / "journal")
            found = json.loads(CliRunner().invoke(cli, ["verify", str(directory), "-o", "json"]).stdout)
            assert found["damaged"]
            assert any("rejoins" in each["advice"] for each in found["findings"]), found["findings"]
            before, times = sum(load.acknowledged), rejoined(cluster, node)
            cluster.start_node(node)
            wait_for(lambda node=node, times=times: rejoined(cluster, node) > times)  # type: ignore[misc]
            wait_for(lambda node=node: votes(boom, cluster, node))  # type: ignore[misc]
            wait_for(lambda before=before: sum(load.acknowledged) > before + 20)  # type: ignore[misc]
            assert not (directory / "rejoin.json").exists()
            assert (directory / "journal.damaged-1").is_dir()
    with cluster.client(timeout=30) as boom:
        wait_for(lambda: equal(boom, cluster))
        kept = [boom.get(key % 2, b"key %d" % key)[0] for key in range(KEYS)]
        assert all(a <= k for a, k in zip(load.acknowledged, kept, strict=True)), "an acknowledged write is gone"
        assert sum(kept) <= sum(load.acknowledged) + load.unknown, "something took effect twice"
        roles = [each["role"] for each in boom.member_list()["members"]]
        assert roles == ["voter"] * 3
    # What each says of itself afterwards: nothing is damaged any more.
    node = next(n for n in cluster.nodes if n != cluster.leader())
    cluster.kill(node, signal.SIGTERM)
    wait_for(lambda: not cluster.alive(node))
    found = json.loads(CliRunner().invoke(cli, ["verify", str(cluster.data_dirs[node]), "-o", "json"]).stdout)
    assert not found["damaged"], found
    assert any("set aside" in each["problem"] for each in found["findings"])


@pytest.mark.parametrize("damage", [rot_record, rot_base])
def test_a_node_that_is_alone_says_what_to_do_and_waits(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    with LocalCluster(nodes=1, partitions=1, settings=SMALL, directory=tmp_path) as cluster:
        with cluster.client() as boom:
            for _ in range(400):
                boom.submit(0, [Put(b"key", b"x" * 100)])
        wait_for(lambda: ready(cluster, "n1"))
        cluster.kill("n1")
        wait_for(lambda: not cluster.alive("n1"))
        damage(cluster.data_dirs["n1"] / "journal")
        cluster.start_node("n1")
        wait_for(lambda: "logboom restore" in cluster.log("n1").read_text())
        with cluster.client(timeout=5) as boom:
            wait_for(lambda: boom.status(node=cluster.addresses["n1"])["role"] == "rejoining")
            with pytest.raises(LogboomError):
                boom.submit(0, [Put(b"key", b"y")], timeout=1.0)
        cluster.kill("n1")
        wait_for(lambda: not cluster.alive("n1"))
        found = json.loads(CliRunner().invoke(cli, ["verify", str(cluster.data_dirs["n1"]), "-o", "json"]).stdout)
        assert not found["damaged"], found
        assert any("not taken back yet" in each["problem"] for each in found["findings"])
