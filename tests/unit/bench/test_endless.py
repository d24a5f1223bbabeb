"""What a node's disk use is made of, what bounds it, and how a run is judged."""

import os

import pytest

from bench import endless
from bench.disk_use import MIB, Retention, Use, part_of
from bench.endless import Sample


@pytest.mark.parametrize(
    ("places", "part"),
    [
        ((), "other"),
        (("journal",), "journal"),
        (("partitions", "3"), "logs"),
        (("partitions", "3", "state"), "state"),
        (("partitions", "3", "state", "deeper"), "state"),
        (("snapshots",), "snapshots"),
        (("elsewhere",), "other"),
    ],
)
def test_every_directory_belongs_to_a_part(places, part):
    assert part_of(places) == part


def test_what_is_allocated_counts_by_part(tmp_path):
    for path, size in {"manifest.json": 1, "journal/1.journal": 8192, "partitions/0/1.log": 4096}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(os.urandom(size))
        with (tmp_path / path).open("rb") as file:
            os.fsync(file.fileno())
    hole = tmp_path / "partitions" / "0" / "state" / "data.mdb"
    hole.parent.mkdir()
    hole.touch()
    os.truncate(hole, 64 * MIB)
    found = Use.of(tmp_path)
    assert (found.journal, found.logs, found.state, found.snapshots) == (8192, 4096, 0, 0)
    assert found.total == found.journal + found.logs + found.other
    assert 0 < found.other < MIB


def test_the_bound_grows_with_each_setting_that_keeps_more():
    least = Retention().most()
    for setting in ("log_bytes", "retain_log_bytes", "segment_bytes"):
        assert Retention(**{setting: 64 * MIB}).most().logs > least.logs, setting
    assert Retention(journal_segment_bytes=64 * MIB).most().journal > least.journal
    assert Retention(retain_bytes=64 * MIB).most().logs == least.logs + 2 * 64 * MIB
    assert Retention(keys=10**6).most().snapshots > least.snapshots


def test_settings_of_snapshots_can_be_left_off():
    named = {name.partition(".")[0] for name in Retention().settings(snapshots=False)}
    assert named == {"log", "raft"}
    assert set(Retention().settings()) - set(Retention().settings(snapshots=False)) == {
        "snapshot.log_bytes",
        "snapshot.retain_bytes",
        "snapshot.retain_log_bytes",
    }


def samples(logs, resident=lambda second: 100 * MIB):
    return [
        Sample(float(second), node, Use(logs=logs(second)), resident(second), second)
        for second in range(1, 101)
        for node in ("n1", "n2")
    ]


def missed(found, most):
    return [check.name.rpartition(": ")[2] for check in endless.judge(found, most) if not check.met]


def test_only_the_last_half_is_held_against_the_bound():
    most = Use(logs=50 * MIB)
    assert missed(samples(lambda s: 90 * MIB if s < 50 else 40 * MIB), most) == []
    assert missed(samples(lambda s: 51 * MIB if s == 80 else 40 * MIB), most) == ["everything", "partitions' logs"]


def test_a_part_that_grows_is_seen_though_everything_has_room():
    most = Use(logs=50 * MIB, snapshots=50 * MIB)
    assert missed(samples(lambda s: s * MIB), most) == ["partitions' logs"]


def test_memory_that_grows_is_seen():
    found = samples(lambda s: 0, resident=lambda s: s * 4 * MIB if s > 75 else 100 * MIB)
    assert missed(found, Use()) == ["resident memory, last quarter / the one before"]


def test_a_run_without_samples_proves_nothing():
    with pytest.raises(ValueError, match="too short"):
        endless.judge([], Use())


def test_the_table_has_few_rows_of_one_node():
    lines = endless.table(samples(lambda s: MIB), "n1").splitlines()
    assert len(lines) <= 2 + endless.SHOWN
    assert lines[2] == "| 1 | 1.0 | 0.0 | 1.0 | 0.0 | 0.0 | 104.9 | 1 |"


def test_curves_have_all_nodes_and_the_bound():
    found = endless.curves(samples(lambda s: s * MIB), Use(logs=50 * MIB))
    disk = found["disk over time"]
    assert {point["series"] for point in disk["points"]} == {"n1", "n2", "bound"}
    assert [point["x"] for point in disk["points"] if point["series"] == "bound"] == [1.0, 100.0]
    assert disk["linear"] is True
