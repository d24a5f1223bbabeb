"""Whatever is pushed: rows that come through, less what Spark filters still, are those that Spark alone would keep."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from logboom.client.reads import LogBatch
from logboom.records import RecordBlock
from logboom.spark.columns import LOG, cut, log_columns
from logboom.spark.options import read_options
from logboom.spark.pushdown import Bounds, push

E = {"endpoints": "a:1"}
KEYS = [None, b"a", b"ab", b"ab\x00", b"b"]


def batches():
    """Partitions 0 to 2, ten batches of five rows, a second apart."""
    for k in range(10):
        block = RecordBlock.from_columns(keys=[key or b"" for key in KEYS], payloads=[b"%d" % k] * 5)
        yield LogBatch(k % 3, 1 + 5 * (k // 3), 100 + k, 1, 1000 * k, b"p" * 16, 0, 0, block)


def whole():
    return log_columns(list(batches()), LOG).to_pylist()


def through(bounds):
    """What a reader lets through."""
    for batch in batches():
        if not bounds.has_partition(batch.partition_id) or not bounds.has_batch(batch):
            continue
        kept = cut(batch, bounds.offset.low, bounds.offset.high)
        if kept is not None:
            columns = log_columns([kept], LOG)
            yield from columns.filter(
                bounds.rows_of(columns["key"]) if bounds.about_keys else pa.array([True] * columns.num_rows)
            ).to_pylist()


COMPARE = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


def keeps(given, row):
    """As SQL does: null compares to nothing."""
    if isinstance(given, Not):
        return row[given.child.attribute[0]] is not None and not keeps(given.child, row)
    value = row[given.attribute[0]]
    if isinstance(given, IsNotNull):
        return value is not None
    if isinstance(given, EqualNullSafe):
        return value == given.value
    if value is None:
        return False
    if isinstance(given, In):
        return value in given.value
    return COMPARE[type(given)](value, given.value)


values = {
    "partition": st.integers(-1, 4),
    "offset": st.integers(-1, 20),
    "global_offset": st.integers(98, 112),
    "timestamp": st.integers(-1_500_000, 11_000_000).map(
        lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    ),
    "key": st.sampled_from([k for k in KEYS if k] + [b"", b"aa", b"c"]),
}
some = st.sampled_from(list(values)).flatmap(
    lambda column: st.one_of(
        st.tuples(st.sampled_from([*COMPARE, EqualNullSafe]), values[column]).map(lambda t: t[0]((column,), t[1])),
        st.lists(values[column], min_size=1, max_size=3).map(lambda v: In((column,), v)),
        values[column].map(lambda v: Not(EqualTo((column,), v))),
        st.just(IsNotNull((column,))),
    )
)


@settings(deadline=None)
@given(st.lists(some, max_size=4))
def test_rows_are_those_that_the_filters_keep(filters):
    bounds, left = push(Bounds(), filters, view="log")
    found = [row for row in through(bounds) if all(keeps(f, row) for f in left)]
    wanted = [row for row in whole() if all(keeps(f, row) for f in filters)]
    assert sorted(map(str, found)) == sorted(map(str, wanted))
    if bounds.none_of(read_options(E)):
        assert not wanted


@pytest.mark.parametrize(
    "left",
    [
        IsNull(("key",)),
        StringStartsWith(("value",), "a"),
        EqualTo(("value",), b"a"),
        EqualTo(("offset",), None),
        EqualTo(("key", "inner"), b"a"),
        EqualTo(("timestamp",), datetime(2024, 1, 1)),  # noqa: DTZ001 - without a zone it says nothing
        In(("key",), [b"a", None]),
        In(("offset",), [3, 9]),
    ],
)
def test_what_cannot_be_answered_exactly_stays_with_spark(left):
    assert push(Bounds(), [left], view="log")[1] == [left]


def test_of_a_state_partition_and_key_are_answered():
    filters = [EqualTo(("partition",), 1), GreaterThan(("key",), b"a"), LessThan(("global_offset",), 5)]
    bounds, left = push(Bounds(), filters, view="state")
    assert left == filters[2:]
    assert bounds.key_from == b"a\x00"
    assert not bounds.has_partition(0)


def test_options_bound_global_offsets():
    bounds = Bounds.of(read_options({**E, "startingGlobalOffset": "101", "endingGlobalOffset": "103"}))
    assert {row["global_offset"] for row in through(bounds)} == {101, 102, 103}
