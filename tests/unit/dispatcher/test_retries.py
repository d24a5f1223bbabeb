"""Requests that come again, answered from memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.pipeline.pending import as_asked
from dispatcher.requests.retries import already_applied
from logboom.settings import ApplySettings
from logboom.types import GlobalLogIndex, Level, ProducerId, Status
from partitions.apply.dedupe import RESULTS_BYTES_MAX, Dedupe

PRODUCER = ProducerId(b"p" * 16)


def remembered(dedupe: Dedupe, count: int, results: bytes) -> Any:
    """A batch that was applied before."""
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
    dedupe.remember(header, GlobalLogIndex(1), results)
    dedupe.commit()
    return header


def again(wait: Level | None, counts: dict[int, int]) -> Any:
    """Requests for its records, by partition."""
    parts = [
        SimpleNamespace(partition_id=p, first_sequence=0, records=SimpleNamespace(count=n)) for p, n in counts.items()
    ]
    return SimpleNamespace(producer=PRODUCER, epoch=0, wait=wait, parts=parts)


@pytest.mark.parametrize("count", [3, RESULTS_BYTES_MAX, RESULTS_BYTES_MAX + 1])
def test_it_is_answered_as_the_same_batch_would_be_through_the_log(count: int) -> None:
    """Of more statuses than are kept it said nothing at all, as if it had not waited until they were applied."""
    dedupe = Dedupe(ApplySettings())
    results = bytes((Status.OK, Status.NOT_FOUND)) + bytes(count - 2)
    header = remembered(dedupe, count, results)
    workers: Any = {0: SimpleNamespace(dedupe=dedupe)}
    reply = already_applied(again(Level.APPLIED, {0: count}), workers, GlobalLogIndex(1), as_asked)
    assert reply is not None
    decision = dedupe.decide(header)
    dedupe.record(header, decision, GlobalLogIndex(2))
    assert reply.parts[0][5] == dedupe.results(header, decision, b"\0")
    assert reply.parts[0][5] == (results if count <= RESULTS_BYTES_MAX else bytes((Status.UNKNOWN_RESULT,)))


@pytest.mark.parametrize("count", [1, RESULTS_BYTES_MAX + 1])
@pytest.mark.parametrize(
    ("asked", "own", "is_told"),
    [
        (Level.COMMITTED, Level.COMMITTED, False),
        (Level.DURABLE, Level.DURABLE, False),
        (None, Level.COMMITTED, False),
        (None, Level.APPLIED, True),
        (Level.COMMITTED, Level.APPLIED, True),  # one of them is linearizable
    ],
)
def test_who_waits_for_less_than_applied_is_told_no_results(
    asked: Level | None, own: Level, count: int, *, is_told: bool
) -> None:
    """Of one file's chunks, say, those that were sent twice had results, and the others had none."""
    dedupes = {p: Dedupe(ApplySettings()) for p in (0, 1)}
    for dedupe in dedupes.values():
        remembered(dedupe, count, bytes((Status.OK, Status.NOT_FOUND))[:count] + bytes(max(0, count - 2)))
    workers: Any = {p: SimpleNamespace(dedupe=dedupe) for p, dedupe in dedupes.items()}
    levels = []

    def level_of(wait: Level | None, partitions: Any) -> Level:
        levels.append((wait, list(partitions)))
        return own

    reply = already_applied(again(asked, {0: count, 1: count}), workers, GlobalLogIndex(1), level_of)
    assert reply is not None
    assert [(part[4], part[5] is not None) for part in reply.parts] == [(count, is_told)] * 2
    assert levels == [(asked, [0, 1])]
