"""How figures are judged and shown, and what the exit status says of them."""

import json

import pytest

from bench import check, results
from bench.works import FIGURES, FIRST_WRITE, KILLED, KILLED_GOALS, Goal, goals_of, works


def three(median, most=None):
    return {"median": median, "min": median, "max": most or median}


@pytest.mark.parametrize(
    ("goal", "ours", "theirs", "value", "met"),
    [
        (Goal("f", "etcd", at_least=3), three(30.0), three(10.0), 3, True),
        (Goal("f", "etcd", at_least=3), three(29.0), three(10.0), 2.9, False),
        (Goal("f", "etcd", at_most=1), three(10.0), three(10.0), 1, True),
        (Goal("f", "etcd", at_most=1), three(11.0), three(10.0), 1.1, False),
        (Goal("f", at_most=4), three(3.9), None, 3.9, True),
        (Goal("f", at_most=4, of="max"), three(3.9, 4.1), None, 4.1, False),
        (Goal("f", "etcd", at_least=3), three(30.0), None, None, False),
        (Goal("f", at_most=4), None, three(1.0), None, False),
    ],
)
def test_a_goal_bounds_a_ratio_or_a_figure(goal, ours, theirs, value, met):
    systems = {name: each for name, each in (("logboom", ours), ("etcd", theirs)) if each is not None}
    found = results.judged(goal, systems)
    assert found["value"] == (value if value is None else pytest.approx(value))
    assert found["met"] is met


def test_a_row_takes_medians_and_leaves_out_who_was_not_measured():
    row = results.row("any", "p50_ms", "ms", {"etcd": [1.0, 9.0, 2.0], "logboom": [4.0], "nats": []})
    assert row["systems"] == {"etcd": {"median": 2.0, "min": 1.0, "max": 9.0}, "logboom": three(4.0)}
    assert row["goals"] == []


def test_what_logboom_is_held_to():
    def goal(work, figure):
        return {(g.kind, g.peer, g.at_least or g.at_most, g.of) for g in goals_of(work, figure)}

    rate = "commands_per_s"
    assert goal("bulk, log, committed", rate) == {
        ("goal", "postgres", 2.5, "median"),
        ("goal", "etcd", 12, "median"),
        ("floor", "etcd", 3, "median"),
    }
    assert goal("bulk, log, committed", "cpu_us_per_command") == {("goal", None, 4, "median")}
    assert goal("bulk, log, 16 KiB", rate) == {("goal", "disk", 0.8, "median")}
    assert goal("one at a time", "p50_ms") >= {("goal", "etcd", 0.6, "median"), ("floor", "etcd", 1, "median")}
    assert goal(KILLED, FIRST_WRITE) == {
        ("goal", None, 400, "median"),
        ("goal", None, 1000, "max"),
        ("floor", "etcd", 1, "median"),
    }


def test_every_goal_is_about_a_system_and_a_figure_that_the_work_has():
    for work in works():
        for goal in work.goals:
            assert goal.figure in FIGURES
            assert (goal.at_least is None) != (goal.at_most is None)
            assert goal.peer is None or goal.peer in work.shapes
    assert {goal.figure for goal in KILLED_GOALS} == {FIRST_WRITE}


ROWS = [
    results.row("bulk, log, committed", "commands_per_s", "/s", {"etcd": [10, 12, 11], "logboom": [132_000, 1e6]}),
    results.row("bulk, log, committed", "p50_ms", "ms", {"etcd": [1.234], "logboom": [0.5]}),
    results.row(KILLED, FIRST_WRITE, "ms", {"logboom": [100.0, 1200.0, 90.0]}),
]


def test_the_table_as_text():
    lines = results.text(ROWS).splitlines()
    assert [" ".join(line.split()) for line in lines[:4]] == [
        "work figure etcd logboom",
        "bulk, log, committed commands/s 11.0 (10.0-12.0) 566,000 (132,000-1,000,000)",
        "p50, ms 1.23 0.50",
        "leader killed first write, ms - 100 (90.0-1,200)",
    ]
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[5:7] == [
        "goal    bulk, log, committed, commands/s: >= 2.5 x postgres: not measured",
        "goal    bulk, log, committed, commands/s: >= 12 x etcd: 51454.55 met",
    ]


def test_the_table_as_markdown():
    log = "goal ≥ 2.5 x postgres: not measured<br>goal ≥ 12 x etcd: 51454.55 met<br>floor ≥ 3 x etcd: 51454.55 met"
    killed = "goal ≤ 400 ms: 100 met<br>goal worst ≤ 1000 ms: 1,200 MISSED<br>floor ≤ 1 x etcd: not measured"
    assert results.markdown(ROWS).splitlines() == [
        "| Work | Figure | etcd | logboom | Goals and floors |",
        "| --- | --- | ---: | ---: | --- |",
        f"| bulk, log, committed | commands/s | 11.0 (10.0-12.0) | 566,000 (132,000-1,000,000) | {log} |",
        "|  | p50, ms | 1.23 | 0.50 |  |",
        f"| leader killed | first write, ms | - | 100 (90.0-1,200) | {killed} |",
    ]


