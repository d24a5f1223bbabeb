"""Requests that come again, answered from memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.requests.retries import already_applied
from logboom.settings import ApplySettings
from logboom.types import GlobalLogIndex, ProducerId, Status
from partitions.apply.dedupe import RESULTS_BYTES_MAX, Dedupe

PRODUCER = ProducerId(b"p" * 16)


@pytest.mark.parametrize("count", [3, RESULTS_BYTES_MAX, RESULTS_BYTES_MAX + 1])
def test_it_is_answered_as_the_same_batch_would_be_through_the_log(count: int) -> None:
    """Of more statuses than are kept it said nothing at all, as if it had not waited until they were applied."""
    dedupe = Dedupe(ApplySettings())
    header: Any = SimpleNamespace(
        producer=PRODUCER,
        epoch=0,
        sequence=0,
        record_count=count,
        floor=0,
        dense=False,
        first_index=1,
        last_index=count,
    )
    decision = dedupe.decide(header)
    dedupe.record(header, decision, GlobalLogIndex(1))
    results = bytes((Status.OK, Status.NOT_FOUND)) + bytes(count - 2)
    dedupe.remember(header, GlobalLogIndex(1), results)
    dedupe.commit()
    part = SimpleNamespace(partition_id=0, first_sequence=0, records=SimpleNamespace(count=count))
    request = cast("Any", SimpleNamespace(producer=PRODUCER, epoch=0, parts=[part]))
    workers: Any = {0: SimpleNamespace(dedupe=dedupe)}
    reply = already_applied(request, workers, GlobalLogIndex(1))
    assert reply is not None
    again = dedupe.decide(header)
    dedupe.record(header, again, GlobalLogIndex(2))
    assert reply.parts[0][5] == dedupe.results(header, again, b"\0")
    assert reply.parts[0][5] == (results if count <= RESULTS_BYTES_MAX else bytes((Status.UNKNOWN_RESULT,)))
