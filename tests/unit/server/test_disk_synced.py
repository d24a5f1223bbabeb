"""Writing and syncing as one: what is written through syncs itself and nothing else; all else is synced as a whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.world.disk_os import IOV_MAX, OsDisk


@pytest.fixture
def disk() -> OsDisk:
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