PEERS = {"disk": 1000.0, "etcd": 100.0, "postgres": 400.0, "redis": 300.0, "nats": 450.0}


def report(**changed):
    """A run in which every goal is met, but for the figures of logboom that are ``changed``: work|figure -> value."""
    table = []
    for work, figure, unit in [(w.name, f, u) for w in works() for f, u in FIGURES.items()] + [
        (KILLED, FIRST_WRITE, "ms")
    ]:
        good = 10_000.0 if unit == "/s" else 1.0
        ours = changed.get(f"{work}|{figure}", good)
        values = {name: [value] for name, value in PEERS.items()} | {"logboom": [ours]}
        table.append(results.row(work, figure, unit, values))
    return {"taken": "2026-11-21T00:00:00Z", "table": table}


LOG = "bulk, log, committed|commands_per_s"


@pytest.mark.parametrize(
    ("changed", "arguments", "status", "said"),
    [
        ({}, ["--goals"], 0, "floor   bulk, log, committed, commands/s: >= 3 x etcd: 100.00 met"),
        ({LOG: 1100.0}, [], 0, "goal    bulk, log, committed, commands/s: >= 12 x etcd: 11.00 MISSED"),
        ({LOG: 1100.0}, ["--goals"], 1, ">= 12 x etcd: 11.00 MISSED"),
        ({LOG: 299.0}, [], 1, "floor   bulk, log, committed, commands/s: >= 3 x etcd: 2.99 MISSED"),
        ({"one at a time|p99_ms": 301.0}, ["--goals"], 0, "stretch one at a time, p99, ms: <= 1 x redis: 1.00 MISSED"),
        ({f"{KILLED}|{FIRST_WRITE}": 101.0}, [], 1, "floor   leader killed, first write, ms: <= 1 x etcd: 1.01 MISSED"),
    ],
)
def test_check_says_each_goal_and_its_status_is_about_floors(tmp_path, capsys, changed, arguments, status, said):
    file = tmp_path / "latest.json"
    results.write(file, report(**changed))
    assert check.main([str(file), *arguments]) == status
    assert said in capsys.readouterr().out


def test_check_judges_anew_what_a_file_says_of_itself(tmp_path):
    found = report(**{LOG: 299.0})
    for row in found["table"]:
        for goal in row["goals"]:
            goal["met"] = True
    results.write(tmp_path / "latest.json", found)
    assert check.main([str(tmp_path / "latest.json")]) == 1


def test_a_floor_without_figures_is_no_success(tmp_path, capsys):
    found = report()
    found["table"] = [row for row in found["table"] if row["work"] != "64 at once, kv"]
    results.write(tmp_path / "latest.json", found)
    assert check.main([str(tmp_path / "latest.json")]) == 2
    assert "64 at once, kv, commands/s: >= 1 x etcd: not measured" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "", "[]", "{}"])
def test_no_result_is_said(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / "latest.json").write_text(content)
    assert check.main([str(tmp_path / "latest.json")]) == 2
    assert "bench-check: " in capsys.readouterr().err


def test_a_row_of_the_json_has_the_shape_that_is_promised():
    row = json.loads(json.dumps(ROWS[0]))
    assert set(row) == {"work", "figure", "unit", "systems", "goals"}
    assert set(row["goals"][0]) == {"peer", "at_least", "value", "met", "kind"}


@pytest.mark.parametrize(("value", "arguments", "status"), [(0.4, ["--goals"], 0), (0.6, ["--goals"], 1), (0.6, [], 0)])
def test_check_judges_what_lies_beside_the_file_too(tmp_path, capsys, value, arguments, status):
    results.write(tmp_path / "latest.json", report())
    checks = [{"name": "ms of a get", "value": value, "at_most": 0.5, "met": True}]
    (tmp_path / "reads.json").write_text(json.dumps({"checks": checks}))
    assert check.main([str(tmp_path / "latest.json"), *arguments]) == status
    found = f"goal    reads.json: {'met   ' if value < 0.5 else 'MISSED'} ms of a get: {value} (<= 0.5)"
    assert found in capsys.readouterr().out.splitlines()


def test_a_file_beside_it_that_is_none(tmp_path, capsys):
    results.write(tmp_path / "latest.json", report())
    (tmp_path / "spark.json").write_text("{}")
    assert check.main([str(tmp_path / "latest.json")]) == 2
    assert "bench-check: " in capsys.readouterr().err
