"""Batches that get another place while a long log is read: what is copied for that, and what everybody sees."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from logboom.types import PartitionId, PartitionLogIndex, Term
from partitions.log import committed as module
from partitions.log.columns import NOWHERE_SEGMENT, Columns
from partitions.log.committed import Committed
from partitions.log.places import decode_places, encode_places
from partitions.log.segment import BatchRef

P, PATH = PartitionId(3), Path("/n/partitions/3/places")


def ref(last: int, *, segment: int = 1, offset: int | None = None, length: int = 200) -> BatchRef:
    digest = last.to_bytes(16, "big")
    at = 128 + last * 200 if offset is None else offset
    return BatchRef(
        PartitionLogIndex(last), PartitionLogIndex(last), digest, bytes(16), Term(1), segment, at, length, 0
    )


def filled(count: int) -> Committed:
    log = Committed()
    for last in range(1, count + 1):
        log.append(ref(last), last)
    return log


def moved(log: Committed, *refs: BatchRef) -> None:
    for each in refs:
        log.lose(each.last_index, each.digest)
    log.mend(refs)


def test_nothing_is_copied_for_a_batch_that_is_mended_or_void() -> None:
    """All columns were, on the loop, for every few batches: a quarter of a second each where a log has millions."""
    log = filled(10)
    before = log.columns
    moved(log, ref(4, segment=2, offset=999))
    log.void(7, ref(7).digest)
    assert log.columns is not before
    assert log.columns.digests is before.digests
    assert log.columns.offset is before.offset


def test_who_began_before_sees_what_was_there_and_all_see_what_comes() -> None:
    log = filled(3)
    before = log.columns
    moved(log, ref(2, segment=2, offset=999, length=300))
    log.append(ref(4), 4)
    assert [before.place(row)[0] for row in range(4)] == [1, 1, 1, 1]
    assert [log.columns.place(row)[0] for row in range(4)] == [1, 2, 1, 1]
    assert (before.end, log.columns.end) == (4, 4)
    assert list(log.columns.lengths(0, 9)) == [200, 300, 200, 200]
    assert list(log.columns.lengths(1, 2)) == [300]


@pytest.mark.parametrize("seed", range(40))
def test_it_is_as_if_all_were_copied(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    monkeypatch.setattr(module, "MOVED_MAX", rng.choice([0, 2, 4096]))
    log, model, first = filled(5), {last: ref(last) for last in range(1, 6)}, 1
    for _ in range(60):
        last = rng.randint(first, len(model))
        match rng.randrange(5):
            case 0:
                now = ref(last, segment=1 + last // 8, offset=rng.randrange(128, 9_999), length=rng.randrange(128, 999))
                moved(log, now)
                model[last] = now
            case 1:
                log.void(last, ref(last).digest)
                model[last] = ref(last, segment=NOWHERE_SEGMENT, offset=0, length=0)
            case 2:
                at = rng.randint(1, 3)
                kept = log.columns.part(log.columns.start, log.columns.end, step=at)
                assert not kept.moved
                again = decode_places(encode_places(kept, P), partition_id=P, path=PATH)
                assert rows(again) == rows(log.columns)
            case _:
                end = len(model) + 1
                model[end] = ref(end, segment=1 + end // 8)
                log.append(model[end], end)
        expected = [model[index] for index in range(first, len(model) + 1)]
        assert rows(log.columns) == [(each.segment, each.offset, each.length) for each in expected]
        low, high = sorted(rng.choices(range(len(expected) + 1), k=2))
        assert log.nbytes(log.columns.start + low, log.columns.start + high) == sum(
            e.length for e in expected[low:high]
        )
        for position, each in enumerate(expected):
            found = log.find(each.last_index, each.digest)
            assert (found is None) == (each.segment == NOWHERE_SEGMENT)
            assert log.ref(position)[5:8] == each[5:8]
            run = log.run_from(position, through_index=len(model), room=2_000, most=4)
            assert run == back_to_back(expected, position, room=2_000, most=4)


def rows(columns: Columns) -> list[tuple[int, int, int]]:
    return [columns.place(row) for row in range(len(columns.last))]


def back_to_back(refs: list[BatchRef], at: int, *, room: int, most: int) -> int:
    segment, end, count = refs[at].segment, refs[at].offset, 0
    for each in refs[at : at + most]:
        if (each.segment, each.offset) != (segment, end) or (count and room < each.length):
            break
        end, room, count = end + each.length, room - each.length, count + 1
    return count
