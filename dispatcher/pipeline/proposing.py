"""From admitted requests to proposals: built into batches, appended, on their way to followers, ordered.

Small requests of many producers that come within one turn of the loop share a batch of each partition
(docs/decisions/0038-mixed-batches.md). A part of ``Submitting``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypedDict, Unpack

from dispatcher.admission.admission import Ticket
from dispatcher.pipeline.pending import Done
from dispatcher.pipeline.surroundings import Surroundings
from dispatcher.requests.requests import SubmitRequest
from logboom.errors import LogboomError
from logboom.origins import ORIGIN, Origin
from logboom.records import RecordBlock
from logboom.types import KIB, MIXED, NO_PRODUCER, PartitionId, PartitionLogIndex, ProducerId, Term
from partitions.log.batch import Batch, build_batch
from partitions.log.log import ChainBroken
from ports.invariant import InvariantViolated, invariant
from raftlog.entries.entry import Route
from raftlog.entries.parent_state import EMPTY, Tail

RECORDS_MAX: Final = 64
"""Of a request that shares a batch."""
MIXED_BYTES_MAX: Final = 256 * KIB
MIXED_ORIGINS_MAX: Final = 1024
"""Of a batch that several share."""
WIDENED: Final = 8
"""Bytes that a record without key and headers takes more beside such with."""
LATELY: Final = 8
"""So many proposals after some have met, others may: nobody is taken for the only one."""


class Admitted(NamedTuple):
    """A request that may be proposed, and what its proposal needs."""

    request: SubmitRequest
    ticket: Ticket
    done: Done


class Whose(TypedDict, total=False):
    """Whose records a batch has: one producer's, numbered, or those of several origins."""

    producer: ProducerId
    epoch: int
    sequence: int
    floor: int
    dense: bool
    origins: tuple[Origin, ...]


