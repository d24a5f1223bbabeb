"""What is the same for every system: its programs, its processes, its place in the registry."""

import os
import socket
import struct
import threading

import pytest

from bench import systems, targets
from bench.systems import SYSTEMS, Missing, disk, postgres, programs
from bench.systems.processes import Processes
from bench.works import works


def test_every_work_names_systems_that_are_known_and_asks_them_by_their_names():
    for work in works():
        assert "logboom" in work.shapes
        for name, shapes in work.shapes.items():
            assert name in SYSTEMS
            assert {shape.system for shape in shapes} == {name}


def test_a_load_reaches_the_client_of_its_system():
    job = {"machine": "log", "wait": "committed", "partitions": 1, "value_bytes": 8}
    for name, module in (("etcd", systems.etcd), ("redis", systems.redis), ("logboom", systems.logboom)):
        assert isinstance(targets.make(name, ["127.0.0.1:1"], 1, **job), module.Target)


def test_few_blocks_are_made_of_large_ones():
    assert targets.prepared(256_000) == 64
    assert targets.prepared(2_560_000) == 26
    assert targets.prepared(1 << 30) == 4


def test_a_peer_that_is_nowhere_is_said_with_what_to_do(monkeypatch, tmp_path):
    script = tmp_path / "scripts" / "peers"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho 'etcd: not found; on Debian: apt-get install etcd-server' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(programs, "ROOT", tmp_path)
    with pytest.raises(Missing, match="apt-get install etcd-server"):
        programs.find("etcd", "etcd")


def test_an_unpacked_program_alone_sees_the_libraries_beside_it(monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "UNPACKED", tmp_path)
    monkeypatch.setenv("ETCD_NAME", "x")
    libraries = tmp_path / "redis/usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    own = programs.environment(tmp_path / "redis/usr/bin/redis-server")
    assert own["LD_LIBRARY_PATH"] == str(libraries)
    assert "ETCD_NAME" not in own
    theirs = programs.environment(tmp_path.parent / "bin/etcd")
    assert theirs.get("LD_LIBRARY_PATH") == os.environ.get("LD_LIBRARY_PATH")


class Sleepers(Processes):
    """Three processes that do nothing; the last that lives leads."""

    def command(self, node):
        return ["sleep", "60"] if node != "broken" else ["sh", "-c", "echo no way; exit 1"]

    def find_leader(self):
        return next((node for node in reversed(self.nodes) if self.alive(node) and node != "broken"), None)


def test_nodes_are_killed_started_again_and_ended(tmp_path):
    with Sleepers(tmp_path / "sleep", tmp_path) as cluster:
        pids = {node: cluster.pid(node) for node in cluster.nodes}
        assert cluster.client_addresses() == (cluster.addresses["n3"],)
        cluster.kill("n3")
        assert cluster.leader() == "n2"
        cluster.start_node("n3")
        assert cluster.leader() == "n3"
        assert cluster.pid("n3") != pids["n3"]
    assert not any(cluster.alive(node) for node in cluster.nodes)


def test_a_cluster_that_does_not_start_shows_its_log(tmp_path):
    cluster = Sleepers(tmp_path / "sleep", tmp_path)
    cluster.nodes = ["broken"]
    with pytest.raises(TimeoutError, match="no way"), cluster:
        pass


def test_rows_of_copy_are_one_column_each():
    head = b"PGCOPY\n\xff\r\n\0" + bytes(8)
    assert postgres.copy_data([b"ab", b""]) == head + b"\0\1" + b"\0\0\0\2ab" + b"\0\1" + bytes(4) + b"\xff\xff"


def test_postgres_without_its_client_is_missing(monkeypatch):
    monkeypatch.setattr(postgres, "find_spec", lambda _: None)
    with pytest.raises(Missing, match=r"requirements/bench\.txt"):
        postgres.find()


def test_a_writer_keeps_its_files_small_and_answers_each_block(monkeypatch, tmp_path):
    monkeypatch.setattr(disk, "FILE_BYTES", 10_000)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    threading.Thread(target=disk.write, args=(tmp_path, port), daemon=True).start()
    for _ in range(200):
        try:
            client = socket.create_connection(("127.0.0.1", port), 1)
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.01)
    with client:
        for size in (4_000, 4_000, 4_000):
            client.sendall(struct.pack(">I", size))
            assert client.recv(4, socket.MSG_WAITALL) == struct.pack(">I", size)
    assert {file.name: file.stat().st_size for file in tmp_path.iterdir()} == {"2": 4_000}
