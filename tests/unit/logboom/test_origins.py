"""Origins as rows in front of a batch's metadata, and the block that single commands become when they share one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logboom.errors import InvalidRequest
from logboom.origins import ORIGIN, Origin, origins_in, pack_origins
from logboom.records import RecordBlock
from logboom.types import NO_PRODUCER, NUMBER_MAX, PartitionLogIndex, ProducerId, Record

Share = tuple[bytes, int, int, int, int]
"""As a row has it: producer, epoch, records, first sequence, floor."""

numbers = st.integers(0, NUMBER_MAX)
shares = st.lists(
    st.tuples(
        st.one_of(st.just(bytes(NO_PRODUCER)), st.binary(min_size=16, max_size=16)),
        st.integers(0, (1 << 32) - 1),
        st.integers(1, 1000),
        numbers,
        numbers,
    ),
    min_size=1,
    max_size=8,
)


def following(rows: Iterable[Share], first_index: int) -> tuple[Origin, ...]:
    """One behind the other."""
    found = list[Origin]()
    for producer, epoch, count, sequence, floor in rows:
        found.append(Origin(ProducerId(producer), epoch, PartitionLogIndex(first_index), count, sequence, floor))
        first_index += count
    return tuple(found)


@given(shares, st.integers(1, 1 << 40), st.booleans())
def test_they_come_back_as_they_were_one_behind_the_other(rows: list[Share], first: int, view: bool) -> None:
    made = following(rows, first)
    raw = pack_origins(made)
    assert len(raw) == ORIGIN.size * len(rows)
    count = sum(row[2] for row in rows)
    assert origins_in(memoryview(raw) if view else raw, first, count) == made
    assert made[-1].last_index == first + count - 1
    for origin, behind in pairwise(made):
        assert origin.last_index + 1 == behind.first_index


def test_one_record_is_the_first_and_the_last() -> None:
    (lone,) = following([(bytes(16), 0, 1, 0, 0)], 12)
    assert lone.last_index == lone.first_index == 12
    assert not lone.dense


@given(shares, st.integers(1, 40))
def test_a_row_that_is_cut_off_is_refused(rows: list[Share], lost: int) -> None:
    raw = pack_origins(following(rows, 1))
    lost = lost % ORIGIN.size or 1
    with pytest.raises(InvalidRequest, match=f"^origins of {len(raw) - lost} bytes; each has {ORIGIN.size}$"):
        origins_in(raw[:-lost], 1, sum(row[2] for row in rows))


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    ("count", "sequence", "floor"),
    [(0, 7, 3), (2, NUMBER_MAX + 1, 3), (2, 7, NUMBER_MAX + 1), (2, (1 << 64) - 1, 0), (2, 0, (1 << 64) - 1)],
)
def test_a_row_that_cannot_be_is_refused_wherever_it_stands(place: int, count: int, sequence: int, floor: int) -> None:
    rows: list[Share] = [(b"a" * 16, 0, 2, 0, 0), (b"b" * 16, 0, 1, 0, 0)]
    rows.insert(place, (b"c" * 16, 1, count, sequence, floor))
    raw = pack_origins(following(rows, 5))
    with pytest.raises(InvalidRequest, match=f"^an origin of {count} records, sequence {sequence}, floor {floor}$"):
        origins_in(raw, 5, 3 + count)


def test_the_largest_numbers_there_may_be() -> None:
    made = following([(b"a" * 16, (1 << 32) - 1, 1, NUMBER_MAX, NUMBER_MAX)], 1)
    assert origins_in(pack_origins(made), 1, 1) == made


@given(shares, st.integers(-3, 3).filter(bool))
def test_counts_that_are_not_the_batch_s_are_refused(rows: list[Share], off: int) -> None:
    count = sum(row[2] for row in rows)
    with pytest.raises(InvalidRequest, match=f"^origins of {count} records in a batch of {count + off}$"):
        origins_in(pack_origins(following(rows, 9)), 9, count + off)


def test_none_at_all_are_not_those_of_a_record() -> None:
    with pytest.raises(InvalidRequest, match="origins of 0 records in a batch of 1"):
        origins_in(b"", 1, 1)


# -- one block of several

payloads = st.binary(max_size=40)
keys = st.one_of(st.none(), st.binary(min_size=1, max_size=12))
headers = st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=6)), max_size=3).map(tuple)


def rows_of(keyed: bool, headed: bool, lone: bool) -> st.SearchStrategy[list[Record]]:
    row = st.builds(Record, payloads, keys if keyed else st.none(), headers if headed else st.just(()))
    return st.lists(row, min_size=1, max_size=1 if lone else 4)


groups = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.booleans()).flatmap(lambda has: rows_of(*has)), min_size=1, max_size=6
)


def received(rows: list[Record]) -> RecordBlock:
    """As it is when it came in a frame: a view of it."""
    block = RecordBlock.from_records(rows)
    return RecordBlock.parse(block.count, memoryview(block.metadata), memoryview(block.data))


@given(groups)
def test_joined_blocks_have_the_records_of_all_in_order(parts: list[list[Record]]) -> None:
    blocks = [received(rows) for rows in parts]
    joined = RecordBlock.join(blocks)
    assert joined.records() == [row for block in blocks for row in block.records()]
    assert joined.records() == list(chain.from_iterable(parts))
    assert joined.has_keys == any(block.has_keys for block in blocks)
    assert joined.has_headers == any(block.has_headers for block in blocks)
    assert RecordBlock.parse(joined.count, joined.metadata, joined.data) == joined


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("headed", [False, True])
def test_lone_blocks_and_longer_ones_join_with_and_without_keys_and_headers(keyed: bool, headed: bool) -> None:
    def record(number: int) -> Record:
        return Record(b"%d" % number, b"k%d" % number if keyed else None, (("h", b"%d" % number),) if headed else ())

    bare = RecordBlock.from_records([Record(b"bare")])
    lone, long = RecordBlock.from_records([record(1)]), RecordBlock.from_records([record(2), record(3)])
    joined = RecordBlock.join([lone, bare, long, bare])
    assert joined.records() == [record(1), Record(b"bare"), record(2), record(3), Record(b"bare")]
    assert (joined.has_keys, joined.has_headers) == (keyed, headed)


def test_headers_that_are_none_are_not_looked_into() -> None:
    """Any client may write what it likes there."""
    raw = b"no msgpack"
    odd = RecordBlock.parse(1, b"\x02\0\0\0" + (1).to_bytes(4, "little") + len(raw).to_bytes(4, "little") + raw, b"p")
    joined = RecordBlock.join([odd, RecordBlock.from_records([Record(b"q")]), odd])
    assert joined.raw_headers() == [raw, b"", raw]
    assert joined.payloads() == [b"p", b"q", b"p"]
