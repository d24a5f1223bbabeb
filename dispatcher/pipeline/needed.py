"""Which snapshot set this node needs for what it lacks of its logs, and others have applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dispatcher.upkeep.rebuilding import SetNeeded
from logboom.types import GlobalLogIndex, PartitionId
from partitions.apply.worker import ApplyWorker
from partitions.log.log import PartitionLog
from raftlog.entries.entry import Route
from raftlog.links.lacks import Lack


def set_needed(
    first: SetNeeded | None,
    lost: Iterable[tuple[Route, Lack | None]],
    workers: Mapping[PartitionId, ApplyWorker],
    logs: Mapping[PartitionId, PartitionLog],
) -> SetNeeded | None:
    """The first batch that this node has to apply and cannot get, while others have applied it: a set from behind it.

    ``first``: the same of what is void; ``lost``: what is damaged here, and why others do not give it. That a peer has
    applied it does not say that it has such a set yet: it will, in write-behind mode perhaps only once the batch is
    void. Of several the first: a peer that itself lacks a later one can give only sets from between the two.
    """
    later: SetNeeded | None = None
    for (partition_id, _, last_index, digest), lack in lost:
        worker = workers.get(partition_id)
        if lack not in (Lack.COMPACTED, Lack.APPLIED) or worker is None or worker.applied_index >= last_index:
            continue
        place = logs[partition_id].place_of(last_index, digest)
        story = f"partition {partition_id}: the batch that ends at {last_index} is damaged"
        if place is not None and (first is None or place.global_index <= first.behind):
            first = SetNeeded(story, GlobalLogIndex(place.global_index - 1))
        elif place is None and lack is Lack.COMPACTED:  # else the log goes on, and its place is known soon
            later = later or SetNeeded(story)
    return first or later
