"""Requests that come again: what was applied before is answered from memory, and not ordered once more."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.requests import SubmitReply, SubmitRequest
from logboom.types import NO_PRODUCER, GlobalLogIndex, PartitionId, Status
from partitions.worker import ApplyWorker


def already_applied(
    request: SubmitRequest, workers: Mapping[PartitionId, ApplyWorker], commit_index: GlobalLogIndex
) -> SubmitReply | None:
    """A retry of something that every part of was applied before: answer from what is remembered."""
    if request.producer == NO_PRODUCER:
        return None
    parts = []
    for part in request.parts:
        found = workers[part.partition_id].dedupe.lookup(
            request.producer, request.epoch, part.first_sequence, part.records.count
        )
        if found is None:
            return None
        parts.append(
            (
                part.partition_id,
                found.first_index,
                found.last_index,
                found.global_index,
                part.records.count,
                # Of many that differ nobody keeps all.
                bytes((Status.UNKNOWN_RESULT,)) if found.results is None else found.results,
            )
        )
    return SubmitReply(parts=tuple(parts), commit_index=commit_index)
