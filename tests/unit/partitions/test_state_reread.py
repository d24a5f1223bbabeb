"""What the disk cannot read of a state is found by a read that fails: to touch it in the map ends the process."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.machines.kv import KvMachine
from partitions.machines.kv_file import KvFile

COUNT, VALUE_BYTES = 3000, 1000


@pytest.fixture
def file(tmp_path: Path) -> KvFile:
    made = KvFile(tmp_path, ApplySettings())
    made.write(
        {b"k%05d" % number: bytes(VALUE_BYTES) for number in range(COUNT)},
        {b"m": b"meta"},
        Position(PartitionLogIndex(1), GlobalLogIndex(1)),
    )
    return made


def bad(monkeypatch: pytest.MonkeyPatch, *, at: int, times: int) -> None:
    """A byte of what is read next cannot be."""
    pread, left = os.pread, [times]

    def read(fd: int, length: int, offset: int) -> bytes:
        if left[0] and offset <= at < offset + length:
            left[0] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", read)


def untouched(*_: object) -> NoReturn:
    pytest.fail("the map was looked at")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names of descriptors


def test_a_pass_reads_the_file_and_then_what_is_in_it(file: KvFile, tmp_path: Path) -> None:
    before, machine = descriptors(), KvMachine(file)
    pieces = list(machine.scrub())
    size = (tmp_path / "data.mdb").stat().st_size
    assert sum(piece.nbytes for piece in pieces) >= size + COUNT * VALUE_BYTES
    assert max(piece.nbytes for piece in pieces) < 1 << 21
    assert not any(piece.again for piece in pieces)
    assert descriptors() == before
    file.write({b"k": b"v"}, {}, Position(PartitionLogIndex(2), GlobalLogIndex(2)))


def test_a_bad_sector_is_damage_and_the_map_is_not_walked(file: KvFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by reading: LMDB met it in its map, which ended the node (SIGBUS), a minute after each of its starts."""
    before, machine = descriptors(), KvMachine(file)
    bad(monkeypatch, at=2_000_000, times=2)
    monkeypatch.setattr(file, "view", untouched)
    again: list[bool] = []
    with pytest.raises(CorruptData, match=r"data\.mdb"):
        again.extend(piece.again for piece in machine.scrub())
    assert again.count(True) == 1, "it is read a second time, after a while"
    assert descriptors() == before


def test_one_that_is_read_a_while_later_is_none(file: KvFile, monkeypatch: pytest.MonkeyPatch) -> None:
    bad(monkeypatch, at=2_000_000, times=1)
    assert [piece.again for piece in KvMachine(file).scrub()].count(True) == 1


@pytest.mark.parametrize(
    ("number", "damage"), [(errno.EMFILE, False), (errno.ENOENT, True)], ids=["no descriptor", "no file"]
)
def test_what_is_said_of_the_file_itself(
    number: int, damage: bool, file: KvFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Callable[..., int] = os.open

    def refuse(path: Any, *how: Any) -> int:
        if str(path).endswith("data.mdb"):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *how)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CorruptData if damage else OSError, match=r"data\.mdb"):
        list(KvMachine(file).scrub())
