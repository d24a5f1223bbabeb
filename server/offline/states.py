"""Checking what state machines have saved.

LMDB follows what its pages say: a damaged one may end the process. So states are read in a child, and whoever
ends it is known.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgpack

from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import Position
from logboom.types import GlobalLogIndex, PartitionLogIndex
from partitions.apply.dedupe import Producer
from partitions.machines.kv_file import KvFile
from partitions.machines.log import LogMachine
from ports.disk import Disk

KNOWN: Final = ("kv", "log")
CHECKPOINT: Final = "checkpoint"
DATA: Final = "data.mdb"


class Saved(NamedTuple):
    """What the machine of one partition says of its saved state, or what is wrong with that."""

    position: Position | None
    entries: int
    error: str | None


def is_there(disk: Disk, directory: Path) -> bool:
    """Whether anything was ever saved there."""
    return disk.exists(directory / DATA) or disk.exists(directory / CHECKPOINT)


def check_states(disk: Disk, wanted: Sequence[tuple[str, Path]]) -> Iterator[Saved]:
    """Read all of each state: name of the machine and directory; one answer each, in order."""
    left = list(wanted)
    while left:
        done = 0
        for answer in _in_child(disk, left):
            yield answer
            done += 1
        if done < len(left):
            yield Saved(None, 0, "reading it ended the process that tried: its pages are damaged")
            done += 1
        left = left[done:]


def _in_child(disk: Disk, wanted: Sequence[tuple[str, Path]]) -> Iterator[Saved]:
    """As far as the child gets."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _work(disk, wanted, reading, writing)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as answers:
            unpacker = msgpack.Unpacker(answers)
            for position, entries, error in unpacker:
                yield Saved(None if position is None else _position(position), entries, error)
    finally:
        os.waitpid(child, 0)


def _position(row: Sequence[int]) -> Position:
    return Position(PartitionLogIndex(row[0]), GlobalLogIndex(row[1]))


def _work(disk: Disk, wanted: Sequence[tuple[str, Path]], reading: int, writing: int) -> None:
    """The child; does not return."""
    status = 1
    try:
        os.close(reading)
        with os.fdopen(writing, "wb", buffering=0) as answers:
            for name, directory in wanted:
                _answer(answers, _look(disk, name, directory))
        status = 0
    finally:
        os._exit(status)


def _answer(answers: BinaryIO, saved: Saved) -> None:
    answers.write(msgpack.packb([saved.position, saved.entries, saved.error]))


def _look(disk: Disk, name: str, directory: Path) -> Saved:
    try:
        return _log(disk, directory) if name == "log" else _kv(directory)
    except CorruptData as error:
        return Saved(None, 0, str(error))
    except Exception as error:  # noqa: BLE001 - whatever a damaged file makes of the library that reads it
        return Saved(None, 0, f"it cannot be read: {error!r}")


def _log(disk: Disk, directory: Path) -> Saved:
    machine = LogMachine(disk, directory / CHECKPOINT)
    entries = 0
    for _, raw in machine.meta():
        Producer.decode(raw)
        entries += 1
    return Saved(machine.position(), entries, None)


def _kv(directory: Path) -> Saved:
    file = KvFile(directory, ApplySettings(), readonly=True)
    try:
        entries = 0
        with file.view() as view:
            for _ in view.entries(b""):
                entries += 1
            for _, raw in view.meta():
                Producer.decode(raw)
                entries += 1
        return Saved(file.position(), entries, None)
    finally:
        file.close()
