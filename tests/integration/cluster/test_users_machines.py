"""State machines of users that are no good: whoever asks for one is told so, and no node ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from logboom import Put, Record
from logboom.cli.operate import problems
from logboom.errors import DeadlineExceeded, InvalidRequest, LogboomError, PartitionFrozen
from logboom.testing import LocalCluster
from tests.integration.cluster.machines_world import MODULE
from tests.integration.cluster.snapshots_world import KV, SMALL, base, equal_states, has_set
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process
SETTINGS = {name: value for name, value in SMALL.items() if name != "cluster.overrides"}


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Machines of a user on every node; they load nothing while this file is there."""
    about = tmp_path / "site" / "machines_of_users-1.0.dist-info"
    about.mkdir(parents=True)
    (about.parent / "machines_of_users.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: machines_of_users\nVersion: 1.0\n")
    names = {"broken": "Broken", "counter": "Counter", "deaf": "Deaf", "rotten": "Rotten"}
    rows = [f"{name} = machines_of_users:{found}" for name, found in names.items()]
    (about / "entry_points.txt").write_text(
        "\n".join(["[logboom.state_machines]", *rows, "away = no_such_module:Away", ""])
    )
    monkeypatch.setenv("PYTHONPATH", str(about.parent))
    monkeypatch.setenv("REFUSE_TO_LOAD", str(tmp_path / "refuse"))
    return tmp_path / "refuse"


@pytest.mark.usefixtures("refuse")
def test_what_cannot_be_opened_is_refused_before_it_is_in_the_log(tmp_path: Path) -> None:
    """Every node ended at its entry, and at every start after that."""
    with LocalCluster(partitions=1, directory=tmp_path / "c") as cluster, cluster.client(timeout=10) as client:
        with pytest.raises(InvalidRequest, match="cannot be opened here: RuntimeError"):
            client.create_partition(state_machine="broken")
        with pytest.raises(InvalidRequest, match="cannot be loaded: ModuleNotFoundError"):
            client.create_partition(state_machine="away")
        with pytest.raises(InvalidRequest, match="cannot be dumped and loaded here: NotImplementedError"):
            client.create_partition(state_machine="deaf")
        created = client.create_partition()
        client.submit(created, Put(b"k", b"v"), wait="applied")
        assert all(cluster.alive(node) for node in cluster.nodes)
        assert not [*(tmp_path / "c").glob("*/data/trial-*")]


