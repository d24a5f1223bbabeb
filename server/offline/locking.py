"""One process at a time in a directory that no node is running in, or several that only read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from logboom.errors import ConfigError
from ports.disk import Disk
from server.directory.data_dir import LOCK


@contextmanager
def locked(disk: Disk, path: Path, *, reading: bool = False) -> Iterator[None]:
    """Nobody else uses the directory meanwhile; with ``reading`` nobody writes to it. Raises ConfigError."""
    try:
        lock = disk.lock(path / LOCK, shared=reading)
    except BlockingIOError:
        raise ConfigError(f"{path} is in use by another process: stop it first", path=str(path)) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", path=str(path)) from error
    try:
        yield
    finally:
        lock.release()
