"""What a partition's log no longer needs: who still reads it, which segments go, and how they are removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from logboom.types import PartitionLogIndex
from ports.disk import Disk

BESIDE = (".idx", ".broken")
UNFINISHED = ".new"
"""Of a file that was to take another's place (``Disk.replace_file``) when the process ended."""


class Taken:
    """When a reader has taken something last, in monotonic seconds: all of its leases go by that."""

    __slots__ = ("at",)

    def __init__(self, now: float) -> None:
        self.at = now


class Lease:
    """Somebody reads from ``index`` on: it is not removed, as long as he takes something now and then."""

    def __init__(self, leases: Leases, index: int, by: Taken) -> None:
        self._leases = leases
        self.index = PartitionLogIndex(index)
        self.taken = by

    def move(self, index: int, *, now: float) -> None:
        """Everything before ``index`` has been read."""
        self.index, self.taken.at = PartitionLogIndex(index), now

    def release(self) -> None:
        """Idempotent."""
        self._leases.discard(self)


class Leases:
    """Who reads one partition's log, and from where. ``lease_s``: who took nothing for so long holds nothing back."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._leases: set[Lease] = set()

    def add(self, index: int, *, by: Taken) -> Lease:
        """A new one."""
        lease = Lease(self, index, by)
        self._leases.add(lease)
        return lease

    def discard(self, lease: Lease) -> None:
        """Idempotent."""
        self._leases.discard(lease)

    def lowest(self, index: int, *, now: float) -> int:
        """``index``, or the first index that somebody reads."""
        return min([index, *(each.index for each in self._leases if now - each.taken.at < self._lease_s)])


def removal(
    disk: Disk, directory: Path, names: Mapping[int, str], removed: Callable[[int], None]
) -> Callable[[], None]:
    """A job that removes these segments, in this order, and calls ``removed`` for each. An OSError is final."""

    def run() -> None:
        for segment, name in names.items():
            disk.remove(directory / name)
            removed(segment)
            remove_beside(disk, directory / name)
        if names:
            disk.sync_directory(directory)

    return run


def remove_beside(disk: Disk, log: Path) -> None:
    """What belongs to a segment that is gone. Not synced: it means nothing without it."""
    for suffix in BESIDE:
        if disk.exists(path := log.with_suffix(suffix)):
            disk.remove(path)


def orphans(names: Iterable[str]) -> list[str]:
    """Of the files in a log's directory, at a start: those whose segment has been removed, and what a crash left."""
    names = sorted(names)
    present = {name for name in names if Path(name).suffix in (".log", *BESIDE)}
    alone = [name for name in sorted(present) if Path(name).with_suffix(".log").name not in present]
    return alone + [name for name in names if name.endswith(UNFINISHED)]
