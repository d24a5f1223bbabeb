"""The real disk (ports.disk)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from logboom.types import KIB
from ports.counts import SECONDS, Buckets, Counted
from ports.disk import Advice, Buffer
from server.world.mounts import Mounts
from server.world.page_cache import PageCache

P = ParamSpec("P")
T = TypeVar("T")
IOV_MAX: Final = 1024
PAGE: Final = 4096
NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
ADVICE: Final = {Advice.SOON: os.POSIX_FADV_WILLNEED, Advice.DONE: os.POSIX_FADV_DONTNEED}


SYNC_FILE_RANGE_WRITE: Final = 2
UNTOLD_BYTES: Final = 16 * KIB
"""Less than that of a file which is synced the page cache hears of together with what follows, or at the end: who waits
for a small write waits for no bookkeeping."""


def _begins_syncs() -> Callable[[int, int, int, int], int] | None:
    """Linux's call for it, which sets ctypes' errno; None elsewhere."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


_sync_file_range: Final = _begins_syncs()


class Syncs:
    """How long syncs take, of a disk's files, by what a file's name ends with. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_suffix: dict[str, Buckets] = {".journal": Buckets(SECONDS), ".log": Buckets(SECONDS)}
        self._others = Buckets(SECONDS)

    def of(self, path: Path) -> Callable[[float], None]:
        """For this file: to be told how many seconds each of its syncs took."""
        lock, observe = self._lock, self._by_suffix.get(path.suffix, self._others).observe

        def told(seconds: float) -> None:
            with lock:
                observe(seconds)

        return told

    def snapshot(self) -> dict[str, Counted]:
        """How long syncs took, by kind of file."""
        with self._lock:
            journal, aof = self._by_suffix[".journal"], self._by_suffix[".log"]
            return {"journal": journal.snapshot(), "aof": aof.snapshot(), "other": self._others.snapshot()}


def _named(act: Callable[Concatenate[OsFile, P], T]) -> Callable[Concatenate[OsFile, P], T]:
    """The system knows a descriptor only: whoever reads of its error wants to know which file that is."""

    @wraps(act)
    def named(file: OsFile, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return act(file, *args, **kwargs)
        except OSError as error:
            error.filename = str(file.path)
            raise

    return named


class OsFile:
    """One descriptor. Offsets are explicit, so threads may read while another writes."""

    def __init__(
        self,
        path: Path,
        flags: int,
        syncs: Syncs | None = None,
        page_cache: PageCache | None = None,
        *,
        through: bool = False,
    ) -> None:
        """``through``: its file system syncs what is written through."""
        self.path = path
        self._through = through
        self._took = syncs.of(path) if syncs is not None else None
        self._page_cache = page_cache
        self._told = -1
        """So far ``_page_cache`` knows of what was written here; -1: nothing was."""
        self._end = 0
        """Where what was written ends."""
        self._durable = 0
        """Where what was synced ends."""
        self._dirty = True
        """Something may have been written, by an earlier process too, that is not synced."""
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o600)

    @_named
    def read(self, *, offset: int, length: int) -> bytes:
        """See File."""
        parts: list[bytes] = []
        while length > 0 and (part := os.pread(self._fd, length, offset)):
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_anew(self, *, offset: int, length: int) -> bytes:
        """See File. What is not written back yet stays in the page cache, and is read there."""
        start = offset - offset % PAGE
        whole = length + offset - start + PAGE
        os.posix_fadvise(self._fd, start, whole, os.POSIX_FADV_DONTNEED)
        raw = self.read(offset=offset, length=length)
        os.posix_fadvise(self._fd, start, whole, os.POSIX_FADV_DONTNEED)
        return raw

    def advise(self, advice: Advice, *, offset: int, length: int) -> None:
        """See AdvisedFile."""
        os.posix_fadvise(self._fd, offset, length, ADVICE[advice])

    @_named
    def begin_sync(self, *, offset: int, length: int) -> None:
        """See EagerFile."""
        # An error of pages that are written here may be told here only: the sync that follows would find them clean.
        if _sync_file_range is not None and _sync_file_range(self._fd, offset, length, SYNC_FILE_RANGE_WRITE):
            failure = ctypes.get_errno()
            if failure != errno.ENOSYS:
                raise OSError(failure, os.strerror(failure))

    @_named
    def write(self, buffers: Sequence[Buffer], *, offset: int) -> int:
        """See File."""
        self._dirty = True
        total = 0
        for start in range(0, len(buffers), IOV_MAX):
            group = buffers[start : start + IOV_MAX]
            size = sum(map(len, group))
            written = os.pwritev(self._fd, group, offset + total)
            if written < size:
                self._write_rest(b"".join(group)[written:], offset + total + written)
            total += size
        self._wrote(offset, total)
        return total

    @_named
    def write_synced(self, buffers: Sequence[Buffer], *, offset: int) -> int:
        """See File. One system call, where that syncs and nothing else is to be synced: it syncs what it writes."""
        size = sum(map(len, buffers))
        if not self._may_write_through(buffers) or not self._write_through(buffers, offset, size):
            self.write(buffers, offset=offset)
            self.sync()
        return size

    def _may_write_through(self, buffers: Sequence[Buffer]) -> bool:
        return self._through and not self._dirty and len(buffers) <= IOV_MAX

    def _write_through(self, buffers: Sequence[Buffer], offset: int, size: int) -> bool:
        """False: not all of it, or this kernel cannot."""
        self._dirty, began = True, time.perf_counter()
        try:
            whole = os.pwritev(self._fd, buffers, offset, os.RWF_DSYNC) == size
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            whole = False
        if whole:
            self._wrote(offset, size)
            self._dirty = False
            self._synced(self._end, time.perf_counter() - began)
        return whole

    def _wrote(self, offset: int, size: int) -> None:
        if self._told < 0:
            self._told = offset
        self._end = max(self._end, offset + size)

    def _write_rest(self, rest: bytes, offset: int) -> None:
        view = memoryview(rest)
        while view:
            written = os.pwrite(self._fd, view, offset)
            view, offset = view[written:], offset + written

    @_named
    def sync(self) -> None:
        """See File."""
        end, self._dirty = self._end, False  # what is written meanwhile may not be synced
        began = time.perf_counter()
        try:
            os.fdatasync(self._fd)
        except OSError:
            self._dirty = True
            raise
        self._synced(end, time.perf_counter() - began)

    def _synced(self, end: int, took_s: float) -> None:
        if self._took is not None:
            self._took(took_s)
        self._durable = end
        if self._page_cache is not None and 0 <= self._told <= end - UNTOLD_BYTES:
            self._tell(self._page_cache, self._fd)

    def _tell(self, page_cache: PageCache, fd: int) -> None:
        told, self._told = self._told, self._durable
        page_cache.synced(self.path, told, self._durable, fd=fd)

    def size(self) -> int:
        """See File."""
        return os.fstat(self._fd).st_size

    @_named
    def truncate(self, size: int) -> None:
        """See File."""
        self._dirty = True
        os.ftruncate(self._fd, size)

    @_named
    def allocate(self, size: int) -> None:
        """See File."""
        os.posix_fallocate(self._fd, 0, size)

    def close(self) -> None:
        """See File."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self._page_cache is not None:
                if 0 <= self._told < self._durable:
                    self._tell(self._page_cache, fd)
                self._page_cache.closed(self.path, fd)
            os.close(fd)