def test_a_snapshot_that_a_machine_cannot_load_costs_its_partition_on_that_node_not_the_node(
    tmp_path: Path, refuse: Path
) -> None:
    """Found by review: the node ended, and at each start again, while those who never had to load it went on."""
    with (
        LocalCluster(partitions=1, directory=tmp_path / "c", settings=SETTINGS) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created = client.create_partition(state_machine="counter")
        away = next(node for node in cluster.nodes if node != cluster.leader())
        address = cluster.addresses[away]
        cluster.kill(away)
        running = [node for node in cluster.nodes if node != away]

        def is_compacted() -> bool:
            for partition in (KV, created):
                client.submit(partition, [Put(b"k", os.urandom(100_000))] * 2, wait="applied")
            client.create_snapshot()  # a node that is still busy with the one before passes it over
            return all(base(cluster, client, node) > 1 for node in running)

        wait_for(is_compacted)
        refuse.touch()
        cluster.start_node(away)

        last = client.submit(KV, Put(b"k", b"v"), wait="applied").global_index
        wait_for(lambda: holds(lambda: client.get(KV, b"k", node=address, at_least=last) == b"v"))
        with pytest.raises(LogboomError, match="not today"):
            client.get(created, b"k", node=address, stale=True)
        refuse.unlink()
        client.create_snapshot()  # one that nobody has tried yet
        wait_for(lambda: holds(lambda: equal_states(cluster, client)))


def test_a_node_without_a_machine_goes_on_without_its_partition(tmp_path: Path, refuse: Path) -> None:
    """Found by review: it ended at that entry, and at every start; two of three such nodes were the whole cluster."""
    missing = refuse.with_name("refuse-in")
    with LocalCluster(partitions=1, directory=tmp_path / "c") as cluster, cluster.client(timeout=20) as client:
        there = cluster.addresses["n2"]
        if cluster.leader() == "n2":
            client.transfer("n1")
        missing.touch()
        created = client.create_partition(state_machine="counter")

        def goes_on() -> None:
            last = client.submit(KV, Put(b"k", b"v"), wait="applied").global_index
            assert client.get(KV, b"k", node=there, at_least=last) == b"v"
            client.submit(created, Record(b"x"), wait="applied")
            with pytest.raises(LogboomError, match="cannot be opened here: ModuleNotFoundError"):
                client.get(created, b"k", node=there, stale=True)
            rows = {row[0]: row[-1] for row in client.status(node=there)["partitions"]}
            assert rows[created] == "damaged"

        wait_for(lambda: holds(lambda: bool(client.status(node=there)["partitions"][created:])))
        goes_on()
        cluster.kill("n2")
        cluster.start_node("n2")
        wait_for(lambda: holds(lambda: goes_on() is None))
        missing.unlink()
        cluster.kill("n2")
        cluster.start_node("n2")
        wait_for(lambda: holds(lambda: equal_states(cluster, client)))


def test_a_call_that_does_not_return_is_seen_after_a_start_too(tmp_path: Path, refuse: Path) -> None:
    """Found by review: what had not recovered was neither looked at nor shown, and kept all else from being so."""
    hangs = refuse.with_name("refuse-to-end")
    settings = {"lag.look_ms": 50, "lag.stalled_ms": 500, "node.stop_ms": 1_000}
    with (
        LocalCluster(nodes=1, partitions=1, directory=tmp_path / "c", settings=settings) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created = client.create_partition(state_machine="counter")
        hangs.touch()
        client.submit(created, Record(b"x"), wait="committed")
        cluster.kill("n1")
        cluster.start_node("n1")
        wait_for(lambda: holds(lambda: [created, "frozen"] in client.status()["lag"]["held"]))
        assert {row[0]: row[-1] for row in client.status()["partitions"]}[created] == "frozen"
        with pytest.raises((PartitionFrozen, DeadlineExceeded), match="is frozen"):  # on a slow machine the latter
            client.submit(created, Record(b"x"), timeout=5)
        client.submit(KV, Put(b"k", b"v"), wait="applied")
        cluster.kill("n1", signal.SIGTERM)
        assert cluster.wait_ended("n1", timeout=20) != 0
        hangs.unlink()
        cluster.start_node("n1")
        client.submit(created, Record(b"x"), wait="applied")


def test_calls_that_do_not_return_keep_no_thread_that_others_need(tmp_path: Path, refuse: Path) -> None:
    """Found by review: four partitions with such a call, and nothing was applied or read on any node any more."""
    hangs = refuse.with_name("refuse-to-end")
    settings = {"apply.inline_bytes": 0, "node.stop_ms": 1_000}
    with (
        LocalCluster(nodes=1, partitions=1, directory=tmp_path / "c", settings=settings) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created = [client.create_partition(state_machine="counter") for _ in range(6)]
        hangs.touch()
        for partition in created:
            client.submit(partition, Record(b"x"), wait="committed")
        client.submit(KV, Put(b"k", b"v"), wait="applied", timeout=10)
        assert client.get(KV, b"k") == b"v"
        hangs.unlink()
        for partition in created:
            client.submit(partition, Record(b"x"), wait="applied")


def test_a_scan_that_does_not_return_costs_a_view_and_not_its_partition(tmp_path: Path, refuse: Path) -> None:
    """It applied nothing any more, and the node took no snapshot. Views that were asked for again took all threads.

    What is destroyed stays open as long as it is asked, and no longer.
    """
    hangs = refuse.with_name("refuse-to-scan")
    with (
        LocalCluster(nodes=1, partitions=1, directory=tmp_path / "c", settings=SETTINGS) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created = client.create_partition(state_machine="counter")
        client.submit(created, Record(b"x"), wait="applied")
        assert [tuple(each)[:2] for each in client.scan_view([KV, created])] == [(created, b"count")]
        hangs.touch()
        for _ in range(5):  # one more than there are threads
            with pytest.raises(LogboomError):
                list(client.scan_view([KV, created], timeout=0.5))
        last = client.submit(created, Record(b"x"), wait="applied").global_index
        assert client.create_snapshot()["global_index"] >= last
        assert client.get(created, b"count") == (2,)
        client.destroy_partition(created)
        client.submit(KV, Put(b"k", b"v"), wait="applied")
        closed = refuse.with_name(f"refuse-closed-{created}")
        assert not closed.exists()
        hangs.unlink()
        wait_for(closed.exists)
        cluster.kill("n1", signal.SIGTERM)
        assert cluster.wait_ended("n1", timeout=20) == 0


@pytest.mark.parametrize("mode", ["write_ahead", "write_behind"])
def test_an_open_that_does_not_return_on_others_keeps_nothing_but_its_partition_from_going_on(
    tmp_path: Path, refuse: Path, *, mode: str
) -> None:
    """Nothing was committed any more, of any partition, once something was ordered of that one.

    And what is applied once a majority has synced it was applied nowhere.
    """
    hangs = [refuse.with_name(f"refuse-to-open-{node}") for node in ("n2", "n3")]
    with (
        LocalCluster(partitions=1, directory=tmp_path / "c") as cluster,
        cluster.client(timeout=20) as client,
    ):
        if cluster.leader() != "n1":
            client.transfer("n1")
        for path in hangs:
            path.touch()
        first, *others = (client.create_partition(state_machine="counter", mode=mode) for _ in range(6))
        for partition in (first, *others):
            client.submit(partition, Record(b"x"), wait="applied")
        last = client.submit(KV, Put(b"k", b"v"), wait="applied").global_index
        there = cluster.addresses["n2"]
        assert client.get(KV, b"k", node=there, at_least=last) == b"v"
        with pytest.raises(LogboomError, match="is being opened"):
            client.get(first, b"k", node=there, stale=True, timeout=1)
        client.destroy_partition(others.pop())
        client.submit(KV, Put(b"k", b"w"), wait="applied")
        for path in hangs:
            path.unlink()
        wait_for(lambda: holds(lambda: equal_states(cluster, client)))
        assert [client.get(p, b"k", node=there, at_least=last) for p in (first, *others)] == [(1,)] * 5


def test_a_dump_that_does_not_return_keeps_nothing_but_snapshots_from_going_on(tmp_path: Path, refuse: Path) -> None:
    """Found by review: one thread did all that lasts. Nothing was scrubbed or made anew on that node any more."""
    hangs = refuse.with_name("refuse-to-dump")
    settings = {"scrub.pause_ms": 200, "scrub.bytes_per_s": 1 << 30, "node.stop_ms": 1_000}
    with (
        LocalCluster(nodes=1, partitions=1, directory=tmp_path / "c", settings=settings) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created = client.create_partition(state_machine="counter")
        client.submit(created, Record(b"x"), wait="applied")
        client.submit(KV, Put(b"k", b"v"), wait="applied")
        first = client.create_snapshot()
        client.submit(KV, Put(b"k", b"w"), wait="applied")
        hangs.touch()
        with pytest.raises(DeadlineExceeded):
            client.create_snapshot(timeout=2)
        passes = client.status()["scrub"]["pass"]
        wait_for(lambda: client.status()["scrub"]["pass"] > passes + 2)
        states = next((cluster.data_dirs["n1"] / "snapshots").glob("*.states"))
        states.write_bytes(bytes(states.stat().st_size))
        wait_for(lambda: client.status()["scrub"]["damaged"] == 1)
        wait_for(lambda: not client.snapshots()["sets"])  # what is damaged is removed
        hangs.unlink()
        wait_for(lambda: holds(lambda: client.create_snapshot()["global_index"] > first["global_index"]))


def test_a_dump_that_does_not_return_is_given_up_and_its_partition_may_go(tmp_path: Path, refuse: Path) -> None:
    """Found by review: no snapshot was taken any more, whatever became of the partition, and nobody said which."""
    hangs = refuse.with_name("refuse-to-dump")
    settings = {"snapshot.dump_stall_ms": 500}
    with (
        LocalCluster(nodes=1, partitions=1, directory=tmp_path / "c", settings=settings) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created, other = (client.create_partition(state_machine="counter") for _ in range(2))
        client.submit(created, Record(b"x"), wait="applied")
        hangs.touch()
        with pytest.raises(LogboomError, match=f"the dump of partition {created}"):
            client.create_snapshot()
        with pytest.raises(LogboomError, match=f"dump of partition {created} .* has not returned"):
            client.create_snapshot()
        for partition in (created, other):
            client.destroy_partition(partition)
        last = client.submit(KV, Put(b"k", b"v"), wait="applied").global_index
        assert client.create_snapshot()["global_index"] >= last
        hangs.unlink()
        wait_for(lambda: "dump_returned" in cluster.log("n1").read_text())


def test_a_node_whose_dump_does_not_return_goes_by_the_snapshots_of_the_others(tmp_path: Path, refuse: Path) -> None:
    """Its log and its journal grew for ever, and nobody was told but its own log."""
    hangs = refuse.with_name("refuse-to-dump-in")
    settings = {**SETTINGS, "snapshot.dump_stall_ms": 500}
    with (
        LocalCluster(partitions=1, directory=tmp_path / "c", settings=settings) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created = client.create_partition(state_machine="counter")
        if cluster.leader() == "n2":
            client.transfer("n1")
        hangs.touch()
        for number in range(3):
            client.submit(KV, [Put(b"k", os.urandom(100_000))] * 2, wait="applied")
            client.submit(created, Record(b"%d" % number), wait="applied")
            last = client.create_snapshot()
            wait_for(lambda: client.status(node=cluster.addresses["n2"])["stuck"] == [created])
            if number:  # what that thread has begun to write nobody else does
                wait_for(partial(has_set, client, cluster.addresses["n2"], last["global_index"]))
        wait_for(lambda: base(cluster, client, "n2") > 1)
        answers = {node: client.status(node=cluster.addresses[node]) for node in cluster.nodes}
        assert [f"partition {created} on n2" in each for each in problems(answers)] == [True]
        assert client.get(created, b"k", node=cluster.addresses["n2"], stale=True) == (3,)
        assert "snapshot_kept" in cluster.log("n2").read_text()
        assert "installing" not in cluster.log("n2").read_text()
        hangs.unlink()
        wait_for(lambda: not client.status(node=cluster.addresses["n2"])["stuck"])
        wait_for(lambda: holds(lambda: equal_states(cluster, client)))


def test_a_node_whose_dump_raises_goes_by_the_snapshots_of_the_others(tmp_path: Path, refuse: Path) -> None:
    """Its log and its journal grew until its disk was full."""
    raises = refuse.with_name("refuse-to-give-in")
    with (
        LocalCluster(partitions=1, directory=tmp_path / "c", settings=SETTINGS) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created = client.create_partition(state_machine="counter")
        if cluster.leader() == "n2":
            client.transfer("n1")
        # Where it is not open yet a cut is passed over, and there is nothing to raise.
        wait_for(lambda: holds(lambda: client.get(created, b"k", node=cluster.addresses["n2"], stale=True) == (0,)))
        raises.touch()
        for number in range(2):
            client.submit(KV, [Put(b"k", os.urandom(100_000))] * 2, wait="applied")
            client.submit(created, Record(b"%d" % number), wait="applied")
            last = client.create_snapshot()
            wait_for(partial(has_set, client, cluster.addresses["n2"], last["global_index"]))
        wait_for(lambda: base(cluster, client, "n2") > 1)
        assert client.get(created, b"k", node=cluster.addresses["n2"], stale=True) == (2,)
        assert "snapshot_kept" in cluster.log("n2").read_text()
        raises.unlink()
        client.submit(created, Record(b"x"), wait="applied")
        last = client.create_snapshot()
        wait_for(partial(has_set, client, cluster.addresses["n2"], last["global_index"]))
        wait_for(lambda: holds(lambda: equal_states(cluster, client)))


@pytest.mark.parametrize("killed", [False, True])
def test_a_node_whose_open_does_not_return_goes_by_the_snapshots_of_the_others(
    tmp_path: Path, refuse: Path, *, killed: bool
) -> None:
    """Its logs and its journal grew for as long as that call lasted: it took no set, and fetched none."""
    hangs = refuse.with_name("refuse-to-open-n2")
    settings = {**SETTINGS, "snapshot.dump_stall_ms": 500}
    with (
        LocalCluster(partitions=1, directory=tmp_path / "c", settings=settings) as cluster,
        cluster.client(timeout=20) as client,
    ):
        if cluster.leader() == "n2":
            client.transfer("n1")
        hangs.touch()
        created = client.create_partition(state_machine="counter")
        for number in range(3):
            client.submit(KV, [Put(b"k", os.urandom(100_000))] * 2, wait="applied")
            client.submit(created, Record(b"%d" % number), wait="applied")
            last = client.create_snapshot()
            wait_for(partial(has_set, client, cluster.addresses["n2"], last["global_index"]))
        wait_for(lambda: base(cluster, client, "n2") > 1)
        assert "snapshot_kept" in cluster.log("n2").read_text()
        with pytest.raises(LogboomError, match="is being opened"):
            client.get(created, b"k", node=cluster.addresses["n2"], stale=True, timeout=1)
        assert [row[:2] for row in client.status(node=cluster.addresses["n2"])["opening"]] == [[created, ""]]
        if killed:
            cluster.kill("n2")
        hangs.unlink()
        if killed:
            cluster.start_node("n2")
        wait_for(lambda: holds(lambda: equal_states(cluster, client)))
        assert client.get(created, b"k", node=cluster.addresses["n2"], stale=True) == (3,)
        client.submit(created, Record(b"x"), wait="applied")
        last = client.create_snapshot()
        wait_for(partial(has_set, client, cluster.addresses["n2"], last["global_index"]))


def test_a_checkpoint_that_reaches_no_service_is_tried_again(tmp_path: Path, refuse: Path) -> None:
    """It ended its node: an OSError is a disk's."""
    fails = refuse.with_name("refuse-to-save")
    with (
        LocalCluster(nodes=1, partitions=1, directory=tmp_path / "c", settings=SETTINGS) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created = client.create_partition(state_machine="counter")
        fails.touch()

        def goes_on() -> bool:
            for partition in (KV, created):
                client.submit(partition, [Put(b"k", os.urandom(100_000))] * 2, wait="applied")
            client.create_snapshot()
            return "checkpoint_failed" in cluster.log("n1").read_text()

        wait_for(goes_on)
        assert cluster.alive("n1")
        fails.unlink()
        wait_for(lambda: goes_on() and base(cluster, client, "n1") > 1)


def test_a_close_that_does_not_return_keeps_no_node_from_ending(tmp_path: Path, refuse: Path) -> None:
    """Found by review: it is called on the loop, where the time that a node has to close was looked at, too."""
    hangs = refuse.with_name("refuse-to-close")
    with (
        LocalCluster(nodes=1, partitions=1, directory=tmp_path / "c", settings={"node.stop_ms": 1_000}) as cluster,
        cluster.client(timeout=20) as client,
    ):
        created = client.create_partition(state_machine="counter")
        client.submit(created, Record(b"x"), wait="applied")
        hangs.touch()
        cluster.kill("n1", signal.SIGTERM)
        assert cluster.wait_ended("n1", timeout=20) == 5
        hangs.unlink()
        cluster.start_node("n1")
        client.submit(created, Record(b"x"), wait="applied")


def test_a_load_or_a_scrub_that_does_not_return_keeps_no_other_state_waiting(tmp_path: Path, refuse: Path) -> None:
    """Nothing was scrubbed, and no state made anew, on that node until its next start."""
    settings = {
        **SETTINGS,
        "scrub.pause_ms": 200,
        "scrub.stall_ms": 500,
        "snapshot.load_stall_ms": 500,
        "node.stop_ms": 1_000,
    }
    with (
        LocalCluster(nodes=1, partitions=1, directory=tmp_path / "c", settings=settings) as cluster,
        cluster.client(timeout=20) as client,
    ):
        one, other, third = (client.create_partition(state_machine="rotten") for _ in range(3))
        for partition in (one, other, third):
            client.submit(partition, Record(b"x"), wait="applied")
        client.create_snapshot()
        hangs = [refuse.with_name(f"refuse-to-load-{one}"), refuse.with_name(f"refuse-to-scrub-{third}")]
        for path in (*hangs, refuse.with_name(f"refuse-rotten-{one}"), refuse.with_name(f"refuse-rotten-{other}")):
            path.touch()
        wait_for(lambda: client.status()["scrub"]["stuck"] == [f"state of partition {third}"])
        wait_for(lambda: client.status()["scrub"]["damaged"] == 2)
        wait_for(lambda: holds(lambda: client.get(other, b"k", stale=True) == (1,)))
        with pytest.raises(LogboomError, match=r"has taken nothing for 0\.5 s"):
            client.get(one, b"k", stale=True)
        assert len(problems({"n1": client.status()})) >= 2
        client.submit(other, Record(b"y"), wait="applied")
        with pytest.raises(LogboomError, match="the state of a partition is damaged here"):
            client.create_snapshot()  # it waited for that state, and held those of all others, until the node ended
        for path in hangs:
            path.unlink()
        wait_for(lambda: holds(lambda: client.get(one, b"k", stale=True) == (1,)))
        wait_for(lambda: not client.status()["scrub"]["stuck"])


def holds(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except LogboomError:
        return False
