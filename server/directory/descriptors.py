"""For how many partitions a process has file descriptors, with what those that are there will want yet.

A log opens its segment with its first batch, long after it was created, and nobody can refuse that any more: a node
without a descriptor for it ends, and so it does at its next start, where all are opened at once. That start opens the
states of those, too, that were destroyed since the journal's beginning: it knows no better before it has replayed that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from logboom.types import PartitionId
from partitions.log.log import PartitionLog
from server.world.world import World

FILES_EACH: Final = 4
"""Files of a partition that are open while it lives: of `kv` three of its state, and a segment; of `log` fewer."""
FILES_OF_STATE: Final = 3
"""How many of ``FILES_EACH`` are of a state."""
FILES_SPARE: Final = 64
"""Descriptors that no partition gets: they are for snapshots, links, whatever is open for a moment."""
FILES_KEPT: Final = 24
"""As ``FILES_SPARE``, where a partition is created already, and is to be opened."""


class Descriptors:
    """Whether this process has file descriptors for more partitions of its node."""

    def __init__(
        self,
        world: World,
        logs: Mapping[PartitionId, PartitionLog],
        destroyed: Collection[PartitionId],
        stateless: Callable[[], int],
        readers: Callable[[], int] = lambda: 0,
    ) -> None:
        """``logs`` and ``destroyed`` are the caller's; of so many ``stateless`` ones a start would open states, too.

        So many files are open for ``readers``, and closed before a start.
        """
        self._world = world
        self._logs = logs
        self._destroyed = destroyed
        self._stateless = stateless
        self._readers = readers

    def lacking(self, more: int) -> str | None:
        """Why so many more partitions cannot be created; None: they can."""
        return self._lacking(FILES_SPARE + FILES_EACH * more)

    def waits(self, more: int) -> str | None:
        """Why so many that are created cannot be opened; None: they can. Fewer descriptors are kept from them."""
        return self._lacking(FILES_KEPT + FILES_EACH * more)

    def one_left(self) -> bool:
        """For the log of one that waits, as a snapshot needs it: of what a start lacks nothing is counted."""
        return self._are_left(FILES_KEPT + 1)

    def room(self) -> int | None:
        """How many more partitions there are descriptors for; None: any number."""
        left = self._world.files_left()
        return None if left is None else max(0, left - FILES_SPARE - self._unopened() - self._closed()) // FILES_EACH

    def to_spare(self) -> bool:
        """One that is open for readers may stay so: in a start's way it is not. Any thread."""
        return self._are_left(FILES_SPARE)

    def _are_left(self, wanted: int) -> bool:
        """Whether so many descriptors are left, beside those for segments that logs will open."""
        none_left = self._world.no_files_left
        return none_left(wanted + len(self._logs)) is None or none_left(wanted + self._unopened()) is None

    def _lacking(self, wanted: int) -> str | None:
        # Where there are enough for all that could want some nobody counts those that will: there may be thousands.
        if self._world.no_files_left(wanted + len(self._logs) + FILES_OF_STATE * len(self._destroyed)) is None:
            return None
        closed, unopened = self._closed(), self._unopened()
        why = self._world.no_files_left(wanted + unopened + closed)
        if why and unopened:
            why += f"; {unopened} more are for partitions that nobody has written to"
        if why and closed:
            why += f"; {closed} more are for partitions that were destroyed: two snapshots give them back"
        return why

    def _unopened(self) -> int:
        """Segments that logs have not opened yet."""
        return sum(not each.open_segment.ordinal for each in list(self._logs.values()))

    def _closed(self) -> int:
        """Of states that nobody needs but a start: so many more than it has by what is not open for readers then."""
        return max(0, FILES_OF_STATE * self._stateless() - self._readers())
