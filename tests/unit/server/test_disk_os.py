"""The disk port on real files: what is written is read back, and what fails says so."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.world.disk_os import IOV_MAX, OsDisk

FULL = Path("/dev/full")


@pytest.fixture
def disk() -> OsDisk:
    return OsDisk()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the one that is listing counts every time


def fails(code: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


def path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - what the descriptor is open on


class TestFile:
    def test_buffers_lie_back_to_back_at_their_offset_after_reopening(self, disk: OsDisk, tmp_path: Path) -> None:
        file = disk.open(tmp_path / "f", create=True)
        assert file.write([b"head"], offset=0) == 4
        assert file.write([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b""], offset=4) == 6
        assert file.write([b"H"], offset=0) == 1
        assert file.write([], offset=99) == 0
        file.sync()
        file.close()
        file = disk.open(tmp_path / "f", readonly=True)
        assert (file.size(), file.read(offset=0, length=10)) == (10, b"Headabcdef")
        file.close()

    def test_reads_are_short_only_at_the_end(self, disk: OsDisk, tmp_path: Path) -> None:
        file = disk.open(tmp_path / "f", create=True)
        file.write([b"0123456789"], offset=0)
        found = [file.read(offset=o, length=n) for o, n in ((2, 3), (8, 5), (10, 1), (99, 1), (3, 0))]
        assert found == [b"234", b"89", b"", b"", b""]
        file.close()

    @pytest.mark.parametrize("count", [IOV_MAX, IOV_MAX + 1, 3 * IOV_MAX + 5])
    def test_more_buffers_than_one_call_takes(self, disk: OsDisk, tmp_path: Path, count: int) -> None:
        buffers = [b"%d," % number for number in range(count)]
        file = disk.open(tmp_path / "f", create=True)
        assert file.write(buffers, offset=7) == len(b"".join(buffers))
        assert file.read(offset=7, length=1 << 20) == b"".join(buffers)
        file.close()

    def test_calls_that_do_a_part_are_carried_on(
        self, disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pwrite, pread = os.pwrite, os.pread
        monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: pwrite(fd, b"".join(buffers)[:5], offset))
        monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:3], offset))
        monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 4), offset))
        content = bytes(range(250))
        file = disk.open(tmp_path / "f", create=True)
        assert file.write([content[:100], content[100:]], offset=3) == 250
        assert file.read(offset=3, length=300) == content
        file.close()

    def test_truncate_cuts_and_extends_with_zeros(self, disk: OsDisk, tmp_path: Path) -> None:
        file = disk.open(tmp_path / "f", create=True)
        file.write([b"abcdef"], offset=0)
        file.truncate(2)
        assert file.size() == 2
        file.truncate(5)
        assert file.read(offset=0, length=9) == b"ab\0\0\0"
        file.close()

    def test_allocate_backs_zeros_and_neither_cuts_nor_overwrites(self, disk: OsDisk, tmp_path: Path) -> None:
        file = disk.open(tmp_path / "f", create=True)
        file.write([b"abc"], offset=0)
        file.allocate(8192)
        assert file.read(offset=0, length=9000) == b"abc" + bytes(8189)
        assert (tmp_path / "f").stat().st_blocks * 512 >= 8192
        file.allocate(10)
        assert file.size() == 8192
        file.close()

    def test_closing_twice_does_not_close_another_file(self, disk: OsDisk, tmp_path: Path) -> None:
        file = disk.open(tmp_path / "f", create=True)
        file.close()
        other = disk.open(tmp_path / "other", create=True)  # gets the descriptor that is free now
        file.close()
        with pytest.raises(OSError) as error:
            file.write([b"stray"], offset=0)
        assert error.value.errno == errno.EBADF
        assert (other.size(), other.path) == (0, tmp_path / "other")
        other.close()


class TestOpen:
    def test_what_is_missing_is_made_only_on_request(self, disk: OsDisk, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            disk.open(tmp_path / "f")
        assert disk.list(tmp_path) == []
        disk.open(tmp_path / "f", create=True).close()
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600

    def test_nobody_else_looks_into_what_is_made(self, disk: OsDisk, tmp_path: Path) -> None:
        """Found by review: what a state machine of a user left in its directory anybody on the machine could read."""
        disk.make_directory(tmp_path / "a" / "b")
        assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")} == {0o700}

    def test_create_keeps_what_is_there(self, disk: OsDisk, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"kept")
        disk.open(tmp_path / "f", create=True).close()
        assert disk.read_file(tmp_path / "f") == b"kept"

    def test_readonly_refuses_writes(self, disk: OsDisk, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"kept")
        file = disk.open(tmp_path / "f", readonly=True)
        with pytest.raises(OSError):
            file.write([b"x"], offset=0)
        file.close()
        assert disk.read_file(tmp_path / "f") == b"kept"


class TestErrors:
    def test_a_full_disk_is_enospc(self, disk: OsDisk) -> None:
        file = disk.open(FULL)
        with pytest.raises(OSError) as error:
            file.write([b"a", b"b"], offset=0)
        assert error.value.errno == errno.ENOSPC
        file.close()

    def test_a_disk_that_fills_up_within_a_write_is_enospc(
        self, disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: 1)
        monkeypatch.setattr(os, "pwrite", fails(errno.ENOSPC))
        file = disk.open(tmp_path / "f", create=True)
        with pytest.raises(OSError) as error:
            file.write([b"ab", b"cd"], offset=0)
        assert error.value.errno == errno.ENOSPC
        file.close()

    @pytest.mark.parametrize(
        ("broken", "code", "act"),
        [
            ("pwritev", errno.EIO, lambda file: file.write([b"x"], offset=0)),
            ("pwritev", errno.EIO, lambda file: (file.sync(), file.write_synced([b"x"], offset=0))),
            ("fdatasync", errno.EIO, lambda file: file.write_synced([b"x"], offset=0)),
            ("fdatasync", errno.EIO, lambda file: file.sync()),
            ("pread", errno.EIO, lambda file: file.read(offset=0, length=1)),
            ("ftruncate", errno.EIO, lambda file: file.truncate(0)),
            ("posix_fallocate", errno.ENOSPC, lambda file: file.allocate(4096)),
        ],
    )
    def test_no_failure_is_swallowed_and_each_names_the_file(
        self, disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, code: int, act: Any
    ) -> None:
        file = disk.open(tmp_path / "f", create=True)
        monkeypatch.setattr(os, broken, fails(code))
        with pytest.raises(OSError) as error:
            act(file)
        assert (error.value.errno, error.value.filename) == (code, str(tmp_path / "f"))
        file.close()


class TestReplaceFile:
    def test_makes_and_replaces_and_leaves_nothing_beside(self, disk: OsDisk, tmp_path: Path) -> None:
        path = tmp_path / "f"
        (tmp_path / "f.new").write_bytes(b"left by a crash, and longer than what comes")
        for content in (b"first", b"the second", b""):
            disk.replace_file(path, content)
            assert disk.read_file(path) == content
            assert disk.list(tmp_path) == ["f"]

    def test_on_a_full_disk_the_old_content_stays(self, disk: OsDisk, tmp_path: Path) -> None:
        path = tmp_path / "f"
        disk.replace_file(path, b"old")
        (tmp_path / "f.new").symlink_to(FULL)
        before = open_descriptors()
        with pytest.raises(OSError) as error:
            disk.replace_file(path, b"new")
        assert error.value.errno == errno.ENOSPC
        assert disk.read_file(path) == b"old"
        assert open_descriptors() == before

    def test_what_could_not_be_synced_does_not_take_the_name(
        self, disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "f"
        disk.replace_file(path, b"old")
        before = open_descriptors()
        monkeypatch.setattr(os, "fdatasync", fails(errno.EIO))
        with pytest.raises(OSError) as error:
            disk.replace_file(path, b"new")
        assert error.value.errno == errno.EIO
        assert disk.read_file(path) == b"old"
        assert open_descriptors() == before

    def test_content_is_stable_before_the_name_and_the_name_on_return(
        self, disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "f"
        disk.replace_file(path, b"old")
        seen: list[tuple[str, bytes]] = []  # what is synced, and what the name holds by then
        monkeypatch.setattr(os, "fdatasync", lambda fd: seen.append((path_of(fd), path.read_bytes())))
        monkeypatch.setattr(os, "fsync", lambda fd: seen.append((path_of(fd), path.read_bytes())))
        disk.replace_file(path, b"new")
        assert seen == [(str(tmp_path / "f.new"), b"old"), (str(tmp_path), b"new")]


class TestNames:
    def test_directories_with_parents_and_again(self, disk: OsDisk, tmp_path: Path) -> None:
        deep = tmp_path / "a" / "b" / "c"
        for _ in range(2):
            disk.make_directory(deep)
            assert deep.is_dir()
        assert disk.exists(deep)

    def test_every_new_name_on_the_way_is_synced(
        self, disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []
        monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path_of(fd)))
        disk.make_directory(tmp_path / "a" / "b")
        assert synced == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "a")]

    def test_of_many_each_parent_is_synced_once_and_before_what_is_in_it(
        self, disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []
        monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path_of(fd)))
        wanted = [tmp_path / "a" / str(k) for k in range(9)] + [tmp_path / "a" / "1" / "b"]
        disk.make_directories(wanted)
        assert synced == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "1")]
        assert disk.list(tmp_path / "a") == [str(k) for k in range(9)]
        synced.clear()
        for _ in range(2):
            disk.make_directories(wanted)
            assert synced == [str(tmp_path / "a"), str(tmp_path / "a" / "1")]

    def test_a_file_in_the_way_is_an_error(self, disk: OsDisk, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"kept")
        with pytest.raises(NotADirectoryError):
            disk.make_directory(tmp_path / "f" / "below")
        assert disk.read_file(tmp_path / "f") == b"kept"

    def test_rename_replaces_and_remove_removes(self, disk: OsDisk, tmp_path: Path) -> None:
        for name in ("c", "a", "b"):
            (tmp_path / name).write_bytes(name.encode())
        assert disk.list(tmp_path) == ["a", "b", "c"]
        disk.rename(tmp_path / "a", tmp_path / "b")
        disk.remove(tmp_path / "c")
        disk.sync_directory(tmp_path)
        assert disk.list(tmp_path) == ["b"]
        assert disk.read_file(tmp_path / "b") == b"a"

    def test_an_open_file_stays_readable_under_any_name_or_none(self, disk: OsDisk, tmp_path: Path) -> None:
        file = disk.open(tmp_path / "f", create=True)
        file.write([b"abc"], offset=0)
        disk.rename(tmp_path / "f", tmp_path / "g")
        disk.remove(tmp_path / "g")
        assert not disk.exists(tmp_path / "g")
        assert file.read(offset=0, length=3) == b"abc"
        file.close()

    @pytest.mark.parametrize(
        "act",
        [
            lambda disk, path: disk.list(path),
            lambda disk, path: disk.read_file(path),
            lambda disk, path: disk.remove(path),
            lambda disk, path: disk.rename(path, path.with_name("other")),
            lambda disk, path: disk.sync_directory(path),
            lambda disk, path: disk.free_bytes(path),
            lambda disk, path: disk.replace_file(path / "below", b""),
        ],
    )
    def test_what_is_not_there_is_file_not_found(self, disk: OsDisk, tmp_path: Path, act: Any) -> None:
        with pytest.raises(FileNotFoundError):
            act(disk, tmp_path / "missing")
        assert disk.list(tmp_path) == []

    def test_a_directory_that_cannot_be_synced_says_so_and_is_closed(
        self, disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = open_descriptors()
        monkeypatch.setattr(os, "fsync", fails(errno.EIO))
        with pytest.raises(OSError) as error:
            disk.sync_directory(tmp_path)
        assert error.value.errno == errno.EIO
        assert open_descriptors() == before

    def test_free_bytes_shrink_to_what_the_file_system_has(self, disk: OsDisk, tmp_path: Path) -> None:
        about = os.statvfs(tmp_path)
        assert 0 < disk.free_bytes(tmp_path) <= about.f_blocks * about.f_frsize


def test_a_directory_goes_with_all_that_is_in_it(disk: OsDisk, tmp_path: Path) -> None:
    disk.make_directory(tmp_path / "d" / "e")
    for path in (tmp_path / "d" / "f", tmp_path / "d" / "e" / "g"):
        disk.open(path, create=True).close()
    disk.remove_directory(tmp_path / "d")
    assert disk.list(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        disk.remove_directory(tmp_path / "d")


def test_one_that_a_file_system_is_mounted_on_is_emptied_and_stays(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a destroyed partition: each start ended where it was to go."""
    mounted = tmp_path / "d"
    disk.make_directory(mounted / "e")
    disk.open(mounted / "f", create=True).close()
    rmdir = os.rmdir

    def busy(path: Any, **more: Any) -> None:
        if Path(path) == mounted:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        rmdir(path, **more)

    monkeypatch.setattr(os, "rmdir", busy)
    for _ in range(2):
        disk.remove_directory(mounted)
        assert disk.list(mounted) == []
    monkeypatch.setattr(os, "rmdir", fails(errno.EBUSY))
    disk.make_directory(mounted / "e")
    with pytest.raises(OSError, match="busy"):
        disk.remove_directory(mounted)


