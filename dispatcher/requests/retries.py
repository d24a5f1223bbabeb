"""Requests that come again: what was applied before is answered from memory, and not ordered once more.

And those that come late: what would take effect by half is not ordered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from dispatcher.requests.requests import SubmitPart, SubmitReply, SubmitRequest
from logboom.errors import Outcome, UnknownOutcome
from logboom.types import NO_PRODUCER, GlobalLogIndex, Level, PartitionId, PartitionLogIndex, ProducerId, Status
from partitions.apply.dedupe import NOTHING
from partitions.apply.ordered import Ordered, OrderedParts
from partitions.apply.worker import ApplyWorker


def already_applied(
    request: SubmitRequest,
    workers: Mapping[PartitionId, ApplyWorker],
    commit_index: GlobalLogIndex,
    level_of: Callable[[Level | None, Collection[PartitionId]], Level],
) -> SubmitReply | None:
    """A retry of something that every part of was applied before: answer from what is remembered.

    As the first attempt would have been: who waits for less than ``applied``, by ``level_of``, is told no results.
    """
    if request.producer == NO_PRODUCER:
        return None
    found = []
    for part in request.parts:
        before = workers[part.partition_id].dedupe.lookup(
            request.producer, request.epoch, part.first_sequence, part.records.count
        )
        if before is None:
            return None
        found.append((part, before))
    is_told = level_of(request.wait, [part.partition_id for part in request.parts]) is Level.APPLIED
    # Of many that differ nobody keeps all.
    unknown = bytes((Status.UNKNOWN_RESULT,))
    parts = tuple(
        (
            part.partition_id,
            before.first_index,
            before.last_index,
            before.global_index,
            part.records.count,
            (unknown if before.results is None else before.results) if is_told else None,
        )
        for part, before in found
    )
    return SubmitReply(parts=parts, commit_index=commit_index)


class Ahead:
    """What producers have ordered and is not applied yet."""

    def __init__(self) -> None:
        self._ordered: dict[tuple[PartitionId, ProducerId], OrderedParts] = {}
        self._inherited: dict[PartitionId, PartitionLogIndex] = {}

    def inherit(self, last: dict[PartitionId, PartitionLogIndex]) -> None:
        """This node leads now, and others have ordered up to there."""
        self._inherited = last

    def has_inherited(self, partition_id: PartitionId, applied: PartitionLogIndex) -> bool:
        """Something that others have ordered is not applied yet."""
        return applied < self._inherited.get(partition_id, 0)

    def add(
        self, partition_id: PartitionId, producer: ProducerId, last_index: PartitionLogIndex, part: Ordered
    ) -> None:
        """A batch that ends there."""
        if producer == NO_PRODUCER:
            return
        found = self._ordered.get((partition_id, producer))
        if found is None:
            found = self._ordered[partition_id, producer] = OrderedParts()
        found.add(last_index, part)

    def drop(self, partition_id: PartitionId, producer: ProducerId, last_index: PartitionLogIndex) -> None:
        """It is applied, or lost."""
        found = self._ordered.get((partition_id, producer))
        if found is not None:
            found.drop(last_index)
            if not found:
                del self._ordered[partition_id, producer]

    def of(self, partition_id: PartitionId, producer: ProducerId) -> OrderedParts:
        """All parts of one producer that are ordered there and not applied."""
        return self._ordered.get((partition_id, producer), NOTHING)

    def __len__(self) -> int:
        return sum(map(len, self._ordered.values()))


def ordered_before(request: SubmitRequest, workers: Mapping[PartitionId, ApplyWorker], ahead: Ahead) -> bool:
    """Something of it may have been ordered, by this leader or others: it is applied, or will be."""
    return request.producer != NO_PRODUCER and any(
        _ordered_before(request, part, workers, ahead) for part in request.parts
    )


def _ordered_before(
    request: SubmitRequest, part: SubmitPart, workers: Mapping[PartitionId, ApplyWorker], ahead: Ahead
) -> bool:
    first, stop = part.first_sequence, part.first_sequence + part.records.count
    if ahead.of(part.partition_id, request.producer).may_have(first, stop):
        return True
    worker = workers.get(part.partition_id)
    if worker is None:
        return False
    dedupe, through = worker.remembered
    # Of what others have ordered nobody here knows whose it is.
    return ahead.has_inherited(part.partition_id, through) or dedupe.may_have(
        request.producer, request.epoch, first, stop
    )


def check_whole(
    request: SubmitRequest, workers: Mapping[PartitionId, ApplyWorker], ahead: Ahead
) -> tuple[PartitionId, Outcome] | None:
    """All of it takes effect, or nothing does, if it is ordered now: nobody can see to that when it is applied.

    It may have been given up while it was on its way, or waited: then its producer has settled its numbers, in those
    of its partitions that have had something of his since. Raises UnknownOutcome for that. Returns a partition of which
    it cannot be known, since others have ordered something there that is not applied here yet, with what is known.
    """
    if len(request.parts) < 2 or request.producer == NO_PRODUCER:
        return None
    settled = fresh = False
    unclear: PartitionId | None = None
    for partition_id, first, floor, records in request.parts:
        stop, before = first + records.count, ahead.of(partition_id, request.producer)
        dedupe, through = workers[partition_id].remembered
        lookup = dedupe.lookup(request.producer, request.epoch, first, records.count)
        if lookup is not None or before.has(request.epoch, first, stop):
            return None  # it was ordered, hence as a whole; a part whose batch was void may have an effect now
        count = dedupe.settled(request.producer, request.epoch, (first, stop), floor, before)
        settled |= count > 0
        if count < records.count:
            inherited = ahead.has_inherited(partition_id, through)
            unclear = partition_id if inherited else unclear
            fresh |= count > 0 or not inherited
    if settled and fresh:
        raise UnknownOutcome("its numbers were settled while it was on its way: half of it would take effect")
    if unclear is None:
        return None
    return unclear, "not_applied" if fresh else "unknown"


def making_room(
    request: SubmitRequest, workers: Mapping[PartitionId, ApplyWorker], ahead: Ahead
) -> SubmitRequest | None:
    """What has to be ordered in front of a request that would be refused for its producer's many ranges.

    Records that were applied before, under the new floor: every node takes that in, and skips them. None: nothing.
    Raises QuotaExceeded if it would be refused all the same: whoever waits for its commit alone would not hear of it.
    """
    if request.producer == NO_PRODUCER or request.dense:
        return None
    parts = []
    for part in request.parts:
        own = part.first_sequence, part.first_sequence + part.records.count
        before = ahead.of(part.partition_id, request.producer)
        dedupe, through = workers[part.partition_id].remembered
        more = ahead.has_inherited(part.partition_id, through)
        again = dedupe.makes_room(request.producer, request.epoch, own, part.floor, before, more=more)
        if again is not None:
            parts.append(SubmitPart(part.partition_id, again, part.floor, part.records.take(0, 1)))
    nbytes = sum(part.records.nbytes for part in parts)
    return request._replace(wait=Level.COMMITTED, parts=tuple(parts), nbytes=nbytes, trace=None) if parts else None
