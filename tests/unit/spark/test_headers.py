"""Headers of rows, from Spark's columns to records and back."""

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logboom import LogBatch, Record, RecordBlock
from logboom.errors import InvalidRequest
from logboom.spark.columns import log_columns, log_schema
from logboom.spark.encode import blocks, columns_of, concat, in_order
from logboom.spark.headers import COLUMN, packed, unpacked
from logboom.spark.layout import layout_of
from logboom.spark.options import write_options
from logboom.spark.sink import _Part

LOGS = dict.fromkeys(range(3), "log")
MAP = pa.map_(pa.string(), pa.binary())
pairs = st.lists(st.tuples(st.text(max_size=40), st.binary(max_size=300)), max_size=20)


def as_list(rows):
    return pa.array([None if r is None else [{"key": k, "value": v} for k, v in r] for r in rows], COLUMN.type)


def as_packed(row):
    return msgpack.packb([list(pair) for pair in row]) if row else b""


@given(st.lists(st.none() | pairs, max_size=12), st.integers(0, 6))
def test_headers_are_what_a_client_would_send_and_come_back(rows, skipped):
    column = as_list(rows)[skipped:]
    raw = packed(column)
    assert raw.to_pylist() == [as_packed(row) for row in rows[skipped:]]
    assert unpacked(raw).to_pylist() == [row or None for row in column.to_pylist()]


@given(st.lists(st.none() | pairs, max_size=8))
def test_a_map_is_as_good(rows):
    assert packed(pa.array(rows, MAP)).to_pylist() == [as_packed(row) for row in rows]


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536])
def test_every_length_has_its_head(size):
    row = [("n" * size, b"v" * size)]
    assert packed(as_list([row, None, row])).to_pylist() == [as_packed(row), b"", as_packed(row)]


@pytest.mark.parametrize("count", [15, 16, 70_000])
def test_there_may_be_many(count):
    row = [("n", b"v")] * count
    assert packed(as_list([row])).to_pylist() == [as_packed(row)]


def test_a_row_that_is_null_may_have_entries_beneath():
    entries = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], COLUMN.type.value_type)
    column = pa.ListArray.from_arrays(pa.array([0, 1, 2]), entries, type=COLUMN.type, mask=pa.array([True, False]))
    assert packed(column).to_pylist() == [b"", as_packed([("b", b"2")])]


@pytest.mark.parametrize("entry", [{"key": None, "value": b"v"}, {"key": "k", "value": None}, None])
def test_a_header_without_name_or_bytes_is_an_error(entry):
    with pytest.raises(InvalidRequest, match="column headers has"):
        packed(pa.array([[entry]], COLUMN.type))


@pytest.mark.parametrize("raw", [b"\xff", b"\xed\xa0\x80", b"ok\xc3"])
def test_a_name_that_is_no_text_is_an_error(raw):
    """Spark's `cast(binary as string)` checks nothing; a record with such a name could never be read again."""
    names = pa.array([raw], pa.binary()).view(pa.string())
    entries = pa.StructArray.from_arrays([names, pa.array([b"v"])], names=["key", "value"])
    with pytest.raises(InvalidRequest, match="column headers has a name that is no UTF-8"):
        packed(pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), entries))
    values = pa.StructArray.from_arrays([pa.array(["n"]), names], names=["key", "value"])
    assert packed(pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), values)).to_pylist() == [
        as_packed([("n", raw)])
    ]


