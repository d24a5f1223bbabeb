"""``logboom verify`` and ``logboom inspect`` on a node's files, and on damaged copies of them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logboom import Add, Put, Record, SyncClient
from logboom.cli import cli
from logboom.errors import LogboomError
from logboom.testing import LocalCluster
from logboom.types import NodeId
from partitions.log.batch import HEADER_BYTES
from partitions.log.segment import SEGMENT_HEADER_BYTES
from raftlog.journal.journal_codec import RECORD_HEADER, SEGMENT_HEADER
from raftlog.links.marks import Mark
from server.directory.directories import DIRECTORIES, HEARD, encode_heard
from server.directory.journal_of import OF
from server.directory.journal_of import encode as encode_of
from server.world.disk_os import OsDisk, OsFile
from tests.integration.cluster.snapshots_world import KV, LOG, SMALL, compact, fill
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.process


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], catch_exceptions=True)


def verified(path: Path) -> dict:
    result = run("verify", path, "-o", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code == 5) == found["damaged"], result.output
    return found


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Data of a node that has sealed and unsealed segments, places, a base, two sets, and both kinds of state."""
    directory = tmp_path_factory.mktemp("verify")
    with LocalCluster(nodes=1, partitions=2, settings=SMALL, directory=directory) as cluster:
        with cluster.client() as boom:
            fill(boom, batches=12)
            compact(cluster, boom)
            fill(boom, batches=3)
            for _ in range(4):  # what a compaction has the journal get rid of, it does with the next groups
                boom.submit(KV, Add(b"n", 1))
            boom.submit(LOG, [Record(b"last %d" % n) for n in range(3)])
            boom.submit(KV, [Put(b"last", b"value" * 40), Add(b"n", 1)])
        cluster.kill("n1", signal.SIGTERM)
        assert cluster.wait_ended("n1") == 0
        yield cluster.data_dirs["n1"]


@pytest.fixture
def copy(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "copy"))


def flip(path: Path, offset: int) -> Path:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)
    return path


def segments(copy: Path, partition: int) -> list[Path]:
    return sorted((copy / "partitions" / str(partition)).glob("*.log"))


def in_sealed(copy: Path) -> Path:
    return flip(segments(copy, LOG)[0], SEGMENT_HEADER_BYTES + HEADER_BYTES + 1000)


def in_last(copy: Path) -> Path:
    return flip(segments(copy, LOG)[-1], SEGMENT_HEADER_BYTES + HEADER_BYTES + 1000)


def in_segment_header(copy: Path) -> Path:
    return flip(segments(copy, LOG)[0], 9)


def in_index(copy: Path) -> Path:
    return flip(next((copy / "partitions" / str(LOG)).glob("*.idx")), 70)


def in_places(copy: Path) -> Path:
    return flip(copy / "partitions" / str(KV) / "places", 100)


def in_journal(copy: Path) -> Path:
    first = min((copy / "journal").glob("*.journal"))
    return flip(first, SEGMENT_HEADER.size + RECORD_HEADER.size)


def in_base(copy: Path) -> Path:
    return flip(copy / "journal" / "base", 30)


def in_manifest(copy: Path) -> Path:
    path = copy / "manifest.json"
    return flip(path, path.read_bytes().index(b"logboom"))


def in_set(copy: Path) -> Path:
    return flip(max((copy / "snapshots").glob("*.set")), 40)


def in_states(copy: Path) -> Path:
    return flip(max((copy / "snapshots").glob("*.states")), 5000)


def in_kv_value(copy: Path) -> Path:
    path = copy / "partitions" / str(KV) / "state" / "data.mdb"
    flip(path, path.read_bytes().rindex(b"valuevalue"))
    return path.parent


def in_checkpoint(copy: Path) -> Path:
    path = copy / "partitions" / str(LOG) / "state" / "checkpoint"
    flip(path, 4)
    return path.parent


def test_nothing_is_found_where_nothing_is_wrong(stopped: Path) -> None:
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    found = verified(stopped)
    assert found["findings"] == []
    assert set(found["checked"]) == {
        "manifests", "sets", "journal_files", "journal_entries", "partitions", "places", "segments", "batches",
        "indices", "states", "state_entries",
    }  # fmt: skip
    assert before == {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "damage",
    [
        in_sealed, in_last, in_segment_header, in_index, in_places, in_journal, in_base, in_manifest, in_set,
        in_states, in_kv_value, in_checkpoint,
    ],
)  # fmt: skip
def test_a_flipped_bit_is_found_and_its_file_is_named(copy: Path, damage: Callable[[Path], Path]) -> None:
    path = damage(copy)
    findings = [each for each in verified(copy)["findings"] if each["level"] == "damage"]
    assert str(path) in {each["path"] for each in findings}, findings
    assert all(each["advice"] for each in findings)


