"""Metrics: all of them there, by their right names, read back by Prometheus' own parsers, and moving."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from logboom import Put
from logboom.errors import BarrierTimeout, LogboomError, Overloaded
from server.metrics.__main__ import render as page
from server.metrics.catalogue import CHAPTERS, METRICS, PER_PARTITION, PREFIX
from server.metrics.sample import take
from tests.unit.server.watched import PARTITIONS, Watched, watched

ROOT = Path(__file__).resolve().parents[3]
SPECIFIED = (
    "partition_enqueued_ops",
    "partition_enqueued_bytes",
    "partition_backlog_age_ms",
    "partition_durable_index",
    "partition_applied_index",
    "partition_applied_global",
    "partition_log_index",
    "partition_snapshot_index",
    "global_commit_index",
    "global_durable_index",
    "global_applied_index",
)
ONLY_ONCE_THERE = {
    # Nothing to tell without a peer, an error, certificates, a snapshot, or somebody who asks.
    "link_up", "link_queued_bytes", "link_connects_total", "follower_lag_entries", "follower_feed",
    "request_errors_total", "http_requests_total", "certificate_ends_seconds",
    "snapshot_age_seconds", "admission_withheld", "admission_pace_bytes_per_second",
}  # fmt: skip

Values = dict[str, dict[tuple[tuple[str, str], ...], float]]


def values(families: Iterator[Family]) -> Values:
    found: Values = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


async def scrape(it: Watched) -> Values:
    response = await it.get("/metrics")
    assert response.status == 200
    return values(prometheus(response.body.decode()))


def one(found: Values, name: str, **labels: str) -> float:
    return found[PREFIX + name][tuple(sorted(labels.items()))]


# -- the catalogue


def test_the_page_about_them_is_current() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == page(), "python -m server.metrics > docs/metrics.md"


def test_every_name_of_the_specification_is_there() -> None:
    assert set(SPECIFIED) <= set(METRICS)


def test_names_are_unique_and_say_type_and_unit() -> None:
    every = [metric for chapter in CHAPTERS for metric in chapter.metrics]
    assert len({metric.name for metric in every}) == len(every)
    for metric in every:
        assert re.fullmatch(r"[a-z][a-z_]*", metric.name)
        assert (metric.type == "counter") == metric.name.endswith("_total"), metric.name
        assert metric.type != "histogram" or metric.name.endswith(("_seconds", "_bytes", "_records")), metric.name
        assert metric.help
        assert metric.help[0].isupper() or metric.help[0].isdigit() or metric.help.split()[0] in metric.help
        assert not metric.help.endswith(".")


@pytest.mark.parametrize("page_name", ["operating.md", "metrics.md", "decisions/0021-observability.md"])
def test_pages_name_only_metrics_that_exist(page_name: str) -> None:
    text = (ROOT / "docs" / page_name).read_text()
    named = set(re.findall(rf"\b{PREFIX}([a-z_]+[a-z])", text))
    assert named, "it names none: has the prefix changed?"
    ends = ("_bucket", "_sum", "_count")
    histograms = {f"{m.name}{end}" for m in METRICS.values() if m.type == "histogram" for end in ends}
    assert named <= {*METRICS, *histograms}


def test_what_to_watch_asks_for_labels_that_are_there() -> None:
    text = (ROOT / "docs/operating.md").read_text()
    rows = [row for row in text.split("### Five to watch")[1].split("###")[0].splitlines() if row.startswith("| ")]
    queries = [re.findall(r"`([^`]+)`", row) for row in rows[2:]]
    assert len(queries) == 5
    for query in (each for row in queries for each in row):
        named = re.findall(PREFIX + r'([a-z_]+[a-z])(?:\{([a-z]+)[=!~]+"[^"]+"\})?', query)
        assert query.count("{") == sum(bool(label) for _, label in named), query
        assert named, query
        for name, label in named:
            metric = METRICS[re.sub("_(bucket|sum|count)$", "", name)]
            assert label in ("", *metric.labels), query
            assert ("_bucket" in name) == (metric.type == "histogram"), query
            assert metric.type != "counter" or f"rate({PREFIX}{name}" in query, query


# -- a node's


async def test_every_metric_is_exposed_and_parses(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        await it.boom.submit(0, Put(b"k", b"v"))
        with pytest.raises(LogboomError):
            await it.boom.get(99, b"k")
        await it.get("/healthz")
        families = {family.name: family for family in prometheus((await it.get("/metrics")).body.decode())}
        accept = "application/openmetrics-text; version=1.0.0"
        response = await it.get("/metrics", accept=accept)
        assert response.content_type.startswith("application/openmetrics-text")
        others = {family.name: family for family in openmetrics(response.body.decode())}
    for metric in METRICS.values():
        name = PREFIX + metric.name.removesuffix("_total")
        assert name in families, metric.name
        assert name in others, metric.name
        assert families[name].type == others[name].type == metric.type
        assert families[name].documentation == metric.help
        for sample in families[name].samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), metric.name
        assert families[name].samples or metric.name in ONLY_ONCE_THERE, metric.name
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= set(families)


@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
async def test_whatever_version_is_asked_for_there_is_an_answer(tmp_path: Path, kind: str) -> None:
    """Found by review: one that is no number was a 500, and a stack in the log."""
    async with watched(tmp_path) as it:
        for version in ("abc", "1.x", "", "0.0.4", "9" * 5000):
            response = await it.get("/metrics", accept=f"{kind}; version={version}")
            assert response.status == 200
            assert b"logboom_build_info" in response.body


async def test_the_disk_and_what_is_withheld_for_it(tmp_path: Path) -> None:
    """Whoever looks after many nodes wants to know before they refuse, and which of them does."""
    async with watched(tmp_path, admission__disk_free_bytes_min=1 << 60) as it:
        async with asyncio.timeout(20):
            while not it.node.pipeline.signals.looks:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
        found = await scrape(it)
    assert 0 < one(found, "disk_free_bytes") < 1 << 60
    assert one(found, "admission_withheld", signal="disk_free") == 1


async def test_traffic_moves_them(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        before = await scrape(it)
        for number in range(10):
            await it.boom.submit(1, Put(b"k%d" % number, b"v" * 100))
        await it.boom.barrier(10)
        with pytest.raises(BarrierTimeout):
            await it.boom.barrier(11, timeout=0.1)
        after = await scrape(it)

    def moved(name: str, **labels: str) -> float:
        return one(after, name, **labels) - one(before, name, **labels)

    for name in ("log_index", "durable_index", "applied_index", "applied_global"):
        assert moved(f"partition_{name}", partition="1") == 10, name
    assert moved("partition_applied_global", partition="0") == 10  # idle, it follows
    assert moved("partition_applied_index", partition="0") == 0
    assert one(after, "partition_enqueued_ops", partition="1") == 0
    assert one(after, "partition_backlog_age_ms", partition="1") == 0
    assert moved("global_commit_index") == moved("global_applied_index") == 10
    assert moved("admission_admitted_total") == 10
    assert moved("apply_records_total") == moved("apply_batches_total") == 10
    assert moved("apply_bytes_total") > 1000
    assert 1 <= moved("apply_group_seconds_count") <= 10
    assert moved("sync_group_seconds_count") >= 10
    assert moved("sync_group_records_sum") == 10
    assert moved("sync_group_bytes_sum") > 2000
    assert moved("journal_written_bytes_total") > 1000
    assert moved("aof_written_bytes_total") > 1000
    assert moved("fsync_seconds_count", file="journal") >= 10
    assert one(after, "requests_total", kind="submit") == 10
    assert one(after, "request_errors_total", code="barrier_timeout") == 1
    assert (moved("barriers_reached_total"), moved("barriers_timed_out_total")) == (1, 1)
    assert moved("received_frames_total", port="client") >= 12
    assert moved("sent_bytes_total", port="client") > 500
    assert one(after, "connections", port="client") == 1
    assert one(after, "raft_role", role="leader") == 1
    assert one(after, "raft_elections_total") == one(after, "raft_elections_won_total") == 1
    assert 1 <= one(after, "raft_leader_changes_total") <= 2  # itself; perhaps nobody in between
    assert one(after, "recovered") == one(after, "ready") == 1
    assert one(after, "partitions", state="running") == PARTITIONS
    assert one(after, "http_requests_total", path="/metrics", status="200") == 1
    assert one(after, "build_info", node="n1", cluster="logboom", version=it.node.service.version) == 1


async def test_a_backlog_shows_in_operations_bytes_and_age(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        await it.boom.submit(0, Put(b"a", bytes(20_000)))
        it.node.pipeline.pause(0)
        for _ in range(3):
            await it.boom.submit(0, [Put(b"k", bytes(500)), Put(b"l", bytes(500))], wait="committed")
        await asyncio.sleep(0.05)
        found = await scrape(it)
        assert one(found, "partition_enqueued_ops", partition="0") == one(found, "enqueued_ops") == 6
        assert 3000 < one(found, "partition_enqueued_bytes", partition="0") < 5000
        assert one(found, "partition_admitted_ops", partition="0") == one(found, "admission_used_ops") == 6
        assert 40 <= one(found, "partition_backlog_age_ms", partition="0") < 60_000
        assert one(found, "apply_lag_seconds") == pytest.approx(
            one(found, "partition_backlog_age_ms", partition="0") / 1000
        )
        assert one(found, "apply_lag_entries") == 3
        assert one(found, "partition_running", partition="0") == 0
        assert one(found, "partitions", state="paused") == 1
        assert one(found, "partition_backlog_age_ms", partition="1") == 0
        it.node.pipeline.resume(0)
        await it.boom.barrier(4)
        found = await scrape(it)
        assert one(found, "enqueued_ops") == one(found, "enqueued_bytes") == one(found, "apply_lag_seconds") == 0


async def test_snapshots_and_saved_states_show(tmp_path: Path) -> None:
    async with watched(tmp_path, snapshot__keep=2) as it:
        assert not (await scrape(it)).get(PREFIX + "snapshot_age_seconds")  # 0 would say that there is a new one
        for number in range(3):
            await it.boom.submit(0, Put(b"k", bytes(1000)))
            await it.boom.create_snapshot()
            found = await scrape(it)
            assert one(found, "snapshots_taken_total") == one(found, "snapshot_seconds_count") == number + 1
            assert one(found, "snapshot_global_index") == number + 1
            assert one(found, "partition_snapshot_index", partition="0") == number + 1
            assert one(found, "snapshot_bytes") > 1000
            assert one(found, "snapshot_age_seconds") < 60
        compacted = it.node.pipeline.snapshots.compaction
        async with asyncio.timeout(20):
            while compacted.runs < 2:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
        found = await scrape(it)
        assert one(found, "compactions_total") >= 2
        assert one(found, "snapshot_sets") + one(found, "snapshot_sets_removed_total") == 3
        assert one(found, "raft_base_index") > 1
        assert one(found, "checkpoints_total") >= 2  # before a log may be compacted, states are saved
        assert one(found, "checkpoint_seconds_count") == one(found, "checkpoints_total")


async def test_who_breaks_the_protocol_is_counted_as_cut(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        host, port = it.node.member.client_address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 10)
        await reader.read()
        writer.close()
        found = await scrape(it)
        assert one(found, "connections_cut_total", port="client") == 1
        assert one(found, "connections_cut_total", port="peer") == 0
        assert one(found, "connections_opened_total", port="client") == 1


async def test_what_admission_refuses_is_counted_by_its_gate(tmp_path: Path) -> None:
    async with watched(tmp_path, admission__partition_ops=2, admission__retry_after_ms=3_600_000) as it:
        it.node.pipeline.pause(0)
        await it.boom.submit(0, [Put(b"a", b""), Put(b"b", b"")], wait="committed")
        with pytest.raises(Overloaded):
            await it.boom.submit(0, [Put(b"c", b"")], wait="committed")  # which is told to come back in an hour
        found = await scrape(it)
        assert one(found, "admission_refused_total", gate="partition_ops") >= 1
        assert one(found, "admission_refused_total", gate="node_ops") == 0
        assert one(found, "request_errors_total", code="overloaded") >= 1
        it.node.pipeline.resume(0)


async def test_series_per_partition_are_bounded_and_sums_are_not(tmp_path: Path) -> None:
    async with watched(tmp_path, http__partition_series_max=2) as it:
        await it.boom.submit(2, Put(b"k", b"v"))
        found = await scrape(it)
        for metric in PER_PARTITION.metrics:
            assert {labels for (labels,) in found[PREFIX + metric.name]} == {("partition", "0"), ("partition", "1")}
        assert one(found, "partitions", state="running") == PARTITIONS
        assert one(found, "global_applied_index") == 1


async def test_no_series_show_less_than_before_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I7: until the node has recovered its partitions are left out, and nothing is applied everywhere."""
    async with watched(tmp_path) as it:
        await it.boom.submit(0, Put(b"k", b"v"))
        monkeypatch.setattr(it.node.pipeline.recovery, "notice", lambda *_: None)  # a look might find that it is over
        it.node.pipeline.recovery._left = {0}
        found = await scrape(it)
        assert {labels for (labels,) in found[PREFIX + "partition_applied_index"]} == {
            ("partition", "1"),
            ("partition", "2"),
        }
        assert one(found, "global_applied_index") == 0
        assert one(found, "recovered") == one(found, "ready") == 0
        it.node.pipeline.recovery._left = set()


async def test_others_have_their_turn_while_many_partitions_are_read(tmp_path: Path) -> None:
    async with watched(tmp_path, cluster__partitions=200, http__partition_series_max=10_000) as it:
        await it.boom.submit(0, Put(b"k", b"v"))
        turns, spent = 0, list[float]()
        taking = asyncio.ensure_future(take(it.operators._watched, spent=spent.append))
        while not taking.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 200 // 32
        assert len((await taking).rows) == 200
        assert len(spent) == 1


async def test_however_many_ask_at_once_there_is_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(tmp_path) as it:
        await it.boom.submit(0, Put(b"k", b"v"))
        taken = 0

        async def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal taken
            taken += 1
            return await take(*args, **kwargs)

        monkeypatch.setattr("server.watching.operators.take", counted)
        answers = await asyncio.gather(*(it.get("/metrics") for _ in range(20)))
        assert len({id(answer) for answer in answers}) == 1
        assert taken == 1
        await it.get("/metrics")
        assert taken == 2


async def test_one_who_asks_and_goes_does_not_take_the_answer_of_others_with_him(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        first, second = (asyncio.ensure_future(it.get("/metrics")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).status == 200
