"""What the benchmark of small requests beside large ones makes of its figures."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from bench.passing import LARGE, QUIET, SMALL, Row, judge
from bench.slow_machine import NAME, SlowMachine, site


def rows(quiet_ms: float, large_per_s: float) -> list[Row]:
    chunks = [Row("in chunks", QUIET, quiet_ms, quiet_ms, 20.0), Row("in chunks", LARGE, 1.0, 1.0, large_per_s)]
    whole = [Row("as a whole", QUIET, 100.0, 100.0, 3.0), Row("as a whole", LARGE, 1.0, 1.0, 2.0)]
    return [*chunks, *whole, *(Row(how, SMALL, 1.0, 1.0, 9.0) for how in ("in chunks", "as a whole"))]


@pytest.mark.parametrize(
    ("quiet_ms", "large_per_s", "missed"),
    [
        (50.0, 1.5, []),
        (51.0, 1.5, ["quiet client's p50"]),
        (101.0, 1.5, ["quiet client's p50", "quiet client's p99"]),
        (5.0, 1.4, ["large ones a second"]),
    ],
)
def test_the_quiet_client_has_to_pass_and_large_ones_have_to_get_in(
    quiet_ms: float, large_per_s: float, missed: list[str]
) -> None:
    found = [check.name.split(",")[0] for check in judge(rows(quiet_ms, large_per_s)) if not check.met]
    assert found == missed


def test_nodes_find_the_slow_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(site(tmp_path / "site")), *sys.path])
    (found,) = entry_points(group="logboom.state_machines", name=NAME)
    assert found.load() is SlowMachine
