"""Directories that the real disk makes, or finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.world.disk_os import OsDisk


@pytest.fixture
def disk() -> OsDisk:
    return OsDisk()


def path_of(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def test_what_another_process_made_is_synced_once(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been killed before it did so."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path_of(fd)))
    (tmp_path / "a").mkdir()
    for _ in range(2):
        disk.make_directory(tmp_path / "a")
        assert synced == [str(tmp_path)]


def test_nothing_is_made_in_what_is_not_synced(disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(fd: int) -> None:
        if path_of(fd) == str(tmp_path / "a"):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        disk.make_directories([tmp_path / "a" / "b" / "c", tmp_path / "d"])
    assert disk.list(tmp_path) == ["a", "d"]
    assert disk.list(tmp_path / "a") == ["b"]
    assert disk.list(tmp_path / "a" / "b") == []


@pytest.mark.parametrize("whose", ["nobody may write there", "it is mounted there"])
def test_what_nobody_like_us_has_made_is_left_alone(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """A parent that only its owner may read would keep a node from starting."""
    where = Path("/proc") if whose == "it is mounted there" else tmp_path / "a"
    if where != Path("/proc"):
        where.mkdir()
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path_of(fd)))
    disk.make_directory(where)
    assert synced == []
