"""What a state machine says of what it applied: a status for each record, or one for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from logboom.errors import Unavailable, Voided
from logboom.settings import ApplySettings
from logboom.state_machine import ApplyBatch, Results, Sealed
from logboom.types import NO_PRODUCER, PartitionLogIndex, ProducerId
from partitions.apply.apply_core import ApplyGroup
from partitions.apply.dedupe import Dedupe
from tests.unit.partitions.batches import PRODUCER, flush, make
from tests.unit.partitions.worker_world import world


@pytest.mark.parametrize(
    "gives",
    [
        lambda batches: [],
        lambda batches: [b"\0"] * (len(batches) + 1),
        lambda batches: [bytes(each.count + 1) for each in batches],
        lambda batches: [b"" for _ in batches],
        lambda batches: [[0] for _ in batches],
        lambda batches: [np.bytes_(bytes(each.count) + b"\1") for each in batches],
        lambda batches: [bytearray(b"\1") for _ in batches],
    ],
)
def test_others_are_an_error_of_the_machine_and_nothing_is_remembered_of_them(gives: Callable[..., Any]) -> None:
    """They were, and at the next start no node took its own producers for sound."""
    with world() as w:

        def apply(batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
            results: Results = gives(batches)
            seal(results)
            return results

        async def story() -> None:
            w.machine.apply = apply  # type: ignore[method-assign]
            w.commit(3)
            w.notify()
            await asyncio.sleep(60)
            assert w.worker.applied_index == 0
            assert w.worker.state == "paused"
            assert "state machine gave" in w.worker.last_error
            assert not w.worker.dedupe.changes()

        w.run(story)


class Statuses(bytes):
    """Of a user's."""


@pytest.mark.parametrize("kind", [np.bytes_, Statuses])
@pytest.mark.parametrize("producer", [PRODUCER, NO_PRODUCER])
def test_bytes_of_another_kind_count_as_what_they_are(kind: Callable[..., Any], producer: ProducerId) -> None:
    """What is remembered of a producer could not be written. Refused, they paused what others had applied."""
    with world() as w:

        def apply(batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
            results = [kind(b"\0\1") if each.count == 2 else b"\2" for each in batches]
            w.machine.at, found = seal(results)
            kept.append(found)
            return results

        async def story() -> None:
            w.machine.apply = apply  # type: ignore[method-assign]
            numbered = None if producer == PRODUCER else 0
            w.commit(1, producer=producer, sequence=numbered)
            w.commit(1, records=3, producer=producer, sequence=numbered)
            w.notify()
            await asyncio.sleep(1)
            given = [each.results for batches in w.progress for each in batches]
            assert given == [b"\0\1", b"\2"]
            assert [type(each) for each in given] == [bytes, bytes]
            assert (w.worker.applied_index, w.worker.state) == (5, "running")
            assert bool(kept[-1]) == (producer == PRODUCER)

        kept = list[Any]()
        w.run(story)


def never(batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
    return [b"\0"] * len(batches)


def twice(batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
    results = [b"\0"] * len(batches)
    seal(results)
    seal(results)
    return results


def in_vain(batches: Sequence[ApplyBatch], seal: Callable[[Results], Sealed]) -> Results:
    with suppress(ValueError):
        seal([])
    return []


@pytest.mark.parametrize("apply", [never, twice, in_vain])
def test_what_is_kept_with_the_state_is_taken_once(apply: Callable[..., Results]) -> None:
    """All nodes ended where it was not taken at all; taken twice, each batch was answered and remembered twice."""
    with world() as w:

        async def story() -> None:
            w.machine.apply = apply  # type: ignore[method-assign]
            w.commit(3)
            w.notify()
            await asyncio.sleep(60)
            assert (w.worker.applied_index, w.worker.state) == (0, "paused")
            assert "seal" in w.worker.last_error
            assert not w.worker.dedupe.changes()

        w.run(story)


def test_a_void_is_kept_with_the_state_too() -> None:
    """A machine that did nothing for no batches was behind its log at the next start, which may begin behind it."""
    gap = Voided("", first_index=1, last_index=3, global_index=7)
    log: Any = SimpleNamespace(read_committed=lambda **_: (_ for _ in ()).throw(gap), recent=None)
    machine: Any = SimpleNamespace(needs_records=True, apply=never)
    settings = ApplySettings()
    group = ApplyGroup(log, machine, Dedupe(settings), settings, PartitionLogIndex(0), PartitionLogIndex(3))
    with pytest.raises(ValueError, match="without position"):
        group.run()


def test_what_is_refused_has_no_results_and_what_is_beside_it_has() -> None:
    with world() as w:

        async def story() -> None:
            batches = [(1, 0), (0, 0), (1, 2)]  # the second of a life that is over
            for first, (epoch, sequence) in zip((1, 3, 5), batches, strict=True):
                batch = make(first, w.head, [b"x"] * 2, epoch=epoch, sequence=sequence)
                w.log.append(batch)
                flush(w.log)
                w.log.commit(last_index=batch.last_index, digest=batch.digest, global_index=first, term=1)
                w.head = batch.digest
            w.notify()
            await asyncio.sleep(1)
            ((first, second, third),) = w.progress
            assert [each.refused for each in (first, second, third)] == [None, "producer_fenced", None]
            assert [each.results for each in (first, second, third)] == [b"\0", None, b"\0"]
            assert w.machine.applied == [1, 5]

        w.run(story)


@pytest.mark.parametrize("error", [KeyError("balance"), Unavailable("not now")])
def test_the_log_says_once_where_a_machine_failed(error: Exception) -> None:
    """It said KeyError('balance') eight times, and nowhere in which line."""
    with world() as w, capture_logs() as logs:

        async def story() -> None:
            w.machine.failures = [error] * 3
            w.commit(3)
            w.notify()
            await asyncio.sleep(60)
            where = [each["exc_info"] for each in logs if each["event"] == "apply_failed"]
            assert where == [error if isinstance(error, KeyError) else None, None, None]

        w.run(story)