def test_wherever_a_bit_flips_it_is_seen_and_the_check_goes_on(copy: Path) -> None:
    """Zeros behind the end of what was written mean nothing, and LMDB has pages that are free."""
    chance = random.Random(3)
    files = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.name not in ("lock", "lock.mdb")]
    for _ in range(60):
        path = chance.choice(files)
        raw = path.read_bytes()
        at = chance.choice([k for k in chance.choices(range(len(raw)), k=100) if raw[k]] or [0])
        flip(path, at)
        found = verified(copy)["findings"]
        assert path.suffix == ".mdb" or {str(path), str(path.parent)} & {each["path"] for each in found}, (path, at)
        path.write_bytes(raw)


def test_what_the_journal_still_has_is_not_missed(copy: Path) -> None:
    last = segments(copy, LOG)[-1]
    flip(last, last.read_bytes().index(b"last 1"))
    found = verified(copy)
    assert not found["damaged"]
    assert [(each["level"], each["path"]) for each in found["findings"]] == [("note", str(last))]


def test_pages_that_lead_nowhere_do_not_end_the_check(copy: Path) -> None:
    path = copy / "partitions" / str(KV) / "state" / "data.mdb"
    raw = bytearray(path.read_bytes())
    for page in range(2, len(raw) // 4096):
        struct.pack_into("<HH", raw, page * 4096 + 12, 0xFFF0, 0xFFF0)  # where the page's free space is
    path.write_bytes(raw)
    assert str(path.parent) in {each["path"] for each in verified(copy)["findings"]}


def test_without_a_journal_the_logs_are_looked_at_all_the_same(copy: Path) -> None:
    in_journal(copy)
    path = in_sealed(copy)
    flip(segments(copy, LOG)[-1], -1000)
    found = verified(copy)["findings"]
    assert {each["path"] for each in found if each["level"] == "damage"} >= {str(path)}
    assert sum(each["path"] == str(path) for each in found) <= 2


def test_many_batches_in_a_row_are_one_finding(copy: Path) -> None:
    path = segments(copy, LOG)[0]
    path.write_bytes(path.read_bytes()[:SEGMENT_HEADER_BYTES])
    found = [each for each in verified(copy)["findings"] if each["path"] == str(path)]
    assert len(found) == 1
    assert "batches that end at 1 to 5" in found[0]["problem"]


@pytest.mark.parametrize("snapshot", [False, True], ids=["the journal says whose", "its base says whose"])
def test_states_of_partitions_that_were_created_are_looked_at(tmp_path: Path, snapshot: bool) -> None:
    with LocalCluster(nodes=1, partitions=1, directory=tmp_path) as cluster:
        with cluster.client() as boom:
            created = boom.create_partition(state_machine="kv")
            kept = boom.create_partition(state_machine="log")
            boom.submit(created, [Put(b"last", b"value" * 40)])
            boom.submit(kept, [Record(b"r")])
            if snapshot:
                boom.create_snapshot()
                boom.submit(created, [Put(b"more", b"m")])
                boom.create_snapshot()
                wait_for((cluster.data_dirs["n1"] / "journal" / "base").exists)
        cluster.kill("n1", signal.SIGTERM)
        assert cluster.wait_ended("n1") == 0
        data = cluster.data_dirs["n1"]
        assert verified(data)["findings"] == []
        state = data / "partitions" / str(created) / "state"
        flip(state / "data.mdb", (state / "data.mdb").read_bytes().rindex(b"valuevalue"))
        found = [each for each in verified(data)["findings"] if each["level"] == "damage"]
        assert [each["path"] for each in found] == [str(state)]
        if snapshot:
            in_journal(data)
            assert str(state) in {each["path"] for each in verified(data)["findings"] if each["level"] == "damage"}


def test_a_removed_segment_is_missed(copy: Path) -> None:
    segments(copy, LOG)[-1].unlink()
    found = verified(copy)
    assert found["damaged"]
    assert any(f"partitions/{LOG}" in each["path"] for each in found["findings"])


def test_a_running_node_is_left_alone(tmp_path: Path) -> None:
    with LocalCluster(nodes=1, partitions=1, directory=tmp_path) as cluster:
        result = run("verify", cluster.data_dirs["n1"])
        assert "is in use by another process" in str(result.exception)
        wait_for(lambda: cluster.alive("n1"))


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    assert "nor a backup" in str(run("verify", tmp_path).exception)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("aof", f"partitions/{LOG}/*.log"),
        ("journal", "journal/*.journal"),
        ("journal", "journal/base"),
        ("journal", "journal/newest"),
        ("manifest", "manifest.json"),
        ("snapshot", "snapshots/*.set"),
        ("places", f"partitions/{KV}/places"),
    ],
)
def test_every_kind_of_file_can_be_looked_into(stopped: Path, kind: str, pattern: str) -> None:
    path = max(stopped.glob(pattern))
    seen = json.loads(run("inspect", kind, path, "-o", "json").stdout)
    assert seen["path"] == str(path)
    assert seen["rows"] or kind == "manifest" or path.name == "newest"
    table = run("inspect", kind, path)
    assert table.exit_code == 0
    assert str(path) in table.stdout


