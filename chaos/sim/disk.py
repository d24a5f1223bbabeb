"""A disk in memory that forgets what was not synced (``ports.disk.Disk``).

Strict POSIX: ``sync`` makes a file's data and size durable, never its name; a name that is new, renamed or
removed is durable after ``sync_directory`` of its parent. Every inode is its page cache and a list of what was not
synced yet, each change with what it replaced: a sync only forgets that list, a power loss goes back along it, and along
all of it where the disk ``forgets``. Preallocated zeros take no memory. Nothing here depends on time or addresses.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable, Iterable
from pathlib import Path

from chaos.sim import trees
from chaos.sim.handles import Life, SimFile, SimLock
from chaos.sim.inode import (
    KEPT,
    LOST,
    DeadHandle,
    DroppedPages,
    Image,
    Inode,
    Op,
    ShortWrite,
    WriteFate,
    assign,
    misdirect,
    os_error,
)
from chaos.sim.trees import Directory
from ports.disk import Buffer

__all__ = (
    "KEPT", "LOST", "DeadHandle", "DroppedPages", "Image", "Op", "ShortWrite", "SimDisk", "SimFile", "SimLock",
    "WriteFate", "misdirect",
)  # fmt: skip


class SimDisk:
    """See the module and ports.disk.Disk."""

    def __init__(self, rng: random.Random, *, capacity: int = 1 << 40) -> None:
        self.capacity, self.forgets = capacity, False
        self.hook: Callable[[str, Path, int], None] | None = None
        """Called before every primitive operation with its name, path and size; may raise OSError, ShortWrite
        (write) or DroppedPages (sync): then nothing else of it happens."""
        self.write_fault: Callable[[Path, int, int], WriteFate | None] | None = None
        """Called with path, offset and length of every write; None: nothing happens to it."""
        self.moved: Callable[[Path, Path | None], None] = lambda _source, _target: None
        """Told of directories that are moved, or removed: some of their files are not on this disk."""
        self.trace: list[Op] | None = None
        """If a list: every operation that took effect, for chaos.sim.crash_states."""
        self._rng = rng
        self._directories = {"/": Directory()}
        self._removed: list[tuple[str, str, Directory]] = []
        """Directories: parent, path, and what comes back with a power loss before the parent is synced."""
        self._made: dict[str, str] = {}
        """Directories whose name is not durable: their parents."""
        self._life = Life()
        self._used = 0
        self._numbers = 0

    @classmethod
    def of(cls, image: Image, rng: random.Random, *, capacity: int = 1 << 40) -> SimDisk:
        """A disk that holds ``image``, all of it synced."""
        disk = cls(rng, capacity=capacity)
        for directory in image.directories:
            disk._add_directory(directory)
        for name, (content, size) in image.files.items():
            parent, _, last = name.rpartition("/")
            disk._add_directory(parent or "/").files[last] = Inode(disk._number(), content, size)
            disk._used += size
        return disk

    def image(self) -> Image:
        """All that a process would find now."""
        files = {
            f"{name.rstrip('/')}/{last}": (bytes(inode.content), inode.size)
            for name, directory in sorted(self._directories.items())
            for last, inode in sorted(directory.files.items())
        }
        return Image(tuple(sorted(self._directories)), files)

    def still_open(self) -> list[str]:
        """What the process that runs has open, or locked."""
        return self._life.holds()

    # -- what happens to it

    def kill(self) -> None:
        """The process died: what it wrote stays, its handles and locks do not."""
        self._life.over = True
        self._life = Life()

    def power_loss(self) -> None:
        """``kill``, and chance decides over each thing that was not synced."""
        self.kill()
        rng = self._rng
        # Each loss is of its own kind: everything gone, everything there, or anything in between.
        kinds = ((0.0, 0.0), (1.0, 0.0), (0.5, 0.2), (rng.random(), rng.random()))
        keep, tear = kinds[0] if self.forgets else rng.choice(kinds)
        for parent, path, gone in reversed(self._removed):  # who holds others was removed after them
            back = rng.random() >= keep and parent in self._directories
            if back and self._directories.setdefault(path, gone) is gone:
                self._directories[parent].directories[path.rpartition("/")[2]] = None
        self._removed.clear()
        for path in sorted(self._made):
            if rng.random() >= keep and path in self._directories:
                trees.lose(self._directories, path)
        self._made.clear()
        for _, directory in sorted(self._directories.items()):
            kept = sum(rng.random() < keep for _ in directory.pending)
            for operation in reversed(directory.pending[kept:]):
                for name, before, _ in operation:
                    assign(directory.files, name, before)
            directory.pending.clear()
        self._used = 0
        for _, directory in sorted(self._directories.items()):
            for _, inode in sorted(directory.files.items()):
                inode.lose(rng, keep=keep, tear=tear)
                inode.linked = True
                self._used += inode.size

    def flip(self, path: Path, offset: int, mask: int) -> None:
        """Bit rot, while nobody has the file open."""
        inode = self._inode(path)
        inode.settle()
        inode.evict()
        if not 0 <= offset < inode.size:
            raise ValueError(f"{path} has no byte {offset}")
        old = inode.content[offset] if offset < len(inode.content) else 0
        inode.put(offset, bytes((old ^ mask,)))

    def cut(self, path: Path, size: int) -> None:
        """The file's end is gone, while nobody has it open."""
        inode = self._inode(path)
        inode.settle()
        inode.evict()
        self._used -= max(0, inode.size - size)
        inode.resize(min(size, inode.size))

    def paths(self) -> list[Path]:
        """All files, sorted."""
        return [Path(name) for name in self.image().files]

    def stable(self, path: Path) -> bytes:
        """What would be in the file if all that is not synced were lost."""
        return self._inode(path).stable()

    def keeps(self, directory: Path, suffix: str, part: bytes) -> bool:
        """Would a process find ``part`` after all that is not synced was lost, be it a file's name?

        In the last of the directory's files with that suffix that shows it now: what is looked for is mostly new.
        """
        found = self._directories.get(str(directory))
        if found is None or self._is_new(str(directory)):
            return False
        for name in sorted(found.files, reverse=True):
            if name.endswith(suffix) and found.files[name].content.rfind(part) >= 0:
                before = [row for operation in found.pending for row in operation if row[0] == name]
                inode = before[0][1] if before else found.files[name]
                return inode is not None and inode.keeps(part)
        return False

    def twin(self) -> SimDisk:
        """What would be left of it if all that is not synced were lost: for as long as this one is left alone."""
        twin = SimDisk(random.Random(0))
        for path, directory in self._directories.items():
            if self._is_new(path):
                continue
            names = dict(directory.files)
            for operation in reversed(directory.pending):
                for name, before, _ in operation:
                    assign(names, name, before)
            twin._add_directory(path).files.update((name, inode.twin()) for name, inode in names.items())
        return twin

    # -- ports.disk.Disk

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> SimFile:
        parent, _, name = str(path).rpartition("/")
        directory = self._directories.get(parent or "/")
        if directory is None:
            raise os_error(errno.ENOENT, path)
        inode = directory.files.get(name)
        if inode is None and create and name not in directory.directories:
            self._before("create", path)
            inode = Inode(self._number())
            directory.pending.append([(name, None, inode)])
            directory.files[name] = inode
            self.record(Op("create", str(path), inode.number))
        else:
            self._before("open", path)
        if inode is None:
            raise os_error(errno.EISDIR if name in directory.directories else errno.ENOENT, path)
        return SimFile(self, self._life, inode, path, readonly=readonly)

    def exists(self, path: Path) -> bool:
        parent, _, name = str(path).rpartition("/")
        directory = self._directories.get(parent or "/")
        return str(path) in self._directories or (directory is not None and name in directory.files)

    def list(self, directory: Path) -> list[str]:
        found = self._directory(directory)
        return sorted([*found.files, *found.directories])

    def make_directory(self, path: Path) -> None:
        self.make_directories((path,))

    def make_directories(self, paths: Iterable[Path]) -> None:
        """As the real one: those of a level, then their parents are synced, then what is in them."""
        wanted = {each for path in paths for each in (path, *path.parents)}
        for _, level in itertools.groupby(sorted(wanted, key=trees.order), key=trees.depth):
            grown: dict[Path, None] = {}
            for each in level:
                if str(each) not in self._directories:
                    self._before("make_directory", each)
                    if self.exists(each):
                        raise os_error(errno.ENOTDIR, each)
                    self._add_directory(str(each))
                    self._made[str(each)] = str(each.parent)
                    self.record(Op("make_directory", str(each)))
                if str(each) in self._made:
                    grown[each.parent] = None
            for parent in grown:
                self.sync_directory(parent)

    def read_file(self, path: Path) -> bytes:
        self._before("read", path)
        return self._inode(path).raw()

    def replace_file(self, path: Path, *content: Buffer) -> None:
        aside = path.with_name(path.name + ".new")
        file = self.open(aside, create=True)
        try:
            if file.size():
                file.truncate(0)
            file.write(content, offset=0)
            file.sync()
        finally:
            file.close()
        self.rename(aside, path)
        self.sync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """Files only, within one directory."""
        self._before("rename", target)
        inode, directory = self._inode(source), self._directory(source.parent)
        if source.parent != target.parent:
            raise os_error(errno.EXDEV, target)
        replaced = directory.files.get(target.name)
        if replaced is inode:
            return
        directory.pending.append([(source.name, inode, None), (target.name, replaced, inode)])
        self._unlink(replaced)
        del directory.files[source.name]
        directory.files[target.name] = inode
        self.record(Op("rename", str(source), inode.number, target=str(target)))

    def move_directory(self, source: Path, target: Path) -> None:
        self._before("rename", target)
        trees.move(self._directories, source, target)
        self._made.pop(str(source), None)
        self.moved(source, target)
        self.record(Op("move_directory", str(source), target=str(target)))

    def remove_directory(self, path: Path) -> None:
        found = self._directory(path)
        for name in sorted(found.directories):
            self.remove_directory(path / name)
        for name in sorted(found.files):
            self.remove(path / name)
        self._before("remove_directory", path)
        self._removed.append((str(path.parent), str(path), self._directories.pop(str(path))))
        del self._directory(path.parent).directories[path.name]
        self._made.pop(str(path), None)
        self.moved(path, None)
        self.record(Op("remove_directory", str(path)))

    def remove(self, path: Path) -> None:
        self._before("remove", path)
        inode, directory = self._inode(path), self._directory(path.parent)
        directory.pending.append([(path.name, inode, None)])
        self._unlink(inode)
        del directory.files[path.name]
        self.record(Op("remove", str(path), inode.number))

    def sync_directory(self, path: Path) -> None:
        self._before("sync_directory", path)
        self._directory(path).pending.clear()
        self._removed = [row for row in self._removed if row[0] != str(path)]
        self._made = {made: parent for made, parent in self._made.items() if parent != str(path)}
        self.record(Op("sync_directory", str(path)))

    def free_bytes(self, path: Path) -> int:
        return self.capacity - self._used

    def lock(self, path: Path, *, shared: bool = False) -> SimLock:
        """Makes the file. Raises BlockingIOError while it is held."""
        self.open(path, create=True).close()
        lock = SimLock(self._life, path, shared=shared)
        if any(other.path == path and not (shared and other.shared) for other in self._life.locks):
            raise os_error(errno.EAGAIN, path)
        self._life.locks.add(lock)
        return lock

    # -- parts

    def take_space(self, inode: Inode, size: int, path: Path) -> None:
        """``inode`` will have ``size`` bytes. Raises ENOSPC."""
        more = size - inode.size if inode.linked else 0
        if more > 0 and self._used + more > self.capacity:
            raise os_error(errno.ENOSPC, path)
        self._used += more

    def _before(self, operation: str, path: Path) -> None:
        if self.hook is not None:
            self.hook(operation, path, 0)

    def record(self, op: Op) -> None:
        """For the trace."""
        if self.trace is not None:
            self.trace.append(op)

    def _is_new(self, path: str) -> bool:
        """Its name, or that of one that it is in, is not durable."""
        return any(trees.is_in(path, made) for made in self._made)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _unlink(self, inode: Inode | None) -> None:
        if inode is not None:
            inode.linked = False
            self._used -= inode.size

    def _add_directory(self, name: str) -> Directory:
        if name not in self._directories:
            parent, _, last = name.rpartition("/")
            self._add_directory(parent or "/").directories[last] = None
            self._directories[name] = Directory()
        return self._directories[name]

    def _directory(self, path: Path) -> Directory:
        directory = self._directories.get(str(path))
        if directory is None:
            raise os_error(errno.ENOENT, path)
        return directory

    def _inode(self, path: Path) -> Inode:
        inode = self._directory(path.parent).files.get(path.name)
        if inode is None:
            raise os_error(errno.ENOENT, path)
        return inode
