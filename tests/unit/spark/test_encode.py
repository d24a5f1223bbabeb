import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logboom.commands import Add, Delete, Put
from logboom.errors import InvalidRequest, LogboomError, NoSuchPartition
from logboom.routing import partition_of
from logboom.spark.encode import blocks, columns_of, concat
from logboom.spark.layout import layout_of
from logboom.spark.options import write_options

KV = dict.fromkeys(range(4), "kv")


def layout(batch, machines=KV, **options):
    return layout_of(batch.schema, write_options({"endpoints": "a:1", **options}), machines)


def commands(batch, machines=KV, bytes_max=1 << 20, **options):
    """(partition, key, payload) in the order they are sent."""
    columns = columns_of(batch, layout(batch, machines, **options))
    return [
        (partition, key, payload)
        for partition, block in blocks(columns, bytes_max=bytes_max)
        for key, payload in zip(block.keys(), block.payloads(), strict=True)
    ]


def by_key(*records):
    rows = [(partition_of(r.key, 4), r.key, r.payload) for r in records]
    return sorted(rows, key=lambda row: row[0])


def batch(**columns):
    return pa.RecordBatch.from_pydict(columns)


keys = st.binary(min_size=1, max_size=20)


@given(st.lists(st.tuples(keys, st.binary(max_size=40)), max_size=50), st.integers(1, 500))
def test_puts_are_those_of_the_client_in_order_however_they_are_cut(rows, bytes_max):
    given_rows = pa.RecordBatch.from_arrays(
        [pa.array([k for k, _ in rows], pa.binary()), pa.array([v for _, v in rows], pa.binary())], ["key", "value"]
    )
    assert commands(given_rows, bytes_max=bytes_max) == by_key(*[Put(k, v).record() for k, v in rows])


@given(st.lists(st.tuples(keys, st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 31), (1 << 31) - 1))))
def test_integer_columns_become_adds(rows):
    given_rows = pa.RecordBatch.from_arrays(
        [
            pa.array([r[0] for r in rows], pa.binary()),
            pa.array([r[1] for r in rows], pa.int64()),
            pa.array([r[2] for r in rows], pa.int32()),
        ],
        ["key", "a", "b"],
    )
    assert commands(given_rows, addColumns="b,a") == by_key(*[Add(k, b, a).record() for k, a, b in rows])


def test_one_floating_column_makes_all_numbers_doubles():
    rows = batch(key=["k"], n=[3], x=[0.5])
    assert commands(rows, addColumns="n,x") == by_key(Add(b"k", 3.0, 0.5).record())


@pytest.mark.parametrize(("number", "fits"), [(2**53, True), (2**53 + 1, False), (-(2**63), True), (2**63 - 1, False)])
def test_an_integer_that_no_double_is_equal_to_is_refused(number, fits):
    rows = batch(key=["k"], n=[number], x=[0.5])
    if fits:
        assert commands(rows, addColumns="n,x") == by_key(Add(b"k", float(number), 0.5).record())
    else:
        with pytest.raises(InvalidRequest, match=f"column n has {number}, which no double is equal to"):
            commands(rows, addColumns="n,x")


@given(st.lists(st.tuples(keys, st.lists(st.integers(-9, 9), min_size=1, max_size=4))))
def test_an_array_column_may_have_rows_of_different_lengths(rows):
    given_rows = pa.RecordBatch.from_arrays(
        [pa.array([k for k, _ in rows], pa.binary()), pa.array([n for _, n in rows], pa.list_(pa.int64()))],
        ["key", "numbers"],
    )
    # A slice of a larger batch: offsets do not start at 0.
    padded = pa.Table.from_batches([given_rows, given_rows]).combine_chunks().to_batches()
    tail = padded[0].slice(len(rows)) if padded else given_rows
    assert commands(tail, op="add") == by_key(*[Add(k, *n).record() for k, n in rows])


