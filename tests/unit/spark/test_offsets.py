import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logboom.errors import CorruptData, IncompatibleVersion
from logboom.spark.offsets import StreamOffset, advance, fair, shares_between
from logboom.spark.shares import Share, split

lags = st.dictionaries(st.integers(0, 20), st.integers(1, 1000), min_size=1, max_size=8)


@given(lags, st.integers(1, 3000), st.integers(0, 100))
def test_a_limit_is_used_up_and_never_exceeded(lag, rows_max, turn):
    taken = fair(lag, rows_max, turn=turn)
    assert sum(taken.values()) == min(rows_max, sum(lag.values()))
    assert all(0 < taken[p] <= lag[p] for p in taken)


@given(lags, st.integers(1, 3000))
def test_nobody_is_left_out_while_there_is_one_for_each(lag, rows_max):
    if rows_max >= len(lag):
        assert set(fair(lag, rows_max, turn=0)) == set(lag)


def test_shares_are_by_how_far_a_partition_is_behind():
    assert fair({0: 1000, 1: 3000, 2: 1}, 400, turn=0) == pytest.approx({0: 100, 1: 299, 2: 1}, abs=2)


def test_a_limit_below_the_number_of_partitions_goes_round():
    place, seen = StreamOffset(dict.fromkeys(range(5), 1)), []
    ends = dict.fromkeys(range(5), 1000)
    for _ in range(5):
        following = advance(place, ends, rows_max=2, tasks_min=0).offset
        seen += [p for p in range(5) if following.next[p] > place.next[p]]
        place = following
    assert sorted(seen) == sorted([*range(5)] * 2)


@given(
    st.dictionaries(st.integers(0, 9), st.integers(1, 500), max_size=6),
    st.dictionaries(st.integers(0, 9), st.integers(1, 500), max_size=6),
    st.integers(1, 700) | st.none(),
    st.integers(0, 12),
)
def test_batches_cover_every_offset_once_and_come_to_an_end(start, ends, rows_max, tasks_min):
    place = StreamOffset(start, initial=True)
    read = []
    for _ in range(4000):
        following = advance(place, ends, rows_max=rows_max, tasks_min=tasks_min).offset
        # As Spark has them, with what it forgot: where a query began.
        again = StreamOffset.from_json(json.loads(json.dumps(following.to_json())))
        if again.to_json() == place.to_json():
            break
        found = shares_between(place, again)
        if rows_max is not None:
            assert sum(s.rows for s in found) <= rows_max
        read += [(s.partition_id, k) for s in found for k in range(s.start, s.end + 1)]
        place = again
    else:
        pytest.fail("never at the end")
    assert sorted(read) == sorted((p, k) for p, end in ends.items() for k in range(start.get(p, 1), end))


def test_nothing_new_gives_the_same_text():
    place = StreamOffset({3: 7, 0: 121}, since_global=5, tasks_min=4)
    step = advance(place, {0: 121, 3: 5, 8: 1}, rows_max=None, tasks_min=9)
    assert json.dumps(step.offset.to_json()) == json.dumps(place.to_json())
    assert step.gone == ()


def test_a_first_batch_that_is_run_again_begins_where_it_did():
    # `latest` was 10; the driver died, and when it comes back it is 50.
    end = advance(StreamOffset({0: 10}, initial=True), {0: 30}, rows_max=None, tasks_min=0).offset
    later = StreamOffset({0: 50}, initial=True)
    assert shares_between(later, end) == [Share(0, 10, 29)]


def test_an_empty_first_batch_that_is_run_again_stays_empty():
    end = StreamOffset({0: 10}, initial=True)
    assert shares_between(StreamOffset({0: 5}, initial=True), end) == []


def test_how_many_tasks_read_a_batch_is_part_of_it():
    place = StreamOffset({0: 1, 1: 1})
    end = advance(place, {0: 101, 1: 11}, rows_max=None, tasks_min=6).offset
    planned = shares_between(place, end)
    assert len(planned) >= 6
    assert planned == shares_between(place, StreamOffset.from_json(end.to_json()))


def test_new_partitions_are_read_from_their_beginning_and_destroyed_ones_are_named():
    step = advance(StreamOffset({0: 5, 1: 8}), {0: 5, 2: 4}, rows_max=None, tasks_min=0)
    assert step.gone == (1,)
    assert step.offset.next == {0: 5, 2: 4}
    assert shares_between(StreamOffset({0: 5, 1: 8}), step.offset) == [Share(2, 1, 3)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50), st.integers(0, 300)), max_size=5), st.integers(0, 40))
def test_pieces_are_the_whole_in_order(rows, tasks_min):
    shares = [Share(p, start, start + count - 1) for p, start, count in rows]
    found = split(shares, tasks_min)
    assert [(s.partition_id, k) for s in found for k in range(s.start, s.end + 1)] == [
        (s.partition_id, k) for s in shares for k in range(s.start, s.end + 1)
    ]
    assert len(found) >= min(tasks_min, sum(s.rows for s in shares))
    assert all(s.rows for s in found)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"version": 2, "next": {}}, IncompatibleVersion),
        ({"next": {"0": 1}}, IncompatibleVersion),
        ([], IncompatibleVersion),
        ({"version": 1}, CorruptData),
        ({"version": 1, "next": {"x": 1}}, CorruptData),
        ({"version": 1, "next": {"0": -1}}, CorruptData),
        ({"version": 1, "next": {"0": 1.5}}, CorruptData),
        ({"version": 1, "next": [1]}, CorruptData),
    ],
)
def test_what_is_no_offset_of_ours_is_refused(row, error):
    with pytest.raises(error, match="checkpoint"):
        StreamOffset.from_json(row)
