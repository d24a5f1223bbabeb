"""What is remembered of producers, and decided by it, does not depend on how batches are grouped (I5, I6)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from logboom.settings import ApplySettings
from logboom.types import GlobalLogIndex
from partitions.apply.dedupe import Dedupe
from partitions.log.batch import BatchHeader
from tests.unit.partitions.batches import header

LIMITS = ApplySettings(producers_max=2, producer_receipts=2)
ROWS = st.tuples(st.sampled_from(b"ABCD"), st.integers(0, 4), st.integers(1, 3), st.integers(0, 1))
"""Producer, first sequence, records, epoch."""


def play(headers: list[BatchHeader], ends: set[int]) -> tuple[list[object], list[bytes], dict[bytes, bytes]]:
    """Decisions, results, and what is stored, with transactions that end behind these batches."""
    dedupe, stored = Dedupe(LIMITS), dict[bytes, bytes]()
    decisions, results, group = list[object](), list[bytes](), list[tuple[BatchHeader, object, GlobalLogIndex]]()
    for number, each in enumerate(headers, 1):
        decision = dedupe.decide(each)
        decisions.append(decision)
        dedupe.record(each, decision, GlobalLogIndex(number))
        group.append((each, decision, GlobalLogIndex(number)))
        if number not in ends and number < len(headers):
            continue
        for one, decided, global_index in group:
            if decided.refused is None:
                fresh = bytes([global_index % 5]) * one.record_count
                results.append(dedupe.results(one, decided, fresh))
                if decided.duplicate < one.record_count:
                    dedupe.remember(one, global_index, results[-1])
        for key, value in dedupe.changes().items():
            if value is None:
                stored.pop(key, None)
            else:
                stored[key] = value
        dedupe.commit()
        group.clear()
        assert len(stored) == len(dedupe) <= LIMITS.producers_max
    return decisions, results, stored


@settings(max_examples=300, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=16), st.sets(st.integers(1, 16)))
def test_grouping_changes_nothing(rows: list[tuple[int, int, int, int]], ends: set[int]) -> None:
    headers = [header(number, *row) for number, row in enumerate(rows, 1)]
    assert play(headers, ends) == play(headers, set(range(1, 17)))


def test_a_producer_that_was_forgotten_within_a_transaction_begins_anew() -> None:
    rows = [(65, 0, 1, 0), (66, 0, 1, 0), (67, 0, 1, 0), (65, 0, 1, 0)]
    headers = [header(number, *row) for number, row in enumerate(rows, 1)]
    assert play(headers, {1, 2}) == play(headers, {1, 2, 3}) == play(headers, set())


def test_a_dense_producer_goes_on_behind_a_batch_that_is_void() -> None:
    """Nothing of it was recorded: it may come again, and does not keep out for ever what comes after it."""
    dedupe = Dedupe(ApplySettings())

    def dense(sequence: int, *, floor: int, number: int) -> str | None:
        found = header(number, 1, sequence, 2, 0)._replace(dense=True, floor=floor)
        decision = dedupe.decide(found)
        dedupe.record(found, decision, GlobalLogIndex(number))
        dedupe.commit()
        return decision.refused

    assert dense(0, floor=0, number=1) is None
    # 2 and 3 were void.
    assert dense(4, floor=2, number=3) == "out_of_sequence", "they may still come again"
    assert dense(4, floor=4, number=4) is None, "its client will not send them again"
    assert dense(2, floor=4, number=5) is None
    assert dedupe.decide(header(6, 1, 2, 2, 0)).duplicate == 2, "too late: the floor has passed them"
