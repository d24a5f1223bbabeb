import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType

from logboom.client.reads import LogBatch
from logboom.commands import pack_numbers
from logboom.errors import CorruptData, InvalidRequest
from logboom.records import RecordBlock
from logboom.spark.batch import columns_of_schema
from logboom.spark.columns import BATCH_BYTES_MAX, LOG, STATE, cut, log_columns, log_schema, pieces, state_batch
from logboom.spark.options import read_options
from logboom.types import Record

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

values = st.one_of(
    st.binary(max_size=30),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=5),
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=5),
)


def encoded(value):
    return b"b" + value if isinstance(value, bytes) else pack_numbers(value)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=10), values), min_size=1, max_size=30))
def test_every_kind_of_value_comes_back_in_its_own_column(rows):
    block = RecordBlock.from_columns(keys=[k for k, _ in rows], payloads=[encoded(v) for _, v in rows])
    batch = state_batch(3, 17, block)
    batch.validate(full=True)
    assert batch.schema == STATE
    for got, (key, value) in zip(batch.to_pylist(), rows, strict=True):
        kind = "value" if isinstance(value, bytes) else "numbers" if isinstance(value[0], int) else "doubles"
        wanted = {"value": None, "numbers": None, "doubles": None, kind: value}
        assert got == {"partition": 3, "key": key, "global_offset": 17, **wanted}


@pytest.mark.parametrize("raw", [b"", b"x", b"q1234567"])
def test_a_value_that_is_none_is_damage_not_data(raw):
    block = RecordBlock.from_columns(keys=[b"a", b"b"], payloads=[b"bv", raw])
    with pytest.raises(CorruptData):
        state_batch(0, 1, block)


@pytest.mark.parametrize("keys", [None, [b"a", b"", b"c"]])
def test_log_rows_have_their_offsets_and_times(keys):
    block = RecordBlock.from_columns(keys=keys, payloads=[b"1", b"22", b""])
    batch = log_columns([LogBatch(5, 40, 9, 2, 1_700_000_000_123, b"p" * 16, 0, 7, block)], LOG)
    batch.validate(full=True)
    assert batch.schema == LOG
    assert batch["offset"].to_pylist() == [40, 41, 42]
    assert batch["value"].to_pylist() == [b"1", b"22", b""]
    assert batch["key"].to_pylist() == ([None] * 3 if keys is None else [b"a", None, b"c"])
    assert batch["timestamp"][0].cast(pa.int64()).as_py() == 1_700_000_000_123_000


def log_batches():
    """Of two partitions, with and without keys, headers and a producer."""
    keyed = RecordBlock.from_columns(keys=[b"a", b"b"], payloads=[b"1", b"22"])
    bare = RecordBlock.from_columns(keys=None, payloads=[b"333"])
    headed = RecordBlock.from_records([Record(b"4", None, (("h", b"x"), ("h", b"y"))), Record(b"5")])
    return [
        LogBatch(5, 40, 9, 2, 1_000, b"p" * 16, 3, 7, keyed),
        LogBatch(2, 1, 10, 2, 2_000, bytes(16), 0, 99, bare),
        LogBatch(5, 42, 12, 2, 3_000, b"q" * 16, 0, 0, headed),
    ]


def test_many_batches_are_one_with_all_columns():
    schema = log_schema(headers=True, producer=True)
    batch = log_columns(log_batches(), schema)
    batch.validate(full=True)
    assert batch.schema == schema
    rows = batch.to_pydict()
    assert rows["partition"] == [5, 5, 2, 5, 5]
    assert rows["offset"] == [40, 41, 1, 42, 43]
    assert rows["global_offset"] == [9, 9, 10, 12, 12]
    assert [t.second for t in rows["timestamp"]] == [1, 1, 2, 3, 3]
    assert rows["key"] == [b"a", b"b", None, None, None]
    assert rows["value"] == [b"1", b"22", b"333", b"4", b"5"]
    assert rows["headers"] == [None] * 3 + [[{"key": "h", "value": b"x"}, {"key": "h", "value": b"y"}], None]
    assert rows["producer"] == [b"p" * 16] * 2 + [None] + [b"q" * 16] * 2
    assert rows["epoch"] == [3, 3, None, 0, 0]
    # Nobody numbered the third: its offset makes it one of its own.
    assert rows["sequence"] == [7, 8, 1, 0, 1]


def test_only_what_is_asked_for_is_made():
    batch = log_columns(log_batches(), pa.schema([LOG.field("value"), LOG.field("offset")]))
    assert batch.schema.names == ["value", "offset"]


def test_the_columns_are_those_that_spark_has():
    for schema in (STATE, LOG, log_schema(headers=True, producer=True)):
        assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC").equals(schema)


@given(st.integers(35, 47), st.integers(35, 47))
def test_a_batch_is_cut_to_offsets_with_its_numbers(first, last):
    block = RecordBlock.from_columns(keys=None, payloads=[b"%d" % k for k in range(40, 45)])
    whole = LogBatch(5, 40, 9, 2, 1_000, b"p" * 16, 0, 100, block)
    found = cut(whole, first, last)
    wanted = [k for k in range(40, 45) if first <= k <= last]
    if not wanted:
        assert found is None
        return
    rows = log_columns([found], log_schema(producer=True)).to_pydict()
    assert rows["offset"] == wanted
    assert rows["value"] == [b"%d" % k for k in wanted]
    assert rows["sequence"] == [60 + k for k in wanted]


def test_no_batches_are_no_rows():
    made = log_columns([], log_schema(producer=True, headers=True))
    assert made.num_rows == 0
    assert made.schema == log_schema(producer=True, headers=True)


def test_large_batches_are_handed_on_in_pieces():
    block = RecordBlock.from_columns(keys=None, payloads=[b"x" * 1000] * 5000)
    batch = log_columns([LogBatch(5, 1, 9, 2, 1_000, b"p" * 16, 0, 0, block)], LOG)
    found = list(pieces(batch))
    assert len(found) > 4
    assert sum(b.num_rows for b in found) == 5000
    assert all(b.nbytes <= 1.1 * BATCH_BYTES_MAX for b in found)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType([StructField("offset", LongType(), nullable=False)]), "column offset may be null .* NOT NULL"),
        (
            StructType([StructField("headers", ArrayType(HEADER, containsNull=False))]),
            "not array<struct<key:string,value:binary>> without nulls in it: leave NOT NULL",
        ),
        (StructType([StructField("offset", StringType())]), "column offset is bigint, not string$"),
    ],
)
def test_a_schema_that_differs_from_the_source_in_nulls_alone_is_told_what_differs(schema, message):
    """Spark compares them at the first rows of a task, and names no option, no column."""
    with pytest.raises(InvalidRequest, match=message):
        columns_of_schema(schema, read_options({"endpoints": "a:1", "includeHeaders": "true"}))
