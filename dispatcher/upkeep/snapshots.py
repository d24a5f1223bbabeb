"""Everything that a node does about snapshots, in one place for whoever has to wire it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dispatcher.upkeep.compaction import Compaction
from dispatcher.upkeep.installing import Installing
from dispatcher.upkeep.serving import SnapshotServing
from dispatcher.upkeep.snapshotting import CUT, Snapshotting
from logboom.wire import Kind
from snapshots.store import SnapshotStore

__all__ = ["CUT", "FETCHED", "SERVED", "Snapshots"]

SERVED: Final = frozenset((Kind.SNAPSHOT_WANTED, Kind.SNAPSHOT_FETCH, Kind.LOG_FETCH))
"""Frames of a node that needs a snapshot."""
FETCHED: Final = frozenset((Kind.SNAPSHOT_OFFER, Kind.SNAPSHOT_CHUNK, Kind.LOG_CHUNK))
"""Frames for one."""


@dataclass(frozen=True, slots=True)
class Snapshots:
    """What takes, keeps, gives and fetches the snapshot sets of one node."""

    store: SnapshotStore
    taking: Snapshotting
    compaction: Compaction
    serving: SnapshotServing
    installing: Installing

    async def close(self) -> None:
        """Begin nothing more, wait for what is under way."""
        await self.installing.close()
        await self.taking.close()
