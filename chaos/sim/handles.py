"""What a process has open on a simulated disk: files and locks, which end with it."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from chaos.sim.inode import KEPT, Change, DeadHandle, DroppedPages, Inode, Op, ShortWrite, WriteFate, os_error
from ports.disk import Buffer


class Disk(Protocol):
    """What an open file asks of its disk; see SimDisk."""

    hook: Callable[[str, Path, int], None] | None
    write_fault: Callable[[Path, int, int], WriteFate | None] | None
    trace: list[Op] | None

    def take_space(self, inode: Inode, size: int, path: Path) -> None:
        """``inode`` will have ``size`` bytes. Raises ENOSPC."""
        ...

    def record(self, op: Op) -> None:
        """For the trace."""
        ...


class Life:
    """Of one process."""

    __slots__ = ("files", "locks", "over")

    def __init__(self) -> None:
        self.over = False
        self.locks: set[SimLock] = set()
        self.files: Counter[Path] = Counter()
        """How often each is open."""

    def holds(self) -> list[str]:
        """Everything that is open, or locked."""
        return sorted([*map(str, self.files.elements()), *(str(lock.path) for lock in self.locks)])


class SimLock:
    """Held until released or until the process dies."""

    def __init__(self, life: Life, path: Path, *, shared: bool) -> None:
        self._life = life
        self.path, self.shared = path, shared

    def release(self) -> None:
        """Idempotent."""
        self._life.locks.discard(self)


class SimFile:
    """See ports.disk.File."""

    __slots__ = ("_closed", "_disk", "_inode", "_life", "_readonly", "path")

    def __init__(self, disk: Disk, life: Life, inode: Inode, path: Path, *, readonly: bool) -> None:
        self.path = path
        self._disk, self._life, self._inode, self._readonly = disk, life, inode, readonly
        self._closed = False
        life.files[path] += 1

    def _usable(self, *, writing: bool = False) -> Inode:
        if self._life.over:
            raise DeadHandle(f"{self.path}: the process that opened it has died")
        if self._closed or (writing and self._readonly):
            raise os_error(errno.EBADF, self.path)
        return self._inode

    def read(self, *, offset: int, length: int) -> bytes:
        inode = self._usable()
        if self._disk.hook is not None:
            self._disk.hook("read", self.path, length)
        length = max(min(length, inode.size - offset), 0)
        raw = bytes(memoryview(inode.content)[offset : offset + length])
        return raw if len(raw) == length else raw.ljust(length, b"\0")

    def read_anew(self, *, offset: int, length: int) -> bytes:
        return self.read(offset=offset, length=length)

    def write(self, buffers: Sequence[Buffer], *, offset: int) -> int:
        inode, disk = self._usable(writing=True), self._disk
        raw = b"".join(buffers)
        if disk.hook is not None:
            try:
                disk.hook("write", self.path, len(raw))
            except ShortWrite as short:
                self._write(inode, raw[: short.kept], offset)
                raise os_error(errno.EIO, self.path) from None
        self._write(inode, raw, offset)
        return len(raw)

    def _write(self, inode: Inode, raw: bytes, offset: int) -> None:
        if not raw:
            return
        disk, end = self._disk, offset + len(raw)
        if end > inode.size:
            disk.take_space(inode, end, self.path)
        fate = KEPT
        if disk.write_fault is not None:
            fate = disk.write_fault(self.path, offset, len(raw)) or KEPT
            inode.faulty |= fate is not KEPT
        inode.own()
        content = inode.content
        inode.pending.append(Change(offset, raw, bytes(content[offset:end]), inode.size, fate))
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset:end] = raw
        inode.size = max(inode.size, end)
        if disk.trace is not None:
            disk.trace.append(Op("write", str(self.path), inode.number, offset, raw))

    def write_synced(self, buffers: Sequence[Buffer], *, offset: int) -> int:
        written = self.write(buffers, offset=offset)
        self.sync()
        return written

    def sync(self) -> None:
        inode, disk = self._usable(), self._disk
        if disk.hook is not None:
            try:
                disk.hook("sync", self.path, 0)
            except DroppedPages:
                inode.drop()
                disk.record(Op("drop", str(self.path), inode.number))
                raise os_error(errno.EIO, self.path) from None
        if inode.faulty or inode.below is not None:
            inode.settle()
        else:
            inode.pending.clear()
        disk.record(Op("sync", str(self.path), inode.number))

    def size(self) -> int:
        return self._usable().size

    def truncate(self, size: int) -> None:
        self._resize("truncate", size)

    def allocate(self, size: int) -> None:
        self._resize("allocate", size)

    def _resize(self, operation: str, size: int) -> None:
        inode, disk = self._usable(writing=True), self._disk
        if disk.hook is not None:
            disk.hook(operation, self.path, size)
        if size == inode.size or (operation == "allocate" and size < inode.size):
            return
        disk.take_space(inode, size, self.path)
        inode.pending.append(Change(size, None, bytes(inode.content[size:]), inode.size, KEPT))
        inode.resize(size)
        disk.record(Op("resize", str(self.path), inode.number, size))

    def close(self) -> None:
        """Idempotent, for the dead too."""
        if not self._closed:
            self._closed = True
            self._life.files[self.path] -= 1
