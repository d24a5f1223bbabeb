"""A committed batch is lost on all nodes: its partition waits, the others go on, an operator declares it void."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logboom import Add, Put, Record, SyncClient
from logboom.cli import cli
from logboom.errors import (
    BarrierBlocked,
    CorruptData,
    DeadlineExceeded,
    InvalidRequest,
    LogboomError,
    PartitionLost,
    Voided,
)
from logboom.testing import LocalCluster
from server.offline.verify import verify
from tests.integration.cluster.machines_world import MODULE
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process
LOST, WELL = 0, 1
SETTINGS = {
    "cluster.mode": "write_behind",
    "apply.unsaved_ms": 3_600_000,  # a start applies everything again
    "snapshot.keep": 2,
    "scrub.pause_ms": 0,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, partitions=2, settings=SETTINGS, directory=tmp_path) as running:
        yield running


def flip(cluster: LocalCluster, node: str, *, batch: int, at: int = 140) -> None:
    """A bit of the ``batch``-th batch of the only segment: of the payload, or of what is elsewhere in it."""
    (file,) = (cluster.data_dirs[node] / "partitions" / str(LOST)).glob("*.log")
    raw, begin = bytearray(file.read_bytes()), -1
    for _ in range(batch + 1):
        begin = raw.index(b"LBB1", begin + 1)
    raw[begin + at] ^= 1
    file.write_bytes(raw)


def state_of(cluster: LocalCluster, boom: SyncClient, node: str, partition: int) -> str:
    try:
        rows = boom.status(node=cluster.addresses[node], timeout=10)["partitions"]
    except LogboomError:
        return "unreachable"
    return str(next((row[6] for row in rows if row[0] == partition), "recovering"))


def states(cluster: LocalCluster, boom: SyncClient, partition: int) -> set[str]:
    return {state_of(cluster, boom, node, partition) for node in cluster.nodes}


def all_equal(cluster: LocalCluster, boom: SyncClient) -> bool:
    try:
        found = [boom.status(node=cluster.addresses[n], digests=True, timeout=5) for n in cluster.nodes]
    except LogboomError:
        return False
    first = found[0]
    return all(s["recovered"] and s["digests"] == first["digests"] for s in found) and all(
        [row[:4] + row[5:] for row in s["partitions"]] == [row[:4] + row[5:] for row in first["partitions"]]
        for s in found
    )


def logboom(cluster: LocalCluster, *arguments: str) -> str:
    result = CliRunner().invoke(cli, [*arguments, "--endpoints", cluster.endpoints])
    assert result.exit_code == 0, result.output
    return result.output


def kill_all(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        cluster.kill(node)


def all_verify(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        report = verify(cluster.data_dirs[node])
        assert not report.damaged, [finding.problem for finding in report.findings]


def restart_all(cluster: LocalCluster) -> None:
    kill_all(cluster)
    for node in cluster.nodes:
        cluster.start_node(node)


def refusal(boom: SyncClient) -> PartitionLost | None:
    """What a write is told; None: on a busy machine the last attempt is not answered in time."""
    try:
        boom.submit(LOST, Add(b"n", 1), timeout=2)
    except PartitionLost as error:
        return error
    except DeadlineExceeded:
        return None
    pytest.fail("it was written")


def test_the_others_serve_one_partition_is_lost_and_void_lets_it_run(cluster: LocalCluster) -> None:
    with cluster.client(timeout=30) as boom:
        for number in range(4):
            boom.submit(LOST, [Put(b"k%d" % number, b"x" * 200), Add(b"n", 1)], wait="applied")
            boom.submit(WELL, Add(b"n", 1), wait="applied")
        wait_for(lambda: all_equal(cluster, boom))
        kill_all(cluster)
        for node in cluster.nodes:
            flip(cluster, node, batch=2)
        for node in cluster.nodes:
            cluster.start_node(node)
        wait_for(lambda: states(cluster, boom, LOST) == {"lost"})

        receipt = boom.submit(WELL, Add(b"n", 1), wait="applied")
        assert boom.get(WELL, b"n") == (5,)
        refused = next(filter(None, (refusal(boom) for _ in range(20))))
        assert (refused.first_index, refused.last_index) == (5, 6)
        with pytest.raises(BarrierBlocked):
            boom.barrier(receipt.global_index, partitions=[LOST])
        tail = boom.tail(LOST, start=1, follow=True)
        assert [next(tail).first_index, next(tail).first_index] == [1, 3]
        with pytest.raises(CorruptData):
            next(tail)
        with pytest.raises(InvalidRequest):
            boom.void_batch(LOST, 2, yes=True)

        shown = logboom(cluster, "partitions", "void", str(LOST), "--index", "6")
        assert "nothing was changed" in shown
        assert states(cluster, boom, LOST) == {"lost"}
        logboom(cluster, "partitions", "void", str(LOST), "--all", "--yes")
        wait_for(lambda: states(cluster, boom, LOST) == {"running"})
        assert boom.void_batch(LOST, 6, yes=True)["void"]  # nothing more to do
        boom.submit(LOST, Add(b"n", 1), wait="applied")
        assert boom.get(LOST, b"n") == (4,)
        assert boom.get(LOST, b"k2") is None
        wait_for(lambda: all_equal(cluster, boom))  # a tail ends with what its node has
        gaps: list[Voided] = []
        assert [b.first_index for b in boom.tail(LOST, on_void=gaps.append)] == [1, 3, 7, 9]
        assert [(gap.first_index, gap.next) for gap in gaps] == [(5, 7)]
        scan = [b.partition_id for b in boom.scan_log(on_void=gaps.append)]
        assert scan.count(LOST) == 4
        assert [(gap.partition_id, gap.first_index, gap.next) for gap in gaps[1:]] == [(LOST, 5, 7)]

        kill_all(cluster)
        all_verify(cluster)  # the void is in the journal, behind its base
        restart_all(cluster)
        wait_for(lambda: all_equal(cluster, boom))
        assert states(cluster, boom, LOST) == {"running"}
        for _ in range(3):
            boom.submit(WELL, Add(b"n", 1), wait="applied")
            boom.create_snapshot()
        restart_all(cluster)
        wait_for(lambda: all_equal(cluster, boom))
        assert boom.get(LOST, b"n") == (4,)
        assert boom.status()["voids"][0] == 1
        assert [b.first_index for b in boom.tail(LOST, start=0)][-1] == 9
    kill_all(cluster)
    all_verify(cluster)
    for node in cluster.nodes:
        assert "voids" in (cluster.data_dirs[node] / "manifest.json").read_text()


def test_a_node_that_has_not_applied_it_takes_a_snapshot_from_one_that_has(cluster: LocalCluster) -> None:
    with cluster.client(timeout=30) as boom:
        for number in range(4):
            boom.submit(LOST, [Put(b"k%d" % number, b"x" * 200), Add(b"n", 1)], wait="applied")
        wait_for(lambda: all_equal(cluster, boom))
        has_it, *others = cluster.nodes
        for node in others:
            cluster.kill(node)  # nothing of their states is saved
        cluster.kill(has_it, signal.SIGTERM)
        wait_for(lambda: not cluster.alive(has_it))
        for node in cluster.nodes:
            flip(cluster, node, batch=2)
            cluster.start_node(node)
        wait_for(lambda: all(state_of(cluster, boom, node, LOST) == "lost" for node in others))
        assert state_of(cluster, boom, has_it, LOST) == "running"

        shown = boom.void_batch(LOST, 5)
        assert (shown["applied"], shown["void"], shown["said"][has_it]) == (True, False, "applied")
        assert boom.void_batch(LOST, 5, yes=True)["void"]
        wait_for(lambda: all_equal(cluster, boom))
        assert states(cluster, boom, LOST) == {"running"}
        for node in cluster.nodes:
            assert boom.get(LOST, b"k2", stale=True, node=cluster.addresses[node]) == b"x" * 200
        boom.submit(LOST, Add(b"n", 1), wait="applied")
        assert boom.get(LOST, b"n") == (5,)


def test_whoever_has_applied_it_goes_on_behind_it_and_gives_the_snapshot(cluster: LocalCluster) -> None:
    """All stood still, over all restarts: it was to apply what came next once that was durable on the others, too."""
    with cluster.client(timeout=30) as boom:

        def write(number: int) -> None:
            boom.submit(LOST, [Put(b"k%d" % number, b"x" * 200), Add(b"n", 1)], wait="applied")
            wait_for(lambda: all_equal(cluster, boom))

        for number in range(3):
            write(number)
        has_it, *others = cluster.nodes
        for node in others:
            cluster.kill(node)
        cluster.kill(has_it, signal.SIGTERM)
        wait_for(lambda: not cluster.alive(has_it))
        for node in cluster.nodes:
            cluster.start_node(node)
        write(3)  # in nobody's saved state
        kill_all(cluster)
        for node in cluster.nodes:
            flip(cluster, node, batch=1)
            cluster.start_node(node)
        wait_for(lambda: all(state_of(cluster, boom, node, LOST) == "lost" for node in others))
        assert boom.void_batch(LOST, 3, yes=True)["applied"]
        wait_for(lambda: all_equal(cluster, boom))
        for node in cluster.nodes:
            assert boom.get(LOST, b"k1", stale=True, node=cluster.addresses[node]) == b"x" * 200
            assert boom.get(LOST, b"n", stale=True, node=cluster.addresses[node]) == (4,)


def test_a_node_that_has_not_applied_it_takes_a_set_from_behind_it_before_anything_is_void(
    cluster: LocalCluster,
) -> None:
    """It was lost there until an operator came, since the others had what it did in their states, too."""
    with cluster.client(timeout=30) as boom:
        for number in range(4):
            boom.submit(LOST, [Put(b"k%d" % number, b"x" * 200), Add(b"n", 1)], wait="applied")
        wait_for(lambda: all_equal(cluster, boom))
        boom.create_snapshot()
        sets = [cluster.data_dirs[node] / "snapshots" for node in cluster.nodes]
        wait_for(lambda: all(any(each.glob("*.set")) for each in sets))
        lacks_it, *others = cluster.nodes
        for node in others:  # which have their states saved, too
            cluster.kill(node, signal.SIGTERM)
            wait_for(partial(is_gone, cluster, node))
        cluster.kill(lacks_it)
        for each in sets[0].glob("*.set"):
            each.unlink()
        shutil.rmtree(cluster.data_dirs[lacks_it] / "partitions" / str(LOST) / "state")
        for node in cluster.nodes:
            flip(cluster, node, batch=2)
            cluster.start_node(node)
        wait_for(lambda: all_equal(cluster, boom))
        assert states(cluster, boom, LOST) == {"running"}
        assert boom.get(LOST, b"k2", stale=True, node=cluster.addresses[lacks_it]) == b"x" * 200
        assert boom.status()["voids"][0] == 0


def is_gone(cluster: LocalCluster, node: str) -> bool:
    return not cluster.alive(node)


def test_a_log_that_others_have_applied_keeps_its_records_beside_it(tmp_path: Path) -> None:
    """Found by review: the node that needed the snapshot ended at every fetch of it."""
    settings = {**SETTINGS, "cluster.state_machine": "log"}
    with (
        LocalCluster(nodes=3, partitions=2, settings=settings, directory=tmp_path) as cluster,
        cluster.client(timeout=30) as boom,
    ):
        for number in range(4):
            boom.submit(LOST, Put(b"k%d" % number, b"x" * 200), wait="applied")
        wait_for(lambda: all_equal(cluster, boom))
        has_it, *others = cluster.nodes
        for node in others:
            cluster.kill(node)
        cluster.kill(has_it, signal.SIGTERM)
        wait_for(lambda: not cluster.alive(has_it))
        for node in cluster.nodes:
            flip(cluster, node, batch=2)
        for node in others:
            shutil.rmtree(cluster.data_dirs[node] / "partitions" / str(LOST) / "state")
        for node in cluster.nodes:
            cluster.start_node(node)
        wait_for(lambda: all(state_of(cluster, boom, node, LOST) == "lost" for node in others))
        assert boom.void_batch(LOST, 3, yes=True)["applied"]
        wait_for(lambda: all_equal(cluster, boom))
        for node in cluster.nodes:
            assert [b.first_index for b in boom.tail(LOST, node=cluster.addresses[node])] == [1, 2, 4]


@pytest.mark.parametrize("machine", ["kv", "log"])
def test_a_backup_steps_over_it_and_what_is_restored_knows_it(tmp_path: Path, machine: str) -> None:
    """The log of a ``log`` partition is restored, too, with its gap; a ``kv`` partition begins a new one."""
    kept, settings = tmp_path / "kept", {**SETTINGS, "cluster.state_machine": machine}
    with (
        LocalCluster(nodes=3, partitions=2, settings=settings, directory=tmp_path / "old") as cluster,
        cluster.client(timeout=30) as boom,
    ):
        for number in range(4):
            boom.submit(LOST, [Put(b"k%d" % number, b"x" * 200), Add(b"n", 1)], wait="applied")
        wait_for(lambda: all_equal(cluster, boom))
        kill_all(cluster)
        for node in cluster.nodes:
            flip(cluster, node, batch=2)
            cluster.start_node(node)
        wait_for(lambda: states(cluster, boom, LOST) == {"lost"})
        assert boom.void_batch(LOST, 5, yes=True)["void"]
        boom.submit(LOST, Add(b"n", 1), wait="applied")
        wait_for(lambda: all_equal(cluster, boom))
        logboom(cluster, "backup", str(kept))
        digests = [row[2] for row in boom.status(digests=True)["digests"]]
    assert run("verify", kept).exit_code == 0

    again = LocalCluster(nodes=1, partitions=2, settings=settings, directory=tmp_path / "new")
    assert run("restore", kept, "--config", again.config("n1")).exit_code == 0
    with again, again.client(timeout=30) as boom:
        wait_for(lambda: state_of(again, boom, "n1", LOST) == "running")
        assert [row[2] for row in boom.status(digests=True)["digests"]] == digests
        assert boom.status()["voids"][0] == 1
        assert boom.submit(LOST, Add(b"n", 1), wait="applied").first_index == 10
        if machine == "kv":
            assert (boom.get(LOST, b"n"), boom.get(LOST, b"k2")) == ((5,), None)
        gaps: list[object] = []
        found = [b.first_index for b in boom.tail(LOST, on_void=gaps.append, on_compacted="first")]
        assert found == ([10] if machine == "kv" else [1, 3, 7, 9, 10])
        assert [(gap.first_index, gap.next) for gap in gaps] == ([] if machine == "kv" else [(5, 7)])
    again.stop()
    assert run("verify", again.data_dirs["n1"]).exit_code == 0


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, [str(each) for each in arguments])
    print(result.output)
    return result


@pytest.mark.parametrize("kind", ["log", "kv"])
def test_what_a_set_has_of_a_batch_that_rots_is_there_after_a_kill(kind: str, tmp_path: Path) -> None:
    """The only node went on from an older state, and what it had acknowledged as applied was void."""
    with LocalCluster(nodes=1, partitions=1, state_machine=kind, settings=SETTINGS, directory=tmp_path) as alone:
        (node,) = alone.nodes
        state, before = alone.data_dirs[node] / "partitions" / str(LOST) / "state", tmp_path / "before"
        with alone.client(timeout=30) as boom:
            for number in range(4):
                boom.submit(LOST, Put(b"k%d" % number, b"x" * 200), wait="applied")
            kill_all(alone)
            shutil.copytree(state, before)
            alone.start_node(node)
            boom.create_snapshot()
            kill_all(alone)
            shutil.rmtree(state)  # as a kill leaves it that comes before it is saved
            shutil.copytree(before, state)
            flip(alone, node, batch=2, at=140 if kind == "kv" else 20)  # a log looks at headers alone
            alone.start_node(node)
            wait_for(lambda: states(alone, boom, LOST) == {"running"})
            wait_for(lambda: len(boom.status()["lost"]) == 1)
            wait_for(lambda: void_applied(boom))
            assert states(alone, boom, LOST) == {"running"}
            if kind == "kv":
                assert [boom.get(LOST, b"k%d" % number) for number in range(4)] == [b"x" * 200] * 4
        kill_all(alone)


def void_applied(boom: SyncClient) -> bool:
    """The node may be saving its state."""
    try:
        return bool(boom.void_batch(LOST, 3, yes=True)["applied"])
    except LogboomError:
        return False


@pytest.fixture
def _counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of a user: a start goes on from what it has saved, though a set has more."""
    about = tmp_path / "site" / "machines_of_users-1.0.dist-info"
    about.mkdir(parents=True)
    (about.parent / "machines_of_users.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: machines_of_users\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[logboom.state_machines]\ncounter = machines_of_users:Counter\n")
    monkeypatch.setenv("PYTHONPATH", str(about.parent), prepend=os.pathsep)
    monkeypatch.setenv("REFUSE_TO_LOAD", str(tmp_path / "refuse"))


