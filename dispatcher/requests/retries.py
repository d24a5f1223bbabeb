"""Requests that come again: what was applied before is answered from memory, and not ordered once more."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.requests.requests import SubmitPart, SubmitReply, SubmitRequest
from logboom.types import NO_PRODUCER, GlobalLogIndex, Level, PartitionId, Status
from partitions.apply.worker import ApplyWorker


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


def making_room(request: SubmitRequest, workers: Mapping[PartitionId, ApplyWorker]) -> SubmitRequest | None:
    """What has to be ordered in front of a request that would be refused for its producer's many ranges.

    Records that were applied before, under the new floor: every node takes that in, and skips them. None: nothing.
    """
    if request.producer == NO_PRODUCER or request.dense:
        return None
    parts = []
    for part in request.parts:
        own = part.first_sequence, part.first_sequence + part.records.count
        again = workers[part.partition_id].dedupe.makes_room(request.producer, request.epoch, own, part.floor)
        if again is not None:
            parts.append(SubmitPart(part.partition_id, again, part.floor, part.records.take(0, 1)))
    nbytes = sum(part.records.nbytes for part in parts)
    return request._replace(wait=Level.COMMITTED, parts=tuple(parts), nbytes=nbytes, trace=None) if parts else None