class Proposing:
    """One node's, while it leads."""

    def __init__(self, pipeline: Surroundings) -> None:
        self._pipeline = pipeline
        settings = pipeline.settings.log
        self._share_bytes = settings.mixed_bytes_max
        self._batch_bytes = min(MIXED_BYTES_MAX, settings.batch_bytes_max)
        self._gathered: list[Admitted] = []
        """In the order in which they were admitted, in this turn of the loop; proposed before anything else is."""
        self._producers: set[ProducerId] = set()
        """Theirs."""
        self._met = 0
        """More than 0: some have, lately."""

    @property
    def under_way(self) -> int:
        """Requests that are not committed."""
        return self._pipeline.pending.uncommitted + len(self._gathered)

    @property
    def is_lone(self) -> bool:
        """One request is under way, and others are not to be expected: it need not wait for the end of the turn."""
        return not self._met and self.under_way == 1

    def holding(self) -> Counter[PartitionId]:
        """Parts that were gathered, by partition: each has a ticket. Looks at each."""
        return Counter(part.partition_id for each in self._gathered for part in each.request.parts)

    def propose(self, admitted: Admitted) -> None:
        """Now, or before the turn of the loop is over."""
        if self._may_share(admitted.request):
            self.makes_way(admitted.request.producer)  # a producer is in a batch once
            self._gathered.append(admitted)
            self._producers.add(admitted.request.producer)
            self._pipeline.raft.poke()
            return
        self.flush()
        self._met = max(self._met - 1, 0)
        self._alone(admitted)

    def _may_share(self, request: SubmitRequest) -> bool:
        return (
            request.nbytes <= self._share_bytes
            and MIXED in self._pipeline.parent.agreed
            and len(request.parts) == 1
            and not (request.dense or request.wide)
            and request.parts[0].records.count <= RECORDS_MAX
        )

    def makes_way(self, producer: ProducerId) -> None:
        """What this producer has ordered is asked for: let all of it be known."""
        if producer in self._producers and producer != NO_PRODUCER:
            self.flush()

    def flush(self) -> None:
        """Propose what was gathered."""
        gathered = self._gathered
        if not gathered:
            return
        self._gathered = []
        self._producers.clear()
        self._met = LATELY if len(gathered) > 1 else max(self._met - 1, 0)
        if len(gathered) == 1:
            self._alone(gathered[0])
            return
        shares = dict[PartitionId, list[Admitted]]()
        for each in gathered:
            shares.setdefault(each.request.parts[0].partition_id, []).append(each)
        for partition_id, all_of_it in shares.items():
            for rows in _batches(all_of_it, self._batch_bytes):
                if len(rows) == 1:
                    self._alone(rows[0])
                else:
                    self._together(partition_id, rows)

    def _alone(self, admitted: Admitted) -> None:
        """Each of its parts is a batch."""
        request, ticket, done = admitted
        traceparent = None
        if request.trace is not None:
            request.trace.stage("admit")
            traceparent = request.trace.traceparent
        routes: list[Route] = []
        ends = []
        for part in request.parts:
            batch = self._build(
                part.partition_id,
                part.records,
                producer=request.producer,
                epoch=request.epoch,
                sequence=part.first_sequence,
                floor=part.floor,
                dense=request.dense,
            )
            routes.append(self._append(batch, traceparent))
            ends.append((part.partition_id, batch.header.first_index, batch.last_index))
        self._pipeline.pending.add(request, ends=ends, ticket=ticket, done=done)
        self._pipeline.raft.propose(routes, payload_bytes=request.nbytes)

    def _together(self, partition_id: PartitionId, rows: Sequence[Admitted]) -> None:
        """All of them in one batch."""
        traceparent = None
        index = first = self._tail(partition_id).last_index + 1
        origins, blocks = list[Origin](), list[RecordBlock]()
        for request, _, _ in rows:
            if request.trace is not None:
                request.trace.stage("admit")
                traceparent = traceparent or request.trace.traceparent
            ((_, sequence, floor, records),) = request.parts
            at = PartitionLogIndex(index)
            origins.append(Origin(request.producer, request.epoch, at, records.count, sequence, floor))
            blocks.append(records)
            index += records.count
        batch = self._build(partition_id, RecordBlock.join(blocks), origins=tuple(origins))
        invariant(batch.header.first_index == first, "a mixed batch at another index than its origins")
        route = self._append(batch, traceparent)
        pending = self._pipeline.pending
        for (request, ticket, done), origin in zip(rows, origins, strict=True):
            ends = [(partition_id, origin.first_index, origin.last_index)]
            pending.add(request, ends=ends, ticket=ticket, done=done)
        pending.share(partition_id, batch.last_index, [origin.last_index for origin in origins])
        self._pipeline.raft.propose([route], payload_bytes=batch.nbytes)

    def _tail(self, partition_id: PartitionId) -> Tail:
        return self._pipeline.tails.get(partition_id, EMPTY)

    def _build(self, partition_id: PartitionId, records: RecordBlock, **whose: Unpack[Whose]) -> Batch:
        pipeline = self._pipeline
        tail = self._tail(partition_id)
        return build_batch(
            partition_id=partition_id,
            first_index=tail.last_index + 1,
            term=Term(pipeline.raft.engine.term),
            timestamp_ms=pipeline.clock.wall_ms(),
            records=records,
            previous_digest=tail.digest,
            **whose,
        )

    def _append(self, batch: Batch, traceparent: str | None) -> Route:
        pipeline = self._pipeline
        partition_id = batch.header.partition_id
        store = pipeline.logs[partition_id]
        try:
            invariant(store.append(batch), "a new batch was already in the log")
        except ChainBroken as error:
            raise InvariantViolated(f"I4: a leader lacks what its next batch follows: {error}") from error
        pipeline.appended(store)
        pipeline.raft.send_payload(batch.buffers, traceparent=traceparent)
        pipeline.tails[partition_id] = Tail(batch.last_index, batch.digest)
        return Route(partition_id, batch.header.term, batch.last_index, batch.digest)

    def fail(
        self, error: Callable[[SubmitRequest], LogboomError], *, which: Callable[[SubmitRequest], bool] = lambda _: True
    ) -> None:
        """Nothing of what was gathered is proposed, or nothing of this kind: it had no effect."""
        gathered, self._gathered = self._gathered, [each for each in self._gathered if not which(each.request)]
        self._producers = {each.request.producer for each in self._gathered}
        for request, ticket, done in gathered:
            if not which(request):
                continue
            for part in request.parts:
                ticket.release(part.partition_id)
            done(error(request))


def _batches(rows: Sequence[Admitted], bytes_max: int) -> Iterator[Sequence[Admitted]]:
    """Those that go into one batch, in order; nearly always all."""
    start = size = 0
    for at, (request, _, _) in enumerate(rows):
        own = request.nbytes + ORIGIN.size + WIDENED * request.parts[0].records.count
        size += own
        if at > start and (size > bytes_max or at - start >= MIXED_ORIGINS_MAX):
            yield rows[start:at]
            start, size = at, own
    yield rows[start:]
