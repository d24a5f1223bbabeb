"""State files (ports.state_file) of a simulated node: a model of what LMDB promises, not LMDB.

LMDB maps a real file into memory: on a simulated disk it cannot run, and on a real one it would
bring real I/O into the simulator's loop, threads' timing into its results, and would lose only
what the kernel chooses to lose. The model is deterministic and in memory, and has its faults
where LMDB's are: at the border of a transaction. That LMDB does what is modelled here is the
business of tests on real files (tests/unit/partitions/test_state_file.py runs over both).
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.state_machine import NOWHERE, Position
from ports.state_file import KEY_BYTES_MAX, Changes

UNDO: Final = 0.5
"""How often a power loss undoes the last transaction, if it may."""


class Closed(Exception):
    """Used after it was closed, or after the process that opened it had died."""


class StateFiles:
    """All state files of one simulated node; they outlive its processes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._files: dict[Path, _File] = {}
        self.fault: Callable[[str, Path], None] | None = None
        """Called as ``fault("write", directory)`` before a write takes effect. If it raises, nothing has happened."""

    def open(self, directory: Path, settings: ApplySettings) -> ModelStateFile:
        """One handle of a file at a time, as with LMDB. ``settings`` only bound sizes that no simulation reaches."""
        file = self._files.setdefault(directory, _File())
        if file.opened is not None:
            raise Closed(f"{directory} is already open in this process")
        file.opened = ModelStateFile(directory, file, self)
        return file.opened

    def rot(self, directory: Path, rng: random.Random) -> bytes | None:
        """A value changes on the disk; returns whose, None if there is none."""
        file = self._files.get(directory)
        keys = file.latest.keys() if file is not None else []
        if file is None or not keys:
            return None
        key = rng.choice(keys)
        file.rotten.add(key)
        return key

    def moved(self, source: Path, target: Path | None) -> None:
        """A directory was, with the file in it; who has it open goes on with it. None: it is removed."""
        file = self._files.pop(source, None)
        if file is not None and target is not None:
            self._files[target] = file

    def copy(self, rng: random.Random) -> StateFiles:
        """As they are, on another disk."""
        copies = StateFiles(rng)
        for path, file in self._files.items():
            copies._files[path] = copied = _File()
            copied.latest, copied.rotten = file.latest, set(file.rotten)
        return copies

    def still_open(self) -> list[str]:
        """What the process that runs has open."""
        return [str(path) for path, file in self._files.items() if file.opened is not None]

    def crash(self, *, power: bool) -> None:
        """The process died. With ``power``: per file, the last transaction may be undone."""
        for file in self._files.values():
            if file.opened is not None:
                file.opened.close()
            if not power:
                continue  # the page cache still has it; the next power loss may undo it
            if file.undo is not None and self._rng.random() < UNDO:
                file.latest = file.undo
            file.undo = None  # what a power loss has left is on the disk


class _Version:
    """What one transaction left. Never changed."""

    __slots__ = ("_keys", "meta", "position", "state")

    def __init__(self, state: dict[bytes, bytes], meta: dict[bytes, bytes], position: Position) -> None:
        self.state, self.meta, self.position = state, meta, position
        self._keys: list[bytes] | None = None

    def keys(self) -> list[bytes]:
        if self._keys is None:
            self._keys = sorted(self.state)
        return self._keys


class _File:
    """What is on the disk, and what a power loss may make of it."""

    __slots__ = ("latest", "opened", "rotten", "undo")

    def __init__(self) -> None:
        self.latest = _Version({}, {}, NOWHERE)
        self.rotten: set[bytes] = set()
        """Keys whose value cannot be read until it is written again."""
        self.undo: _Version | None = None
        self.opened: ModelStateFile | None = None


class ModelStateFile:
    """See StateFile."""

    def __init__(self, directory: Path, file: _File, files: StateFiles) -> None:
        self.directory = directory
        self._file = file
        self._files = files
        self.closed = False

    def position(self) -> Position:
        return self._latest().position

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(self._latest().meta.items()))

    def view(self) -> ModelStateView:
        return ModelStateView(self, self._latest(), self._file.rotten)

    def write(self, state: Changes, meta: Changes, position: Position) -> None:
        if self._files.fault is not None:
            self._files.fault("write", self.directory)
        before = self._latest()
        after = _Version(_changed(before.state, state), _changed(before.meta, meta), position)
        self._file.rotten.difference_update(state)
        self._file.latest, self._file.undo = after, before

    def clear(self) -> None:
        if self._files.fault is not None:
            self._files.fault("write", self.directory)
        self._file.undo = self._latest()
        self._file.latest = _Version({}, {}, NOWHERE)
        self._file.rotten.clear()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._file.opened = None

    def _latest(self) -> _Version:
        if self.closed:
            raise Closed(f"{self.directory} is closed")
        return self._file.latest


class ModelStateView:
    """See StateView."""

    __slots__ = ("_file", "_left", "_rotten", "_version")

    def __init__(self, file: ModelStateFile, version: _Version, rotten: set[bytes]) -> None:
        self._file = file
        self._rotten = rotten
        self._version = version
        self._left = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True

    def get(self, key: bytes) -> bytes | None:
        self._check()
        return self._version.state.get(self._whole(key))

    def has(self, key: bytes) -> bool:
        self._check()
        return key in self._version.state

    def entries(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._check()
        keys, state = self._version.keys(), self._version.state
        for at in range(bisect_left(keys, start), len(keys)):
            self._check()
            yield keys[at], state[self._whole(keys[at])]

    def meta(self) -> Iterator[tuple[bytes, bytes]]:
        self._check()
        for entry in sorted(self._version.meta.items()):
            self._check()
            yield entry

    def _whole(self, key: bytes) -> bytes:
        if key in self._rotten:
            raise CorruptData(f"{self._file.directory}: the value of {key!r} is damaged")
        return key

    def _check(self) -> None:
        if self._left or self._file.closed:
            raise Closed(f"a view of {self._file.directory} is closed")


def _changed(before: dict[bytes, bytes], changes: Changes) -> dict[bytes, bytes]:
    after = before.copy()
    for key, value in changes.items():
        if value is None:
            after.pop(_checked(key), None)
        else:
            after[_checked(key)] = value
    return after


def _checked(key: bytes) -> bytes:
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise ValueError(f"a key of {len(key)} bytes")
    return key
