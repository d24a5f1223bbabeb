"""Every checker is shown to fail on a history that is wrong, and to pass one that is right."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.checkers import availability, exactly_once, linearizable, watermarks
from chaos.checkers.watermarks import Sample
from chaos.history import Operation
from chaos.sim.afterwards import Afterwards
from logboom.settings import SnapshotSettings


def _op(
    f: str, key: str, value: Any, start: int, end: int | None, outcome: str = "ok", result: Any = None
) -> Operation:
    return Operation(0, f, key, value, start, end, outcome, result)


class TestCounters:
    def test_right(self) -> None:
        ops = [_op("add", "a", 1, 0, 1), _op("add", "b", 1, 0, None, "info"), _op("add", "c", 1, 0, 1, "fail")]
        assert exactly_once.counters(ops, {(0, "a"): 1, (0, "b"): 1}) == []
        assert exactly_once.counters(ops, {(0, "a"): 1}) == []

    def test_lost(self) -> None:
        assert "lost" in exactly_once.counters([_op("add", "a", 1, 0, 1)], {})[0]

    def test_twice(self) -> None:
        assert "twice" in exactly_once.counters([_op("add", "a", 1, 0, None, "info")], {(0, "a"): 2})[0]

    def test_refused_but_applied(self) -> None:
        assert "refused" in exactly_once.counters([_op("add", "a", 1, 0, 1, "fail")], {(0, "a"): 1})[0]

    def test_phantom(self) -> None:
        assert "phantom" in exactly_once.counters([], {(0, "a"): 1})[0]

    def test_in_another_partition_or_in_two(self) -> None:
        ops = [_op("add", "a", 1, 0, 1)]
        lost, phantom = exactly_once.counters(ops, {(1, "a"): 1})
        assert "lost" in lost
        assert "phantom" in phantom
        (phantom,) = exactly_once.counters(ops, {(0, "a"): 1, (1, "a"): 1})
        assert "in partition 1" in phantom


class TestAppends:
    def test_right(self) -> None:
        assert exactly_once.appends([_op("append", "l", "x", 0, 1)], [(1, "x")], 1) == []

    def test_lost(self) -> None:
        assert "lost" in exactly_once.appends([_op("append", "l", "x", 0, 1)], [], -1)[0]

    def test_what_was_compacted_is_not_missed(self) -> None:
        x, y = _op("append", "l", "x", 0, 1), _op("append", "l", "y", 0, 1)
        x.index, y.index = 1, 2
        assert exactly_once.appends([x, y], [(2, "y")], -1, first=2) == []
        assert exactly_once.receipts([x, y], [(2, "y")], first=2) == []
        assert "lost" in exactly_once.appends([x, y], [], -1, first=2)[0]
        assert "dense" in exactly_once.appends([x, y], [(2, "y")], -1, first=1)[0]

    def test_hole(self) -> None:
        ops = [_op("append", "l", "x", 0, 1), _op("append", "l", "y", 0, 1)]
        assert "dense" in exactly_once.appends(ops, [(1, "x"), (3, "y")], -1)[0]

    def test_copy_that_took_effect(self) -> None:
        assert exactly_once.appends([_op("append", "l", "x", 0, 1)], [(1, "x"), (2, "x")], 2) != []

    def test_copy_that_took_effect_where_some_are_gone(self) -> None:
        x, y = _op("append", "l", "x", 0, 1), _op("append", "l", "y", 0, None, "info")
        x.index = 1
        assert exactly_once.appends([x, y], [(2, "y")], 2, first=2) == []
        assert exactly_once.appends([x, y], [], 1, first=2) == []
        for applied in (0, 3):
            assert "took effect" in exactly_once.appends([x, y], [(2, "y")], applied, first=2)[0]

    def test_receipts(self) -> None:
        x, y = _op("append", "l", "x", 0, 1), _op("append", "l", "y", 0, 1)
        x.index, y.index = 1, 2
        assert exactly_once.receipts([x, y], [(1, "x"), (2, "y")]) == []
        assert "where y is" in exactly_once.receipts([x], [(1, "y")])[0]
        y.index = 1
        assert "was given to" in exactly_once.receipts([x, y], [(1, "x"), (2, "y")])[0]

    def test_nodes_disagree(self) -> None:
        assert exactly_once.agreement({"a": [(1, 1, b"x")], "b": [(1, 1, b"x")]}) == []
        assert "differ from entry 0" in exactly_once.agreement({"a": [(1, 1, b"x")], "b": [(1, 1, b"y")]})[0]
        assert "differ from entry 1" in exactly_once.agreement({"a": [(1, 1, b"x")], "b": [(1, 1, b"x")] * 2})[0]


class TestWatermarks:
    def test_back(self) -> None:
        good = [Sample("n", 0, 2, 2, 1, 5), Sample("n", 0, 2, 2, 2, 6)]
        assert watermarks.monotonic(good) == []
        assert "went back" in watermarks.monotonic(good[::-1])[0]

    def test_applied_before_durable(self) -> None:
        assert "out of order" in watermarks.monotonic([Sample("n", 0, 2, 1, 2, 5)])[0]

    def test_digests(self) -> None:
        wanted: Any = {"nodes": ["a", "b"], "partitions": [0]}
        assert watermarks.digests_equal({"a": {0: b"x"}, "b": {0: b"x"}}, **wanted) == []
        assert "differ" in watermarks.digests_equal({"a": {0: b"x"}, "b": {0: b"y"}}, **wanted)[0]
        assert "differ" in watermarks.digests_equal({"a": {0: b"x", 1: b"z"}, "b": {0: b"x"}}, **wanted)[0]

    def test_digests_that_are_not_there(self) -> None:
        wanted: Any = {"nodes": ["a", "b"], "partitions": [0, 1]}
        assert "partition 1: no" in watermarks.digests_equal({"a": {0: b"x"}, "b": {0: b"x"}}, **wanted)[0]
        assert len(watermarks.digests_equal({"a": {}, "b": {}}, **wanted)) == 2
        assert len(watermarks.digests_equal({}, **wanted)) == 2
        assert "differ" in watermarks.digests_equal({"a": {0: b"x", 1: b"y"}}, **wanted)[0]
        assert watermarks.digests_equal({}, nodes=[], partitions=[]) != []


class TestRegisters:
    def test_right(self) -> None:
        ops = [_op("put", "r", "1", 0, 10), _op("get", "r", None, 5, 6), _op("get", "r", None, 11, 12, result="1")]
        assert linearizable.registers(ops) == []

    def test_stale_read(self) -> None:
        ops = [_op("put", "r", "1", 0, 10), _op("get", "r", None, 11, 12)]
        assert linearizable.registers(ops) != []

    def test_unknown_write_may_show_late_and_only_once(self) -> None:
        put = _op("put", "r", "1", 0, None, "info")
        before, after = _op("get", "r", None, 5, 6), _op("get", "r", None, 7, 8, result="1")
        assert linearizable.registers([put, before, after]) == []
        assert linearizable.registers([put, after, _op("get", "r", None, 9, 10)]) != []

    def test_two_winners_of_one_cas(self) -> None:
        ops = [
            _op("cas", "r", [None, "1"], 0, 10, result=True),
            _op("cas", "r", [None, "2"], 0, 10, result=True),
        ]
        assert linearizable.registers(ops) != []
        ops[1].result = False
        assert linearizable.registers(ops) == []


def test_thin_and_doubtful_histories_are_inconclusive() -> None:
    assert availability.conclusive([_op("add", "a", 1, 0, 1)] * 100, 1.0) == []
    assert availability.conclusive([_op("add", "a", 1, 0, 1)] * 100, 10.0) != []
    doubtful = [_op("add", "a", 1, 0, 1)] * 100 + [_op("add", "b", 1, 0, None, "info")] * 10
    assert availability.conclusive(doubtful, 1.0) != []


def test_gap() -> None:
    assert availability.longest_gap_s([_op("add", "a", 1, 0, 10**9), _op("add", "b", 1, 0, 4 * 10**9)]) == 3.0


def test_a_gap_may_be_at_the_beginning_or_at_the_end() -> None:
    second = 10**9
    writes = [_op("add", "a", 1, 0, second), _op("add", "b", 1, 0, 2 * second)]
    late = [_op("get", "r", None, 0, 1), *[_op("add", k, 1, 5 * second, 6 * second) for k in "ab"]]
    assert (availability.longest_gap_s(late), availability.longest_gap_began_s(late)) == (6.0, 0.0)
    asked = [*writes, _op("add", "c", 1, 7 * second, 9 * second, "info")]
    assert (availability.longest_gap_s(asked), availability.longest_gap_began_s(asked)) == (7.0, 2.0)
    read = [*writes, _op("get", "r", None, 5 * second, 9 * second)]
    assert availability.longest_gap_s(read) == 3.0  # nothing was written any more while it waited
    assert availability.longest_gap_s([_op("add", "c", 1, 0, 9 * second, "fail")]) == 9.0
    assert availability.longest_gap_s([]) == 0.0


def test_writes_resume_with_one_that_began_after_the_fault() -> None:
    before = _op("add", "a", 1, 0, 3 * 10**9)
    after = _op("add", "b", 1, 2 * 10**9, 5 * 10**9)
    assert availability.resumed_s([before, after], [10**9]) == [4.0]
    assert availability.resumed_s([before], [10**9]) == [float("inf")]


@pytest.mark.parametrize(
    ("first", "lengths", "settings", "again", "right"),
    [
        (1, [10], {}, False, True),
        (2, [10], {}, False, False),
        (2, [], {}, False, False),
        (2, [200, 100], {"retain_log_bytes": 500}, False, True),
        (2, [10], {"retain_log_bytes": 500}, False, False),
        (2, [10], {"retain_log_bytes": 500, "retain_log_ms": 5}, False, True),
        (2, [10], {}, True, False),
        (2, [10], {"retain_log_bytes": 500}, True, True),
    ],
)
def test_records_are_removed_as_the_settings_say(
    first: int, lengths: list[int], settings: dict[str, int], *, again: bool, right: bool
) -> None:
    """``again``: in a second history, which begins with what a set and its logs have."""
    parameters = SimpleNamespace(settings=SimpleNamespace(snapshot=SnapshotSettings(**settings)))
    checks: Any = SimpleNamespace(_parameters=parameters, _seen=SimpleNamespace(again=again))
    batches: Any = [SimpleNamespace(header=SimpleNamespace(nbytes=length + 200)) for length in lengths]
    assert (Afterwards._kept(checks, 3, first, batches) == []) is right
