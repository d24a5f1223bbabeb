"""What docs/architecture.md and docs/disk-format.md promise about damaged and removed files of one node."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from logboom import Add, Put
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from logboom.types import KIB
from raftlog.journal.journal_codec import SEGMENT_HEADER
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process
SEGMENT = 1024 * KIB
"""Small: a few writes fill one, so that there are sealed ones and a last one."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    small = {"log.segment_bytes": SEGMENT, "log.batch_bytes_max": 256 * KIB}
    with LocalCluster(nodes=3, partitions=1, settings=small) as running:
        with running.client() as boom:
            for number in range(20):
                boom.submit(0, [Put(b"k%d" % number, os.urandom(100_000)), Add(b"n", 1)])
        yield running


@pytest.fixture
def stopped(cluster: LocalCluster) -> str:
    """A follower that has applied everything and ended cleanly."""
    node = next(each for each in cluster.nodes if each != cluster.leader())
    assert_equal(cluster)
    cluster.kill(node, signal.SIGTERM)
    wait_for(lambda: not cluster.alive(node))
    return node


def assert_equal(cluster: LocalCluster) -> None:
    """All nodes come to the same state."""
    with cluster.client(timeout=5) as boom:

        def equal() -> bool:
            try:
                states = [boom.status(node=cluster.addresses[n], digests=True) for n in cluster.nodes]
            except LogboomError:
                return False
            return all(s["recovered"] and s["digests"] == states[0]["digests"] for s in states)

        wait_for(equal)


def segments(cluster: LocalCluster, node: str) -> list[Path]:
    """In the order in which they were made."""
    return sorted((cluster.data_dirs[node] / "partitions" / "0").glob("*.log"), key=lambda path: path.name[21:29])


def damage(file: Path, *, batch: int) -> None:
    """Flip a bit in the payload of the ``batch``-th batch of a segment."""
    raw, at = bytearray(file.read_bytes()), -1
    for _ in range(batch + 1):
        at = raw.index(b"LBB1", at + 1)
    raw[at + 5000] ^= 1
    file.write_bytes(raw)


def test_a_removed_state_is_rebuilt_from_the_log(cluster: LocalCluster, stopped: str) -> None:
    shutil.rmtree(cluster.data_dirs[stopped] / "partitions" / "0" / "state")
    cluster.start_node(stopped)
    assert_equal(cluster)


def test_damage_before_synced_batches_is_fetched_from_a_peer(cluster: LocalCluster, stopped: str) -> None:
    last = segments(cluster, stopped)[-1]
    damage(last, batch=0)
    before = cluster.log(stopped).read_text().count("payload_repaired")
    cluster.start_node(stopped)
    assert_equal(cluster)
    assert cluster.log(stopped).read_text().count("payload_repaired") == before + 1


def test_a_segment_whose_index_is_removed_is_scanned_and_repaired(cluster: LocalCluster, stopped: str) -> None:
    sealed = segments(cluster, stopped)[0]
    damage(sealed, batch=2)
    sealed.with_suffix(".idx").unlink()
    before = cluster.log(stopped).read_text().count("payload_repaired")
    cluster.start_node(stopped)
    assert_equal(cluster)
    assert cluster.log(stopped).read_text().count("payload_repaired") == before + 1
    assert sealed.with_suffix(".idx").exists()


def test_a_journal_of_another_format_refuses_to_start_and_changes_nothing(cluster: LocalCluster, stopped: str) -> None:
    journal = min((cluster.data_dirs[stopped] / "journal").glob("*.journal"))
    good = journal.read_bytes()
    bad = bytearray(good)
    bad[6] ^= 64  # its version, and a checksum that says that it was meant
    end = SEGMENT_HEADER.size - 4
    bad[end : end + 4] = google_crc32c.value(bytes(bad[:end])).to_bytes(4, "little")
    journal.write_bytes(bad)
    cluster.start_node(stopped)
    wait_for(lambda: not cluster.alive(stopped))
    assert "incompatible_version" in cluster.log(stopped).read_text().splitlines()[-1]
    assert journal.read_bytes() == bad
    journal.write_bytes(good)
    cluster.start_node(stopped)
    assert_equal(cluster)
