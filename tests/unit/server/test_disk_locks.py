"""Locks between processes, on a real file system."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.world.disk_os import OsDisk

LOCKER = """
import sys
from pathlib import Path
from server.world.disk_os import OsDisk
lock = OsDisk().lock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def disk() -> OsDisk:
    return OsDisk()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the one that is listing counts every time


class TestLock:
    def test_makes_the_file_and_keeps_what_is_in_it(self, disk: OsDisk, tmp_path: Path) -> None:
        disk.lock(tmp_path / "lock").release()
        assert disk.read_file(tmp_path / "lock") == b""
        disk.replace_file(tmp_path / "lock", b"kept")
        disk.lock(tmp_path / "lock").release()
        assert disk.read_file(tmp_path / "lock") == b"kept"

    def test_a_file_system_that_takes_no_writes_is_locked_by_what_is_there(
        self, disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Found by review: no data on a disk that was mounted read-only could be verified, no such backup restored."""
        real = os.open

        def read_only(path: Any, flags: int, *mode: int) -> int:
            if flags & (os.O_RDWR | os.O_CREAT):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return real(path, flags, *mode)

        def as_nfs_has_it(fd: int, operation: int) -> None:
            writes = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
            if operation & fcntl.LOCK_EX and not writes:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            lock(fd, operation)

        path, lock = tmp_path / "lock", fcntl.flock
        path.touch()
        monkeypatch.setattr(os, "open", read_only)
        monkeypatch.setattr(fcntl, "flock", as_nfs_has_it)
        for held in [disk.lock(path, shared=True) for _ in range(3)]:
            held.release()
        with pytest.raises(OSError, match="Read-only"):
            disk.lock(path)
        path.unlink()
        with pytest.raises(OSError, match="Read-only"):
            disk.lock(path, shared=True)

    def test_who_only_reads_keeps_out_who_writes_and_the_other_way_round(self, disk: OsDisk, tmp_path: Path) -> None:
        """Found by review: of three nodes that were restored at once from one share two were told that it is in use."""
        path = tmp_path / "lock"
        for held in [disk.lock(path, shared=True) for _ in range(3)]:
            with pytest.raises(BlockingIOError):
                disk.lock(path)
            held.release()
        writes = disk.lock(path)
        with pytest.raises(BlockingIOError):
            disk.lock(path, shared=True)
        writes.release()

    def test_held_once_and_again_after_its_release(self, disk: OsDisk, tmp_path: Path) -> None:
        held, before = disk.lock(tmp_path / "lock"), open_descriptors()
        with pytest.raises(BlockingIOError):
            disk.lock(tmp_path / "lock")
        assert open_descriptors() == before
        disk.lock(tmp_path / "other").release()
        held.release()
        again = disk.lock(tmp_path / "lock")
        held.release()  # a second time: not what was opened since
        with pytest.raises(BlockingIOError):
            disk.lock(tmp_path / "lock")
        again.release()

    def test_between_processes_until_the_other_ends(self, disk: OsDisk, tmp_path: Path) -> None:
        command = [sys.executable, "-c", LOCKER, str(tmp_path / "lock")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"locked\n"
            with pytest.raises(BlockingIOError):
                disk.lock(tmp_path / "lock")
            other.kill()
            other.wait()
        disk.lock(tmp_path / "lock").release()

    def test_where_no_file_can_be_is_another_error(self, disk: OsDisk, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            disk.lock(tmp_path / "missing" / "lock")
