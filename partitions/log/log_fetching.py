"""How a partition's log is filled with what another node has of it. On the loop; its job runs off it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from logboom.types import NUMBER_MAX, PartitionLogIndex
from partitions.log.columns import Columns
from partitions.log.log_holes import LogHoles
from partitions.log.open_segment import OpenSegment
from partitions.log.places import PLACES, Rows, saving, with_fetched


class LogFetching(LogHoles):
    """A part of ``PartitionLog``."""

    open_segment: OpenSegment
    """Written by jobs, off the loop."""

    _followed: tuple[int, bytes, int] | None = None
    """Index, digest and global index of a batch behind which this log is to go on."""

    def follow(self, last_index: PartitionLogIndex, digest: bytes, global_index: int = 0) -> None:
        """What is between the end of this log and this batch is gone everywhere: take what follows it.

        ``global_index``: of that batch, 0: nobody knows.

        ``save_fetched`` lets go of what is here then: a log has no gaps.
        """
        self._followed = last_index, digest, global_index

    def save_fetched(
        self,
        rows: Rows,
        *,
        through_index: int = NUMBER_MAX,
        voids: Collection[tuple[int, bytes]] = (),
        lost: Collection[tuple[int, bytes]] = (),
    ) -> Callable[[], None]:
        """``save_places`` of what is committed up to an index, and of ``rows``. The job may raise CorruptData.

        All is durable, or among ``voids`` (last index, digest), or nobody has it: in ``rows`` those are ``lost``.
        Some may be committed by now.
        """
        made = partial(
            with_fetched,
            self._committed.columns,
            rows,
            through_index=through_index,
            followed=self._followed,
            find=self.find,
            voids=voids,
            lost={*self.lost(), *lost},
        )
        return self._saving(made)

    def _saving(self, made: Callable[[], Columns]) -> Callable[[], None]:
        return saving(self._disk, self._directory / PLACES, self.partition_id, made, settle=self.open_segment.settle)
