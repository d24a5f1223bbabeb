"""Admission of a node that does nothing else, on a loop whose clock jumps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from dispatcher.admission.admission import Admission
from dispatcher.pipeline.pending import Pending, as_asked
from dispatcher.pipeline.proposing import Admitted, Proposing
from dispatcher.pipeline.submitting import Submitting
from dispatcher.requests.requests import SubmitPart, SubmitRequest
from logboom.records import RecordBlock
from logboom.settings import AdmissionSettings, Settings
from logboom.types import NO_PRODUCER, Level, PartitionId, ProducerId
from tests.unit.raftlog.world import VirtualClock, VirtualLoop

A, B = PARTITIONS = PartitionId(0), PartitionId(1)
EACH_S = 0.001
"""What admitting one costs."""


class Counting(Proposing):
    """What is admitted is written down, and takes its time."""

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        self.admitted: list[tuple[float, str]] = []

    def propose(self, admitted: Admitted) -> None:
        request, ticket, done = admitted
        loop = self._pipeline.clock.loop  # type: ignore[attr-defined]
        self.admitted.append((loop.now, request.principal))
        loop.now += EACH_S
        for part in request.parts:
            ticket.release(part.partition_id)
        done("admitted")  # type: ignore[arg-type]


class Node:
    """Nothing but admission, on a loop whose clock jumps: nobody ticks."""

    def __init__(self, **changes: Any) -> None:
        self.loop = VirtualLoop()
        self.began = self.loop.now
        self.admission = Admission(AdmissionSettings(**changes), PARTITIONS)
        pipeline: Any = SimpleNamespace(
            clock=VirtualClock(self.loop),
            settings=Settings(admission=AdmissionSettings(**changes)),
            raft=SimpleNamespace(admits=True),
            pending=Pending(),
            workers={},
            parent=SimpleNamespace(global_index=0),
            check_writable=lambda _: None,
            level_of=as_asked,
        )
        self.submitting = Submitting(pipeline, self.admission)
        self.submitting.proposing = self.proposing = Counting(pipeline)
        self.answers: list[Any] = []

    def ask(
        self,
        count: int,
        principal: str,
        *,
        partition: PartitionId = A,
        wait_s: float = 10.0,
        producer: ProducerId = NO_PRODUCER,
    ) -> None:
        records = RecordBlock.from_columns(payloads=[b"x"] * count)
        now = self.loop.now
        request = SubmitRequest(
            producer, 0, False, Level.APPLIED, now + 60.0, (SubmitPart(partition, 0, 0, records),),
            records.nbytes, admit_by=now + wait_s, principal=principal,
        )  # fmt: skip
        self.submitting.submit(request, self.answers.append, "owner")

    def play(self, *steps: Any, seconds: float = 1.0) -> None:
        async def run() -> None:
            for step in steps:
                step()
            await asyncio.sleep(seconds)

        self.loop.run_until_complete(run())

    def at(self) -> list[float]:
        """When each was, since the beginning."""
        return [at - self.began for at, _ in self.proposing.admitted]
