"""`logboom chaos run`, with real nodes, for a moment: its exit status is what its checks say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.process


@pytest.mark.slow
def test_a_fault_run_ends_with_what_its_checks_say(tmp_path: Path) -> None:
    """From another directory, where modules have the names of its own."""
    for name in ("chaos", "server"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a stranger')")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "logboom", "chaos", "run", "--seconds", "2", "--seed", "5", "--dir", "runs"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    failed = [line for line in done.stdout.splitlines() if line.split()[:1] == ["FAIL"]]
    assert done.stdout.startswith("seed 5: "), done.stderr
    assert "  ok   exactly once on n1" in done.stdout.splitlines()
    assert "  ok   registers linearizable" in done.stdout.splitlines()
    # On a slow machine it may have done too little to prove anything, which is a failure, too.
    assert done.returncode == bool(failed)
    assert (tmp_path / "runs" / "run-5" / "history.jsonl").exists() == bool(failed)
    assert ("replay: logboom chaos run --seed 5 --seconds 2" in done.stderr) == bool(failed)
