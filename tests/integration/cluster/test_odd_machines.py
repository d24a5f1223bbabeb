"""State machines of users that leave, forget, and do otherwise on each node: what becomes of them, and of the nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from logboom import Put, Record, SyncClient
from logboom.cli.operate import problems
from logboom.errors import InvalidRequest, LogboomError, NoSuchPartition
from logboom.spark.batch import view_schema
from logboom.spark.columns import LOG
from logboom.spark.connection import session
from logboom.spark.options import read_options
from logboom.spark.read import read_log
from logboom.spark.shares import EVERYTHING, log_shares
from logboom.spark.stream import LogboomStreamReader
from logboom.testing import LocalCluster
from tests.integration.cluster.machines_world import MODULE
from tests.integration.cluster.snapshots_world import KV
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process

MORE = """
import sys


class Leaves(Counter):
    at_once = False

    def apply(self, batches, seal):
        self.say([batch.records.payloads() for batch in batches if batch.records is not None])
        return super().apply(batches, seal)

    needs_records = True

    def say(self, all):
        for each in all:
            if b"leave" in each:
                sys.exit("said so")

    def get(self, keys):
        if keys == [b"leave"]:
            sys.exit("asked to")
        if keys == [b"dry"]:
            next(iter(()))
        return [b"here" for _ in keys], self.position()


class LeavesAtOnce(Leaves):
    applies_in_memory = True

    def get_at_once(self, keys):
        return self.get(keys)


class Shaky(Counter):
    calls = 0

    @property
    def unsaved_bytes(self):
        self.calls += 1
        if self.calls > 4:
            raise RuntimeError("dictionary changed size during iteration")
        return 0


class Forgets(Counter):
    def _save(self):
        kept, self.kept = self.kept, {}
        super()._save()
        self.kept = kept


class Alone(Counter):
    def dump(self):
        dump = super().dump()
        dump._entries.insert(1, (Space.STATE, b"pid", b"%d" % os.getpid()))
        return dump

    def load(self, entries, position):
        super().load([each for each in entries if each[1] != b"pid"], position)


class Stays(Counter):
    def __init__(self):
        sys.exit("no configuration")
