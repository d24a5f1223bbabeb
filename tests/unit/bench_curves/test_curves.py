"""How curves are kept and judged, what a load does, and what is read out of a journal."""

import argparse
import asyncio
import shutil
from collections import Counter
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from bench import reads, report, spark
from bench.curves import given, length
from bench.curves.__main__ import GROUPS, chosen
from bench.curves.drive import SAMPLES_MAX, Drive, Tally, _loop, summary
from bench.curves.given import GB, Given, affordable_gb
from bench.curves.sheet import Sheet
from bench.curves.size import ParentLog, parent_log
from bench.reads import Row
from bench.report import Check
from bench.spark import Run
from raftlog.entries.entry import KIND_NOOP, KIND_ROUTES
from raftlog.journal import journal_codec as codec
from raftlog.journal.journal import cluster_hash


def sheet_of(*points, series=""):
    sheet = Sheet()
    sheet.curve("cost", x="things", unit="s")
    for x, y in points:
        sheet.point("cost", x, y, series=series)
    return sheet


# -- checks


@pytest.mark.parametrize(
    ("check", "met"),
    [
        (Check("a", 1.0, at_most=1.0), True),
        (Check("a", 1.1, at_most=1.0), False),
        (Check("a", 0.9, at_least=0.9), True),
        (Check("a", 0.8, at_least=0.9), False),
    ],
)
def test_a_bound_itself_is_within_bounds(check, met):
    assert check.met is met
    assert str(check).startswith("met" if met else "MISSED")


def test_a_check_names_the_bound_it_has():
    assert Check("a", 2.0, at_most=1.0).row() == {"name": "a", "value": 2.0, "at_most": 1.0, "met": False}


def test_a_missed_floor_is_exit_status_1_unless_floors_do_not_count():
    checks = [Check("a", 1.0, at_least=2.0), Check("b", 1.0, at_most=2.0)]
    assert report.verdict(checks, floors=True) == 1
    assert report.verdict(checks, floors=False) == 0
    assert report.verdict(checks[1:], floors=True) == 0


def test_a_report_has_where_and_with_what(tmp_path):
    report.write(tmp_path / "new" / "a.json", settings={"x": 1}, checks=[Check("a", 1.0, at_most=1.0)], table=[])
    written = report.json.loads((tmp_path / "new" / "a.json").read_text())
    assert set(written) == {"taken", "machine", "versions", "settings", "table", "checks"}
    assert "logboom" in written["versions"]


# -- sheets


def test_a_point_is_the_median_of_its_runs():
    point = sheet_of((8, [3.0, 1.0, 2.0])).curves["cost"].points[0]
    assert (point.x, point.y, point.low, point.high) == (8, 2.0, 1.0, 3.0)


def test_a_ratio_is_the_last_point_to_the_first_of_its_series():
    sheet = sheet_of((1, 10.0), (8, 99.0), (1000, 9.0))
    sheet.point("cost", 10_000, 1.0, series="other")
    sheet.ratio("cost", at_least=0.9)
    assert [(check.name, check.value, check.met) for check in sheet.checks] == [
        ("cost, 1,000 / 1 things", 0.9, True),
    ]


def test_one_point_has_no_ratio():
    sheet = sheet_of((1, 10.0))
    sheet.ratio("cost", at_least=0.9)
    assert sheet.checks == []


def test_a_sheet_tells_what_was_skipped():
    sheet = sheet_of((1, 1.0))
    sheet.skip("the rest")
    figures = sheet.figures()
    assert figures["skipped"] == ["the rest"]
    assert figures["curves"]["cost"] == {
        "x": "things",
        "unit": "s",
        "points": [{"x": 1, "y": 1.0, "low": 1.0, "high": 1.0, "series": ""}],
    }


def test_only_known_groups_can_be_chosen():
    assert chosen("size,batch") == ["size", "batch"]
    assert chosen(",".join(GROUPS)) == list(GROUPS)
    with pytest.raises(argparse.ArgumentTypeError, match="sizes: choose from"):
        chosen("sizes")


# -- the log's length


@pytest.mark.parametrize(("free_gb", "wanted", "gets"), [(60, 8, 8), (60, 50, 50), (26, 50, 20), (5, 8, 0), (1, 8, 0)])
def test_a_log_leaves_room_on_the_disk(monkeypatch, tmp_path, free_gb, wanted, gets):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free_gb * GB))
    sheet = Sheet()
    assert affordable_gb(wanted, tmp_path, sheet) == gets
    assert bool(sheet.skipped) is (gets < wanted)


@pytest.mark.parametrize(
    ("longest", "places"),
    [
        (8, [1, 2, 4, 8]),
        (6, [1, 2, 4, 6]),
        (50, [1, 2, 4, 8, 16, 32, 50]),
        (0.4, [0.1, 0.2, 0.4]),
        (1, [0.1, 0.2, 0.4, 1]),
        (0, []),
    ],
)
def test_a_log_is_looked_at_while_it_doubles(longest, places):
    assert length.stations(longest) == places


def test_a_quick_run_has_few_points():
    assert Given(given.Path(), quick=True).some((1, 2, 3, 4)) == (1, 2, 3)
    assert Given(given.Path()).some((1, 2, 3, 4)) == (1, 2, 3, 4)