def test_an_op_column_decides_row_by_row():
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([b"a", b"b", b"a", b"c"]),
            pa.array(["put", "add", "delete", "add"]),
            pa.array([b"v", None, None, None]),
            pa.array([None, [1], None, [2, 3]], pa.list_(pa.int64())),
        ],
        ["key", "op", "value", "numbers"],
    )
    wanted = [Put(b"a", b"v"), Add(b"b", 1), Delete(b"a"), Add(b"c", 2, 3)]
    assert commands(rows) == by_key(*[c.record() for c in wanted])


def test_ops_go_row_by_row_beside_columns_to_add():
    rows = batch(key=["a", "b", "a"], op=["add", "delete", "add"], n=[1, 2, 3])
    assert commands(rows, addColumns="n") == by_key(*[c.record() for c in (Add(b"a", 1), Delete(b"b"), Add(b"a", 3))])


def test_deletes_need_nothing_but_a_key():
    assert commands(batch(key=["a", "b"]), op="delete") == by_key(Delete(b"a").record(), Delete(b"b").record())


def test_a_partition_column_routes_and_order_within_a_partition_is_kept():
    rows = batch(partition=[2, 0, 2, 0], key=["a", "b", "c", "d"], value=["1", "2", "3", "4"])
    assert [(p, k) for p, k, _ in commands(rows)] == [(0, b"b"), (0, b"d"), (2, b"a"), (2, b"c")]


def test_keys_spread_over_the_chosen_partitions_alone():
    rows = batch(key=[str(k) for k in range(100)], value=["v"] * 100)
    assert {p for p, _, _ in commands(rows, partitions="1,3")} == {1, 3}


def test_log_partitions_get_the_bytes_of_value():
    rows = batch(partition=[1], value=[b"anything"])
    columns = columns_of(rows, layout(rows, dict.fromkeys(range(2), "log")))
    ((partition, block),) = blocks(columns, bytes_max=100)
    assert (partition, block.payloads(), block.has_keys) == (1, [b"anything"], False)


def test_a_null_key_gets_the_documented_one_or_is_an_error_that_names_the_column():
    rows = batch(key=["a", None], value=["1", "2"])
    assert {k for _, k, _ in commands(rows, nullKey="nobody")} == {b"a", b"nobody"}
    with pytest.raises(InvalidRequest, match=r"column key has 1 nulls.*nullKey"):
        commands(rows)


