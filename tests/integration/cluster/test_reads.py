"""Reading the log on real nodes: positions, filters, data by descriptor, global order, cursors."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from logboom import Add, Put, Record, SyncClient
from logboom.cli import cli
from logboom.client.log_batches import LogBatch
from logboom.errors import IndexCompacted
from logboom.testing import LocalCluster
from logboom.types import KIB

pytestmark = pytest.mark.process

PARTITIONS, LOGS, KV = 4, (0, 1, 2), 3
WRITTEN = 220
"""Batches, before any test."""


def rows_of(number: int) -> list[Record]:
    """Of one batch of logs."""
    kind = (("kind", b"odd" if number % 2 else b"even"),)
    return [Record(b"%d-%d" % (number, k) * 40, b"k%d/%d" % (k % 3, number), kind) for k in range(5)]


def written(partition: int) -> list[Record]:
    """Before any test."""
    return [row for number in range(partition, 200, 3) for row in rows_of(number)]


SETTINGS = {
    "cluster.overrides": {
        str(p): {"state_machine": "log", "mode": "write_behind" if p == 2 else "write_ahead"} for p in LOGS
    },
    "log.segment_bytes": 96 * KIB,
    "log.batch_bytes_max": 32 * KIB,
    "log.open_files_max": 1,
    "reads.window_bytes": 16 * KIB,
    "reads.memory_bytes": 128 * KIB,
    "reads.segments_max": 4,
    "reads.window_segments_max": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    where = tmp_path_factory.mktemp("reads")
    with LocalCluster(nodes=3, partitions=PARTITIONS, settings=SETTINGS, directory=where) as running:
        with SyncClient(running.endpoints) as boom:
            for number in range(200):
                boom.submit(number % 3, rows_of(number), wait="committed")
                if number % 10 == 0:
                    boom.submit(KV, Put(b"n", b"%d" % number), wait="committed")
            boom.barrier(boom.last_seen, scope="all")
        yield running


@pytest.fixture
def boom(cluster: LocalCluster) -> Iterator[SyncClient]:
    with SyncClient(cluster.endpoints) as client:
        yield client


def whole(batches: Iterable[LogBatch]) -> list[LogBatch]:
    """Of what was written before any test: others may have gone before this one."""
    return [batch for batch in batches if batch.global_index <= WRITTEN]


def test_the_log_of_all_partitions_in_one_order_at_every_node(cluster: LocalCluster, boom: SyncClient) -> None:
    seen = []
    for node in cluster.nodes:
        batches = whole(boom.scan_log(node=cluster.addresses[node], cold=True))
        assert [b.global_index for b in batches] == list(range(1, len(batches) + 1))
        seen.append([(b.partition_id, b.first_index, b.records.payloads()) for b in batches])
    assert len(seen[0]) == WRITTEN
    assert seen[0] == seen[1] == seen[2]
    for partition in LOGS:
        payloads = [payload for where, _, found in seen[0] if where == partition for payload in found]
        assert payloads == [row.payload for row in written(partition)]
    assert [b.global_index for b in whole(boom.scan_log(LOGS, start_global=100))] == [
        g for g, row in enumerate(seen[0], 1) if g >= 100 and row[0] != KV
    ]
    assert [b.global_index for b in whole(boom.scan_log(level="applied"))] == list(range(1, WRITTEN + 1))


def test_positions_and_filters(boom: SyncClient) -> None:
    batches = list(boom.tail(0))
    tenth = batches[10]
    assert next(iter(boom.tail(0, start_global=tenth.global_index))).first_index == tenth.first_index
    late = next(iter(boom.tail(0, start_time=tenth.timestamp_ms)))
    assert batches[9].timestamp_ms <= late.timestamp_ms == tenth.timestamp_ms
    assert late.first_index <= tenth.first_index
    found = [r for b in boom.tail(0, key_prefix=b"k1/", header=("kind", b"odd")) for r in b.records.records()]
    every = [r for b in batches for r in b.records.records()]
    assert every[: len(written(0))] == written(0)
    assert found == [r for r in every if (r.key or b"").startswith(b"k1/") and r.headers == (("kind", b"odd"),)]
    assert 0 < len(found) < len(every)
    pieces = list(boom.tail(0, start=3, batch_records=2))
    assert {p.records.count for p in pieces} == {1, 2}
    assert [r for p in pieces for r in p.records.records()] == every[2:]


def test_data_by_descriptor_from_any_node(cluster: LocalCluster, boom: SyncClient) -> None:
    every = {p: [r.payload for b in boom.tail(p) for r in b.records.records()] for p in LOGS}
    wanted = [d for p in LOGS for row in boom.tail_metadata(p, key_prefix=b"k2/") for d in row.descriptors()]
    wanted.reverse()
    mine = {p: [row.payload for row in written(p)] for p in LOGS}
    assert all(every[p][: len(mine[p])] == mine[p] for p in LOGS)
    assert len(wanted) == 200, "one of each batch"
    for node in cluster.nodes:
        found = boom.fetch(wanted, node=cluster.addresses[node])
        assert found == [every[d.partition_id][d.index - 1] for d in wanted]
        parts = boom.fetch(wanted, lambda d: [(0, 2), (d.size - 1, 1)], node=cluster.addresses[node])
        assert parts == [raw[:2] + raw[-1:] for raw in found]


def test_a_follower_of_all_sees_what_comes(boom: SyncClient, cluster: LocalCluster) -> None:
    start = boom.last_seen or boom.status()["commit_index"]
    seen: list[bytes] = []

    def follow() -> None:
        with SyncClient(cluster.endpoints) as other:
            for batch in other.scan_log(LOGS, follow=True, start_global=start + 1):
                seen.extend(batch.records.payloads())
                if seen[-1] == b"the end":
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(30):
        boom.submit(number % 3, Record(b"%d" % number))
    boom.submit(0, Record(b"the end"))
    thread.join(30)
    assert not thread.is_alive()
    assert seen == [*(b"%d" % n for n in range(30)), b"the end"]


def test_cursors_survive_and_show_their_lag(cluster: LocalCluster, boom: SyncClient) -> None:
    before = boom.partitions()
    for batch in boom.tail(1, node=cluster.addresses[cluster.leader()]):
        boom.commit_cursor("reader", 1, batch.position)
    end = boom.cursor("reader", 1).position()
    assert end == boom.watermarks([1], node=cluster.addresses[cluster.leader()])[0].log_index + 1
    boom.submit(1, [Record(b"more")] * 3)
    assert [(row.name, row.lag) for row in boom.cursors()] == [("reader", 3)]
    assert boom.partitions() == before
    leader = cluster.leader()
    cluster.kill(leader)
    with SyncClient(cluster.endpoints) as other:
        assert other.cursor("reader", 1).position() == end
        assert other.commit_cursor("reader", 1, 2) == end
        assert next(iter(other.tail(1, start=end, follow=True))).records.payloads() == [b"more"] * 3
    cluster.restart(leader)
    cluster.wait_serving()
    said = json.loads(CliRunner().invoke(cli, ["status", "-o", "json", "--endpoints", cluster.endpoints]).stdout)
    assert said["cursors"] == [{"cursor": "reader", "partition": 1, "position": end, "lag": 3}]


def test_the_partition_of_cursors_is_named_and_not_destroyed_for_another(
    cluster: LocalCluster, boom: SyncClient
) -> None:
    boom.commit_cursor("billing", 0, 3)
    listed = json.loads(
        CliRunner().invoke(cli, ["partitions", "list", "-o", "json", "--endpoints", cluster.endpoints]).stdout
    )
    (where,) = {row["partition"] for row in listed if row["state_machine"] == "cursors"}
    assert where not in boom.partitions()
    assert boom.cursors_partition() == where
    asked = CliRunner().invoke(cli, ["partitions", "destroy", str(where), "--yes", "--endpoints", cluster.endpoints])
    assert "cursors delete" in str(asked.exception)
    assert boom.cursor("billing", 0).position() == 3
    boom.delete_cursor("billing", 0)


@pytest.mark.parametrize("retain", ["snapshot.retain_log_bytes", "snapshot.retain_log_ms"])
def test_what_was_removed_is_said_or_passed_over(tmp_path: Path, retain: str) -> None:
    settings = {
        "cluster.state_machine": "log",
        "log.segment_bytes": 96 * KIB,
        "log.batch_bytes_max": 32 * KIB,
        retain: 1,
        "snapshot.entries": 0,
        "snapshot.age_ms": 0,
        "raft.journal_segment_bytes": 64 * KIB,
    }
    with (
        LocalCluster(nodes=1, partitions=2, settings=settings, directory=tmp_path) as one,
        SyncClient(one.endpoints) as boom,
    ):
        for _ in range(4):
            for number in range(12):
                boom.submit(number % 2, Record(b"x" * 20_000))
            boom.create_snapshot()
        deadline = threading.Event()
        for _ in range(200):
            first = next(iter(boom.tail(0))).first_index
            if first > 1:
                break
            deadline.wait(0.05)
        assert first > 1
        for how in ({"start": 1}, {"start_global": 1}):
            with pytest.raises(IndexCompacted) as caught:
                list(boom.tail(0, **how))  # type: ignore[arg-type]
            assert caught.value.first >= first
            assert next(iter(boom.tail(0, **how, on_compacted="first"))).first_index >= first  # type: ignore[arg-type]
        with pytest.raises(IndexCompacted) as caught:
            list(boom.scan_log(start_global=1))
        from_there = [b.global_index for b in boom.scan_log(start_global=1, on_compacted="first")]
        assert from_there == list(range(from_there[0], 49))
        assert from_there[0] >= caught.value.first  # more may have gone meanwhile


def test_a_view_of_all_partitions_is_of_one_moment(tmp_path: Path) -> None:
    """Writers move one unit between partitions, each time in one request: whenever one looks, nothing is missing."""
    with LocalCluster(nodes=3, partitions=3, directory=tmp_path) as local, SyncClient(local.endpoints) as boom:
        boom.submit_many({p: [Add(b"money", 100)] for p in range(3)})
        stop = threading.Event()

        def move(seed: int) -> None:
            rng = random.Random(seed)
            with SyncClient(local.endpoints) as mine:
                while not stop.is_set():
                    one, other = rng.sample(range(3), 2)
                    mine.submit_many({one: [Add(b"money", -1)], other: [Add(b"money", 1)]}, wait="committed")

        threads = [threading.Thread(target=move, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        try:
            seen = set()
            for number in range(30):
                at_least = boom.last_seen if number % 2 else None
                entries = list(boom.scan_view(prefix=b"mon", at_least=at_least))
                assert [entry.partition_id for entry in entries] == [0, 1, 2]
                assert len({entry.global_index for entry in entries}) == 1
                seen.add(tuple(entry.value for entry in entries))
                assert sum(entry.value[0] for entry in entries) == 300  # type: ignore[misc]
            assert len(seen) > 3
        finally:
            stop.set()
            for thread in threads:
                thread.join()
