"""Columns of batches that several producers share: each record has its own producer, epoch and sequence."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logboom.client.reads import LogBatch
from logboom.origins import Origin
from logboom.records import RecordBlock
from logboom.spark.columns import cut, log_columns, log_schema
from logboom.types import NO_PRODUCER, GlobalLogIndex, PartitionId, PartitionLogIndex, ProducerId, Term

ANNE, BERT, CARL = (ProducerId(letter * 16) for letter in (b"a", b"b", b"c"))
SCHEMA = log_schema(producer=True)


def batch(first: int, count: int, *whose: Any, origins: tuple[Origin, ...] = ()) -> LogBatch:
    producer, epoch, sequence = whose or (NO_PRODUCER, 0, 0)
    block = RecordBlock.from_columns(keys=None, payloads=[b"%d" % k for k in range(first, first + count)])
    return LogBatch(
        PartitionId(5), PartitionLogIndex(first), GlobalLogIndex(first), Term(2), 1_000, producer, epoch, sequence,
        block, origins=origins,
    )  # fmt: skip


def origins(first: int, *rows: tuple[ProducerId, int, int, int]) -> tuple[Origin, ...]:
    """Of producer, epoch, records, first sequence; one behind the other."""
    found = list[Origin]()
    for producer, epoch, count, sequence in rows:
        found.append(Origin(producer, epoch, PartitionLogIndex(first), count, sequence, 0))
        first += count
    return tuple(found)


def shared() -> LogBatch:
    """Offsets 42 to 47."""
    rows = origins(42, (ANNE, 3, 2, 700), (NO_PRODUCER, 0, 1, 0), (BERT, 0, 1, 0), (CARL, 9, 2, 1 << 40))
    return batch(42, 6, origins=rows)


def log() -> list[LogBatch]:
    """Offsets 40 to 49, with plain ones in front and behind."""
    return [batch(40, 2, ANNE, 3, 698), shared(), batch(48, 1), batch(49, 1, BERT, 0, 1)]


def rows_of(batches: list[LogBatch]) -> list[tuple[Any, ...]]:
    made = log_columns(batches, SCHEMA)
    made.validate(full=True)
    assert made.schema == SCHEMA
    columns = made.to_pydict()
    names = ("offset", "value", "producer", "epoch", "sequence")
    return list(zip(*(columns[name] for name in names), strict=True))


ROWS = [
    (40, b"40", ANNE, 3, 698),
    (41, b"41", ANNE, 3, 699),
    (42, b"42", ANNE, 3, 700),
    (43, b"43", ANNE, 3, 701),
    (44, b"44", None, None, 44),
    (45, b"45", BERT, 0, 0),
    (46, b"46", CARL, 9, 1 << 40),
    (47, b"47", CARL, 9, (1 << 40) + 1),
    (48, b"48", None, None, 48),
    (49, b"49", BERT, 0, 1),
]


def test_each_record_has_the_numbers_of_who_wrote_it() -> None:
    assert rows_of(log()) == ROWS


def test_of_records_that_nobody_numbered_the_sequence_is_the_offset() -> None:
    rows = origins(7, (NO_PRODUCER, 0, 2, 0), (ANNE, 0, 1, 8), (NO_PRODUCER, 0, 1, 0))
    assert rows_of([batch(7, 4, origins=rows)]) == [
        (7, b"7", None, None, 7),
        (8, b"8", None, None, 8),
        (9, b"9", ANNE, 0, 8),
        (10, b"10", None, None, 10),
    ]


@given(st.integers(38, 51), st.integers(38, 51))
def test_what_is_cut_has_the_numbers_of_the_whole(first: int, last: int) -> None:
    found = [piece for each in log() if (piece := cut(each, first, last)) is not None]
    wanted = [row for row in ROWS if first <= row[0] <= last]
    if wanted:
        assert rows_of(found) == wanted
    else:
        assert found == []


@pytest.mark.parametrize("first", range(42, 48))
def test_what_is_cut_of_one_alone_and_cut_once_more(first: int) -> None:
    for last in range(first, 48):
        piece = cut(shared(), 42, last)
        assert piece is not None
        piece = cut(piece, first, 47)
        assert piece is not None
        assert piece.origins == shared().origins
        assert rows_of([piece]) == [row for row in ROWS if first <= row[0] <= last]


@given(st.sets(st.integers(43, 47)))
def test_in_whatever_pieces_it_comes_the_columns_are_the_same(cuts: set[int]) -> None:
    front, whole, *behind = log()
    found = [cut(whole, first, last - 1) for first, last in pairwise([42, *sorted(cuts), 48])]
    assert rows_of([front, *(piece for piece in found if piece is not None), *behind]) == ROWS
    assert rows_of([front, *whole.pieces(max(1, len(cuts)), 0), *behind]) == ROWS


def test_partition_and_producer_epoch_and_sequence_tell_all_records_apart() -> None:
    """Also those that nobody numbered, in one batch or in two."""
    rows = rows_of([*log(), batch(50, 2, origins=origins(50, (NO_PRODUCER, 0, 1, 0), (NO_PRODUCER, 0, 1, 0)))])
    assert len({row[2:] for row in rows}) == len(rows) == 12