def test_a_crash_is_no_damage(tmp_path: Path) -> None:
    """Killed at any moment, snapshots and compaction included: there may be notes, and nothing else."""
    busy = {**SMALL, "snapshot.entries": 20}
    chance = random.Random(11)
    with LocalCluster(nodes=3, partitions=2, settings=busy, directory=tmp_path) as cluster:
        with cluster.client(timeout=20) as boom:
            for _ in range(3):
                futures = [submitting(boom, size) for size in (200, 3_000, 60_000)]
                time.sleep(chance.uniform(0.2, 0.8))  # anywhere in it
                for node in cluster.nodes:
                    cluster.kill(node)
                for node in cluster.nodes:
                    found = verified(cluster.data_dirs[node])
                    assert not found["damaged"], found["findings"]
                for node in cluster.nodes:
                    cluster.start_node(node)
                for thread in futures:
                    thread.join()
        cluster.wait_serving()


def submitting(boom: SyncClient, size: int) -> threading.Thread:
    """Of batches of that size, until it fails, or a hundred are there."""

    def run() -> None:
        with contextlib.suppress(LogboomError):
            for number in range(100):
                boom.submit_many({KV: [Put(b"%d" % number, bytes(size))], LOG: [Record(bytes(size))]}, timeout=5)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_journal_of_another_directory_is_told(copy: Path) -> None:
    """Its node would set it aside: what was promised since is in another one."""
    (copy / "journal" / OF).write_bytes(encode_of(bytes(16)))
    (found,) = verified(copy)["findings"]
    assert (found["level"], Path(found["path"]).name) == ("damage", OF)
    assert "sets the journal aside" in found["advice"]


def test_a_directory_that_does_not_say_any_more_which_one_it_is_is_told(copy: Path) -> None:
    """The others would refuse its node: to those that have met it, it is another one."""
    (copy / DIRECTORIES).unlink()
    assert verified(copy)["findings"] == [], "as one of a release that had none, or that has met nobody"
    (copy / HEARD).write_bytes(encode_heard({NodeId("n2"): Mark(bytes(16), bytes(16), 7)}))
    (found,) = verified(copy)["findings"]
    assert (found["level"], Path(found["path"]).name) == ("damage", DIRECTORIES)
    assert "start it empty" in found["advice"]


@pytest.mark.parametrize(
    "pattern",
    [
        "manifest.json", "directories.json", "remembered.json", "journal/base", "journal/newest", "journal/of",
        "journal/*.journal", f"partitions/{LOG}/*.log", f"partitions/{LOG}/*.idx", f"partitions/{KV}/places",
        "snapshots/*.set", "snapshots/*.states", f"partitions/{LOG}/state/checkpoint",
    ],
)  # fmt: skip
def test_what_the_disk_cannot_read_is_told_and_the_rest_is_looked_at(
    copy: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """Found by review: the first bad sector ended the check, with one line, and nobody knew what else there is."""
    bad, read, read_file = max(copy.glob(pattern)), OsFile.read, OsDisk.read_file

    def fails(path: Path) -> None:
        if path == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def reading(file: OsFile, *, offset: int, length: int) -> bytes:
        fails(file.path)
        return read(file, offset=offset, length=length)

    def reading_file(disk: OsDisk, path: Path) -> bytes:
        fails(path)
        return read_file(disk, path)

    other = copy / "partitions" / str(KV) / "state"
    flip(other / "data.mdb", (other / "data.mdb").read_bytes().rindex(b"valuevalue"))
    monkeypatch.setattr(OsFile, "read", reading)
    monkeypatch.setattr(OsDisk, "read_file", reading_file)
    found = {each["path"]: each for each in verified(copy)["findings"] if each["level"] == "damage"}
    told = found.get(str(bad)) or found[str(bad.parent)]
    assert "Input/output error" in told["problem"]
    assert str(other) in found


def test_of_a_snapshot_only_what_says_what_it_is_is_read(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by review: all of the states were read into memory, and thrown away."""
    states, read = max(stopped.glob("snapshots/*.states")), list[str]()
    monkeypatch.setattr(OsDisk, "read_file", lambda _, path: (read.append(path.suffix), path.read_bytes())[1])
    assert json.loads(run("inspect", "snapshot", states, "-o", "json").stdout)["states_bytes"] == states.stat().st_size
    assert read == [".set"]


@pytest.mark.parametrize(
    "pattern",
    [
        "manifest.json", "journal/base", "journal/*.journal", "journal", f"partitions/{LOG}/*.log", f"partitions/{LOG}",
        f"partitions/{LOG}/*.idx", f"partitions/{KV}/places", "snapshots/*.set", "snapshots/*.states", "snapshots",
    ],
)  # fmt: skip
def test_something_else_by_the_name_of_what_has_to_be_there_does_not_end_the_check(copy: Path, pattern: str) -> None:
    path = max(copy.glob(pattern))
    if path.is_dir():
        shutil.rmtree(path)
        path.touch()
    else:
        path.unlink()
        path.mkdir()
    findings = [each for each in verified(copy)["findings"] if each["level"] == "damage"]
    assert {str(path), str(path.parent)} & {each["path"] for each in findings}, findings
