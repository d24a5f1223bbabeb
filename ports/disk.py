"""Files. Blocking on purpose: callers run them through ``ports.offload`` unless at start-up.

Nothing is durable before ``File.sync``; a new, renamed or removed name is durable only
after ``Disk.sync_directory`` of its parent. An OSError from ``sync`` or ``write`` is final:
the kernel may have dropped the pages, so the file must not be trusted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Advice(Enum):
    """What will become of some bytes of a file, for whoever caches it."""

    SOON = 1
    """They are about to be read."""
    DONE = 2
    """Nobody reads them again soon."""


class File(Protocol):
    """One open file with explicit offsets."""

    @property
    def path(self) -> Path:
        """Where it was opened."""
        ...

    def read(self, *, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end of the file."""
        ...

    def read_anew(self, *, offset: int, length: int) -> bytes:
        """As ``read``, of the disk rather than of memory where the system allows it, and nothing is kept in memory."""
        ...

    def write(self, buffers: Sequence[Buffer], *, offset: int) -> int:
        """Write all of them back to back; returns the bytes written, which is always all."""
        ...

    def sync(self) -> None:
        """Data, and the size if it changed, on stable storage."""
        ...

    def write_synced(self, buffers: Sequence[Buffer], *, offset: int) -> int:
        """``write``, then ``sync``, as one where the system can: a thread then waits for the interpreter once."""
        ...

    def size(self) -> int:
        """Bytes."""
        ...

    def truncate(self, size: int) -> None:
        """Cut (or extend with zeros) to ``size``."""
        ...

    def allocate(self, size: int) -> None:
        """Make sure that ``size`` bytes are backed by disk space; reads of the new part give zeros."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


class AdvisedFile(File, Protocol):
    """One that listens. Advice changes how long something takes, never what happens."""

    def advise(self, advice: Advice, *, offset: int, length: int) -> None:
        """What will become of these bytes; there may be fewer."""
        ...


class EagerFile(File, Protocol):
    """One whose disk can begin with a part of what ``sync`` does."""

    def begin_sync(self, *, offset: int, length: int) -> None:
        """Of these bytes, which were written. Does not wait, and promises nothing: ``sync`` has to follow.

        An OSError is final, as one from ``sync``.
        """
        ...


class Lock(Protocol):
    """A lock that is held; the end of the process releases it, too."""

    def release(self) -> None:
        """Idempotent."""
        ...


class Disk(Protocol):
    """A file system. Paths are absolute."""

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> File:
        """Raises FileNotFoundError unless ``create``."""
        ...

    def exists(self, path: Path) -> bool:
        """File or directory."""
        ...

    def list(self, directory: Path) -> list[str]:
        """Names in ``directory``, sorted."""
        ...

    def make_directory(self, path: Path) -> None:
        """With parents; fine if it exists; durable on return, even if another process made it and was killed then."""
        ...

    def make_directories(self, paths: Iterable[Path]) -> None:
        """``make_directory`` for many, with one sync for all that have the same parent."""
        ...

    def read_file(self, path: Path) -> bytes:
        """The whole of a small file."""
        ...

    def replace_file(self, path: Path, *content: Buffer) -> None:
        """Atomically and durably: write aside, sync, rename, sync the directory. ``content``: in as many pieces."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Durable only after ``sync_directory``."""
        ...

    def move_directory(self, source: Path, target: Path) -> None:
        """With all that is in it, to a name that is free; durable on return.

        Raises OSError with EBUSY for one that a file system is mounted on: nothing has moved.
        """
        ...

    def remove(self, path: Path) -> None:
        """Durable only after ``sync_directory``."""
        ...

    def remove_directory(self, path: Path) -> None:
        """With all that is in it, files first; durable only after ``sync_directory`` of its parent.

        A crash may leave any part of it. One that a file system is mounted on stays, empty. Raises FileNotFoundError.
        """
        ...

    def sync_directory(self, path: Path) -> None:
        """Names in ``path`` on stable storage."""
        ...

    def lock(self, path: Path, *, shared: bool = False) -> Lock:
        """Lock the file, made if missing, against other processes. Raises BlockingIOError when another holds it.

        ``shared``: only against those that do not say so. It takes no right to write to a file that is there.
        """
        ...

    def free_bytes(self, path: Path) -> int:
        """Space left on the file system that holds ``path``."""
        ...
