"""Writing and syncing as one: what is written through syncs itself and nothing else; all else is synced as a whole."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from server.world import disk_os, mounts
from server.world.disk_os import IOV_MAX, SYNC_FILE_RANGE_WRITE, OsDisk
from server.world.mounts import Mounts, file_system


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> OsDisk:
    """On a file system that heeds the flag, wherever the tests run."""
    monkeypatch.setattr(Mounts, "write_through", lambda *_: True)
    return OsDisk()


def fails(code: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the system, in order: "write", "through", "sync"."""
    calls: list[str] = []
    pwritev, fdatasync = os.pwritev, os.fdatasync

    def write(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        calls.append("through" if flags == os.RWF_DSYNC else "write")
        return pwritev(fd, buffers, offset, flags)

    def sync(fd: int) -> None:
        calls.append("sync")
        fdatasync(fd)

    monkeypatch.setattr(os, "pwritev", write)
    monkeypatch.setattr(os, "fdatasync", sync)
    return calls


def test_one_call_once_nothing_else_is_to_be_synced(disk: OsDisk, tmp_path: Path, calls: list[str]) -> None:
    file = disk.open(tmp_path / "f", create=True)
    assert file.write_synced([b"ab", b"c"], offset=0) == 3  # what lies in a file that was opened, nobody knows
    assert calls == ["write", "sync"]
    assert file.write_synced([b"d", b"ef"], offset=3) == 3
    assert calls[2:] == ["through"]
    assert file.read(offset=0, length=9) == b"abcdef"
    file.close()


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda file: file.write([b"x"], offset=9), id="written"),
        pytest.param(lambda file: file.truncate(2), id="cut"),
    ],
)
def test_what_was_not_synced_before_is_synced_with_it(
    disk: OsDisk, tmp_path: Path, calls: list[str], act: Callable[[Any], Any]
) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write_synced([b"abc"], offset=0)
    act(file)
    del calls[:]
    file.write_synced([b"d"], offset=3)
    assert calls == ["write", "sync"]
    file.write_synced([b"e"], offset=4)
    assert calls[2:] == ["through"]
    file.close()


def test_after_a_sync_that_failed_nothing_counts_as_synced(
    disk: OsDisk, tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.sync()
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails(errno.EIO))
        with pytest.raises(OSError):
            file.sync()
    del calls[:]
    file.write_synced([b"a"], offset=0)
    assert calls == ["write", "sync"]
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwritev", fails(errno.EIO))
        with pytest.raises(OSError):
            file.write_synced([b"a"], offset=0)
    del calls[:]
    file.write_synced([b"a"], offset=0)
    assert calls == ["write", "sync"]
    file.close()


def test_where_the_file_system_cannot_it_is_two_calls(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev, fdatasync, synced = os.pwritev, os.fdatasync, []

    def write(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return pwritev(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", write)
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), fdatasync(fd)))
    file = disk.open(tmp_path / "f", create=True)
    for number in range(3):
        assert file.write_synced([b"ab"], offset=2 * number) == 2
    assert (len(synced), file.read(offset=0, length=9)) == (3, b"ababab")
    file.close()


def test_a_part_of_it_is_written_whole_and_synced(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev, fdatasync, synced = os.pwritev, os.fdatasync, []

    def write(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        return pwritev(fd, [b"".join(buffers)[:3]], offset, flags)

    file = disk.open(tmp_path / "f", create=True)
    file.sync()
    monkeypatch.setattr(os, "pwritev", write)
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), fdatasync(fd)))
    assert file.write_synced([b"abcd", b"efgh"], offset=0) == 8
    assert (len(synced), file.read(offset=0, length=9)) == (1, b"abcdefgh")
    file.close()


def test_more_buffers_than_one_call_takes(disk: OsDisk, tmp_path: Path, calls: list[str]) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.sync()
    del calls[:]
    assert file.write_synced([b"x"] * (IOV_MAX + 1), offset=0) == IOV_MAX + 1
    assert calls == ["write", "write", "sync"]
    file.close()


class Begun(NamedTuple):
    fd: int
    offset: int
    length: int
    flags: int


def test_a_sync_that_was_begun_is_that_of_what_was_written_and_still_has_to_follow(
    disk: OsDisk, tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Begun] = []
    monkeypatch.setattr(disk_os, "_sync_file_range", lambda *asked: begun.append(Begun(*asked)))
    file = disk.open(tmp_path / "f", create=True)
    file.sync()
    file.write([b"abc"], offset=5)
    file.begin_sync(offset=5, length=3)
    assert [each[1:] for each in begun] == [(5, 3, SYNC_FILE_RANGE_WRITE)]
    del calls[:]
    file.write_synced([b"d"], offset=8)
    assert calls == ["write", "sync"], "it is not taken for synced"
    file.close()


def test_a_sync_that_cannot_be_begun_is_as_final_as_one_that_fails(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write([b"abc"], offset=0)
    file.begin_sync(offset=0, length=3)  # as the system does it
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor") as error:
        file.begin_sync(offset=0, length=3)
    assert error.value.filename == str(tmp_path / "f")


@pytest.mark.parametrize("call", [None, lambda *_: ctypes.set_errno(errno.ENOSYS) or -1])
def test_where_the_system_cannot_begin_a_sync_the_sync_does_it_all(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    monkeypatch.setattr(disk_os, "_sync_file_range", call)
    file = disk.open(tmp_path / "f", create=True)
    file.write([b"abc"], offset=0)
    file.begin_sync(offset=0, length=3)
    file.sync()
    file.close()


MOUNTED = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:50 / /mnt/a\\040disk rw,relatime - fuse.sshfs host:/ rw,user_id=0
41 40 0:51 / /mnt/a\\040disk/inner rw,relatime - xfs /dev/vdb rw
42 27 0:52 / /mnt/twice rw - ext4 /dev/vdc rw
43 42 0:53 / /mnt/twice rw master:7 - 9p share rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/lib/logboom", "ext4"),
        ("/mnt/a disk", "fuse.sshfs"),
        ("/mnt/a disk/n1/journal", "fuse.sshfs"),
        ("/mnt/a disk/inner/n1", "xfs"),
        ("/mnt/a diskette", "ext4"),
        ("/mnt/twice/n1", "9p"),
    ],
)
def test_a_directory_is_on_what_is_mounted_there_last(path: str, expected: str) -> None:
    assert file_system(path, MOUNTED) == expected
    assert file_system(path, "") == ""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("ext4", ["through"] * 3), ("fuse.sshfs", ["write", "sync"] * 3), ("9p", ["write", "sync"] * 3)],
)
def test_only_where_the_flag_is_heeded_it_is_relied_on(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch, kind: str, expected: list[str]
) -> None:
    """FUSE and 9p take it, and need not sync: what was acknowledged was in somebody's memory."""
    said = tmp_path / "mountinfo"
    said.write_text(f"27 1 0:1 / / rw - {kind} device rw\n")
    monkeypatch.setattr(mounts, "MOUNTS", said)
    file = OsDisk().open(tmp_path / "f", create=True)
    file.sync()
    del calls[:]
    for number in range(3):
        assert file.write_synced([b"ab"], offset=2 * number) == 2
    assert calls == expected
    file.close()


def test_where_nobody_says_what_is_mounted_it_is_two_calls(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "MOUNTS", tmp_path / "nowhere")
    file = OsDisk().open(tmp_path / "f", create=True)
    file.sync()
    del calls[:]
    file.write_synced([b"ab"], offset=0)
    assert calls == ["write", "sync"]
    file.close()
