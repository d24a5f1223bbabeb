"""Nodes of a local cluster that run another checkout, as in a rolling upgrade."""

from __future__ import annotations

from pathlib import Path

import pytest

import logboom
from logboom.testing import LocalCluster

ROOT = Path(logboom.__file__).resolve().parents[1]


@pytest.mark.process
def test_a_node_runs_its_own_checkout_wherever_it_is_started_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "logboom"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "__main__.py").write_text("print('of the other checkout')\n")
    monkeypatch.chdir(ROOT)
    cluster = LocalCluster(nodes=1, directory=tmp_path / "cluster")
    cluster.sources = {"n1": other.parent}
    try:
        cluster.start_node("n1")
        assert cluster.wait_ended("n1") == 0
        assert cluster.log("n1").read_text() == "of the other checkout\n"
    finally:
        cluster.stop()


@pytest.mark.process
def test_what_lies_in_the_working_directory_can_be_imported_and_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logboom.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    with LocalCluster(nodes=1, partitions=1, directory=tmp_path / "cluster") as cluster:
        environment = Path(f"/proc/{cluster.pid('n1')}/environ").read_bytes().decode()
        assert str(tmp_path) in environment.partition("PYTHONPATH=")[2].partition("\0")[0].split(":")
