"""Files in memory, bounded: what a decoder writes while it opens is seen, and cannot grow without end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from ports.disk import Buffer

DISK_BYTES_MAX: Final = 1 << 22


class MemoryLock:
    def release(self) -> None:
        pass


class MemoryFile:
    def __init__(self, path: Path, content: bytearray) -> None:
        self._path = path
        self.content = content

    @property
    def path(self) -> Path:
        return self._path

    def read(self, *, offset: int, length: int) -> bytes:
        return bytes(self.content[offset : offset + length])

    def read_anew(self, *, offset: int, length: int) -> bytes:
        return self.read(offset=offset, length=length)

    def write(self, buffers: Sequence[Buffer], *, offset: int) -> int:
        raw = b"".join(bytes(buffer) for buffer in buffers)
        self.allocate(offset + len(raw))
        self.content[offset : offset + len(raw)] = raw
        return len(raw)

    def write_synced(self, buffers: Sequence[Buffer], *, offset: int) -> int:
        return self.write(buffers, offset=offset)

    def sync(self) -> None:
        pass

    def size(self) -> int:
        return len(self.content)

    def truncate(self, size: int) -> None:
        del self.content[size:]

    def allocate(self, size: int) -> None:
        if size > DISK_BYTES_MAX:
            raise MemoryError(f"a file of {size} bytes")
        self.content.extend(bytes(max(0, size - len(self.content))))

    def close(self) -> None:
        pass


class MemoryDisk:
    """A ports.disk.Disk."""

    def __init__(self) -> None:
        self.files: dict[Path, bytearray] = {}

    def put(self, path: Path, content: bytes) -> None:
        self.files[path] = bytearray(content)

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> MemoryFile:
        if path not in self.files:
            if not create:
                raise FileNotFoundError(path)
            self.files[path] = bytearray()
        return MemoryFile(path, self.files[path])

    def exists(self, path: Path) -> bool:
        return path in self.files or any(path in each.parents for each in self.files)

    def list(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self.files if path.parent == directory)

    def make_directories(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self.make_directory(path)

    def make_directory(self, path: Path) -> None:
        pass

    def read_file(self, path: Path) -> bytes:
        return bytes(self.files[path])

    def replace_file(self, path: Path, *content: Buffer) -> None:
        self.files[path] = bytearray().join(content)

    def rename(self, source: Path, target: Path) -> None:
        self.files[target] = self.files.pop(source)

    def move_directory(self, source: Path, target: Path) -> None:
        for path in [path for path in self.files if source in path.parents]:
            self.files[target / path.relative_to(source)] = self.files.pop(path)

    def remove_directory(self, path: Path) -> None:
        self.files = {each: content for each, content in self.files.items() if path not in each.parents}

    def remove(self, path: Path) -> None:
        del self.files[path]

    def sync_directory(self, path: Path) -> None:
        pass

    def lock(self, path: Path, *, shared: bool = False) -> MemoryLock:
        return MemoryLock()

    def free_bytes(self, path: Path) -> int:
        return 1 << 40
