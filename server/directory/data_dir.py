"""The data directory: whose it is, which format, and that only one process uses it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from logboom.errors import ConfigError, IncompatibleVersion, Unavailable, WrongNode
from ports.disk import Disk, Lock
from raftlog.entries.voids import Void
from server.directory.manifest import FORMAT_VERSION, Manifest, decode, encode

MANIFEST: Final = "manifest.json"
SNAPSHOTS: Final = "snapshots"
BEFORE_MANIFESTS: Final = "identity.json"
LOCK: Final = "lock"
LOST_AND_FOUND: Final = "lost+found"
"""A file system's own, where a whole one is the directory: a volume in a container, say."""
NUMBER: Final = re.compile(r"0|[1-9][0-9]*")
BEGUN: Final = {LOCK, MANIFEST + ".new", LOST_AND_FOUND}
"""What a first start leaves that ended before it had claimed the directory, and what is nobody's data."""
MOUNTED: Final = ("journal", "partitions")
"""What may be on a file system of its own, and is there then before a first start."""


def refuse_before_manifests(disk: Disk, path: Path) -> None:
    """Raises IncompatibleVersion for a directory that was begun when there were none, and that has none since."""
    if disk.exists(path / BEFORE_MANIFESTS) and not disk.exists(path / MANIFEST):
        raise IncompatibleVersion(
            f"{path} has format 1; this release reads {FORMAT_VERSION}. Nothing was changed",
            found=1,
            supported=FORMAT_VERSION,
        )


def somebodys(disk: Disk, path: Path) -> set[str]:
    """Names of what keeps a node from being begun in this directory, which has no manifest."""
    names = set(disk.list(path)) - BEGUN if disk.exists(path) else set()
    return {name for name in names if name not in MOUNTED or not _is_empty(disk, path / name)}


def _is_empty(disk: Disk, directory: Path) -> bool:
    try:
        return set(disk.list(directory)) <= {LOST_AND_FOUND}
    except NotADirectoryError:
        return False


class DataDir:
    """Opened, checked and locked. Nothing is written before every check has passed."""

    def __init__(self, path: Path, *, disk: Disk, manifest: Manifest) -> None:
        """For the node that ``manifest`` describes.

        Raises WrongNode, IncompatibleVersion, CorruptData or ConfigError, naming the directory.
        """
        self.path = path
        self._disk = disk
        self._changing = threading.Lock()
        try:
            self._check(manifest)
            disk.make_directory(path)
            self._lock = self._take_lock(disk)
            self.manifest = manifest
            """As it is on the disk: its partitions may differ from what was asked for."""
            self._claim()
        except OSError as error:
            raise ConfigError(f"node.data_dir {path}: {error.strerror or error}", path="node.data_dir") from error

    def _claim(self) -> None:
        try:
            found = self._check(self.manifest)  # again: who had the lock until now may have written it anew
            if found is None:
                self.adopt(self.manifest)
            else:
                self.manifest = found
                self._disk.sync_directory(self.path)  # it may have been killed between the name and its sync
        except BaseException:
            self.close()
            raise

    def adopt(self, manifest: Manifest) -> None:
        """From now on this is what the directory holds. As a whole or not at all."""
        self._disk.replace_file(self.path / MANIFEST, encode(manifest))
        self.manifest = manifest

    def lineage(self) -> str:
        """Which history of the cluster the data are of."""
        return self.manifest.lineage or ""

    def take_lineage(self, lineage: str | None, *, fatal: Callable[[BaseException], None]) -> None:
        """A node that joins is of this history from now on; None: one whose disk was lost is of none until then.

        Durable on return; raises Unavailable when it cannot be. Called on the loop: once or twice in a node's life,
        before it has anything else to do.
        """
        try:
            with self._changing:
                self.adopt(msgspec.structs.replace(self.manifest, lineage=lineage))
        except OSError as error:
            fatal(error)
            raise Unavailable(f"{self.path}: {error.strerror or error}") from error

    def note_voids(self, voids: Iterable[Void]) -> None:
        """What was declared void, for people. In any thread. Raises OSError, and then nothing has changed."""
        with self._changing:
            manifest = self.manifest.with_voids(voids)
            if self.manifest != manifest and len(self.manifest.voids) <= len(manifest.voids):
                self.adopt(manifest)

    @property
    def journal(self) -> Path:
        """Where the parent journal lives."""
        return self.path / "journal"

    @property
    def snapshots(self) -> Path:
        """Where snapshot sets live."""
        return self.path / SNAPSHOTS

    @property
    def partitions(self) -> Path:
        """Where all partitions live."""
        return self.path / "partitions"

    def partition(self, partition_id: int) -> Path:
        """Where one partition lives."""
        return self.partitions / str(partition_id)

    def free_bytes(self) -> int:
        """Of the disk that has the least left: the journal may have one of its own, and the partitions."""
        there = (each for each in (self.path, self.journal, self.partitions) if self._disk.exists(each))
        return min(map(self._disk.free_bytes, there))

    def partition_directories(self, disk: Disk) -> list[str]:
        """Names of what lies where partitions do."""
        return disk.list(self.partitions) if disk.exists(self.partitions) else []

    def strangers(self, disk: Disk, known: set[int]) -> list[str]:
        """Partition directories that neither the configuration nor the log names. They are left alone."""
        names = self.partition_directories(disk)
        return [name for name in names if number_in(name) not in known]

    def close(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def _check(self, wanted: Manifest) -> Manifest | None:
        file, disk = self.path / MANIFEST, self._disk
        if disk.exists(file):
            found = decode(disk.read_file(file), path=str(file))
            found.check_owner(wanted, str(self.path))
            return found
        refuse_before_manifests(disk, self.path)
        if somebodys(disk, self.path):
            raise WrongNode(f"{self.path} is not empty and has no {MANIFEST}: not a logboom data directory")
        return None

    def _take_lock(self, disk: Disk) -> Lock:
        try:
            return disk.lock(self.path / LOCK)
        except BlockingIOError as error:
            who = f"`fuser -v {self.path / LOCK}` says which"
            raise ConfigError(f"{self.path} is in use by another process: {who}", path="node.data_dir") from error


def number_in(name: str) -> int | None:
    """The number in a name that a node gives, as it writes it; None: the name is somebody else's."""
    return int(name) if NUMBER.fullmatch(name) else None
