"""Who follows partitions: reads that wait for more of a log, for more to be applied, or for anything to be ordered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dispatcher.barriers.watermarks import Watermarks
from dispatcher.reading.surroundings import Moved
from logboom.errors import LogboomError
from logboom.types import PartitionId, Watermark

Callbacks = dict[object, Moved]
"""By who takes it off again: tens of thousands may wait for the same partition."""
NONE: Final[Callbacks] = {}


class Subscriptions:
    """Callbacks of one node's followers; each way to subscribe returns the way to stop, which may be called again."""

    def __init__(self, watermarks: Watermarks) -> None:
        self._watermarks = watermarks
        self.committed: dict[PartitionId, Callbacks] = {}
        """Those for ``tell_committed``: whoever tells looks first, since most of the time there are none."""
        self.ordered: dict[Callable[[], None], None] = {}
        """Those for ``tell_ordered``."""
        self._applied: dict[PartitionId, Callbacks] = {}
        self._listens = False

    def to_commits(self, partition_id: PartitionId, callback: Moved) -> Callable[[], None]:
        """Call back whenever more of the partition may be committed and durable; with an error once it is gone."""
        return _among(self.committed.setdefault(partition_id, {}), callback)

    def to_ordered(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever the commit index may have moved, whatever moved it."""
        self.ordered[callback] = None
        return lambda: self.ordered.pop(callback, None)

    def to_applied(self, partition_id: PartitionId, callback: Moved) -> Callable[[], None]:
        """Call back whenever more is committed, durable or applied; with an error once it is gone."""
        if not self._listens:
            self._listens = True
            self._watermarks.listen(self._moved)
        callbacks = self._applied.setdefault(partition_id, {})
        left = _among(callbacks, callback)
        gone = self.to_commits(partition_id, callback)  # which is told when the partition is destroyed

        def end() -> None:
            gone()
            left()
            if not callbacks and self._applied.get(partition_id) is callbacks:
                del self._applied[partition_id]

        return end

    def tell_committed(self, partition_id: PartitionId) -> None:
        """More of it may be committed and durable."""
        for callback in tuple(self.committed.get(partition_id, NONE).values()):  # some take themselves off it
            callback()

    def tell_ordered(self) -> None:
        """The commit index may have moved."""
        for callback in tuple(self.ordered):
            callback()

    def ended(self, partition_id: PartitionId, error: Callable[[], LogboomError]) -> None:
        """The partition is gone; ``error`` makes one for each who followed it."""
        for callback in tuple(self.committed.pop(partition_id, NONE).values()):
            callback(error())

    def _moved(self, mark: Watermark) -> None:
        for callback in tuple(self._applied.get(mark.partition_id, NONE).values()):
            callback()


def _among(callbacks: Callbacks, callback: Moved) -> Callable[[], None]:
    """One more; the way to take it off again, however many others there are."""
    place = object()
    callbacks[place] = callback

    def leave() -> None:
        callbacks.pop(place, None)

    return leave
