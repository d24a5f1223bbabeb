"""The data directory: whose it is, which format, and that only one process uses it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from logboom.errors import ConfigError, CorruptData, IncompatibleVersion, WrongNode
from logboom.types import NodeId
from ports.disk import Disk, Lock

FORMAT_VERSION: Final = 1
IDENTITY: Final = "identity.json"
LOCK: Final = "lock"
BEGUN: Final = {LOCK, IDENTITY + ".new"}
"""What a first start leaves that ended before it had claimed the directory."""


class DataDir:
    """Opened, checked and locked. Nothing is written before every check has passed."""

    def __init__(self, path: Path, *, disk: Disk, node_id: NodeId, cluster_id: str) -> None:
        """Raises WrongNode, IncompatibleVersion, CorruptData or ConfigError, naming the directory."""
        self.path = path
        try:
            self._check(disk, node_id=node_id, cluster_id=cluster_id)
            disk.make_directory(path)
            self._lock = self._take_lock(disk)
            self._claim(disk, {"format": FORMAT_VERSION, "node": node_id, "cluster": cluster_id})
        except OSError as error:
            raise ConfigError(f"node.data_dir {path}: {error.strerror or error}", path="node.data_dir") from error

    def _claim(self, disk: Disk, identity: Mapping[str, object]) -> None:
        if disk.exists(self.path / IDENTITY):
            disk.sync_directory(self.path)  # a process that was killed may have made the name and not synced it
            return
        try:
            disk.replace_file(self.path / IDENTITY, json.dumps(identity).encode() + b"\n")
        except BaseException:
            self.close()
            raise

    @property
    def journal(self) -> Path:
        """Where the parent journal lives."""
        return self.path / "journal"

    def partition(self, partition_id: int) -> Path:
        """Where one partition lives."""
        return self.path / "partitions" / str(partition_id)

    def strangers(self, disk: Disk, known: set[int]) -> list[str]:
        """Partition directories that the configuration does not name. They are left alone, never deleted."""
        root = self.path / "partitions"
        if not disk.exists(root):
            return []
        return [name for name in disk.list(root) if not (name.isdigit() and int(name) in known)]

    def close(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def _check(self, disk: Disk, *, node_id: NodeId, cluster_id: str) -> None:
        file = self.path / IDENTITY
        if not disk.exists(file):
            if disk.exists(self.path) and set(disk.list(self.path)) - BEGUN:
                raise WrongNode(f"{self.path} is not empty and has no {IDENTITY}: not a logboom data directory")
            return
        try:
            found = json.loads(disk.read_file(file))
            version = found["format"]
            node, cluster = (found["node"], found["cluster"]) if version == FORMAT_VERSION else ("", "")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptData(f"{file} cannot be read: {error}", path=str(file)) from error
        if version != FORMAT_VERSION:
            raise IncompatibleVersion(
                f"{self.path} has format {version}; this release reads {FORMAT_VERSION}. Nothing was changed",
                found=version,
                supported=FORMAT_VERSION,
            )
        if (node, cluster) != (node_id, cluster_id):
            raise WrongNode(
                f"{self.path} belongs to node {node!r} of cluster {cluster!r}, not to {node_id!r} of {cluster_id!r}"
            )

    def _take_lock(self, disk: Disk) -> Lock:
        try:
            return disk.lock(self.path / LOCK)
        except BlockingIOError:
            raise ConfigError(f"{self.path} is in use by another process", path="node.data_dir") from None
