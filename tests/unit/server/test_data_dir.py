"""Whose directory it is: refused in one typed line, and nothing on disk changed."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from logboom.errors import ConfigError, CorruptData, IncompatibleVersion, LogboomError, WrongNode
from logboom.types import DurabilityMode
from ports.disk import Buffer
from server.directory.data_dir import DataDir
from server.directory.manifest import Manifest, PartitionKinds, decode, encode, sealed
from server.main import _may_pass
from server.world.disk_os import OsDisk, OsLock

FILE = "manifest.json"


def ours_is(node: str = "n1", cluster: str = "c1", members: str = "n1 n2 n3") -> Manifest:
    return Manifest(
        node=node,
        cluster=cluster,
        members=tuple(members.split()),
        partitions=(PartitionKinds(8, "kv", DurabilityMode.WRITE_AHEAD),),
    )


OURS = ours_is()
NOBODY = 65534
HOLDER = """
import sys
from pathlib import Path
from server.directory.data_dir import DataDir
from server.world.disk_os import OsDisk
from tests.unit.server.test_data_dir import OURS
held = DataDir(Path(sys.argv[1]), disk=OsDisk(), manifest=OURS)
print("held", flush=True)
sys.stdin.read()
"""


class FullDisk(OsDisk):
    def replace_file(self, path: Path, *content: Buffer) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def open_dir(path: Path, *, disk: OsDisk | None = None, wanted: Manifest = OURS) -> DataDir:
    return DataDir(path, disk=disk or OsDisk(), manifest=wanted)


def held_by(path: Path) -> Manifest:
    return decode((path / FILE).read_bytes(), path="here")


def tree(root: Path) -> dict[str, Any]:
    """All that a visitor could have changed, short of access times."""
    return {
        str(path.relative_to(root)): (about.st_mode, about.st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in sorted([root, *root.rglob("*")])
        if (about := path.lstat())
    }


def refused(path: Path, kind: type[LogboomError], *words: str, wanted: Manifest = OURS) -> LogboomError:
    """Opening fails with one line that names the directory."""
    with pytest.raises(LogboomError) as error:
        open_dir(path, wanted=wanted)
    assert type(error.value) is kind
    for word in (str(path), *words):
        assert word in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    return error.value


@contextmanager
def another_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Holds ``path`` open until the block ends."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A directory that node n1 of cluster c1 has used."""
    path = tmp_path / "data"
    held = open_dir(path)
    held.journal.mkdir()
    (held.journal / "1.journal").write_bytes(b"precious")
    held.close()
    return path


class TestOpened:
    @pytest.mark.parametrize("prepare", [lambda _: None, Path.mkdir, lambda p: (p.mkdir(), (p / "lock").touch())])
    def test_fresh(self, tmp_path: Path, prepare: Callable[[Path], Any]) -> None:
        prepare(tmp_path / "data")
        open_dir(tmp_path / "data").close()
        assert held_by(tmp_path / "data") == OURS
        assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["lock", FILE]

    def test_fresh_where_a_file_system_is_mounted(self, tmp_path: Path) -> None:
        (tmp_path / "lost+found").mkdir(mode=0)
        open_dir(tmp_path).close()
        open_dir(tmp_path).close()
        assert held_by(tmp_path) == OURS

    def test_fresh_with_parents(self, tmp_path: Path) -> None:
        open_dir(tmp_path / "var" / "lib" / "data").close()
        open_dir(tmp_path / "var" / "lib" / "data").close()

    def test_reopening_changes_nothing(self, ours: Path) -> None:
        before = tree(ours)
        open_dir(ours).close()
        assert tree(ours) == before

    def test_everything_lies_inside(self, ours: Path) -> None:
        held = open_dir(ours)
        places = [held.journal, *map(held.partition, range(3))]
        held.close()
        assert len({*places}) == 4
        assert all(place.is_relative_to(ours) for place in places)

    def test_partitions_that_nobody_names_are_told_and_left(self, ours: Path) -> None:
        held = open_dir(ours)
        assert held.strangers(OsDisk(), {0, 1}) == []
        for name in ("0", "1", "7", "backup", "01", "\u00b2"):
            (ours / "partitions" / name).mkdir(parents=True)
        before = tree(ours)
        assert held.strangers(OsDisk(), {0, 1}) == ["01", "7", "backup", "\u00b2"]
        assert tree(ours) == before
        held.close()


