"""Rules of access on real nodes with TLS: clients with certificates of their own, who may do so much and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logboom import Put, Record, SyncClient, certs
from logboom.errors import LogboomError, PermissionDenied
from logboom.testing import LocalCluster
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process

PATIENCE_S = 30.0
CLIENTS = ("ops", "writer", "reader", "watcher", "nobody")
RULES = """
[[rules]]
principal = "client"             # of the test itself
allow = ["admin"]

[[rules]]
principal = "ops"
allow = ["admin"]

[[rules]]
principal = "writer"
allow = ["write"]
partitions = "0-1"

[[rules]]
principal = "reader"
allow = ["read"]
partitions = "1,3"

[[rules]]
principal = "reader"
allow = ["read", "write"]
partitions = "cursors"

[[rules]]
principal = "watcher"
allow = ["status"]
"""


class Guarded:
    """A cluster whose nodes go by ``rules``; clients by the names in their certificates."""

    def __init__(self, directory: Path, cluster: LocalCluster) -> None:
        self.directory = directory
        self.cluster = cluster
        self.rules = directory / "rules.toml"

    def tls(self, name: str) -> Path:
        return self.directory / "tls" / "clients" / name

    def client(self, name: str) -> SyncClient:
        return SyncClient(self.cluster.endpoints, tls=self.tls(name), timeout=PATIENCE_S)

    def change(self, text: str) -> None:
        new = self.rules.with_name("new.toml")
        new.write_text(text)
        new.replace(self.rules)

    def shell(self, name: str, *args: str) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOGBOOM_")}
        environment |= {"LOGBOOM_ENDPOINTS": self.cluster.endpoints, "LOGBOOM_TLS_DIR": str(self.tls(name))}
        return subprocess.run(
            [sys.executable, "-m", "logboom", *args], env=environment, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip

    def page(self, name: str, path: str, node: str = "n1") -> int:
        context = certs.client_context(self.tls(name))
        try:
            with urllib.request.urlopen(self.cluster.url(node, path), timeout=20, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def text(self, name: str, path: str, node: str = "n1") -> str:
        context = certs.client_context(self.tls(name))
        with urllib.request.urlopen(self.cluster.url(node, path), timeout=20, context=context) as answer:
            found: str = answer.read().decode()
        return found

    def said(self, event: str) -> list[dict[str, object]]:
        lines = [row for node in self.cluster.nodes for row in self.cluster.log(node).read_text().splitlines()]
        return [row for row in map(json.loads, lines) if row["event"] == event]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    certs.make_test_authority(directory / "tls", ["n1", "n2", "n3"], clients=CLIENTS)
    (directory / "rules.toml").write_text(RULES)
    settings = {"access.file": str(directory / "rules.toml"), "cluster.overrides": {"3": {"state_machine": "log"}}}
    with LocalCluster(directory=directory, partitions=4, tls=True, http=True, settings=settings) as cluster:
        yield Guarded(directory, cluster)


@pytest.fixture(autouse=True)
def _the_rules_of_before(guarded: Guarded) -> Iterator[None]:
    yield
    if guarded.rules.read_text() != RULES:
        guarded.change(RULES)
        for node in guarded.cluster.nodes:
            for name, status in (("watcher", 200), ("nobody", 403)):
                wait_for(lambda name=name, node=node, status=status: guarded.page(name, "/status", node) == status)  # type: ignore[misc]


def denied(call: Callable[[], object], right: str, partition: int | None) -> None:
    with pytest.raises(PermissionDenied) as caught:
        call()
    assert (caught.value.right, caught.value.partition_id) == (right, partition)
    assert caught.value.outcome == "not_applied"


def test_who_may_write_writes_there_and_waits_and_that_is_all(guarded: Guarded) -> None:
    with guarded.client("writer") as writer, guarded.client("ops") as ops:
        receipts = writer.submit_many({0: [Put(b"w", b"0")], 1: [Put(b"w", b"1")]})
        assert writer.barrier(receipts, scope="all")
        denied(lambda: writer.submit(2, Put(b"w", b"2")), "write", 2)
        denied(lambda: writer.submit(2, [Put(b"w", b"2"), Put(b"x", b"2")]), "write", 2)
        denied(lambda: writer.submit_many({0: [Put(b"both", b"")], 2: [Put(b"both", b"")]}), "write", 2)
        denied(lambda: writer.get(0, b"w"), "read", 0)
        denied(lambda: list(writer.scan(1)), "read", 1)
        denied(lambda: list(writer.tail(1)), "read", 1)
        denied(lambda: list(writer.scan_log([0, 1])), "read", 0)
        denied(lambda: writer.status(digests=True), "read", None)
        denied(writer.create_partition, "admin", None)
        denied(lambda: writer.destroy_partition(0), "admin", 0)
        denied(lambda: writer.admin("freeze", 0, node="n1"), "admin", 0)
        denied(lambda: writer.remove_member("n3"), "admin", None)
        denied(writer.create_snapshot, "admin", None)
        with pytest.raises(PermissionDenied):
            writer.commit_cursor("mine", None, 5)
        assert [ops.get(p, k) for p, k in ((0, b"w"), (1, b"w"), (0, b"both"), (2, b"both"))] == [
            b"0",
            b"1",
            None,
            None,
        ]
        assert len(writer.status_all()) == 3


def test_who_may_read_reads_there_and_keeps_its_place(guarded: Guarded) -> None:
    with guarded.client("reader") as reader, guarded.client("ops") as ops:
        ops.barrier(ops.submit(1, Put(b"r", b"1")), scope="all")
        ops.barrier(ops.submit(3, [Record(b"line")]), scope="all")
        assert reader.get(1, b"r") == b"1"
        assert dict(reader.scan(1))[b"r"] == b"1"
        assert b"line" in [payload for batch in reader.tail(3) for payload in batch.records.payloads()]
        assert {batch.partition_id for batch in reader.scan_log([1, 3])} == {1, 3}
        denied(lambda: reader.get(0, b"r"), "read", 0)
        denied(lambda: list(reader.scan_log()), "read", 0)
        denied(lambda: reader.submit(1, Put(b"r", b"2")), "write", 1)
        assert reader.commit_cursor("reader", 3, 2) == 2  # the first one: their partition is made for it
        assert reader.cursor_position("reader", 3) == 2
        assert [row.name for row in reader.cursors()] == ["reader"]
        with guarded.client("writer") as writer:
            where = ops.cursors_partition()
            denied(lambda: writer.commit_cursor("writer", 3, 2), "read", where)


def test_who_is_in_no_rule_is_told_so_at_once(guarded: Guarded) -> None:
    with guarded.client("nobody") as nobody:
        denied(nobody.partitions, "status", None)
        denied(lambda: nobody.submit(0, Put(b"k", b"v")), "status", None)
    done = guarded.shell("nobody", "status")
    assert (done.returncode, done.stdout) == (1, "")
    assert "'nobody' does not have the right `status`" in done.stderr
    assert "[permission_denied]" in done.stderr
    assert {row["principal"] for row in guarded.said("access_denied")} >= {"nobody"}


@pytest.mark.parametrize("name", ["ops", "writer", "reader", "watcher"])
def test_the_status_is_for_whoever_may_do_anything(guarded: Guarded, name: str) -> None:
    done = guarded.shell(name, "status", "-o", "json")
    about = json.loads(done.stdout)
    assert (done.returncode, about["healthy"]) == (0, True), done.stderr
    assert len({row["rules"] for row in about["nodes"]}) == 1
    assert guarded.shell(name, "watermarks").returncode == 0
    done = guarded.shell(name, "submit", "-p", "2", "put", "k", "v")
    assert done.returncode == (0 if name == "ops" else 1)
    assert ("`write` for partition 2" in done.stderr) == (name != "ops")


def test_a_backup_is_for_whoever_may_administer_everything(guarded: Guarded, tmp_path: Path) -> None:
    with guarded.client("ops") as ops:
        ops.submit_many({0: [Put(b"b", b"0")], 3: [Record(b"line")]})
    done = guarded.shell("ops", "backup", str(tmp_path / "ops"), "-o", "json")
    assert done.returncode == 0, done.stderr
    for name in ("reader", "writer", "watcher"):
        done = guarded.shell(name, "backup", str(tmp_path / name))
        assert (done.returncode, "`admin` for the cluster as a whole" in done.stderr) == (1, True)


def test_the_port_for_operators_goes_by_them(guarded: Guarded) -> None:
    assert [guarded.page("watcher", path) for path in ("/", "/metrics", "/status", "/healthz")] == [200] * 4
    pages = ("/", "/metrics", "/status", "/healthz", "/readyz", "/nothing")
    assert [guarded.page("nobody", path) for path in pages] == [403, 403, 403, 200, 200, 404]
    text = guarded.text("watcher", "/metrics")
    assert "logboom_access_rules 6.0" in text
    counted = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if "access_denied_total{" in line}
    assert counted['logboom_access_denied_total{right="status"}'] >= 3


def test_rules_change_while_nodes_run_and_streams_with_them(guarded: Guarded) -> None:
    with guarded.client("reader") as reader, guarded.client("ops") as ops:
        ops.submit(3, [Record(b"first")])
        tail = reader.tail(3, follow=True)
        next(tail)
        guarded.change("[[rules]]\nprincipal = 'ops'\nallow = ['amdin']\n")  # nobody is let in, or cut, for that
        wait_for(lambda: len(guarded.said("access_not_renewed")) >= 3)
        assert "amdin" in str(guarded.said("access_not_renewed")[0]["error"])
        done = guarded.shell("ops", "status")
        assert done.returncode == 5
        assert done.stderr.count("would not start with its file") == 3
        assert "logboom_access_rules_unused 1.0" in guarded.text("watcher", "/metrics")
        assert reader.get(1, b"-") is None
        guarded.change(RULES.replace('partitions = "1,3"', 'partitions = "1"'))
        with pytest.raises(PermissionDenied) as caught:
            deque(tail, maxlen=0)
        assert (caught.value.right, caught.value.partition_id) == ("read", 3)
        assert reader.get(1, b"-") is None
        wait_for(lambda: not _may(lambda: reader.get(3, b"-")))
        guarded.change(RULES.replace('principal = "watcher"', 'principal = "nobody"'))
        wait_for(lambda: guarded.page("nobody", "/status") == 200)
        with guarded.client("nobody") as nobody:
            wait_for(lambda: _may(nobody.status_all))


def _may(call: Callable[[], object]) -> bool:
    try:
        call()
    except PermissionDenied:
        return False
    except LogboomError:
        return True
    return True


def test_nodes_that_go_by_different_rules_are_a_problem(guarded: Guarded) -> None:
    config = guarded.cluster.config("n3")
    before = config.read_text()
    other = guarded.directory / "other.toml"
    other.write_text(RULES + "\n[[rules]]\nprincipal = 'nobody'\nallow = ['read']\n")
    try:
        config.write_text(before.replace(str(guarded.rules), str(other)))
        guarded.cluster.restart("n3")
        guarded.cluster.wait_serving()
        done = guarded.shell("ops", "status")
        assert done.returncode == 5
        assert "nodes go by different rules" in done.stderr
        with SyncClient(guarded.cluster.addresses["n3"], tls=guarded.tls("nobody"), timeout=PATIENCE_S) as nobody:
            assert nobody.get(0, b"-", stale=True, node="n3") is None
    finally:
        config.write_text(before)
        guarded.cluster.restart("n3")
        guarded.cluster.wait_serving()


def test_a_node_with_rules_that_are_wrong_does_not_start(guarded: Guarded, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[[rules]]\nprincipal = 'ops'\nallow = ['everything']\n")
    config = tmp_path / "node.toml"
    config.write_text(guarded.cluster.config("n1").read_text().replace(str(guarded.rules), str(wrong)))
    for check in (["--check"], ["--data-dir", str(tmp_path / "data")]):
        done = subprocess.run(
            [sys.executable, "-m", "logboom", "node", "--config", str(config), *check],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "rules[0].allow[0]" in done.stderr
