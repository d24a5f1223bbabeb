"""Bad input at start: one line, the right exit status, nothing changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from logboom import Client, Put, SyncClient
from logboom.config import load
from logboom.testing import LocalCluster, free_ports
from server.directory.manifest import sealed

pytestmark = pytest.mark.process


def _config(tmp_path: Path, **changes: str) -> Path:
    ports = free_ports(2)
    lines = {
        "cluster": f'members = [{{id = "n1", peer_address = "127.0.0.1:{ports[0]}", '
        f'client_address = "127.0.0.1:{ports[1]}"}}]',
        "node": f'id = "n1"\ndata_dir = "{tmp_path / "data"}"',
    } | changes
    file = tmp_path / "node.toml"
    file.write_text("\n".join(f"[{name}]\n{body}" for name, body in lines.items()))
    return file


def _run(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "logboom", "node", "--config", str(file)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def _one_line(result: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    assert result.returncode == status, result.stderr
    lines = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, result.stderr
    for word in words:
        assert word in lines[0]


def test_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    _one_line(_run(_config(tmp_path, raft="heartbeat = 5")), 2, "raft.heartbeat", "raft.heartbeat_ms")


def test_wrong_type_and_impossible_value(tmp_path: Path) -> None:
    _one_line(_run(_config(tmp_path, raft='heartbeat_ms = "soon"')), 2, "heartbeat_ms")
    _one_line(_run(_config(tmp_path, raft="heartbeat_ms = 100")), 2, "raft.election_min_ms")


def test_port_in_use(tmp_path: Path) -> None:
    with LocalCluster(nodes=1) as taken:
        address = taken.addresses["n1"]
        cluster = (
            f'members = [{{id = "n1", peer_address = "127.0.0.1:{free_ports(1)[0]}", client_address = "{address}"}}]'
        )
        _one_line(_run(_config(tmp_path, cluster=cluster)), 5, address)


def test_data_directory_of_another_node_of_another_format_or_of_nobody(tmp_path: Path) -> None:
    """So is one whose manifest is damaged, under another status: a restart, or other arguments, will not help."""
    data = tmp_path / "data"
    data.mkdir()
    file = data / "manifest.json"
    for change, word in (({"node": "n9"}, "n9"), ({"format": 99}, "99")):
        content = sealed(
            {"cluster": "logboom", "format": 2, "members": ["n1"], "node": "n1", "partitions": []} | change
        )
        file.write_bytes(content)
        _one_line(_run(_config(tmp_path)), 2, word)
        assert sorted(p.name for p in data.iterdir()) == ["manifest.json"]
        assert file.read_bytes() == content
    file.write_bytes(b"\0" * 64)
    damaged = _run(_config(tmp_path))
    what, advice = damaged.stderr.splitlines()
    assert damaged.returncode == 4
    assert "manifest.json" in what
    assert "corrupt_data" in what
    assert f"logboom verify {data}" in advice
    file.unlink()
    (data / "thesis.txt").write_text("precious")
    _one_line(_run(_config(tmp_path)), 2, "not empty")
    assert [p.name for p in data.iterdir()] == ["thesis.txt"]


def test_a_node_whose_log_nobody_reads_goes_on_and_stops_well(tmp_path: Path) -> None:
    file = _config(tmp_path)
    command = [sys.executable, "-m", "logboom", "node", "--config", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as node:
        try:
            assert node.stderr is not None
            while b'"recovered"' not in node.stderr.readline():
                assert node.poll() is None
            node.stderr.close()
            with SyncClient(load(file).cluster.members[0].client_address, timeout=10) as client:
                client.submit(0, Put(b"k", b"v"))
                client.create_snapshot()  # which is logged
                client.create_partition()
                assert client.get(0, b"k") == b"v"
            node.terminate()
            assert node.wait(20) == 0
        finally:
            node.kill()


async def test_a_configuration_that_would_lose_data(tmp_path: Path) -> None:
    """Fewer partitions or another state machine: refused, and with what it was everything is still there."""
    with LocalCluster(nodes=1, partitions=3, directory=tmp_path / "cluster") as cluster:
        async with Client(cluster.endpoints) as client:
            await client.submit(2, Put(b"key", b"precious"))
    config = cluster.config("n1")
    text = config.read_text()
    for before, after, word in (
        ("partitions = 3", "partitions = 2", "cluster.partitions: 2"),
        ("partitions = 3", 'partitions = 3\nstate_machine = "log"', "has data of 'kv'"),
    ):
        assert before in text
        config.write_text(text.replace(before, after))
        _one_line(_run(config), 2, "partition 2", word)
    config.write_text(text)
    with LocalCluster(nodes=1, partitions=5, directory=tmp_path / "cluster") as cluster:
        async with Client(cluster.endpoints) as client:
            await client.submit(4, Put(b"key", b"new"))
            assert await client.get(2, b"key") == b"precious"