@pytest.mark.usefixtures("_counter")
def test_all_nodes_come_to_have_what_one_of_them_has_in_a_set(tmp_path: Path) -> None:
    """Those that lacked it asked no more once they had heard of the set, or took an older one."""
    with (
        LocalCluster(
            nodes=3, partitions=1, state_machine="counter", settings=SETTINGS, directory=tmp_path / "c"
        ) as cluster,
        cluster.client(timeout=30) as boom,
    ):

        def write() -> None:
            for number in range(2):
                boom.submit(LOST, Record(b"%d" % number * 200), wait="applied")
            wait_for(lambda: all_equal(cluster, boom))

        def sets(node: str) -> list[Path]:
            return list((cluster.data_dirs[node] / "snapshots").glob("*.set"))

        def state(node: str) -> Path:
            return cluster.data_dirs[node] / "partitions" / str(LOST) / "state"

        write()
        kill_all(cluster)
        for node in cluster.nodes:
            shutil.copytree(state(node), tmp_path / node)
            cluster.start_node(node)
        write()
        boom.create_snapshot()
        wait_for(lambda: all(any(sets(node)) for node in cluster.nodes))
        kill_all(cluster)
        for node in cluster.nodes:
            shutil.rmtree(state(node))
            shutil.copytree(tmp_path / node, state(node))
            flip(cluster, node, batch=2)
            if node != "n2":
                for each in sets(node):
                    each.unlink()
        for node in cluster.nodes:
            cluster.start_node(node)

        def is_whole() -> bool:
            try:
                return all(
                    boom.get(LOST, b"", node=cluster.addresses[node], stale=True) == (4,) for node in cluster.nodes
                )
            except LogboomError:
                return False

        wait_for(is_whole)
        wait_for(lambda: all_equal(cluster, boom))
        assert boom.status()["voids"][0] == 0
