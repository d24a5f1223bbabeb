"""What is remembered of a producer, as the next start finds it, and as whoever sends again is told."""

from __future__ import annotations

import sys

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logboom.errors import CorruptData
from logboom.settings import ApplySettings
from logboom.types import GlobalLogIndex, PartitionLogIndex, ProducerId, Status
from partitions.apply.dedupe import RESULTS_BYTES_MAX, AppliedReceipt, Decision, Dedupe, Producer
from tests.unit.partitions.batches import header

WHO = ProducerId(bytes([65]) * 16)


def applied(dedupe: Dedupe, number: int, sequence: int, count: int, fresh: bytes) -> bytes:
    """What is answered."""
    one, global_index = header(number, 65, sequence, count, 0), GlobalLogIndex(number)
    decision = dedupe.decide(one)
    dedupe.record(one, decision, global_index)
    results = dedupe.results(one, decision, fresh)
    if decision.duplicate < count:
        dedupe.remember(one, global_index, results)
    return results


def started_again(dedupe: Dedupe) -> Dedupe:
    changes = dedupe.changes()
    dedupe.commit()
    return Dedupe(ApplySettings(), [(key, raw) for key, raw in changes.items() if raw is not None])


def test_whoever_sends_again_is_told_what_became_of_each_record_before() -> None:
    dedupe = Dedupe(ApplySettings())
    assert applied(dedupe, 1, 0, 3, b"\0\1\0") == b"\0\1\0"
    dedupe = started_again(dedupe)
    assert applied(dedupe, 2, 0, 3, b"\2") == b"\0\1\0"
    assert applied(dedupe, 3, 2, 2, b"\0") == b"\0", "alike for all: one byte"
    assert applied(dedupe, 4, 1, 1, b"\0") == b"\1"


def test_results_that_are_too_many_to_be_kept_do_not_keep_a_node_from_starting() -> None:
    dedupe, results = Dedupe(ApplySettings()), b"\0\1" * RESULTS_BYTES_MAX
    applied(dedupe, 1, 0, len(results), results)
    found = started_again(dedupe).lookup(WHO, 0, 0, len(results))
    assert found is not None
    assert found.results is None


def test_a_gap_that_is_filled_is_settled_and_can_be_read_back() -> None:
    dedupe = Dedupe(ApplySettings())
    applied(dedupe, 1, 10, 2, b"\0")
    applied(dedupe, 2, 0, 10, b"\0")
    (raw,) = dedupe.changes().values()
    assert raw is not None
    found = Producer.decode(raw)
    assert (found.floor, found.ranges) == (12, [])


@pytest.mark.parametrize("row", [[-1, 0, [], [], 1], [0, 0, [], [], 1.5], [0, 5, [[5, 6]], [], 1], [0, -2, [], [], 1]])
def test_what_no_node_wrote_is_refused(row: list[object]) -> None:
    with pytest.raises(CorruptData, match="not one of ours"):
        Producer.decode(msgpack.packb(row))


NUMBERS = st.integers(0, (1 << 63) - 1)
RECEIPTS = st.builds(AppliedReceipt, *[NUMBERS] * 5, st.none() | st.binary(max_size=300))


@given(NUMBERS, NUMBERS, st.lists(st.tuples(NUMBERS, NUMBERS), max_size=20), st.lists(RECEIPTS, max_size=20), NUMBERS)
def test_what_is_written_of_a_producer_is_the_same_whoever_packs_it(
    epoch: int, floor: int, ranges: list[tuple[int, int]], receipts: list[AppliedReceipt], last: int
) -> None:
    """Sets of the same index are compared between nodes, which may be of different releases."""
    rows = [list(each) for each in receipts]
    assert Producer(epoch, floor, ranges, receipts, last).encode() == msgpack.packb([epoch, floor, ranges, rows, last])


def remembered_of(known: Producer, sequence: int) -> int:
    """Said once more, record by record."""
    for receipt in reversed(known.receipts):
        if receipt.results is not None and receipt.sequence <= sequence < receipt.sequence + receipt.record_count:
            return receipt.results[0 if len(receipt.results) == 1 else sequence - receipt.sequence]
    return int(Status.UNKNOWN_RESULT)


@st.composite
def past(draw: st.DrawFn) -> AppliedReceipt:
    first, count = draw(st.integers(0, 40)), draw(st.integers(1, 12))
    results = draw(st.none() | st.binary(min_size=1, max_size=1) | st.binary(min_size=count, max_size=count))
    at = PartitionLogIndex(1), PartitionLogIndex(count)
    return AppliedReceipt(first, count, *at, GlobalLogIndex(1), results)


@given(
    st.lists(past(), max_size=16),
    st.integers(0, 40),
    st.lists(st.tuples(st.booleans(), st.integers(1, 6)), min_size=1, max_size=8),
    st.binary(min_size=48, max_size=48),
    st.booleans(),
)
def test_what_was_skipped_is_what_the_newest_receipt_says_of_each_record(
    receipts: list[AppliedReceipt], sequence: int, parts: list[tuple[bool, int]], statuses: bytes, alike: bool
) -> None:
    known, spans, count = Producer(receipts=receipts), list[tuple[int, int]](), 0
    for skipped, length in parts:
        if skipped:
            spans.append((count, count + length))
        count += length
    one, dedupe = header(1, 65, sequence, count, 0), Dedupe(ApplySettings())
    dedupe._recorded[one.first_index] = known
    fresh = statuses[:1] if alike else statuses[:count]
    wanted = bytearray(fresh * count if alike else fresh)
    for position in (position for span in spans for position in range(*span)):
        wanted[position] = remembered_of(known, sequence + position)
    found = dedupe.results(one, Decision(None, tuple(spans)), fresh)
    assert (found * count if len(found) == 1 else found) == wanted


def test_what_is_answered_of_a_large_batch_that_comes_again_is_not_gathered_record_by_record() -> None:
    """It took some 70 ms for 40,000 records, on the event loop where a log's batches are applied."""
    dedupe, count = Dedupe(ApplySettings()), 40_000
    for number in range(1, 17):
        applied(dedupe, number, number * count, count, bytes((number,)))
    dedupe, calls = started_again(dedupe), 0

    def called(*_: object) -> None:
        nonlocal calls
        calls += 1

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        found = applied(dedupe, 17, count, count, bytes((99,)))
    finally:
        sys.setprofile(before)
    assert found == b"\1"
    assert calls < 1_000