def batch_of(rows):
    """Rows of (partition, value, headers)."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([r[0] for r in rows], pa.int32()),
            pa.array([r[1] for r in rows], pa.binary()),
            as_list([r[2] for r in rows]),
        ],
        ["partition", "value", "headers"],
    )


def layout(schema, machines=LOGS):
    return layout_of(schema, write_options({"endpoints": "a:1"}), machines)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=20), st.none() | pairs), max_size=20),
    st.integers(1, 2_000),
)
def test_headers_stay_with_their_rows_however_they_are_cut(rows, bytes_max):
    batch = batch_of(rows)
    halves = [batch.slice(0, len(rows) // 2), batch.slice(len(rows) // 2)]
    columns = concat([columns_of(half, layout(batch.schema)) for half in halves])
    sent = [
        (partition, record.payload, list(record.headers))
        for partition, block in blocks(columns, bytes_max=bytes_max)
        for record in block.records()
    ]
    assert sent == sorted([(p, v, h or []) for p, v, h in rows], key=lambda row: row[0])


def test_blocks_with_headers_keep_to_their_size():
    rows = [(0, b"v" * 10, [("name", b"x" * 90)])] * 500
    found = list(blocks(columns_of(batch_of(rows), layout(batch_of(rows).schema)), bytes_max=5_000))
    assert sum(block.count for _, block in found) == 500
    assert max(block.nbytes for _, block in found) <= 5_000


def test_rows_that_differ_in_headers_alone_have_an_order_of_their_own():
    rows = [(0, b"v", [("n", b"%d" % k)]) for k in range(10)]
    schema = batch_of(rows).schema
    both = [in_order(columns_of(batch_of(each), layout(schema))).headers for each in (rows, rows[::-1])]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.binary(),
        pa.list_(pa.string()),
        pa.map_(pa.string(), pa.int64()),
        pa.map_(pa.binary(), pa.binary()),
        pa.list_(pa.struct([("key", pa.string())])),
        pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())])),
        pa.list_(pa.struct([("key", pa.int32()), ("value", pa.binary())])),
    ],
    ids=str,
)
@pytest.mark.parametrize("machine", ["log", "kv"])
def test_headers_of_another_type_are_an_error_before_any_job_runs(kind, machine):
    schema = pa.schema([("partition", pa.int32()), ("key", pa.binary()), ("value", pa.binary()), ("headers", kind)])
    with pytest.raises(InvalidRequest, match="column headers must be map<string,binary> or array<struct"):
        layout(schema, dict.fromkeys(range(3), machine))


def test_commands_have_headers_too():
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", MAP)])
    batch = pa.RecordBatch.from_pylist([{"key": b"k", "value": b"v", "headers": [("n", b"h")]}], schema)
    ((_, block),) = blocks(columns_of(batch, layout(schema, dict.fromkeys(range(3), "kv"))), bytes_max=1_000)
    assert block.headers() == [(("n", b"h"),)]


def test_the_source_gives_them_back_batches_without_any_included():
    records = [Record(b"a", None, (("n", b"1"), ("m", b""))), Record(b"b"), Record(b"c", b"k", (("n", b"1"),))]
    batches = [
        LogBatch(0, 1, 1, 1, 0, bytes(16), 0, 0, RecordBlock.from_records(records)),
        LogBatch(0, 4, 2, 1, 0, bytes(16), 0, 0, RecordBlock.from_records([Record(b"d")])),
    ]
    column = log_columns(batches, log_schema(headers=True)).column("headers")
    assert column.to_pylist() == [
        [{"key": "n", "value": b"1"}, {"key": "m", "value": b""}],
        None,
        [{"key": "n", "value": b"1"}],
        None,
    ]


def test_a_fingerprint_is_of_the_headers_too_wherever_rows_are_cut():
    def fingerprint(rows, cuts=1):
        batch = batch_of(rows)
        part, step = _Part(), max(1, len(rows) // cuts)
        for start in range(0, len(rows), step):
            columns = columns_of(batch.slice(start, step), layout(batch.schema))
            for _, block in blocks(columns, bytes_max=1 << 20):
                part.add(block)
        return part.report(0).fingerprint

    rows = [(0, b"v", [("n", b"%d" % k)] if k % 2 else None) for k in range(12)]
    assert fingerprint(rows) == fingerprint(rows, 5) == fingerprint(rows, 12)
    assert fingerprint(rows) != fingerprint([*rows[:11], (0, b"v", [("n", b"12")])])
    # The same headers, of another row.
    assert fingerprint(rows) != fingerprint([*rows[1:2], *rows[:1], *rows[2:]])


def test_names_that_are_no_text_are_read_all_the_same():
    """Earlier releases let Spark write them, and one such record kept all that lie behind it from being read."""
    named = msgpack.packb([["a", b"1"]])
    raw = msgpack.packb([["?b", b"2"]]).replace(b"?", b"\xff")
    assert unpacked(pa.array([raw])).to_pylist() == [[{"key": "\\xffb", "value": b"2"}]]
    ends = [len(raw), len(raw) + len(named)]
    block = RecordBlock.from_arrays(
        payload_ends=np.zeros(2, np.uint32), data=b"", header_ends=np.array(ends, np.uint32), header_bytes=raw + named
    )
    assert block.headers_have("b", None).tolist() == [False, False]
    assert block.headers_have("a", None).tolist() == [False, True]


@pytest.mark.parametrize(
    "raw",
    [
        b"\xc1",
        b"not msgpack: a",
        b"\xdd\xff\xff\xff\xff",
        msgpack.packb([["a", b"1"]]) + b"more",
        msgpack.packb([["a", "text"]]),
        msgpack.packb({"a": b"1"}),
        msgpack.packb([[["a"], b"1"], "a"]),
    ],
)
def test_headers_that_are_none_are_read_past_and_shown_as_they_are(raw):
    """Any client can write them: nothing looks into headers on the way in, and what lies behind has to be read."""
    good = msgpack.packb([["a", b"1"]])
    assert unpacked(pa.array([raw, good])).to_pylist() == [
        [{"key": "", "value": raw}],
        [{"key": "a", "value": b"1"}],
    ]
    ends = np.array([len(raw), len(raw) + len(good)], np.uint32)
    block = RecordBlock.from_arrays(
        payload_ends=np.zeros(2, np.uint32), data=b"", header_ends=ends, header_bytes=raw + good
    )
    assert block.headers() == [(("", raw),), (("a", b"1"),)]
    assert block.headers_have("a", None).tolist() == [False, True]
    assert [record.headers for record in block.records()] == block.headers()