"""
CLASSES = ("Leaves", "LeavesAtOnce", "Shaky", "Forgets", "Alone", "Stays")


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such machines, on every node."""
    about = tmp_path / "site" / "odd_machines-1.0.dist-info"
    about.mkdir(parents=True)
    (about.parent / "odd_machines.py").write_text(MODULE + MORE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: odd_machines\nVersion: 1.0\n")
    rows = [f"{name.lower()} = odd_machines:{name}" for name in CLASSES]
    rows.append("imports = odd_import:Any")
    (about.parent / "odd_import.py").write_text("import sys\nsys.exit('usage: ...')\n")
    (about / "entry_points.txt").write_text("\n".join(["[logboom.state_machines]", *rows, ""]))
    monkeypatch.setenv("PYTHONPATH", str(about.parent))
    monkeypatch.setenv("REFUSE_TO_LOAD", str(tmp_path / "refuse"))


def all_run(cluster: LocalCluster, client: SyncClient) -> None:
    assert all(cluster.alive(node) for node in cluster.nodes)
    client.submit(KV, Put(b"k", b"v"), wait="applied")


@pytest.mark.parametrize("name", ["leaves", "leavesatonce"])
def test_one_that_leaves_ends_no_node(tmp_path: Path, name: str) -> None:
    """Found by review: one get of that key ended the node that was asked, and the client went on to the next."""
    settings = {"apply.retry_attempts_max": 2}
    with (
        LocalCluster(partitions=1, directory=tmp_path / "c", settings=settings) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created = client.create_partition(state_machine=name)
        client.submit(created, Record(b"x"), wait="applied")
        for key in (b"leave", b"dry"):
            for node in cluster.nodes:
                with pytest.raises(LogboomError, match="RuntimeError"):
                    client.get(created, key, node=node, stale=True, timeout=1)
        assert client.get(created, b"other") == b"here"
        all_run(cluster, client)
        client.submit(created, Record(b"leave"), wait="committed")
        wait_for(lambda: client.status()["partitions"][1][6] == "paused")
        all_run(cluster, client)


def test_a_log_is_read_to_its_end_after_a_start_though_one_that_leaves_keeps_its_state_back(tmp_path: Path) -> None:
    """The tail said that the node was still recovering for as long as the partition was paused."""
    settings = {"apply.retry_attempts_max": 2}
    with (
        LocalCluster(nodes=1, partitions=1, directory=tmp_path / "c", settings=settings) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created = client.create_partition(state_machine="leaves")
        for data in (b"x", b"leave", b"y"):
            client.submit(created, Record(data), wait="committed")
        wait_for(lambda: client.status()["partitions"][1][6] == "paused")
        cluster.restart(cluster.nodes[0])
        wait_for(lambda: [row[6] for row in client.status()["partitions"] if row[0] == created] == ["paused"])
        found = [data for batch in client.tail(created) for data in batch.records.payloads()]
        assert found == [b"x", b"leave", b"y"]
        assert not client.status()["recovered"]


def test_one_that_stands_still_keeps_nobody_from_the_logs_of_others(tmp_path: Path) -> None:
    """After a start nothing of it can be shown: marks of all were asked for, whichever were wanted."""
    settings = {"apply.retry_attempts_max": 2}
    with (
        LocalCluster(nodes=1, partitions=1, directory=tmp_path / "c", settings=settings) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created = client.create_partition(state_machine="leaves")
        client.submit(created, Record(b"leave"), wait="committed")
        client.submit(KV, Put(b"k", b"v"), wait="applied")
        wait_for(lambda: client.status()["partitions"][1][6] == "paused")
        every = read_options({"endpoints": cluster.endpoints}, stream=True)
        begun = LogboomStreamReader(view_schema("log"), every).initialOffset()
        cluster.restart(cluster.nodes[0])
        wait_for(lambda: [row[6] for row in client.status()["partitions"] if row[0] == created] == ["paused"])
        (mark,) = client.watermarks([KV], linearizable=True)
        assert (mark.partition_id, mark.applied_index) == (KV, 1)
        with pytest.raises(NoSuchPartition, match="partition 99 does not exist"):
            client.watermarks([KV, 99], linearizable=True)
        with pytest.raises(LogboomError, match=f"partition {created} is paused"):
            client.watermarks(linearizable=True, timeout=1)
        options = read_options({"endpoints": cluster.endpoints, "partitions": str(KV)})
        found = session(options.target)
        (share,) = log_shares(options, found)
        assert sum(batch.num_rows for batch in read_log(options, share, EVERYTHING, LOG, found)) == 1
        going, ending = (LogboomStreamReader(view_schema("log"), every) for _ in range(2))
        ending.prepareForTriggerAvailableNow()
        for stream in (going, ending):
            assert stream.latestOffset(begun, ReadAllAvailable())["next"] == {str(KV): 2, str(created): 1}
        found.rest()


def test_one_whose_numbers_cannot_be_had_ends_no_node(tmp_path: Path) -> None:
    """Found by review: it is asked on the event loop, while a thread changes what it counts."""
    with LocalCluster(partitions=1, directory=tmp_path / "c") as cluster, cluster.client(timeout=20) as client:
        created = client.create_partition(state_machine="shaky")
        for _ in range(10):
            client.submit(created, Record(b"x"), wait="applied")
        all_run(cluster, client)


def test_one_that_would_apply_twice_is_refused(tmp_path: Path) -> None:
    """Found by review: what a client sent again after a restart took effect again, and nobody had noticed before."""
    with LocalCluster(partitions=1, directory=tmp_path / "c") as cluster, cluster.client(timeout=20) as client:
        with pytest.raises(InvalidRequest, match="cannot be opened again here: ValueError"):
            client.create_partition(state_machine="forgets")
        with pytest.raises(InvalidRequest, match="SystemExit"):
            client.create_partition(state_machine="stays")
        with pytest.raises(InvalidRequest, match="SystemExit"):
            client.create_partition(state_machine="imports")
        all_run(cluster, client)


def test_the_settings_choose_no_such_one_either(tmp_path: Path) -> None:
    cluster = LocalCluster(nodes=1, partitions=1, state_machine="forgets", directory=tmp_path / "c")
    cluster.start_node("n1")
    assert cluster.wait_ended("n1") == 2
    assert "cannot be opened again here" in cluster.log("n1").read_text()
    cluster.stop()


def test_states_that_differ_are_found_with_the_next_snapshot(tmp_path: Path) -> None:
    """Found by review: nobody compared them but who asked for all digests at a quiet moment."""
    with LocalCluster(partitions=1, directory=tmp_path / "c") as cluster, cluster.client(timeout=20) as client:
        client.create_snapshot()
        wait_for(lambda: all(len(client.snapshots(node=node)["sets"]) == 1 for node in cluster.nodes))
        assert problems(client.status_all()) == []
        created = client.create_partition(state_machine="alone")
        client.barrier(client.submit(created, Record(b"x")), scope="all")  # open on all nodes: else there is no set
        client.create_snapshot()
        pairs = ("n1 and n2", "n1 and n3", "n2 and n3")
        wait_for(lambda: len(problems(client.status_all())) == 3)
        for pair, story in zip(pairs, problems(client.status_all()), strict=True):
            assert story.startswith(f"the states of partition {created} on {pair} differ at "), story
        assert "states_differ" in cluster.log("n1").read_text()