def test_in_a_log_that_its_row_names_a_null_key_is_none():
    rows, logs = batch(partition=[1, 1], key=["a", None], value=["1", "2"]), dict.fromkeys(range(2), "log")
    ((_, block),) = blocks(columns_of(rows, layout(rows, logs)), bytes_max=100)
    assert block.keys() == [b"a", b""]
    ((_, block),) = blocks(columns_of(rows, layout(rows, logs, nullKey="nobody")), bytes_max=100)
    assert block.keys() == [b"a", b"nobody"]
    rows = rows.drop_columns("partition")
    with pytest.raises(InvalidRequest, match="column key has 1 nulls"):
        columns_of(rows, layout(rows, logs))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"value": ["v"]}, {}, "column partition or key"),
        ({"key": ["k"]}, {}, "op put needs a column value"),
        ({"key": ["k"], "value": ["v"], "extra": [1]}, {}, "column 'extra' means nothing"),
        ({"key": ["k"], "n": [1]}, {"addColumns": "n,m"}, "addColumns names 'm'"),
        ({"key": ["k"], "n": ["x"]}, {"addColumns": "n"}, "integer and floating-point"),
        ({"key": ["k"]}, {"op": "add"}, "addColumns or a column numbers"),
        ({"key": [1], "value": ["v"]}, {}, "column key must be binary or string, not int64: cast\\(\\) it"),
        ({"key": ["k"], "value": [{"a": 1}]}, {}, "column value must be .* not struct<a: int64>: to_json\\(\\) it"),
        ({"key": ["k"], "n": [Decimal("1.5")]}, {"addColumns": "n"}, "for exact sums, to bigint in its smallest unit"),
        ({"partition": ["0"], "value": ["v"], "key": ["k"]}, {}, "column partition must be an integer"),
        ({"partition": [0], "value": ["v"]}, {}, "need a column key"),
        ({"key": ["k"], "value": ["v"]}, {"partitions": "9"}, "names 9, which does not exist; this cluster has 0-3"),
        ({"key": ["k"], "value": ["v"], "op": ["put"]}, {"op": "put"}, "option or as a column"),
        ({"key": ["k"], "n": [1], "op": ["put"]}, {"op": "delete", "addColumns": "n"}, "option or as a column"),
        ({"key": ["k"], "n": [1], "op": ["add"]}, {"op": "add", "addColumns": "n"}, "option or as a column"),
        ({"key": ["k"], "n": [1]}, {"op": "delete", "addColumns": "n"}, "addColumns goes with op=add, not op=delete"),
        ({"key": ["k"], "value": [1], "n": [1]}, {"addColumns": "n"}, "column value must be binary or string"),
        ({"key": [1], "value": ["v"]}, {"addColumns": "key"}, "column key must be binary or string"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_the_schema_alone(columns, options, message):
    with pytest.raises(LogboomError, match=message):
        layout(batch(**columns), **options)


@pytest.mark.parametrize("name", ["key", "value"])
def test_two_columns_of_one_name_are_refused_by_it(name):
    schema = pa.schema([(each, pa.string()) for each in ("key", "value", name)])
    with pytest.raises(InvalidRequest, match=f"more than one column '{name}'"):
        layout_of(schema, write_options({"endpoints": "a:1"}), KV)


@pytest.mark.parametrize("name", ["value", "numbers", "op", "headers"])
def test_what_add_columns_names_is_a_number_whatever_it_is_called(name):
    rows = batch(key=["k"], **{name: pa.array([7], pa.int32())})
    assert commands(rows, addColumns=name) == by_key(Add(b"k", 7).record())


@pytest.mark.parametrize(
    ("columns", "options", "error", "message"),
    [
        ({"key": ["k", ""], "value": ["1", "2"]}, {}, InvalidRequest, "empty keys"),
        ({"key": ["k" * 512], "value": ["1"]}, {}, InvalidRequest, "a key of 512 bytes"),
        ({"key": ["k"], "value": pa.array([None], pa.string())}, {}, InvalidRequest, "column value has 1 nulls"),
        (
            {"key": ["k"], "n": pa.array([None], pa.int64())},
            {"addColumns": "n"},
            InvalidRequest,
            "column n has 1 nulls",
        ),
        ({"partition": [7], "key": ["k"], "value": ["v"]}, {}, NoSuchPartition, "names 7"),
        ({"key": ["k"], "op": ["cas"]}, {}, InvalidRequest, "not 'cas'"),
        ({"key": ["k"], "op": ["put"]}, {}, InvalidRequest, "no column value"),
        ({"key": ["k"], "op": ["put"], "value": [1]}, {"addColumns": "value"}, InvalidRequest, "no column value"),
        ({"key": ["k"], "numbers": pa.array([[]], pa.list_(pa.int64()))}, {"op": "add"}, InvalidRequest, "1 to 64"),
    ],
)
def test_rows_that_do_not_fit_name_their_column(columns, options, error, message):
    with pytest.raises(error, match=message):
        commands(batch(**columns), **options)


def test_gathered_batches_are_as_one():
    first, second = batch(key=["a"], n=[1]), batch(key=["b", "a"], n=[2, 3])
    both = batch(key=["a", "b", "a"], n=[1, 2, 3])
    plan = layout(both, addColumns="n")
    joined = concat([columns_of(first, plan), columns_of(second, plan)])
    whole = columns_of(both, plan)
    assert joined.partition.tolist() == whole.partition.tolist()
    assert joined.payloads.equals(whole.payloads)
    assert struct.unpack("<q", joined.payloads[2].as_py()[2:]) == (3,)
