"""Retries of what was applied before: answered from what is remembered, nothing is written."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.requests import SubmitReply, SubmitRequest
from logboom.types import NO_PRODUCER, GlobalLogIndex, PartitionId
from partitions.worker import ApplyWorker


def applied_before(
    request: SubmitRequest, workers: Mapping[PartitionId, ApplyWorker], commit_index: GlobalLogIndex
) -> SubmitReply | None:
    """The reply, if every part was applied before."""
    if request.producer == NO_PRODUCER:
        return None
    parts = []
    for part in request.parts:
        found = workers[part.partition_id].dedupe.lookup(
            request.producer, request.epoch, part.first_sequence, part.records.count
        )
        if found is None:
            return None
        where = part.partition_id, found.first_index, found.last_index, found.global_index
        parts.append((*where, part.records.count, found.results))
    return SubmitReply(parts=tuple(parts), commit_index=commit_index)
