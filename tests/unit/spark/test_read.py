import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logboom.client.reads import LogBatch
from logboom.commands import pack_numbers
from logboom.errors import CorruptData
from logboom.records import RecordBlock
from logboom.spark.read import LOG, STATE, log_batch, state_batch

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
    batch = log_batch(LogBatch(5, 40, 9, 2, 1_700_000_000_123, b"p" * 16, 0, 7, block))
    batch.validate(full=True)
    assert batch.schema == LOG
    assert batch["offset"].to_pylist() == [40, 41, 42]
    assert batch["value"].to_pylist() == [b"1", b"22", b""]
    assert batch["key"].to_pylist() == ([None] * 3 if keys is None else [b"a", None, b"c"])
    assert batch["timestamp"][0].cast(pa.int64()).as_py() == 1_700_000_000_123_000
