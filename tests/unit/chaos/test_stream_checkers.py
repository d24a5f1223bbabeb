"""Of streams that were followed: each way to be wrong is noticed, and what is right is not."""

from __future__ import annotations

from typing import Any

import pytest

from chaos import verdict
from chaos.checkers import streams
from chaos.checkers.streams import Followed, Gone, Row

LOG = {1: [Row(1, 1, 10, b"a"), Row(1, 2, 12, b"b")], 2: [Row(2, 1, 11, b"x"), Row(2, 2, 13, b"y")]}
ALL = sorted([*LOG[1], *LOG[2]], key=lambda row: row.global_index)


def tail(*rows: Row, **more: Any) -> Followed:
    return Followed("tail", [1], rows=list(rows), **more)


def scan(*rows: Row, **more: Any) -> Followed:
    return Followed("scan", [1, 2], merged=True, rows=list(rows), **more)


def test_right() -> None:
    assert streams.check(tail(*LOG[1]), LOG) == []
    assert streams.check(scan(*ALL), LOG) == []


def test_what_comes_twice() -> None:
    assert "came again" in streams.check(tail(LOG[1][0], *LOG[1]), LOG)[0]
    assert any("came again" in each for each in streams.check(scan(ALL[0], *ALL), LOG))


def test_what_does_not_come() -> None:
    assert any("did not come" in each for each in streams.check(tail(LOG[1][0]), LOG))
    assert any("too early" in each for each in streams.check(tail(LOG[1][1], Row(1, 4, 15, b"d")), LOG))
    assert any("did not come" in each for each in streams.check(scan(*ALL[1:]), LOG))


def test_an_order_that_is_another() -> None:
    assert "after global index 11" in streams.check(scan(ALL[1], ALL[0], *ALL[2:]), LOG)[0]


def test_another_content_or_place() -> None:
    assert "and is" in streams.check(tail(LOG[1][0], Row(1, 2, 12, b"B")), LOG)[0]
    assert "and is" in streams.check(tail(Row(1, 1, 9, b"a"), LOG[1][1]), LOG)[0]


def test_what_is_not_there() -> None:
    assert "is not in the log" in streams.check(tail(*LOG[1], Row(1, 3, 20, b"c")), LOG)[0]
    assert "nobody asked for" in streams.check(tail(*LOG[1], Row(3, 1, 20, b"c")), LOG)[0]


def test_what_is_gone_is_missed_only_where_nothing_removes_and_behind_it_nothing_may_be_missing() -> None:
    rows = [Row(1, index, index + 9, b"%d" % index) for index in range(1, 7)]
    gap = tail(*rows[:2], *rows[4:], gone=[Gone(2, 5)])
    assert streams.check(gap, {1: rows}, removed=True) == []
    assert "nothing removes" in streams.check(gap, {1: rows})[0]
    more = tail(*rows[:2], rows[5], gone=[Gone(2, 5)])
    assert any("1/5" in each and "did not come" in each for each in streams.check(more, {1: rows}, removed=True))
    merged = Followed("scan", [1], merged=True, rows=[*rows[:2], *rows[4:]], gone=[Gone(2, 14)])
    assert streams.check(merged, {1: rows}, removed=True) == []


def test_whoever_was_told_of_nothing_begins_with_the_first() -> None:
    """Whether the log still has it or not."""
    assert "1/2 at 12 came too early, 1 was next" in streams.check(tail(LOG[1][1]), {1: LOG[1][1:]}, removed=True)[0]
    assert any("2/2" in each for each in streams.check(scan(LOG[1][0], LOG[2][1]), {}, removed=True))
    assert streams.check(tail(LOG[1][1], gone=[Gone(0, 2)]), {1: LOG[1][1:]}, removed=True) == []


def test_what_is_passed_over_is_what_it_was_told_of_and_no_more() -> None:
    rows = [Row(1, index, index + 9, b"%d" % index) for index in range(1, 7)]
    right = tail(*rows[:2], *rows[4:], gone=[Gone(2, 4), Gone(2, 5)])  # the last word counts
    assert streams.check(right, {1: rows[4:]}, removed=True) == []
    for first in (4, 6):
        wrong = tail(*rows[:2], *rows[4:], gone=[Gone(2, first)])
        assert f"{first} was next" in streams.check(wrong, {1: rows[4:]}, removed=True)[0]
    again = tail(*rows[:2], *rows[1:], gone=[Gone(2, 2)])
    assert "came again, 3 was next" in streams.check(again, {1: rows}, removed=True)[0]


def test_of_several_partitions_each_may_jump_once_and_not_in_front_of_where_it_was_told() -> None:
    one = [Row(1, index, 10 * index, b"%d" % index) for index in range(1, 6)]
    two = [Row(2, index, 10 * index + 1, b"%d" % index) for index in range(1, 6)]

    def checked(*rows: Row, first: int = 30) -> list[str]:
        came = [one[0], two[0], *rows]
        log = {partition: [row for row in came if row.partition == partition] for partition in (1, 2)}
        return streams.check(scan(*came, gone=[Gone(2, first)]), log, removed=True)

    assert checked(one[2], two[2], one[3]) == checked(two[1], one[2], two[2], first=21) == []
    assert "1/5 at 50 came too early, 4 was next" in checked(one[2], two[2], one[4])[0]
    assert "2/5 at 51 came too early, 3 was next" in checked(two[1], one[2], two[4], first=21)[0]
    assert "after global index 35" in checked(one[2], first=35)[0]


def test_what_all_nodes_still_have_was_not_gone_whatever_was_said() -> None:
    rows = [Row(1, index, index + 9, b"%d" % index) for index in range(1, 7)]
    gap = tail(*rows[:2], *rows[4:], gone=[Gone(2, 5)])
    assert streams.check(gap, {1: rows[2:]}, removed=True, begins={1: 5}) == []
    assert streams.check(gap, {1: rows[2:]}, removed=True, begins={2: 3}) == []
    assert (
        "1 records did not come, the first is 1/4" in streams.check(gap, {1: rows[2:]}, removed=True, begins={1: 4})[0]
    )


@pytest.mark.parametrize(
    ("firsts", "begin"), [({"n1": [3, 4], "n2": [5]}, 5), ({"n1": [3], "n2": []}, None), ({}, None)]
)
def test_from_where_all_nodes_have_everything(firsts: dict[str, list[int]], begin: int | None) -> None:
    logs = {node: [(index, index, b"") for index in indices] for node, indices in firsts.items()}
    assert verdict._begin(logs) == begin


def test_errors_and_an_end_are_told() -> None:
    assert "stands still" in streams.check(tail(*LOG[1], errors=["stands still"]), LOG)[0]


def test_streams_agree_on_what_nobody_has_any_more() -> None:
    assert streams.agree([tail(*LOG[1]), scan(*ALL)]) == []
    assert "had" in streams.agree([tail(*LOG[1]), scan(Row(1, 1, 10, b"other"))])[0]