class TestRefused:
    @pytest.mark.parametrize(
        ("who", "words"), [({"node": "n2"}, ("'n1'", "'n2'")), ({"cluster": "c2"}, ("'c1'", "'c2'"))]
    )
    def test_another_node_or_cluster(self, ours: Path, who: dict[str, str], words: tuple[str, ...]) -> None:
        before = tree(ours)
        refused(ours, WrongNode, *words, wanted=ours_is(**who))
        assert tree(ours) == before

    @pytest.mark.parametrize("members", ["n1", "n1 n2", "n1 n2 n4", "n1 n2 n3 n4 n5"])
    def test_other_members_where_the_log_says_nothing_of_them(self, members: str) -> None:
        with pytest.raises(ConfigError, match="n1, n2, n3") as caught:
            OURS.check_members(ours_is(members=members), "here")
        assert caught.value.path == "cluster.members"

    def test_whoever_joins_begins_with_no_members(self) -> None:
        ours_is(members="").check_members(OURS, "here")

    def test_a_newer_format(self, ours: Path) -> None:
        (ours / FILE).write_bytes(sealed({"format": 5, "node_id": "n1", "cluster_id": "c1"}))
        before = tree(ours)
        error = refused(ours, IncompatibleVersion, "format 5")
        assert (error.found, error.supported) == (5, 4)
        assert tree(ours) == before

    def test_the_format_before(self, ours: Path) -> None:
        (ours / FILE).unlink()
        (ours / "identity.json").write_bytes(b'{"format": 1, "node": "n1", "cluster": "c1"}')
        before = tree(ours)
        error = refused(ours, IncompatibleVersion, "format 1")
        assert (error.found, error.supported) == (1, 4)
        assert tree(ours) == before

    @pytest.mark.parametrize(
        "content",
        [b"", b"\0" * 50, b"\xff\xfe", b"[]", b"1", b"null", b'"format"', b"{}", b"[" * 9999, sealed({"format": 2})],
    )
    def test_a_manifest_that_is_none(self, ours: Path, content: bytes) -> None:
        (ours / FILE).write_bytes(content)
        before = tree(ours)
        error = refused(ours, CorruptData)
        assert error.path == str(ours / FILE)
        assert tree(ours) == before

    def test_a_manifest_half_written_anywhere(self, ours: Path) -> None:
        file = ours / FILE
        whole = file.read_bytes().rstrip()
        for cut in range(len(whole)):
            file.write_bytes(whole[:cut])
            refused(ours, CorruptData)
            assert file.read_bytes() == whole[:cut]

    def test_what_is_not_ours_is_not_moved_into(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("precious")
        before = tree(tmp_path)
        refused(tmp_path, WrongNode, "not empty")
        assert tree(tmp_path) == before

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("precious")
        before = tree(tmp_path)
        for path in (tmp_path / "thesis.txt", tmp_path / "thesis.txt" / "data"):
            assert refused(path, ConfigError).path == "node.data_dir"
        assert tree(tmp_path) == before

    @pytest.mark.parametrize(("mode", "below"), [(0o555, ""), (0o555, "data"), (0o000, ""), (0o000, "data")])
    def test_a_directory_that_may_not_be_written_or_read(self, mode: int, below: str) -> None:
        root = Path(tempfile.mkdtemp())  # not tmp_path: pytest keeps that from other users
        try:
            root.chmod(mode)
            before = tree(root)
            privileged = os.geteuid() == 0
            if privileged:
                os.seteuid(NOBODY)
            try:
                refused(root / below, ConfigError, "Permission denied")
            finally:
                if privileged:
                    os.seteuid(0)
            assert tree(root) == before
        finally:
            root.chmod(0o755)
            shutil.rmtree(root)


class TestLock:
    def test_another_process_keeps_us_out_and_lets_us_in_when_it_ends(self, ours: Path) -> None:
        with another_process(ours) as process:
            before = tree(ours)
            refused(ours, ConfigError, "in use by another process")
            assert tree(ours) == before
            assert process.poll() is None
            process.communicate()
            open_dir(ours).close()

    def test_a_process_that_was_killed_locks_nobody_out(self, ours: Path) -> None:
        with another_process(ours) as process:
            process.kill()
            process.wait()
            open_dir(ours).close()

    def test_the_lock_comes_before_the_manifest_of_a_new_directory(self, tmp_path: Path) -> None:
        with another_process(tmp_path / "data"):
            (tmp_path / "data" / FILE).unlink()
            refused(tmp_path / "data", ConfigError, "in use by another process")
            assert not (tmp_path / "data" / FILE).exists()

    def test_who_starts_nodes_tries_again(self, ours: Path) -> None:
        """A `logboom verify` that is under way when the machine starts its services, say."""
        with another_process(ours), pytest.raises(ConfigError) as refusal:
            open_dir(ours)
        assert _may_pass(refusal.value)

    def test_what_the_one_before_has_written_last_counts(self, ours: Path) -> None:
        """Found by review: a node went on with the manifest that it had read before it had the directory to itself."""

        class Late(OsDisk):
            def lock(self, path: Path) -> OsLock:
                self.replace_file(path.with_name(FILE), encode(replace(OURS, lineage="ab" * 16)))
                return super().lock(path)

        held = open_dir(ours, disk=Late())
        assert held.manifest.lineage == "ab" * 16
        held.close()

    def test_nor_is_it_taken_from_another_node(self, ours: Path) -> None:
        class Late(OsDisk):
            def lock(self, path: Path) -> OsLock:
                self.replace_file(path.with_name(FILE), encode(ours_is(node="n2")))
                return super().lock(path)

        with pytest.raises(WrongNode):
            open_dir(ours, disk=Late())
        open_dir(ours, wanted=ours_is(node="n2")).close()

    def test_closing_gives_it_back(self, ours: Path) -> None:
        first = open_dir(ours)
        refused(ours, ConfigError, "in use")
        first.close()
        open_dir(ours).close()


class TestMounted:
    @pytest.mark.parametrize("inside", [[], ["lost+found"]])
    def test_empty_file_systems_of_its_parts_are_no_data(self, tmp_path: Path, inside: list[str]) -> None:
        """Found by review: with the journal on a disk of its own there was no first start, and nothing to restore."""
        for path in (tmp_path / "journal", tmp_path / "partitions"):
            path.mkdir()
            for name in inside:
                (path / name).mkdir()
        open_dir(tmp_path).close()
        assert held_by(tmp_path) == OURS

    @pytest.mark.parametrize("name", ["journal/1.journal", "partitions/0/places", "snapshots/lost+found/x", "journal"])
    def test_but_whatever_is_in_them_is(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        before = tree(tmp_path)
        refused(tmp_path, WrongNode, "not empty")
        assert tree(tmp_path) == before


class TestFirstStartThatFailed:
    @pytest.mark.parametrize("written", [b"", b'{"form', encode(OURS)])
    def test_a_crash_while_the_manifest_was_written_can_be_started_again(self, tmp_path: Path, written: bytes) -> None:
        (tmp_path / "lock").touch()
        (tmp_path / f"{FILE}.new").write_bytes(written)
        open_dir(tmp_path).close()
        assert held_by(tmp_path) == OURS

    def test_a_disk_too_full_for_the_manifest_is_a_typed_line(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=str(tmp_path)):
            open_dir(tmp_path / "data", disk=FullDisk())

    def test_and_gives_the_lock_back(self, tmp_path: Path) -> None:
        with pytest.raises((OSError, LogboomError)):
            open_dir(tmp_path / "data", disk=FullDisk())
        open_dir(tmp_path / "data").close()


def test_of_several_disks_the_one_with_the_least_room_counts(tmp_path: Path) -> None:
    """Found by review: a journal on a small disk of its own filled it and ended its node, which refused nothing."""
    free = {"n1": 9, "journal": 7, "partitions": 8}

    class Disks(OsDisk):
        def free_bytes(self, path: Path) -> int:
            return free[path.name]

    held = open_dir(tmp_path / "n1", disk=Disks())
    assert held.free_bytes() == 9, "there are no others yet"
    for path in (held.journal, held.partitions):
        path.mkdir()
    assert held.free_bytes() == 7
    free["partitions"] = 1
    assert held.free_bytes() == 1
    held.close()