# -- loads


async def test_a_tally_fits_into_a_pipe():
    async def request(turn):
        if turn % 100 == 0:
            await asyncio.sleep(0)

    tally = await _loop(Drive(("nowhere:1",), commands=1, under_way=1, total=4_001), [request], [])
    assert tally.commands == 4_001
    assert 1_000 <= len(tally.latencies) <= SAMPLES_MAX
    assert len(report.json.dumps(asdict(tally))) < 64 * 1024


async def test_a_load_of_so_many_commands_does_them_and_no_more():
    asked = Counter()

    def operation(slot):
        async def request(turn):
            asked[slot] += 1
            await asyncio.sleep(0)

        return request

    drive = Drive(("nowhere:1",), commands=10, under_way=3, total=95)
    tally = await _loop(drive, [operation(slot) for slot in range(3)], [])
    assert sum(asked.values()) == 10
    assert (tally.counted, tally.commands, len(tally.latencies)) == (100, 100, 10)


def test_processes_are_added_up():
    tallies = [Tally(100, 2.0, 150, 3.0, [0.001, 0.002]), Tally(300, 2.0, 450, 4.0, [0.003, 0.004])]
    driven = summary(tallies)
    assert driven.commands_per_s == 200
    assert driven.until_applied_per_s == 150
    assert driven.p50_ms == pytest.approx(2.5)


def test_nothing_done_is_nothing_measured():
    with pytest.raises(ValueError, match="nothing was measured"):
        summary([Tally(0, 1.0, 0, 1.0, [])])


# -- the parent log's bytes


def test_only_routing_entries_count_as_parent_log(tmp_path):
    salt = codec.Salt.of(b"12345678")
    header = codec.segment_header(first_sequence=1, cluster=cluster_hash("logboom"), salt=b"12345678")
    bodies = [
        (codec.RecordKind.HARDSTATE, b"\1" * 8),
        (codec.RecordKind.ENTRY, codec.ENTRY.pack(2, 1) + KIND_NOOP),
        (codec.RecordKind.REDO, b"d" * 300),
        (codec.RecordKind.ENTRY, codec.ENTRY.pack(3, 1) + KIND_ROUTES + b"r" * 32),
        (codec.RecordKind.ENTRY, codec.ENTRY.pack(4, 1) + KIND_ROUTES + b"r" * 64),
    ]
    records = [
        codec.encode_record(kind, body, sequence=number, synced=0, floor=0, salt=salt)
        for number, (kind, body) in enumerate(bodies, 1)
    ]
    (tmp_path / "00000000000000000001.journal").write_bytes(header + b"".join(records) + bytes(4096))
    (tmp_path / "00000000000000000001.broken").write_bytes(b"not looked at")
    assert parent_log(tmp_path) == ParentLog(2, 33 + 65, 96 + 128)


# -- reads, Spark


class Node:
    """A node at commit index 10 whose next command gets the index ``given``."""

    given = 0

    def __init__(self, _):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def status(self, **_):
        return {"commit_index": 10}

    async def barrier(self, target, **_):
        if target != self.given:
            await asyncio.Event().wait()

    async def submit(self, *_, **__):
        return SimpleNamespace(global_index=self.given)


@pytest.mark.parametrize(("index", "guesses", "hits"), [(11, 1, 3), (12, 1, 0), (12, 2, 3)])
async def test_only_a_barrier_on_the_command_itself_counts(monkeypatch, index, guesses, hits):
    monkeypatch.setattr(reads, "Client", Node)
    monkeypatch.setattr(Node, "given", index)
    cluster = SimpleNamespace(addresses={"n1": "nowhere:1"})
    assert len(await reads.wake_ups(cluster, "n1", guesses=guesses, count=3)) == hits


def test_reads_are_judged_where_nothing_else_goes_on():
    crowds = (reads.BESIDE, reads.IN_TURN, reads.TOGETHER, reads.ALONE)
    rows = [
        Row(load, what, p50, 9.0, 10)
        for load, p50 in (("idle", 0.4), ("bulk", 4.0))
        for what in ("get, linearizable (default)", "barrier, wake-up", *crowds)
    ]
    judged = [(check.value, check.met) for check in reads.judge(rows)]
    assert judged == [(0.4, True), (0.4, True), (9.0, False), (9.0, False), (1.0, True)]


def test_spark_is_judged_by_medians():
    rows = spark.table(
        {
            "log, committed": [Run(500_000, 0)],
            "log, durable": [Run(490_000, 0), Run(510_000, 0), Run(1, 5)],
            "kv, applied": [Run(100_000, 0)],
            **{reading.name: [Run(2_000_000, 0)] for reading in spark.READINGS},
        }
    )
    assert [row["again"] for row in rows] == [0, 5, 0, 0, 0, 0]
    judged = [(check.value, check.met) for check in spark.judge(rows)]
    assert judged[:3] == [(500_000, True), (490_000, False), (100_000, True)]
    assert all(met for _, met in judged[3:])


def test_works_name_their_partitions():
    assert [work.partitions for work in spark.WORKS] == ["8-15", "8-15", "0-7"]
