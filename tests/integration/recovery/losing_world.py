"""Nodes that lose what they have, beside a load: what was acknowledged, who votes, who is equal to whom."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any, Self

import pytest

from logboom import Add, Put, SyncClient
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from logboom.types import KIB
from tests.integration.waiting import wait_for

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
        self.unknown = [0] * KEYS
        """Nobody was told whether they took effect."""
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
                except LogboomError as error:
                    self.unknown[key] += error.outcome != "not_applied"
                time.sleep(0.002)

    def check(self, boom: SyncClient) -> None:
        """Each that was acknowledged took effect once, and each of the others at most once."""
        kept = [boom.get(key % 2, b"key %d" % key)[0] for key in range(KEYS)]
        assert all(a <= k for a, k in zip(self.acknowledged, kept, strict=True)), "an acknowledged write is gone"
        most = [a + u for a, u in zip(self.acknowledged, self.unknown, strict=True)]
        assert all(k <= m for k, m in zip(kept, most, strict=True)), f"took effect twice: {kept}, at most {most}"


def segments(journal: Path) -> list[Path]:
    return sorted(journal.glob("*.journal"))


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


def said(cluster: LocalCluster, node: str, event: str) -> list[dict[str, Any]]:
    lines = cluster.log(node).read_text().splitlines()
    return [row for row in map(json.loads, lines) if row.get("event") == event]


def stop(cluster: LocalCluster, node: str) -> Path:
    """Its data directory."""
    cluster.kill(node)
    wait_for(lambda: not cluster.alive(node))
    return cluster.data_dirs[node]


def it_is_kept(cluster: LocalCluster) -> None:
    """n2, which has forgotten it, and n3 are a majority that knows nothing of it; n1 comes back."""
    cluster.start_node("n2")
    cluster.start_node("n3")
    with cluster.client(timeout=30) as boom:
        wait_for(lambda: boom.status(node=cluster.addresses["n2"])["role"] == "rejoining")
        with pytest.raises(LogboomError):
            boom.get(0, b"key", timeout=2.0)
        cluster.start_node("n1")
        assert boom.get(0, b"key") == b"acknowledged"
        wait_for(lambda: votes(boom, cluster, "n2") and equal(boom, cluster))
