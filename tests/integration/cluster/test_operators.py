"""Real nodes as their operators see them: metrics under load, readiness, the page, logs, spans."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from logboom import Put
from logboom.certs import client_context
from logboom.cli.operate import problems
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from tests.integration.waiting import wait_for
from tests.unit.server.compose import program

pytestmark = pytest.mark.process

ROUNDS = 30
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PEER_METRICS = ("link_up", "link_queued_bytes", "link_connects_total", "follower_lag_entries", "follower_feed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("operators")
    settings = {
        "node.log_level": "debug",
        "trace.sample": 1e-9,
        "trace.file": str(directory / "spans.jsonl"),
        "http.debug": True,
    }
    ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as under nohup: then nodes leave it at that
    try:
        with LocalCluster(directory=directory, http=True, settings=settings) as running:
            yield running
    finally:
        signal.signal(signal.SIGHUP, ignored)


def get(cluster: LocalCluster, node: str, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(cluster.url(node, path), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def container_is_healthy(cluster: LocalCluster, node: str) -> bool:
    """By the health check of docker-compose.yml."""
    ended = subprocess.run(program(int(cluster.http_addresses[node].rpartition(":")[2])), check=False)
    assert ended.returncode in (0, 1)
    return ended.returncode == 0


def metrics(cluster: LocalCluster, node: str) -> dict[tuple[str, ...], float]:
    """By name and label values."""
    status, body = get(cluster, node, "/metrics")
    assert status == 200
    return {
        (sample.name.removeprefix("logboom_"), *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def until(holds: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_scrapes_under_load_see_it_move_and_never_go_back(cluster: LocalCluster) -> None:
    stop, failures, written = threading.Event(), list[BaseException](), list[int]()

    def load(part: int) -> None:
        try:
            with cluster.client(timeout=20.0) as boom:
                while not stop.is_set():
                    written.append(boom.submit(part, [Put(b"k%d" % n, bytes(50)) for n in range(20)]).global_index)
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=load, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    before = {node: metrics(cluster, node) for node in cluster.nodes}
    last, rounds = dict(before), 0
    while rounds < ROUNDS or not (written or failures):
        rounds += 1
        for node in cluster.nodes:
            now = metrics(cluster, node)
            for key, value in last[node].items():
                if key[0].endswith(("_total", "_count", "_index", "_bucket", "_applied_global")):
                    assert now[key] >= value, (node, key)
            last[node] = now
    stop.set()
    for thread in threads:
        thread.join(30)
    assert failures == []
    leader = cluster.leader()
    with cluster.client() as boom:
        boom.barrier(max(written), scope="all")
    for node in cluster.nodes:
        now = metrics(cluster, node)
        assert now["global_commit_index",] >= max(written), node
        assert sum(now["partition_applied_index", str(p)] for p in range(4)) >= 20 * len(written), node
        assert now["apply_records_total",] - before[node]["apply_records_total",] > 0, node
        assert now["sync_group_seconds_count",] > before[node]["sync_group_seconds_count",], node
        assert now["enqueued_ops",] == now["apply_lag_seconds",] == 0, node
        assert now["raft_leader_known",] == 1
        assert now["raft_admits",] == (node == leader)
        assert all(now["link_up", peer] == 1 for peer in cluster.nodes if peer != node)
    lead = metrics(cluster, leader)
    for peer in cluster.nodes:
        if peer != leader:
            assert lead["follower_lag_entries", peer] == 0
            assert lead["follower_feed", "live", peer] == 1
    assert {key[0] for key in lead} >= set(PEER_METRICS)


def test_a_node_that_is_away_shows_on_the_leader_and_is_not_ready_when_it_returns_alone(cluster: LocalCluster) -> None:
    leader = cluster.leader()
    away, other = (node for node in cluster.nodes if node != leader)
    cluster.kill(away)
    until(lambda: metrics(cluster, leader)["link_up", away] == 0, "the link is down")
    with cluster.client() as boom:
        for number in range(5):
            boom.submit(5, Put(b"away%d" % number, b"v"))
    assert metrics(cluster, leader)["follower_lag_entries", away] >= 5
    # Without a quorum nobody leads, and nothing proves what the node may show.
    cluster.kill(leader)
    cluster.kill(other)
    cluster.start_node(away)

    def answers() -> bool:
        try:
            return get(cluster, away, "/healthz") == (200, b"ok\n")
        except OSError:
            return False

    until(answers, "it lives")
    assert container_is_healthy(cluster, away)  # nobody should replace it because others are away
    assert not container_is_healthy(cluster, leader)
    status, why = get(cluster, away, "/readyz")
    assert status == 503
    assert b"recovering: 8 of 8 partitions" in why
    assert metrics(cluster, away)["ready",] == 0
    assert json.loads(get(cluster, away, "/status")[1])["recovered"] is False
    cluster.start_node(leader)
    cluster.start_node(other)
    until(lambda: get(cluster, away, "/readyz") == (200, b"ready\n"), "it is ready")
    cluster.wait_serving()
    assert metrics(cluster, away)["ready",] == 1
    assert metrics(cluster, cluster.leader())["link_connects_total", away] >= 1


def test_a_node_that_is_left_alone_is_not_ready_and_knows_no_leader(cluster: LocalCluster) -> None:
    """It named the one that had led, and was killed, for ever: it was ready, and sent clients there."""
    leader = cluster.leader()
    alone = next(node for node in cluster.nodes if node != leader)
    gone = [node for node in cluster.nodes if node != alone]
    for node in gone:
        cluster.kill(node)
    until(lambda: get(cluster, alone, "/readyz") == (503, b"not ready: no leader is known\n"), "nobody leads")
    assert metrics(cluster, alone)["raft_leader_known",] == 0
    with cluster.client() as boom:
        answers = boom.status_all()
        assert "no node leads" in problems(answers)
        with pytest.raises(LogboomError) as refused:
            boom.get(5, b"k", timeout=1.0)
    assert refused.value.fields.get("leader") is None
    for node in gone:
        cluster.start_node(node)
    cluster.wait_serving()
    # That somebody leads does not say that this one has heard of it.
    until(lambda: get(cluster, alone, "/readyz") == (200, b"ready\n"), "it hears of the leader")


def test_a_hang_up_ends_no_node(cluster: LocalCluster) -> None:
    """Found by review: who sends SIGHUP so that files are read anew, to all nodes, had ended all of them."""
    for node in cluster.nodes:
        os.kill(cluster.pid(node), signal.SIGHUP)
    wait_for(lambda: all('"sighup"' in cluster.log(node).read_text() for node in cluster.nodes))
    with cluster.client(timeout=20) as client:
        client.submit(0, Put(b"hung", b"up"))
    assert all(cluster.alive(node) for node in cluster.nodes)


def test_a_node_that_is_told_to_stop_is_not_ready_first(cluster: LocalCluster) -> None:
    node = next(node for node in cluster.nodes if node != cluster.leader())
    seen = set[bytes]()
    cluster.kill(node, signal.SIGTERM)
    while cluster.alive(node):
        try:
            seen.add(get(cluster, node, "/readyz")[1])
        except OSError:
            continue
    assert seen <= {b"ready\n", b"not ready: it is stopping\n", b"not ready: no leader is known\n"}
    cluster.restart(node)
    cluster.wait_serving()


def test_the_page_and_the_stacks_are_served(cluster: LocalCluster) -> None:
    status, page = get(cluster, "n1", "/")
    assert status == 200
    assert page.startswith(b"<!doctype html>")
    assert b"MainThread" in get(cluster, "n1", "/debug/stacks")[1]


def test_a_traced_request_leaves_its_stages_in_the_file(cluster: LocalCluster) -> None:
    with cluster.client() as boom:
        receipt = boom.submit(3, Put(b"traced", b"v"), traceparent=TRACEPARENT)
        boom.submit(3, Put(b"not", b"v"))
    path = cluster.directory / "spans.jsonl"

    def spans() -> list[dict[str, object]]:
        lines = path.read_text().splitlines() if path.exists() else []
        batches = [json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"] for line in lines]
        return [span for batch in batches for span in batch if span["traceId"] == TRACEPARENT[3:35]]

    until(lambda: len(spans()) >= 8, "all spans are there")
    by_name = {span["name"]: span for span in spans()}
    stages = ("submit", "admit", "append", "replicate", "commit", "apply", "replica")
    assert set(by_name) == {f"logboom.{name}" for name in stages}
    replicas = [span for span in spans() if span["name"] == "logboom.replica"]
    assert [span["parentSpanId"] for span in replicas] == [by_name["logboom.submit"]["spanId"]] * 2
    assert by_name["logboom.submit"]["parentSpanId"] == TRACEPARENT[36:52]
    values = {each["key"]: each["value"] for each in by_name["logboom.apply"]["attributes"]}  # type: ignore[attr-defined]
    assert values["logboom.global_index"] == {"intValue": str(receipt.global_index)}
    text = path.read_text()
    assert len({*re.findall(r'"traceId":"([0-9a-f]+)"', text)}) == 1  # nobody else was sampled


def test_every_line_of_a_log_is_json_with_its_time_and_node(cluster: LocalCluster) -> None:
    with cluster.client() as boom, pytest.raises(LogboomError):
        boom.get(4711, b"k")
    # A thread of the node's writes its lines.
    until(lambda: any("4711" in cluster.log(node).read_text() for node in cluster.nodes), "the refusal is in no log")
    rows = {node: [json.loads(line) for line in cluster.log(node).read_text().splitlines()] for node in cluster.nodes}
    for node, lines in rows.items():
        assert lines
        for line in lines:
            assert line["node"] == node
            assert line["event"]
            assert datetime.fromisoformat(line["timestamp"]).tzinfo is not None
            assert line["level"] in {"debug", "info", "warning", "error"}
        assert {"serving", "http", "recovered", "link_up", "leader"} <= {line["event"] for line in lines}
    refused = [line for lines in rows.values() for line in lines if line["event"] == "request_refused"]
    (found,) = [line for line in refused if line["code"] == "no_such_partition"]
    assert found["request_id"] > 0
    assert found["remote"].startswith("127.0.0.1:")
    assert "4711" in found["error"]


def test_with_tls_only_who_has_a_certificate_sees_anything(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, directory=tmp_path, tls=True, http=True) as cluster:
        assert cluster.tls_directory is not None
        context = client_context(cluster.tls_directory)
        context.check_hostname = False
        with urllib.request.urlopen(cluster.url("n1", "/readyz"), timeout=10, context=context) as answer:
            assert answer.read() == b"ready\n"
        stranger = ssl.create_default_context(cafile=str(cluster.tls_directory / "ca.pem"))
        stranger.check_hostname = False
        with pytest.raises(OSError):
            urllib.request.urlopen(cluster.url("n1", "/readyz"), timeout=10, context=stranger).read()
