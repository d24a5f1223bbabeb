"""What the pictures show, and that they are always the same."""

import json

import pytest

from bench import picture
from tests.unit.bench_curves import golden


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (766_800, "767 k"),
        (1_100_000, "1.1 M"),
        (84_147, "84.1 k"),
        (0.68, "0.68"),
        (192, "192"),
        (1_229, "1,229"),
        (0, "0"),
    ],
)
def test_figures_are_short(value, text):
    assert picture.short(value) == text


@pytest.mark.parametrize(("value", "text"), [(16, "16"), (4096, "4 Ki"), (1 << 20, "1 Mi")])
def test_bytes_are_binary(value, text):
    assert picture.binary(value) == text


def test_a_work_is_shown_by_the_figure_its_goals_are_about():
    rows = picture.shown(golden.latest()["table"])
    assert [row["work"] for row in rows] == [
        "bulk, log, committed",
        "bulk, kv, applied",
        "64 at once, kv",
        "1,000 at once, kv",
        "one at a time",
        "leader killed",
    ]
    assert next(row["figure"] for row in rows if row["work"] == "one at a time") == "p50_ms"


def test_bulk_comes_first_and_the_rest_as_it_was_measured():
    table = golden.latest()["table"]
    works = ["one at a time", "64 at once, kv", "bulk, log, committed", "leader killed", "bulk, kv, applied"]
    rows = [next(row for row in table if row["work"] == work) for work in works]
    assert [row["work"] for row in picture.shown(rows)] == [
        "bulk, log, committed",
        "bulk, kv, applied",
        "one at a time",
        "64 at once, kv",
        "leader killed",
    ]


def test_of_every_figure_it_is_said_whether_more_is_better():
    assert [said for said in picture.FIGURES.values() if not said.endswith("is better")] == []


def test_logboom_is_on_top_and_strangers_at_the_end():
    assert picture.ordered({"zookeeper": 1, "disk": 1, "etcd": 1, "logboom": 1}) == [
        "logboom",
        "etcd",
        "disk",
        "zookeeper",
    ]


@pytest.mark.parametrize(
    ("xs", "labelled"),
    [
        ([1, 8, 64, 256, 1_000], [1, 8, 64, 256, 1_000]),
        ([1, 8, 64, 256, 1_000, 10_000], [1, 8, 64, 1_000, 10_000]),
        ([1, 3, 5], [1, 3, 5]),
        ([7], [7]),
    ],
)
def test_labels_do_not_touch(xs, labelled):
    assert picture.ticks(xs) == labelled


def test_series_keep_their_order_and_run_along_x():
    points = [{"x": x, "series": series} for x, series in ((8, "b"), (1, "b"), (1, "a"), (8, "a"))]
    assert {name: [p["x"] for p in found] for name, found in picture.series_of(points).items()} == {
        "b": [1, 8],
        "a": [1, 8],
    }
    assert list(picture.series_of(points)) == ["b", "a"]


def test_a_single_point_is_drawn_only_where_there_are_no_lines():
    lone = [{"x": 8, "series": "a"}, {"x": 8, "series": "b"}]
    assert list(picture.series_of(lone)) == ["a", "b"]
    assert list(picture.series_of([*lone, {"x": 1, "series": "b"}])) == ["b"]


@pytest.mark.parametrize(("name", "report"), [("latest.json", golden.latest()), ("curves.json", golden.curves())])
def test_a_picture_names_everything_and_is_always_the_same(tmp_path, name, report):
    (tmp_path / name).write_text(json.dumps(report))
    for target in ("one.svg", "two.svg"):
        picture.draw(tmp_path / name, tmp_path / target)
    drawn = (tmp_path / "one.svg").read_text()
    assert drawn == (tmp_path / "two.svg").read_text()
    assert "2026" not in drawn
    if name == "latest.json":
        named = [*golden.SYSTEMS, *(row["work"] for row in report["table"]), picture.BARE_DISK]
    else:
        named = [*report["curves"], "cold", "warm", "nodes, all on one machine"]
    assert [each for each in named if f">{each}</text>" not in drawn] == []


def test_without_results_there_is_nothing_to_draw(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["picture", "--results", str(tmp_path), "--directory", str(tmp_path)])
    assert picture.main() == 2
    assert "no performance.svg" in capsys.readouterr().err
