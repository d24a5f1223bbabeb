"""Tests that share a cluster, or Spark, run in one process, whatever pytest and pytest-xdist make of each other."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tidy.tree import ROOT

Spread = Callable[[int], list[list[str]]]

SPARK = [f"tests/integration/spark/test_{module}.py::test_it[{number}]" for module in "ab" for number in range(2)]
CLUSTER = [f"tests/integration/cluster/test_rates.py::test_it[a::{number}]" for number in range(5)]
UNIT = [f"tests/unit/server/test_links.py::TestLinks::test_it[{number}]" for number in range(9)]
STORAGE = [f"tests/storage/test_flips.py::test_it[{number}]" for number in range(4)]
NAMES = [name for names in zip(SPARK, CLUSTER, UNIT, STORAGE, strict=False) for name in names]
NAMES += [name for name in (*SPARK, *CLUSTER, *UNIT, *STORAGE) if name not in NAMES]


class Process:
    """As the scheduler knows one; what it was given, in its order."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.given: list[int] = []
        self.done = 0

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.fixture
def spread(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Spread:
    """What each of some processes runs, where all tests take as long."""

    def made(count: int) -> list[list[str]]:
        monkeypatch.setattr(pytestconfig.option, "dist", "loadscope")
        monkeypatch.setattr(pytestconfig.option, "tx", ["popen"] * count)
        scheduler: Any = pytestconfig.hook.pytest_xdist_make_scheduler(config=pytestconfig, log=None)
        processes = [Process(f"gw{number}") for number in range(count)]
        for process in processes:
            scheduler.add_node(process)
        for process in processes:
            scheduler.add_node_collection(process, NAMES)
        scheduler.schedule()
        while any(process.done < len(process.given) for process in processes):
            for process in processes:
                if process.done < len(process.given):
                    process.done += 1
                    scheduler.mark_test_complete(process, process.given[process.done - 1])
        assert scheduler.tests_finished
        return [[NAMES[index] for index in process.given] for process in processes]

    return made


def test_what_shares_a_cluster_stays_together_and_what_waits_runs_beside_what_thinks(spread: Spread) -> None:
    waiting, thinking = spread(2)
    assert waiting == [*SPARK, *CLUSTER]
    assert thinking == [*STORAGE, *UNIT]


def test_one_process_runs_all(spread: Spread) -> None:
    assert spread(1) == [[*SPARK, *CLUSTER, *UNIT, *STORAGE]]


def test_it_is_what_the_makefile_asks_for() -> None:
    assert "pytest -n $(WORKERS) --dist loadscope" in (ROOT / "Makefile").read_text()