def _lock_file(path: Path, *, shared: bool) -> int:
    """On a file system that is mounted read-only whoever looks has a lock, too, if there is a file for it."""
    if shared:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class OsLock:
    """A descriptor with a flock. NFS gives an exclusive one only to who may write."""

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        self._fd = _lock_file(path, shared=shared)
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """See Lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _depth(path: Path) -> int:
    return len(path.parts)


def _is_there(path: Path) -> bool:
    """From Python 3.14 on ``Path.exists`` says "not there" whatever the disk answers: of a journal that is not read."""
    try:
        os.stat(path)  # noqa: PTH116
    except OSError as error:
        if error.errno not in NOT_THERE:
            raise
        return False
    return True


class OsDisk:
    """The operating system's file system."""

    def __init__(self, *, page_cache_bytes: int = 0) -> None:
        """``page_cache_bytes``: so much of what was written last stays in the page cache; 0: the kernel decides."""
        self.syncs = Syncs()
        self._page_cache = PageCache(page_cache_bytes) if page_cache_bytes else None
        self._mounts = Mounts()
        self._settled: set[Path] = set()
        """Directories of which this process has synced what others before it had made in them."""

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> OsFile:
        """See Disk."""
        flags = (os.O_RDONLY if readonly else os.O_RDWR) | (os.O_CREAT if create else 0)
        through = not readonly and self._mounts.write_through(path.parent)
        return OsFile(path, flags, self.syncs, self._page_cache, through=through)

    def exists(self, path: Path) -> bool:
        """See Disk."""
        return _is_there(path)

    def list(self, directory: Path) -> list[str]:
        """See Disk."""
        return sorted(entry.name for entry in directory.iterdir())

    def make_directory(self, path: Path) -> None:
        """See Disk."""
        self.make_directories((path,))

    def make_directories(self, paths: Iterable[Path]) -> None:
        """See Disk. Nothing is made in what is not durable: whoever is killed leaves no more to sync than the last."""
        missing: set[Path] = set()
        unsure: set[Path] = set()
        for path in paths:
            for each in (path, *path.parents):
                if each in missing:
                    break
                if _is_there(each):
                    unsure.add(each)
                    break
                if each.is_symlink():
                    raise OSError(errno.ENOENT, "it is a link to what is not there", str(each))
                missing.add(each)
        self._settle(unsure)
        for _, level in itertools.groupby(sorted(missing, key=_depth), key=_depth):
            grown: set[Path] = set()
            for each in level:
                each.mkdir(0o700, exist_ok=True)  # machines of users leave files that anybody may read
                grown.add(each.parent)
            for parent in sorted(grown):
                self.sync_directory(parent)

    def _settle(self, unsure: Iterable[Path]) -> None:
        """Of those that are there: each parent is synced once, if it was perhaps one like us who made them in it."""
        for parent, those in itertools.groupby(sorted(unsure), key=lambda each: each.parent):
            if parent in self._settled or not os.access(parent, os.W_OK):
                continue
            device = parent.stat().st_dev
            if any(each.stat().st_dev == device for each in those):  # nobody makes what is mounted
                self.sync_directory(parent)
                self._settled.add(parent)

    def read_file(self, path: Path) -> bytes:
        """See Disk."""
        return path.read_bytes()

    def replace_file(self, path: Path, *content: Buffer) -> None:
        """See Disk."""
        aside = path.with_name(path.name + ".new")
        file = OsFile(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            file.write(content, offset=0)
            file.sync()
        finally:
            file.close()
        # Rename last: a crash before this leaves the old content.
        aside.rename(path)
        self.sync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """See Disk."""
        source.rename(target)

    def move_directory(self, source: Path, target: Path) -> None:
        """See Disk."""
        source.rename(target)
        self.sync_directory(target.parent)

    def remove(self, path: Path) -> None:
        """See Disk."""
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        """See Disk. Of a link also what it leads to: somebody has put that on another disk."""
        target = path.resolve()
        if path.is_symlink():
            path.unlink()
        try:
            shutil.rmtree(target)
        except OSError as error:
            # A file system is mounted on it: whoever did that removes the directory.
            if error.errno != errno.EBUSY or self.list(target):
                raise

    def sync_directory(self, path: Path) -> None:
        """See Disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: Path, *, shared: bool = False) -> OsLock:
        """See Disk."""
        return OsLock(path, shared=shared)

    def free_bytes(self, path: Path) -> int:
        """See Disk."""
        return shutil.disk_usage(path).free
