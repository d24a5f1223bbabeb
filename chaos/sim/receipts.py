"""Whether a receipt is true when it is given: ordered where it says, and as far as whoever asked wanted to wait for.

Clients cannot see that: what is committed is durable, and applied, a moment later on nearly every day.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from chaos.sim.host import Host
from dispatcher.pipeline.backend import Backend
from dispatcher.pipeline.pending import Done
from dispatcher.requests.requests import SubmitReply, SubmitRequest
from logboom.errors import LogboomError
from logboom.settings import ClusterSettings
from logboom.types import Level, NodeId, PartitionId
from raftlog.entries.chosen import AllChosen, acknowledgement

Fail = Callable[[str, str], None]
STRONGEST_FIRST: Final = (Level.APPLIED, Level.DURABLE, Level.COMMITTED)


class Row(NamedTuple):
    """What was set of partitions counts for batches with a higher global index than this, up to the next row."""

    global_index: int
    raft_index: int
    chosen: AllChosen


def level_of(
    cluster: ClusterSettings, chosen: AllChosen, asked: Level | None, partitions: Sequence[PartitionId]
) -> Level:
    """What a request for these has to wait for, where so much was set of partitions."""
    own = [acknowledgement(cluster, chosen, partition) for partition in partitions]
    levels = [Level(ack) for ack, _ in own] if asked is None else [asked]
    levels += [Level.APPLIED for _, linearizable in own if linearizable]
    return next(level for level in STRONGEST_FIRST if level in levels)


class ReceiptWatch:
    """``fail(invariant, story)`` ends the run."""

    def __init__(self, ends: Mapping[int, Sequence[tuple[int, int]]], chosen: Sequence[Row], fail: Fail) -> None:
        """``ends``: of what was committed anywhere: by partition, global and last index of each batch, ascending.

        ``chosen``: what was set of partitions, in the order of the log.
        """
        self._ends = ends
        self._chosen = chosen
        self._fail = fail
        self.shared = 0
        """Receipts for a part of a batch that others share."""
        self._said: set[tuple[int, int, Level | None]] = set()
        """Partition, last index and level of what those who lead have answered."""

    def started(self, host: Host, backend: Backend) -> None:
        """From now on what it answers is looked at."""
        submitting: Any = backend.submitting
        submit = submitting.submit

        def submitted(request: SubmitRequest, done: Done, owner: Hashable) -> Any:
            if not backend.raft.admits:
                return submit(request, done, owner)  # another node's answer is passed on, if any

            def answered(reply: SubmitReply | LogboomError) -> None:
                if isinstance(reply, SubmitReply):
                    self._check(host, backend, request.wait, reply)
                done(reply)

            return submit(request, answered, owner)

        forwarding: Any = backend.forwarding
        forward = forwarding.forward

        def forwarded(leader: NodeId, request: SubmitRequest, done: Done) -> bool:
            answers = 0

            def answered(reply: SubmitReply | LogboomError) -> None:
                nonlocal answers
                answers += 1
                if answers > 1:
                    self._fail("ReceiptTrue", f"{host.name} passes a second answer on to one request: {reply}")
                if isinstance(reply, SubmitReply):
                    self._check_forwarded(host, request, reply)
                done(reply)

            return bool(forward(leader, request, answered))

        submitting.submit, forwarding.forward = submitted, forwarded

    def _check_forwarded(self, host: Host, request: SubmitRequest, reply: SubmitReply) -> None:
        """What is passed on is what was said, and of what was asked."""
        asked = sorted(part.partition_id for part in request.parts)
        due = {(part[0], part[2], request.wait) for part in reply.parts}
        if asked != sorted(part[0] for part in reply.parts) or not due <= self._said:
            story = f"a request for {asked} that waits until it is {request.wait} is answered with {reply}"
            self._fail("ReceiptTrue", f"{host.name}: {story}; no leader has said that")

    def check_forwarding(self, host: Host, backend: Backend, *, idle: bool = False) -> None:
        """Requests that are passed on are counted as long as they are under way."""
        forwarding: Any = backend.forwarding
        counted, held = forwarding._bytes, sum(each.nbytes for each in forwarding._open.values())  # noqa: SLF001 - an observer
        if counted != held or (idle and (forwarding._open or forwarding._owed)):  # noqa: SLF001 - an observer
            story = f"{len(forwarding._open)} requests of {held} bytes passed on"  # noqa: SLF001 - an observer
            self._fail("I10", f"{host.name}: {story}, {counted} counted")

    def _check(self, host: Host, backend: Backend, asked: Level | None, reply: SubmitReply) -> None:
        wait = self._level_of(backend.cluster, asked, reply)
        for partition, first, last, global_index, _, statuses in reply.parts:
            story = f"{host.name} answers that {partition}/{last} is {wait} at {global_index}"
            self._said.add((partition, last, asked))
            known = self._global_of(partition, first, last)
            if known != global_index or backend.parent.global_index < global_index:
                self._fail("ReceiptTrue", f"{story}; it is {known}, and {backend.parent.global_index} committed here")
            if statuses is not None and not self._may_tell(backend.cluster, asked, reply):
                self._fail("ReceiptTrue", f"{story}, and tells results: of others of its kind nobody would know any")
            worker, log = backend.workers.get(partition), backend.logs.get(partition)
            if worker is None or log is None:
                continue  # destroyed since
            if wait is Level.DURABLE and log.durable_index < last:
                self._fail("ReceiptTrue", f"{story}; durable is {log.durable_index}")
            if wait is Level.APPLIED and worker.applied_index < last:
                self._fail("ReceiptTrue", f"{story}; applied is {worker.applied_index}")

    def _level_of(self, cluster: ClusterSettings, asked: Level | None, reply: SubmitReply) -> Level:
        """As its partitions say at its place in the log: of its parts nothing is ordered between."""
        before = self._rows_before(reply)
        chosen = self._chosen[before - 1].chosen if before else {}
        return level_of(cluster, chosen, asked, [part[0] for part in reply.parts])

    def _rows_before(self, reply: SubmitReply) -> int:
        first = min(int(part[3]) for part in reply.parts)
        return bisect_left(self._chosen, first, key=lambda row: row.global_index)

    def _may_tell(self, cluster: ClusterSettings, asked: Level | None, reply: SubmitReply) -> bool:
        """It waited until it was applied; or it came again, since its partitions say so."""
        if self._level_of(cluster, asked, reply) is Level.APPLIED:
            return True
        partitions, later = [part[0] for part in reply.parts], self._chosen[self._rows_before(reply) :]
        again = any(part[4] for part in reply.parts)
        return again and any(level_of(cluster, row.chosen, asked, partitions) is Level.APPLIED for row in later)

    def _global_of(self, partition: int, first: int, last: int) -> int | None:
        """Of the batch that holds all of these."""
        ends = self._ends.get(partition, ())
        row = bisect_left(ends, last, key=lambda end: end[1])
        if row == len(ends) or first <= (ends[row - 1][1] if row else 0):
            return None
        self.shared += (first, last) != ((ends[row - 1][1] if row else 0) + 1, ends[row][1])
        return ends[row][0]