def test_a_link_goes_with_what_it_leads_to(disk: OsDisk, tmp_path: Path) -> None:
    """Found by review: a partition on another disk could not be removed, and no start got past it."""
    disk.make_directory(tmp_path / "elsewhere" / "p" / "state")
    disk.open(tmp_path / "elsewhere" / "p" / "f", create=True).close()
    (tmp_path / "p").symlink_to(tmp_path / "elsewhere" / "p")
    disk.remove_directory(tmp_path / "p")
    assert disk.list(tmp_path) == ["elsewhere"]
    assert disk.list(tmp_path / "elsewhere") == []


def test_a_link_that_leads_nowhere_is_told_as_one(disk: OsDisk, tmp_path: Path) -> None:
    """It was a file that exists, though nobody could see one: a disk that is not mounted yet, perhaps."""
    (tmp_path / "data").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "data", tmp_path / "data" / "partitions" / "0"):
        with pytest.raises(FileNotFoundError, match="link to what is not there") as error:
            disk.make_directory(path)
        assert error.value.filename == str(tmp_path / "data")
    (tmp_path / "elsewhere").mkdir()
    disk.make_directory(tmp_path / "data" / "partitions")
    assert disk.list(tmp_path / "elsewhere") == ["partitions"]


@pytest.fixture
def _as_from_python_3_14(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: os.path.exists(path))  # noqa: PTH110, PLW0108


@pytest.mark.usefixtures("_as_from_python_3_14")
class TestWhatIsThere:
    """Found by reading: one look that failed had a sound journal set aside, or a node vote that had forgotten."""

    @pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
    def test_what_cannot_be_looked_at_is_not_missing(
        self, disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        with monkeypatch.context() as failing:
            failing.setattr(os, "stat", fails(code))
            with pytest.raises(OSError, match=os.strerror(code)):
                disk.exists(tmp_path)
            with pytest.raises(OSError, match=os.strerror(code)):
                disk.make_directory(tmp_path / "d")
        assert disk.list(tmp_path) == []

    def test_a_name_that_leads_nowhere_is(self, disk: OsDisk, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "ring").symlink_to(tmp_path / "ring")
        assert disk.exists(tmp_path / "file")
        for name in ("missing", "file/in it", "ring"):
            assert not disk.exists(tmp_path / name)
