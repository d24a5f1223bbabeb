"""A disk that is only looked at: what would be changed stays as it is, and is remembered by name.

So the code that opens a node's files at a start can be run to find out what it would find.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from logboom.errors import CorruptData
from ports.disk import Buffer, Disk, File, Lock

NO_FILE: Final = (errno.EISDIR, errno.ENOENT, errno.ELOOP, errno.ENOTDIR)
"""Something else is there, by the name of a file or a directory."""


class Unreadable(CorruptData):
    """A bad sector: the disk gives an error for what is in a file. What else there is can be looked at all the same."""


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EIO, *NO_FILE):
            raise
        kind = Unreadable if error.errno == errno.EIO else CorruptData
        raise kind(f"{path}: it cannot be read: {error.strerror}", path=str(path)) from error


class _Looked:
    """A file that takes no changes; ``file`` None: one that would have been made."""

    def __init__(self, path: Path, file: File | None) -> None:
        self._path = path
        self._file = file

    @property
    def path(self) -> Path:
        return self._path

    def read(self, *, offset: int, length: int) -> bytes:
        with _reading(self._path):
            return b"" if self._file is None else self._file.read(offset=offset, length=length)

    def read_anew(self, *, offset: int, length: int) -> bytes:
        with _reading(self._path):
            return b"" if self._file is None else self._file.read_anew(offset=offset, length=length)

    def write(self, buffers: Sequence[Buffer], *, offset: int) -> int:
        return sum(map(len, buffers))

    def write_synced(self, buffers: Sequence[Buffer], *, offset: int) -> int:
        return self.write(buffers, offset=offset)

    def sync(self) -> None:
        pass

    def size(self) -> int:
        return 0 if self._file is None else self._file.size()

    def truncate(self, size: int) -> None:
        pass

    def allocate(self, size: int) -> None:
        pass

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class LookingDisk:
    """See the module; a ports.disk.Disk. The lock alone is the real one."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.replaced: list[Path] = []
        """Files that would have been written anew."""

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> File:
        if create and not self._disk.exists(path):
            return _Looked(path, None)
        with _reading(path):
            return _Looked(path, self._disk.open(path, readonly=True))

    def exists(self, path: Path) -> bool:
        return self._disk.exists(path)

    def list(self, directory: Path) -> list[str]:
        with _reading(directory):
            return self._disk.list(directory) if self._disk.exists(directory) else []

    def make_directory(self, path: Path) -> None:
        pass

    def make_directories(self, paths: Iterable[Path]) -> None:
        pass

    def read_file(self, path: Path) -> bytes:
        with _reading(path):
            return self._disk.read_file(path)

    def replace_file(self, path: Path, *content: Buffer) -> None:
        self.replaced.append(path)

    def rename(self, source: Path, target: Path) -> None:
        pass

    def move_directory(self, source: Path, target: Path) -> None:
        pass

    def remove_directory(self, path: Path) -> None:
        pass

    def remove(self, path: Path) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass

    def lock(self, path: Path, *, shared: bool = False) -> Lock:
        return self._disk.lock(path, shared=shared)

    def free_bytes(self, path: Path) -> int:
        return self._disk.free_bytes(path)
