"""A disk in memory on which some bytes of logs cannot be read."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from partitions.log.batch import Batch
from partitions.log.log import PartitionLog
from tests.unit.raftlog.world import MemoryDisk, MemoryFile


class BadFile(MemoryFile):
    disk: BadSectors

    def read(self, *, offset: int, length: int) -> bytes:
        self.disk.reads += 1
        if any(path == self.path and offset <= at < offset + length for path, at in self.disk.bad):
            self.disk.meanwhile()
            raise OSError(errno.EIO, "Input/output error")
        return super().read(offset=offset, length=length)


class BadSectors(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.bad = set[tuple[Path, int]]()
        """A file, and a byte of it."""
        self.reads = 0
        self.meanwhile: Callable[[], object] = lambda: None
        """Happens while somebody waits for what cannot be read."""

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> MemoryFile:
        found = super().open(path, create=create, readonly=readonly)
        return BadFile(path, found.content, self)

    def break_at(self, log: PartitionLog, batch: Batch) -> None:
        """A sector in the midst of it."""
        ref = log.find(batch.last_index, batch.digest)
        assert ref is not None
        self.bad.add((log._path(ref.segment), ref.offset + ref.length // 2))
