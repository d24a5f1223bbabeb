"""`logboom local` and the other commands against real nodes; a client over frozen and killed leaders."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from logboom import Add, Client, Put, Status
from logboom.errors import ConfigError, InvalidRequest, LogboomError, Unavailable
from logboom.testing import LocalCluster

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.process


def command(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LOGBOOM_")}
    return subprocess.run(
        [sys.executable, "-m", "logboom", *args], cwd=ROOT, env=clean | environment, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def nodes_of(directory: Path) -> list[str]:
    """Command lines of processes that run a node of this cluster."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(directory) in line and "node" in line.split("\0"):
            found.append(line)
    return found


def kill_if_there(pidfd: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def test_a_local_cluster_from_the_command_line(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    local = subprocess.Popen(
        [sys.executable, "-m", "logboom", "local", "--dir", str(directory), "--partitions", "4", "--tls", "-o", "json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert local.stdout is not None
        said = local.stdout.readline()
        assert said, local.communicate(timeout=30)[1]
        about = json.loads(said)
        assert len(nodes_of(directory)) == 3
        reach = {"LOGBOOM_ENDPOINTS": about["endpoints"], "LOGBOOM_TLS_DIR": str(directory / "tls")}

        rows = tmp_path / "rows.jsonl"
        rows.write_text("".join(json.dumps({"key": f"k{k}", "numbers": [k]}) + "\n" for k in range(200)))
        for duplicates in (0, 200):
            done = command("submit", "--by-key", "-f", str(rows), "--once", "rows", "-o", "json", **reach)
            assert done.returncode == 0, done.stderr
            parts = json.loads(done.stdout)
            assert [part["partition"] for part in parts] == [0, 1, 2, 3]
            assert sum(part["duplicate"] for part in parts) == duplicates
        target = str(max(part["global_index"] for part in parts))
        assert command("barrier", "-g", target, "--scope", "all", **reach).returncode == 0
        assert command("get", "k7", "-o", "json", **reach).stdout == '[{"key": "k7", "value": [7]}]\n'
        log = [json.loads(line) for line in command("tail", "-o", "jsonl", **reach).stdout.splitlines()]
        assert len(log) == 200
        assert [row["global_index"] for row in log] == sorted(row["global_index"] for row in log)

        assert command("status", **reach).returncode == 0
        assert command("partitions", "pause", "1", "--node", "n2", **reach).returncode == 0
        sick = command("status", "-o", "json", **reach)
        assert sick.returncode == 5
        said_of_all = json.loads(sick.stdout)
        assert said_of_all["problems"] == ["partition 1 on n2 is paused"]
        assert sum(node["admission"]["admitted"] for node in said_of_all["nodes"]) > 0
        assert all("withheld" in node["admission"] and "steps" in node["lag"] for node in said_of_all["nodes"])
        assert command("partitions", "resume", "1", "--node", "n2", **reach).returncode == 0

        stranger = command("get", "k7", "--timeout", "2s", LOGBOOM_ENDPOINTS=about["endpoints"])
        assert stranger.returncode == 3  # without TLS nobody answers
    finally:
        local.send_signal(signal.SIGTERM)
        _, err = local.communicate(timeout=30)
    assert local.returncode == 0, err
    assert not nodes_of(directory)


def test_nodes_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = (
        "import signal, sys; from logboom.testing import LocalCluster\n"
        "c = LocalCluster(nodes=2, partitions=1, directory=sys.argv[1]); c.start_node('n1'); c.start_node('n2')\n"
        "c.kill('n2', signal.SIGSTOP); print(c.pid('n1'), c.pid('n2'), flush=True); signal.pause()"
    )
    for number in (signal.SIGTERM, signal.SIGKILL):
        with ExitStack() as stack:
            parent = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(parent.kill)
            assert parent.stdout is not None
            ends = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
            for end in ends:
                stack.callback(os.close, end)
                stack.callback(kill_if_there, end)
            parent.send_signal(number)
            for end in ends:
                assert select.select([end], [], [], 30)[0]
        assert not nodes_of(tmp_path)


def test_a_node_that_is_started_again_lives_on() -> None:
    with LocalCluster(nodes=1, partitions=1) as cluster, cluster.client() as boom:
        boom.submit(0, Put(b"k", b"v"))
        for _ in range(2):
            cluster.restart("n1")
            cluster.wait_serving()
            assert boom.get(0, b"k") == b"v"


def test_a_node_that_was_told_to_end_is_not_waited_for() -> None:
    """Where it took longer than two seconds until the others served, it was said not to have started."""
    with LocalCluster(nodes=2, partitions=1) as cluster:
        cluster.kill("n1", signal.SIGTERM)
        cluster.wait_ended("n1")
        cluster.restart("n2")
        with pytest.raises(Unavailable, match="n2 did not start"):  # alone it is no majority
            cluster.wait_serving(timeout=3)
        cluster.start()


def test_stop_and_start_again(tmp_path: Path) -> None:
    kept = LocalCluster(nodes=1, partitions=1, directory=tmp_path)
    for _ in range(2):
        with kept:
            assert kept.alive("n1")
    with LocalCluster(nodes=1, partitions=1) as cluster:
        pass
    with pytest.raises(InvalidRequest, match="has removed the temporary directory"):
        cluster.start()
    with pytest.raises(InvalidRequest, match="has removed the temporary directory"):
        cluster.add_node()
    assert not cluster.directory.exists()


@pytest.mark.parametrize("tls", [False, True])
def test_a_cluster_that_has_grown_starts_again(tmp_path: Path, *, tls: bool) -> None:
    """From one node to two, which only have a majority together; a third is not taken in; another goes."""
    with LocalCluster(nodes=1, partitions=1, directory=tmp_path, tls=tls) as cluster, cluster.client() as boom:
        boom.submit(0, Put(b"k", b"v"))
        added = cluster.add_node()
        cluster.take_in(added, boom)
        boom.barrier(boom.last_seen, scope="all")
        assert (added, cluster.add_node()) == ("n2", "n3")
    with LocalCluster(nodes=1, partitions=1, directory=tmp_path, tls=tls) as cluster, cluster.client() as boom:
        assert cluster.nodes == ["n1", "n2", "n3"]
        assert boom.get(0, b"k") == b"v"
        assert boom.members().keys() == {"n1", "n2"}
        cluster.take_in("n3", boom)
        voters = lambda: [row["id"] for row in boom.member_list()["members"] if row["role"] == "voter"]  # noqa: E731
        while len(voters()) < 3:
            boom.barrier(boom.last_seen, scope="all")
        boom.remove_member("n1")
        cluster.forget("n1")
    with LocalCluster(nodes=1, partitions=1, directory=tmp_path, tls=tls) as cluster, cluster.client() as boom:
        assert cluster.nodes == ["n2", "n3"]
        assert boom.get(0, b"k") == b"v"
        if tls:
            (tmp_path / "tls" / "ca.key").unlink()
            with pytest.raises(ConfigError, match="gives no other node a certificate"):
                cluster.add_node()
        else:
            assert cluster.add_node() == "n4"


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_directory_of_a_cluster_of_another_size_is_refused(tmp_path: Path, nodes: int) -> None:
    LocalCluster(nodes=2, partitions=1, directory=tmp_path)
    refused = command("local", "--dir", str(tmp_path), "--nodes", str(nodes))
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert f"began with 2 nodes, not {nodes}" in refused.stderr


async def test_every_increment_counts_once_whatever_happens_to_leaders() -> None:
    with LocalCluster(nodes=3, partitions=2) as cluster:
        done: Counter[int] = Counter()
        stop = asyncio.Event()

        async def increment(boom: Client, worker: int) -> None:
            while not stop.is_set():
                receipt = await boom.submit(worker % 2, Add(b"c%d" % worker, 1))
                assert receipt.results == (Status.OK,)
                done[worker] += 1

        async def more() -> None:
            before = done.total()
            async with asyncio.timeout(30):
                while done.total() < before + 200:
                    turn = asyncio.get_running_loop().create_future()
                    asyncio.get_running_loop().call_later(0.01, turn.set_result, None)
                    await turn

        async with Client(cluster.endpoints) as boom:
            workers = [asyncio.create_task(increment(boom, k)) for k in range(20)]
            await more()
            frozen = await asyncio.to_thread(cluster.leader)
            cluster.kill(frozen, signal.SIGSTOP)
            await more()
            cluster.kill(frozen, signal.SIGCONT)
            await more()
            killed = await asyncio.to_thread(cluster.leader)
            await asyncio.to_thread(cluster.kill, killed)
            await more()
            cluster.restart(killed)
            stop.set()
            await asyncio.gather(*workers)
            for worker, count in done.items():
                assert await boom.get(worker % 2, b"c%d" % worker) == (count,)
            status = await boom.status_all()
            assert sum(not isinstance(each, LogboomError) for each in status.values()) >= 2


async def test_a_session_reads_its_own_writes_anywhere() -> None:
    with LocalCluster(nodes=3, partitions=2) as cluster:
        async with Client(cluster.endpoints) as boom:
            for k in range(30):
                await boom.submit(1, Put(b"k", b"%d" % k))
                node = cluster.nodes[k % 3]
                assert await boom.get(1, b"k", at_least="session", node=node) == b"%d" % k
