"""A client's connection, as its session sees it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from logboom.settings import Settings
from logboom.wire import Frame, FrameDecoder
from partitions.log.compaction import Leases


class Connection:
    """Notes what is said to it."""

    congested = False
    remote = "somewhere"
    peer_identities: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.closed = self.introduced = False
        self.heard: list[Frame] = []

    def send(self, buffers: Any, *, frames: int = 1) -> None:
        self.heard += FrameDecoder(frame_bytes_max=1 << 20).feed(b"".join(bytes(each) for each in buffers))

    def authenticated(self) -> None:
        self.introduced = True

    def close(self) -> None:
        self.closed = True


class Backend:
    """One partition with an empty log."""

    clock = SimpleNamespace(monotonic=lambda: 0.0)
    settings = Settings()
    streams_open = 0
    streams_logs = 0

    workers = (0,)

    def partition_ids(self) -> list[int]:
        return [0]

    def recovered(self, partitions: Any = None) -> bool:
        return True

    def has_log(self, partition_id: int) -> bool:
        return True

    def log(self, partition_id: int) -> Any:
        return SimpleNamespace(durable_index=0, hole=None, first_available_index=1, lease=Leases(60.0).add)

    def subscribe_commits(self, partition_id: int, moved: Callable[[], None]) -> Callable[[], None]:
        return lambda: None
