"""One file of the simulated disk: what the page cache has, and what of it is not synced yet. And what is said of it."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from ports.disk import Buffer

SECTOR: Final = 512


class WriteFate(NamedTuple):
    """What a sync makes of one write; chosen when it is written, seen when it is synced."""

    lost: bool = False
    at: int | None = None
    """Lands at this offset of the same file instead."""


KEPT: Final = WriteFate()
LOST: Final = WriteFate(lost=True)


def misdirect(offset: int) -> WriteFate:
    """The write lands elsewhere."""
    return WriteFate(at=offset)


class DeadHandle(Exception):
    """A handle or lock was used after the process that held it had died."""


class ShortWrite(Exception):
    """Raised by a hook: the first ``kept`` bytes reached the page cache, then came EIO."""

    def __init__(self, kept: int) -> None:
        super().__init__(kept)
        self.kept = kept


class DroppedPages(Exception):
    """Raised by a hook: a sync fails with EIO, and what it should have written never reaches the disk.

    The page cache still shows it, and the next sync succeeds: what Linux does.
    """


class Op(NamedTuple):
    """One primitive operation that took effect. ``inode`` tells files apart whatever they are called."""

    kind: str
    """make_directory, create, write, resize, sync, drop (a sync that failed so), rename, remove, sync_directory,
    remove_directory, move_directory (durable at once)."""
    path: str
    inode: int = 0
    offset: int = 0
    """Of a write; the new size of a resize."""
    data: bytes = b""
    target: str = ""


class Image(NamedTuple):
    """What a disk holds: directories, and per file its content (zeros at its end left out) and size."""

    directories: tuple[str, ...]
    files: Mapping[str, tuple[bytes, int]]


class Change(NamedTuple):
    """Not synced yet. ``new`` is None for a change of the size, to ``offset``."""

    offset: int
    new: bytes | None
    old: bytes
    old_size: int
    fate: WriteFate

    def touches(self, start: int, end: int) -> bool:
        """Some of these bytes; a change of size may touch any."""
        return self.new is None or (self.offset < end and start < self.offset + len(self.new))


class Inode:
    __slots__ = ("below", "borrowed", "content", "faulty", "linked", "number", "pending", "size")

    def __init__(self, number: int, content: Buffer = b"", size: int = 0) -> None:
        self.number = number
        self.content = bytearray(content)
        """As the page cache has it; zeros at the end may be missing."""
        self.borrowed = False
        """``content`` is another file's: ``own`` it before writing to it."""
        self.size = size
        self.pending: list[Change] = []
        self.faulty = False
        """A pending change does not do what it should."""
        self.below: Inode | None = None
        """What the disk has, since a failed sync: the page cache shows more."""
        self.linked = True

    def own(self) -> None:
        if self.borrowed:
            self.content, self.borrowed = bytearray(self.content), False

    def put(self, offset: int, data: bytes) -> None:
        self.own()
        content = self.content
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data
        self.size = max(self.size, offset + len(data))

    def resize(self, size: int) -> None:
        self.own()
        del self.content[size:]
        self.size = size

    def undo(self, change: Change) -> None:
        content = self.content
        if change.new is not None:
            content[change.offset : change.offset + len(change.new)] = change.old
        elif change.old:
            content.extend(bytes(change.offset - len(content)))
            content += change.old
        del content[change.old_size :]
        self.size = change.old_size

    def redo(self, change: Change) -> None:
        if change.new is None:
            self.resize(change.offset)
            return
        end = change.offset + len(change.new)
        if not change.fate.lost:
            self.put(change.offset if change.fate.at is None else change.fate.at, change.new)
        self.size = max(self.size, end)

    def settle(self) -> None:
        """All that is pending reaches the disk, or what its fate makes of it."""
        pending, self.pending = self.pending, []
        faulty, self.faulty = self.faulty, False
        if self.below is not None:
            for change in pending:
                self.below.redo(change)
        elif faulty:
            for change in reversed(pending):
                self.undo(change)
            for change in pending:
                self.redo(change)

    def drop(self) -> None:
        """Nothing of what is pending will ever reach the disk, and everybody goes on seeing it."""
        self.below = self.durable()
        self.pending.clear()

    def lose(self, rng: random.Random, *, keep: float, tear: float) -> None:
        """A power loss: each thing that is pending reaches the disk with probability ``keep``, else parts of it may."""
        if not self.pending and self.below is None:
            return
        left, pending = self.durable(), self.pending
        self.content, self.size = left.content, left.size
        self.pending, self.faulty, self.below = [], False, None
        for change in pending:
            if rng.random() < keep:
                self.redo(change)
            elif change.new is not None and rng.random() < tear:
                for at, part in sectors(change.offset, change.new):
                    if rng.random() < 0.5:
                        self.redo(change._replace(offset=at, new=part))
            elif change.new is not None and rng.random() < tear:
                self.redo(change._replace(fate=LOST))  # the size alone

    def durable(self) -> Inode:
        """What would be left if all that is pending were lost. A copy."""
        base = self if self.below is None else self.below
        copy = Inode(self.number, base.content, base.size)
        for change in reversed(self.pending if self.below is None else ()):
            copy.undo(change)
        return copy

    def twin(self) -> Inode:
        """``durable``, copied no sooner than it must be: for as long as this one is left alone."""
        if self.pending or self.below is not None:
            return self.durable()
        twin = Inode(self.number, size=self.size)
        twin.content, twin.borrowed = self.content, True
        return twin

    def stable(self) -> bytes:
        """What would be read if all that is not synced were lost."""
        return self.durable().raw()

    def keeps(self, part: bytes) -> bool:
        """``part`` would be found if all that is not synced were lost."""
        at = -1 if self.below is not None else self.content.rfind(part)  # what is looked for is mostly new
        if at >= 0 and not any(change.touches(at, at + len(part)) for change in self.pending):
            return True
        return (bool(self.pending) or self.below is not None) and part in self.durable().content

    def evict(self) -> None:
        """The page cache forgets all that is not pending: reads show what the disk has."""
        if self.below is not None:
            self.content, self.size = self.below.content, self.below.size
            self.below = None
            for change in self.pending:
                self.redo(change)

    def raw(self) -> bytes:
        return bytes(self.content).ljust(self.size, b"\0")


def sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    """A write, cut where the disk may tear it."""
    first = SECTOR - offset % SECTOR
    cuts = [0, *range(first, len(data), SECTOR), len(data)]
    return [(offset + a, data[a:b]) for a, b in pairwise(cuts)]


def assign(files: dict[str, Inode], name: str, inode: Inode | None) -> None:
    """What a name means from now on; None: nothing."""
    if inode is None:
        files.pop(name, None)
    else:
        files[name] = inode


def os_error(number: int, path: Path) -> OSError:
    """As the system says it."""
    return OSError(number, os.strerror(number), str(path))
