"""What the command line writes on a terminal, also on a narrow one."""

from __future__ import annotations

from typing import Any

import pytest

from logboom.cli import common, operate, waits
from logboom.cli.common import print_rows
from logboom.types import GlobalLogIndex, NodeId, PartitionId, PartitionLogIndex, Watermark, WatermarkUpdate

INDEX = 1_234_567_890
ROW = {
    "partition": 3,
    "node": "n1",
    "state": "running",
    "log": INDEX,
    "durable": INDEX,
    "applied": INDEX,
    "applied_global": 9 * INDEX,
    "lag": 0,
    "backlog_ops": 1,
    "backlog_bytes": 22,
}


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "on_terminal", lambda _: True)


@pytest.mark.parametrize("columns", [1, 20, 40, 80, 90, 100, 110, 120, 130, 200])
def test_no_number_is_cut_however_narrow_it_is(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_rows([ROW, {**ROW, "node": "n2"}], "table", title="partitions")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if "n1" in line or "n2" in line] == [
        [str(value) for value in {**ROW, "node": node}.values()] for node in ("n1", "n2")
    ]


def test_a_long_text_is_folded_beside_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_rows([{"key": "k", "value": "v" * 200, "number": INDEX}], "table")
    shown = capsys.readouterr().out
    assert all(len(line) <= 60 for line in shown.splitlines())
    assert shown.count("v") == 201  # and the heading
    assert str(INDEX) in shown


def test_of_watermarks_that_are_followed_none_may_be_left(capsys: pytest.CaptureFixture[str]) -> None:
    mark = Watermark(PartitionId(0), *map(PartitionLogIndex, (1, 1, 1, 0)), GlobalLogIndex(1), "running")
    updates = [
        WatermarkUpdate(NodeId("n1"), GlobalLogIndex(1), GlobalLogIndex(1), marks) for marks in ((mark,), (), (mark,))
    ]
    waits._live(iter(updates))
    assert "n1: committed 1" in capsys.readouterr().out


def test_what_is_worst_comes_before_a_thousand_partitions_that_stand_still() -> None:
    answer = {
        "node": "n1",
        "role": "follower",
        "leader": None,
        "recovered": True,
        "members": [["n1", "", True, "voter"]],
        "partitions": [[p, 0, 0, 0, 0, 0, "frozen"] for p in range(1_000)],
        "lost": [[7, 4711, "n2: none"]],
    }
    found = operate.problems({"n1": answer})
    assert found[0] == "no node leads"
    assert "the batch that ends at 4711 is lost" in found[1]
    assert found[2] == "partition 0 on n1 is frozen"
    assert len(found) == 1_002


def test_a_thousand_problems_are_one_line_that_can_be_read() -> None:
    found = [f"partition {p} on n1 is frozen" for p in range(1_000)]
    line = operate.summed_up(found)
    assert line.startswith("partition 0 on n1 is frozen; partition 1 on n1 is frozen")
    assert line.endswith("; and 990 more")
    assert operate.summed_up(found[:2]) == "partition 0 on n1 is frozen; partition 1 on n1 is frozen"


def test_a_node_that_can_take_nothing_needs_a_hand() -> None:
    answer = {
        "node": "n1",
        "role": "follower",
        "leader": "n1",
        "recovered": True,
        "members": [["n1", "", True, "voter"]],
        "partitions": [],
        "admission": {"withheld": [[None, "disk_free", 1.0], [3, "apply_lag", 1.0]]},
    }
    assert operate.problems({"n1": answer}) == [
        "n1 can take no writes: disk_free withholds everything (docs/operating.md, A disk that fills up)"
    ]
    some: dict[str, Any] = {**answer, "admission": {"withheld": [[None, "disk_free", 0.9]]}}
    assert operate.problems({"n1": some}) == []
