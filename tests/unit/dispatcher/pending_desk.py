"""Requests on their way, with their admission: what is asked of them, and what each was told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatcher.admission.admission import Admission
from dispatcher.pipeline.pending import Pending
from dispatcher.requests.requests import SubmitPart, SubmitReply, SubmitRequest
from logboom.errors import LogboomError
from logboom.records import RecordBlock
from logboom.settings import AdmissionSettings
from logboom.types import GlobalLogIndex, Level, PartitionId, PartitionLogIndex, ProducerId
from partitions.apply.apply_core import AppliedBatch

A, B = PARTITIONS = (PartitionId(0), PartitionId(1))
PRODUCER = ProducerId(bytes(range(16)))
RECORDS = RecordBlock.from_columns(payloads=[b"x", b"y"])
WAITS = (Level.COMMITTED, Level.DURABLE, Level.APPLIED)

Answer = SubmitReply | LogboomError


def batch(last: int, *, refused: str | None = None, duplicate: int = 0, results: bytes | None = b"\0") -> AppliedBatch:
    return AppliedBatch(
        PartitionLogIndex(last - 1),
        PartitionLogIndex(last),
        GlobalLogIndex(last),
        PRODUCER,
        0,
        40 + last,
        2,
        RECORDS.nbytes,
        duplicate,
        None if refused else results,
        refused,
    )


class Desk:
    """Pending with its admission; requests of two records per part, and what each was told."""

    def __init__(self) -> None:
        self.pending = Pending()
        self.admission = Admission(AdmissionSettings(), PARTITIONS)
        self.tail = dict.fromkeys(PARTITIONS, 0)

    def submit(
        self, wait: Level, partitions: Sequence[PartitionId] = (A,), *, deadline: float = 100.0
    ) -> tuple[list[tuple[PartitionId, int]], list[Answer]]:
        parts = tuple(SubmitPart(p, 0, 0, RECORDS) for p in partitions)
        request = SubmitRequest(PRODUCER, 0, False, wait, deadline, parts, RECORDS.nbytes * len(parts))
        ticket = self.admission.admit([(p, 2, RECORDS.nbytes) for p in partitions], 0.0)
        ends = []
        for p in partitions:
            first, self.tail[p] = self.tail[p] + 1, self.tail[p] + 2
            ends.append((p, PartitionLogIndex(first), PartitionLogIndex(self.tail[p])))
        answers: list[Answer] = []
        self.pending.add(request, ends=ends, ticket=ticket, done=answers.append)
        return [(p, last) for p, _, last in ends], answers

    def commit(self, partition: PartitionId, last: int, at: int) -> GlobalLogIndex | None:
        return self.pending.committed(partition, PartitionLogIndex(last), GlobalLogIndex(at))

    def sync(self, partition: PartitionId, through: int) -> None:
        self.pending.durable(partition, PartitionLogIndex(through))

    def apply(self, partition: PartitionId, last: int, **what: Any) -> None:
        self.pending.applied(batch(last, **what), partition)

    @property
    def used(self) -> tuple[int, int]:
        return self.admission.used()
