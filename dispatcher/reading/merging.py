"""The order of many partitions' batches, by ``global_log_index``, from what is known of their places. Sans-io.

Nothing is read for it: the columns in memory say which batch comes next, how large it is, and where it lies. So
it is known what to expect before it arrives, and a scan holds nothing but the window that it reads.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from logboom.errors import CorruptData
from logboom.types import PartitionId
from partitions.log.chunks import Place
from partitions.log.columns import NOWHERE_SEGMENT
from partitions.log.reading import DamagedBatch


class Places(Protocol):
    """Of one partition's batches."""

    def place(self, position: int) -> Place | None:
        """None: there is none yet. Raises IndexCompacted."""
        ...

    def lost_at(self, position: int) -> DamagedBatch | None:
        """Why what lies nowhere there cannot be read; None: it was declared void. Raises IndexCompacted."""
        ...


class Lost(Exception):
    """What comes next is not void, and nobody has it."""

    def __init__(self, partition_id: PartitionId, damage: DamagedBatch) -> None:
        super().__init__(damage.message)
        self.partition_id = partition_id
        self.damage = damage


class Picked(NamedTuple):
    """A batch of a window."""

    partition_id: PartitionId
    position: int
    place: Place


GLOBAL_INDEX: Final = attrgetter("place.global_index")


class Run(NamedTuple):
    """Batches of a window that lie back to back: one read."""

    partition_id: PartitionId
    position: int
    slots: list[int]
    """Where in the window they belong."""


class Window(NamedTuple):
    """What comes next, in order."""

    picked: list[Picked]
    nbytes: int
    segments: int

    def runs(self) -> list[Run]:
        """How to read it."""
        found: list[Run] = []
        open_runs: dict[PartitionId, tuple[Run, Place]] = {}
        for slot, (partition, position, place) in enumerate(self.picked):
            before = open_runs.get(partition)
            if before is not None and _follows(before[1], place):
                run = before[0]
                run.slots.append(slot)
            else:
                run = Run(partition, position, [slot])
                found.append(run)
            open_runs[partition] = run, place
        return found

    def behind(self, slots: int) -> Window:
        """What is left of it once so many are sent."""
        picked = self.picked[slots:]
        segments = {(each.partition_id, each.place.segment) for each in picked}
        return Window(picked, sum(each.place.length for each in picked), len(segments))


def _follows(before: Place, place: Place) -> bool:
    return before.segment == place.segment and before.offset + before.length == place.offset


class Merge:
    """A cursor over all of them."""

    def __init__(self, logs: Mapping[PartitionId, Places], positions: Mapping[PartitionId, int]) -> None:
        self._logs = logs
        self._next = dict(positions)
        self._heads: list[tuple[int, PartitionId, Place]] = []
        self._idle = set(positions)
        """Partitions that had nothing more when they were last looked at."""
        self.last_global = 0
        """Global index of the last batch that was planned."""
        self.voids = 0
        """Batches that were stepped over: nobody has them any more."""
        self._untold: list[Picked] = []
        """Batches that were stepped over, and that the reader has not been told of yet."""

    def plan(
        self, *, horizon: int, bytes_max: int, segments_max: int, grown: AbstractSet[PartitionId] | None = None
    ) -> Window | None:
        """The next batches up to ``horizon``, one at least; None: there is none. Raises IndexCompacted, Lost.

        ``grown``: no others have more than when this was called last; None: nobody knows.
        """
        for partition in sorted(self._idle if grown is None else self._idle & grown):
            self._look(partition)
        picked, nbytes, segments = list[Picked](), 0, set[tuple[PartitionId, int]]()
        while self._heads and self._heads[0][0] <= horizon:
            global_index, partition, place = self._heads[0]
            if place.segment == NOWHERE_SEGMENT:  # it was declared void, or has turned up; or its state has what it did
                now = self._logs[partition].place(self._next[partition])
                if now is not None and now.segment != NOWHERE_SEGMENT:
                    heapq.heapreplace(self._heads, (now.global_index, partition, now))
                    continue
                lost = self._logs[partition].lost_at(self._next[partition])
                if lost is not None and picked:
                    break
                if lost is not None:
                    raise Lost(partition, lost)
                heapq.heappop(self._heads)
                self.step_over(Picked(partition, self._next[partition], place))
                self._next[partition] += 1
                self._look(partition)
                continue
            where = partition, place.segment
            if picked and (
                nbytes + place.length > bytes_max or (where not in segments and len(segments) >= segments_max)
            ):
                break
            if global_index <= self.last_global:
                raise CorruptData(
                    f"partition {partition} has {global_index} after {self.last_global}, which was safe to give away"
                )
            heapq.heappop(self._heads)
            picked.append(Picked(partition, self._next[partition], place))
            segments.add(where)
            nbytes += place.length
            self.last_global = global_index
            self._next[partition] += 1
            self._look(partition)
        return Window(picked, nbytes, len(segments)) if picked else None

    def step_over(self, void: Picked) -> None:
        """Nobody has it any more: it counts as nothing, and the reader is to be told."""
        self.voids += 1
        self._untold.append(void)

    def to_tell(self, before_global: int) -> list[Picked]:
        """What was stepped over in front of a global index, once, in order."""
        told = sorted((v for v in self._untold if v.place.global_index < before_global), key=GLOBAL_INDEX)
        self._untold = [v for v in self._untold if v.place.global_index >= before_global]
        return told

    def _look(self, partition: PartitionId) -> None:
        place = self._logs[partition].place(self._next[partition])
        if place is None:
            self._idle.add(partition)
        else:
            self._idle.discard(partition)
            heapq.heappush(self._heads, (place.global_index, partition, place))
