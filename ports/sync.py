"""What the group sync needs from a file that collects writes (journal, partition logs)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class Redo(NamedTuple):
    """Bytes that can be written again after a crash, found by their digest."""

    digest: bytes
    buffers: Sequence[Buffer]


class SyncJob(Protocol):
    """One file's share of a group: detached from its target, so that new writes can queue meanwhile."""

    @property
    def pending_bytes(self) -> int:
        """Bytes that ``run`` writes."""
        ...

    @property
    def records(self) -> int:
        """Records of clients among them."""
        ...

    def redo(self) -> Sequence[Redo]:
        """All that ``run`` will write, for a journal that is synced in its place; ``run`` then only writes.

        Empty: this job has to sync for itself.
        """
        ...

    def begin(self) -> None:
        """Off the loop, before ``run``, where others are to be synced by the same thread: what need not wait.

        It writes, and has the disk begin; ``run`` then does the rest. An OSError stops the node.
        """
        ...

    def run(self) -> None:
        """Off the loop: write, and sync where the mode asks for it. An OSError stops the node."""
        ...

    def done(self) -> None:
        """On the loop, after ``run``: what it wrote is now durable (or written, in write-behind mode)."""
        ...


class SyncTarget(Protocol):
    """A file with queued writes. At most one job of a target is out at a time."""

    def take(self) -> SyncJob | None:
        """Detach what is queued; None when clean."""
        ...

    def request_sync(self) -> bool:
        """The next job syncs for itself, and all that was only written before; False: nothing needs it."""
        ...
