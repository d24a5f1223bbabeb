"""A client follows watermarks: the newest that there are, at a pace; what it has no room for is never sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from dispatcher.barriers.watermarks import to_row
from dispatcher.pipeline.backend import Backend
from dispatcher.sessions.looks import Due, Later
from logboom.errors import LogboomError
from logboom.types import GlobalLogIndex, PartitionId, Watermark

EVERY_MS_MIN: Final = 10
FRAME_ROWS: Final = 2_048


class Watch:
    """One stream: first all that is wanted, then what has changed since. ``partitions`` None: all that there are."""

    def __init__(
        self,
        backend: Backend,
        partitions: Sequence[PartitionId] | None,
        *,
        every_ms: int,
        send: Callable[[dict[str, Any]], None],
        has_room: Callable[[], bool],
        ended: Callable[[LogboomError], None],
        later: Later,
        width: int,
    ) -> None:
        """``width``: how many partitions it is about, as it begins."""
        self.width = width
        self._backend = backend
        self._wanted = None if partitions is None else list(partitions)
        self._every = max(every_ms, EVERY_MS_MIN) / 1000
        self._send = send
        self._has_room = has_room
        self._ended = ended
        self._later = later
        self._sent: dict[PartitionId, Watermark] = {}
        self._minimum = GlobalLogIndex(0)
        self._seen: int | None = None
        """``Watermarks.moved`` when they were last told, to see that nothing has changed; None: look in any case."""
        self._timer: Due | None = None

    def close(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def move(self) -> None:
        """Send what is news, and look again a little later."""
        backend = self._backend
        if self._has_room():
            backend.look()
            if backend.watermarks.moved != self._seen:
                for partition_id in self._wanted or ():
                    if not backend.watermarks.has(partition_id):
                        self.close()
                        self._ended(backend.missing(partition_id))
                        return
                self._seen = backend.watermarks.moved
                self._tell(backend)
        self._timer = self._later(self._every, self.move)

    def _tell(self, backend: Backend) -> None:
        marks = backend.watermarks.all(self._wanted)
        minimum = min((mark.applied_global_index for mark in marks), default=GlobalLogIndex(0))
        if self._wanted is None:  # some are not shown yet, and count all the same
            hidden = backend.partitioning.opening.nothing_through()
            if hidden is not None:
                minimum, self._seen = min(minimum, hidden), None
            minimum = backend.watermarks.told(minimum)
            if not backend.recovered():
                marks, self._seen = [mark for mark in marks if backend.recovered([mark.partition_id])], None
        news = [mark for mark in marks if self._sent.get(mark.partition_id) != mark]
        gone = sorted(self._sent.keys() - {mark.partition_id for mark in marks})
        if not news and not gone and minimum == self._minimum:
            return
        first, self._sent, self._minimum = not self._sent, {mark.partition_id: mark for mark in marks}, minimum
        for at in range(0, len(news) or 1, FRAME_ROWS):
            header = {
                "commit_index": backend.global_commit_index(),
                "node": backend.node_id,
                "minimum": minimum,
                "first": first and not at,
                "whole": at + FRAME_ROWS >= len(news),
                "gone": gone,
                "watermarks": [to_row(mark) for mark in news[at : at + FRAME_ROWS]],
            }
            self._send(header)
